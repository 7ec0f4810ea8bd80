"""A part of a body over arrays of assignments: whether its dims divide, and the scope of what they are then."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from strategies.components import CheckedProgram, Component
from strategies.notation import Axes
from strategies.prices import Number
from strategies.primitives import PRIMITIVES
from strategies.readers.axis_sets import Masks
from strategies.readers.cost import ArrayScope, Speeds
from strategies.readers.rates import Ints, Rates
from strategies.readers.sizes import PaddedSizes, Ways, fit


def fit_part(part: CheckedProgram, component: Component, rates: Rates, masks: Masks, batches: Ints) -> PaddedSizes:
    """Sizes of a part's dims for every row, and which rows are possible.

    `masks`: the mesh axes of each program axis, by row. `batches`: [1, columns] or [rows, columns]. Dims that the
    program may pad grow to the next multiple, by at most 25%; another dim that does not divide rules the row out.
    """

    def ways(axes: Axes) -> Ints:
        return ways_of(axes, masks, rates)

    def classes(unions: frozenset[Axes]) -> tuple[Ways, Ints]:
        first, row = masks.role_sets.classes_of(frozenset(axes for axes in unions if axes), masks.rows)
        here = masks.role_sets.masks.take(first)
        return lambda axes: rates.n[here.union(axes)], row

    rows = masks.role_sets.rows if masks.rows is None else len(masks.rows)
    return fit(part.needs, component.dims, part.program.pad, batches, ways, rows, classes)


def ways_of(axes: Axes, masks: Masks, rates: Rates) -> Ints:
    """Devices over which these program axes cut, in every row: [rows, 1]."""
    return rates.n[masks.union(axes)]


def _slot_axes(part: CheckedProgram) -> Axes:
    """The program axes that cut the slots of experts where tokens are dispatched."""
    return next((s.outputs[0].axes("C") for s in part.program.steps if PRIMITIVES[s.op].slots), ())


def scope_of(part: CheckedProgram, sizes: Mapping[str, Number], masks: Masks, rates: Rates, fast: Speeds) -> ArrayScope:
    """A scope over rows, with the quantities that depend on the batch.

    `C` slots per expert are whole on every shard of the tokens: n ceil(tokens k / (E n)), cut n ways.
    """
    tokens = sizes["B"] * sizes.get("T", 1)
    extra: dict[str, Number] = {"tokens": tokens}
    if "experts" in sizes:
        shards = ways_of(_slot_axes(part), masks, rates)
        extra["C"] = shards * np.ceil(tokens * sizes["k"] / (sizes["experts"] * shards))
    return ArrayScope(part.program, masks, {**sizes, **extra}, rates, fast.widths)
