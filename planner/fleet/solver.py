"""Choose numbers of servers that serve the traffic at least cost, proved by CP-SAT (ortools).

The solver works with integers only. A rate is rounded down and the demand up, to 2^-40 of the demand, so an answer
never promises too much; a fleet that would serve the demand with less than that to spare is missed. Costs are exact
where their integers fit. The answer is checked again with fractions.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import ceil
from typing import TYPE_CHECKING

from planner.cpsat.solver import Ended, run
from planner.fleet.problem import (
    ROLES,
    FleetProblem,
    IntegerProblem,
    Server,
    check_fleet,
    first_guess,
    least_cost,
    whole_cost,
    whole_numbers,
)
from planner.plan.file_proof import FEASIBLE, INFEASIBLE, OPTIMAL, UNKNOWN, FleetProof
from planner.query.query import CP_SAT

if TYPE_CHECKING:
    from ortools.sat.python import cp_model

_TIE_EFFORT = 10.0
"""Deterministic seconds of the solver for each way to break ties: a limit that does not depend on the machine."""

_GUESS_EFFORT = 1.0
"""Deterministic seconds of the solver for a fleet that bounds the cost from above."""

_LINEARIZATION = 2
"""Linearization level of CP-SAT; with less, the proof of such a sum takes longer than minutes."""


@dataclass(frozen=True)
class FleetSolution:
    """The number of each server, in the order of the problem's, and the proof.

    `counts` is None where the demand cannot be served, or where a time limit or an interrupt (`ended`) came before
    there was a fleet.
    """

    counts: tuple[int, ...] | None
    proof: FleetProof | None
    ended: str | None = None


def solve_fleet(problem: FleetProblem, seconds: float | None = None) -> FleetSolution:
    """Return the cheapest fleet; ties break on chips, then servers, then the sum of their steps.

    `seconds` limits the wall time; the result does not depend on the order of servers or quota. Raises
    `RuntimeError` where the solver's answer violates a constraint.

    >>> prefill = Server("p", "v5e", 4, "prefill", 10.0, Fraction(4))
    >>> decode = Server("d", "v5e", 8, "decode", 5.0, Fraction(8))
    >>> solve_fleet(FleetProblem([prefill, decode], 20.0, {"v5e": 64})).counts
    (2, 4)
    """
    order = sorted(range(len(problem.servers)), key=lambda i: _server_key(problem.servers[i]))
    place = {old: new for new, old in enumerate(order)}
    solved = _solve(
        FleetProblem(
            [problem.servers[i] for i in order],
            problem.demand_per_s,
            problem.quota,
            sorted({(min(place[i], place[j]), max(place[i], place[j])) for i, j in problem.excluded}),
        ),
        seconds,
    )
    if solved.counts is None:
        return solved
    counts = tuple(solved.counts[place[i]] for i in range(len(order)))
    check_fleet(problem, counts)
    return FleetSolution(counts, solved.proof, solved.ended)


def cost_of_some_fleet(problem: FleetProblem) -> Fraction | None:
    """Return the cost of a good fleet, found soon and not proved; None where there was none.

    Raises `KeyboardInterrupt` on an interrupt.
    """
    integers = whole_numbers(problem)
    guess = first_guess(problem, integers)
    fleet_model = FleetModel(problem, integers, None)
    ended = fleet_model.minimise(integers.costs, guess, _GUESS_EFFORT)
    if ended.interrupted:
        raise KeyboardInterrupt
    counts = ended.values(fleet_model.counts) or guess
    if counts is None:
        return None
    check_fleet(problem, counts)
    return problem.cost(counts)


def _server_key(server: Server) -> tuple[object, ...]:
    """Return the sort key of a server, independent of its place in the problem."""
    s = server
    return (s.chip, ROLES.index(s.role), s.chips, -s.requests_per_s, s.cost, s.step_s, s.name)


def _solve(problem: FleetProblem, seconds: float | None) -> FleetSolution:
    """Solve a problem whose servers are sorted."""
    started = time.perf_counter()
    integers = whole_numbers(problem)
    guess = first_guess(problem, integers)
    fleet_model = FleetModel(problem, integers, started + seconds if seconds is not None else None)
    ended = fleet_model.minimise(integers.costs, guess)
    if ended.status == INFEASIBLE:
        return FleetSolution(None, None)
    counts = ended.values(fleet_model.counts) or guess
    if counts is None:
        return FleetSolution(None, None, fleet_model.ended)
    cost = problem.cost(counts)
    bound = cost
    if ended.status == OPTIMAL:
        counts = counts if ended.interrupted else fleet_model.break_ties(counts)
    else:
        bound_of_solver = Fraction(ceil(ended.bound)) if ended.has_solution else Fraction(0)
        lower_bound = max(least_cost(problem), bound_of_solver / integers.cost_scale)
        bound = min(cost, whole_cost(problem, lower_bound))
    proof = FleetProof(
        status=OPTIMAL if bound == cost else FEASIBLE,
        objective=float(cost),
        bound=float(bound),
        gap=float((cost - bound) / cost) if cost else 0.0,
        solver=CP_SAT,
        solver_s=time.perf_counter() - started,
        seconds=seconds,
        interrupted=fleet_model.ended == "interrupt",
    )
    return FleetSolution(counts, proof, fleet_model.ended)


def run_sums(model: cp_model.CpModel, seconds: float | None = None, effort: float | None = None) -> Ended:
    """Solve a model of sums of counts, within these seconds of wall time and this deterministic effort."""
    return run(model, seconds, effort=effort, linearization=_LINEARIZATION, seed=0)


class FleetModel:
    """A fleet in CP-SAT, to be minimised for one objective after the other within one time limit.

    `ended` says what prevented the proof of the last objective: a time limit, an interrupt, or None.
    """

    def __init__(self, problem: FleetProblem, integers: IntegerProblem, until: float | None) -> None:
        from ortools.sat.python import cp_model

        self.problem, self.integers, self.until = problem, integers, until
        self.model = cp_model.CpModel()
        self.counts = [self.model.new_int_var(0, n, f"n{i}") for i, n in enumerate(integers.most)]
        self.ended: str | None = None
        add_demand(self.model, problem, integers, self.counts)
        for chip in sorted({s.chip for s in problem.servers}):
            self.model.add(chips_used(problem, self.counts, chip) <= problem.quota.get(chip, 0))
        add_excluded(self.model, problem, self.counts)

    def minimise(self, weights: Sequence[int], hint: Sequence[int] | None, effort: float | None = None) -> Ended:
        """Minimise the weighted sum of counts, starting from a hint where there is one."""
        self.model.minimize(sum(w * n for w, n in zip(weights, self.counts, strict=True)))
        self.model.clear_hints()  # type: ignore[no-untyped-call]
        for variable, value in zip(self.counts, hint or (), strict=False):
            self.model.add_hint(variable, value)
        left_s = None if self.until is None else self.until - time.perf_counter()
        ended = run_sums(self.model, left_s, effort)
        if ended.interrupted:
            self.ended = "interrupt"
        elif ended.status in (FEASIBLE, UNKNOWN) and effort is None:
            self.ended = "time limit"
        return ended

    def break_ties(self, counts: tuple[int, ...]) -> tuple[int, ...]:
        """Return, of the fleets of least cost, that with the fewest chips, servers, and least sum of steps, in turn."""
        weights: Sequence[int] = self.integers.costs
        servers = self.problem.servers
        for following in ([s.chips for s in servers], [1] * len(servers), [ceil(s.step_s * 1e9) for s in servers]):
            total = sum(w * n for w, n in zip(weights, counts, strict=True))
            self.model.add(sum(w * n for w, n in zip(weights, self.counts, strict=True)) <= total)
            ended = self.minimise(following, counts, _TIE_EFFORT)
            counts, weights = ended.values(self.counts) or counts, following
            if ended.status != OPTIMAL:
                break
        return counts


def add_demand(
    model: cp_model.CpModel, problem: FleetProblem, integers: IntegerProblem, counts: Sequence[cp_model.IntVar]
) -> None:
    """Require that each role serves the demand."""
    for role in ROLES:
        in_role = [i for i, s in enumerate(problem.servers) if s.role == role]
        model.add(sum(integers.rates[i] * counts[i] for i in in_role) >= integers.demand)


def chips_used(problem: FleetProblem, counts: Sequence[cp_model.IntVar], chip: str) -> cp_model.LinearExprT:
    """Return the chips of a kind that all servers take."""
    return sum(s.chips * n for s, n in zip(problem.servers, counts, strict=True) if s.chip == chip)


def add_excluded(model: cp_model.CpModel, problem: FleetProblem, counts: Sequence[cp_model.IntVar]) -> None:
    """Require that of no excluded pair both servers are used."""
    used: dict[int, cp_model.IntVar] = {}
    for i in sorted({i for pair in problem.excluded for i in pair}):
        used[i] = model.new_bool_var(f"used{i}")
        model.add(counts[i] == 0).only_enforce_if(~used[i])
    for i, j in problem.excluded:
        model.add_bool_or(~used[i], ~used[j])
