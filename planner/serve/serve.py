"""Serving: a prefill and a decode plan together, on one slice or on two, as the chapter compares them.

batched, interleaved    both plans on one slice: the best of every batch, and prefill layouts that share the decode's
                        weights (`serve.share`); all pairs that fit together
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
from planner.serve.share import by_letters, leaner, sharing
from planner.serve.ways import Priced, numbered, shown, ways_on_one, ways_on_two

PHASES = ("prefill", "decode")
ON_ONE = ("batched", "interleaved")


def make_serving(asked: ServeQuery, progress: Progress = silent) -> PlanFile:
    """Search both phases and rank the ways to serve. Raises `NothingFits` where there is none."""
    started = time.perf_counter()
    swept = _swept(asked, progress)
    priced = Priced(asked)
    ways = [*_on_one(asked, swept, priced, progress), *_on_two(asked, swept, priced, progress)]
    interrupted = _proved(asked, swept, priced, ways, progress) or any(each.interrupted for each in swept.values())
    search = _covered(swept, started, interrupted)
    meeting = [way for way in ways if not way.missed(asked)]
    notes = _notes(asked, ways, meeting)
    if not meeting and interrupted:
        raise KeyboardInterrupt
    if not meeting:
        raise NothingFits(f"{asked.query.model.name}: " + "; ".join(notes), (), None, search)
    kept = shown(meeting, asked)
    plans, numbers = numbered(kept)
    return PlanFile(
        schema=SCHEMA,
        tool_version=VERSION,
        objective=asked.query.objective,
        plans=plans,
        rejected=(),
        search=search,
        notes=notes,
        targets=asked.query.targets.words,
        prices=dict(asked.query.prices),
        serving=Serving(
            input=asked.input,
            output=asked.output,
            decode_context=asked.context,
            entries=tuple(_entry(way, asked, numbers) for way in kept),
        ),
    )


def _swept(asked: ServeQuery, progress: Progress) -> dict[str, Sweep]:
    """Both phases' sweeps; an interrupt of the second leaves what was found, for the first alone serves nothing."""
    candidates = {}
    for phase in PHASES:
        candidates[phase] = sweep(asked.of(phase), partial(_say, progress, phase))
        if phase == PHASES[0] and candidates[phase].interrupted:
            raise KeyboardInterrupt
        if not candidates[phase].bests:
            query, now = asked.of(phase), time.perf_counter()
            raise nothing_fits(query, candidates[phase].found, candidates[phase].covered(now, now))
    return candidates


def _say(progress: Progress, phase: str, text: str) -> None:
    progress(f"{phase}: {text}")


def _on_one(asked: ServeQuery, swept: Mapping[str, Sweep], priced: Priced, progress: Progress) -> list[Way]:
    """All pairs on each slice of the best of every batch; decodes that fit no prefill are searched with less HBM."""
    ways: list[Way] = []
    for slice_ in asked.query.slices if set(ON_ONE) & set(asked.modes) else ():
        progress(f"pairing prefill and decode on {slice_.name}")
        prefills, decodes = (_of_slice(swept[phase], slice_) for phase in PHASES)
        here = _pairs(asked, prefills, decodes, priced)
        without = {d.choice.batch for d in decodes} - {way.decode.batch for way in here}
        here += _pairs(asked, prefills, leaner(asked, sorted(without), prefills, priced), priced)
        ways += here
    return ways


def _pairs(asked: ServeQuery, prefills: Sequence[Candidate], decodes: Sequence[Candidate], priced: Priced) -> list[Way]:
    """The ways of one slice's prefills, and of those that share a decode's weights, with each decode."""
    ways: list[Way] = []
    for alike in by_letters(decodes):
        for prefill, decode in product((*prefills, *sharing(asked, alike, prefills, priced)), alike):
            ways += ways_on_one(asked, decode.slice_, priced.plan(prefill), priced.plan(decode))
    return ways


def _proved(asked: ServeQuery, swept: Mapping[str, Sweep], priced: Priced, ways: list[Way], progress: Progress) -> bool:
    """Add the pairs that CP-SAT finds; whether an interrupt ended it."""
    if asked.query.solver != CP_SAT:
        return False
    try:
        for slice_ in asked.query.slices:
            best = ([priced.plan(one) for one in _of_slice(swept[phase], slice_)] for phase in PHASES)
            pairs = [(p, d) for p, d in product(*best) if p.batch <= d.batch]
            here = [way for way in ways if way.together and way.decode.slice == slice_.name]
            for way in proved_ways(asked, slice_, pairs, here, progress):
                ways.append(way)
    except KeyboardInterrupt:
        if not ways:
            raise
        return True
    return False


def _of_slice(swept: Sweep, slice_: Slice) -> list[Candidate]:
    return [one for one in swept.bests if one.slice_.name == slice_.name]


def _on_two(asked: ServeQuery, swept: Mapping[str, Sweep], priced: Priced, progress: Progress) -> list[Way]:
    if "disaggregated" not in asked.modes:
        return []
    progress("pairing prefill and decode slices")
    return list(ways_on_two(asked, swept["prefill"].bests, swept["decode"].bests, priced))


def _covered(swept: Mapping[str, Sweep], started: float, interrupted: bool) -> Search:
    how = INTERRUPTED if interrupted else "exhaustive, each phase and batch alone"
    return covered((one for each in swept.values() for one in each.found.values()), started, how)


def _notes(asked: ServeQuery, ways: Sequence[Way], meeting: Sequence[Way]) -> tuple[str, ...]:
    """Return, for every way to serve that was asked for and not found, the reason."""
    notes = []
    for mode in asked.modes:
        every = [way for way in ways if way.mode == mode]
        if not every:
            notes.append(f"{mode}: {_why_none(mode)}")
        elif not any(way.mode == mode for way in meeting):
            notes.append(f"{mode}: {_closest(every, asked)}")
    return tuple(notes)


def _why_none(mode: str) -> str:
    if mode in ON_ONE:
        return "no prefill and decode plan fit on one slice together"
    return "no pair of slices is within the most chips"


def _closest(ways: Sequence[Way], asked: ServeQuery) -> str:
    """The way that misses fewest targets, the best of these, and what it misses."""
    best = min(ways, key=lambda way: (len(way.missed(asked)), way.rank(asked)))
    pace, targets = best.pace, asked.query.targets
    missed = ", ".join(targets.says(target) for target in best.missed(asked))
    return (
        f"none of {len(ways)} ways meets {missed}; the best has at worst "
        f"{pace.worst_ttft_s * 1e3:.4g} ms to the first token, {pace.worst_per_token_s * 1e3:.4g} ms per token, and "
        f"{best.tokens_per_s(asked):.4g} tokens/s on {best.chips} chips"
    )


def _entry(way: Way, asked: ServeQuery, numbers: Mapping[int, int]) -> ServingEntry:
    tokens_per_s = way.tokens_per_s(asked)
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
        dollars_per_million_tokens=way.dollars(asked),
        transfer=way.transfer,
        together=way.together,
    )
