"""A layout: how a model lies on a mesh, by names: the same value in a plan, in a layout file and from a search.

    mesh        named axes, each made of pieces of the slice's physical axes
    residual    by dim (B, T or D) the mesh axes that cut the residual stream, major first
    layouts     by component its program, and the role of each mesh axis

`bind_layout` puts in the components themselves: their programs, and program axes instead of the roles' names. What then
runs, step by step, is in `strategies.readers.bound`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from math import prod

import msgspec

from mesh.errors import InputError
from mesh.pieces import Piece
from mesh.slices import Slice
from strategies.components import IDLE, Body, Component
from strategies.notation import Axes

NAMES = "abcdefgh"
"""Names of mesh axes, in order, where nobody else names them."""
DIMS = ("B", "T", "D")
"""What can be cut of the residual stream."""


class MeshPiece(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A contiguous piece of a physical axis (`X`, `Y`, `Z` or `core`): `size` members, `stride` chips apart."""

    axis: str
    stride: int
    size: int


class MeshAxes(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A mesh: names, sizes, and per axis its pieces, major first. Sizes that are not given are those of the pieces."""

    axis_names: tuple[str, ...]
    axis_sizes: tuple[int, ...] = ()
    pieces: tuple[tuple[MeshPiece, ...], ...]

    def __post_init__(self) -> None:
        if not self.axis_sizes:
            sizes = tuple(prod(piece.size for piece in pieces) for pieces in self.pieces)
            msgspec.structs.force_setattr(self, "axis_sizes", sizes)

    @property
    def sizes(self) -> dict[str, int]:
        """Devices along each axis, by its name."""
        return dict(zip(self.axis_names, self.axis_sizes, strict=True))

    def on(self, slice_: Slice) -> tuple[tuple[Piece, ...], ...]:
        """The axes' pieces by the number of their physical axis on a slice that has it."""
        numbers = {axis.name: number for number, axis in enumerate(slice_.axes)}
        return tuple(tuple(Piece(numbers[p.axis], p.stride, p.size) for p in pieces) for pieces in self.pieces)


def mesh_of(slice_: Slice, pieces: Sequence[Sequence[Piece]], names: Sequence[str] = NAMES) -> MeshAxes:
    """The mesh whose axes, in this order, are made of these pieces of a slice.

    >>> from mesh.slices import parse_slice
    >>> mesh_of(parse_slice("v5e:2x4"), [[Piece(1, 1, 4)], [Piece(0, 1, 2)]]).sizes
    {'a': 4, 'b': 2}
    """
    physical = [axis.name for axis in slice_.axes]
    return MeshAxes(
        axis_names=tuple(names[: len(pieces)]),
        pieces=tuple(
            tuple(MeshPiece(axis=physical[p.axis], stride=p.stride, size=p.size) for p in of) for of in pieces
        ),
    )


def has_cache(component: str) -> bool:
    """Return whether a component of this name has a KV cache, as attention and parallel blocks have."""
    return component.startswith(("attention", "block"))


class ComponentLayout(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A component's program, and the role of each mesh axis (`-`: none).

    What follows from these a plan says besides: the component's layer `groups` and their `layers`; the dims of its
    cache in order; in which order positions lie over the shards of a cut cache; and `capacity`: C, the slots per expert
    that are priced and run, those of all token shards together.
    """

    component: str
    groups: tuple[int, ...] = ()
    layers: int = 0
    program: str
    assignment: dict[str, str]
    cache_order: str | None = None
    sequence_order: str | None = None
    capacity: int | None = None

    @property
    def cached(self) -> bool:
        """Return whether the component has a KV cache."""
        return has_cache(self.component)

    def cuts_over(self, mesh: MeshAxes) -> list[tuple[str, int]]:
        """Return each role with the devices over which it holds: those of most devices first, idle axes last.

        It does not depend on how mesh axes are named: axes of one role count together.
        """
        ways: dict[str, int] = {}
        for name, size in mesh.sizes.items():
            if size > 1:
                role = self.assignment[name]
                ways[role] = ways.get(role, 1) * size
        return sorted(ways.items(), key=lambda item: (item[0] == IDLE, -item[1], item[0]))

    def roles_over(self, mesh: MeshAxes) -> str:
        """Return `cuts_over` as text, `N+K 8, D+B 2`, after the program where that says more than the component."""
        played = [f"{'idle' if role == IDLE else role} {n}" for role, n in self.cuts_over(mesh)]
        program = "" if self.component.startswith(self.program) else f"{self.program} "
        return f"{program}{', '.join(played) or 'whole'}"


class Layout(msgspec.Struct, frozen=True, kw_only=True):
    """A mesh, what cuts the residual stream, and the layout of every component."""

    mesh: MeshAxes
    layouts: tuple[ComponentLayout, ...]
    residual: dict[str, tuple[str, ...]] = {}

    @property
    def cuts(self) -> tuple[str, ...]:
        """Return the dim of the residual stream that each mesh axis cuts: B, T, D or nothing, `-`."""
        cut_by = {axis: dim for dim, axes in self.residual.items() for axis in axes}
        return tuple(cut_by.get(name, IDLE) for name in self.mesh.axis_names)

    @property
    def order(self) -> Axes:
        """The mesh axes, major first: those that cut B, T and D in turn, then the others as the mesh lists them.

        Axes that cut one dim of a tensor do so in this order, those first that cut the residual in it.
        """
        cutting = chain(*(self.residual.get(dim, ()) for dim in DIMS))
        return tuple(dict.fromkeys((*cutting, *self.mesh.axis_names)))


@dataclass(frozen=True)
class Assigned:
    """A component's body and the program axis of each mesh axis (`-`: idle)."""

    component: Component
    body: Body
    axes: tuple[str, ...]


@dataclass(frozen=True)
class BoundLayout:
    """A layout with the components that it lays out."""

    layout: Layout
    assigned: tuple[Assigned, ...]

    @property
    def mesh(self) -> MeshAxes:
        """Its mesh."""
        return self.layout.mesh

    @property
    def names(self) -> Axes:
        """The mesh axes' names."""
        return self.layout.mesh.axis_names

    @property
    def cuts(self) -> tuple[str, ...]:
        """Return the dim of the residual stream that each mesh axis cuts: B, T, D or `-`."""
        return self.layout.cuts

    @property
    def order(self) -> Axes:
        """The mesh axes, major first."""
        return self.layout.order


def bind_layout(layout: Layout, components: Sequence[Component]) -> BoundLayout:
    """Every component with its layout; raises `InputError` where it has none, or no such program or role."""
    named = {one.component: one for one in layout.layouts}
    if set(named) != {c.name for c in components}:
        raise InputError(
            f"the layout lays out {', '.join(named) or 'nothing'}; expected exactly "
            f"{', '.join(c.name for c in components)}"
        )
    names = layout.mesh.axis_names
    return BoundLayout(layout, tuple(_assigned(component, named[component.name], names) for component in components))


def _assigned(component: Component, given: ComponentLayout, names: Sequence[str]) -> Assigned:
    body = component.body(given.program)
    return Assigned(component, body, tuple(body.axis_of(given.assignment[name]) for name in names))


def lay_out(
    mesh: MeshAxes, cuts: Sequence[str], assigned: Sequence[Assigned], order: Sequence[str] | None = None
) -> BoundLayout:
    """The layout in which each mesh axis cuts this of the residual and is bound to these program axes.

    `order`: of the mesh axes, of which those count that cut one dim of the residual; None: `residual_order`.
    """
    names = mesh.axis_names
    order = residual_order(names, cuts, assigned) if order is None else order
    layout = Layout(
        mesh=mesh,
        residual={dim: tuple(name for name in order if cuts[names.index(name)] == dim) for dim in DIMS},
        layouts=tuple(
            ComponentLayout(
                component=a.component.name,
                program=a.body.name,
                assignment={name: a.body.role_name(axis) for name, axis in zip(names, a.axes, strict=True)},
            )
            for a in assigned
        ),
    )
    return BoundLayout(layout, tuple(assigned))


def residual_order(names: Sequence[str], cuts: Sequence[str], assigned: Sequence[Assigned]) -> Axes:
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
            levels += [int(reads != cuts[i]), 0 if gives == cuts[i] else 2 if gives == "U" else 1]
        late[name] = sum(levels)
    cut_by = dict(zip(names, cuts, strict=True))
    return tuple(sorted(names, key=lambda name: ("BTD-".index(cut_by[name]), late[name], names.index(name))))
