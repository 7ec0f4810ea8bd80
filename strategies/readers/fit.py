"""A part of a body over arrays of assignments: whether its dims divide, and the scope of what they are then."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from strategies.components import Component, Part
from strategies.notation import Axes
from strategies.readers.axis_sets import Masks
from strategies.readers.cost import ArrayScope, Speeds
from strategies.readers.prices import Number
from strategies.readers.rates import Ints, Rates
from strategies.readers.sizes import Fit, Ways, fit


def fit_part(part: Part, component: Component, rates: Rates, masks: Mapping[str, Ints], batches: Ints) -> Fit:
    """Sizes of a part's dims for every row, and which rows are possible."""

    def ways(axes: Axes) -> Ints:
        return ways_of(axes, masks, rates)

    def classes(unions: frozenset[Axes]) -> tuple[Ways, Ints]:
        first, row = plays.classes(frozenset(axes for axes in unions if axes))
        here = plays.masks.take(first)
        return lambda axes: rates.n[here.union(axes)], row

    needs, pad = part.needs, part.program.pad
    if isinstance(masks, Masks) and masks.rows is None:
        plays = masks.plays
        return fit(needs, component.dims, pad, batches, ways, plays.rows, classes)
    return fit(needs, component.dims, pad, batches, ways, len(next(iter(masks.values()))) if masks else 1)


def ways_of(axes: Sequence[str], masks: Mapping[str, Ints], rates: Rates) -> Ints:
    """Devices over which these program axes cut, in every row: [rows, 1]."""
    return rates.n[sum((masks[axis] for axis in axes), np.zeros((1, 1), dtype=np.int64))]


def _slot_axes(part: Part) -> Sequence[str]:
    """The program axes that cut the slots of experts where tokens are dispatched."""
    return next((s.outputs[0].axes("C") for s in part.program.steps if s.op == "Dispatch"), ())


def scope_of(
    part: Part, sizes: Mapping[str, Number], masks: Mapping[str, Ints], rates: Rates, fast: Speeds
) -> ArrayScope:
    """A scope over rows, with the quantities that depend on the batch.

    `C` slots per expert are whole on every shard of the tokens: n ceil(tokens k / (E n)), cut n ways.
    """
    tokens = sizes["B"] * sizes.get("T", 1)
    extra: dict[str, Number] = {"tokens": tokens}
    if "experts" in sizes:
        shards = ways_of(_slot_axes(part), masks, rates)
        extra["C"] = shards * np.ceil(tokens * sizes["k"] / (sizes["experts"] * shards))
    return ArrayScope(part.program, masks, {**sizes, **extra}, rates, fast.widths)
