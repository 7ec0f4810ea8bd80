"""The error bars that plans carry, from what `validate` finds: written to data/accuracy.json by `--error-bars`."""

from __future__ import annotations

from pathlib import Path

from mesh.chips import Reached
from mesh.slices import parse_slice
from planner.plan.accuracy import OWN, ErrorBar
from planner.validate.measured import MEASURED, Steps, read_set
from planner.validate.scores import CALIBRATED, CHIP, SHEET, SetScore, Validation, errors_of

_DIGITS = 6


def error_bars(found: Validation, folder: Path = MEASURED) -> tuple[ErrorBar, ...]:
    """The error bars that the sets of whole steps give."""
    bars: list[ErrorBar] = []
    for one in found.sets:
        data = read_set(one.name, folder)
        if isinstance(data, Steps) and not data.only:
            bars += _bars(one, data)
    return tuple(bars)


def _bars(one: SetScore, data: Steps) -> list[ErrorBar]:
    chip = parse_slice(data.slice).chip
    phases = [point.phase or data.phase for point in data.points]
    fitted = _rounded(one.calibrations[0].reached)
    kinds = ((OWN[0], CHIP, chip.reached), (OWN[1], SHEET, None), (one.name, CALIBRATED, fitted))
    bars = []
    for phase in dict.fromkeys(phases):
        chosen = [p for p, its in zip(one.points, phases, strict=True) if its == phase]
        for constants, predicted, reached in kinds:
            errors = errors_of(chosen, predicted)
            bars.append(
                ErrorBar(
                    chip=chip.name,
                    phase=phase,
                    set=one.name,
                    constants=constants,
                    reached=reached,
                    points=errors.points,
                    median=float(f"{errors.median:.3g}"),
                    worst=float(f"{errors.worst:.3g}"),
                )
            )
    return bars


def _rounded(reached: Reached) -> Reached:
    """To six digits; what is below a millionth of a data sheet's hop or launch is none."""
    values = {name: getattr(reached, name) for name in reached.__struct_fields__}
    small = {"hop": 1e-6, "launch_s": 1e-12}
    return Reached(**{n: 0.0 if v < small.get(n, 0.0) else float(f"{v:.{_DIGITS}g}") for n, v in values.items()})
