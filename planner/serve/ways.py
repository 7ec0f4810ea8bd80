"""The ways to serve with plans of both phases: every pair on one slice, and the pairs that matter on two."""

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

PACES = {"batched": batched, "interleaved": interleaved}
"""The ways to serve on one slice."""

PAIRS_IN_FULL = 1024
"""With more pairs of plans than this, two slices are paired from the best of each phase only (`front`)."""


@dataclass(frozen=True)
class Priced:
    """Candidates priced in full, each once: equal candidates give the same plan."""

    asked: ServeQuery
    plans: dict[tuple[str, str, Choice], Plan] = field(default_factory=dict)

    def plan(self, candidate: Candidate) -> Plan:
        """The plan of a candidate."""
        phase = candidate.problem.work.phase
        key = (phase, candidate.slice_.name, candidate.choice)
        if key not in self.plans:
            self.plans[key] = price_candidate(candidate, self.asked.of(phase))
        return self.plans[key]


def steps_of(asked: ServeQuery, prefill: Plan, decode: Plan, held: SharedHbm | None = None) -> PhaseTimes:
    """The seconds of two plans, and of what lies between them on one slice."""
    return PhaseTimes(
        prefill_s=prefill.cost.step_s,
        prefill_batch=prefill.batch,
        decode_s=decode.cost.step_s,
        decode_batch=decode.batch,
        output=asked.output,
        insert_s=held.insert.seconds if held else 0.0,
        switch_s=held.switch.seconds if held else 0.0,
    )


def ways_on_one(asked: ServeQuery, slice_: Slice, prefill: Plan, decode: Plan) -> Iterator[Way]:
    """Batched and interleaved serving with both plans on one slice, where they fit together."""
    if prefill.batch > decode.batch:
        return
    pair = Pair(prefill, decode, slice_)
    for mode in PACES:
        at_once = mode == "batched" and prefill_steps(prefill, decode) == 1
        held = pair.kept(at_once=at_once) if mode in asked.modes else None
        if held is not None:
            yield way_on_one(asked, mode, prefill, decode, steps_of(asked, prefill, decode, held), held)


def way_on_one(
    asked: ServeQuery, mode: str, prefill: Plan, decode: Plan, steps: PhaseTimes, held: SharedHbm | None
) -> Way:
    """Batched or interleaved serving at these seconds, as often as is asked for."""
    pace = PACES[mode](steps)
    way = Way(
        mode=mode,
        prefill=prefill,
        decode=decode,
        prefill_slices=1,
        decode_slices=1,
        ratio=None,
        replicas=1,
        pace=pace,
        together=held,
    )
    return way.with_replicas(replicas_for(_least(asked), pace.requests_per_s))


def _least(asked: ServeQuery) -> float:
    """Requests/s that are asked for."""
    return (asked.query.targets.min_tokens_per_s or 0.0) / asked.output


def ways_on_two(
    asked: ServeQuery, prefills: Sequence[Candidate], decodes: Sequence[Candidate], priced: Priced
) -> Iterator[Way]:
    """Disaggregated serving: every prefill plan with every decode plan, or the fronts' where these are too many."""
    if len(prefills) * len(decodes) > PAIRS_IN_FULL:
        prefills, decodes = front(prefills), front(decodes)
    sources = [_end(asked, one, priced) for one in prefills]
    targets = [_end(asked, one, priced) for one in decodes]
    for prefill, source in sources:
        for decode, target in targets:
            way = _apart(asked, prefill, source, decode, target)
            if way is not None:
                yield way


def _end(asked: ServeQuery, candidate: Candidate, priced: Priced) -> tuple[Plan, TransferEnd]:
    plan = priced.plan(candidate)
    return plan, transfer_end_of(plan, candidate.slice_, asked.input)


def _apart(asked: ServeQuery, prefill: Plan, source: TransferEnd, decode: Plan, target: TransferEnd) -> Way | None:
    moved, steps = transfer(source, target, prefill.batch), steps_of(asked, prefill, decode)
    counts = slice_counts(
        prefill_rate(steps, moved),
        decode_rate(steps, moved),
        (prefill.chips, decode.chips),
        asked.query.targets.max_chips,
        _least(asked),
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
    """Return the candidates that no other of their kind of chip beats in step seconds, tokens/s per chip, and chips."""

    def key(one: Candidate) -> tuple[float, float, int]:
        return one.choice.step_s, -one.tokens_per_s_per_chip, one.slice_.chips

    by_chip: dict[str, list[Candidate]] = {}
    for one in sorted(candidates, key=lambda c: (key(c), c.slice_.name, c.choice.batch)):
        by_chip.setdefault(one.slice_.chip.name, []).append(one)
    return [one for alike in by_chip.values() for one in undominated(alike, key)]


def shown(ways: Sequence[Way], asked: ServeQuery) -> list[Way]:
    """Best first: the best of every mode, then of every mode and slices, `top` in all (but every mode's best)."""
    ranked = sorted(ways, key=lambda way: way.rank(asked))
    modes: dict[str, Way] = {}
    places: dict[tuple[str, str, str], Way] = {}
    for way in ranked:
        modes.setdefault(way.mode, way)
        places.setdefault((way.mode, way.prefill.slice, way.decode.slice), way)
    first = list(modes.values())
    rest = [way for way in places.values() if not any(way is one for one in first)]
    kept = [*first, *rest[: max(0, asked.query.top - len(first))]]
    return sorted(kept, key=lambda way: way.rank(asked))


def numbered(ways: Sequence[Way]) -> tuple[tuple[Plan, ...], Mapping[int, int]]:
    """The plans of the ways, each once, in the order in which they come; their numbers from 1, by identity."""
    plans: list[Plan] = []
    numbers: dict[int, int] = {}
    for way in ways:
        for plan in (way.prefill, way.decode):
            if id(plan) not in numbers:
                plans.append(plan)
                numbers[id(plan)] = len(plans)
    return tuple(plans), numbers
