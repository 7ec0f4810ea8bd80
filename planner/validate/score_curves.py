"""Score collectives: one calibration (launch and efficiency) per curve, also on the points that it left out.

On one curve hop and launch cannot be told apart: the hop stays at the data sheet's.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import msgspec
import numpy as np

from mesh.chips import Reached
from mesh.slices import parse_slice
from planner.plan.accuracy import slice_at
from planner.validate.fitting import ConstantsFit, fit, left_out
from planner.validate.measured import Check, Curve, CurveSet
from planner.validate.points import collective_s, default_of, terms_of_curve
from planner.validate.scores import (
    CALIBRATED,
    CHIP,
    FITTED,
    SHEET,
    FittedConstants,
    Judged,
    Scored,
    SetScore,
    all_errors,
    described,
    errors_of,
)

FREE = ("link", "launch_s")


def score_curves(name: str, data: CurveSet) -> SetScore:
    """Fit every curve by itself between the set's sizes, and return the scores."""
    points: list[Scored] = []
    fits: dict[str, tuple[Curve, ConstantsFit]] = {}
    for curve in data.curves:
        constants_fit, scored = _score(curve, data)
        points += scored
        fits[curve.name] = (curve, constants_fit)
    return SetScore(
        **described(name, data),
        unit="s",
        chip_constants={s.chip.name: default_of(s) for s in (parse_slice(curve.slice) for curve in data.curves)},
        calibrations=tuple(_calibration(curve, constants_fit, data) for curve, constants_fit in fits.values()),
        points=tuple(points),
        errors=all_errors(points),
        notes=tuple(_notes(data, fits)),
        targets=tuple(
            Judged(
                what=target.what,
                of=target.of,
                found=getattr(errors_of([p for p in points if p.group == target.of], FITTED), target.what),
                at_most=target.at_most,
            )
            for target in data.targets
        ),
    )


def _score(curve: Curve, data: CurveSet) -> tuple[ConstantsFit, list[Scored]]:
    """Return the fit and the scored points of one curve."""
    fitted_points = [p for p in curve.points if data.bytes_from <= p.bytes <= data.bytes_to]
    sizes, measured = [p.bytes for p in fitted_points], np.array([p.seconds for p in fitted_points])
    slice_, terms = parse_slice(curve.slice), terms_of_curve(curve, sizes)
    start = msgspec.structs.replace(default_of(slice_), hop=1.0)
    constants_fit = fit(terms, measured, start, FREE, priors=False)
    predicted = {
        SHEET: collective_s(slice_at(slice_, "data-sheet"), curve.collective, curve.group, sizes),
        CHIP: terms.seconds(default_of(slice_)).tolist(),
        FITTED: terms.seconds(constants_fit.reached).tolist(),
        CALIBRATED: left_out(terms, measured, start, sizes, FREE, priors=False).tolist(),
    }
    return constants_fit, [
        Scored(
            name=f"{curve.name}, {size / 1e6:.4g} MB",
            measured=seconds,
            predicted={constants: values[i] for constants, values in predicted.items()},
            group=curve.name,
        )
        for i, (size, seconds) in enumerate(zip(sizes, measured.tolist(), strict=True))
    ]


def _calibration(curve: Curve, constants_fit: ConstantsFit, data: CurveSet) -> FittedConstants:
    """Return the fitted constants of one curve."""
    points = sum(data.bytes_from <= p.bytes <= data.bytes_to for p in curve.points)
    return FittedConstants(
        of=curve.name,
        reached=constants_fit.reached,
        intervals=constants_fit.intervals,
        points=points,
        configurations=points,
        note=f"{curve.harness}; {curve.source}",
    )


def _notes(data: CurveSet, fits: Mapping[str, tuple[Curve, ConstantsFit]]) -> Iterator[str]:
    """Yield a note on each curve and each check."""
    for name, (curve, constants_fit) in fits.items():
        terms = terms_of_curve(curve, [0.0])
        fixed = float(terms.seconds(constants_fit.reached)[0])
        yield (
            f"{name}: {fixed * 1e6:.1f} us before the first byte, {terms.launches[0]:.0f} launches and "
            f"{terms.hops_s[0] * 1e6:.2g} us of hops; {curve.harness}"
        )
    for check in data.checks:
        yield _checked(
            check, {curve.slice.partition(":")[0]: constants_fit.reached for curve, constants_fit in fits.values()}
        )


def _checked(check: Check, of_chip: Mapping[str, Reached]) -> str:
    """Return a note on a check: its measured and its predicted seconds."""
    slice_ = parse_slice(check.slice)
    predicted = collective_s(slice_.reaching(of_chip[slice_.chip.name]), check.collective, check.group, [check.bytes])[
        0
    ]
    return (
        f"never fitted: {check.collective} of {check.bytes / 1e6:.4g} MB on {check.slice} measured "
        f"{check.seconds * 1e6:.4g} us, predicted {predicted * 1e6:.4g} ({predicted / check.seconds - 1:+.0%}); "
        f"{check.source}"
    )
