"""The servers that a fleet may choose from: the best layout of every slice, role and batch, with rate and seconds.

A prefill server runs whole batches of p prompts, P seconds each, and sends their caches over DCN while it runs the
next. A decode server of b slots runs steps of D seconds at a full cache, and takes new requests one by one: b/O in
the mean between two steps, at O output tokens; each stops it for C seconds, gathering the copies that its layout
holds of the cache (0 where it holds one; `planner.plan.transfer`). So, with f = b/O,

    requests/s of a prefill server      p / P, or fewer where it cannot send so many caches
    requests/s of a decode server       b / (O (D + f C)), or fewer where it cannot receive so many
    worst step                          D + ceil(f) C
    time to first token, at worst       (p - 1) / traffic + P + transfer + worst step + D

The last: until p prompts are there, their prefill, the move of their caches, the step that runs, and the step that
decodes the first token. Source: the chapter on inference, "Designing an effective inference engine" (disaggregated
serving). Left out: queues of requests that come unevenly, for which `utilisation` leaves room.
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
"""Slices that are searched together, in both roles, in as many processes; always as many, on any machine."""


@dataclass(frozen=True, kw_only=True)
class ServerOption:
    """A plan as a server. `moves`: what moving the caches of so many requests takes this side; `step_s`: at worst."""

    role: str
    slice_: Slice
    plan: Plan
    requests_per_s: float
    limited_by: str
    step_s: float
    moves: Mapping[int, Transfer]

    @property
    def name(self) -> str:
        """Slice, role and batch, which no other offer has."""
        return f"{self.slice_.name} {self.role} batch {self.plan.batch}"


@dataclass
class ServerOptions:
    """All servers, what the searches found, and the shortest step of each role, with its name, whatever the targets.

    `interrupted`: before all slices were searched. `skipped`: slices that cost too much to be of use. `search_s`: what
    the searches took.
    """

    every: list[ServerOption] = field(default_factory=list)
    found: dict[str, SearchResult] = field(default_factory=dict)
    shortest: dict[str, tuple[float, str]] = field(default_factory=dict)
    interrupted: bool = False
    skipped: int = 0
    search_s: float = 0.0

    def of(self, role: str) -> list[ServerOption]:
        """The offers of one role."""
        return [one for one in self.every if one.role == role]


def find_offers(asked: FleetQuery, progress: Progress) -> ServerOptions:
    """Search the slices in both roles, cheap ones first; an interrupt keeps what was found until then.

    A slice that alone costs as much as a fleet that was found can be in no better one: it is skipped.
    """
    offers = ServerOptions()
    started = time.perf_counter()
    order = sorted(asked.query.slices, key=lambda s: (asked.cost(s.chip.name, s.chips), s.chips, s.name))
    try:
        for first in range(0, len(order), AT_ONCE):
            some = order[first : first + AT_ONCE]
            limit = least_found(asked, offers, max(asked.cost(s.chip.name, s.chips) for s in some))
            cheap = [s for s in some if limit is None or asked.cost(s.chip.name, s.chips) < limit]
            offers.skipped += len(some) - len(cheap)
            _search(asked, cheap, offers, progress)
    except KeyboardInterrupt:
        offers.interrupted = True
    offers.search_s = time.perf_counter() - started
    return offers


def least_found(asked: FleetQuery, offers: ServerOptions, dearest: Fraction) -> Fraction | None:
    """The cost of a fleet of these offers; None where none was found, or none can cost so little as `dearest`."""
    if not all(offers.of(role) for role in ROLES):
        return None
    problem = problem_of(asked, offers)
    return cost_of_some_fleet(problem) if least_cost(problem) <= dearest else None


def _search(asked: FleetQuery, slices: Sequence[Slice], offers: ServerOptions, progress: Progress) -> None:
    queries = [asked.of(role, slice_) for slice_ in slices for role in ROLES]
    by_place = {(query.slices[0].name, query.work.phase): query for query in queries}
    results = in_parallel([(query, query.slices[0]) for query in queries], search_slice, asked.query.workers)
    for query in queries:
        progress(f"searching {query.slices[0].name}, {query.work.phase}")
        problem, result = next(results)
        _add(asked, by_place[problem.slice_.name, problem.work.phase], result, problem, offers)
        if result.interrupted:
            raise KeyboardInterrupt


def _add(asked: FleetQuery, query: Query, result: SearchResult, problem: Problem, offers: ServerOptions) -> None:
    """Price what was found, and keep what is within the targets."""
    slice_, role = problem.slice_, problem.work.phase
    offers.found[f"{slice_.name} {role}"] = result
    limit_s = asked.query.targets.max_ttft_s if role == "prefill" else asked.query.targets.max_step_s
    bests = [Candidate(slice_, problem, c) for choices in result.choices.values() for c in choices[:1]]
    for candidate in front(bests):
        offer = server_option(asked, slice_, price_candidate(candidate, query))
        shortest = (offer.step_s, offer.name)
        offers.shortest[role] = min(offers.shortest.get(role, shortest), shortest)
        if limit_s is None or offer.step_s <= limit_s:
            offers.every.append(offer)


def front(candidates: Sequence[Candidate]) -> list[Candidate]:
    """Return one slice's candidates that no other beats in both seconds of a step and sequences per second."""
    in_order = sorted(candidates, key=lambda c: (c.choice.step_s, -c.choice.batch))
    return undominated(in_order, lambda c: (c.choice.step_s, -c.tokens_per_s))


def server_option(asked: FleetQuery, slice_: Slice, plan: Plan) -> ServerOption:
    """A plan as a server: what it does in the traffic."""
    side, batch, step_s = transfer_end_of(plan, slice_, asked.traffic.input), plan.batch, plan.cost.step_s
    if plan.phase == "prefill":
        moved = transfer(side, side, batch)
        steps = PhaseTimes(prefill_s=step_s, prefill_batch=batch, decode_s=0.0, decode_batch=1, output=1)
        rate, alone = prefill_rate(steps, moved), batch / step_s
        moves, worst_s = {batch: moved}, step_s
    else:
        moves = _moves(side, asked.prefill_batches)
        output = asked.traffic.output
        copies_s = moves[1].copies_s
        steps = PhaseTimes(prefill_s=0.0, prefill_batch=1, decode_s=step_s, decode_batch=batch, output=output)
        rate, alone = decode_rate(steps, moves[1]), batch / (output * step_s + batch * copies_s)
        worst_s = step_s + ceil(batch / output) * copies_s
    return ServerOption(
        role=plan.phase,
        slice_=slice_,
        plan=plan,
        requests_per_s=rate,
        limited_by="step" if rate >= alone * (1 - 1e-12) else "network",
        step_s=worst_s,
        moves=moves,
    )


def _moves(side: TransferEnd, batches: Sequence[int]) -> dict[int, Transfer]:
    return {requests: transfer(side, side, requests) for requests in sorted({1, *batches})}


def transfer_s(prefill: ServerOption, decode: ServerOption) -> float:
    """Seconds to move the caches of one prefill batch: `transfer` between the two sides."""
    requests = prefill.plan.batch
    sends, receives = prefill.moves[requests], decode.moves[requests]
    return DCN_LATENCY_S + max(sends.send_s, receives.receive_s) + receives.copies_s


def ttft_s(prefill: ServerOption, decode: ServerOption, requests_per_s: float) -> float:
    """Time to the first token, at worst: see the module."""
    gather_s = (prefill.plan.batch - 1) / requests_per_s
    return gather_s + prefill.step_s + transfer_s(prefill, decode) + decode.step_s + decode.plan.cost.step_s


def problem_of(asked: FleetQuery, offers: ServerOptions) -> FleetProblem:
    """The choice of numbers: servers in the order of the offers; pairs that break the TTFT target are barred."""
    servers = [
        Server(
            name=one.name,
            chip=one.slice_.chip.name,
            chips=one.slice_.chips,
            role=one.role,
            requests_per_s=one.requests_per_s,
            cost=asked.cost(one.slice_.chip.name, one.slice_.chips),
            step_s=one.step_s,
        )
        for one in offers.every
    ]
    quota = {s.chip: asked.quota[s.chip.lower()] for s in servers}
    return FleetProblem(servers, asked.demand_per_s, quota, _excluded(asked, offers))


def _excluded(asked: FleetQuery, offers: ServerOptions) -> list[tuple[int, int]]:
    most_s = asked.query.targets.max_ttft_s
    if most_s is None:
        return []
    numbered = list(enumerate(offers.every))
    return [
        (i, j)
        for i, prefill in numbered
        if prefill.role == "prefill"
        for j, decode in numbered
        if decode.role == "decode" and ttft_s(prefill, decode, asked.traffic.requests_per_s) > most_s
    ]
