"""Find the largest batch at a context, and the largest context at a batch, that fit on a slice: exactly.

Whether v sequences (or v tokens of context) fit is not monotone in v: a layout that cuts the batch w ways runs
multiples of w only. The *key* of v is the set of all cuts that v admits. As a layout's bytes never fall as v grows,

    v fits, v' <= v and key(v) is a subset of key(v')   =>   v' fits                                             (1)

because the layout that runs v also runs v', in no more bytes. Every w divides the number of devices d, so a multiple
of d admits all cuts: fitting is monotone over multiples of d, and where (k + 1)*d does not fit, no larger number does.
The largest multiple that fits is searched first, then, among the d - 1 numbers above it, the largest of each key: with
one key fitting is monotone, too, and a number that fails with a key need not be tried with fewer cuts.

Batch: no program may pad B, so a cut is a divisor of gcd(v, d). That a search may pad a batch to p changes nothing:
where v fits only as p > v, p itself fits.
Context: decode cuts the positions in a cache, min(v, window) of them, w ways, and may pad them by at most 25%:
the key has every w that pads so little, for each window that layers have; and, where a program cuts tokens that it
may not pad, as in prefill, the divisors, too. (Multiples of d above a window admit all cuts of every larger number.)
Bytes never fall here either: padded lengths grow with the lengths, and experts' slots with the tokens.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from math import isfinite

import msgspec

from mesh.slices import Slice
from planner.query.query import Query
from planner.search.footprint import Footprints, Key, Need
from planner.search.problem import make_problem
from planner.search.search import columns
from strategies.components import Component, components
from strategies.models.workload import LARGEST_BATCH, LARGEST_CONTEXT
from strategies.readers.sizes import LARGEST_PADDING

_TOKENS = ("S", "T")
_SECANTS = 3

KeyOf = Callable[[int], Key]
Probe = Callable[[int, Key], Need]


def largest_batch(query: Query, slice_: Slice, footprints: Footprints | None = None) -> int | None:
    """Return the largest batch that some layout fits on the slice at the query's context, or None for none.

    The result is at most `LARGEST_BATCH`. The query's own batches and slices do not count; its programs and fixed roles
    do. `footprints` may be passed to reuse it afterwards: it then tries the mesh that fitted last first.
    """
    problem, footprints = make_problem(query, slice_), footprints or Footprints(slice_, query.cuts)

    def probe(batch: int, key: Key) -> Need:
        """Return the need of one batch."""
        return footprints.need(problem, [(batch, batch)], batch, key)

    return largest(slice_.devices, LARGEST_BATCH, probe, batch_key(slice_.devices), problem.usable_bytes)


def largest_context(
    query: Query, slice_: Slice, batch: int | None = None, footprints: Footprints | None = None
) -> int | None:
    """Return the largest context at which some layout runs and fits the batch, or None for not even one token.

    The result is at most `LARGEST_CONTEXT`. `batch` is by default the query's first; it may be padded, as in a search.
    """
    batches, footprints = (batch or query.work.batches[0],), footprints or Footprints(slice_, query.cuts)
    pairs, usable_bytes = columns(batches, slice_.devices), slice_.chip.usable_hbm_bytes_per_device

    def probe(context: int, key: Key) -> Need:
        """Return the need of the batch at one context."""
        work = msgspec.structs.replace(query.work, batches=batches, context=context)
        return footprints.need(make_problem(replace(query, work=work), slice_), pairs, context, key)

    return largest(slice_.devices, LARGEST_CONTEXT, probe, context_key(query, slice_), usable_bytes)


def batch_key(devices: int) -> KeyOf:
    """Return the key function of batches: the cuts of B that a batch admits.

    >>> sorted(batch_key(8)(12))
    [1, 2, 4]
    """
    ways = _divisors(devices)
    return lambda batch: frozenset(w for w in ways if batch % w == 0)


def context_key(query: Query, slice_: Slice) -> KeyOf:
    """Return the key function of contexts: the cuts of tokens and cached positions that a context admits."""
    parts, ways = components(query.model, query.work, query.programs), _divisors(slice_.devices)
    windows = sorted({group.attention.window or LARGEST_CONTEXT for group in query.model.groups})
    cuts_exactly = query.work.phase == "prefill" or any(_cuts_exactly(component) for component in parts)

    def key(context: int) -> Key:
        """Return the cuts that a context admits."""
        positions = [(window, min(context, window)) for window in windows]
        padded_ways = {(window, w) for window, h in positions for w in ways if -(-h // w) * w <= LARGEST_PADDING * h}
        exact_ways = {(window, w, "whole") for window, h in (*positions, (0, context)) for w in ways if h % w == 0}
        return frozenset(padded_ways | exact_ways if cuts_exactly else padded_ways)

    return key


def _divisors(devices: int) -> list[int]:
    """Return the divisors of the number of devices."""
    return [w for w in range(1, devices + 1) if devices % w == 0]


def _cuts_exactly(component: Component) -> bool:
    """Return whether some program cuts tokens or positions that it may not pad."""
    return any(
        dim in _TOKENS and dim not in part.program.pad
        for body in component.bodies
        for part in body.parts
        for dim, _ in part.needs.divides
    )


def largest(devices: int, limit: int, probe: Probe, key: KeyOf, usable_bytes: float) -> int | None:
    """Return the largest number from 1 to `limit` that fits, or None; the module docstring explains `key`.

    `probe` returns the need of a number and `key` the cuts that it admits; `usable_bytes` only guides the guesses. The
    largest multiple of `devices` that fits is found first, then larger numbers of each key, below the next multiple.
    """
    search = _Probes(probe, key, usable_bytes)
    base = search.last(range(devices, limit + 1, devices), 0)
    classes = defaultdict[Key, list[int]](list)
    for value in range(base + 1, min(base + devices, limit + 1)):
        classes[key(value)].append(value)
    best = base
    for members in sorted(classes.values(), key=lambda values: (-len(key(values[0])), values[0])):
        best = search.last(members, best)
    return best or None


@dataclass
class _Probes:
    """Remember the numbers that were tried: `points` with the least bytes that they need, `unfit` with their keys."""

    probe: Probe
    key: KeyOf
    usable_bytes: float
    points: list[tuple[int, float]] = field(default_factory=list)
    unfit: list[tuple[int, Key]] = field(default_factory=list)

    def last(self, values: Sequence[int], best: int) -> int:
        """Return the largest value above `best` that fits, else `best`; beyond one that fails, none fits.

        Bytes are nearly linear in the value, so a guess is the place where a line through the last two points meets the
        usable bytes; where that does not end soon, every other guess halves the remaining interval.
        """
        low, high = bisect_right(values, best) - 1, self._first_unfit(values)
        guesses, fitting = 0, best
        while high - low > 1:
            halve = guesses >= _SECANTS and guesses % 2
            place = (low + high) // 2 if halve else self._guess(values, low, high)
            value, key = values[place], self.key(values[place])
            need = self.probe(value, key)
            self.points.append((value, need.least_bytes))
            guesses += 1
            if need.fits:
                low, fitting = place, value
            else:
                high = place
                self.unfit.append((value, key))
        return fitting

    def _first_unfit(self, values: Sequence[int]) -> int:
        """Return the place from which on no value fits, as smaller ones failed that admit all their cuts."""
        known = [value for value, cuts in self.unfit if self.key(values[0]) <= cuts] if self.unfit else []
        return bisect_left(values, min(known)) if known else len(values)

    def _guess(self, values: Sequence[int], low: int, high: int) -> int:
        """Return the next place to try, strictly between `low` and `high`."""
        if len(self.points) < 2:
            return min(2 * low + 2, high - 1)
        (x, y), (X, Y) = self.points[-2:]
        if not isfinite(y) or not isfinite(Y) or x == X:
            return (low + high) // 2
        if y == Y:
            return high - 1 if self.usable_bytes >= Y else low + 1
        crossing = X + (self.usable_bytes - Y) * (X - x) / (Y - y)
        return min(max(bisect_right(values, crossing) - 1, low + 1), high - 1)
