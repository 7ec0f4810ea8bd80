"""Pricing many assignments at once: every row is a choice of roles for the mesh axes, every column a batch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from strategies.components import IDLE, Body, CheckedProgram, Component
from strategies.prices import Number
from strategies.readers.axis_sets import RoleSets
from strategies.readers.cost import ArrayScope, Speeds, Totals
from strategies.readers.fit import fit_part, scope_of
from strategies.readers.memory import cache_bytes, weight_bytes
from strategies.readers.rates import Floats, Ints, Rates
from strategies.tables.assignments import Rows, assignments, rejections
from strategies.tables.dedup import peak_shared, price_shared


@dataclass(frozen=True)
class PriceTable:
    """Priced assignments of one body: `rows` [rows, mesh axes] of indices into `choices`; the rest [rows, columns].

    Seconds are of one layer, `wait_s` as in `Totals`, `spare_s` its `room_s`;
    `stored_bytes` (weights and cache) are of all the component's layers, per device. `scopes` are those of the
    body's parts over all rows that `role_sets` lists, of which `alive` are the table's.
    """

    body: Body
    choices: tuple[str, ...]
    rows: Rows
    ok: NDArray[np.bool_]
    step_s: Floats
    wait_s: Floats
    spare_s: Floats
    stored_bytes: Floats
    rejected: tuple[tuple[str, str, int, dict[str, float]], ...]
    evaluations: int
    role_sets: RoleSets
    alive: Ints
    scopes: tuple[tuple[CheckedProgram, ArrayScope], ...]

    def peak_bytes(self, rows: Ints, columns: Ints) -> Floats:
        """The most bytes of activations that live at once, [rows, columns] of those asked for: few need to be."""
        peak: Number = np.zeros((1, 1))
        for part, scope in self.scopes:
            peak = np.maximum(peak, peak_shared(scope, part.needs, self.role_sets, self.alive[rows], columns))
        return np.broadcast_to(peak, (len(rows), len(columns)))


def price_body(
    component: Component,
    body: Body,
    rates: Rates,
    fast: Speeds,
    batches: Ints,
    allowed: Sequence[frozenset[str]],
    most_roles: int | None = None,
) -> PriceTable:
    """Price every assignment of a body with no more than `most_roles` different roles (None: any number).

    `allowed[i]` are the program axes that mesh axis i may have.
    """
    choices = (*body.axes, IDLE)
    rows, role_sets, before = assignments(component, body, rates, batches, tuple(allowed), most_roles)
    fits = [fit_part(part, component, rates, role_sets.masks, batches) for part in body.parts]
    ok = np.logical_and.reduce([f.ok for f in fits])
    rejected = (*before, *(r for f in fits for r in rejections(f, component, batches)))
    alive = np.flatnonzero(ok.any(axis=1))
    scopes = tuple(
        (part, scope_of(part, sizes.sizes, role_sets.masks, rates, fast))
        for part, sizes in zip(body.parts, fits, strict=True)
    )
    total = Totals()
    stored: Number = 0.0
    for number, (part, every) in enumerate(scopes):
        price_shared(every, part.needs, role_sets, fast, total, alive)
        scope = every.take(alive)
        weights = 0.0 if component.tied and number else weight_bytes(scope)
        stored = stored + component.times * (weights + cache_bytes(scope))
    shape = (len(alive), batches.shape[1])
    return PriceTable(
        body,
        choices,
        rows[alive],
        ok[alive],
        np.broadcast_to(total.step_s, shape),
        np.broadcast_to(total.wait_s, shape),
        np.broadcast_to(total.room_s(fast.prefetch_s), shape),
        np.broadcast_to(stored, shape),
        rejected,
        int(ok.sum()),
        role_sets,
        alive,
        scopes,
    )
