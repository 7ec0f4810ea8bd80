"""Plan a fleet (`fleet`): slices of each shape, as prefill or decode servers, that serve a traffic at least cost."""

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
from planner.fleet.servers import ServerOptions, find_options, problem_of
from planner.fleet.solver import FleetSolution, solve_fleet
from planner.plan.planfile import INTERRUPTED, SCHEMA, PlanFile, Search
from planner.query.query import Progress, silent


class NoFleet(NothingFits):
    """Raised where no fleet serves the traffic within the quota and the targets, with the reason and a remedy."""

    def __init__(self, why: str, search: Search) -> None:
        super().__init__(why, (), None, search)


def make_fleet(fleet_query: FleetQuery, progress: Progress = silent) -> PlanFile:
    """Search every slice in both roles, then choose the numbers of servers.

    Raises `NoFleet` where there is no fleet, and `KeyboardInterrupt` where an interrupt came before there was one.

    Both roles of every slice are searched at every batch; CP-SAT then chooses the numbers of servers
    (`planner.fleet.solver`), and its answer is checked with exact fractions (`check_fleet`).
    """
    started = time.perf_counter()
    options = find_options(fleet_query, progress)
    if options.interrupted and not all(options.in_role(role) for role in ROLES):
        raise KeyboardInterrupt
    progress("choosing numbers of servers")
    problem = problem_of(fleet_query, options)
    why = why_not(fleet_query, options, problem)
    solved = None if why else solve_fleet(problem, fleet_query.query.solver_seconds)
    search = _covered(options, started)
    if solved is None or solved.counts is None or solved.proof is None:
        if options.interrupted or (solved and solved.ended == "interrupt"):
            raise KeyboardInterrupt
        raise NoFleet(why or _nothing_found(problem, solved, fleet_query), search)
    used = [(option, n) for option, n in zip(options.options, solved.counts, strict=True) if n]
    used.sort(
        key=lambda pair: (ROLES.index(pair[0].role), pair[0].slice_.chip.name, pair[0].slice_.chips, pair[0].name)
    )
    return PlanFile(
        schema=SCHEMA,
        tool_version=VERSION,
        objective="fleet",
        plans=tuple(option.plan for option, _ in used),
        rejected=(),
        search=search,
        notes=_notes(fleet_query, options),
        targets=fleet_query.query.targets.words,
        prices=dict(fleet_query.query.prices),
        fleet=fleet_of(fleet_query, problem, solved, used, options.interrupted),
    )


def _nothing_found(problem: FleetProblem, solved: FleetSolution | None, fleet_query: FleetQuery) -> str:
    """Return the reason why there is no fleet: a limit that ended the solver, or the quota."""
    if solved is not None and solved.ended:
        seconds = fleet_query.query.solver_seconds
        return f"no fleet was found in {seconds:g} s of solving, and none was ruled out; allow more"
    reason = quota_reason(problem)
    if fleet_query.utilisation == 1:
        return reason
    demand = f"{fleet_query.traffic.requests_per_s:g} requests/s"
    return f"{reason}; {demand} may take {fleet_query.utilisation:.0%} of the rates"


def _covered(options: ServerOptions, started: float) -> Search:
    """Describe the searches of all slices."""
    proved_by = INTERRUPTED if options.interrupted else "exhaustive, each slice, role and batch alone"
    search = covered(options.results.values(), started, proved_by)
    rate = search.evaluations / options.search_s if options.search_s else 0.0
    return msgspec.structs.replace(search, evaluations_per_s=rate)


def _notes(fleet_query: FleetQuery, options: ServerOptions) -> tuple[str, ...]:
    """Return notes on an interrupt, skipped slices, missing prices and full utilisation."""
    notes = []
    if options.interrupted:
        notes.append("interrupted: not every slice of the quota was searched; the proof is of the servers found so far")
    if options.skipped:
        notes.append(
            f"slices not searched: {options.skipped}, each of which alone costs as much as a fleet without them"
        )
    if not fleet_query.query.prices:
        notes.append("no prices given: least cost is fewest chips, whatever their kind")
    if fleet_query.utilisation == 1:
        notes.append(
            "traffic may take all of the servers' rates; queues of uneven requests need room: a utilisation of 0.8, say"
        )
    return tuple(notes)
