"""CP-SAT, as the coupled choices use it: whole numbers for seconds and bytes, one worker, a fixed seed, interrupts.

Seconds become whole numbers of about 2^40 for the least sum of seconds, so that a sum over components is off by at most
their number x 2^-41 of it (2e-12 for five): far below the 1e-9 to which two layouts are told apart. Bytes are
multiplied by a power of two and rounded up, which is exact for whole bytes and fractions with small powers of two.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import ceil, floor, frexp
from typing import TYPE_CHECKING

import numpy as np

from planner.plan.file_proof import FEASIBLE, INFEASIBLE, OPTIMAL, UNKNOWN
from strategies.readers.rates import Floats

if TYPE_CHECKING:
    from ortools.sat.python import cp_model

BITS, MOST_BITS = 40, 58  # of the least sum of seconds, and of the largest that is told apart
SEED = 20261130


@dataclass(frozen=True)
class Scale:
    """A power of two that turns quantities into whole numbers."""

    factor: float
    most: int

    def nearest(self, values: Floats) -> list[int]:
        """Rounded to the nearest; what is beyond `most` counts as `most`."""
        return [int(v) for v in np.minimum(np.rint(values * self.factor), self.most)]

    def up(self, values: Floats) -> list[int]:
        """Rounded up."""
        return [ceil(v) for v in (values * self.factor).tolist()]

    def down(self, value: float) -> int:
        """Rounded down."""
        return floor(value * self.factor)


def scale_of(value: float, terms: int = 1) -> Scale:
    """A value becomes a number of `BITS` bits; sums of `terms` of the scale's numbers stay below 2^`MOST_BITS`."""
    return Scale(2.0 ** (BITS - frexp(value)[1]), 2**MOST_BITS // terms)


@dataclass(frozen=True)
class Ended:
    """How a solver ended: its status, the objective and its bound (whole numbers), and where values are looked up."""

    status: str
    objective: float
    bound: float
    wall_s: float
    variables: int
    interrupted: bool
    solver: cp_model.CpSolver

    @property
    def has_solution(self) -> bool:
        """Whether there is a solution."""
        return self.status in (OPTIMAL, FEASIBLE)

    def chosen(self, literals: list[cp_model.IntVar]) -> int:
        """The place of the literal that holds."""
        return next(n for n, literal in enumerate(literals) if self.solver.boolean_value(literal))

    def values(self, variables: Sequence[cp_model.IntVar]) -> tuple[int, ...] | None:
        """The solution's values of these; None where there is no solution."""
        return tuple(self.solver.value(variable) for variable in variables) if self.has_solution else None


def run(
    model: cp_model.CpModel,
    seconds: float | None = None,
    *,
    effort: float | None = None,
    linearization: int | None = None,
    seed: int = SEED,
) -> Ended:
    """Solve on one worker with a fixed seed: the same model gives the same answer, on any number of cores.

    Where `seconds` of wall time are over, or at an interrupt (Ctrl-C), the best so far is what it ends with. `effort`:
    a limit in the solver's deterministic seconds, which does not depend on the machine. `linearization`: how much of
    the model its linear relaxation has (None: the solver's default).
    """
    from ortools.sat.python import cp_model

    solver = cp_model.CpSolver()
    solver.parameters.num_workers = 1
    solver.parameters.random_seed = seed
    solver.parameters.catch_sigint_signal = False
    solver.parameters.relative_gap_limit = 0.0
    # A presolve rule of OR-Tools 9.15 sums coefficients in 32 bits and then loses solutions (google/or-tools issue
    # 5293); with a work limit of 0 it never runs.
    solver.parameters.presolve_inclusion_work_limit = 0
    if seconds is not None:
        solver.parameters.max_time_in_seconds = max(0.0, seconds)
    if effort is not None:
        solver.parameters.max_deterministic_time = effort
    if linearization is not None:
        solver.parameters.linearization_level = linearization
    codes: list[int] = []
    interrupted = _wait(lambda: codes.append(int(solver.solve(model))), solver.stop_search)
    names = {
        int(cp_model.OPTIMAL): OPTIMAL,
        int(cp_model.FEASIBLE): FEASIBLE,
        int(cp_model.INFEASIBLE): INFEASIBLE,
        int(cp_model.UNKNOWN): UNKNOWN,
    }
    if not codes or codes[0] not in names:
        raise RuntimeError(f"CP-SAT rejects the model: {model.validate() or 'no reason given'}")
    status = names[codes[0]]
    has_solution = status in (OPTIMAL, FEASIBLE)
    return Ended(
        status,
        solver.objective_value if has_solution else np.inf,
        solver.best_objective_bound,
        solver.wall_time,
        len(model.proto.variables),
        interrupted,
        solver,
    )


def _wait(solve: Callable[[], None], stop: Callable[[], None]) -> bool:
    """Solve in a thread, and stop it at an interrupt, which Python does not see inside the solver; whether one came.

    Waits for an event: `Thread.join` of Python 3.11 takes a thread for ended where an interrupt comes while it waits.
    """
    done, interrupted = threading.Event(), False

    def run_to_end() -> None:
        try:
            solve()
        finally:
            done.set()

    threading.Thread(target=run_to_end, daemon=True).start()
    while True:
        try:
            while not done.wait(0.1):
                if interrupted:
                    stop()
            return interrupted
        except KeyboardInterrupt:
            interrupted = True
