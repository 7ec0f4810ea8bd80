"""Price one layout of a file without a search (`price`), and read and check layout files.

A layout file (`meshwright.layout/1`) states the mesh, what cuts the residual stream, and the program and roles of
every component: the same three fields that a plan has, so a plan file is a layout file too.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import msgspec

from mesh.chips import Chip, chip_names, read_chip
from mesh.errors import InputError
from mesh.pieces import Piece
from mesh.slices import Slice, parse_slice
from mesh.version import VERSION
from planner.plan.accuracy import slice_of_plan
from planner.plan.plan import Plan
from planner.plan.planfile import SCHEMA as PLAN_SCHEMA
from planner.plan.planfile import PlanFile, Search, read_object
from planner.plan.pricing import price_layout
from strategies.components import Component, components
from strategies.layout import DIMS, BoundLayout, ComponentLayout, Layout, MeshAxes, bind_layout, mesh_of
from strategies.models.models import Model
from strategies.models.workload import Workload
from strategies.notation import LayoutError, Program
from strategies.readers.cost import check_compute, speeds

LAYOUT_SCHEMA = "meshwright.layout/1"


def price_given(
    model: Model, slice_: Slice, work: Workload, path: Path, programs: Sequence[Program], pick: int = 1
) -> PlanFile:
    """Price the layout of a file at every batch of the workload.

    Raises `InputError` where the layout does not fit the model or the slice. It is not checked whether the plans fit
    into memory: compare `memory.total_bytes` with `usable_bytes`.
    """
    started = time.perf_counter()
    check_compute(slice_.chip, work.dtypes.compute)
    layout = bind_checked(read_given(path, pick), slice_, components(model, work, programs), path)
    plans = tuple(_price(layout, slice_, model, work, batch, path) for batch in work.batches)
    return PlanFile(
        schema=PLAN_SCHEMA,
        tool_version=VERSION,
        objective="given",
        plans=plans,
        rejected=(),
        search=Search(
            candidates=len(plans),
            evaluations=len(plans),
            wall_s=time.perf_counter() - started,
            proved_optimal="given",
        ),
    )


def _price(layout: BoundLayout, slice_: Slice, model: Model, work: Workload, batch: int, path: Path) -> Plan:
    """Return the plan at one batch; the error where it cannot run names the file."""
    try:
        return price_layout(layout, slice_, model, work, batch, batch, speeds(slice_.chip, work.dtypes))
    except LayoutError as error:
        raise LayoutError(f"the layout of '{path}' cannot run batch {batch}: {error}") from None


def layout_of(
    plan: Plan, programs: Sequence[Program] = (), chip: Chip | None = None
) -> tuple[BoundLayout, Slice, Workload]:
    """Return the layout of a plan, with its slice and workload.

    Raises `InputError` where the plan's layout does not fit its model and slice.
    """
    slice_ = slice_of_plan(parse_slice(plan.slice, chip), plan.reached)
    work = Workload(phase=plan.phase, batches=(plan.batch,), context=plan.context, dtypes=plan.dtypes)
    return bind_checked(plan.layout, slice_, components(plan.model, work, programs), Path("plan")), slice_, work


def chip_of(plan: Plan, path: str | Path | None) -> Chip | None:
    """Return the chip of a chip file, or None for a built-in chip.

    Raises `InputError` where the file's chip is not the plan's, or where the plan needs a chip file.
    """
    name = plan.chip_name.lower()
    if path is None:
        if ":" in plan.slice and name not in chip_names():
            raise InputError(f"the plan is for {plan.slice}, no built-in chip: name its chip file, as for `plan`")
        return None
    chip = read_chip(Path(path))
    if chip.name.lower() != name:
        wrong = f"chip_file '{path}' has the chip {chip.name!r}; the plan is for {plan.slice}"
        raise InputError(wrong, "chip_file")
    return chip


def read_given(path: Path, pick: int = 1) -> Layout:
    """Read a layout file, or the layout of plan `pick` (from 1) of a plan file.

    Raises `InputError` where the file is neither.
    """
    value = read_object(path, "layout")
    schema = value.get("schema")
    if schema == PLAN_SCHEMA:
        plans = value.get("plans")
        if not isinstance(plans, list) or not 1 <= pick <= len(plans):
            raise InputError(f"pick {pick}: '{path}' has no such plan", "pick")
        return _convert(plans[pick - 1], path)
    if schema != LAYOUT_SCHEMA:
        raise InputError(
            f"the layout file '{path}' has schema {schema!r}; expected '{LAYOUT_SCHEMA}' or '{PLAN_SCHEMA}'"
        )
    return _convert({k: v for k, v in value.items() if k != "schema"}, path)


def _convert(value: Mapping[str, Any], path: Path) -> Layout:
    """Return the layout of a JSON object; raise `InputError` where it is not one."""
    try:
        return msgspec.convert(value, Layout)
    except msgspec.ValidationError as error:
        raise InputError(f"the layout file '{path}' is not a valid layout: {error}") from None


def bind_checked(layout: Layout, slice_: Slice, parts: Sequence[Component], path: Path) -> BoundLayout:
    """Bind the layout of a file to these components; raise `InputError` where it does not fit them or the slice.

    The sizes of mesh axes are those of their pieces, whatever the file says.
    """
    mesh = layout.mesh
    _check_mesh(mesh, path)
    _check_pieces(mesh, slice_, path)
    _check_components(layout.layouts, mesh.axis_names, parts, path)
    _check_residual(layout.residual, mesh.axis_names, path)
    return bind_layout(msgspec.structs.replace(layout, mesh=mesh_of(slice_, mesh.on(slice_), mesh.axis_names)), parts)


def _check_mesh(mesh: MeshAxes, path: Path) -> None:
    """Check that mesh axes have different single letters, and pieces for each."""
    names = mesh.axis_names
    if len(set(names)) != len(names) or any(len(n) != 1 or not n.isalnum() for n in names):
        raise InputError(f"the layout file '{path}' names its mesh axes {names}; expected different single letters")
    if len(mesh.pieces) != len(names):
        raise InputError(f"the layout file '{path}' has {len(names)} mesh axes and pieces for {len(mesh.pieces)}")


def _check_pieces(mesh: MeshAxes, slice_: Slice, path: Path) -> None:
    """Check that the pieces are of torus axes of the slice, and cover it."""
    names = [axis.name for axis in slice_.axes]
    for piece in chain(*mesh.pieces):
        if piece.axis not in names:
            raise InputError(
                f"the layout file '{path}' uses torus axis '{piece.axis}'; {slice_.name} has {', '.join(names)}"
            )
    _check_covers(mesh.on(slice_), slice_, path)


def _check_covers(pieces: Sequence[Sequence[Piece]], slice_: Slice, path: Path) -> None:
    """Check that the pieces tile every physical axis: strides and sizes chain from 1 to its length."""
    for number, axis in enumerate(slice_.axes):
        reach = 1
        for piece in sorted(p for p in chain(*pieces) if p.axis == number):
            if piece.stride != reach:
                break
            reach *= piece.size
        if reach != axis.size:
            raise InputError(
                f"the layout file '{path}' covers {reach} of the {axis.size} chips of torus axis {axis.name} of "
                f"{slice_.name}; expected pieces whose strides and sizes chain from 1 to {axis.size}"
            )


def _check_components(
    layouts: Sequence[ComponentLayout], names: Sequence[str], parts: Sequence[Component], path: Path
) -> None:
    """Check that exactly these components are laid out, each with a role for every mesh axis."""
    by_name = {layout.component: layout for layout in layouts}
    if set(by_name) != {c.name for c in parts}:
        raise InputError(
            f"the layout file '{path}' lays out {', '.join(by_name) or 'nothing'}; expected exactly "
            f"{', '.join(c.name for c in parts)}"
        )
    for component in parts:
        roles = by_name[component.name].assignment
        if set(roles) != set(names):
            raise InputError(
                f"the layout file '{path}' gives {component.name} roles for {', '.join(roles) or 'no axis'}; "
                f"expected one for each of {', '.join(names) or 'none'} ('-' for none)"
            )


def _check_residual(residual: Mapping[str, Sequence[str]], names: Sequence[str], path: Path) -> None:
    """Check that the residual's dims are known and each mesh axis cuts at most one."""
    free = set(names)
    for dim, axes in residual.items():
        for axis in axes:
            if dim not in DIMS or axis not in free:
                raise InputError(
                    f"the layout file '{path}' cuts {dim} of the residual by '{axis}'; expected dims B, T or D, "
                    f"and each of {', '.join(names)} at most once"
                )
            free.remove(axis)
