"""Level `plan` computes everything that follows from a plan's layouts again and compares it with the file.

It finds edited or outdated plan files: specs, mesh, cost and memory must be what the layouts give.
"""

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
    """Compute specs, mesh, cost and memory again from the plan's layouts and compare them with the plan.

    Numbers may differ by a relative 1e-9 (`RELATIVE`). Differences of constants come first, because differences of
    seconds follow from them; at most 20 (`MOST_FINDINGS`) are reported. Raises `InputError` if the layouts break a
    rule; the caller then reports `no_layout`.
    """
    stated, computed = msgspec.to_builtins(loaded.plan), msgspec.to_builtins(recomputed(loaded))
    differences = tuple(sorted(_differences("", stated, computed), key=lambda f: not f.what.startswith("constants")))
    notes = (f"{len(differences)} differences, the first shown",) if len(differences) > MOST_FINDINGS else ()
    return verdict("plan", options.mode, _count_leaves(computed), differences[:MOST_FINDINGS], notes)


def no_layout(error: InputError) -> Level:
    """Return the failed level of a plan whose layouts break a rule, or do not fit its model or its slice."""
    finding = Finding(what="layouts", promised="a layout of this model on this slice", found=str(error))
    return verdict("plan", MANUAL.mode, 1, (finding,))


def recomputed(loaded: Loaded) -> Plan:
    """Return the plan that the model, slice, workload and layouts of a plan give.

    Raises `InputError` if the layouts do not fit.
    """
    plan, slice_ = loaded.plan, loaded.slice_
    chip_speeds = speeds(slice_.chip, loaded.workload.dtypes)
    priced = price_layout(
        loaded.layout, slice_, plan.model, loaded.workload, plan.batch, plan.padded_batch, chip_speeds
    )
    return on_slices(priced, plan.num_slices)


def _differences(path: str, stated: Any, computed: Any) -> Iterator[Finding]:
    """Yield a finding for each leaf at which two trees of built-in types differ; `path` names the place."""
    if isinstance(stated, dict) and isinstance(computed, dict):
        for key in dict.fromkeys((*computed, *stated)):
            yield from _differences(_join(path, key), stated.get(key, "nothing"), computed.get(key, "nothing"))
    elif isinstance(stated, list | tuple) and isinstance(computed, list | tuple) and len(stated) == len(computed):
        for number, (a, b) in enumerate(zip(stated, computed, strict=True)):
            yield from _differences(f"{path}[{number}]{_entry_name(b)}", a, b)
    elif not _equal(stated, computed):
        yield Finding(what=path, promised=_short(stated), found=_short(computed))


def _join(path: str, key: str) -> str:
    return f"{path}.{key}" if path else key


def _entry_name(value: Any) -> str:
    """Return a readable name of a list's entry: a step's text, a constant's name or a layout's component."""
    if not isinstance(value, dict):
        return ""
    name = value.get("text") or value.get("name") or value.get("component")
    return f" ({name})" if name else ""


def _equal(stated: Any, computed: Any) -> bool:
    numbers = all(isinstance(v, int | float) and not isinstance(v, bool) for v in (stated, computed))
    return isclose(stated, computed, rel_tol=RELATIVE, abs_tol=1e-15) if numbers else bool(stated == computed)


def _short(value: Any) -> str:
    text = msgspec.json.encode(value).decode()
    return text if len(text) <= 200 else f"{text[:200]}..."


def _count_leaves(value: Any) -> int:
    """Return the number of values in a tree of dicts and lists."""
    if isinstance(value, dict):
        return sum(map(_count_leaves, value.values()))
    return sum(map(_count_leaves, value)) if isinstance(value, list | tuple) else 1
