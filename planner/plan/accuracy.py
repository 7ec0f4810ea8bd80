"""Look up error bars: how far estimates were from published measurements, by chip, phase and constants.

The table, data/accuracy.json, is written by `meshwright validate --error-bars`; a test checks that it equals the
result of `validate`. Estimates at constants that no measurement of the chip and phase has tested are uncalibrated.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path

import msgspec

from mesh.chips import Chip, Reached, chip_names, closest, load_chip
from mesh.errors import InputError
from mesh.slices import Slice
from planner.plan.plan import Accuracy, Constant, Value

TABLE = Path(__file__).parents[1] / "data" / "accuracy.json"
OWN = ("chip", "data-sheet")
"""Names of the constants that every chip has: its own, and those of its data sheet."""

CALIBRATED_FROM = "calibrated from"
"""Start of the source of a constant that was fitted to measurements."""


class ErrorBar(Value, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The errors of a data set's steps of one phase at some constants.

    `constants` is `chip`, `data-sheet`, or the set to which they were fitted (each configuration left out once).
    `reached` has these constants; None means the data sheet's. `median` and `worst` are relative errors.
    """

    chip: str
    phase: str
    set: str
    constants: str
    reached: Reached | None
    points: int
    median: float
    worst: float


@cache
def table() -> tuple[ErrorBar, ...]:
    """Return the error bars of this version."""
    return msgspec.json.decode(TABLE.read_bytes(), type=tuple[ErrorBar, ...])


def accuracy_of(chip: Chip, phase: str) -> Accuracy | None:
    """Return the error bar of estimates of this phase at this chip's constants; None means uncalibrated.

    >>> accuracy_of(load_chip("v6e"), "decode")
    """
    if chip.name not in chip_names() or not _same_hardware(chip, load_chip(chip.name)):
        return None
    bars = [bar for bar in table() if (bar.chip, bar.phase, bar.reached) == (chip.name, phase, chip.reached)]
    if not bars:
        return None
    bar = max(bars, key=lambda bar: bar.worst)
    return Accuracy(set=bar.set, constants=bar.constants, points=bar.points, median=bar.median, worst=bar.worst)


def _same_hardware(chip: Chip, known: Chip) -> bool:
    """Return whether FLOP/s, HBM and link bandwidths equal those of the built-in chip."""
    return (chip.flops_per_s, chip.hbm_bytes_per_s, chip.link_bytes_per_s) == (
        known.flops_per_s,
        known.hbm_bytes_per_s,
        known.link_bytes_per_s,
    )


def slice_at(slice_: Slice, constants: str) -> Slice:
    """Return the slice at its chip's own constants, its data sheet's, or those fitted to a data set of its chip.

    Raises `InputError` on constants that are not known or of another chip.

    >>> from mesh.slices import parse_slice
    >>> slice_at(parse_slice("v5e:4x4"), "data-sheet").chip.reached
    """
    if constants == OWN[0]:
        return slice_
    if constants == OWN[1]:  # the compiler's kinds of collectives stay, unlike in bounds
        return msgspec.structs.replace(slice_, chip=msgspec.structs.replace(slice_.chip, reached=None))
    fitted = [bar for bar in table() if bar.constants == bar.set]
    bars = [bar for bar in fitted if bar.set == constants]
    known = (*OWN, *dict.fromkeys(bar.set for bar in fitted))
    if not bars or bars[0].reached is None:
        raise InputError(f"constants '{constants}' are not known; closest: {closest(constants, known)}")
    if bars[0].chip != slice_.chip.name:
        raise InputError(f"constants '{constants}' are of {bars[0].chip}; expected some of {slice_.chip.name}, or chip")
    return slice_.reaching(bars[0].reached, _source(bars))


def _source(bars: Sequence[ErrorBar]) -> str:
    """Return the source of constants that were fitted to these sets' points."""
    points = sum(bar.points for bar in bars)
    return f"{CALIBRATED_FROM} {points} measured steps of the data set {bars[0].set} (see `meshwright validate`)"


def slice_of_plan(slice_: Slice, reached: Reached | None) -> Slice:
    """Return the slice at the constants with which a plan was priced.

    Raises `InputError` where they are not those of the chip, its data sheet or a data set.
    """
    known = [OWN[0], OWN[1], *dict.fromkeys(bar.set for bar in table() if bar.chip == slice_.chip.name)]
    for constants in known:
        fitted_slice = slice_at(slice_, constants)
        if fitted_slice.chip.reached == reached:
            return fitted_slice
    raise InputError(f"the plan's `reached` is not that of {slice_.chip.name}, its data sheet, or a data set")


def whose_constants(constants: Sequence[Constant]) -> str:
    """Say whether the constants of times (not the usable HBM) were measured, all or some, and on what."""
    timed = [c for c in constants if c.name != "usable_hbm_bytes_per_device"]
    measured = [c for c in timed if c.calibrated]
    how = "; ".join(dict.fromkeys(c.source.partition(":")[0] for c in measured))
    if not measured:
        return "times are uncalibrated: computed from data-sheet constants, which `explain` lists with their sources"
    if len(measured) == len(timed):
        return f"times are {how}; `explain` lists the constants, and how well each fits"
    others = ", ".join(c.name for c in timed if not c.calibrated)
    return f"times are partly {how}; uncalibrated: {others}; `explain` lists the constants with their sources"
