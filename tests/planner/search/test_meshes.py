"""Which meshes a slice is searched on."""

from __future__ import annotations

from math import prod

import pytest
from oracles.torus import legal_slices

from mesh.slices import Slice, parse_slice
from planner.search.meshes import Mesh, meshes, symmetries

SMALL = [s for chip in ("v5e", "v5p", "v6e", "tpu7x", "h100") for s in legal_slices(chip) if s.chips <= 256]


def _lines(mesh: Mesh, slice_: Slice) -> list[object]:
    """The mesh as its cuts per physical axis, whichever of the equal axes it is."""
    return sorted(
        (axis.size, axis.ring, axis.core, tuple(p.size for p in mesh if p.axis == i))
        for i, axis in enumerate(slice_.axes)
    )


@pytest.mark.parametrize("slice_", SMALL, ids=lambda s: s.name)
def test_pieces_tile_every_axis(slice_: Slice) -> None:
    """Every mesh covers each device once: pieces of an axis follow each other, minor first, and fill it."""
    for mesh in meshes(slice_):
        assert prod(piece.size for piece in mesh) == slice_.devices
        for i, axis in enumerate(slice_.axes):
            stride = 1
            for piece in (p for p in mesh if p.axis == i):
                assert piece.stride == stride
                stride *= piece.size
            assert stride == axis.size


@pytest.mark.parametrize("slice_", SMALL, ids=lambda s: s.name)
def test_few_axes_and_few_pieces_of_each(slice_: Slice) -> None:
    """At most four and two, on small slices five and three, and no two meshes differ by a swap only."""
    found = meshes(slice_)
    assert found
    most, pieces = (5, 3) if slice_.chips <= 64 else (4, 2)
    for mesh in found:
        assert len(mesh) <= most
        assert all(sum(p.axis == i for p in mesh) <= pieces for i in range(len(slice_.axes)))
    lines = [_lines(mesh, slice_) for mesh in found]
    assert all(line not in lines[:n] for n, line in enumerate(lines))


@pytest.mark.parametrize(
    ("name", "sizes"),
    [
        ("v5e:1x1", [()]),
        ("v5e:2x2", [(2, 2)]),
        ("v5e:2x4", [(2, 2, 2)]),
        ("v5e:4x4", [(2, 2, 2, 2)]),
        ("v5e:4x8", [(2, 2, 2, 2, 2)]),
        ("v5e:8x8", [(2, 4, 2, 2, 2), (2, 2, 2, 4, 2)]),
        ("v5e:8x16", [(2, 4, 2, 8), (2, 4, 4, 4), (2, 4, 8, 2), (4, 2, 2, 8), (4, 2, 4, 4), (4, 2, 8, 2)]),
        ("v5p:4x4x4", [(4, 2, 2, 2, 2)]),
        ("tpu7x:2x2x2", [(2, 2, 2, 2)]),
        ("h100:8", [(2, 2, 2)]),
    ],
)
def test_only_the_finest_cuts_are_listed(name: str, sizes: list[tuple[int, ...]]) -> None:
    """A finer mesh covers the coarser ones, and one of equal axes stands for all, so few meshes remain."""
    assert [tuple(p.size for p in mesh) for mesh in meshes(parse_slice(name))] == sizes


@pytest.mark.parametrize(
    ("name", "ways"), [("v5e:1x1", 1), ("v5e:2x4", 1), ("v5e:4x4", 2), ("v5p:2x2x4", 2), ("v5p:4x4x4", 6)]
)
def test_symmetries_count_the_swaps_of_equal_axes(name: str, ways: int) -> None:
    """Equal physical axes can be swapped; axes of one chip cannot be told from none."""
    assert symmetries(parse_slice(name)) == ways


def test_the_core_axis_is_no_equal_of_a_torus_axis() -> None:
    """The two cores of a tpu7x chip have a link of their own, so their axis is never swapped with another of 2."""
    assert symmetries(parse_slice("tpu7x:2x2x1")) == 2
