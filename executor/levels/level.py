"""The type of a level: a function of a loaded plan and the options of a run that returns a verdict."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from executor.loaded import Loaded
from executor.verdict import Level


@dataclass(frozen=True, kw_only=True)
class LevelOptions:
    """The options of a level. `mode`: the part of the plan that the compiler is given; see `levels.verify.MODES`.

    `timing_within`: the factor between the measured and the priced step up to which level `timing` passes; None: the
    time is told and not judged.
    """

    mode: str = "manual"
    timing_within: float | None = None


MANUAL = LevelOptions()

Judge = Callable[[Loaded, LevelOptions], Level]
"""A level: raises `Unavailable` where devices or what the model has are missing here, `InputError` on nonsense."""
