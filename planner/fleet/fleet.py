"""`fleet`: how many slices of which shape, each a prefill or a decode server, serve a traffic at least cost."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from planner.best.solve import NothingFits
from planner.fleet.problem import ROLES, FleetProblem
from planner.fleet.reasons import quota_reason, why_not
from planner.fleet.request import PREFILL_BATCHES, FleetRequest, quota_slices, traffic_of
from planner.fleet.result import fleet_of
from planner.fleet.servers import Offer, Offers, find_offers, problem_of
from planner.fleet.solver import Solved, solve_fleet
from planner.plan.file_fleet import Traffic
from planner.plan.planfile import SCHEMA, PlanFile, Search
from planner.query.request import TWO, Progress
from planner.query.requested import model_of, programs_of
from planner.query.targets import Prices, Targets
from planner.version import VERSION
from strategies.models.models import Model
from strategies.models.workload import Dtypes


class NoFleet(NothingFits):
    """No fleet serves the traffic within the quota and the targets: why, and what would do."""

    def __init__(self, why: str, covered: Search) -> None:
        super().__init__(why, (), None, covered)


def fleet(
    model: Model | str | Path,
    quota: Mapping[str, int],
    traffic: Traffic | Mapping[str, float],
    *,
    weights: str = "bf16",
    kv: str = "bf16",
    activations: str = "bf16",
    compute: str | None = None,
    prefill_batches: Sequence[int] = PREFILL_BATCHES,
    decode_batches: Sequence[int] | None = None,
    targets: Targets | None = None,
    prices: Prices | None = None,
    utilisation: float = 1.0,
    programs: Sequence[str | Path] = (),
    solver_seconds: float | None = None,
    cuts: str = TWO,
    workers: int | None = None,
    chip_file: str | Path | None = None,
    constants: str = "chip",
    progress: Callable[[str], None] = lambda _: None,
) -> PlanFile:
    """The cheapest fleet of prefill and decode servers that serves the traffic: `fleet` of the plan file.

    `quota`: chips by kind, as {"v5e": 256}; `traffic`: a `Traffic`, or {"requests_per_s": 20, "input": 2000,
    "output": 300}; `decode_batches`: by default powers of two and the largest that fits; without `prices` the
    cheapest fleet has the fewest chips; the traffic may take the share `utilisation` of each role's rate; `cuts`: how
    torus axes are cut, see `planner.search.meshes`; `workers`: processes that search (None: one per core).
    An interrupt, or the end of `solver_seconds`, gives the best so far: `fleet.proof` says so.
    Raises InputError on bad input, and NoFleet (a NothingFits) where no fleet does it.
    """
    names = {name.strip().lower(): chips for name, chips in quota.items()}
    request = FleetRequest(
        model=model_of(model),
        quota=names,
        slices=quota_slices(names, chip_file, constants),
        traffic=traffic_of(traffic),
        dtypes=Dtypes(weights=weights, kv=kv, activations=activations, compute=compute or activations),
        prefill_batches=tuple(sorted(set(prefill_batches))),
        decode_batches=None if decode_batches is None else tuple(sorted(set(decode_batches))),
        targets=targets or Targets(),
        prices={name.strip().lower(): price for name, price in (prices or {}).items()},
        utilisation=utilisation,
        programs=programs_of(programs),
        solver_seconds=solver_seconds,
        cuts=cuts,
        workers=workers,
    )
    return make_fleet(request, VERSION, progress)


def make_fleet(request: FleetRequest, version: str, progress: Progress = lambda _: None) -> PlanFile:
    """Search every slice in both roles, then choose numbers of servers. Raises `NoFleet`, or `KeyboardInterrupt`
    where an interrupt came before there was a fleet.
    """
    started = time.perf_counter()
    offers = find_offers(request, progress)
    if offers.interrupted and not all(offers.of(role) for role in ROLES):
        raise KeyboardInterrupt
    progress("choosing numbers of servers")
    problem = problem_of(request, offers)
    why = why_not(request, offers, problem)
    solved = None if why else solve_fleet(problem, request.solver_seconds)
    covered = _covered(offers, started)
    if solved is None or solved.counts is None or solved.proof is None:
        if offers.interrupted or (solved and solved.ended == "interrupt"):
            raise KeyboardInterrupt
        raise NoFleet(why or _nothing_found(problem, solved, request), covered)
    used = [(one, n) for one, n in zip(offers.every, solved.counts, strict=True) if n]
    used.sort(
        key=lambda pair: (ROLES.index(pair[0].role), pair[0].slice_.chip.name, pair[0].slice_.chips, pair[0].name)
    )
    return PlanFile(
        schema=SCHEMA,
        tool_version=version,
        objective="fleet",
        plans=tuple(one.plan for one, _ in used),
        rejected=(),
        search=covered,
        notes=_notes(request, offers),
        targets=request.targets.words,
        prices=dict(request.prices),
        fleet=fleet_of(request, problem, solved, used, offers.interrupted),
    )


def _place(one: Offer) -> tuple[object, ...]:
    """The order of plans: prefill first, by chip, slice and batch."""
    return (ROLES.index(one.role), one.slice_.chip.name, one.slice_.chips, one.slice_.name, one.plan.batch)


def _nothing_found(problem: FleetProblem, solved: Solved | None, request: FleetRequest) -> str:
    if solved is not None and solved.ended:
        return f"no fleet was found in --solver-seconds {request.solver_seconds:g}, and none was ruled out; allow more"
    reason = quota_reason(problem)
    if request.utilisation == 1:
        return reason
    return f"{reason}; {request.traffic.requests_per_s:g} requests/s may take {request.utilisation:.0%} of the rates"


def _covered(offers: Offers, started: float) -> Search:
    evaluations = sum(one.evaluations for one in offers.found.values())
    return Search(
        candidates=sum(one.candidates for one in offers.found.values()),
        evaluations=evaluations,
        wall_s=time.perf_counter() - started,
        proved_optimal="interrupted" if offers.interrupted else "exhaustive, each slice, role and batch alone",
        evaluations_per_s=evaluations / offers.search_s if offers.search_s else 0.0,
    )


def _notes(request: FleetRequest, offers: Offers) -> tuple[str, ...]:
    notes = []
    if offers.interrupted:
        notes.append("interrupted: not every slice of the quota was searched; the proof is of the servers found so far")
    if offers.skipped:
        notes.append(
            f"slices not searched: {offers.skipped}, each of which alone costs as much as a fleet without them"
        )
    if not request.prices:
        notes.append("no prices given: least cost is fewest chips, whatever their kind")
    if request.utilisation == 1:
        notes.append(
            "traffic may take all of the servers' rates; queues of uneven requests need room: --utilisation 0.8"
        )
    return tuple(notes)
