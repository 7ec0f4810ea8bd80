"""Add ways to serve proved by CP-SAT: pairs of layouts on one slice that share one copy of the weights.

One pair of batches is solved for each slice and way to serve on it. If the best way without the solver moves
weights before and after each prefill, its batches are solved. Otherwise those are solved that would be best if both
phases had their fastest layouts and nothing had to be moved, where that is better than the best way so far.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import msgspec

from mesh.slices import Slice
from planner.plan.file_proof import Proof
from planner.plan.layout_file import layout_of
from planner.plan.plan import Plan
from planner.plan.pricing import price_layout
from planner.query.query import Progress
from planner.search.candidate import price_candidate
from planner.serve.query import ServeQuery, Way
from planner.serve.rates import PhaseTimes
from planner.serve.ways import LATENCIES_OF, way_on_one, ways_on_one
from strategies.readers.cost import speeds


def proved_ways(
    serve_query: ServeQuery, slice_: Slice, pairs: Sequence[tuple[Plan, Plan]], ways: Sequence[Way], progress: Progress
) -> Iterator[Way]:
    """Yield ways on one slice whose plans share their weights.

    `pairs` are pairs of the best plans of each batch, `ways` those without the solver. Raises `KeyboardInterrupt` where
    an interrupt ended the solver.
    """
    solved = set()
    for mode in (mode for mode in LATENCIES_OF if mode in serve_query.modes):
        way = _worth_solving(
            serve_query, mode, pairs, [w for w in ways if w.mode == mode and not w.missed(serve_query)]
        )
        key = (way.prefill.batch, way.decode.batch) if way else None
        if key and key not in solved:
            solved.add(key)
            progress(f"solving {slice_.name} at batches {key[0]} and {key[1]}")
            yield from _solved(serve_query, slice_, *key)


def _worth_solving(
    serve_query: ServeQuery, mode: str, pairs: Sequence[tuple[Plan, Plan]], ways: Sequence[Way]
) -> Way | None:
    """Return the way whose batches are to be solved, or None where sharing cannot beat the ways so far."""
    best = min(ways, key=lambda way: way.rank(serve_query), default=None)
    if best and best.together and best.together.weights == "resharded":
        return best
    ideal = [ideal_way(serve_query, mode, prefill, decode) for prefill, decode in pairs]
    first = min((w for w in ideal if not w.missed(serve_query)), key=lambda way: way.rank(serve_query), default=None)
    if first is None or (best and best.pace.requests_per_s >= 0.99 * first.pace.requests_per_s):
        return None
    return first


def ideal_way(serve_query: ServeQuery, mode: str, prefill: Plan, decode: Plan) -> Way:
    """Return the way of the two plans if nothing had to be moved and both fitted."""
    steps = PhaseTimes(
        prefill_s=prefill.cost.step_s,
        prefill_batch=prefill.batch,
        decode_s=decode.cost.step_s,
        decode_batch=decode.batch,
        output=serve_query.output,
    )
    return way_on_one(serve_query, mode, prefill, decode, steps, None)


def _solved(serve_query: ServeQuery, slice_: Slice, prompts: int, slots: int) -> Iterator[Way]:
    """Yield the ways of the pair that CP-SAT proves best for these batches, if one fits."""
    from planner.cpsat.pair import NoPairInTime, shared_pair

    prefill, decode = serve_query.phase_query("prefill").at(prompts), serve_query.phase_query("decode").at(slots)
    try:
        pair = shared_pair(prefill, decode, slice_, output=serve_query.output, seconds=serve_query.query.solver_seconds)
    except NoPairInTime:
        return
    if pair is None:
        return
    plans = price_candidate(pair[0], prefill), price_candidate(pair[1], decode)
    for plan in plans:
        if not is_recomputed(plan, serve_query):
            raise RuntimeError(f"CP-SAT found a {plan.phase} layout on {slice_.name} that a plan file cannot say")
    for way in ways_on_one(serve_query, slice_, *plans):
        yield _with_proof(way, pair[2])
    if pair[2].interrupted:
        raise KeyboardInterrupt


def is_recomputed(plan: Plan, serve_query: ServeQuery) -> bool:
    """Return whether the plan's layouts give its specs again, so that `verify` accepts it.

    A solver's pair has its mesh axes in an order of its own; not every order can be written.
    """
    slice_ = next(s for s in serve_query.query.slices if s.name == plan.slice)
    layout, _, work = layout_of(plan, tuple(serve_query.query.programs), slice_.chip)
    repriced = price_layout(
        layout, slice_, plan.model, work, plan.batch, plan.padded_batch, speeds(slice_.chip, work.dtypes)
    )
    return repriced.specs == plan.specs


def _with_proof(way: Way, proof: Proof) -> Way:
    """Return the way with the solver's proof."""
    assert way.together is not None
    return replace(way, together=msgspec.structs.replace(way.together, proof=proof))
