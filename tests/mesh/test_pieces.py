"""Pieces of physical axes merge where they are adjacent and are refused where they are not."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from oracles.torus import merged_groups, whole

from mesh.errors import InputError
from mesh.pieces import Piece, check_fits, cuts, merge
from mesh.slices import parse_slice


def test_adjacent_pieces_merge_in_any_order() -> None:
    """2 x 2 x 4 chips of one axis are the axis of 16."""
    pieces = [
        Piece(axis=0, stride=4, size=4),
        Piece(axis=0, stride=1, size=2),
        Piece(axis=0, stride=2, size=2),
    ]
    assert merge(pieces) == (Piece(axis=0, stride=1, size=16),)


def test_pieces_of_different_axes_stay_apart_and_size_one_vanishes() -> None:
    """What remains is at most one piece per physical axis, by axis."""
    pieces = [
        Piece(axis=1, stride=2, size=2),
        Piece(axis=0, stride=1, size=1),
        Piece(axis=0, stride=4, size=2),
    ]
    assert merge(pieces) == (Piece(axis=0, stride=4, size=2), Piece(axis=1, stride=2, size=2))
    assert merge([]) == ()


@pytest.mark.parametrize("stride", [1, 4])
def test_pieces_of_one_axis_that_are_not_adjacent_are_refused(stride: int) -> None:
    """They add no bandwidth, and overlapping ones are no group at all."""
    near, far = Piece(axis=0, stride=1, size=2), Piece(axis=0, stride=stride, size=2)
    with pytest.raises(InputError) as error:
        merge([near, far])
    assert str(error.value) == (
        f"pieces Piece(axis=0, stride=1, size=2) and Piece(axis=0, stride={stride}, size=2) lie on one axis "
        "but are not adjacent, so they add no bandwidth: the second needs stride 2"
    )


@pytest.mark.parametrize(("axis", "stride", "size"), [(-1, 1, 2), (0, 0, 2), (0, 1, 0)])
def test_a_piece_needs_an_axis_a_stride_and_a_size(axis: int, stride: int, size: int) -> None:
    """Nonsense is refused at construction."""
    with pytest.raises(InputError) as error:
        Piece(axis=axis, stride=stride, size=size)
    assert str(error.value) == (
        f"Piece(axis={axis}, stride={stride}, size={size}): axis must be at least 0, stride and size at least 1"
    )


def test_a_piece_must_fit_its_slice() -> None:
    """The message names the axis, its length and the slice."""
    v5e = parse_slice("v5e:4x4")
    with pytest.raises(InputError) as error:
        check_fits(v5e, [Piece(axis=1, stride=2, size=4)])
    assert str(error.value) == (
        "Piece(axis=1, stride=2, size=4): stride x size = 8 must divide axis Y of v5e:4x4, which is 4"
    )
    with pytest.raises(InputError) as error:
        check_fits(v5e, [Piece(axis=2, stride=1, size=2)])
    assert str(error.value) == "Piece(axis=2, stride=1, size=2): v5e:4x4 has 2 axes, so axis must be below 2"


@given(st.integers(min_value=1, max_value=64))
def test_every_cut_is_two_adjacent_pieces_that_merge_to_the_axis(size: int) -> None:
    """cuts lists each ordered pair of factors above 1, once."""
    pairs = cuts(size)
    assert len(set(pairs)) == len(pairs) == sum(size % factor == 0 for factor in range(2, size))
    for minor, major in pairs:
        halves = [Piece(axis=0, stride=1, size=minor), Piece(axis=0, stride=minor, size=major)]
        assert merge(halves) == (Piece(axis=0, stride=1, size=size),)


@pytest.mark.parametrize("name", ["v5e:8x16", "v5p:4x4x12", "tpu7x:2x2x1", "v3:4x4", "h100:8"])
def test_merged_groups_are_distinct_and_fit(name: str) -> None:
    """The whole slice is among them, with as many members as devices."""
    slice_ = parse_slice(name)
    groups = merged_groups(slice_)
    assert len(set(groups)) == len(groups)
    assert groups[0] == ()
    assert whole(slice_) in groups
    assert math.prod(piece.size for piece in whole(slice_)) == slice_.devices
    for pieces in groups:
        assert merge(pieces) == pieces
        check_fits(slice_, pieces)
