"""`plan --phase serve`: a prefill and a decode plan together, on one slice or on two, as the chapter compares them.

batched, interleaved    both plans on one slice: the best of every batch, and prefill layouts that share the decode's
                        weights (`serve.share`); all pairs that fit together
disaggregated           any two slices, also two of one kind: the cache goes over DCN
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import product
from pathlib import Path

from mesh.slices import Slice
from planner.best.candidate import Candidate, Sweep
from planner.best.solve import INTERRUPTED, NothingFits, make_plan
from planner.best.sweep import sweep
from planner.plan.file_serving import MODES, Serving, ServingEntry
from planner.plan.planfile import SCHEMA, PlanFile, Search
from planner.query.request import CP_SAT, EXHAUSTIVE, TWO, Progress
from planner.query.requested import model_of, programs_of
from planner.query.slices import chosen_slices
from planner.query.targets import Prices, Targets
from planner.search.problem import Found
from planner.serve.coupled import proved_ways
from planner.serve.request import ServeRequest, Way
from planner.serve.share import by_letters, leaner, sharing
from planner.serve.ways import Priced, numbered, shown, ways_on_one, ways_on_two
from planner.version import VERSION
from strategies.models.models import Model
from strategies.models.workload import Dtypes

DECODE_BATCHES = (1, 2, 4, 8, 16, 32, 64, 128, 256)
PREFILL_BATCHES = (1, 2, 4, 8, 16)
PHASES = ("prefill", "decode")
ON_ONE = ("batched", "interleaved")


def serve(
    model: Model | str | Path,
    slices: Sequence[Slice | str] | Slice | str = (),
    *,
    input_tokens: int,
    output_tokens: int,
    chips: Sequence[str] = (),
    chip_counts: tuple[int, int | None] | None = None,
    serving: Sequence[str] = MODES,
    batches: Sequence[int] | str = DECODE_BATCHES,
    prefill_batches: Sequence[int] = PREFILL_BATCHES,
    weights: str = "bf16",
    kv: str = "bf16",
    activations: str = "bf16",
    compute: str | None = None,
    objective: str = "throughput",
    targets: Targets | None = None,
    prices: Prices | None = None,
    programs: Sequence[str | Path] = (),
    top: int = 5,
    chip_file: str | Path | None = None,
    constants: str = "chip",
    cuts: str = TWO,
    workers: int | None = None,
    solver: str = EXHAUSTIVE,
    solver_seconds: float | None = None,
    progress: Callable[[str], None] = lambda _: None,
) -> PlanFile:
    """The best ways to serve prompts of `input_tokens` with `output_tokens` each: `serving` of the plan file.

    `slices`, and every legal slice of `chips` with a number of chips in `chip_counts`; `batches`: of decode, "auto":
    powers of two and the largest that fits each slice; `cuts`, `workers` and the rest as in `planner.api.plan`;
    `solver` "cp-sat": also pairs on one slice that share their weights, each solved within `solver_seconds`;
    `objective`: "throughput" (output tokens per second and chip), "latency" (seconds of a request) or "cost".
    Raises InputError on bad input and NothingFits where no way to serve fits or meets the targets.
    """
    request = ServeRequest(
        model=model_of(model),
        slices=chosen_slices(
            [slices] if isinstance(slices, str | Slice) else slices,
            chips,
            chip_counts,
            chip_file=chip_file,
            constants=constants,
            most_chips=targets.max_chips if targets else None,
        ),
        input=input_tokens,
        output=output_tokens,
        dtypes=Dtypes(weights=weights, kv=kv, activations=activations, compute=compute or activations),
        batches=(1,) if isinstance(batches, str) else tuple(batches),
        auto=batches == "auto",
        prefill_batches=tuple(prefill_batches),
        modes=tuple(dict.fromkeys(serving)),
        objective=objective,
        top=top,
        targets=targets or Targets(),
        prices=prices or {},
        programs=programs_of(programs),
        cuts=cuts,
        workers=workers,
        solver=solver,
        solver_seconds=solver_seconds,
    )
    return make_serving(request, VERSION, progress)


def make_serving(request: ServeRequest, version: str, progress: Progress = lambda _: None) -> PlanFile:
    """Search both phases and rank the ways to serve. Raises `NothingFits` where there is none."""
    started = time.perf_counter()
    swept = _swept(request, version, progress)
    priced = Priced(request)
    ways = [*_on_one(request, swept, priced, progress), *_on_two(request, swept, priced, progress)]
    interrupted = _proved(request, swept, priced, ways, progress)
    covered = _covered(swept, started, interrupted)
    meeting = [way for way in ways if not way.missed(request)]
    notes = _notes(request, ways, meeting)
    if not meeting and covered.proved_optimal == INTERRUPTED:
        raise KeyboardInterrupt
    if not meeting:
        raise NothingFits(f"{request.model.name}: " + "; ".join(notes), (), None, covered)
    kept = shown(meeting, request)
    plans, numbers = numbered(kept)
    return PlanFile(
        schema=SCHEMA,
        tool_version=version,
        objective=request.objective,
        plans=plans,
        rejected=(),
        search=covered,
        notes=notes,
        targets=request.targets.words,
        prices=dict(request.prices),
        serving=Serving(
            input=request.input,
            output=request.output,
            decode_context=request.context,
            entries=tuple(_entry(way, request, numbers) for way in kept),
        ),
    )


def _swept(request: ServeRequest, version: str, progress: Progress) -> dict[str, Sweep]:
    """Both phases' sweeps; an interrupt of the second leaves what was found, for the first alone serves nothing."""
    found = {}
    for phase in PHASES:
        found[phase] = sweep(request.of(phase), partial(_say, progress, phase))
        if phase == PHASES[0] and found[phase].interrupted:
            raise KeyboardInterrupt
        if not found[phase].bests:
            make_plan(request.of(phase), version)  # which says what is missing
    return found


def _say(progress: Progress, phase: str, text: str) -> None:
    progress(f"{phase}: {text}")


def _on_one(request: ServeRequest, swept: Mapping[str, Sweep], priced: Priced, progress: Progress) -> list[Way]:
    """All pairs on each slice of the best of every batch; decodes that fit no prefill are searched with less HBM."""
    ways: list[Way] = []
    for slice_ in request.slices if set(ON_ONE) & set(request.modes) else ():
        progress(f"pairing prefill and decode on {slice_.name}")
        prefills, decodes = (_of_slice(swept[phase], slice_) for phase in PHASES)
        here = _pairs(request, prefills, decodes, priced)
        without = {d.choice.batch for d in decodes} - {way.decode.batch for way in here}
        here += _pairs(request, prefills, leaner(request, sorted(without), prefills, priced), priced)
        ways += here
    return ways


def _pairs(
    request: ServeRequest, prefills: Sequence[Candidate], decodes: Sequence[Candidate], priced: Priced
) -> list[Way]:
    """The ways of one slice's prefills, and of those that share a decode's weights, with each decode."""
    ways: list[Way] = []
    for alike in by_letters(decodes):
        for prefill, decode in product((*prefills, *sharing(request, alike, prefills, priced)), alike):
            ways += ways_on_one(request, decode.slice_, priced.plan(prefill), priced.plan(decode))
    return ways


def _proved(
    request: ServeRequest, swept: Mapping[str, Sweep], priced: Priced, ways: list[Way], progress: Progress
) -> bool:
    """Add the pairs that CP-SAT finds; whether an interrupt ended it."""
    if request.solver != CP_SAT:
        return False
    try:
        for slice_ in request.slices:
            best = ([priced.plan(one) for one in _of_slice(swept[phase], slice_)] for phase in PHASES)
            pairs = [(p, d) for p, d in product(*best) if p.batch <= d.batch]
            here = [way for way in ways if way.together and way.decode.slice == slice_.name]
            for way in proved_ways(request, slice_, pairs, here, progress):
                ways.append(way)
    except KeyboardInterrupt:
        if not ways:
            raise
        return True
    return False


def _of_slice(swept: Sweep, slice_: Slice) -> list[Candidate]:
    return [one for one in swept.bests if one.slice_.name == slice_.name]


def _on_two(request: ServeRequest, swept: Mapping[str, Sweep], priced: Priced, progress: Progress) -> list[Way]:
    if "disaggregated" not in request.modes:
        return []
    progress("pairing prefill and decode slices")
    return list(ways_on_two(request, swept["prefill"].bests, swept["decode"].bests, priced))


def _covered(swept: Mapping[str, Sweep], started: float, interrupted: bool) -> Search:
    found: list[Found] = [one for each in swept.values() for one in each.found.values()]
    interrupted |= any(each.interrupted for each in swept.values())
    return Search(
        candidates=sum(one.candidates for one in found),
        evaluations=sum(one.evaluations for one in found),
        wall_s=time.perf_counter() - started,
        proved_optimal=INTERRUPTED if interrupted else "exhaustive, each phase and batch alone",
    )


def _notes(request: ServeRequest, ways: Sequence[Way], meeting: Sequence[Way]) -> tuple[str, ...]:
    """Of every way to serve that was asked for and not found: why not."""
    notes = []
    for mode in request.modes:
        every = [way for way in ways if way.mode == mode]
        if not every:
            notes.append(f"{mode}: {_why_none(mode)}")
        elif not any(way.mode == mode for way in meeting):
            notes.append(f"{mode}: {_closest(every, request)}")
    return tuple(notes)


def _why_none(mode: str) -> str:
    if mode in ON_ONE:
        return "no prefill and decode plan fit on one slice together"
    return "no pair of slices is within --max-chips"


def _closest(ways: Sequence[Way], request: ServeRequest) -> str:
    """The way that misses fewest targets, the best of these, and what it misses."""
    best = min(ways, key=lambda way: (len(way.missed(request)), way.rank(request)))
    pace = best.pace
    return (
        f"none of {len(ways)} ways meets {', '.join(best.missed(request))}; the best has at worst "
        f"{pace.worst_ttft_s * 1e3:.4g} ms to the first token, {pace.worst_per_token_s * 1e3:.4g} ms per token, and "
        f"{best.tokens_per_s(request):.4g} tokens/s on {best.chips} chips"
    )


def _entry(way: Way, request: ServeRequest, numbers: Mapping[int, int]) -> ServingEntry:
    tokens_per_s = way.tokens_per_s(request)
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
        dollars_per_million_tokens=way.dollars(request),
        transfer=way.transfer,
        together=way.together,
    )
