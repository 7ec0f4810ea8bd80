"""Pareto fronts: of any items by their values; of a component's options on arrays, and of joins of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from strategies.readers.rates import Floats, Ints

Item = TypeVar("Item")

_FEW = 50  # up to so many options are joined without being pruned


def undominated(items: Iterable[Item], values: Callable[[Item], Sequence[float]]) -> list[Item]:
    """Return the items that none before them beats, where smaller values are better: of equal ones, the first.

    The items come in order of their values, so that none is beaten by a later one.

    >>> undominated([(1, 9), (2, 9), (2, 5), (3, 6)], lambda pair: pair)
    [(1, 9), (2, 5)]
    """
    kept: list[tuple[Item, Sequence[float]]] = []
    for item in items:
        own = values(item)
        if not any(all(a <= b for a, b in zip(other, own, strict=True)) for _, other in kept):
            kept.append((item, own))
    return [item for item, _ in kept]


@dataclass(frozen=True)
class StateRows:
    """Rows of one component in one state: seconds of all its layers, stored and peak bytes."""

    row: Ints
    seconds: Floats
    stored: Floats
    peak: Floats

    def take(self, which: Ints) -> StateRows:
        """The options at these places."""
        return StateRows(self.row[which], self.seconds[which], self.stored[which], self.peak[which])

    def within(self, limit_s: float) -> StateRows:
        """Return the rows that take no longer than the limit."""
        return self.take(np.flatnonzero(self.seconds <= limit_s))

    def front(
        self, top: int, boundary: Ints | None = None, safe: float = -np.inf, early: Floats | None = None
    ) -> StateRows:
        """Return the rows that fewer than `top` others (of their boundary) beat in seconds and bytes.

        Rows that store no more than `safe` bytes fit whatever joins them, so their memory counts for nothing.
        """
        boundary = np.zeros(len(self.row), dtype=np.int64) if boundary is None else boundary
        stored, peak = (np.where(self.stored <= safe, -np.inf, x) for x in (self.stored, self.peak))
        ties = self.row if self.row.ndim == 1 else np.arange(len(self.row))
        early = np.zeros(len(self.row)) if early is None else early
        if top == 1:
            return self.take(_unbeaten(boundary, self.seconds, early, stored, peak, (self.stored, self.peak, ties)))
        order = np.lexsort((ties, self.peak, self.stored, early, self.seconds, boundary))
        order = order[_beaten_by_the_fastest(boundary[order], [x[order] for x in (early, stored, peak)], top) < top]
        kept: list[int] = []
        last, near = -1, list[tuple[float, float, float]]()
        columns = (x[order].tolist() for x in (boundary, early, stored, peak))
        for n, f, e, s, p in zip(order.tolist(), *columns, strict=True):
            if f != last:
                last, near = f, []
            if _fewer_beat(near, e, s, p, top):
                near.append((e, s, p))
                kept.append(n)
        return self.take(np.array(kept, dtype=np.int64))


def _unbeaten(
    boundary: Ints, seconds: Floats, early: Floats, stored: Floats, peak: Floats, ties: tuple[Floats, Floats, Ints]
) -> Ints:
    """The rows that no other of their boundary beats, by boundary and then seconds, in rounds.

    Each round keeps the fastest row that is left of every boundary, and drops what it beats.
    """
    left = _not_beaten_by_the_fastest(boundary, seconds, early, stored, peak)
    left = left[np.lexsort([x[left] for x in (*ties[::-1], early, seconds, boundary)])]
    place, kept = np.arange(len(left)), []
    while len(place):
        rows = left[place]
        first = np.searchsorted(boundary[rows], boundary[rows])
        best = rows[first]
        beaten = np.logical_and.reduce([x[rows] >= x[best] for x in (early, stored, peak)])
        kept.append(place[first == np.arange(len(first))])
        place = place[~beaten]
    return np.asarray(left[np.sort(np.concatenate(kept))] if kept else left)


def _not_beaten_by_the_fastest(boundary: Ints, seconds: Floats, early: Floats, stored: Floats, peak: Floats) -> Ints:
    """The rows but for those that a faster one, the first of the fastest of their boundary, beats in everything."""
    order = np.lexsort((seconds, boundary))
    in_order = boundary[order]
    fastest = order[np.searchsorted(in_order, in_order)]
    slower = seconds[order] > seconds[fastest]
    beaten = slower & np.logical_and.reduce([x[order] >= x[fastest] for x in (early, stored, peak)])
    return np.asarray(order[~beaten])


def _beaten_by_the_fastest(boundary: Ints, values: Sequence[Floats], top: int) -> Ints:
    """Return how many of the `top` fastest rows of its boundary are no greater in any value, for each row."""
    place, first, count = (
        np.arange(len(boundary)),
        np.searchsorted(boundary, boundary),
        np.zeros(len(boundary), dtype=np.int64),
    )
    for fast in range(top):
        other = np.minimum(first + fast, place)
        count += (other < place) & np.logical_and.reduce([x[other] <= x for x in values])
    return count


def _fewer_beat(kept: list[tuple[float, float, float]], early: float, stored: float, peak: float, top: int) -> bool:
    beaten = 0
    for e, s, p in kept:
        if s <= stored and p <= peak and e <= early:
            beaten += 1
            if beaten == top:
                return False
    return True


def join_all(options: Sequence[StateRows], worst: float, usable: float, top: int) -> StateRows:
    """Combinations of one row per component (`row` [combinations, components]) that may be among the best `top`.

    One component joins at a time; what cannot end within `worst`, or is beaten in everything by `top` others, goes.
    """
    joint = StateRows(np.zeros((1, 0), dtype=np.int64), np.zeros(1), np.zeros(1), np.zeros(1))
    slack = worst - sum(float(o.seconds.min()) for o in options)
    if slack < 0:
        return StateRows(np.zeros((0, len(options)), dtype=np.int64), np.zeros(0), np.zeros(0), np.zeros(0))
    options = [o.within(float(o.seconds.min()) + slack) for o in options]
    most = [float(o.stored.max()) for o in options]
    peak = max(float(o.peak.max()) for o in options)
    for number, o in enumerate(options):
        spare = usable - peak - sum(most)
        o = o.front(top, safe=spare + most[number]) if len(o.row) > _FEW else o
        seconds = joint.seconds[:, None] + o.seconds[None]
        first, second = np.nonzero(seconds <= seconds.min() + slack)
        joint = StateRows(
            np.column_stack([joint.row[first], o.row[second]]),
            seconds[first, second],
            joint.stored[first] + o.stored[second],
            np.maximum(joint.peak[first], o.peak[second]),
        )
        last = number == len(options) - 1
        joint = joint.front(top, safe=spare + sum(most[: number + 1])) if len(joint.row) > _FEW and not last else joint
    return joint
