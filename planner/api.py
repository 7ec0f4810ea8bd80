"""The public functions `plan`, `price` and `roofline`, as `import meshwright` offers them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from mesh.chips import chip_names, read_chip
from mesh.errors import InputError
from mesh.slices import Slice, parse_slice
from planner.accuracy import slice_at
from planner.given import price_given
from planner.planfile import PlanFile
from planner.request import Request
from planner.solve import make_plan
from planner.version import VERSION
from strategies.configs import load_model
from strategies.layoutfile import read_layout
from strategies.models import Model
from strategies.notation import Program
from strategies.rooftable import RooflineTable, roofline_table
from strategies.workload import Dtypes, Workload

BATCHES = {"decode": (1, 2, 4, 8, 16, 32, 64, 128, 256), "prefill": (1, 2, 4, 8, 16)}
CONTEXT = 8192
CALIBRATED_CHIPS = ("cpu", "gpu", "tpu")


def plan(
    model: Model | str | Path,
    slices: Sequence[Slice | str] | Slice | str,
    *,
    phase: str = "decode",
    batches: Sequence[int] | None = None,
    context: int = CONTEXT,
    weights: str = "bf16",
    kv: str = "bf16",
    activations: str = "bf16",
    compute: str | None = None,
    objective: str = "throughput",
    fix: Mapping[str, Mapping[str, str]] | None = None,
    programs: Sequence[str | Path] = (),
    top: int = 5,
    chip_file: str | Path | None = None,
    constants: str = "chip",
    progress: Callable[[str], None] = lambda _: None,
) -> PlanFile:
    """The best layouts of a model on one or several slices, best first.

    `compute` defaults to the activations' dtype; `fix` holds the role that a torus axis must have by component and
    axis, as in {"attention": {"Z": "B"}}; `programs` are `.layout` files whose programs join the search; slices of the
    chip in `chip_file` are known, too. `constants`: what estimates take programs to reach: "chip" (the chip's own),
    "data-sheet", or the name of a data set to which they were fitted.
    Raises InputError on bad input and NothingFits where no layout fits.
    """
    request = Request(
        model=_model(model),
        slices=[
            slice_at(_slice(one, chip_file), constants)
            for one in ([slices] if isinstance(slices, str | Slice) else slices)
        ],
        work=_work(phase, batches, context, weights, kv, activations, compute),
        objective=objective,
        top=top,
        fixed={name: {axis: frozenset({role}) for axis, role in of.items()} for name, of in (fix or {}).items()},
        programs=_programs(programs),
    )
    return make_plan(request, VERSION, progress)


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
    work = _work(phase, batches, context, weights, kv, activations, compute)
    slice_ = slice_at(_slice(slice_, chip_file), constants)
    return price_given(_model(model), slice_, work, Path(layout), _programs(programs), VERSION, pick)


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
    work = _work("decode", batches, context, weights, kv, "bf16", compute)
    return roofline_table(
        _model(model),
        _slice(slice_, chip_file),
        context=work.context,
        batches=work.batches,
        weights=weights,
        kv=kv,
        compute=compute,
        kv_heads=kv_heads,
    )


def _model(model: Model | str | Path) -> Model:
    return model if isinstance(model, Model) else load_model(model)


def _slice(one: Slice | str, chip_file: str | Path | None = None) -> Slice:
    """The slice of that name: of the chip in the file where it has the name, else of a built-in chip."""
    if not isinstance(one, str):
        return one
    name = one.partition(":")[0].strip().lower()
    if chip_file is None:
        if name in CALIBRATED_CHIPS:
            raise InputError(f"slice {one!r}: a chip that `meshwright calibrate` makes; pass its --chip-file")
        return parse_slice(one)
    own = read_chip(Path(chip_file))
    if name == own.name.lower():
        return parse_slice(one, own)
    if name not in chip_names():
        raise InputError(f"slice {one!r}: neither the chip of '{chip_file}', which is {own.name!r}, nor a built-in one")
    return parse_slice(one)


def _programs(paths: Sequence[str | Path]) -> tuple[Program, ...]:
    return tuple(program for path in paths for program in read_layout(Path(path)))


def _work(
    phase: str,
    batches: Sequence[int] | None,
    context: int,
    weights: str,
    kv: str,
    activations: str,
    compute: str | None,
) -> Workload:
    dtypes = Dtypes(weights=weights, kv=kv, activations=activations, compute=compute or activations)
    chosen = BATCHES.get(phase, (1,)) if batches is None else tuple(batches)
    return Workload(phase=phase, batches=chosen, context=context, dtypes=dtypes)
