"""The JSON Schema of the files that meshwright writes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pkgutil import resolve_name
from typing import Any

import msgspec

from mesh.errors import InputError
from meshwright.reports.text import Block, TextTable

SCHEMAS = {
    "plan": "planner.plan.planfile:PlanFile",
    "fits": "planner.fits.fits:Fits",
    "sensitivity": "planner.sensitivity.types:SensitivityFile",
    "validation": "planner.validate.scores:Validation",
    "report": "executor.verdict:Report",
}
"""The type of each file that has a schema, loaded when asked for."""


def schema_of(name: str) -> dict[str, Any]:
    """Return the JSON Schema of the file of that name; raises `InputError` where there is no such file."""
    if name not in SCHEMAS:
        raise InputError(f"no schema {name!r}; there are: {', '.join(SCHEMAS)}")
    return msgspec.json.schema(resolve_name(SCHEMAS[name]))


def fields(schema: Mapping[str, Any]) -> Sequence[Block]:
    """Return one row per field of the schema."""
    rows = [row for name, of in schema["$defs"].items() for row in _rows(name, of)]
    title = schema["$ref"].rsplit("/", 1)[-1]
    return [TextTable(f"Fields of the file, which is a {title}", ("object", "field", "type", "required"), rows)]


def _rows(name: str, of: Mapping[str, Any]) -> Iterator[tuple[str, str, str, str]]:
    for field, value in of.get("properties", {}).items():
        yield name, field, _type(value), "yes" if field in of.get("required", ()) else "no"


def _type(value: Mapping[str, Any]) -> str:
    if "$ref" in value:
        return str(value["$ref"]).rsplit("/", 1)[-1]
    if "anyOf" in value:
        return " or ".join(_type(one) for one in value["anyOf"])
    if "enum" in value:
        return " or ".join(repr(one) for one in value["enum"])
    if value.get("type") == "array":
        inner = value.get("items") or value.get("prefixItems", [{}])[0]
        return f"list of {_type(inner)}"
    if value.get("type") == "object":
        return f"object of {_type(value.get('additionalProperties') or {})}"
    return str(value.get("type", "any"))
