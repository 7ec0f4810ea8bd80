"""The public functions `plan`, `price` and `roofline`, as `import meshwright` offers them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from mesh.slices import Slice
from planner.best.replicas import batches_per_slice, replicated
from planner.best.solve import make_plan
from planner.plan.accuracy import slice_at
from planner.plan.layout_file import price_given
from planner.plan.planfile import PlanFile
from planner.query.request import Request
from planner.query.requested import AUTO, BATCHES, fixed_of, model_of, programs_of, work_of
from planner.query.slices import chosen_slices, named_slice
from planner.query.targets import Prices, Targets
from planner.version import VERSION
from strategies.book.rooftable import RooflineTable, roofline_table
from strategies.models.models import Model

CONTEXT = 8192


def plan(
    model: Model | str | Path,
    slices: Sequence[Slice | str] | Slice | str = (),
    *,
    chips: Sequence[str] | str = (),
    chip_counts: tuple[int, int | None] | None = None,
    phase: str = "decode",
    batches: Sequence[int] | str | None = None,
    context: int = CONTEXT,
    weights: str = "bf16",
    kv: str = "bf16",
    activations: str = "bf16",
    compute: str | None = None,
    objective: str = "throughput",
    fix: Mapping[str, Mapping[str, str]] | None = None,
    programs: Sequence[str | Path] = (),
    top: int = 5,
    num_slices: int = 1,
    solver: str = "exhaustive",
    solver_seconds: float | None = None,
    targets: Targets | None = None,
    prices: Prices | None = None,
    cuts: str = "two",
    workers: int | None = None,
    chip_file: str | Path | None = None,
    constants: str = "chip",
    progress: Callable[[str], None] = lambda _: None,
) -> PlanFile:
    """The best layouts of a model on one or several slices, best first.

    `slices` are those named; `chips` adds every legal slice of these with a number of chips in `chip_counts` (ends
    included; None: no end), and then only the best batch of each slice has a plan. `batches` "auto": powers of two and
    the largest that fits each slice. Plans meet all `targets`; `prices` are dollars per chip and hour, by chip name.
    `cuts`: how torus axes are cut, see `planner.search.meshes`; `workers`: processes (None: one per core).
    `compute` defaults to the activations' dtype; `fix` holds the role that a torus axis must have by component and
    axis, as in {"attention": {"Z": "B"}}; `programs` are `.layout` files whose programs join the search; slices of the
    chip in `chip_file` are known, too. `constants`: what estimates take programs to reach: "chip" (the chip's own),
    "data-sheet", or the name of a data set to which they were fitted. `solver` "cp-sat" proves the best of each slice
    and batch by CP-SAT, without runners-up, each within `solver_seconds` (None: no limit).
    `num_slices`: equal slices joined by DCN, over which each batch is cut (data parallel).
    Raises InputError on bad input and NothingFits where no layout fits.
    """
    named = [slices] if isinstance(slices, str | Slice) else slices
    targets = targets or Targets()
    auto = batches == AUTO
    counted = batches_per_slice(batches or (), num_slices) if not isinstance(batches, str) else ()
    request = Request(
        model=model_of(model),
        slices=chosen_slices(
            named,
            [chips] if isinstance(chips, str) else chips,
            chip_counts,
            chip_file=chip_file,
            constants=constants,
            most_chips=targets.max_chips,
        ),
        work=work_of(phase, (1,) if auto else counted or None, context, weights, kv, activations, compute),
        targets=targets,
        prices=prices or {},
        cuts=cuts,
        auto=auto,
        per_slice=bool(chips),
        workers=workers,
        objective=objective,
        top=top,
        solver=solver,
        solver_seconds=solver_seconds,
        fixed=fixed_of(fix),
        programs=programs_of(programs),
    )
    return replicated(make_plan(request, VERSION, progress), num_slices)


def price(
    model: Model | str | Path,
    slice_: Slice | str,
    layout: str | Path,
    *,
    pick: int = 1,
    phase: str = "decode",
    batches: Sequence[int] | None = None,
    context: int = CONTEXT,
    weights: str = "bf16",
    kv: str = "bf16",
    activations: str = "bf16",
    compute: str | None = None,
    programs: Sequence[str | Path] = (),
    chip_file: str | Path | None = None,
    constants: str = "chip",
) -> PlanFile:
    """One given layout, priced without a search: a layout file, or plan number `pick` of a plan file.

    Whether it fits is for the caller to see: `memory.total_bytes` against `memory.usable_bytes` of each plan.
    """
    work = work_of(phase, batches, context, weights, kv, activations, compute)
    slice_ = slice_at(named_slice(slice_, chip_file), constants)
    return price_given(model_of(model), slice_, work, Path(layout), programs_of(programs), VERSION, pick)


def roofline(
    model: Model | str | Path,
    slice_: Slice | str,
    *,
    batches: Sequence[int] = BATCHES["decode"],
    context: int = CONTEXT,
    weights: str = "bf16",
    kv: str = "bf16",
    compute: str = "bf16",
    kv_heads: int | None = None,
    chip_file: str | Path | None = None,
) -> RooflineTable:
    """The chapter's step-time table: everything cut evenly, ICI free. `kv_heads` changes the cache only."""
    work = work_of("decode", batches, context, weights, kv, "bf16", compute)
    return roofline_table(
        model_of(model),
        named_slice(slice_, chip_file),
        context=work.context,
        batches=work.batches,
        weights=weights,
        kv=kv,
        compute=compute,
        kv_heads=kv_heads,
    )
