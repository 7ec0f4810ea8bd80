"""A sweep: the best layout of every slice and batch that a request names; questions across slices start from it."""

from __future__ import annotations

from mesh.slices import Slice
from planner.best.candidate import Candidate, Sweep, problem_of
from planner.parallel import in_parallel
from planner.query.request import CP_SAT, Progress, Request
from planner.search.meshes import meshes
from planner.search.problem import Found, Problem
from planner.search.residuals import CODES
from planner.search.search import search


def sweep(request: Request, progress: Progress = lambda _: None) -> Sweep:
    """Search every slice and batch of the request; by slice, then batch.

    An interrupt ends it with what was found so far; a `KeyboardInterrupt` where that is nothing.
    """
    if request.solver == CP_SAT:
        from planner.cpsat.sweep import sweep_coupled

        return sweep_coupled(request, progress)
    problems: list[Problem] = []
    found: dict[str, Found] = {}
    try:
        asked = [(request, slice_) for slice_ in request.slices]
        results = in_parallel(asked, search_slice, request.workers, _work)
        for slice_ in request.slices:
            progress(f"searching {slice_.name}")
            problem, one = next(results)
            problems.append(problem)
            found[problem.slice_.name] = one
            if one.interrupted:
                raise KeyboardInterrupt
    except KeyboardInterrupt:
        if not any(cs for one in found.values() for cs in one.choices.values()):
            raise
    bests = [
        Candidate(problem.slice_, problem, c)
        for problem in problems
        for choices in found[problem.slice_.name].choices.values()
        for c in choices[:1]
    ]
    interrupted = len(found) < len(request.slices) or any(one.interrupted for one in found.values())
    return Sweep(found, tuple(bests), interrupted=interrupted)


def _work(asked: tuple[Request, Slice]) -> float:
    """About how long the search of a slice takes, in some unit: as long as it has residuals, over all meshes."""
    request, slice_ = asked
    return float(sum(len(CODES) ** len(mesh) for mesh in meshes(slice_, request.cuts)))


def search_slice(asked: tuple[Request, Slice]) -> tuple[Problem, Found]:
    """A slice's problem and the best layout of every batch."""
    problem = problem_of(*asked)
    return problem, search_best(problem)


def search_best(problem: Problem) -> Found:
    """The best layout of every batch."""
    return search(problem, 1)
