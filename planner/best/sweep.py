"""Find the best layout of every slice and batch of a query; questions across slices start from this sweep."""

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

    `solver` has CP-SAT's proofs, where it chose; None means an exhaustive search. `interrupted` is true where not all
    was searched.
    """

    results: Mapping[str, SearchResult]
    bests: tuple[Candidate, ...]
    solver: Solver | None = None
    interrupted: bool = False

    def covered(self, started: float, searched: float, second_search: SearchResult | None = None) -> Search:
        """Describe the search, as the plan file states it.

        `started` and `searched` are `time.perf_counter()` at the start and when the search was over; `second_search` is
        that for the runners-up.
        """
        proved_by = proved(self.solver) if self.solver else EXHAUSTIVE
        results = self.results.values()
        return covered(
            results,
            started,
            INTERRUPTED if self.interrupted and not self.solver else proved_by,
            searched,
            second_search,
        )


def covered(
    results: Iterable[SearchResult],
    started: float,
    proved_by: str,
    searched: float | None = None,
    second_search: SearchResult | None = None,
) -> Search:
    """Describe what searches covered, as the plan file states it.

    Without `searched` the evaluations per second are 0.
    """
    results = tuple(results)
    evaluations = sum(result.evaluations for result in results)
    return Search(
        candidates=sum(result.candidates for result in results),
        evaluations=evaluations + (second_search.evaluations if second_search else 0),
        wall_s=time.perf_counter() - started,
        proved_optimal=proved_by,
        evaluations_per_s=0.0 if searched is None else evaluations / max(searched - started, 1e-9),
    )


def sweep(query: Query, progress: Progress = silent) -> Sweep:
    """Search every slice and batch of the query, by slice and then batch.

    An interrupt ends it with the results so far; where there are none, `KeyboardInterrupt` is raised.

    Slices are searched in `query.workers` processes, the largest searches first; the result does not depend on their
    number. With the solver "cp-sat" each slice and batch is solved instead (`sweep_coupled`).
    """
    if query.solver == CP_SAT:
        from planner.best.cpsat_sweep import sweep_coupled

        return sweep_coupled(query, progress)
    problems: list[Problem] = []
    by_slice: dict[str, SearchResult] = {}
    try:
        items = [(query, slice_) for slice_ in query.slices]
        searched = in_parallel(items, search_slice, query.workers, _work)
        for slice_ in query.slices:
            progress(f"searching {slice_.name}")
            problem, result = next(searched)
            problems.append(problem)
            by_slice[problem.slice_.name] = result
            if result.interrupted:
                raise KeyboardInterrupt
    except KeyboardInterrupt:
        if not any(cs for result in by_slice.values() for cs in result.choices.values()):
            raise
    bests = [
        Candidate(problem.slice_, problem, c)
        for problem in problems
        for choices in by_slice[problem.slice_.name].choices.values()
        for c in choices[:1]
    ]
    interrupted = len(by_slice) < len(query.slices) or any(result.interrupted for result in by_slice.values())
    return Sweep(by_slice, tuple(bests), interrupted=interrupted)


def _work(item: tuple[Query, Slice]) -> float:
    """Return a number that grows with the time to search a slice: its residuals, over all meshes."""
    query, slice_ = item
    return float(sum(len(CODES) ** len(mesh) for mesh in meshes(slice_, query.cuts)))


def search_slice(item: tuple[Query, Slice]) -> tuple[Problem, SearchResult]:
    """Return a slice's problem and the best layout of every batch; the argument is a (query, slice) pair."""
    problem = problem_of(*item)
    return problem, search_best(problem)


def search_best(problem: Problem) -> SearchResult:
    """Return the best layout of every batch of a problem."""
    return search(problem, 1)


def rejected(results: Mapping[str, SearchResult]) -> tuple[Rejected, ...]:
    """Return the assignments that were excluded on all slices, by component and reason, with one example of each."""
    grouped: dict[str, tuple[int, Example]] = {}
    for result in results.values():
        for (component, reason), (count, example) in result.rejected.items():
            key = f"{component}: {reason}"
            before, first = grouped.get(key, (0, _example(reason, example)))
            grouped[key] = (before + count, first)
    return tuple(Rejected(reason=k, count=n, example=e) for k, (n, e) in sorted(grouped.items()))


def _example(reason: str, numbers: Mapping[str, float]) -> Example:
    """Return the example of an exclusion in words."""
    if reason == OVER_MEMORY:
        need, have = f"{numbers['bytes'] / 1e9:.2f} GB per device", f"{numbers['usable'] / 1e9:.2f} GB"
        return Example(need=need, have=have)
    dims = [f"{name} = {value:.0f}" for name, value in numbers.items() if name != "ways"]
    return Example(need=f"a multiple of {numbers['ways']:.0f}", have=", ".join(dims) or "the batch")
