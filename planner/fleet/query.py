"""Define the question of a fleet: a quota of chips, a traffic, and the options of every search."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from math import isfinite
from pathlib import Path
from typing import Any

import msgspec

from mesh.chips import chip_names, closest, read_chip
from mesh.errors import InputError
from mesh.slices import Slice
from planner.plan.file_fleet import MOST_CHIPS, Traffic
from planner.plan.transfer import chip_dcn_bytes_per_s
from planner.query.query import CP_SAT, EXHAUSTIVE, Query, batches_of, check_solver, query_of
from planner.query.slices import chosen_slices, in_order
from planner.query.targets import Targets, price_of
from strategies.models.models import Model
from strategies.models.workload import Workload, cache_slots

PREFILL_BATCHES = (1, 2, 4, 8, 16)
_QUOTA = "expected chips by kind, such as v5e=256,v6e=64"
_TRAFFIC = "expected requests_per_s=20,input=2000,output=300"


@dataclass(frozen=True, kw_only=True)
class FleetQuery:
    """Servers on slices of the quota's chips for a traffic.

    `query` has the model, the slices that the quota allows, targets, prices, dtypes and all else; the fleet is proved
    by CP-SAT, within its `solver_seconds`. `decode_batches` None means all that fit. `utilisation` is the share of the
    servers' rates that the traffic may take. Decode is searched at a context of `input` + `output` tokens: the cache
    must store a request to its end, and no step is slower than one with full caches. Raises `InputError` on values out
    of range, and on other targets than those of a step and of the first token.
    """

    query: Query
    quota: Mapping[str, int]
    traffic: Traffic
    prefill_batches: tuple[int, ...] = PREFILL_BATCHES
    decode_batches: tuple[int, ...] | None = None
    utilisation: float = 1.0

    def __post_init__(self) -> None:
        if not (isfinite(self.utilisation) and 0 < self.utilisation <= 1):
            raise InputError(
                f"utilisation {self.utilisation:g}: expected a share above 0 and at most 1, such as 0.8", "utilisation"
            )
        if not {target.field for target, _ in self.query.targets.given()} <= {"max_step_s", "max_ttft_s"}:
            raise InputError("a fleet's targets are a step's and the first token's seconds; give chips as a quota")
        for slice_ in self.query.slices:
            chip_dcn_bytes_per_s(slice_)

    @property
    def demand_per_s(self) -> float:
        """Requests/s that each role's servers must be able to serve: the traffic divided by `utilisation`."""
        return self.traffic.requests_per_s / self.utilisation

    def role_query(self, role: str, slice_: Slice) -> Query:
        """Return the search of one role on one slice: for the best of every batch, without targets."""
        traffic = self.traffic
        batches = self.prefill_batches if role == "prefill" else self.decode_batches
        context = cache_slots(traffic.input + traffic.output) if role == "decode" else traffic.input
        work = Workload(phase=role, batches=batches or (1,), context=context, dtypes=self.query.work.dtypes)
        return replace(
            self.query,
            slices=(slice_,),
            work=work,
            auto=not batches,
            top=1,
            targets=Targets(),
            prices={},
            solver=EXHAUSTIVE,
            solver_seconds=None,
        )

    def cost(self, chip: str, chips: int) -> Fraction:
        """Return the dollars per hour of `chips` chips, exactly as the price was written; without prices, the chips."""
        price = price_of(self.query.prices, chip.lower())
        return Fraction(chips) if price is None else chips * Fraction(repr(price))


def fleet_query(
    model: Model | str | Path,
    quota: Mapping[str, int],
    traffic: Traffic | Mapping[str, float],
    options: Mapping[str, Any],
) -> FleetQuery:
    """Build the fleet's query of a caller's keywords, those of `planner.api.FleetOptions`.

    Raises `InputError` on bad input.
    """
    rest = dict(options)
    names = {name.strip().lower(): chips for name, chips in quota.items()}
    constants, chip_file = rest.pop("constants", "chip"), rest.pop("chip_file", None)
    slices = quota_slices(names, chip_file, constants)
    prefill, _ = batches_of(rest.pop("prefill_batch", None), "prefill")
    decode = rest.pop("decode_batch", None)
    utilisation, seconds = rest.pop("utilisation", 1.0), rest.pop("solver_seconds", None)
    rest["prices"] = {name.strip().lower(): price for name, price in (rest.get("prices") or {}).items()}
    check_solver(CP_SAT, seconds)
    query = query_of(model, slices, rest, solver=CP_SAT, solver_seconds=seconds)
    return FleetQuery(
        query=query,
        quota=names,
        traffic=traffic_of(traffic),
        prefill_batches=tuple(sorted(set(prefill))),
        decode_batches=None if decode is None else tuple(sorted(set(batches_of(decode, "")[0]))),
        utilisation=utilisation,
    )


def quota_slices(quota: Mapping[str, int], chip_file: str | Path | None, constants: str) -> tuple[Slice, ...]:
    """Return every legal slice that the quota allows, by chips and name.

    Raises `InputError` on a bad quota, or where a chip has no slice within it.

    >>> [slice_.name for slice_ in quota_slices({"v5e": 4}, None, "chip")]
    ['v5e:1x1', 'v5e:2x2']
    """
    if not quota:
        raise InputError(f"no quota given; {_QUOTA}")
    known = chip_names() if chip_file is None else (*chip_names(), read_chip(Path(chip_file)).name.lower())
    slices: list[Slice] = []
    for name, chips in sorted(quota.items()):
        if not isinstance(chips, int) or not 1 <= chips <= MOST_CHIPS:
            raise InputError(f"quota {name}={chips}: expected a whole number of chips from 1 to {MOST_CHIPS}", "quota")
        if name not in known:
            raise InputError(f"quota {name}={chips}: no such chip; closest: {closest(name, known)}", "quota")
        legal = chosen_slices(chips=(name,), chip_file=chip_file, constants=constants)
        smallest = min(s.chips for s in legal)
        if chips < smallest:
            raise InputError(
                f"quota {name}={chips}: too few for any slice; the smallest of {name} has {smallest} chips", "quota"
            )
        slices += [s for s in legal if s.chips <= chips]
    return in_order(slices)


def traffic_of(traffic: Traffic | Mapping[str, float]) -> Traffic:
    """Return the traffic, also where it is a mapping by field names; raise `InputError` on other names."""
    if isinstance(traffic, Traffic):
        return traffic
    try:
        return msgspec.convert(dict(traffic), Traffic)
    except msgspec.ValidationError as error:
        raise InputError(f"traffic {dict(traffic)}: {error}; {_TRAFFIC}") from None
