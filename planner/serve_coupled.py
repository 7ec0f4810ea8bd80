"""`--phase serve --solver cp-sat`: pairs of layouts on one slice that share one copy of the weights, proved best.

Which pairs are worth proving: a pair of batches can do no better than with the fastest layout of each phase, no copies
and no moves of weights or caches. Pairs are solved in that order, until none left can beat what was found, and at most
`MOST_PAIRS` for each slice and way to serve.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import msgspec

from mesh.errors import InputError
from mesh.slices import Slice
from planner.coupled_proof import Proof
from planner.given import layout_of
from planner.plan import Plan
from planner.pricing import price_layout
from planner.request import Progress, Request
from planner.serve_rates import Steps
from planner.serve_request import ServeRequest, Way
from planner.serve_ways import PACES, way_on_one, ways_on_one
from planner.sweep import price_candidate
from strategies.cost import speeds

MOST_PAIRS = 2

Pairs = list[tuple[Plan, Plan]]


def proved_ways(
    request: ServeRequest, slice_: Slice, pairs: Pairs, found: Sequence[Way], progress: Progress
) -> Iterator[Way]:
    """Ways on one slice whose plans share their weights, for the pairs of best plans that promise most."""
    solved: dict[tuple[int, int], list[Way]] = {}
    for mode in (mode for mode in PACES if mode in request.modes):
        ideal = [ideal_way(request, mode, prefill, decode) for prefill, decode in pairs]
        ranked = sorted((way for way in ideal if not way.missed(request)), key=lambda way: way.rank(request))
        for way in ranked[:MOST_PAIRS]:
            known = [w for w in (*found, *(w for ws in solved.values() for w in ws)) if w.mode == mode]
            ranks = [w.rank(request)[:2] for w in known if not w.missed(request)]
            key = (way.prefill.batch, way.decode.batch)
            if key not in solved and not (ranks and min(ranks) <= way.rank(request)[:2]):
                progress(f"solving {slice_.name} at batches {key[0]} and {key[1]}")
                solved[key] = list(_solved(request, slice_, *key))
                yield from solved[key]


def ideal_way(request: ServeRequest, mode: str, prefill: Plan, decode: Plan) -> Way:
    """The way that the two plans would make if nothing had to be moved and both fitted."""
    steps = Steps(
        prefill_s=prefill.cost.step_s,
        prefill_batch=prefill.batch,
        decode_s=decode.cost.step_s,
        decode_batch=decode.batch,
        output=request.output,
    )
    return way_on_one(request, mode, prefill, decode, steps, None)


def _solved(request: ServeRequest, slice_: Slice, prompts: int, slots: int) -> Iterator[Way]:
    """The ways of the pair that CP-SAT proves best for these batches, if one fits."""
    from planner.coupled_pair import shared_pair

    requests = [_at(request.of(phase), batch) for phase, batch in (("prefill", prompts), ("decode", slots))]
    try:
        found = shared_pair(*requests, slice_, output=request.output, seconds=request.solver_seconds)
    except InputError as error:
        if "no pair was found in so short a time" in str(error):
            return
        raise
    if found is None:
        return
    plans = [price_candidate(c, r) for c, r in zip(found[:2], requests, strict=True)]
    if all(is_recomputed(plan, request) for plan in plans):
        for way in ways_on_one(request, slice_, *plans):
            yield _with_proof(way, found[2])
    if found[2].interrupted:
        raise KeyboardInterrupt


def _at(request: Request, batch: int) -> Request:
    """The request at one batch."""
    return replace(request, work=msgspec.structs.replace(request.work, batches=(batch,)), auto=False)


def is_recomputed(plan: Plan, request: ServeRequest) -> bool:
    """Whether a plan file's layouts give the plan's specs again, so that `verify` will accept it.

    An order of mesh axes that mixes those that cut different dims of the residual cannot be written.
    """
    slice_ = next(one for one in request.slices if one.name == plan.slice)
    layout, _, work = layout_of(plan, tuple(request.programs), slice_.chip)
    again = price_layout(
        layout, slice_, plan.model, work, plan.batch, plan.padded_batch, speeds(slice_.chip, work.dtypes)
    )
    return again.specs == plan.specs


def _with_proof(way: Way, proof: Proof) -> Way:
    assert way.together is not None
    return replace(way, together=msgspec.structs.replace(way.together, proof=proof))
