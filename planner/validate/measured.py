"""Read published measurements: data sets in data/measured/*.toml, each with its source, software and date."""

from __future__ import annotations

import datetime
import math
import tomllib
from pathlib import Path
from typing import Literal

import msgspec

from mesh.chips import closest
from mesh.errors import InputError
from strategies.layout import Layout
from strategies.models.models import Model
from strategies.models.workload import Dtypes

MEASURED = Path(__file__).parent.parent / "data" / "measured"

What = Literal["median", "worst", "ranked wrong", "winners missed", "published first", "within of best", "knee"]
Kind = Literal["AllGather", "ReduceScatter", "AllReduce", "AllToAll", "CollectivePermute"]


class Fact(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base of the parts of a data set: frozen, by keyword, without unknown fields."""


class ErrorTarget(Fact, frozen=True, kw_only=True):
    """An error that must not be exceeded.

    `of` is a table, a curve or `fit` (the points on which it was fitted), else all points.
    """

    what: What
    at_most: float
    of: str = ""


class Head(Fact, frozen=True, kw_only=True):
    """The head of every set: title, place and date of measurement, and inferred or unmodelled properties."""

    title: str
    source: str
    date: datetime.date | None = None
    software: str
    harness: str
    inferred: tuple[str, ...] = ()
    not_modelled: tuple[str, ...] = ()
    targets: tuple[ErrorTarget, ...]


class StepPoint(Fact, frozen=True, kw_only=True):
    """One measured step, in seconds.

    `readings` are several measurements of the step, whose geometric mean counts. Raises `InputError` unless exactly one
    of `step_s` and `readings` is set, above 0.
    """

    layout: str
    batch: int
    step_s: float | None = None
    readings: tuple[float, ...] = ()
    name: str = ""
    table: str = ""
    phase: str | None = None
    context: int | None = None
    weights: str | None = None
    capacity: int | None = None

    def __post_init__(self) -> None:
        seconds = self.readings or (self.step_s or 0.0,)
        if (self.step_s is None) == (not self.readings) or min(seconds) <= 0:
            raise InputError(
                f"point {self.name or self.layout} at batch {self.batch}: expected step_s or readings, > 0"
            )

    @property
    def seconds(self) -> float:
        """Measured seconds, the geometric mean of several readings."""
        return self.step_s or math.exp(sum(map(math.log, self.readings)) / len(self.readings))


class Race(Fact, frozen=True, kw_only=True):
    """Published layouts to price side by side; `first` is the one that its authors measured as fastest."""

    phase: str
    batch: int
    context: int
    weights: str
    layouts: tuple[str, ...]
    first: str


class StepSet(Head, frozen=True, kw_only=True, tag="steps", tag_field="kind"):
    """Whole steps of a model on a slice, or, with `only`, the bodies of these components.

    `leave_out` has the fields of a point that name its configuration. Pairs of layouts measured further apart than
    `ranked_apart` must be ranked right. `best_of` has tables whose layouts were chosen as the best ones. `knee` is the
    batch from which on a step grows with it, as in the source. Raises `InputError` where points, layouts, contexts and
    targets do not match.
    """

    model: str | Model
    slice: str
    heads: int | None = None
    phase: str = "decode"
    context: int | None = None
    dtypes: Dtypes = Dtypes()
    only: tuple[str, ...] = ()
    leave_out: tuple[Literal["layout", "batch", "name"], ...]
    ranked_apart: float = 0.1
    best_of: tuple[str, ...] = ()
    knee: float | None = None
    layouts: dict[str, Layout]
    points: tuple[StepPoint, ...]
    races: tuple[Race, ...] = ()

    def __post_init__(self) -> None:
        used = {p.layout for p in self.points} | {name for race in self.races for name in (*race.layouts, race.first)}
        missing = sorted(used - set(self.layouts))
        if missing or not self.points:
            raise InputError(f"expected points, and layouts for {', '.join(missing) or 'them'}")
        if (self.knee is None) == any(target.what == "knee" for target in self.targets):
            raise InputError("expected a target for the knee where the set has one, and only there")
        if any((p.context or self.context) is None for p in self.points):
            raise InputError("a point has no context, nor has the set")


class CurvePoint(Fact, frozen=True, kw_only=True):
    """The seconds of one collective whose gathered array has these bytes."""

    bytes: float
    seconds: float


class Curve(Fact, frozen=True, kw_only=True):
    """One collective over one group at many sizes; `group` has pieces as (torus axis, stride, size)."""

    name: str
    slice: str
    collective: Kind
    group: tuple[tuple[str, int, int], ...]
    source: str
    harness: str
    precision: str = ""
    points: tuple[CurvePoint, ...]


class Check(Fact, frozen=True, kw_only=True):
    """A single measured collective, predicted with the constants of a curve and never fitted."""

    slice: str
    collective: Kind
    group: tuple[tuple[str, int, int], ...]
    bytes: float
    seconds: float
    source: str


class CurveSet(Head, frozen=True, kw_only=True, tag="collectives", tag_field="kind"):
    """Curves of collectives, each fitted by itself on the points between two sizes in bytes."""

    bytes_from: float
    bytes_to: float
    curves: tuple[Curve, ...]
    checks: tuple[Check, ...] = ()


class Limit(Fact, frozen=True, kw_only=True):
    """The longest context whose cache fits."""

    name: str
    kv_heads: int
    head_dim: int
    block: dict[str, str]
    batch: int
    max_context: float


class LimitSet(Head, frozen=True, kw_only=True, tag="max-context", tag_field="kind"):
    """The longest contexts of one model and mesh in a given budget for the cache, in bytes."""

    model: str
    slice: str
    heads: int
    kv: str
    cache_budget_bytes: float
    layout: Layout
    points: tuple[Limit, ...]


class Served(Fact, frozen=True, kw_only=True):
    """The tokens per second of a server, prefill included."""

    model: str
    weights: str
    batch: int
    max_length: int
    tokens_per_s: float


class ServedSet(Head, frozen=True, kw_only=True, tag="serving", tag_field="kind"):
    """Served throughput, which decoding alone must exceed: a bound, not a time."""

    slice: str
    layout: Layout
    points: tuple[Served, ...]


class Rate(Fact, frozen=True, kw_only=True):
    """The rate that one microbenchmark reached, of one device and in the data sheet's unit."""

    chip: str
    constant: Literal["hbm", "matmul", "link"]
    benchmark: str
    rate: float


class RateSet(Head, frozen=True, kw_only=True, tag="microbenchmarks", tag_field="kind"):
    """Rates that benchmarks of one operation reached; they are the defaults of their chips."""

    points: tuple[Rate, ...]


Measured = StepSet | CurveSet | LimitSet | ServedSet | RateSet


def set_names(folder: Path = MEASURED) -> tuple[str, ...]:
    """Return the names of the data sets.

    >>> set_names()[1:3]
    ('llama2-v5e8-serving', 'llama3-70b-v5e16')
    """
    return tuple(sorted(file.stem for file in folder.glob("*.toml")))


def read_set(name: str, folder: Path = MEASURED) -> Measured:
    """Read the data set of that name; raise `InputError` where there is none, or where its file is not valid."""
    known = set_names(folder)
    if name not in known:
        raise InputError(f"no data set '{name}'; closest: {closest(name, known)}")
    path = folder / f"{name}.toml"
    try:
        data_set: Measured = msgspec.convert(tomllib.loads(path.read_text("utf-8")), Measured)
    except OSError as error:
        raise InputError(f"{path}: cannot read the data set: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, msgspec.ValidationError) as error:
        raise InputError(f"{path}: not a data set: {error}") from error
    return data_set
