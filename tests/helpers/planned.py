"""Plans that several tests look at, searched once per process: a plan is frozen."""

from __future__ import annotations

from functools import cache
from typing import Any

import meshwright
from planner.plan.planfile import PlanFile
from strategies.models.models import Model


@cache
def planned(model: str | Model, slice_: str, **request: Any) -> PlanFile:
    """What `meshwright.plan` finds; batches are one number or a tuple."""
    return meshwright.plan(model, slice_, **request)
