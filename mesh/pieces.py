"""Pieces: the parts of physical axes that a mesh axis is made of."""

from collections.abc import Iterable

import msgspec

from mesh.errors import InputError
from mesh.slices import Slice


class Piece(msgspec.Struct, frozen=True, order=True):
    """A contiguous piece of one physical axis: `size` members, `stride` chips apart.

    `axis` counts in Slice.axes. A line of 8 chips cut into a minor piece of 2 and a major piece of 4:

    >>> minor, major = Piece(axis=0, stride=1, size=2), Piece(axis=0, stride=2, size=4)
    >>> merge([major, minor])
    (Piece(axis=0, stride=1, size=8),)
    """

    axis: int
    stride: int
    size: int

    def __post_init__(self) -> None:
        if self.axis < 0 or self.stride < 1 or self.size < 1:
            raise InputError(f"{self}: axis must be at least 0, stride and size at least 1")


def merge(pieces: Iterable[Piece]) -> tuple[Piece, ...]:
    """Join adjacent pieces and drop those of size 1; at most one piece per physical axis may remain.

    Two pieces of one axis that are not adjacent share its links, so the second adds no bandwidth:
    such a group is an error, not a faster group.
    """
    merged: list[Piece] = []
    for piece in sorted(piece for piece in pieces if piece.size > 1):
        last = merged[-1] if merged else None
        if last is None or last.axis != piece.axis:
            merged.append(piece)
        elif piece.stride == last.stride * last.size:
            merged[-1] = Piece(axis=last.axis, stride=last.stride, size=last.size * piece.size)
        else:
            raise InputError(_apart(last, piece))
    return tuple(merged)


def cuts(size: int) -> list[tuple[int, int]]:
    """The ways to cut an axis in two: (minor size, major size), both above 1.

    >>> cuts(12)
    [(2, 6), (3, 4), (4, 3), (6, 2)]
    >>> cuts(2)
    []
    """
    return [(minor, size // minor) for minor in range(2, size) if size % minor == 0]


def check_fits(slice_: Slice, pieces: Iterable[Piece]) -> None:
    """Raise InputError unless every piece is a part of its axis of the slice."""
    axes = slice_.axes
    for piece in pieces:
        if piece.axis >= len(axes):
            raise InputError(f"{piece}: {slice_.name} has {len(axes)} axes, so axis must be below {len(axes)}")
        size = axes[piece.axis].size
        if size % (piece.stride * piece.size):
            raise InputError(
                f"{piece}: stride x size = {piece.stride * piece.size} must divide axis "
                f"{axes[piece.axis].name} of {slice_.name}, which is {size}"
            )


def _apart(near: Piece, far: Piece) -> str:
    return (
        f"pieces {near} and {far} lie on one axis but are not adjacent, so they add no bandwidth: "
        f"the second needs stride {near.stride * near.size}"
    )
