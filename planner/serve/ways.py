"""Build the ways to serve with plans of both phases: every pair on one slice, and the relevant pairs on two."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from mesh.slices import Slice
from planner.plan.file_serving import SharedHbm
from planner.plan.plan import Plan
from planner.plan.transfer import TransferEnd, transfer, transfer_end_of
from planner.search.candidate import Candidate, price_candidate
from planner.search.pareto import undominated
from planner.search.problem import Choice
from planner.serve.memory import Pair, prefill_steps
from planner.serve.query import ServeQuery, Way
from planner.serve.rates import (
    PhaseTimes,
    batched,
    decode_rate,
    disaggregated,
    interleaved,
    prefill_rate,
    replicas_for,
    slice_counts,
)

LATENCIES_OF = {"batched": batched, "interleaved": interleaved}
"""Latency formula of each way to serve on one slice."""

PAIRS_IN_FULL = 1024
"""With more pairs of plans than this, two slices are paired from the best of each phase only (`front`)."""


@dataclass(frozen=True)
class Priced:
    """Candidates priced in full, each once: equal candidates have the same plan."""

    serve_query: ServeQuery
    plans: dict[tuple[str, str, Choice], Plan] = field(default_factory=dict)

    def plan(self, candidate: Candidate) -> Plan:
        """Return the plan of a candidate."""
        phase = candidate.problem.work.phase
        key = (phase, candidate.slice_.name, candidate.choice)
        if key not in self.plans:
            self.plans[key] = price_candidate(candidate, self.serve_query.phase_query(phase))
        return self.plans[key]


def steps_of(serve_query: ServeQuery, prefill: Plan, decode: Plan, shared_hbm: SharedHbm | None = None) -> PhaseTimes:
    """Return the seconds of two plans, and of the moves between them on one slice."""
    return PhaseTimes(
        prefill_s=prefill.cost.step_s,
        prefill_batch=prefill.batch,
        decode_s=decode.cost.step_s,
        decode_batch=decode.batch,
        output=serve_query.output,
        insert_s=shared_hbm.insert.seconds if shared_hbm else 0.0,
        switch_s=shared_hbm.switch.seconds if shared_hbm else 0.0,
    )


def ways_on_one(serve_query: ServeQuery, slice_: Slice, prefill: Plan, decode: Plan) -> Iterator[Way]:
    """Yield batched and interleaved serving with both plans on one slice, where they fit."""
    if prefill.batch > decode.batch:
        return
    pair = Pair(prefill, decode, slice_)
    for mode in LATENCIES_OF:
        at_once = mode == "batched" and prefill_steps(prefill, decode) == 1
        shared_hbm = pair.shared_hbm(at_once=at_once) if mode in serve_query.modes else None
        if shared_hbm is not None:
            yield way_on_one(
                serve_query, mode, prefill, decode, steps_of(serve_query, prefill, decode, shared_hbm), shared_hbm
            )


def way_on_one(
    serve_query: ServeQuery, mode: str, prefill: Plan, decode: Plan, steps: PhaseTimes, shared_hbm: SharedHbm | None
) -> Way:
    """Return batched or interleaved serving at these seconds, with as many replicas as the target needs."""
    latencies = LATENCIES_OF[mode](steps)
    way = Way(
        mode=mode,
        prefill=prefill,
        decode=decode,
        prefill_slices=1,
        decode_slices=1,
        ratio=None,
        replicas=1,
        pace=latencies,
        together=shared_hbm,
    )
    return way.with_replicas(replicas_for(_least_requests_per_s(serve_query), latencies.requests_per_s))


def _least_requests_per_s(serve_query: ServeQuery) -> float:
    """Return the least requests/s that the targets require."""
    return (serve_query.query.targets.min_tokens_per_s or 0.0) / serve_query.output


def ways_on_two(
    serve_query: ServeQuery, prefills: Sequence[Candidate], decodes: Sequence[Candidate], priced: Priced
) -> Iterator[Way]:
    """Yield disaggregated serving of every prefill plan with every decode plan.

    Where these are more than `PAIRS_IN_FULL` pairs, only the Pareto fronts are paired.
    """
    if len(prefills) * len(decodes) > PAIRS_IN_FULL:
        prefills, decodes = front(prefills), front(decodes)
    sources = [_end(serve_query, candidate, priced) for candidate in prefills]
    targets = [_end(serve_query, candidate, priced) for candidate in decodes]
    for prefill, source in sources:
        for decode, target in targets:
            way = _disaggregated_way(serve_query, prefill, source, decode, target)
            if way is not None:
                yield way


def _end(serve_query: ServeQuery, candidate: Candidate, priced: Priced) -> tuple[Plan, TransferEnd]:
    """Return a candidate's plan, and its end of the transfer."""
    plan = priced.plan(candidate)
    return plan, transfer_end_of(plan, candidate.slice_, serve_query.input)


def _disaggregated_way(
    serve_query: ServeQuery, prefill: Plan, source: TransferEnd, decode: Plan, target: TransferEnd
) -> Way | None:
    """Return disaggregated serving of two plans, or None where the chips allow no numbers of slices."""
    moved, steps = transfer(source, target, prefill.batch), steps_of(serve_query, prefill, decode)
    counts = slice_counts(
        prefill_rate(steps, moved),
        decode_rate(steps, moved),
        (prefill.chips, decode.chips),
        serve_query.query.targets.max_chips,
        _least_requests_per_s(serve_query),
    )
    if counts is None:
        return None
    return Way(
        mode="disaggregated",
        prefill=prefill,
        decode=decode,
        prefill_slices=counts.prefill,
        decode_slices=counts.decode,
        ratio=counts.ratio,
        replicas=1,
        pace=disaggregated(steps, moved, counts.prefill, counts.decode),
        transfer=moved,
    ).with_replicas(counts.replicas)


def front(candidates: Iterable[Candidate]) -> list[Candidate]:
    """Return the candidates that no other of the same kind of chip dominates.

    Compared are seconds of a step, tokens/s per chip, and chips.
    """

    def key(candidate: Candidate) -> tuple[float, float, int]:
        """Return the values to minimise."""
        return candidate.choice.step_s, -candidate.tokens_per_s_per_chip, candidate.slice_.chips

    by_chip: dict[str, list[Candidate]] = {}
    for candidate in sorted(candidates, key=lambda c: (key(c), c.slice_.name, c.choice.batch)):
        by_chip.setdefault(candidate.slice_.chip.name, []).append(candidate)
    return [candidate for same_chip in by_chip.values() for candidate in undominated(same_chip, key)]


def shown(ways: Sequence[Way], serve_query: ServeQuery) -> list[Way]:
    """Return the ways to show, best first: the best of every mode, then of every mode and pair of slices.

    There are `top` in all, but at least every mode's best.
    """
    ranked = sorted(ways, key=lambda way: way.rank(serve_query))
    best_of_mode: dict[str, Way] = {}
    best_of_slices: dict[tuple[str, str, str], Way] = {}
    for way in ranked:
        best_of_mode.setdefault(way.mode, way)
        best_of_slices.setdefault((way.mode, way.prefill.slice, way.decode.slice), way)
    first = list(best_of_mode.values())
    rest = [way for way in best_of_slices.values() if not any(way is best for best in first)]
    result = [*first, *rest[: max(0, serve_query.query.top - len(first))]]
    return sorted(result, key=lambda way: way.rank(serve_query))


def numbered(ways: Sequence[Way]) -> tuple[tuple[Plan, ...], Mapping[int, int]]:
    """Return the plans of the ways, each once, in order of appearance, and their numbers from 1 by `id`."""
    plans: list[Plan] = []
    numbers: dict[int, int] = {}
    for way in ways:
        for plan in (way.prefill, way.decode):
            if id(plan) not in numbers:
                plans.append(plan)
                numbers[id(plan)] = len(plans)
    return tuple(plans), numbers
