"""A sweep: the best layout of every slice and batch of a query; questions across slices start from it."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from mesh.slices import Slice
from planner.parallel import in_parallel
from planner.plan.file_proof import Solver, proved
from planner.plan.planfile import INTERRUPTED, Example, Rejected, Search
from planner.query.query import CP_SAT, EXHAUSTIVE, Progress, Query, silent
from planner.search.candidate import Candidate, problem_of
from planner.search.meshes import meshes
from planner.search.problem import OVER_MEMORY, Problem, SearchResult
from planner.search.residuals import CODES
from planner.search.search import search


@dataclass(frozen=True)
class Sweep:
    """The search results by slice name, and the best candidate of every slice and batch that has one.

    `solver`: what CP-SAT proved, where it chose; None: the search was exhaustive. `interrupted`: not all was searched.
    """

    found: Mapping[str, SearchResult]
    bests: tuple[Candidate, ...]
    solver: Solver | None = None
    interrupted: bool = False

    def covered(self, started: float, searched: float, again: SearchResult | None = None) -> Search:
        """Return the coverage of the search, as the plan file states it.

        `started`, `searched`: `time.perf_counter()` at the start and when the search was over; `again`: a second
        search, for the runners-up.
        """
        how = proved(self.solver) if self.solver else EXHAUSTIVE
        results = self.found.values()
        return covered(results, started, INTERRUPTED if self.interrupted and not self.solver else how, searched, again)


def covered(
    results: Iterable[SearchResult],
    started: float,
    proved_by: str,
    searched: float | None = None,
    again: SearchResult | None = None,
) -> Search:
    """Return the coverage of several searches; without `searched` no evaluations per second are stated."""
    results = tuple(results)
    evaluations = sum(one.evaluations for one in results)
    return Search(
        candidates=sum(one.candidates for one in results),
        evaluations=evaluations + (again.evaluations if again else 0),
        wall_s=time.perf_counter() - started,
        proved_optimal=proved_by,
        evaluations_per_s=0.0 if searched is None else evaluations / max(searched - started, 1e-9),
    )


def sweep(query: Query, progress: Progress = silent) -> Sweep:
    """Search every slice and batch of the query; by slice, then batch.

    An interrupt ends it with what was found so far; a `KeyboardInterrupt` where that is nothing.
    """
    if query.solver == CP_SAT:
        from planner.best.cpsat_sweep import sweep_coupled

        return sweep_coupled(query, progress)
    problems: list[Problem] = []
    searched: dict[str, SearchResult] = {}
    try:
        asked = [(query, slice_) for slice_ in query.slices]
        results = in_parallel(asked, search_slice, query.workers, _work)
        for slice_ in query.slices:
            progress(f"searching {slice_.name}")
            problem, one = next(results)
            problems.append(problem)
            searched[problem.slice_.name] = one
            if one.interrupted:
                raise KeyboardInterrupt
    except KeyboardInterrupt:
        if not any(cs for one in searched.values() for cs in one.choices.values()):
            raise
    bests = [
        Candidate(problem.slice_, problem, c)
        for problem in problems
        for choices in searched[problem.slice_.name].choices.values()
        for c in choices[:1]
    ]
    interrupted = len(searched) < len(query.slices) or any(one.interrupted for one in searched.values())
    return Sweep(searched, tuple(bests), interrupted=interrupted)


def _work(asked: tuple[Query, Slice]) -> float:
    """About how long the search of a slice takes, in some unit: as long as it has residuals, over all meshes."""
    query, slice_ = asked
    return float(sum(len(CODES) ** len(mesh) for mesh in meshes(slice_, query.cuts)))


def search_slice(asked: tuple[Query, Slice]) -> tuple[Problem, SearchResult]:
    """A slice's problem and the best layout of every batch."""
    problem = problem_of(*asked)
    return problem, search_best(problem)


def search_best(problem: Problem) -> SearchResult:
    """The best layout of every batch."""
    return search(problem, 1)


def rejected(results: Mapping[str, SearchResult]) -> tuple[Rejected, ...]:
    """Assignments that were ruled out on all slices, by component and reason, with the first example of each."""
    grouped: dict[str, tuple[int, Example]] = {}
    for one in results.values():
        for (component, reason), (count, example) in one.rejected.items():
            key = f"{component}: {reason}"
            before, first = grouped.get(key, (0, _example(reason, example)))
            grouped[key] = (before + count, first)
    return tuple(Rejected(reason=k, count=n, example=e) for k, (n, e) in sorted(grouped.items()))


def _example(reason: str, numbers: Mapping[str, float]) -> Example:
    if reason == OVER_MEMORY:
        need, have = f"{numbers['bytes'] / 1e9:.2f} GB per device", f"{numbers['usable'] / 1e9:.2f} GB"
        return Example(need=need, have=have)
    dims = [f"{name} = {value:.0f}" for name, value in numbers.items() if name != "ways"]
    return Example(need=f"a multiple of {numbers['ways']:.0f}", have=", ".join(dims) or "the batch")
