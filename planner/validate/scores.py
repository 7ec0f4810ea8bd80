"""Define the result of `validate`: predictions beside measurements, their errors, and whether targets are met."""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from statistics import median
from typing import Any

import msgspec

from mesh.chips import Reached
from planner.plan.plan import Value
from planner.validate.measured import Head

BOUND, SHEET, CHIP, FITTED, CALIBRATED = "lower bound", "data sheet", "chip", "fitted", "calibrated"
COMPUTED = "computed"
"""Predictions: the data sheet's bound and estimate; at the chip's own constants; at
constants fitted to all points; calibrated, by a fit that left the point's configuration out. COMPUTED is from bytes."""


class Scored(Value, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A measured point and its predictions, in the set's unit, by name of the constants."""

    name: str
    measured: float
    predicted: dict[str, float]
    group: str = ""

    def error(self, constants: str) -> float:
        """Return predicted / measured - 1."""
        return self.predicted[constants] / self.measured - 1


class Errors(Value, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Absolute relative errors of some points at some constants.

    `of` is a table, phase or curve, else all points.
    """

    constants: str
    of: str
    points: int
    median: float
    worst: float


class FittedConstants(Value, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Constants fitted to points, each free one with its 95% interval.

    `of` is a curve, else the whole set.
    """

    of: str
    reached: Reached
    intervals: dict[str, tuple[float, float]]
    points: int
    configurations: int
    note: str = ""


class Ranked(Value, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The first of several layouts: measured (or published), and predicted at fitted and at the chip's constants.

    `seconds` has the predictions at fitted constants.
    """

    situation: str
    measured: str
    predicted: str
    at_chip: str
    seconds: dict[str, float]


class Judged(Value, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A target of the data file, and the error that was found."""

    what: str
    of: str
    found: float
    at_most: float

    @property
    def met(self) -> bool:
        """True where the target is met."""
        return self.found <= self.at_most + 1e-12


class SetScore(Value, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The complete score of one data set."""

    name: str
    title: str
    source: str
    date: datetime.date | None
    software: str
    harness: str
    inferred: tuple[str, ...]
    not_modelled: tuple[str, ...]
    unit: str
    chip_constants: dict[str, Reached] = msgspec.field(default_factory=dict)
    calibrations: tuple[FittedConstants, ...] = ()
    points: tuple[Scored, ...]
    errors: tuple[Errors, ...]
    rankings: tuple[Ranked, ...] = ()
    notes: tuple[str, ...] = ()
    targets: tuple[Judged, ...]


class Validation(Value, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The result of `meshwright validate`."""

    schema: str
    tool_version: str
    sets: tuple[SetScore, ...]

    @property
    def holds(self) -> bool:
        """True where every target is met."""
        return all(target.met for score in self.sets for target in score.targets)


def described(name: str, head: Head) -> dict[str, Any]:
    """Return the fields with which a score describes its data set: its name, and its head without the targets."""
    return {"name": name} | {field: getattr(head, field) for field in _DESCRIBED}


_DESCRIBED = ("title", "source", "date", "software", "harness", "inferred", "not_modelled")


def errors_of(points: Sequence[Scored], constants: str, of: str = "") -> Errors:
    """Return the median and worst absolute error of these points."""
    errors = [abs(point.error(constants)) for point in points]
    return Errors(constants=constants, of=of, points=len(errors), median=median(errors), worst=max(errors))


def all_errors(points: Sequence[Scored]) -> tuple[Errors, ...]:
    """Return the errors at all constants but the bound: of all points, then of each group."""
    names = [name for name in points[0].predicted if name != BOUND]
    groups = list(dict.fromkeys(point.group for point in points))
    parts = [("", list(points))] + [(g, [p for p in points if p.group == g]) for g in groups if len(groups) > 1]
    return tuple(errors_of(chosen, name, of) for of, chosen in parts for name in names)
