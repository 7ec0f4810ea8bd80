"""Plan serving: a prefill and a decode plan, on one slice or on two, as the chapter compares them.

batched, interleaved    both plans on one slice: the best of every batch, and prefill layouts that share the decode's
                        weights (`serve.share`); all pairs that fit on it
disaggregated           any two slices, also two of one kind: the cache goes over DCN
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from functools import partial
from itertools import product

from mesh.slices import Slice
from mesh.version import VERSION
from planner.best.nothing import NothingFits, nothing_fits
from planner.best.sweep import Sweep, covered, sweep
from planner.plan.file_serving import Serving, ServingEntry
from planner.plan.planfile import INTERRUPTED, SCHEMA, PlanFile, Search
from planner.query.query import CP_SAT, Progress, silent
from planner.search.candidate import Candidate
from planner.serve.coupled import proved_ways
from planner.serve.query import ServeQuery, Way
from planner.serve.share import by_letters, leaner_decodes, sharing_prefills
from planner.serve.ways import Priced, numbered, shown, ways_on_one, ways_on_two

PHASES = ("prefill", "decode")
ON_ONE = ("batched", "interleaved")


def make_serving(serve_query: ServeQuery, progress: Progress = silent) -> PlanFile:
    """Search both phases and rank the ways to serve.

    Raises `NothingFits` where there is none, and `KeyboardInterrupt` where an interrupt came before there was one.

    Each phase is swept on its own: the best layout of every slice and batch. Pairs of these make the ways to serve,
    which are filtered by the targets and ranked by the objective. With the solver "cp-sat", pairs that share their
    weights are added (`planner.serve.coupled`).
    """
    started = time.perf_counter()
    swept = _swept(serve_query, progress)
    priced = Priced(serve_query)
    ways = [*_on_one(serve_query, swept, priced, progress), *_on_two(serve_query, swept, priced, progress)]
    interrupted = _proved(serve_query, swept, priced, ways, progress) or any(
        phase_sweep.interrupted for phase_sweep in swept.values()
    )
    search = _covered(swept, started, interrupted)
    meeting = [way for way in ways if not way.missed(serve_query)]
    notes = _notes(serve_query, ways, meeting)
    if not meeting and interrupted:
        raise KeyboardInterrupt
    if not meeting:
        raise NothingFits(f"{serve_query.query.model.name}: " + "; ".join(notes), (), None, search)
    shown_ways = shown(meeting, serve_query)
    plans, numbers = numbered(shown_ways)
    return PlanFile(
        schema=SCHEMA,
        tool_version=VERSION,
        objective=serve_query.query.objective,
        plans=plans,
        rejected=(),
        search=search,
        notes=notes,
        targets=serve_query.query.targets.words,
        prices=dict(serve_query.query.prices),
        serving=Serving(
            input=serve_query.input,
            output=serve_query.output,
            decode_context=serve_query.context,
            entries=tuple(_entry(way, serve_query, numbers) for way in shown_ways),
        ),
    )


def _swept(serve_query: ServeQuery, progress: Progress) -> dict[str, Sweep]:
    """Return both phases' sweeps.

    An interrupt of the second keeps the results so far; the first alone cannot serve.
    """
    sweeps = {}
    for phase in PHASES:
        sweeps[phase] = sweep(serve_query.phase_query(phase), partial(_say, progress, phase))
        if phase == PHASES[0] and sweeps[phase].interrupted:
            raise KeyboardInterrupt
        if not sweeps[phase].bests:
            query, now = serve_query.phase_query(phase), time.perf_counter()
            raise nothing_fits(query, sweeps[phase].results, sweeps[phase].covered(now, now))
    return sweeps


def _say(progress: Progress, phase: str, text: str) -> None:
    """Report progress of a phase."""
    progress(f"{phase}: {text}")


def _on_one(serve_query: ServeQuery, swept: Mapping[str, Sweep], priced: Priced, progress: Progress) -> list[Way]:
    """Return the ways of all pairs on each slice of the best of every batch.

    Decode batches that fit beside no prefill are searched again with less HBM.
    """
    ways: list[Way] = []
    for slice_ in serve_query.query.slices if set(ON_ONE) & set(serve_query.modes) else ():
        progress(f"pairing prefill and decode on {slice_.name}")
        prefills, decodes = (_of_slice(swept[phase], slice_) for phase in PHASES)
        slice_ways = _pairs(serve_query, prefills, decodes, priced)
        unpaired = {d.choice.batch for d in decodes} - {way.decode.batch for way in slice_ways}
        slice_ways += _pairs(
            serve_query, prefills, leaner_decodes(serve_query, sorted(unpaired), prefills, priced), priced
        )
        ways += slice_ways
    return ways


def _pairs(
    serve_query: ServeQuery, prefills: Sequence[Candidate], decodes: Sequence[Candidate], priced: Priced
) -> list[Way]:
    """Return the ways of one slice's prefills, and of those that share a decode's weights, with each decode."""
    ways: list[Way] = []
    for alike in by_letters(decodes):
        for prefill, decode in product((*prefills, *sharing_prefills(serve_query, alike, prefills, priced)), alike):
            ways += ways_on_one(serve_query, decode.slice_, priced.plan(prefill), priced.plan(decode))
    return ways


def _proved(
    serve_query: ServeQuery, swept: Mapping[str, Sweep], priced: Priced, ways: list[Way], progress: Progress
) -> bool:
    """Add the pairs that CP-SAT finds, and return whether an interrupt ended it."""
    if serve_query.query.solver != CP_SAT:
        return False
    try:
        for slice_ in serve_query.query.slices:
            plans = ([priced.plan(candidate) for candidate in _of_slice(swept[phase], slice_)] for phase in PHASES)
            pairs = [(p, d) for p, d in product(*plans) if p.batch <= d.batch]
            slice_ways = [way for way in ways if way.together and way.decode.slice == slice_.name]
            for way in proved_ways(serve_query, slice_, pairs, slice_ways, progress):
                ways.append(way)
    except KeyboardInterrupt:
        if not ways:
            raise
        return True
    return False


def _of_slice(swept: Sweep, slice_: Slice) -> list[Candidate]:
    """Return the candidates of one slice."""
    return [candidate for candidate in swept.bests if candidate.slice_.name == slice_.name]


def _on_two(serve_query: ServeQuery, swept: Mapping[str, Sweep], priced: Priced, progress: Progress) -> list[Way]:
    """Return the ways of disaggregated serving."""
    if "disaggregated" not in serve_query.modes:
        return []
    progress("pairing prefill and decode slices")
    return list(ways_on_two(serve_query, swept["prefill"].bests, swept["decode"].bests, priced))


def _covered(swept: Mapping[str, Sweep], started: float, interrupted: bool) -> Search:
    """Describe the search of both phases."""
    proved_by = INTERRUPTED if interrupted else "exhaustive, each phase and batch alone"
    return covered(
        (result for phase_sweep in swept.values() for result in phase_sweep.results.values()), started, proved_by
    )


def _notes(serve_query: ServeQuery, ways: Sequence[Way], meeting: Sequence[Way]) -> tuple[str, ...]:
    """Return for every requested way to serve that was not found the reason."""
    notes = []
    for mode in serve_query.modes:
        mode_ways = [way for way in ways if way.mode == mode]
        if not mode_ways:
            notes.append(f"{mode}: {_why_none(mode)}")
        elif not any(way.mode == mode for way in meeting):
            notes.append(f"{mode}: {_closest(mode_ways, serve_query)}")
    return tuple(notes)


def _why_none(mode: str) -> str:
    """Return the reason why a mode has no way at all."""
    if mode in ON_ONE:
        return "no prefill and decode plan fit on one slice together"
    return "no pair of slices is within the most chips"


def _closest(ways: Sequence[Way], serve_query: ServeQuery) -> str:
    """Describe the best of the ways that miss fewest targets."""
    best = min(ways, key=lambda way: (len(way.missed(serve_query)), way.rank(serve_query)))
    latencies, targets = best.pace, serve_query.query.targets
    missed = ", ".join(targets.says(target) for target in best.missed(serve_query))
    return (
        f"none of {len(ways)} ways meets {missed}; the best has at worst "
        f"{latencies.worst_ttft_s * 1e3:.4g} ms to the first token, "
        f"{latencies.worst_per_token_s * 1e3:.4g} ms per token, and "
        f"{best.tokens_per_s(serve_query):.4g} tokens/s on {best.chips} chips"
    )


def _entry(way: Way, serve_query: ServeQuery, numbers: Mapping[int, int]) -> ServingEntry:
    """Return the way as an entry of the plan file."""
    tokens_per_s = way.tokens_per_s(serve_query)
    return ServingEntry(
        mode=way.mode,
        prefill=numbers[id(way.prefill)],
        decode=numbers[id(way.decode)],
        prefill_slices=way.prefill_slices,
        decode_slices=way.decode_slices,
        ratio=way.ratio,
        replicas=way.replicas,
        chips=way.chips,
        pace=way.pace,
        tokens_per_s=tokens_per_s,
        tokens_per_s_per_chip=tokens_per_s / way.chips,
        dollars_per_million_tokens=way.dollars(serve_query),
        transfer=way.transfer,
        together=way.together,
    )
