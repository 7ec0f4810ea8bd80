"""What `plan` is asked for."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import isfinite

from mesh.errors import InputError
from mesh.slices import Slice
from planner.query.targets import Prices, Targets, check_prices
from strategies.models.models import Model
from strategies.models.workload import Workload
from strategies.notation import Program
from strategies.readers.cost import check_compute

OBJECTIVES = ("throughput", "latency", "cost")
EXHAUSTIVE, CP_SAT = "exhaustive", "cp-sat"
CUTS = TWO, ALL, NONE = "two", "all", "none"
"""Which meshes are searched: how physical axes are cut into mesh axes, see `planner.search.meshes`."""
Progress = Callable[[str], None]
Fixed = Mapping[str, Mapping[str, frozenset[str]]]


@dataclass(frozen=True)
class Request:
    """What `plan` is asked for.

    `auto`: batches in powers of two and the largest that fits each slice, instead of the workload's. `per_slice`: of
    each slice, the plan of its best batch only. `cuts`: see `planner.search.meshes`. `workers`: processes that
    search; None: as many as there are cores.
    """

    model: Model
    slices: Sequence[Slice]
    work: Workload
    objective: str = "throughput"
    top: int = 5
    fixed: Fixed | None = None
    programs: Sequence[Program] = ()
    solver: str = EXHAUSTIVE
    solver_seconds: float | None = None
    targets: Targets = field(default_factory=Targets)
    prices: Prices = field(default_factory=dict)
    cuts: str = TWO
    auto: bool = False
    per_slice: bool = False
    workers: int | None = None

    def __post_init__(self) -> None:
        if self.objective not in OBJECTIVES:
            raise InputError(f"objective '{self.objective}' is not known; expected {', '.join(OBJECTIVES)}")
        if self.objective == "cost" and not self.prices:
            raise InputError("objective 'cost' needs --price-per-chip-hour, such as 1.2 or v5e=1.2,v6e=2.7")
        if self.cuts not in CUTS:
            raise InputError(f"cuts '{self.cuts}': expected {', '.join(CUTS)}")
        if self.workers is not None and not 1 <= self.workers <= 1024:
            raise InputError(f"workers {self.workers}: expected a whole number from 1 to 1024")
        check_solver(self.solver, self.solver_seconds)
        if not 1 <= self.top <= 1000:
            raise InputError(f"top {self.top}: expected a whole number from 1 to 1000")
        if not self.slices:
            raise InputError("no slice given; expected at least one, such as v5e:4x4")
        for slice_ in self.slices:
            check_compute(slice_.chip, self.work.dtypes.compute)
        check_prices(self.prices, (slice_.chip.name for slice_ in self.slices))
        self._check_most_chips()

    def _check_most_chips(self) -> None:
        most, least = self.targets.max_chips, min(self.slices, key=lambda s: (s.chips, s.name))
        if most is not None and least.chips > most:
            raise InputError(
                f"--max-chips {most} leaves none of the slices: the smallest, {least.name}, has {least.chips} chips; "
                "expected a smaller slice or more chips"
            )


def check_solver(solver: str, seconds: float | None) -> None:
    """Raise `InputError` on a solver that is not known, and on a time limit that is none or that it does not take."""
    if solver not in (EXHAUSTIVE, CP_SAT):
        raise InputError(f"--solver '{solver}': expected {EXHAUSTIVE} or {CP_SAT}")
    if seconds is not None and not (isfinite(seconds) and seconds > 0):
        raise InputError(f"--solver-seconds {seconds:g}: expected a number of seconds above 0, such as 10")
    if seconds is not None and solver != CP_SAT:
        raise InputError(f"--solver-seconds {seconds:g}: a limit of --solver {CP_SAT}; the {solver} search has none")
