"""Define the question to the planner as one checked value, and build it from a caller's keywords."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import isfinite
from pathlib import Path
from typing import Any, TypedDict

import msgspec

from mesh.errors import InputError
from mesh.slices import Slice
from planner.query.slices import chosen_slices
from planner.query.targets import Prices, Targets, check_objective, check_prices
from strategies.layoutfile import read_layout
from strategies.models.configs import load_model
from strategies.models.models import Model
from strategies.models.workload import Dtypes, Workload
from strategies.notation import Program
from strategies.readers.cost import check_compute

EXHAUSTIVE, CP_SAT = "exhaustive", "cp-sat"
CUTS = TWO, ALL, NONE = "two", "all", "none"
"""Sets of meshes to search: how physical axes are cut into mesh axes, see `planner.search.meshes`."""
AUTO = "auto"
BATCHES = {"decode": (1, 2, 4, 8, 16, 32, 64, 128, 256), "prefill": (1, 2, 4, 8, 16)}
"""Default batches of each phase."""
CONTEXT = 8192
MOST_SLICES = 100_000
MOST_WORKERS, MOST_TOP = 1024, 1000

Progress = Callable[[str], None]
Fixed = Mapping[str, Mapping[str, frozenset[str]]]
Batch = int | Sequence[int] | str
"""One batch, several, or "auto": powers of two and the largest that fits each slice."""


def silent(_: str) -> None:
    """Report no progress."""


@dataclass(frozen=True, kw_only=True)
class Query:
    """A question: a model, slices, a step, restrictions of the layouts, and how to rank them.

    `work` has the phase, its batches on each slice, the context and the dtypes. With `auto`, powers of two and the
    largest batch that fits each slice replace these batches. With `per_slice` each slice has only the plan of its best
    batch. `num_slices` equal slices, connected by DCN, each run their part of the batch. `objective` is a name of
    `planner.query.targets.OBJECTIVES`. `top` is the number of plans of the best one's slice and batch, itself included.
    `fixed` has the roles that torus axes may have, by component and axis. `cuts` is one of `CUTS`. `workers` is the
    number of processes that search (None: one per core). `solver` is "exhaustive", or "cp-sat", which only proves the
    best layout, each slice and batch within `solver_seconds` (None: no limit).

    Raises `InputError` on values out of range, and on contradictions.
    """

    model: Model
    slices: tuple[Slice, ...]
    work: Workload
    auto: bool = False
    per_slice: bool = False
    num_slices: int = 1
    objective: str = "throughput"
    top: int = 5
    targets: Targets = field(default_factory=Targets)
    prices: Prices = field(default_factory=dict)
    fixed: Fixed = field(default_factory=dict)
    programs: tuple[Program, ...] = ()
    cuts: str = TWO
    workers: int | None = None
    solver: str = EXHAUSTIVE
    solver_seconds: float | None = None

    def __post_init__(self) -> None:
        check_objective(self.objective, self.prices)
        if self.cuts not in CUTS:
            raise InputError(f"cuts '{self.cuts}': expected {', '.join(CUTS)}", "cuts")
        if self.workers is not None and not 1 <= self.workers <= MOST_WORKERS:
            raise InputError(f"workers {self.workers}: expected a whole number from 1 to {MOST_WORKERS}")
        check_solver(self.solver, self.solver_seconds)
        if not 1 <= self.top <= MOST_TOP:
            raise InputError(f"top {self.top}: expected a whole number from 1 to {MOST_TOP}")
        if not 1 <= self.num_slices <= MOST_SLICES:
            raise InputError(f"num_slices {self.num_slices}: expected a whole number from 1 to {MOST_SLICES}")
        if not self.slices:
            raise InputError("no slice given; expected at least one, such as v5e:4x4")
        for slice_ in self.slices:
            check_compute(slice_.chip, self.work.dtypes.compute)
        check_prices(self.prices, (slice_.chip.name for slice_ in self.slices))

    def check_targets(self) -> None:
        """Raise `InputError` on a target that the phase does not have, or that excludes every slice."""
        targets, smallest = self.targets, min(self.slices, key=lambda s: (s.chips, s.name))
        if targets.max_ttft_s is not None and self.work.phase == "decode":
            raise InputError(
                "max_ttft_s: a decode step has no first token; expected the phase prefill or serve with it",
                "max_ttft_s",
            )
        if targets.max_chips is not None and smallest.chips > targets.max_chips:
            raise InputError(
                f"max_chips {targets.max_chips} leaves none of the slices: the smallest, {smallest.name}, has "
                f"{smallest.chips} chips; expected a smaller slice or more chips",
                "max_chips",
            )

    def at(self, *batches: int, context: int | None = None) -> Query:
        """Return the query at these batches, each on every slice, and at `context` if it is passed."""
        work = msgspec.structs.replace(
            self.work, batches=batches, context=self.work.context if context is None else context
        )
        return replace(self, work=work, auto=False)


def check_solver(solver: str, seconds: float | None) -> None:
    """Raise `InputError` on an unknown solver, and on a time limit that is not positive or that it does not take."""
    if solver not in (EXHAUSTIVE, CP_SAT):
        raise InputError(f"solver '{solver}': expected {EXHAUSTIVE} or {CP_SAT}", "solver")
    if seconds is not None and not (isfinite(seconds) and seconds > 0):
        raise InputError(
            f"solver_seconds {seconds:g}: expected a number of seconds above 0, such as 10", "solver_seconds"
        )
    if seconds is not None and solver != CP_SAT:
        raise InputError(
            f"solver_seconds {seconds:g}: a limit of the solver {CP_SAT}; the {solver} search has none",
            "solver_seconds",
        )


class SearchOptions(TypedDict, total=False):
    """Keywords of every function that searches.

    chips, chip_counts: every legal slice of these chips, with a number of chips within (least, most) where given;
        most None: no end. `max_chips` of the targets leaves larger ones out.
    chip_file: a chip file, whose chip is known by its name, too.
    constants: the share of the data sheet that programs reach: "chip" (its own), "data-sheet", or the data set to
        which they were fitted.
    weights, kv, activations, compute: dtypes; "bf16" by default, compute: the activations'.
    programs: `.layout` files whose programs join the search.
    targets: limits that plans must meet. prices: dollars per chip and hour, by chip name.
    cuts: how torus axes are cut into mesh axes: "two", "all" or "none" (see `planner.search.meshes`).
    workers: processes that search; None: one per core.
    """

    chips: Sequence[str] | str
    chip_counts: tuple[int, int | None] | None
    chip_file: str | Path | None
    constants: str
    weights: str
    kv: str
    activations: str
    compute: str | None
    programs: Sequence[str | Path]
    targets: Targets | None
    prices: Prices | None
    cuts: str
    workers: int | None


class QueryOptions(SearchOptions, total=False):
    """Keywords of functions that plan one phase.

    phase: "decode" or "prefill".
    batch: one batch, several, or "auto": powers of two and the largest that fits each slice.
    context: tokens in each filled cache (decode) or in each prompt (prefill).
    fix: the role that a torus axis must have, by component and axis: {"attention": {"Z": "B"}}.
    """

    phase: str
    batch: Batch | None
    context: int
    fix: Mapping[str, Mapping[str, str]] | None


def query_of(
    model: Model | str | Path,
    slices: Sequence[Slice | str] | Slice | str,
    options: Mapping[str, Any],
    **query_fields: Any,
) -> Query:
    """Build the query of a caller's keywords.

    `options` are the keywords of `QueryOptions`, the other arguments other fields of the query. Raises `InputError` on
    bad input, and `TypeError` on an unknown keyword.
    """
    keywords = Given(options, set(query_fields) - {"per_slice"})
    targets = keywords.take("targets", Targets())
    chosen = keywords.slices(slices, targets)
    work, auto = keywords.work()
    query = Query(
        model=model_of(model),
        slices=chosen,
        work=work,
        auto=auto,
        fixed=fixed_roles(keywords.take("fix")),
        targets=targets,
        prices=keywords.take("prices", {}),
        programs=programs_of(keywords.take("programs", ())),
        cuts=keywords.take("cuts", TWO),
        workers=keywords.take("workers"),
        **query_fields,
    )
    keywords.finish()
    return query


@dataclass(frozen=True)
class Given:
    """The keywords of a caller, and which of them were used."""

    options: Mapping[str, Any]
    taken: set[str] = field(default_factory=set)

    def take(self, name: str, default: Any = None) -> Any:
        """Return the value of a keyword, or the default where it was not passed or is None."""
        self.taken.add(name)
        value = self.options.get(name)
        return default if value is None else value

    def finish(self) -> None:
        """Raise `TypeError` on a keyword that was not used."""
        for name in self.options:
            if name not in self.taken:
                known = ", ".join(sorted(self.taken))
                raise TypeError(f"unexpected keyword argument {name!r}; expected some of {known}")

    def slices(self, named: Sequence[Slice | str] | Slice | str, targets: Targets) -> tuple[Slice, ...]:
        """Return the named slices, and every legal one of the chips."""
        chips = self.take("chips", ())
        return chosen_slices(
            [named] if isinstance(named, str | Slice) else named,
            [chips] if isinstance(chips, str) else chips,
            self.take("chip_counts"),
            chip_file=self.take("chip_file"),
            constants=self.take("constants", "chip"),
            most_chips=targets.max_chips,
        )

    def dtypes(self) -> Dtypes:
        """Return the dtypes; compute is by default the activations'."""
        activations = self.take("activations", "bf16")
        return Dtypes(
            weights=self.take("weights", "bf16"),
            kv=self.take("kv", "bf16"),
            activations=activations,
            compute=self.take("compute", activations),
        )

    def work(self) -> tuple[Workload, bool]:
        """Return the workload of the step, and whether its batches are chosen automatically."""
        phase = self.take("phase", "decode")
        batches, auto = batches_of(self.take("batch"), phase)
        return (
            Workload(
                phase=phase,
                batches=batches,
                context=self.take("context", CONTEXT),
                dtypes=self.dtypes(),
            ),
            auto,
        )


def model_of(model: Model | str | Path) -> Model:
    """Return the model itself, or the one of that name or file."""
    return model if isinstance(model, Model) else load_model(model)


def batches_of(batch: Batch | None, phase: str) -> tuple[tuple[int, ...], bool]:
    """Return the batches of a caller (None: the phase's default), and whether they are chosen automatically.

    Raises `InputError` on text other than "auto".

    >>> batches_of(64, "decode"), batches_of([1, 8], "decode"), batches_of("auto", "decode")
    (((64,), False), ((1, 8), False), ((1,), True))
    """
    if isinstance(batch, str):
        if batch != AUTO:
            raise InputError(f"batch {batch!r}: expected a whole number, several of them, or {AUTO}")
        return (1,), True
    if isinstance(batch, int):
        return (batch,), False
    return (BATCHES.get(phase, (1,)) if batch is None else tuple(batch)), False


def programs_of(paths: Sequence[str | Path]) -> tuple[Program, ...]:
    """Return the programs of `.layout` files."""
    return tuple(program for path in paths for program in read_layout(Path(path)))


def fixed_roles(fix: Mapping[str, Mapping[str, str]] | None) -> dict[str, dict[str, frozenset[str]]]:
    """Return the role that a torus axis must have, by component and axis.

    >>> fixed_roles({"attention": {"Z": "B"}})
    {'attention': {'Z': frozenset({'B'})}}
    """
    return {name: {axis: frozenset({role}) for axis, role in roles.items()} for name, roles in (fix or {}).items()}
