"""Requests of every kind, and their answers in short: what `tests/cases/requests.json` keeps.

The answers were written by the code of before the packages were reorganised; tests compute them again, most of them in
the tier `full`.
"""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import meshwright

CASES = Path(__file__).parents[1] / "cases"
FILE = CASES / "requests.json"
COMMANDS = tuple(
    line for line in (CASES / "requests.txt").read_text("utf-8").splitlines() if line and not line.startswith("#")
)
_PLAN = ("slice", "batch", "padded_batch", "context", "mesh", "residual", "layouts", "padded", "memory", "throughput")
_COST = ("lower_bound_s", "step_s", "upper_bound_s", "bound_by")


def answer(command: str, capsys: Any) -> dict[str, Any]:
    """Exit code, and the layouts and numbers of the JSON that the command prints."""
    arguments = [word.replace("CASES", str(CASES)) for word in shlex.split(command)]
    code = meshwright.main([*arguments, "--format", "json"])
    text = capsys.readouterr().out
    return {"exit": code} | (short(json.loads(text)) if text else {})


def short(value: dict[str, Any]) -> dict[str, Any]:
    """What must stay of an answer: not its times, its version, or its notes."""
    kept: dict[str, Any] = {}
    for plan in value.get("plans", ()):
        one = {name: plan[name] for name in _PLAN} | {name: plan["cost"][name] for name in _COST}
        kept.setdefault("plans", []).append(one | {"steps": len(plan["cost"]["steps"])})
    for name in ("serving", "frontier", "rejected"):
        if name in value:
            kept[name] = value[name]
    if "fleet" in value:
        kept["fleet"] = {k: v for k, v in value["fleet"].items() if k != "proof"}
    if "search" in value:
        kept["search"] = {name: value["search"][name] for name in ("candidates", "evaluations")}
    if "slices" in value:  # what `fits` finds
        kept |= {"slices": value["slices"], "smallest": value["smallest"]}
    timeless: dict[str, Any] = _without_times(kept)
    return timeless


def _without_times(value: Any) -> Any:
    """The value without what a solver took."""
    if isinstance(value, dict):
        return {name: _without_times(one) for name, one in value.items() if name not in ("wall_s", "solver_s")}
    return [_without_times(one) for one in value] if isinstance(value, list) else value
