"""Hold the priced assignments of one component on one mesh, grouped by how they meet the residual stream.

The price of a reshard depends only on the component's *boundary*: the dim that each mesh axis cuts in the body's
input, and its effect on the body's output. So assignments with one boundary share their reshards, and only the
best of each boundary are of interest.

Hops and launches hide while weights are read ahead (`strategies.readers.overlap`), both those of the body and those of
its reshards. Let T, w and s be the body's seconds, its hops and launches, and the time it can hide, and G and v the
reshards' seconds and their hops and launches. Body and reshards then take

    T + G - min(w + v, s)  =  max((T - w) + (G - v), (T - s) + G)

This is the larger of two sums, each of one term of the body and one of the reshards: `hops_hidden_s` (T - w and G - v)
and `reads_full_s` (T - s and G).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from planner.search.problem import Pick
from planner.search.residuals import CODES
from strategies.components import Component
from strategies.readers.rates import Floats, Ints
from strategies.residual_program import GIVEN
from strategies.tables.tables import PriceTable

READ = {code: i for i, code in enumerate(CODES)}
GIVE = {code: i for i, code in enumerate(GIVEN)}


@dataclass
class ComponentRows:
    """The rows (assignments) of every body of a component as flat arrays.

    A column is a (batch, padded batch) pair. `table_of` and `row_of` [rows] locate a row in `tables`; `hops_hidden_s`,
    `reads_full_s` and `stored_bytes` [rows, columns] are of one layer's seconds and all layers' bytes per device, with
    infinite seconds where a row cannot run. `boundary` [rows] numbers the boundaries, whose codes per mesh axis are
    `reads` and `gives` [boundaries, axes]. `columns` are the columns' numbers in the tables; `fronts` caches the Pareto
    fronts of `planner.search.mesh_search`.
    """

    component: Component
    tables: Sequence[PriceTable]
    table_of: Ints
    row_of: Ints
    hops_hidden_s: Floats
    reads_full_s: Floats
    stored_bytes: Floats
    boundary: Ints
    reads: Ints
    gives: Ints
    columns: Ints
    fronts: dict[tuple[int, int], Ints] = field(default_factory=dict)

    @cached_property
    def possible(self) -> NDArray[np.bool_]:
        """Mark [rows, columns] the assignments that can run a batch."""
        return np.isfinite(self.reads_full_s)

    @cached_property
    def peak_bytes(self) -> Floats:
        """Largest bytes of activations alive at once [rows, columns]; computed on first use."""
        result = np.empty(self.reads_full_s.shape)
        for number, table in enumerate(self.tables):
            rows = np.flatnonzero(self.table_of == number)
            result[rows] = table.peak_bytes(self.row_of[rows], self.columns)
        return result

    @cached_property
    def least_seconds(self) -> tuple[Floats, Floats]:
        """Least `hops_hidden_s` and `reads_full_s` of one layer [boundaries, columns], without reshards."""
        order = np.argsort(self.boundary, kind="stable")
        starts = np.searchsorted(self.boundary[order], np.arange(len(self.reads)))
        hops_hidden_s, reads_full_s = (
            np.minimum.reduceat(s[order], starts, axis=0) for s in (self.hops_hidden_s, self.reads_full_s)
        )
        return hops_hidden_s, reads_full_s

    @cached_property
    def least_reads_full_s(self) -> Floats:
        """Least `reads_full_s` of one layer [columns]."""
        return np.asarray(self.reads_full_s.min(axis=0))

    def pick(self, row: int) -> Pick:
        """Return the body and the program axes of a row."""
        table = self.tables[self.table_of[row]]
        return Pick(self.component.name, table.body.name, tuple(table.choices[c] for c in table.rows[self.row_of[row]]))

    def take(self, rows: Ints, columns: Ints) -> ComponentRows:
        """Return these rows and columns only, with the boundaries numbered anew."""
        boundaries, boundary = np.unique(self.boundary[rows], return_inverse=True)
        taken = ComponentRows(
            self.component,
            self.tables,
            self.table_of[rows],
            self.row_of[rows],
            self.hops_hidden_s[rows][:, columns],
            self.reads_full_s[rows][:, columns],
            self.stored_bytes[rows][:, columns],
            boundary.reshape(-1),
            self.reads[boundaries],
            self.gives[boundaries],
            self.columns[columns],
        )
        if "peak_bytes" in vars(self):
            taken.peak_bytes = self.peak_bytes[rows][:, columns]
        return taken


def join(component: Component, tables: Sequence[PriceTable]) -> ComponentRows | None:
    """Flatten the tables of a component's bodies; return None where no assignment is possible."""
    boundaries, rows, numbers = [], [], []
    for number, table in enumerate(tables):
        reads = np.array([READ[table.body.reads(a)] for a in table.choices])[table.rows]
        gives = np.array([GIVE[table.body.gives(a)] for a in table.choices])[table.rows]
        boundaries.append(np.concatenate([reads, gives], axis=1))
        rows.append(np.arange(len(table.rows)))
        numbers.append(np.full(len(table.rows), number))
    all_boundaries = np.concatenate(boundaries)
    if not len(all_boundaries):
        return None
    unique, inverse = unique_rows(all_boundaries)
    axes = all_boundaries.shape[1] // 2
    runs = [t.ok & np.isfinite(t.step_s) for t in tables]
    waits, spares = ([getattr(t, name) for t in tables] for name in ("wait_s", "spare_s"))
    return ComponentRows(
        component,
        tables,
        np.concatenate(numbers),
        np.concatenate(rows),
        np.concatenate([_less(t.step_s, w, ok) for t, w, ok in zip(tables, waits, runs, strict=True)]),
        np.concatenate([_less(t.step_s, s, ok) for t, s, ok in zip(tables, spares, runs, strict=True)]),
        np.concatenate([t.stored_bytes for t in tables]),
        inverse,
        unique[:, :axes],
        unique[:, axes:],
        np.arange(tables[0].ok.shape[1]),
    )


def _less(seconds: Floats, hidden_s: Floats, possible: NDArray[np.bool_]) -> Floats:
    """Return `seconds` minus `hidden_s`, and infinity where an assignment is not possible."""
    return np.asarray(np.subtract(seconds, hidden_s, out=np.full(possible.shape, np.inf), where=possible))


def unique_rows(boundaries: Ints) -> tuple[Ints, Ints]:
    """Return the different rows of an array of codes [rows, axes] below 5, and the number of each row among them."""
    codes = boundaries @ (5 ** np.arange(boundaries.shape[1], dtype=np.int64))
    _, first, inverse = np.unique(codes, return_index=True, return_inverse=True)
    return boundaries[first], inverse.reshape(-1)


def prefix_masks(component_rows: ComponentRows, cuts: Ints) -> tuple[Ints, Ints, Ints]:
    """Return three arrays [boundaries, residuals] of bit masks: sets of axes that must be prefixes of the order.

    They are the axes kept on entry, those kept on exit, and those kept or sliced on exit.
    """
    bits = 1 << np.arange(cuts.shape[1], dtype=np.int64)
    cut = (cuts != READ["-"])[None]
    reads, gives = component_rows.reads[:, None, :], component_rows.gives[:, None, :]
    codes = np.array([READ.get(code, -1) for code in GIVEN])
    return (
        (((reads == cuts[None]) & cut) * bits).sum(-1),
        (((codes[gives] == cuts[None]) & cut) * bits).sum(-1),
        (((gives != GIVE["U"]) & cut) * bits).sum(-1),
    )
