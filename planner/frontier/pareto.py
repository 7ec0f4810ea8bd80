"""Find the Pareto front of step latency, throughput per chip, and cost, over slices and batches (`pareto`)."""

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
    """Search every slice and batch, and return the candidates that meet the targets and are not dominated, by latency.

    An interrupt gives the frontier of the results so far. Raises `NothingFits` where nothing fits or meets the targets.

    A candidate dominates another that is no better in step seconds, tokens/s per chip and, with prices, dollars per
    million tokens. `Frontier.points` has one point per plan.
    """
    query.check_targets()
    query = replace(query, slices=in_order(query.slices))
    started = time.perf_counter()
    swept = sweep(query, progress)
    covered = swept.covered(started, time.perf_counter())
    if not swept.bests:
        raise nothing_fits(query, swept.results, covered)
    meeting = [c for c in swept.bests if not query.targets.missed(c)]
    if not meeting and swept.interrupted:
        raise KeyboardInterrupt
    if not meeting:
        raise NothingFits(why_none(swept.bests, query), (), None, covered)
    points = [point_of(candidate, query.prices) for candidate in meeting]
    front = undominated(points)
    best_points = [msgspec.structs.replace(points[n], best_of=_best_of(points[n], points)) for n in front]
    dominated = sorted((points[n] for n in range(len(points)) if n not in set(front)), key=_order)
    return PlanFile(
        schema=SCHEMA,
        tool_version=VERSION,
        objective=OBJECTIVE,
        plans=tuple(price_candidate(meeting[n], query) for n in front),
        rejected=(),
        search=covered,
        notes=_notes(query, swept),
        targets=query.targets.words,
        prices=dict(query.prices),
        frontier=Frontier(
            axes=(LATENCY, THROUGHPUT, *([COST] if query.prices else [])),
            points=tuple(best_points),
            dominated=tuple(dominated),
            missed=len(swept.bests) - len(meeting),
        ),
    )


def _notes(query: Query, swept: Sweep) -> tuple[str, ...]:
    """Return notes on slices that were not searched, and on those on which nothing fits."""
    fitting = {candidate.slice_.name for candidate in swept.bests}
    names = [slice_.name for slice_ in query.slices]
    unsearched = [name for name in names if name not in swept.results]
    unfit = [name for name in names if name in swept.results and name not in fitting]
    notes = [f"interrupted: {', '.join(unsearched)} not searched"] if unsearched else []
    if unfit:
        notes.append(f"no layout fits any of the batches on {', '.join(unfit)}")
    return tuple(notes)


def point_of(candidate: Candidate, prices: Prices) -> Point:
    """Return the candidate as a point: seconds, tokens/s and, where its chip has a price, dollars."""
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
    """Return the places of the points that none dominates, by latency; of equal points the smallest slice's."""
    in_order = sorted(range(len(points)), key=lambda n: _order(points[n]))
    return unbeaten(in_order, lambda n: values_of(points[n]))


def values_of(point: Point) -> tuple[float, ...]:
    """Return the values to minimise: seconds, the negative throughput, and dollars (0 where there is no price)."""
    return (
        _rounded(point.step_s),
        -_rounded(point.tokens_per_s_per_chip),
        _rounded(point.dollars_per_million_tokens or 0.0),
    )


def _rounded(value: float) -> float:
    """Round a value to 12 digits."""
    return float(f"{value:.{_DIGITS}g}")


def _order(point: Point) -> tuple[object, ...]:
    """Return the sort key of a point: its values, then chips, slice and batch."""
    return (*values_of(point), point.chips, point.slice, point.batch)


def _best_of(point: Point, points: Sequence[Point]) -> tuple[str, ...]:
    """Return the objectives of which no point has a better value."""
    least_values = [min(column) for column in zip(*map(values_of, points), strict=True)]
    names = (LATENCY, THROUGHPUT, *([COST] if point.dollars_per_million_tokens is not None else []))
    return tuple(
        name for name, value, best in zip(names, values_of(point), least_values, strict=False) if value == best
    )
