"""List the meshes on which a slice is searched: the ways to cut its physical axes into mesh axes.

`two` (the default): each physical axis into at most two pieces and all into at most four. On slices of up to 64 chips,
where fewer cost up to 12% at some batches, it is three and five, and a component has at most three different roles.
`all`: as many pieces as an axis's length has prime factors, in every order. `none`: uncut physical axes, the
meshes that `jax.make_mesh` gives without splitting physical axes.

A layout that gives adjacent pieces of an axis equal roles is the layout of the uncut axis, so a finer mesh covers
the coarser ones: only the finest cuts are listed. Physical axes of equal length and kind are interchangeable.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import permutations, product

from mesh.errors import InputError
from mesh.pieces import Piece, cuts
from mesh.slices import Slice
from planner.query.query import ALL, NONE, TWO

COARSE = "coarse"
"""At most two pieces of an axis, and four in all, on any slice: the meshes that are searched first."""
MOST_AXES, MOST_AXES_OF_ALL = 4, 7
SMALL_CHIPS, MOST_AXES_OF_SMALL, MOST_PIECES_OF_SMALL, MOST_ROLES = 64, 5, 3, 3
"""Limits of the default on slices of up to `SMALL_CHIPS` chips: mesh axes, pieces of a physical axis, and different
roles of a component."""

Mesh = tuple[Piece, ...]


def meshes(slice_: Slice, how: str = TWO) -> tuple[Mesh, ...]:
    """Return the meshes to search, each a tuple of pieces by physical axis, the minor piece first.

    Of meshes that differ only by a swap of equal physical axes, one is listed. Raises `InputError` where cuts `all`
    would give more mesh axes than can be searched.

    >>> from mesh.slices import parse_slice
    >>> meshes(parse_slice("v5e:4x4"), "none")
    ((Piece(axis=0, stride=1, size=4), Piece(axis=1, stride=1, size=4)),)
    >>> len(meshes(parse_slice("v5e:16x16")))
    6
    """
    sizes = [axis.size for axis in slice_.axes]
    real = [i for i, size in enumerate(sizes) if size > 1]
    seen: dict[object, Mesh] = {}
    for choice in _choices([sizes[i] for i in real], how, slice_.chips <= SMALL_CHIPS):
        mesh = tuple(_pieces(dict(zip(real, choice, strict=True))))
        seen.setdefault(_symmetric(slice_, real, choice), mesh)
    result = tuple(seen.values())
    if len(result[0]) > MOST_AXES_OF_ALL:
        raise InputError(
            f"cuts {how}: {slice_.name} would have {len(result[0])} mesh axes, of at most {MOST_AXES_OF_ALL}; "
            "expected a smaller slice, such as one of 64 chips",
            "cuts",
        )
    return result


def most_roles(mesh: Mesh, how: str) -> int | None:
    """Return the number of different roles that a component may have on a mesh; None means any number."""
    return MOST_ROLES if how == TWO and len(mesh) > MOST_AXES else None


def _choices(sizes: Sequence[int], how: str, small: bool) -> Iterator[tuple[tuple[int, ...], ...]]:
    """Yield the sizes of the pieces of each axis, minor first."""
    if how == NONE:
        yield tuple((size,) for size in sizes)
    elif how == ALL:
        yield from product(*(sorted(set(permutations(_primes(size)))) for size in sizes))
    else:
        most_axes, pieces = (MOST_AXES_OF_SMALL, MOST_PIECES_OF_SMALL) if small and how == TWO else (MOST_AXES, 2)
        options = list(product(*([*_cuts(size, pieces)] for size in sizes)))
        finest = max(n for n in map(_count, options) if n <= max(most_axes, len(sizes)))
        yield from (choice for choice in options if _count(choice) == finest)


def _count(choice: Sequence[tuple[int, ...]]) -> int:
    """Return the number of mesh axes that a choice of pieces gives."""
    return sum(map(len, choice))


def _cuts(size: int, pieces: int) -> Iterator[tuple[int, ...]]:
    """Yield an axis uncut, and cut into up to `pieces` pieces, minor first.

    >>> list(_cuts(8, 3))
    [(8,), (2, 4), (2, 2, 2), (4, 2)]
    """
    yield (size,)
    if pieces > 1:
        for minor, rest in cuts(size):
            yield from ((minor, *more) for more in _cuts(rest, pieces - 1))


def _primes(size: int) -> tuple[int, ...]:
    """Return the prime factors of a size.

    >>> _primes(12)
    (2, 2, 3)
    """
    primes = []
    for prime in range(2, size + 1):
        while size % prime == 0:
            primes.append(prime)
            size //= prime
    return tuple(primes)


def _pieces(choice: dict[int, tuple[int, ...]]) -> Iterator[Piece]:
    """Yield the pieces of each physical axis, the minor one (stride 1) first."""
    for axis, sizes in choice.items():
        stride = 1
        for size in sizes:
            yield Piece(axis, stride, size)
            stride *= size


def _symmetric(slice_: Slice, real: list[int], choice: tuple[tuple[int, ...], ...]) -> object:
    """Return a key that is equal for choices that differ only by a swap of equal physical axes."""
    kinds = [
        (slice_.axes[i].size, slice_.axes[i].ring, slice_.axes[i].core, option)
        for i, option in zip(real, choice, strict=True)
    ]
    return tuple(sorted(kinds))


def symmetries(slice_: Slice) -> int:
    """Return the number of ways in which interchangeable physical axes can be swapped.

    >>> from mesh.slices import parse_slice
    >>> symmetries(parse_slice("v5e:4x4"))
    2
    """
    count, seen = 1, dict[object, int]()
    for axis in slice_.axes:
        if axis.size > 1:
            key = (axis.size, axis.ring, axis.core)
            seen[key] = seen.get(key, 0) + 1
            count *= seen[key]
    return count
