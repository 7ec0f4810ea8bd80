"""Every slice of a chip, and every group of devices that pieces of a slice can form."""

import itertools

from mesh.chips import load_chip
from mesh.pieces import Piece
from mesh.slices import Slice, slices_of


def legal_slices(chip_name: str) -> tuple[Slice, ...]:
    """Every slice of a built-in chip, by number of chips.

    >>> [slice_.name for slice_ in legal_slices("v5e")][:4]
    ['v5e:1x1', 'v5e:2x2', 'v5e:2x4', 'v5e:4x4']
    """
    return slices_of(load_chip(chip_name))


def whole(slice_: Slice) -> tuple[Piece, ...]:
    """One piece per physical axis longer than 1, each the whole axis: all devices of the slice.

    >>> from mesh.slices import parse_slice
    >>> whole(parse_slice("tpu7x:2x2x1"))  # X, Y and the core axis
    (Piece(axis=0, stride=1, size=2), Piece(axis=1, stride=1, size=2), Piece(axis=3, stride=1, size=2))
    """
    sizes = enumerate(axis.size for axis in slice_.axes)
    return tuple(Piece(axis=axis, stride=1, size=size) for axis, size in sizes if size > 1)


def merged_groups(slice_: Slice) -> list[tuple[Piece, ...]]:
    """Every group that merged pieces can form in a slice, the group of one device (no pieces) first.

    >>> from mesh.slices import parse_slice
    >>> len(merged_groups(parse_slice("v5e:4x4")))  # an axis of 4 gives none, 2 near, 2 far or 4
    16
    """
    options = [_options(axis, physical.size) for axis, physical in enumerate(slice_.axes)]
    return [tuple(itertools.chain(*choice)) for choice in itertools.product(*options)]


def _options(axis: int, size: int) -> list[tuple[Piece, ...]]:
    pairs = [(stride, length) for stride in _divisors(size) for length in _divisors(size // stride)]
    return [(), *((Piece(axis=axis, stride=s, size=m),) for s, m in pairs if m > 1)]


def _divisors(number: int) -> list[int]:
    return [divisor for divisor in range(1, number + 1) if number % divisor == 0]
