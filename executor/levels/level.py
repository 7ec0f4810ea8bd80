"""The type of a level: a function from a loaded plan and the options of a run to a `Level` of the report."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from executor.loaded import Loaded
from executor.verdict import Level


@dataclass(frozen=True, kw_only=True)
class LevelOptions:
    """The options of a level. `mode`: how the step is written for JAX; see `levels.verify.MODES`.

    `timing_within`: the factor up to which measured and priced seconds may differ for level `timing` to pass; None:
    the level reports the seconds and does not judge them.
    """

    mode: str = "manual"
    timing_within: float | None = None


MANUAL = LevelOptions()

Judge = Callable[[Loaded, LevelOptions], Level]
"""A level's function. Raises `Unavailable` if it cannot run on this machine, `InputError` on a plan that is wrong."""
