"""What callers of the public functions name, as what a request is made of; the request behind `pareto` and `fits`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from mesh.slices import Slice
from planner.query.request import Request
from planner.query.slices import chosen_slices
from planner.query.targets import Prices, Targets, in_order
from strategies.layoutfile import read_layout
from strategies.models.configs import load_model
from strategies.models.models import Model
from strategies.models.workload import Dtypes, Workload
from strategies.notation import Program

AUTO = "auto"
BATCHES = {"decode": (1, 2, 4, 8, 16, 32, 64, 128, 256), "prefill": (1, 2, 4, 8, 16)}


def request_of(
    model: Model | str | Path,
    slices: Sequence[Slice | str] | Slice | str,
    *,
    chips: Sequence[str] | str,
    chip_counts: tuple[int, int | None] | None,
    phase: str,
    batches: Sequence[int] | str | None,
    context: int,
    dtypes: tuple[str, str, str, str | None],
    fix: Mapping[str, Mapping[str, str]] | None = None,
    programs: Sequence[str | Path] = (),
    targets: Targets | None = None,
    prices: Prices | None = None,
    cuts: str = "two",
    workers: int | None = None,
    chip_file: str | Path | None = None,
    constants: str = "chip",
) -> Request:
    """As `plan` takes them; slices by chips and name. `dtypes`: of weights, cache, activations and compute.

    Raises `InputError` on bad input.
    """
    targets = targets or Targets()
    weights, kv, activations, compute = dtypes
    auto = batches == AUTO
    counted = None if isinstance(batches, str) else batches
    return Request(
        model=model_of(model),
        slices=in_order(
            chosen_slices(
                [slices] if isinstance(slices, str | Slice) else slices,
                [chips] if isinstance(chips, str) else chips,
                chip_counts,
                chip_file=chip_file,
                constants=constants,
                most_chips=targets.max_chips,
            )
        ),
        work=work_of(phase, (1,) if auto else counted, context, weights, kv, activations, compute),
        fixed=fixed_of(fix),
        programs=programs_of(programs),
        targets=targets,
        prices=prices or {},
        cuts=cuts,
        auto=auto,
        workers=workers,
    )


def model_of(model: Model | str | Path) -> Model:
    """The model itself, or the one of that name or file."""
    return model if isinstance(model, Model) else load_model(model)


def programs_of(paths: Sequence[str | Path]) -> tuple[Program, ...]:
    """The programs of `.layout` files."""
    return tuple(program for path in paths for program in read_layout(Path(path)))


def fixed_of(fix: Mapping[str, Mapping[str, str]] | None) -> dict[str, dict[str, frozenset[str]]]:
    """The role that a torus axis must have, by component and axis."""
    return {name: {axis: frozenset({role}) for axis, role in of.items()} for name, of in (fix or {}).items()}


def work_of(
    phase: str,
    batches: Sequence[int] | None,
    context: int,
    weights: str,
    kv: str,
    activations: str,
    compute: str | None,
) -> Workload:
    """What a step is; without batches, those that it has by default. `compute`: None: the activations' dtype."""
    dtypes = Dtypes(weights=weights, kv=kv, activations=activations, compute=compute or activations)
    chosen = BATCHES.get(phase, (1,)) if batches is None else tuple(batches)
    return Workload(phase=phase, batches=chosen, context=context, dtypes=dtypes)
