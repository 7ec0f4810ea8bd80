"""What `fleet` is asked for, as checked values, and how its options are read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from math import isfinite
from pathlib import Path

import msgspec

from mesh.chips import chip_names, closest, read_chip
from mesh.errors import InputError
from mesh.slices import Slice
from meshwright.parsing import number, whole
from planner.plan.file_fleet import MOST_CHIPS, Traffic
from planner.plan.transfer import chip_dcn_bytes_per_s
from planner.query.request import CP_SAT, TWO, Request, check_solver
from planner.query.slices import chosen_slices
from planner.query.targets import Prices, Targets, check_prices, in_order, price_of
from strategies.models.models import Model
from strategies.models.workload import Dtypes, Workload, cache_slots
from strategies.notation import Program

PREFILL_BATCHES = (1, 2, 4, 8, 16)
_QUOTA = "expected chips by kind, such as v5e=256,v6e=64"
_TRAFFIC = "expected requests_per_s=20,input=2000,output=300"


@dataclass(frozen=True, kw_only=True)
class FleetRequest:
    """Slices of the quota's chips, the traffic and the targets; `decode_batches`: None for all that fit.

    `cuts`: see `planner.search.meshes`; `workers`: processes that search, None: one per core.

    Decode is searched at a context of `input` + `output` tokens: the cache must hold a request to its end, and no
    step is slower than one with full caches. Raises `InputError` on what cannot be.
    """

    model: Model
    quota: Mapping[str, int]
    slices: Sequence[Slice]
    traffic: Traffic
    dtypes: Dtypes
    prefill_batches: tuple[int, ...] = PREFILL_BATCHES
    decode_batches: tuple[int, ...] | None = None
    targets: Targets = field(default_factory=Targets)
    prices: Prices = field(default_factory=dict)
    utilisation: float = 1.0
    programs: Sequence[Program] = ()
    solver_seconds: float | None = None
    cuts: str = TWO
    workers: int | None = None

    def __post_init__(self) -> None:
        check_solver(CP_SAT, self.solver_seconds)
        if not (isfinite(self.utilisation) and 0 < self.utilisation <= 1):
            raise InputError(f"--utilisation {self.utilisation:g}: expected a share above 0 and at most 1, such as 0.8")
        if self.targets.max_chips is not None or self.targets.min_tokens_per_s is not None:
            raise InputError("a fleet's targets are a step's and the first token's seconds; give chips as --quota")
        check_prices(self.prices, sorted(self.quota))
        for slice_ in self.slices:
            chip_dcn_bytes_per_s(slice_)

    @property
    def demand_per_s(self) -> float:
        """Requests/s that each role's servers must be able to serve, so that the traffic takes `utilisation` of it."""
        return self.traffic.requests_per_s / self.utilisation

    def of(self, role: str, slice_: Slice, batches: tuple[int, ...]) -> Request:
        """The search of one role on one slice."""
        traffic = self.traffic
        context = cache_slots(traffic.input + traffic.output) if role == "decode" else traffic.input
        work = Workload(phase=role, batches=batches, context=context, dtypes=self.dtypes)
        return Request(
            model=self.model,
            slices=[slice_],
            work=work,
            top=1,
            programs=self.programs,
            cuts=self.cuts,
            workers=self.workers,
        )

    def cost(self, chip: str, chips: int) -> Fraction:
        """Dollars per hour of so many chips, exactly as the price was written; without prices, the chips."""
        price = price_of(self.prices, chip.lower())
        return Fraction(chips) if price is None else chips * Fraction(repr(price))


def quota_slices(quota: Mapping[str, int], chip_file: str | Path | None, constants: str) -> tuple[Slice, ...]:
    """Every legal slice that the quota holds, by chips and name. Raises `InputError` where a chip has none."""
    if not quota:
        raise InputError(f"no quota given; {_QUOTA}")
    known = chip_names() if chip_file is None else (*chip_names(), read_chip(Path(chip_file)).name.lower())
    found: list[Slice] = []
    for name, chips in sorted(quota.items()):
        if not isinstance(chips, int) or not 1 <= chips <= MOST_CHIPS:
            raise InputError(f"--quota {name}={chips}: expected a whole number of chips from 1 to {MOST_CHIPS}")
        if name not in known:
            raise InputError(f"--quota {name}={chips}: no such chip; closest: {closest(name, known)}")
        legal = chosen_slices(chips=(name,), chip_file=chip_file, constants=constants)
        smallest = min(s.chips for s in legal)
        if chips < smallest:
            raise InputError(
                f"--quota {name}={chips}: too few for any slice; the smallest of {name} has {smallest} chips"
            )
        found += [s for s in legal if s.chips <= chips]
    return tuple(in_order(found))


def traffic_of(traffic: Traffic | Mapping[str, float]) -> Traffic:
    """The traffic, also where it is given by names; raises `InputError` where these are others."""
    if isinstance(traffic, Traffic):
        return traffic
    try:
        return msgspec.convert(dict(traffic), Traffic)
    except msgspec.ValidationError as error:
        raise InputError(f"traffic {dict(traffic)}: {error}; {_TRAFFIC}") from None


def parse_quota(texts: Sequence[str]) -> dict[str, int]:
    """Chips by kind, of `--quota`, which repeats or takes commas.

    >>> parse_quota(["v5e=256,V6E=64"])
    {'v5e': 256, 'v6e': 64}
    """
    found: dict[str, int] = {}
    for word, name, chips in _pairs("--quota", texts, _QUOTA):
        key = name.lower()
        if key in found:
            raise InputError(f"--quota {word}: a second quota of {key}; {_QUOTA}")
        found[key] = whole(f"--quota {name}", chips)
    return found


def parse_traffic(texts: Sequence[str]) -> Traffic:
    """The traffic of `--traffic`, in any order.

    >>> parse_traffic(["requests_per_s=20,input=2000,output=300"])
    Traffic(requests_per_s=20.0, input=2000, output=300)
    """
    found: dict[str, str] = {}
    for word, name, value in _pairs("--traffic", texts, _TRAFFIC):
        if name not in Traffic.__struct_fields__ or name in found:
            raise InputError(f"--traffic {word}: {'given twice' if name in found else 'not known'}; {_TRAFFIC}")
        found[name] = value
    missing = [name for name in Traffic.__struct_fields__ if name not in found]
    if missing:
        raise InputError(f"--traffic {','.join(texts)}: {', '.join(missing)} missing; {_TRAFFIC}")
    return Traffic(
        requests_per_s=number("--traffic requests_per_s", found["requests_per_s"]),
        input=whole("--traffic input", found["input"]),
        output=whole("--traffic output", found["output"]),
    )


def _pairs(option: str, texts: Sequence[str], expected: str) -> list[tuple[str, str, str]]:
    """(word, name, value) of each `name=value`."""
    found = []
    for word in (part.strip() for text in texts for part in text.split(",")):
        name, equals, value = (piece.strip() for piece in word.partition("="))
        if not (name and equals and value):
            raise InputError(f"{option} {word!r}: {expected}")
        found.append((word, name, value))
    return found
