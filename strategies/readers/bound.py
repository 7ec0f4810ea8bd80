"""The programs that a layout runs, bound to the axes of its mesh, in order, and sized for one batch.

`programs` binds a layout: resharding and bodies in the book's notation on the axes of this mesh, each checked again.
`size_program` gives one of them its dims after padding: what the cost, memory and specs readers ask of it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from strategies.bind import bind
from strategies.checker import check, check_sizes
from strategies.components import IDLE, Body, CheckedProgram, Component, entry_parts, exit_parts
from strategies.layout import Assigned, BoundLayout
from strategies.notation import Axes, LayoutError, Program
from strategies.prices import Number
from strategies.readers.axis_sets import Masks, masks_of_one
from strategies.readers.cost import ArrayScope, Speeds
from strategies.readers.fit import fit_part, scope_of
from strategies.readers.rates import Rates
from strategies.readers.sizes import PaddedSizes
from strategies.residual_program import axes_of_pairs


@dataclass(frozen=True)
class Bound:
    """A bound program of a layout: `part` is entry, body or exit; `source` is its form with roles or pairs."""

    component: Component
    part: str
    source: CheckedProgram
    masks: Masks
    program: Program


def programs(layout: BoundLayout) -> tuple[Bound, ...]:
    """Every program that a step runs, in order: embedding, the components, unembedding.

    Each is checked again on the mesh's axes; raises `LayoutError` where the parts do not fit together.
    """
    embed: list[Bound] = []
    middle: list[Bound] = []
    unembed: list[Bound] = []
    for a in layout.assigned:
        entry = _reshards(layout, a, entry_parts(a.component, _phase(a)), "entry")
        leave = _reshards(layout, a, exit_parts(a.component, _phase(a)), "exit")
        bodies = [_bind(layout, a, part) for part in a.body.parts]
        if a.component.kind == "vocab":
            embed += [bodies[0], *leave]
            unembed += [*entry, *bodies[1:]]
        else:
            middle += [*entry, *bodies, *leave]
    bound = (*embed, *middle, *unembed)
    _check_residual(bound)
    return bound


def _phase(assigned: Assigned) -> str:
    return assigned.body.parts[0].program.phase


def _bind(layout: BoundLayout, a: Assigned, part: CheckedProgram) -> Bound:
    role_axes = {axis: tuple(n for n, p in zip(layout.names, a.axes, strict=True) if p == axis) for axis in a.body.axes}
    return _bound(layout, a.component, "body", part, {k: _sorted(v, layout) for k, v in role_axes.items()})


def _sorted(names: Axes, layout: BoundLayout) -> Axes:
    return tuple(sorted(names, key=layout.order.index))


def _bound(
    layout: BoundLayout,
    component: Component,
    name: str,
    part: CheckedProgram,
    role_axes: Mapping[str, Axes],
    output: str | None = None,
) -> Bound:
    numbers = {axis: [layout.names.index(n) for n in names] for axis, names in role_axes.items()}
    masks = masks_of_one(numbers, len(layout.names))
    order = (layout.names, layout.cuts, layout.order)
    return Bound(component, name, part, masks, _bound_program(part.program, tuple(role_axes.items()), order, output))


@lru_cache(maxsize=1 << 14)
def _bound_program(
    program: Program, role_axes: tuple[tuple[str, Axes], ...], order: tuple[Axes, Axes, Axes], output: str | None
) -> Program:
    """The program on mesh axes, checked; many plans share it. `output`: what reshard calls the body's output."""
    names, residual, major = order

    def key(dim: str, axis: str) -> tuple[int, ...]:
        """Axes that cut the residual in this dim come first, in the residual's order."""
        return (int(residual[names.index(axis)] != dim), major.index(axis))

    bound = bind(program, dict(role_axes), key)
    bound = bound if output is None else _meet(bound, output)
    check(bound)
    return bound


def _reshards(layout: BoundLayout, a: Assigned, parts: Sequence[CheckedProgram], side: str) -> list[Bound]:
    ends = [_end(a.body, axis, side) for axis in a.axes]
    programs = []
    for part in parts:
        role_axes = axes_of_pairs(part.program, ends, layout.cuts, layout.names)
        ordered = {k: _sorted(v, layout) for k, v in role_axes.items()}
        output = a.body.parts[0].program.output.name if side == "exit" else None
        programs.append(_bound(layout, a.component, side, part, ordered, output))
    return programs


def _end(body: Body, axis: str, side: str) -> str:
    if axis == IDLE:
        return IDLE
    return body.reads(axis) if side == "entry" else body.gives(axis)


def _meet(program: Program, name: str) -> Program:
    """The exit reshard with the body's own name for its output."""
    steps = tuple(
        replace(
            s,
            inputs=tuple(t.renamed(name) if t.name == "o" else t for t in s.inputs),
            outputs=tuple(t.renamed(name) if t.name == "o" else t for t in s.outputs),
        )
        for s in program.steps
    )
    return replace(program, steps=steps, input=program.input.renamed(name))


def _check_residual(programs: Sequence[Bound]) -> None:
    """Check that each program reads the tensor that the one before writes, and that all meet one residual stream."""
    residual = None
    previous = None
    for bound in programs:
        if bound.part != "body" and bound.program.name != "last":
            ends = bound.program.input if bound.part == "entry" else bound.program.output
            if bound.component.kind != "vocab" or bound.part == "exit":
                residual = residual or ends
                if not residual.same_type(ends):
                    raise LayoutError(f"{bound.component.name} needs the residual as {ends}, others as {residual}")
        if previous is not None and bound.part == "body" and previous.part == "entry":
            _same(previous.program, bound.program, bound.component.name)
        if previous is not None and bound.part == "exit" and previous.part == "body":
            _same(previous.program, bound.program, bound.component.name)
        previous = bound


def _same(first: Program, second: Program, name: str) -> None:
    if not first.output.renamed("").same_type(second.input.renamed("")):
        raise LayoutError(f"{name}: {first.name} gives {first.output}, and {second.name} reads {second.input}")


@dataclass(frozen=True)
class SizedProgram:
    """A bound program with its scope: sizes after padding and the mesh's rates."""

    bound: Bound
    scope: ArrayScope
    sizes: dict[str, Number]


def size_program(layout: BoundLayout, bound: Bound, rates: Rates, fast: Speeds, padded: int) -> SizedProgram:
    """Size a bound program's dims at one batch; raises `LayoutError` where one does not divide."""
    padded_sizes = fit_part(bound.source, bound.component, rates, bound.masks, np.array([[padded]]))
    _must_fit(padded_sizes, bound, padded)
    sizes = scope_of(bound.source, padded_sizes.sizes, bound.masks, rates, fast).sizes
    masks = masks_of_one({name: (i,) for i, name in enumerate(layout.names)}, len(layout.names))
    whole = {name: int(np.max(size)) for name, size in sizes.items() if name not in ("attended", "C", "tokens")}
    check_sizes(bound.source.needs, whole, _letter_ways(bound, rates), f"{bound.component.name}: ")
    return SizedProgram(bound, ArrayScope(bound.program, masks, sizes, rates, fast.widths), dict(sizes))


def _letter_ways(bound: Bound, rates: Rates) -> dict[str, int]:
    return {axis: int(rates.n[mask[0, 0]]) for axis, mask in bound.masks.items()}


def _must_fit(sizes: PaddedSizes, bound: Bound, padded: int) -> None:
    if not sizes.ok.all():
        dim, reason, _, ways = sizes.failures[0]
        size = padded if dim == "B" else int(bound.component.dims[dim])
        raise LayoutError(f"{bound.component.name}: {reason}: {dim} = {size}, cut {int(ways.flat[0])} ways")
