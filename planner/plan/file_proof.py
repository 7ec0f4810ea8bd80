"""Define the proof that a solver gives about a choice, as plan files state it, and put it in words."""

from __future__ import annotations

from collections.abc import Sequence

from planner.plan.plan import Value

OPTIMAL, FEASIBLE, INFEASIBLE, UNKNOWN = "optimal", "feasible", "infeasible", "unknown"
"""Status of every proof: the end of the solver's run."""


class Proof(Value, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A solver's proof: `optimal`, `infeasible` (nothing fits), or the state when it was ended.

    `feasible`: the objective is the best so far, and no layout takes less than the bound; `gap` is their difference as
    a share of the objective. `unknown`: there was no layout yet. `variables` counts those of the model.
    """

    status: str
    objective_s: float | None
    bound_s: float
    gap: float | None
    wall_s: float
    variables: int
    interrupted: bool = False


class Solved(Value, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The proof of one slice and batch."""

    slice: str
    batch: int
    proof: Proof


class Solver(Value, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The solver that chose the plans, its time limit for each slice and batch, and its proofs."""

    name: str
    seconds: float | None
    solved: tuple[Solved, ...]
    interrupted: bool = False


class FleetProof(Value, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The proof of a fleet's cost: `optimal`, or `feasible` where a time limit or an interrupt came first.

    No fleet of these servers costs less than `bound`; gap = (objective - bound) / objective. `solver_s` is the wall
    time, `seconds` its limit. `interrupted` is also true where the search for layouts was, so that servers may be
    missing.
    """

    status: str
    objective: float
    bound: float
    gap: float
    solver: str
    solver_s: float
    seconds: float | None = None
    interrupted: bool = False


def proved(solver: Solver) -> str:
    """Return the text of `search.proved_optimal`: the solver, and where it did not end, the largest gap."""
    short = [s for s in solver.solved if s.proof.status in (FEASIBLE, UNKNOWN)]
    if not short and not solver.interrupted:
        return solver.name
    ended = "interrupted" if solver.interrupted else f"ended after {solver.seconds:g} s"
    return f"{solver.name}, {ended}: {_worst(short)}"


def _worst(short: Sequence[Solved]) -> str:
    """Return in words the largest gap among the proofs that did not end."""
    if not short:
        return "every slice and batch that was begun is proved"
    worst = max(short, key=lambda s: (1.0 if s.proof.gap is None else s.proof.gap, s.slice, s.batch))
    gap = "nothing found" if worst.proof.gap is None else f"gap {100 * worst.proof.gap:.3g}%"
    return f"{worst.slice} at batch {worst.batch}: {gap}, no layout takes less than {worst.proof.bound_s * 1e3:.6g} ms"
