"""Compute Pareto fronts: of any items by their values, of a component's rows on arrays, and of joins of rows."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from strategies.readers.rates import Floats, Ints

Item = TypeVar("Item")

_FEW = 50  # up to so many rows are joined without being pruned


def undominated(items: Iterable[Item], values: Callable[[Item], Sequence[float]]) -> list[Item]:
    """Return the items that no item before them dominates, where smaller values are better.

    Of items with equal values the first stays. The items must come in the order of their values, so that no later one
    dominates an earlier one.

    >>> undominated([(1, 9), (2, 9), (2, 5), (3, 6)], lambda pair: pair)
    [(1, 9), (2, 5)]
    """
    front: list[tuple[Item, Sequence[float]]] = []
    for item in items:
        value = values(item)
        if not any(all(a <= b for a, b in zip(other, value, strict=True)) for _, other in front):
            front.append((item, value))
    return [item for item, _ in front]


@dataclass(frozen=True)
class StateRows:
    """Rows of one component in one state: seconds of all its layers, stored and peak bytes per device.

    All arrays have shape [rows]; `row` has the rows' numbers, or [rows, components] after a join.
    """

    row: Ints
    seconds: Floats
    stored: Floats
    peak: Floats

    def take(self, which: Ints) -> StateRows:
        """Return the rows at these places."""
        return StateRows(self.row[which], self.seconds[which], self.stored[which], self.peak[which])

    def within(self, limit_s: float) -> StateRows:
        """Return the rows that take at most `limit_s` seconds."""
        return self.take(np.flatnonzero(self.seconds <= limit_s))

    def front(
        self, top: int, boundary: Ints | None = None, safe: float = -np.inf, hops_hidden_s: Floats | None = None
    ) -> StateRows:
        """Return the rows that fewer than `top` others of their boundary dominate.

        Compared are seconds, `hops_hidden_s` where it is passed, stored and peak bytes. Rows that store at most `safe`
        bytes fit with every row of the others, so their memory is not compared.

        >>> rows = StateRows(np.arange(3), np.array([1.0, 2.0, 3.0]), np.array([9.0, 9.0, 5.0]), np.zeros(3))
        >>> rows.front(1).row.tolist()  # row 1 is slower than row 0 and stores as much
        [0, 2]
        """
        boundary = np.zeros(len(self.row), dtype=np.int64) if boundary is None else boundary
        stored, peak = (np.where(self.stored <= safe, -np.inf, x) for x in (self.stored, self.peak))
        ties = self.row if self.row.ndim == 1 else np.arange(len(self.row))
        hops_hidden_s = np.zeros(len(self.row)) if hops_hidden_s is None else hops_hidden_s
        if top == 1:
            return self.take(
                _unbeaten(boundary, self.seconds, hops_hidden_s, stored, peak, (self.stored, self.peak, ties))
            )
        order = np.lexsort((ties, self.peak, self.stored, hops_hidden_s, self.seconds, boundary))
        order = order[
            _beaten_by_the_fastest(boundary[order], [x[order] for x in (hops_hidden_s, stored, peak)], top) < top
        ]
        front: list[int] = []
        last, rivals = -1, list[tuple[float, float, float]]()
        columns = (x[order].tolist() for x in (boundary, hops_hidden_s, stored, peak))
        for n, f, e, s, p in zip(order.tolist(), *columns, strict=True):
            if f != last:
                last, rivals = f, []
            if _fewer_beat(rivals, e, s, p, top):
                rivals.append((e, s, p))
                front.append(n)
        return self.take(np.array(front, dtype=np.int64))


def _unbeaten(
    boundary: Ints,
    seconds: Floats,
    hops_hidden_s: Floats,
    stored: Floats,
    peak: Floats,
    ties: tuple[Floats, Floats, Ints],
) -> Ints:
    """Return the rows that no other of their boundary dominates, by boundary and then seconds.

    Each round keeps the fastest remaining row of every boundary, and drops the rows that it dominates.
    """
    left = _not_beaten_by_the_fastest(boundary, seconds, hops_hidden_s, stored, peak)
    left = left[np.lexsort([x[left] for x in (*ties[::-1], hops_hidden_s, seconds, boundary)])]
    place, front = np.arange(len(left)), []
    while len(place):
        rows = left[place]
        first = np.searchsorted(boundary[rows], boundary[rows])
        best = rows[first]
        beaten = np.logical_and.reduce([x[rows] >= x[best] for x in (hops_hidden_s, stored, peak)])
        front.append(place[first == np.arange(len(first))])
        place = place[~beaten]
    return np.asarray(left[np.sort(np.concatenate(front))] if front else left)


def _not_beaten_by_the_fastest(
    boundary: Ints, seconds: Floats, hops_hidden_s: Floats, stored: Floats, peak: Floats
) -> Ints:
    """Drop the slower rows that the fastest row of their boundary dominates; return the others."""
    order = np.lexsort((seconds, boundary))
    in_order = boundary[order]
    fastest = order[np.searchsorted(in_order, in_order)]
    slower = seconds[order] > seconds[fastest]
    beaten = slower & np.logical_and.reduce([x[order] >= x[fastest] for x in (hops_hidden_s, stored, peak)])
    return np.asarray(order[~beaten])


def _beaten_by_the_fastest(boundary: Ints, values: Sequence[Floats], top: int) -> Ints:
    """Count for each row the dominating ones among the `top` fastest of its boundary.

    The rows must be in order of boundary and seconds.
    """
    place, first, count = (
        np.arange(len(boundary)),
        np.searchsorted(boundary, boundary),
        np.zeros(len(boundary), dtype=np.int64),
    )
    for fast in range(top):
        other = np.minimum(first + fast, place)
        count += (other < place) & np.logical_and.reduce([x[other] <= x for x in values])
    return count


def _fewer_beat(
    rivals: list[tuple[float, float, float]], hops_hidden_s: float, stored: float, peak: float, top: int
) -> bool:
    """Return whether fewer than `top` of the rivals are no greater in all three values."""
    beaten = 0
    for e, s, p in rivals:
        if s <= stored and p <= peak and e <= hops_hidden_s:
            beaten += 1
            if beaten == top:
                return False
    return True


def join_all(options: Sequence[StateRows], worst: float, usable: float, top: int) -> StateRows:
    """Return combinations of one row per component that may be among the best `top`, `row` [combinations, components].

    Components are joined one at a time. A combination that cannot end within `worst` seconds, or that `top` others
    dominate, is dropped.

    `worst` is a limit in seconds and `usable` in bytes per device. Seconds and stored bytes of a combination are sums,
    its peak bytes the largest of its rows'.
    """
    joint = StateRows(np.zeros((1, 0), dtype=np.int64), np.zeros(1), np.zeros(1), np.zeros(1))
    slack = worst - sum(float(o.seconds.min()) for o in options)
    if slack < 0:
        return StateRows(np.zeros((0, len(options)), dtype=np.int64), np.zeros(0), np.zeros(0), np.zeros(0))
    options = [o.within(float(o.seconds.min()) + slack) for o in options]
    most_stored = [float(o.stored.max()) for o in options]
    peak = max(float(o.peak.max()) for o in options)
    for number, o in enumerate(options):
        spare = usable - peak - sum(most_stored)
        o = o.front(top, safe=spare + most_stored[number]) if len(o.row) > _FEW else o
        seconds = joint.seconds[:, None] + o.seconds[None]
        first, second = np.nonzero(seconds <= seconds.min() + slack)
        joint = StateRows(
            np.column_stack([joint.row[first], o.row[second]]),
            seconds[first, second],
            joint.stored[first] + o.stored[second],
            np.maximum(joint.peak[first], o.peak[second]),
        )
        last = number == len(options) - 1
        joint = (
            joint.front(top, safe=spare + sum(most_stored[: number + 1]))
            if len(joint.row) > _FEW and not last
            else joint
        )
    return joint
