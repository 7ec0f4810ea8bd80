"""`fleet`: how many slices of which shape, each a prefill or a decode server, serve a traffic at least cost."""

from __future__ import annotations

import time

import msgspec

from mesh.version import VERSION
from planner.best.nothing import NothingFits
from planner.best.sweep import covered
from planner.fleet.problem import ROLES, FleetProblem
from planner.fleet.query import FleetQuery
from planner.fleet.reasons import quota_reason, why_not
from planner.fleet.result import fleet_of
from planner.fleet.servers import ServerOptions, find_offers, problem_of
from planner.fleet.solver import FleetSolution, solve_fleet
from planner.plan.planfile import INTERRUPTED, SCHEMA, PlanFile, Search
from planner.query.query import Progress, silent


class NoFleet(NothingFits):
    """No fleet serves the traffic within the quota and the targets: why, and what would do."""

    def __init__(self, why: str, search: Search) -> None:
        super().__init__(why, (), None, search)


def make_fleet(asked: FleetQuery, progress: Progress = silent) -> PlanFile:
    """Search every slice in both roles, then choose numbers of servers. Raises `NoFleet`, or `KeyboardInterrupt`
    where an interrupt came before there was a fleet.
    """
    started = time.perf_counter()
    offers = find_offers(asked, progress)
    if offers.interrupted and not all(offers.of(role) for role in ROLES):
        raise KeyboardInterrupt
    progress("choosing numbers of servers")
    problem = problem_of(asked, offers)
    why = why_not(asked, offers, problem)
    solved = None if why else solve_fleet(problem, asked.query.solver_seconds)
    search = _covered(offers, started)
    if solved is None or solved.counts is None or solved.proof is None:
        if offers.interrupted or (solved and solved.ended == "interrupt"):
            raise KeyboardInterrupt
        raise NoFleet(why or _nothing_found(problem, solved, asked), search)
    used = [(one, n) for one, n in zip(offers.every, solved.counts, strict=True) if n]
    used.sort(
        key=lambda pair: (ROLES.index(pair[0].role), pair[0].slice_.chip.name, pair[0].slice_.chips, pair[0].name)
    )
    return PlanFile(
        schema=SCHEMA,
        tool_version=VERSION,
        objective="fleet",
        plans=tuple(one.plan for one, _ in used),
        rejected=(),
        search=search,
        notes=_notes(asked, offers),
        targets=asked.query.targets.words,
        prices=dict(asked.query.prices),
        fleet=fleet_of(asked, problem, solved, used, offers.interrupted),
    )


def _nothing_found(problem: FleetProblem, solved: FleetSolution | None, asked: FleetQuery) -> str:
    if solved is not None and solved.ended:
        return f"no fleet was found in {asked.query.solver_seconds:g} s of solving, and none was ruled out; allow more"
    reason = quota_reason(problem)
    if asked.utilisation == 1:
        return reason
    return f"{reason}; {asked.traffic.requests_per_s:g} requests/s may take {asked.utilisation:.0%} of the rates"


def _covered(offers: ServerOptions, started: float) -> Search:
    how = INTERRUPTED if offers.interrupted else "exhaustive, each slice, role and batch alone"
    coverage = covered(offers.found.values(), started, how)
    rate = coverage.evaluations / offers.search_s if offers.search_s else 0.0
    return msgspec.structs.replace(coverage, evaluations_per_s=rate)


def _notes(asked: FleetQuery, offers: ServerOptions) -> tuple[str, ...]:
    notes = []
    if offers.interrupted:
        notes.append("interrupted: not every slice of the quota was searched; the proof is of the servers found so far")
    if offers.skipped:
        notes.append(
            f"slices not searched: {offers.skipped}, each of which alone costs as much as a fleet without them"
        )
    if not asked.query.prices:
        notes.append("no prices given: least cost is fewest chips, whatever their kind")
    if asked.utilisation == 1:
        notes.append(
            "traffic may take all of the servers' rates; queues of uneven requests need room: a utilisation of 0.8, say"
        )
    return tuple(notes)
