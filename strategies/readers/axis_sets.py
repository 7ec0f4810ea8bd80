"""Sets of mesh axes by role, over many assignments (rows) at once, and the classes of rows that price alike.

A row says of every mesh axis what *kind* it is of: its role in a body, or its pair of ends in a reshard. Rows
are many, but half of the mesh axes have few patterns of kinds; so sets of mesh axes and classes of rows are found for
the patterns, and looked up for the rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from strategies.notation import Axes
from strategies.readers.rates import Flags, Ints

Kinds = NDArray[np.signedinteger[Any]]
"""Small: at most 127 kinds."""
Unions = frozenset[Axes]
_SPARSE, _SPARSE_ROWS = 1 << 12, 1 << 5
"""Codes are numbered anew before they pass the first, and where they are to be joined with others, the second."""


@dataclass(frozen=True)
class AxisHalf:
    """Some of the mesh axes, from `start` on: their `patterns` of kinds [patterns, axes], and that of each row."""

    patterns: Kinds
    index: Ints
    start: int

    @property
    def stop(self) -> int:
        """The first mesh axis after them."""
        return self.start + int(self.patterns.shape[1])

    def bits(self, of: Flags) -> Ints:
        """[patterns]: the set of mesh axes that are of these kinds (`of` [kinds])."""
        bits = of[self.patterns] << np.arange(self.start, self.stop, dtype=np.int64)
        return np.asarray(bits.sum(axis=1, dtype=np.int64))


def halves(kinds: Kinds) -> tuple[AxisHalf, AxisHalf]:
    """Rows of kinds [rows, mesh axes], their axes in two parts."""
    return _half(kinds, 0), _half(kinds, 1)


def halves_of_pairs(first: Kinds, second: Kinds, base: int) -> tuple[AxisHalf, AxisHalf]:
    """Combine every row of the first with every row of the second: kinds are `base` * first + second."""
    parts = []
    for number in range(2):
        one, two = _half(first, number), _half(second, number)
        count = len(two.patterns)
        patterns = base * np.repeat(one.patterns, count, axis=0) + np.tile(two.patterns, (len(one.patterns), 1))
        index = (one.index * count)[:, None] + two.index
        parts.append(AxisHalf(patterns.astype(np.int8), index.reshape(-1), one.start))
    return parts[0], parts[1]


def _half(kinds: Kinds, number: int) -> AxisHalf:
    cut = kinds.shape[1] // 2
    some, start = (kinds[:, cut:], cut) if number else (kinds[:, :cut], 0)
    codes, base = np.zeros(len(kinds), dtype=np.int64), int(kinds.max(initial=0)) + 1
    for column in some.T:
        codes = codes * base + column
    first, index = numbered(codes)
    return AxisHalf(some[first].astype(np.int8), index, start)


class Masks(Mapping[str, Ints]):
    """The set of mesh axes bound to each program axis, as bits [rows, 1]; found when asked for."""

    def __init__(self, role_sets: RoleSets, rows: Ints | None = None) -> None:
        self.role_sets, self.rows = role_sets, rows
        self._found: dict[Axes, Ints] = {}

    def __getitem__(self, axis: str) -> Ints:
        if axis not in self.role_sets.members:
            raise KeyError(axis)
        return self.union((axis,))

    def __iter__(self) -> Iterator[str]:
        return iter(self.role_sets.members)

    def __len__(self) -> int:
        return len(self.role_sets.members)

    def union(self, axes: Axes) -> Ints:
        """The mesh axes bound to any of these; of none of them [1, 1]."""
        if axes not in self._found:
            self._found[axes] = self.role_sets.union(axes, self._index) if axes else np.zeros((1, 1), dtype=np.int64)
        return self._found[axes]

    def take(self, rows: Ints) -> Masks:
        """For these rows only."""
        return Masks(self.role_sets, rows if self.rows is None else self.rows[rows])

    @cached_property
    def _index(self) -> list[Ints]:
        halves = self.role_sets.halves
        return [half.index if self.rows is None else half.index[self.rows] for half in halves]


def masks_of_one(role_axes: Mapping[str, Iterable[int]], axes: int) -> Masks:
    """Return the masks of a single layout: `role_axes` has, by program axis, the numbers of its mesh axes.

    >>> {axis: mask.tolist() for axis, mask in masks_of_one({"X": [0, 2], "Y": []}, 3).items()}
    {'X': [[5]], 'Y': [[0]]}
    """
    return _SingleMasks({axis: sum(1 << number for number in numbers) for axis, numbers in role_axes.items()}, axes)


class _SingleMasks(Masks):
    """The masks of a single row: sets are plain numbers, without the patterns that many rows share."""

    def __init__(self, sets: Mapping[str, int], axes: int) -> None:
        number = np.arange(axes)
        members = {axis: (mask >> number & 1).astype(np.bool_) for axis, mask in sets.items()}
        super().__init__(RoleSets(halves(number[None].astype(np.int8)), members))
        self.sets = sets

    def union(self, axes: Axes) -> Ints:
        """The mesh axes bound to any of these: [1, 1]."""
        if axes not in self._found:
            mask = 0
            for axis in axes:
                mask |= self.sets[axis]
            self._found[axes] = np.array([[mask]], dtype=np.int64)
        return self._found[axes]


class RoleSets:
    """Rows whose mesh axes are of kinds, in halves, and by program axis its kinds, `members` [kinds].

    Program axes that share a kind are bound together to mesh axes of that kind.
    """

    def __init__(self, parts: tuple[AxisHalf, AxisHalf], members: Mapping[str, Flags]) -> None:
        self.halves, self.members, self.rows = parts, members, len(parts[0].index)
        self.masks = Masks(self)
        self._bits: dict[Axes, list[Ints]] = {}
        self._classes: dict[Unions, tuple[Ints, Ints]] = {}

    def union(self, axes: Axes, index: Sequence[Ints]) -> Ints:
        """The set of mesh axes bound to any of these in the rows of these patterns: [rows, 1]."""
        first, second = (bits[where] for bits, where in zip(self._union(axes), index, strict=True))
        return np.asarray(first | second)[:, None]

    def _union(self, axes: Axes) -> list[Ints]:
        """Return the union by pattern of each half."""
        if axes not in self._bits:
            of = np.logical_or.reduce([self.members[axis] for axis in axes])
            self._bits[axes] = [half.bits(of) for half in self.halves]
        return self._bits[axes]

    def classes(self, unions: Unions) -> tuple[Ints, Ints]:
        """The first row of each class [classes], and the class of each row [rows]."""
        if unions not in self._classes:
            codes = [self._codes(number, unions) for number in range(2)]
            row = (codes[0] * (int(codes[1].max(initial=0)) + 1))[self.halves[0].index]
            row += codes[1][self.halves[1].index]
            self._classes[unions] = numbered(row)
        return self._classes[unions]

    def _codes(self, number: int, unions: Unions) -> Ints:
        """[patterns] of a half: numbers that are equal where all unions see the same; small, but with gaps."""
        half, most = self.halves[number], 1
        code = np.zeros(len(half.patterns), dtype=np.int64)
        for axes in sorted(unions):
            bits = half.stop - half.start
            if most << bits > _SPARSE:
                code = numbered(code)[1]
                most = int(code.max(initial=0)) + 1
            code = (code << bits) + (self._union(axes)[number] >> half.start)
            most <<= bits
        return code if most <= _SPARSE_ROWS else numbered(code)[1]

    def classes_of(self, unions: Unions, rows: Ints | None) -> tuple[Ints, Ints]:
        """Return the unions by class, for the classes of some of these rows (None: all rows)."""
        first, row = self.classes(unions)
        if rows is None:
            return first, row
        used = np.zeros(len(first), dtype=np.bool_)
        used[row[rows]] = True
        return first[used], (np.cumsum(used) - 1)[row[rows]]


def numbered(codes: Ints) -> tuple[Ints, Ints]:
    """Return where each different code comes first, by code, and the number of each one among them; codes are small."""
    first = np.full(int(codes.max(initial=0)) + 1, -1, dtype=np.int64)
    first[codes[::-1]] = np.arange(len(codes) - 1, -1, -1)
    seen = first >= 0
    return first[seen], (np.cumsum(seen) - 1)[codes]
