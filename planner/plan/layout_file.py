"""`price`: one layout that the user gives, priced without a search.

A layout file (`meshwright.layout/1`) says the mesh, what cuts the residual stream, and the program and roles of
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
from planner.plan.accuracy import slice_of_plan
from planner.plan.layout import Assigned, Layout
from planner.plan.plan import MeshPiece, Plan, Value
from planner.plan.planfile import SCHEMA as PLAN_SCHEMA
from planner.plan.planfile import PlanFile, Search, read_object
from planner.plan.pricing import price_layout
from planner.version import VERSION
from strategies.components import IDLE, Component, components
from strategies.models.models import Model
from strategies.models.workload import Workload
from strategies.notation import LayoutError, Program
from strategies.readers.cost import check_compute, speeds

LAYOUT_SCHEMA = "meshwright.layout/1"


class GivenMesh(Value, frozen=True, kw_only=True):
    """The mesh of a layout file."""

    axis_names: tuple[str, ...]
    pieces: tuple[tuple[MeshPiece, ...], ...]
    axis_sizes: tuple[int, ...] | None = None


class GivenLayout(Value, frozen=True, kw_only=True):
    """A component's program and roles in a layout file; what a plan says besides is ignored."""

    component: str
    program: str
    assignment: dict[str, str]
    groups: tuple[int, ...] = ()
    layers: int = 0
    cache_order: str | None = None
    sequence_order: str | None = None
    capacity: int | None = None


class Given(msgspec.Struct, frozen=True, kw_only=True):
    """A layout file."""

    mesh: GivenMesh
    layouts: tuple[GivenLayout, ...]
    residual: dict[str, tuple[str, ...]] = {}


def price_given(
    model: Model, slice_: Slice, work: Workload, path: Path, programs: Sequence[Program], pick: int = 1
) -> PlanFile:
    """Price the layout of a file at every batch. Raises `InputError` where it does not fit the model or the slice.

    Whether it fits into memory is for the caller to see: `memory.total_bytes` against `usable_bytes`.
    """
    started = time.perf_counter()
    check_compute(slice_.chip, work.dtypes.compute)
    given = read_given(path, pick)
    parts = components(model, work, programs)
    layout = laid_out(given, slice_, parts, path)
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


def _price(layout: Layout, slice_: Slice, model: Model, work: Workload, batch: int, path: Path) -> Plan:
    try:
        return price_layout(layout, slice_, model, work, batch, batch, speeds(slice_.chip, work.dtypes))
    except LayoutError as error:
        raise LayoutError(f"the layout of '{path}' cannot run batch {batch}: {error}") from None


def layout_of(plan: Plan, programs: Sequence[Program] = (), chip: Chip | None = None) -> tuple[Layout, Slice, Workload]:
    """The layout that a plan says, on its slice and with its workload; raises `InputError` where it is no layout."""
    slice_ = slice_of_plan(parse_slice(plan.slice, chip), plan.reached)
    work = Workload(phase=plan.phase, batches=(plan.batch,), context=plan.context, dtypes=plan.dtypes)
    given = msgspec.convert(msgspec.to_builtins(plan), Given)
    return laid_out(given, slice_, components(plan.model, work, programs), Path("plan")), slice_, work


def chip_of(plan: Plan, path: str | Path | None) -> Chip | None:
    """The chip of a chip file; raises `InputError` where it is not the plan's, or where the plan needs one."""
    name = plan.slice.partition(":")[0].lower()
    if path is None:
        if ":" in plan.slice and name not in chip_names():
            raise InputError(f"the plan is for {plan.slice}, no built-in chip: name its chip file, as for `plan`")
        return None
    chip = read_chip(Path(path))
    if chip.name.lower() != name:
        wrong = f"chip_file '{path}' has the chip {chip.name!r}; the plan is for {plan.slice}"
        raise InputError(wrong, "chip_file")
    return chip


def read_given(path: Path, pick: int = 1) -> Given:
    """Read a layout file, or the layout of plan `pick` of a plan file."""
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


def _convert(value: Mapping[str, Any], path: Path) -> Given:
    try:
        return msgspec.convert(value, Given)
    except msgspec.ValidationError as error:
        raise InputError(f"the layout file '{path}' is not a valid layout: {error}") from None


def laid_out(given: Given, slice_: Slice, parts: Sequence[Component], path: Path) -> Layout:
    """The layout that a file gives these components on this slice; raises `InputError` where it does not fit."""
    names = given.mesh.axis_names
    _check_mesh(given.mesh, slice_, path)
    pieces = tuple(tuple(_piece(p, slice_, path) for p in axis) for axis in given.mesh.pieces)
    _check_covers(pieces, slice_, path)
    by_name = {layout.component: layout for layout in given.layouts}
    missing = [c.name for c in parts if c.name not in by_name]
    extra = [name for name in by_name if name not in {c.name for c in parts}]
    if missing or extra:
        raise InputError(
            f"the layout file '{path}' lays out {', '.join(by_name) or 'nothing'}; expected exactly "
            f"{', '.join(c.name for c in parts)}"
        )
    assigned = tuple(_assigned(c, by_name[c.name], names, path) for c in parts)
    residual = _residual(given.residual, names, path)
    order = tuple(dict.fromkeys((*chain(*(given.residual.get(dim, ()) for dim in "BTD")), *names)))
    return Layout(names, pieces, residual, assigned, order)


def _check_mesh(mesh: GivenMesh, slice_: Slice, path: Path) -> None:
    names = mesh.axis_names
    if len(set(names)) != len(names) or any(len(n) != 1 or not n.isalnum() for n in names):
        raise InputError(f"the layout file '{path}' names its mesh axes {names}; expected different single letters")
    if len(mesh.pieces) != len(names):
        raise InputError(f"the layout file '{path}' has {len(names)} mesh axes and pieces for {len(mesh.pieces)}")


def _piece(piece: MeshPiece, slice_: Slice, path: Path) -> Piece:
    names = [axis.name for axis in slice_.axes]
    if piece.axis not in names:
        raise InputError(
            f"the layout file '{path}' uses torus axis '{piece.axis}'; {slice_.name} has {', '.join(names)}"
        )
    return Piece(names.index(piece.axis), piece.stride, piece.size)


def _check_covers(pieces: Sequence[Sequence[Piece]], slice_: Slice, path: Path) -> None:
    """The pieces tile every physical axis of the slice: strides and sizes chain from 1 to its length."""
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


def _assigned(component: Component, given: GivenLayout, names: Sequence[str], path: Path) -> Assigned:
    if set(given.assignment) != set(names):
        raise InputError(
            f"the layout file '{path}' gives {component.name} roles for {', '.join(given.assignment) or 'no axis'}; "
            f"expected one for each of {', '.join(names) or 'none'} ('-' for none)"
        )
    body = component.body(given.program)
    return Assigned(component, body, tuple(body.axis_of(given.assignment[name]) for name in names))


def _residual(given: Mapping[str, Sequence[str]], names: Sequence[str], path: Path) -> tuple[str, ...]:
    found = dict.fromkeys(names, IDLE)
    for dim, axes in given.items():
        for axis in axes:
            if dim not in ("B", "T", "D") or found.get(axis) != IDLE:
                raise InputError(
                    f"the layout file '{path}' cuts {dim} of the residual by '{axis}'; expected dims B, T or D, "
                    f"and each of {', '.join(names)} at most once"
                )
            found[axis] = dim
    return tuple(found[name] for name in names)
