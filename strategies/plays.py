"""What mesh axes play in many rows at once, and which rows some program axes cannot tell apart.

A row says of every mesh axis what *kind* it is of: the role it plays in a body, or the pair of ends in glue. Rows are
many, but half of the mesh axes have few patterns of kinds; so sets of mesh axes and classes of rows are found for the
patterns, and looked up for the rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from strategies.notation import Axes
from strategies.rates import Flags, Ints

Kinds = NDArray[np.int8]
Unions = frozenset[Axes]


class Half:
    """Some of the mesh axes, from `start` on: their `patterns` of kinds [patterns, axes], and that of each row."""

    def __init__(self, kinds: Kinds, start: int) -> None:
        codes, base = np.zeros(len(kinds), dtype=np.int64), int(kinds.max(initial=0)) + 1
        for column in kinds.T:
            codes = codes * base + column
        count, self.index = numbered(codes)
        self.patterns = np.empty((count, kinds.shape[1]), dtype=np.int8)
        self.patterns[self.index] = kinds
        self.start, self.stop = start, start + kinds.shape[1]

    def bits(self, of: Flags) -> Ints:
        """[patterns]: the set of mesh axes that are of these kinds (`of` [kinds])."""
        plays = of[self.patterns] << np.arange(self.start, self.stop, dtype=np.int64)
        return np.asarray(plays.sum(axis=1, dtype=np.int64))


class Masks(Mapping[str, Ints]):
    """The set of mesh axes that play each program axis, as bits [rows, 1]; found when asked for."""

    def __init__(self, plays: Plays, rows: Ints | None = None) -> None:
        self.plays, self.rows = plays, rows
        self._found: dict[Axes, Ints] = {}

    def __getitem__(self, axis: str) -> Ints:
        if axis not in self.plays.members:
            raise KeyError(axis)
        return self.union((axis,))

    def __iter__(self) -> Iterator[str]:
        return iter(self.plays.members)

    def __len__(self) -> int:
        return len(self.plays.members)

    def union(self, axes: Axes) -> Ints:
        """The mesh axes that play any of these; of none of them [1, 1]."""
        if axes not in self._found:
            self._found[axes] = self.plays.union(axes, self._index) if axes else np.zeros((1, 1), dtype=np.int64)
        return self._found[axes]

    def take(self, rows: Ints) -> Masks:
        """For these rows only."""
        return Masks(self.plays, rows if self.rows is None else self.rows[rows])

    @cached_property
    def _index(self) -> list[Ints]:
        halves = self.plays.halves
        return [half.index if self.rows is None else half.index[self.rows] for half in halves]


class Plays:
    """Rows of `kinds` [rows, mesh axes], and by program axis the kinds that play it, `members` [kinds].

    Program axes that share a kind are played together by mesh axes of that kind.
    """

    def __init__(self, kinds: Kinds, members: Mapping[str, Flags]) -> None:
        self.kinds, self.members, self.rows = kinds, members, len(kinds)
        self.masks = Masks(self)
        self._bits: dict[Axes, list[Ints]] = {}
        self._classes: dict[Unions, tuple[Ints, Ints]] = {}

    @cached_property
    def halves(self) -> tuple[Half, Half]:
        """The mesh axes in two parts."""
        cut = self.kinds.shape[1] // 2
        return Half(self.kinds[:, :cut], 0), Half(self.kinds[:, cut:], cut)

    def union(self, axes: Axes, index: Sequence[Ints]) -> Ints:
        """The set of mesh axes that play any of these in the rows of these patterns: [rows, 1]."""
        first, second = (bits[where] for bits, where in zip(self._union(axes), index, strict=True))
        return np.asarray(first | second)[:, None]

    def _union(self, axes: Axes) -> list[Ints]:
        """The same by pattern of each half."""
        if axes not in self._bits:
            of = np.logical_or.reduce([self.members[axis] for axis in axes])
            self._bits[axes] = [half.bits(of) for half in self.halves]
        return self._bits[axes]

    def classes(self, unions: Unions) -> tuple[Ints, Ints]:
        """The first row of each class [classes], and the class of each row [rows]."""
        if unions not in self._classes:
            row = np.zeros(self.rows, dtype=np.int64)
            for number, half in enumerate(self.halves):
                kinds, code = 1, np.zeros(len(half.patterns), dtype=np.int64)
                for axes in sorted(unions):
                    bits = self._union(axes)[number] >> half.start
                    kinds, code = numbered((code << (half.stop - half.start)) + bits)
                row = row * kinds + code[half.index]
            kinds, row = numbered(row)
            first = np.empty(kinds, dtype=np.int64)
            first[row[::-1]] = np.arange(self.rows - 1, -1, -1)
            self._classes[unions] = first, row
        return self._classes[unions]

    def classes_of(self, unions: Unions, rows: Ints | None) -> tuple[Ints, Ints]:
        """The same for the classes that some of these rows are of (None: all rows)."""
        first, row = self.classes(unions)
        if rows is None:
            return first, row
        used = np.zeros(len(first), dtype=np.bool_)
        used[row[rows]] = True
        return first[used], (np.cumsum(used) - 1)[row[rows]]


def numbered(codes: Ints) -> tuple[int, Ints]:
    """How many different codes there are, and the number of each one among them; codes are small."""
    seen = np.zeros(int(codes.max(initial=0)) + 1, dtype=np.int64)
    seen[codes] = 1
    number = np.cumsum(seen) - 1
    return int(number[-1]) + 1, number[codes]
