"""List the servers of which a fleet may consist: the best layout of every slice, role and batch, with its rates.

A prefill server runs whole batches of p prompts, P seconds each, and sends their caches over DCN while it runs the
next. A decode server of b slots runs steps of D seconds at a full cache, and takes new requests one by one: b/O in
the mean between two steps, at O output tokens; each stops it for C seconds to gather the copies of the cache in its
layout (0 where there is one; `planner.plan.transfer`). So, with f = b/O,

    requests/s of a prefill server      p / P, or fewer where it cannot send so many caches
    requests/s of a decode server       b / (O (D + f C)), or fewer where it cannot receive so many
    worst step                          D + ceil(f) C
    time to first token, at worst       (p - 1) / traffic + P + transfer + worst step + D

The terms of the last are: until p prompts are there, their prefill, the move of their caches, the running step, and
the step that decodes the first token. Source: the chapter on inference, "Designing an effective inference engine"
(disaggregated serving). Left out: queues of requests that come unevenly, for which `utilisation` leaves room.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from math import ceil

from mesh.slices import Slice
from planner.best.sweep import search_slice
from planner.fleet.problem import ROLES, FleetProblem, Server, least_cost
from planner.fleet.query import FleetQuery
from planner.fleet.solver import cost_of_some_fleet
from planner.parallel import in_parallel
from planner.plan.plan import Plan
from planner.plan.transfer import DCN_LATENCY_S, Transfer, TransferEnd, transfer, transfer_end_of
from planner.query.query import Progress, Query
from planner.search.candidate import Candidate, price_candidate
from planner.search.pareto import undominated
from planner.search.problem import Problem, SearchResult
from planner.serve.rates import PhaseTimes, decode_rate, prefill_rate

AT_ONCE = 2
"""Number of slices that are searched at once, in both roles; the same on any machine."""


@dataclass(frozen=True, kw_only=True)
class ServerOption:
    """A plan as a server of one role.

    `moves` has the transfer of the caches by number of requests, at this server's end; `step_s` is the worst step.
    """

    role: str
    slice_: Slice
    plan: Plan
    requests_per_s: float
    limited_by: str
    step_s: float
    moves: Mapping[int, Transfer]

    @property
    def name(self) -> str:
        """Slice, role and batch, which no other option has."""
        return f"{self.slice_.name} {self.role} batch {self.plan.batch}"


@dataclass
class ServerOptions:
    """All servers, the search results, and the shortest step of each role with its name, without targets.

    `interrupted` is true where an interrupt came before all slices were searched. `skipped` counts slices that cost too
    much to be of use. `search_s` is the time of the searches.
    """

    options: list[ServerOption] = field(default_factory=list)
    results: dict[str, SearchResult] = field(default_factory=dict)
    shortest: dict[str, tuple[float, str]] = field(default_factory=dict)
    interrupted: bool = False
    skipped: int = 0
    search_s: float = 0.0

    def in_role(self, role: str) -> list[ServerOption]:
        """Return the options of one role."""
        return [option for option in self.options if option.role == role]


def find_options(fleet_query: FleetQuery, progress: Progress) -> ServerOptions:
    """Search the slices in both roles, cheap ones first; an interrupt keeps the results so far.

    A slice that alone costs as much as a known fleet can be in no better one: it is skipped.
    """
    options = ServerOptions()
    started = time.perf_counter()
    order = sorted(fleet_query.query.slices, key=lambda s: (fleet_query.cost(s.chip.name, s.chips), s.chips, s.name))
    try:
        for first in range(0, len(order), AT_ONCE):
            batch_of_slices = order[first : first + AT_ONCE]
            limit = least_cost_so_far(
                fleet_query, options, max(fleet_query.cost(s.chip.name, s.chips) for s in batch_of_slices)
            )
            cheap = [s for s in batch_of_slices if limit is None or fleet_query.cost(s.chip.name, s.chips) < limit]
            options.skipped += len(batch_of_slices) - len(cheap)
            _search(fleet_query, cheap, options, progress)
    except KeyboardInterrupt:
        options.interrupted = True
    options.search_s = time.perf_counter() - started
    return options


def least_cost_so_far(fleet_query: FleetQuery, options: ServerOptions, dearest: Fraction) -> Fraction | None:
    """Return the cost of a fleet of these options, or None.

    None means that there is no fleet, or that none can cost as little as `dearest`.
    """
    if not all(options.in_role(role) for role in ROLES):
        return None
    problem = problem_of(fleet_query, options)
    return cost_of_some_fleet(problem) if least_cost(problem) <= dearest else None


def _search(fleet_query: FleetQuery, slices: Sequence[Slice], options: ServerOptions, progress: Progress) -> None:
    """Search slices in both roles and add their options."""
    queries = [fleet_query.role_query(role, slice_) for slice_ in slices for role in ROLES]
    by_place = {(query.slices[0].name, query.work.phase): query for query in queries}
    results = in_parallel([(query, query.slices[0]) for query in queries], search_slice, fleet_query.query.workers)
    for query in queries:
        progress(f"searching {query.slices[0].name}, {query.work.phase}")
        problem, result = next(results)
        _add(fleet_query, by_place[problem.slice_.name, problem.work.phase], result, problem, options)
        if result.interrupted:
            raise KeyboardInterrupt


def _add(fleet_query: FleetQuery, query: Query, result: SearchResult, problem: Problem, options: ServerOptions) -> None:
    """Price the best layouts of a search, and keep those within the targets."""
    slice_, role = problem.slice_, problem.work.phase
    options.results[f"{slice_.name} {role}"] = result
    limit_s = fleet_query.query.targets.max_ttft_s if role == "prefill" else fleet_query.query.targets.max_step_s
    bests = [Candidate(slice_, problem, c) for choices in result.choices.values() for c in choices[:1]]
    for candidate in front(bests):
        option = server_option(fleet_query, slice_, price_candidate(candidate, query))
        shortest = (option.step_s, option.name)
        options.shortest[role] = min(options.shortest.get(role, shortest), shortest)
        if limit_s is None or option.step_s <= limit_s:
            options.options.append(option)


def front(candidates: Sequence[Candidate]) -> list[Candidate]:
    """Return one slice's candidates that no other dominates in seconds of a step and tokens per second."""
    in_order = sorted(candidates, key=lambda c: (c.choice.step_s, -c.choice.batch))
    return undominated(in_order, lambda c: (c.choice.step_s, -c.tokens_per_s))


def server_option(fleet_query: FleetQuery, slice_: Slice, plan: Plan) -> ServerOption:
    """Return a plan as a server, with its rate in the traffic."""
    end, batch, step_s = transfer_end_of(plan, slice_, fleet_query.traffic.input), plan.batch, plan.cost.step_s
    if plan.phase == "prefill":
        moved = transfer(end, end, batch)
        steps = PhaseTimes(prefill_s=step_s, prefill_batch=batch, decode_s=0.0, decode_batch=1, output=1)
        rate, rate_without_network = prefill_rate(steps, moved), batch / step_s
        moves, worst_s = {batch: moved}, step_s
    else:
        moves = _moves(end, fleet_query.prefill_batches)
        output = fleet_query.traffic.output
        copies_s = moves[1].copies_s
        steps = PhaseTimes(prefill_s=0.0, prefill_batch=1, decode_s=step_s, decode_batch=batch, output=output)
        rate, rate_without_network = decode_rate(steps, moves[1]), batch / (output * step_s + batch * copies_s)
        worst_s = step_s + ceil(batch / output) * copies_s
    return ServerOption(
        role=plan.phase,
        slice_=slice_,
        plan=plan,
        requests_per_s=rate,
        limited_by="step" if rate >= rate_without_network * (1 - 1e-12) else "network",
        step_s=worst_s,
        moves=moves,
    )


def _moves(end: TransferEnd, batches: Sequence[int]) -> dict[int, Transfer]:
    """Return the transfer for one request and for each batch."""
    return {requests: transfer(end, end, requests) for requests in sorted({1, *batches})}


def transfer_s(prefill: ServerOption, decode: ServerOption) -> float:
    """Return the seconds to move the caches of one prefill batch between the two servers.

    It is the DCN latency + the longer of sending and receiving + the gathering of copies at the receiver.
    """
    requests = prefill.plan.batch
    sends, receives = prefill.moves[requests], decode.moves[requests]
    return DCN_LATENCY_S + max(sends.send_s, receives.receive_s) + receives.copies_s


def ttft_s(prefill: ServerOption, decode: ServerOption, requests_per_s: float) -> float:
    """Return the worst time to first token in seconds; the module docstring has the formula.

    With p prompts per prefill batch it is (p - 1) / requests_per_s + prefill step + transfer + worst decode step +
    decode step.
    """
    gather_s = (prefill.plan.batch - 1) / requests_per_s
    return gather_s + prefill.step_s + transfer_s(prefill, decode) + decode.step_s + decode.plan.cost.step_s


def problem_of(fleet_query: FleetQuery, options: ServerOptions) -> FleetProblem:
    """Return the choice of numbers of servers, in the order of the options.

    Pairs that break the TTFT target are excluded.
    """
    servers = [
        Server(
            name=option.name,
            chip=option.slice_.chip.name,
            chips=option.slice_.chips,
            role=option.role,
            requests_per_s=option.requests_per_s,
            cost=fleet_query.cost(option.slice_.chip.name, option.slice_.chips),
            step_s=option.step_s,
        )
        for option in options.options
    ]
    quota = {s.chip: fleet_query.quota[s.chip.lower()] for s in servers}
    return FleetProblem(servers, fleet_query.demand_per_s, quota, _excluded(fleet_query, options))


def _excluded(fleet_query: FleetQuery, options: ServerOptions) -> list[tuple[int, int]]:
    """Return the pairs of a prefill and a decode server that break the TTFT target."""
    limit_s = fleet_query.query.targets.max_ttft_s
    if limit_s is None:
        return []
    numbered = list(enumerate(options.options))
    return [
        (i, j)
        for i, prefill in numbered
        if prefill.role == "prefill"
        for j, decode in numbered
        if decode.role == "decode" and ttft_s(prefill, decode, fleet_query.traffic.requests_per_s) > limit_s
    ]
