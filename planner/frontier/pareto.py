"""`pareto`: step latency against throughput per chip, and cost, over slices and batches: what no other choice beats."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import msgspec

from mesh.slices import Slice
from planner.best.candidate import Candidate, Sweep, price_candidate
from planner.best.meeting import check_phase, meeting, why_none
from planner.best.solve import INTERRUPTED, NothingFits, make_plan
from planner.best.sweep import sweep
from planner.plan.file_frontier import COST, LATENCY, THROUGHPUT, Frontier, Point
from planner.plan.planfile import SCHEMA, PlanFile, Search
from planner.query.request import EXHAUSTIVE, Progress, Request
from planner.query.requested import request_of
from planner.query.targets import Prices, Targets, dollars_per_million_tokens, price_of
from planner.version import VERSION
from strategies.models.models import Model

OBJECTIVE = "frontier"
_DIGITS = 12  # values that agree to so many digits are equal, as in the search


def pareto(
    model: Model | str | Path,
    slices: Sequence[Slice | str] | Slice | str = (),
    *,
    chips: Sequence[str] | str = (),
    chip_counts: tuple[int, int | None] | None = None,
    phase: str = "decode",
    batches: Sequence[int] | str | None = "auto",
    context: int = 8192,
    weights: str = "bf16",
    kv: str = "bf16",
    activations: str = "bf16",
    compute: str | None = None,
    fix: Mapping[str, Mapping[str, str]] | None = None,
    programs: Sequence[str | Path] = (),
    targets: Targets | None = None,
    prices: Prices | None = None,
    cuts: str = "two",
    workers: int | None = None,
    chip_file: str | Path | None = None,
    constants: str = "chip",
    progress: Callable[[str], None] = lambda _: None,
) -> PlanFile:
    """The frontier of latency, throughput per chip and (with `prices`) cost over slices and batches, by latency.

    Its plans are the points, and `frontier` says what each is the best of and what was dominated; all else is as in
    `plan`. Raises InputError on bad input and NothingFits where no layout fits or none meets the targets.
    """
    request = request_of(
        model,
        slices,
        chips=chips,
        chip_counts=chip_counts,
        phase=phase,
        batches=batches,
        context=context,
        dtypes=(weights, kv, activations, compute),
        fix=fix,
        programs=programs,
        targets=targets,
        prices=prices,
        cuts=cuts,
        workers=workers,
        chip_file=chip_file,
        constants=constants,
    )
    return make_frontier(request, VERSION, progress)


def make_frontier(request: Request, version: str, progress: Progress = lambda _: None) -> PlanFile:
    """Search every slice and batch, and keep what no other candidate beats that meets the targets, by latency.

    An interrupt leaves the frontier of what was found. Raises `NothingFits` where nothing fits or meets the targets.
    """
    check_phase(request)
    started = time.perf_counter()
    swept = sweep(request, progress)
    search = _covered(swept, started)
    if not swept.bests:
        make_plan(replace(request, workers=1, top=1), version)  # which says why nothing fits
    meets = meeting(swept.bests, request)
    if not meets and swept.interrupted:
        raise KeyboardInterrupt
    if not meets:
        raise NothingFits(why_none(swept.bests, request), (), None, search)
    points = [point_of(candidate, request.prices) for candidate in meets]
    kept = undominated(points)
    best = [msgspec.structs.replace(points[n], best_of=_best_of(points[n], points)) for n in kept]
    beaten = sorted((points[n] for n in range(len(points)) if n not in set(kept)), key=_order)
    return PlanFile(
        schema=SCHEMA,
        tool_version=version,
        objective=OBJECTIVE,
        plans=tuple(price_candidate(meets[n], request) for n in kept),
        rejected=(),
        search=search,
        notes=_notes(request, swept),
        targets=request.targets.words,
        prices=dict(request.prices),
        frontier=Frontier(
            axes=(LATENCY, THROUGHPUT, *([COST] if request.prices else [])),
            points=tuple(best),
            dominated=tuple(beaten),
            missed=len(swept.bests) - len(meets),
        ),
    )


def _covered(swept: Sweep, started: float) -> Search:
    wall_s = time.perf_counter() - started
    evaluations = sum(found.evaluations for found in swept.found.values())
    return Search(
        candidates=sum(found.candidates for found in swept.found.values()),
        evaluations=evaluations,
        wall_s=wall_s,
        proved_optimal=INTERRUPTED if swept.interrupted else EXHAUSTIVE,
        evaluations_per_s=evaluations / max(wall_s, 1e-9),
    )


def _notes(request: Request, swept: Sweep) -> tuple[str, ...]:
    """Slices that were not reached, and those on which nothing fits."""
    fitting = {candidate.slice_.name for candidate in swept.bests}
    names = [slice_.name for slice_ in request.slices]
    late = [name for name in names if name not in swept.found]
    never = [name for name in names if name in swept.found and name not in fitting]
    notes = [f"interrupted: {', '.join(late)} not searched"] if late else []
    if never:
        notes.append(f"no layout fits any of the batches on {', '.join(never)}")
    return tuple(notes)


def point_of(candidate: Candidate, prices: Prices) -> Point:
    """The candidate's place: seconds, tokens and, where its chip has a price, dollars."""
    price, speed = price_of(prices, candidate.slice_.chip.name), candidate.tokens_per_s_per_chip
    return Point(
        slice=candidate.slice_.name,
        chips=candidate.slice_.chips,
        batch=candidate.choice.batch,
        step_s=candidate.choice.step_s,
        tokens_per_s=candidate.tokens_per_s,
        tokens_per_s_per_chip=speed,
        dollars_per_million_tokens=None if price is None else dollars_per_million_tokens(price, speed),
    )


def undominated(points: Sequence[Point]) -> list[int]:
    """The places of the points that none beats, by latency; of equal points the smallest slice's."""
    kept: list[int] = []
    for number in sorted(range(len(points)), key=lambda n: _order(points[n])):
        values = values_of(points[number])
        if not any(all(a <= b for a, b in zip(values_of(points[k]), values, strict=True)) for k in kept):
            kept.append(number)
    return kept


def values_of(point: Point) -> tuple[float, ...]:
    """What is to be small: seconds, the throughput's negative, and dollars (0 where there is no price)."""
    return (
        _rounded(point.step_s),
        -_rounded(point.tokens_per_s_per_chip),
        _rounded(point.dollars_per_million_tokens or 0.0),
    )


def _rounded(value: float) -> float:
    return float(f"{value:.{_DIGITS}g}")


def _order(point: Point) -> tuple[object, ...]:
    return (*values_of(point), point.chips, point.slice, point.batch)


def _best_of(point: Point, points: Sequence[Point]) -> tuple[str, ...]:
    least = [min(column) for column in zip(*map(values_of, points), strict=True)]
    names = (LATENCY, THROUGHPUT, *([COST] if point.dollars_per_million_tokens is not None else []))
    return tuple(name for name, mine, best in zip(names, values_of(point), least, strict=False) if mine == best)
