"""One problem by CP-SAT alone, also without the bounds that leave states out."""

from planner.cpsat.rows import mesh_searches
from planner.cpsat.single import solve_batch
from planner.plan.file_proof import Proof
from planner.search.problem import Choice, Problem, SearchResult


def solve_coupled(
    problem: Problem, seconds: float | None = None, *, cutoff: bool = True
) -> tuple[Choice | None, Proof]:
    """The best layout of a problem with one batch, proved by CP-SAT, or the best within `seconds` of solving.

    `cutoff=False` leaves every state to the solver, also those that bounds exclude. None where nothing fits (status
    `infeasible`) or nothing was found in time (`unknown`).
    """
    (batch,) = problem.work.batches
    return solve_batch(mesh_searches(problem, SearchResult()), batch, seconds, cutoff)
