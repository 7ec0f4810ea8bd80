"""Find the best layout of every slice and batch by the CP-SAT model, with a proof of each."""

from __future__ import annotations

from planner.best.sweep import Sweep
from planner.cpsat.rows import mesh_searches
from planner.cpsat.single import solve_batch
from planner.plan.file_proof import Solved, Solver
from planner.query.query import CP_SAT, Progress, Query, silent
from planner.search.candidate import Candidate, problem_of
from planner.search.mesh_search import MeshSearch
from planner.search.problem import SearchResult


def sweep_coupled(query: Query, progress: Progress = silent) -> Sweep:
    """Solve every slice and batch of the query, by slice and then batch.

    An interrupt ends it with the results so far; where there are none, `KeyboardInterrupt` is raised.
    """
    results: dict[str, SearchResult] = {}
    bests: list[Candidate] = []
    solved: list[Solved] = []
    try:
        for slice_ in query.slices:
            results[slice_.name] = SearchResult()
            progress(f"pricing {slice_.name}")
            problem = problem_of(query, slice_)
            priced = mesh_searches(problem, results[slice_.name])
            for batch in dict.fromkeys(problem.work.batches):
                progress(f"solving {slice_.name} at batch {batch}")
                choice, proof = solve_batch(priced, batch, query.solver_seconds)
                _note(results[slice_.name], priced, batch)
                results[slice_.name].choices[batch] = [choice] if choice else []
                bests += [Candidate(slice_, problem, choice)] if choice else []
                solved.append(Solved(slice=slice_.name, batch=batch, proof=proof))
                if proof.interrupted:
                    raise KeyboardInterrupt
    except KeyboardInterrupt:
        if not bests:
            raise
        interrupted = True
    else:
        interrupted = False
    seconds = query.solver_seconds
    solver = Solver(name=CP_SAT, seconds=seconds, solved=tuple(solved), interrupted=interrupted)
    return Sweep(results, tuple(bests), solver, interrupted)


def _note(result: SearchResult, priced: list[MeshSearch], batch: int) -> None:
    """Note the least bytes of a batch, and count the assignments that exceed the usable HBM."""
    for mesh_search in priced:
        for column, (column_batch, _) in enumerate(mesh_search.pairs):
            if column_batch == batch:
                result.least_bytes[batch] = min(
                    mesh_search.least_bytes([column])[0], result.least_bytes.get(batch, float("inf"))
                )
                mesh_search.count_over_memory(column, result)
