"""Compare predictions with published measurements, per data set, and check the stated targets (`validate`).

`error_bars` returns the part of it that plans carry, in data/accuracy.json.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from mesh.chips import Reached
from mesh.errors import InputError
from mesh.slices import parse_slice
from mesh.version import VERSION
from planner.plan.accuracy import OWN, ErrorBar
from planner.validate.measured import (
    MEASURED,
    CurveSet,
    LimitSet,
    Measured,
    RateSet,
    ServedSet,
    StepSet,
    read_set,
    set_names,
)
from planner.validate.score_curves import score_curves
from planner.validate.score_others import score_limits, score_microbenchmarks, score_serving
from planner.validate.score_steps import score_steps
from planner.validate.scores import CALIBRATED, CHIP, SHEET, SetScore, Validation, errors_of

SCHEMA = "meshwright.validation/1"
_DIGITS = 6  # significant digits of constants in error bars


def validate(
    names: Sequence[str] | None = None, folder: Path = MEASURED, progress: Callable[[str], None] = lambda _: None
) -> Validation:
    """Score the named data sets, by default all. Raises `InputError` on an unknown set or an empty folder."""
    names = names or set_names(folder)
    if not names:
        raise InputError(f"'{folder}' holds no data sets; expected files such as those in '{MEASURED}'")
    data = {name: read_set(name, folder) for name in names}
    scores = []
    for name, data_set in data.items():
        progress(f"scoring {name}")
        scores.append(score(name, data_set))
    return Validation(schema=SCHEMA, tool_version=VERSION, sets=tuple(scores))


def score(name: str, data: Measured) -> SetScore:
    """Return the score of one data set."""
    match data:
        case StepSet():
            return score_steps(name, data)
        case CurveSet():
            return score_curves(name, data)
        case LimitSet():
            return score_limits(name, data)
        case ServedSet():
            return score_serving(name, data)
        case RateSet():
            return score_microbenchmarks(name, data)


def error_bars(validation: Validation, folder: Path = MEASURED) -> tuple[ErrorBar, ...]:
    """Return the error bars that the sets of whole steps give."""
    bars: list[ErrorBar] = []
    for set_score in validation.sets:
        data = read_set(set_score.name, folder)
        if isinstance(data, StepSet) and not data.only:
            bars += _bars(set_score, data)
    return tuple(bars)


def _bars(set_score: SetScore, data: StepSet) -> list[ErrorBar]:
    """Return the error bars of one set, per phase and constants."""
    chip = parse_slice(data.slice).chip
    phases = [point.phase or data.phase for point in data.points]
    fitted = _rounded(set_score.calibrations[0].reached)
    kinds = ((OWN[0], CHIP, chip.reached), (OWN[1], SHEET, None), (set_score.name, CALIBRATED, fitted))
    bars = []
    for phase in dict.fromkeys(phases):
        chosen = [p for p, point_phase in zip(set_score.points, phases, strict=True) if point_phase == phase]
        for constants, predicted, reached in kinds:
            errors = errors_of(chosen, predicted)
            bars.append(
                ErrorBar(
                    chip=chip.name,
                    phase=phase,
                    set=set_score.name,
                    constants=constants,
                    reached=reached,
                    points=errors.points,
                    median=float(f"{errors.median:.3g}"),
                    worst=float(f"{errors.worst:.3g}"),
                )
            )
    return bars


def _rounded(reached: Reached) -> Reached:
    """Round constants to six digits; below a millionth of a data sheet's hop or launch they become 0."""
    values = {name: getattr(reached, name) for name in reached.__struct_fields__}
    small = {"hop": 1e-6, "launch_s": 1e-12}
    return Reached(**{n: 0.0 if v < small.get(n, 0.0) else float(f"{v:.{_DIGITS}g}") for n, v in values.items()})
