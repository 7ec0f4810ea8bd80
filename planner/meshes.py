"""Which meshes a slice is searched on: each physical axis cut into at most two pieces, at most four pieces in all.

A layout that gives both pieces of an axis equal roles is the layout of the uncut axis, so a finer mesh covers
the coarser ones: only the finest cuts are listed. Physical axes of equal length and kind are interchangeable.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

from mesh.pieces import Piece, cuts
from mesh.slices import Slice

MOST_AXES = 4

Mesh = tuple[Piece, ...]


def meshes(slice_: Slice) -> tuple[Mesh, ...]:
    """The meshes to search: tuples of pieces, by physical axis and then minor piece first."""
    sizes = [axis.size for axis in slice_.axes]
    real = [i for i, size in enumerate(sizes) if size > 1]
    room = MOST_AXES - len(real)
    seen: dict[object, Mesh] = {}
    for choice in product(*(_options(sizes[i]) for i in real)):
        if sum(len(option) - 1 for option in choice) == min(room, sum(1 for i in real if cuts(sizes[i]))):
            mesh = tuple(_pieces(dict(zip(real, choice, strict=True))))
            seen.setdefault(_symmetric(slice_, real, choice), mesh)
    return tuple(seen.values())


def _options(size: int) -> list[tuple[int, ...]]:
    return [(size,), *cuts(size)]


def _pieces(choice: dict[int, tuple[int, ...]]) -> Iterator[Piece]:
    for axis, sizes in choice.items():
        stride = 1
        for size in sizes:
            yield Piece(axis, stride, size)
            stride *= size


def _symmetric(slice_: Slice, real: list[int], choice: tuple[tuple[int, ...], ...]) -> object:
    kinds = [
        (slice_.axes[i].size, slice_.axes[i].ring, slice_.axes[i].core, option)
        for i, option in zip(real, choice, strict=True)
    ]
    return tuple(sorted(kinds))


def symmetries(slice_: Slice) -> int:
    """In how many ways interchangeable physical axes can be swapped."""
    count, seen = 1, dict[object, int]()
    for axis in slice_.axes:
        if axis.size > 1:
            key = (axis.size, axis.ring, axis.core)
            seen[key] = seen.get(key, 0) + 1
            count *= seen[key]
    return count
