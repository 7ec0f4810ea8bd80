"""`pareto`: step latency against throughput per chip, and cost, over slices and batches: what no other choice beats."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace

import msgspec

from mesh.version import VERSION
from planner.best.nothing import NothingFits, nothing_fits, why_none
from planner.best.sweep import Sweep, sweep
from planner.plan.planfile import COST, LATENCY, SCHEMA, THROUGHPUT, Frontier, PlanFile, Point
from planner.query.query import Progress, Query, silent
from planner.query.slices import in_order
from planner.query.targets import Prices
from planner.search.candidate import Candidate, price_candidate
from planner.search.pareto import undominated as unbeaten

OBJECTIVE = "frontier"
_DIGITS = 12  # values that agree to so many digits are equal, as in the search


def make_frontier(query: Query, progress: Progress = silent) -> PlanFile:
    """Search every slice and batch, and keep what no other candidate beats that meets the targets, by latency.

    An interrupt leaves the frontier of what was found. Raises `NothingFits` where nothing fits or meets the targets.
    """
    query.check_targets()
    query = replace(query, slices=in_order(query.slices))
    started = time.perf_counter()
    swept = sweep(query, progress)
    covered = swept.covered(started, time.perf_counter())
    if not swept.bests:
        raise nothing_fits(query, swept.found, covered)
    meets = [c for c in swept.bests if not query.targets.missed(c)]
    if not meets and swept.interrupted:
        raise KeyboardInterrupt
    if not meets:
        raise NothingFits(why_none(swept.bests, query), (), None, covered)
    points = [point_of(candidate, query.prices) for candidate in meets]
    kept = undominated(points)
    best = [msgspec.structs.replace(points[n], best_of=_best_of(points[n], points)) for n in kept]
    beaten = sorted((points[n] for n in range(len(points)) if n not in set(kept)), key=_order)
    return PlanFile(
        schema=SCHEMA,
        tool_version=VERSION,
        objective=OBJECTIVE,
        plans=tuple(price_candidate(meets[n], query) for n in kept),
        rejected=(),
        search=covered,
        notes=_notes(query, swept),
        targets=query.targets.words,
        prices=dict(query.prices),
        frontier=Frontier(
            axes=(LATENCY, THROUGHPUT, *([COST] if query.prices else [])),
            points=tuple(best),
            dominated=tuple(beaten),
            missed=len(swept.bests) - len(meets),
        ),
    )


def _notes(query: Query, swept: Sweep) -> tuple[str, ...]:
    """Slices that were not reached, and those on which nothing fits."""
    fitting = {candidate.slice_.name for candidate in swept.bests}
    names = [slice_.name for slice_ in query.slices]
    late = [name for name in names if name not in swept.found]
    never = [name for name in names if name in swept.found and name not in fitting]
    notes = [f"interrupted: {', '.join(late)} not searched"] if late else []
    if never:
        notes.append(f"no layout fits any of the batches on {', '.join(never)}")
    return tuple(notes)


def point_of(candidate: Candidate, prices: Prices) -> Point:
    """The candidate's place: seconds, tokens and, where its chip has a price, dollars."""
    return Point(
        slice=candidate.slice_.name,
        chips=candidate.slice_.chips,
        batch=candidate.choice.batch,
        step_s=candidate.choice.step_s,
        tokens_per_s=candidate.tokens_per_s,
        tokens_per_s_per_chip=candidate.tokens_per_s_per_chip,
        dollars_per_million_tokens=candidate.dollars(prices),
    )


def undominated(points: Sequence[Point]) -> list[int]:
    """The places of the points that none beats, by latency; of equal points the smallest slice's."""
    in_order = sorted(range(len(points)), key=lambda n: _order(points[n]))
    return unbeaten(in_order, lambda n: values_of(points[n]))


def values_of(point: Point) -> tuple[float, ...]:
    """Return the values to minimise: seconds, the throughput's negative, and dollars (0 where there is no price)."""
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
    return tuple(name for name, value, best in zip(names, values_of(point), least, strict=False) if value == best)
