"""A layout: a mesh with named axes, the residual's cut, and a body with roles per component.

A layout is made from a search's choice, or read from a user's file. `programs` binds it: the glue and bodies
that run, in the book's notation on the axes of this mesh.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from mesh.pieces import Piece
from planner.search.problem import Choice
from planner.search.reshard_costs import playing
from strategies.bind import bind
from strategies.checker import check
from strategies.components import IDLE, Body, Component, Part, entry_parts, exit_parts
from strategies.notation import Axes, LayoutError, Program
from strategies.readers.axis_sets import Masks, masks_of_one

NAMES = "XYZWVUTS"


@dataclass(frozen=True)
class Assigned:
    """A component's body and the program axis that each mesh axis plays (`-`: idle)."""

    component: Component
    body: Body
    axes: tuple[str, ...]


@dataclass(frozen=True)
class Layout:
    """Mesh axes (name and pieces, major first), the residual's cut per mesh axis, and the components' layouts.

    `order` lists the mesh axes, major first: axes that cut the same dim of the residual do so in this order.
    """

    names: tuple[str, ...]
    pieces: tuple[tuple[Piece, ...], ...]
    residual: tuple[str, ...]
    assigned: tuple[Assigned, ...]
    order: tuple[str, ...]


def from_choice(choice: Choice, components: Sequence[Component]) -> Layout:
    """The layout of a choice; pieces that play the same roles everywhere become one mesh axis."""
    bodies = [c.body(p.body) for c, p in zip(components, choice.picks, strict=True)]
    groups: dict[tuple[str, tuple[str, ...]], list[Piece]] = {}
    for i, piece in enumerate(choice.mesh):
        groups.setdefault((choice.residual[i], tuple(p.axes[i] for p in choice.picks)), []).append(piece)
    found = sorted(groups.items(), key=lambda item: _by_place(item[1]))
    names = tuple(NAMES[: len(found)])
    assigned = tuple(
        Assigned(c, body, tuple(roles[n] for (_, roles), _ in found))
        for n, (c, body) in enumerate(zip(components, bodies, strict=True))
    )
    residual = tuple(cut for (cut, _), _ in found)
    pieces = tuple(tuple(sorted(p, key=lambda x: (x.axis, -x.stride))) for _, p in found)
    return Layout(names, pieces, residual, assigned, residual_order(names, residual, assigned))


def _by_place(pieces: list[Piece]) -> tuple[int, int]:
    first = min(pieces, key=lambda p: (p.axis, -p.stride))
    return first.axis, -first.stride


def residual_order(names: Sequence[str], residual: Sequence[str], assigned: Sequence[Assigned]) -> tuple[str, ...]:
    """An order of the mesh axes in which every component keeps a prefix: first what all keep, last what none keeps.

    Where each component's kept axes are prefixes of some order, sorting by the sum over components of how late an
    axis comes for each is such an order. Axes that cut B come before those that cut T, D and nothing, so that the
    order is what the residual's dims say, each in its order.
    """
    late = {}
    for i, name in enumerate(names):
        levels = []
        for a in assigned:
            reads, gives = (IDLE, IDLE) if a.axes[i] == IDLE else (a.body.reads(a.axes[i]), a.body.gives(a.axes[i]))
            levels += [int(reads != residual[i]), 0 if gives == residual[i] else 2 if gives == "U" else 1]
        late[name] = sum(levels)
    cuts = dict(zip(names, residual, strict=True))
    return tuple(sorted(names, key=lambda name: ("BTD-".index(cuts[name]), late[name], names.index(name))))


@dataclass(frozen=True)
class Bound:
    """A bound program of a layout: `part` is entry, body or exit; `source` is its form with roles or pairs."""

    component: Component
    part: str
    source: Part
    masks: Masks
    program: Program


def programs(layout: Layout) -> tuple[Bound, ...]:
    """Every program that a step runs, in order: embedding, the components, unembedding.

    Each is checked again on the mesh's axes; raises `LayoutError` where the parts do not fit together.
    """
    embed: list[Bound] = []
    middle: list[Bound] = []
    unembed: list[Bound] = []
    for a in layout.assigned:
        entry = _glue(layout, a, entry_parts(a.component, _phase(a)), "entry")
        leave = _glue(layout, a, exit_parts(a.component, _phase(a)), "exit")
        bodies = [_bind(layout, a, part) for part in a.body.parts]
        if a.component.kind == "vocab":
            embed += [bodies[0], *leave]
            unembed += [*entry, *bodies[1:]]
        else:
            middle += [*entry, *bodies, *leave]
    found = (*embed, *middle, *unembed)
    _check_residual(found)
    return found


def _phase(assigned: Assigned) -> str:
    return assigned.body.parts[0].program.phase


def _bind(layout: Layout, a: Assigned, part: Part) -> Bound:
    plays = {axis: tuple(n for n, p in zip(layout.names, a.axes, strict=True) if p == axis) for axis in a.body.axes}
    return _bound(layout, a.component, "body", part, {k: _sorted(v, layout) for k, v in plays.items()})


def _sorted(names: Axes, layout: Layout) -> Axes:
    return tuple(sorted(names, key=layout.order.index))


def _bound(
    layout: Layout, component: Component, name: str, part: Part, plays: Mapping[str, Axes], output: str | None = None
) -> Bound:
    playing = {axis: [layout.names.index(n) for n in names] for axis, names in plays.items()}
    masks = masks_of_one(playing, len(layout.names))
    order = (layout.names, layout.residual, layout.order)
    return Bound(component, name, part, masks, _bound_program(part.program, tuple(plays.items()), order, output))


@lru_cache(maxsize=1 << 14)
def _bound_program(
    program: Program, plays: tuple[tuple[str, Axes], ...], order: tuple[Axes, Axes, Axes], output: str | None
) -> Program:
    """The program on mesh axes, checked; many plans share it. `output`: what glue calls the body's output."""
    names, residual, major = order

    def key(dim: str, axis: str) -> tuple[int, ...]:
        """Axes that cut the residual in this dim come first, in the residual's order."""
        return (int(residual[names.index(axis)] != dim), major.index(axis))

    bound = bind(program, dict(plays), key)
    bound = bound if output is None else _meet(bound, output)
    check(bound)
    return bound


def _glue(layout: Layout, a: Assigned, parts: Sequence[Part], side: str) -> list[Bound]:
    ends = [_end(a.body, axis, side) for axis in a.axes]
    found = []
    for part in parts:
        plays = playing(part, ends, layout.residual, layout.names, side)
        ordered = {k: _sorted(v, layout) for k, v in plays.items()}
        output = a.body.parts[0].program.output.name if side == "exit" else None
        found.append(_bound(layout, a.component, side, part, ordered, output))
    return found


def _end(body: Body, axis: str, side: str) -> str:
    if axis == IDLE:
        return IDLE
    return body.reads(axis) if side == "entry" else body.gives(axis)


def _meet(program: Program, name: str) -> Program:
    """The exit glue with the body's own name for its output."""
    steps = tuple(
        replace(
            s,
            inputs=tuple(t.renamed(name) if t.name == "o" else t for t in s.inputs),
            outputs=tuple(t.renamed(name) if t.name == "o" else t for t in s.outputs),
        )
        for s in program.steps
    )
    return replace(program, steps=steps, input=program.input.renamed(name))


def _check_residual(found: Sequence[Bound]) -> None:
    """What each program writes is what the next reads, and all meet one residual stream."""
    residual = None
    previous = None
    for bound in found:
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
