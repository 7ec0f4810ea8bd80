"""`validate`: predictions beside published measurements, per data set, and whether the stated targets are met."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from mesh.errors import InputError
from mesh.version import VERSION
from planner.validate.measured import (
    MEASURED,
    Curves,
    Limits,
    Measured,
    Microbenchmarks,
    Serving,
    Steps,
    read_set,
    set_names,
)
from planner.validate.score_curves import score_curves
from planner.validate.score_others import score_limits, score_microbenchmarks, score_serving
from planner.validate.score_steps import score_steps
from planner.validate.scores import SetScore, Validation

SCHEMA = "meshwright.validation/1"


def validate(
    names: Sequence[str] | None = None, folder: Path = MEASURED, progress: Callable[[str], None] = lambda _: None
) -> Validation:
    """Score the named data sets, by default all. Raises `InputError` on a set there is none of."""
    names = names or set_names(folder)
    if not names:
        raise InputError(f"'{folder}' holds no data sets; expected files such as those in '{MEASURED}'")
    data = {name: read_set(name, folder) for name in names}
    scores = []
    for name, one in data.items():
        progress(f"scoring {name}")
        scores.append(score(name, one))
    return Validation(schema=SCHEMA, tool_version=VERSION, sets=tuple(scores))


def score(name: str, data: Measured) -> SetScore:
    """What is found about one data set."""
    match data:
        case Steps():
            return score_steps(name, data)
        case Curves():
            return score_curves(name, data)
        case Limits():
            return score_limits(name, data)
        case Serving():
            return score_serving(name, data)
        case Microbenchmarks():
            return score_microbenchmarks(name, data)
