"""Level `plan`: is the file what its own layouts give? Everything that follows from them is computed again."""

from __future__ import annotations

from collections.abc import Iterator
from math import isclose
from typing import Any

import msgspec

from executor.levels.level import MANUAL, LevelOptions
from executor.loaded import Loaded
from executor.verdict import Finding, Level, verdict
from mesh.errors import InputError
from planner.best.replicas import on_slices
from planner.plan.plan import Plan
from planner.plan.pricing import price_layout
from strategies.readers.cost import speeds

RELATIVE = 1e-9
MOST_FINDINGS = 20


def plan_file(loaded: Loaded, options: LevelOptions = MANUAL) -> Level:
    """Compute specs, mesh, cost and memory again from the plan's layouts, and compare them with what the plan says.

    Differences of constants come first: those of the seconds follow from them. Raises `InputError` where the layouts
    break a rule; `no_layout` is the level then.
    """
    said, computed = msgspec.to_builtins(loaded.plan), msgspec.to_builtins(recomputed(loaded))
    differences = tuple(sorted(_differences("", said, computed), key=lambda f: not f.what.startswith("constants")))
    notes = (f"{len(differences)} differences, the first shown",) if len(differences) > MOST_FINDINGS else ()
    return verdict("plan", options.mode, _leaves(computed), differences[:MOST_FINDINGS], notes)


def no_layout(error: InputError) -> Level:
    """The level of a plan whose layouts break a rule, or do not fit its model or its slice."""
    finding = Finding(what="layouts", promised="a layout of this model on this slice", found=str(error))
    return verdict("plan", MANUAL.mode, 1, (finding,))


def recomputed(loaded: Loaded) -> Plan:
    """The plan that the plan's model, slice, workload and layouts give; raises `InputError` where they give none."""
    plan, slice_ = loaded.plan, loaded.slice_
    fast = speeds(slice_.chip, loaded.workload.dtypes)
    again = price_layout(loaded.layout, slice_, plan.model, loaded.workload, plan.batch, plan.padded_batch, fast)
    return on_slices(again, plan.num_slices)


def _differences(path: str, said: Any, computed: Any) -> Iterator[Finding]:
    if isinstance(said, dict) and isinstance(computed, dict):
        for key in dict.fromkeys((*computed, *said)):
            yield from _differences(_join(path, key), said.get(key, "nothing"), computed.get(key, "nothing"))
    elif isinstance(said, list | tuple) and isinstance(computed, list | tuple) and len(said) == len(computed):
        for number, (a, b) in enumerate(zip(said, computed, strict=True)):
            yield from _differences(f"{path}[{number}]{_name(b)}", a, b)
    elif not _equal(said, computed):
        yield Finding(what=path, promised=_short(said), found=_short(computed))


def _join(path: str, key: str) -> str:
    return f"{path}.{key}" if path else key


def _name(value: Any) -> str:
    """Return a name for a list's entry: a step's text, a layout's component, a constant's name."""
    if not isinstance(value, dict):
        return ""
    name = value.get("text") or value.get("name") or value.get("component")
    return f" ({name})" if name else ""


def _equal(said: Any, computed: Any) -> bool:
    numbers = all(isinstance(v, int | float) and not isinstance(v, bool) for v in (said, computed))
    return isclose(said, computed, rel_tol=RELATIVE, abs_tol=1e-15) if numbers else bool(said == computed)


def _short(value: Any) -> str:
    text = msgspec.json.encode(value).decode()
    return text if len(text) <= 200 else f"{text[:200]}..."


def _leaves(value: Any) -> int:
    if isinstance(value, dict):
        return sum(map(_leaves, value.values()))
    return sum(map(_leaves, value)) if isinstance(value, list | tuple) else 1
