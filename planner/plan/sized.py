"""A bound program ready to be priced: its sizes after padding and its mesh's rates, checked against each other."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from planner.plan.layout import Bound, Layout
from strategies.checker import check_sizes
from strategies.notation import LayoutError
from strategies.prices import Number
from strategies.readers.axis_sets import masks_of_one
from strategies.readers.cost import ArrayScope, Speeds
from strategies.readers.rates import Rates
from strategies.tables.assignments import fit_part
from strategies.tables.sizes import Fit
from strategies.tables.tables import scope_of


@dataclass(frozen=True)
class Priced:
    """A bound program with its scope: sizes after padding and the mesh's rates."""

    bound: Bound
    scope: ArrayScope
    sizes: dict[str, Number]


def ready(layout: Layout, bound: Bound, rates: Rates, fast: Speeds, padded: int) -> Priced:
    """Size a bound program's dims at one batch; raises `LayoutError` where one does not divide."""
    found = fit_part(bound.source, bound.component, rates, bound.masks, np.array([[padded]]))
    _must_fit(found, bound, padded)
    sizes = scope_of(bound.source, found.sizes, bound.masks, rates, fast).sizes
    masks = masks_of_one({name: (i,) for i, name in enumerate(layout.names)}, len(layout.names))
    whole = {name: int(np.max(size)) for name, size in sizes.items() if name not in ("attended", "C", "tokens")}
    check_sizes(bound.source.needs, whole, _letter_ways(bound, rates), f"{bound.component.name}: ")
    return Priced(bound, ArrayScope(bound.program, masks, sizes, rates, fast.widths), dict(sizes))


def _letter_ways(bound: Bound, rates: Rates) -> dict[str, int]:
    return {axis: int(rates.n[mask[0, 0]]) for axis, mask in bound.masks.items()}


def _must_fit(found: Fit, bound: Bound, padded: int) -> None:
    if not found.ok.all():
        dim, reason, _, ways = found.failures[0]
        size = padded if dim == "B" else int(bound.component.dims[dim])
        raise LayoutError(f"{bound.component.name}: {reason}: {dim} = {size}, cut {int(ways.flat[0])} ways")
