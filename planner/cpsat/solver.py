"""Run CP-SAT for the coupled choices: whole numbers for seconds and bytes, one worker, a fixed seed, interrupts.

Seconds become whole numbers of about 2^40 for the least sum of seconds, so that a sum over components is off by at most
their number x 2^-41 of it (2e-12 for five): far below the 1e-9 within which two layouts count as equal. Bytes are
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

BITS, MOST_BITS = 40, 58  # bits of the least sum of seconds, and of the largest sum that is represented exactly
SEED = 20261130


@dataclass(frozen=True)
class Scale:
    """Turn quantities into whole numbers by a power of two.

    >>> import numpy as np
    >>> Scale(4.0, 100).nearest(np.array([0.5, 1.2, 99.0]))
    [2, 5, 100]
    """

    factor: float
    most: int

    def nearest(self, values: Floats) -> list[int]:
        """Return the values scaled and rounded to the nearest number, at most `most`."""
        return [int(v) for v in np.minimum(np.rint(values * self.factor), self.most)]

    def up(self, values: Floats) -> list[int]:
        """Return the values scaled and rounded up."""
        return [ceil(v) for v in (values * self.factor).tolist()]

    def down(self, value: float) -> int:
        """Return the value scaled and rounded down."""
        return floor(value * self.factor)


def scale_of(value: float, terms: int = 1) -> Scale:
    """Return the scale on which `value` is a number of `BITS` bits.

    Sums of `terms` of the scale's numbers stay below 2^`MOST_BITS`.
    """
    return Scale(2.0 ** (BITS - frexp(value)[1]), 2**MOST_BITS // terms)


@dataclass(frozen=True)
class Ended:
    """The end of a run: status, objective and bound (whole numbers), and the solver with the variables' values."""

    status: str
    objective: float
    bound: float
    wall_s: float
    variables: int
    interrupted: bool
    solver: cp_model.CpSolver

    @property
    def has_solution(self) -> bool:
        """True where the solver has a solution."""
        return self.status in (OPTIMAL, FEASIBLE)

    def chosen(self, literals: list[cp_model.IntVar]) -> int:
        """Return the place of the literal that is true."""
        return next(n for n, literal in enumerate(literals) if self.solver.boolean_value(literal))

    def values(self, variables: Sequence[cp_model.IntVar]) -> tuple[int, ...] | None:
        """Return the solution's values of these variables, or None where there is no solution."""
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

    When `seconds` of wall time are over, or at an interrupt (Ctrl-C), the run ends with the best solution so far.
    `effort` is a limit in the solver's deterministic seconds, which does not depend on the machine. `linearization`
    selects how much of the model its linear relaxation has (None: the solver's default). Raises `RuntimeError` on an
    invalid model.
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
    """Solve in a thread, stop it at an interrupt, and return whether one came.

    Python does not see an interrupt inside the solver. The function waits for an event, because `Thread.join` of Python
    3.11 takes a thread for ended where an interrupt comes while it waits.
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
