"""Sets of mesh axes and classes of rows, found by patterns of half the axes, are those of every row alone."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from strategies.readers.axis_sets import AxisHalf, Kinds, RoleSets, halves, halves_of_pairs
from strategies.readers.rates import Flags

MEMBERS = {  # of four kinds: c is played by two of them, d by none
    "a": np.array([True, False, False, False]),
    "b": np.array([False, True, False, False]),
    "c": np.array([False, True, True, False]),
    "d": np.zeros(4, dtype=bool),
}
UNIONS = frozenset({("a",), ("b", "c"), ("a", "d")})
ROWS = st.integers(0, 5).flatmap(
    lambda axes: st.lists(st.lists(st.integers(0, 3), min_size=axes, max_size=axes), max_size=40)
)


def kinds_of(rows: list[list[int]]) -> Kinds:
    """Rows as an array, also those of a mesh without axes."""
    return np.array(rows, dtype=np.int8).reshape(len(rows), len(rows[0]) if rows else 3)


def alone(row: list[int], axes: tuple[str, ...]) -> int:
    """The set of mesh axes that play any of the program axes in a row."""
    return sum(1 << i for i, kind in enumerate(row) if any(MEMBERS[axis][kind] for axis in axes))


@given(ROWS)
def test_masks_are_the_mesh_axes_that_play_each_program_axis(rows: list[list[int]]) -> None:
    """For all rows, and for some of them in any order."""
    plays = RoleSets(halves(kinds_of(rows)), MEMBERS)
    for axes in (("a",), ("b",), ("c",), ("d",), ("a", "c")):
        assert plays.masks.union(axes)[:, 0].tolist() == [alone(row, axes) for row in rows]
    some = np.arange(len(rows))[::-2]
    assert plays.masks.take(some)["c"][:, 0].tolist() == [alone(rows[i], ("c",)) for i in some]
    first = plays.masks.take(some).take(np.arange(min(1, len(some))))
    assert first["a"][:, 0].tolist() == [alone(rows[i], ("a",)) for i in some[:1]]
    assert plays.masks.union(()).tolist() == [[0]]
    assert set(plays.masks) == set(MEMBERS)


@given(ROWS)
def test_a_class_is_the_rows_that_all_unions_see_alike(rows: list[list[int]]) -> None:
    """With the first row of each class; of some rows, only the classes that they are of."""
    plays = RoleSets(halves(kinds_of(rows)), MEMBERS)
    first, row = plays.classes(UNIONS)
    seen = [tuple(alone(one, axes) for axes in sorted(UNIONS)) for one in rows]
    assert [seen[f] for f in first[row]] == seen
    assert len(first) == len(set(seen))
    assert [seen.index(seen[f]) for f in first] == first.tolist()
    some = np.arange(0, len(rows), 3)
    few, of = plays.classes_of(UNIONS, some)
    assert [seen[f] for f in few[of]] == [seen[i] for i in some]
    assert len(few) == len({seen[i] for i in some})


@given(ROWS, st.data())
def test_pairs_are_every_row_of_the_first_with_every_row_of_the_second(
    rows: list[list[int]], data: st.DataObject
) -> None:
    """Kinds of the first in fives, of the second in ones."""
    axes = len(rows[0]) if rows else 3
    others = data.draw(st.lists(st.lists(st.integers(0, 3), min_size=axes, max_size=axes), min_size=1, max_size=9))
    found = halves_of_pairs(kinds_of(rows), kinds_of(others), 5)
    expected = [[5 * a + b for a, b in zip(one, two, strict=True)] for one in rows for two in others]
    assert np.concatenate([half.patterns[half.index] for half in found], axis=1).tolist() == expected


def test_bits_count_from_the_half_s_first_axis() -> None:
    """The second half of five axes starts at the third."""
    first, second = halves(np.array([[0, 1, 0, 1, 0]], dtype=np.int8))
    of: Flags = np.array([True, False])
    assert (first.start, first.stop, second.start, second.stop) == (0, 2, 2, 5)
    assert (first.bits(of).tolist(), second.bits(of).tolist()) == ([0b00001], [0b10100])
    assert AxisHalf(np.zeros((1, 0), dtype=np.int8), np.array([0]), 3).bits(of).tolist() == [0]


def test_an_unknown_program_axis_is_a_key_error() -> None:
    """As in any mapping."""
    with pytest.raises(KeyError, match="z"):
        RoleSets(halves(kinds_of([[0]])), MEMBERS).masks["z"]
