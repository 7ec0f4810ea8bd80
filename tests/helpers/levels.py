"""Levels on plans that are not loaded yet."""

from __future__ import annotations

from collections.abc import Sequence

from executor.levels.integrity import no_layout, plan_file
from executor.loaded import load
from executor.verdict import Level
from mesh.chips import Chip
from mesh.errors import InputError
from planner.plan.plan import Plan
from strategies.notation import Program


def check_plan_file(plan: Plan, programs: Sequence[Program] = (), chip: Chip | None = None) -> Level:
    """Level `plan` of a plan, as `verify` gives it: also where it cannot be loaded."""
    try:
        return plan_file(load(plan, programs, chip))
    except InputError as error:
        return no_layout(error)
