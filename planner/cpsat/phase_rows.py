"""Build the rows of each phase of a pair that shares its weights, on one mesh, reduced by lower bounds.

The objective is a sum over both phases and all components, each phase's seconds times its `factor`. Whatever rows are
chosen, a component's two rows store the weights alike, so at least cut the same dims of the same shapes (`unordered`).
So a row costs at least its own seconds in its best residual plus the least of the other phase's rows with the same cut.
Sums of such bounds exclude rows and states that no pair within a limit has; a pair within the limit is then the best of
all. Where there is none, the limit grows, at last to infinity.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain, permutations, product

import numpy as np
from numpy.typing import NDArray

from planner.cpsat.rows import SLACK
from planner.cpsat.specs import Specs, Stored, specs_of, unordered, weights_of
from planner.search.mesh_search import MeshSearch
from planner.search.meshes import Mesh
from planner.search.pareto import StateRows
from planner.search.residuals import CODES
from strategies.readers.memory import norm_bytes
from strategies.readers.rates import Floats, Ints


@dataclass(eq=False)
class PhaseRows:
    """The rows of one phase on one mesh at one padded batch.

    With `caches` the caches must be stored alike, too, with no cut over S. Per component there are `rows` that can run
    the batch and fit on their own, `seconds` [rows, residuals] times `factor`, bytes per device of weights and KV
    cache, the working sets, and `cut`: the number in `names` of the row's cut of the weights. Both phases share
    `names`.
    """

    mesh_search: MeshSearch
    column: int
    factor: float
    caches: bool
    names: dict[Stored, int]
    rows: list[Ints] = field(default_factory=list)
    seconds: list[Floats] = field(default_factory=list)
    weights: list[Floats] = field(default_factory=list)
    kv: list[Floats] = field(default_factory=list)
    peak: list[Floats] = field(default_factory=list)
    cut: list[Ints] = field(default_factory=list)
    specs: list[Specs] = field(default_factory=list)
    stored_specs: dict[tuple[int, int, int], Stored] = field(default_factory=dict)

    def __post_init__(self) -> None:
        search, fast, rates, batches = (
            self.mesh_search,
            self.mesh_search.problem.fast,
            self.mesh_search.rates,
            self.mesh_search.batches,
        )
        for i, component_rows in enumerate(search.components):
            specs = specs_of(component_rows, rates, batches, self.column, self.caches)
            weights = weights_of(component_rows, rates, fast, batches, self.column)
            fits_alone = component_rows.stored_bytes[:, self.column] <= search.problem.usable_bytes
            rows = np.flatnonzero(component_rows.possible[:, self.column] & fits_alone).astype(np.int64)
            if self.caches:
                rows = rows[[not _cuts_sequence(specs.stored(int(r), self._residual(0))) for r in rows]]
            self.specs.append(specs)
            self.rows.append(rows)
            self.seconds.append(self.factor * self._seconds(i, rows))
            self.weights.append(weights[rows])
            self.kv.append(component_rows.stored_bytes[rows, self.column] - weights[rows])
            self.peak.append(component_rows.peak_bytes[rows, self.column])
            self.cut.append(self._cuts(i, rows))

    def _residual(self, residual: int) -> list[int]:
        """Return the codes of a residual, one per mesh axis."""
        return [int(c) for c in self.mesh_search.state.cuts[residual]]

    def _seconds(self, i: int, rows: Ints) -> Floats:
        """Return the seconds [rows, residuals] of all layers, with their reshards."""
        residuals = range(len(self.mesh_search.state.cuts))
        return np.column_stack([self.mesh_search.seconds(i, rows, residual, self.column) for residual in residuals])

    def _cuts(self, i: int, rows: Ints) -> Ints:
        """Return the number in `names` of each row's unordered spec."""
        residual = self._residual(0)
        cuts = (unordered(self.specs[i].stored(int(row), residual)) for row in rows)
        return np.array([self.names.setdefault(cut, len(self.names)) for cut in cuts], dtype=np.int64)

    @cached_property
    def norms(self) -> float:
        """Bytes of the norms' vectors, which every device stores in full in either phase."""
        return norm_bytes(
            [component_rows.component for component_rows in self.mesh_search.components],
            self.mesh_search.problem.work,
            self.mesh_search.problem.fast,
        )

    def residual_bytes(self, residual: int) -> float:
        """Return the bytes per device of the residual stream and the update added to it."""
        return float(self.mesh_search.residual_bytes[residual, self.column]) - self.norms

    def stored(self, i: int, place: int, residual: int) -> Stored:
        """Return the unordered spec of the row at a place of component i."""
        key = (i, place, residual)
        if key not in self.stored_specs:
            self.stored_specs[key] = self.specs[i].stored(int(self.rows[i][place]), self._residual(residual))
        return self.stored_specs[key]

    def least_seconds_by_cut(self, i: int) -> Floats:
        """Return the least seconds [names] of component i's rows with each cut; infinite where there is none."""
        best = np.full(len(self.names), np.inf)
        np.minimum.at(best, self.cut[i], self.seconds[i].min(axis=1))
        return best

    def blocks(self, other: Sequence[Floats], limit: float) -> Iterator[PhaseBlock]:
        """Yield the states that a pair within the limit may have, with the rows it may have there.

        `other` has, per component and cut, the least seconds of the other phase.
        """
        other_s = [o[cut] for o, cut in zip(other, self.cut, strict=True)]
        states = self.mesh_search.state
        for state, residual in enumerate(states.residual.tolist()):
            sums = [s[:, residual] + b for s, b in zip(self.seconds, other_s, strict=True)]
            for i, seconds in enumerate(sums):
                allowed = self.mesh_search.allowed(i, state)
                seconds[~allowed[self.mesh_search.components[i].boundary[self.rows[i]]]] = np.inf
            least_s = [float(seconds.min()) if len(seconds) else np.inf for seconds in sums]
            slack = limit * (1 + SLACK) - sum(least_s) if np.isfinite(limit) else np.inf
            if np.isfinite(sum(least_s)) and slack >= 0:
                places = [
                    np.flatnonzero(np.isfinite(seconds) & (seconds <= own_s + slack))
                    for seconds, own_s in zip(sums, least_s, strict=True)
                ]
                yield self._block(state, residual, places)

    def _block(self, state: int, residual: int, places: Sequence[NDArray[np.int64]]) -> PhaseBlock:
        """Return the block of a state, with the Pareto front of the rows of each spec."""
        options, specs = [], []
        for i, component_places in enumerate(places):
            classes: dict[Stored, int] = {}
            stored = [self.stored(i, int(a), residual) for a in component_places]
            spec_class = np.array([classes.setdefault(s, len(classes)) for s in stored], dtype=np.int64)
            front = StateRows(
                component_places,
                self.seconds[i][component_places, residual],
                self.kv[i][component_places],
                self.peak[i][component_places],
            ).front(1, spec_class)
            options.append(front)
            specs.append([self.stored(i, int(a), residual) for a in front.row])
        return PhaseBlock(self, state, residual, tuple(options), tuple(specs))


@dataclass(frozen=True)
class PhaseBlock:
    """One state of a phase: per component its options and their specs.

    The options' `row` has places among `PhaseRows.rows`.
    """

    phase_rows: PhaseRows
    state: int
    residual: int
    options: tuple[StateRows, ...]
    specs: tuple[list[Stored], ...]


def phase_rows_of(
    searches: Sequence[MeshSearch], batch: int, factor: float, caches: bool, names: dict[Stored, int]
) -> list[PhaseRows]:
    """Return the rows of a phase on one mesh, one `PhaseRows` per padded batch."""
    return [
        PhaseRows(search, column, factor, caches, names)
        for search in searches
        for column, (column_batch, _) in enumerate(search.pairs)
        if column_batch == batch
    ]


def least_by_cut(phase_rows: Sequence[PhaseRows]) -> list[Floats]:
    """Return per component and cut the least seconds of any padded batch."""
    parts = len(phase_rows[0].rows)
    return [np.stack([rows.least_seconds_by_cut(i) for rows in phase_rows]).min(axis=0) for i in range(parts)]


def orders_of(phase_rows: PhaseRows) -> dict[int, list[tuple[int, ...]]]:
    """Return by state the orders of the mesh axes that its prefixes describe and a plan file can state.

    A file states the order of axes that cut the same dim of the residual: so those of B come first, then those of T and
    of D, and at last the others by their place on the torus (`planner.plan.layout_file.laid_out`).
    """
    state, mesh = phase_rows.mesh_search.state, phase_rows.mesh_search.mesh
    place = by_place(mesh)
    tables = {(int(r), p.tobytes()): n for n, (r, p) in enumerate(zip(state.residual, state.prefixes, strict=True))}
    result: dict[int, list[tuple[int, ...]]] = {}
    for residual, cut in enumerate(state.cuts.tolist()):
        parts = [[axis for axis in place if CODES[cut[axis]] == dim] for dim in "BTD"]
        rest = [axis for axis in place if CODES[cut[axis]] == "-"]
        for orders in product(*(permutations(part) for part in parts)):
            order = (*chain(*orders), *rest)
            result.setdefault(tables[residual, _prefixes(cut, order).tobytes()], []).append(order)
    return result


def by_place(mesh: Mesh) -> list[int]:
    """Return the mesh axes by physical axis, major first."""
    return sorted(range(len(mesh)), key=lambda i: (mesh[i].axis, -mesh[i].stride))


def _prefixes(cut: Sequence[int], order: Sequence[int]) -> NDArray[np.bool_]:
    """Mark the sets of mesh axes that are prefixes, dim by dim, of the axes that cut it in this order."""
    prefix_sets = {0}
    for dim in sorted(set(cut)):
        if dim != CODES.index("-"):
            axes = [axis for axis in order if cut[axis] == dim]
            prefixes = [sum(1 << a for a in axes[:n]) for n in range(len(axes) + 1)]
            prefix_sets = {a | p for a in prefix_sets for p in prefixes}
    table = np.zeros(1 << len(cut), dtype=bool)
    table[list(prefix_sets)] = True
    return table


def _cuts_sequence(stored: Stored) -> bool:
    """Return whether a cache is cut over S.

    A prefill stores positions in zigzag order and a decode striped, so such caches are never alike.
    """
    return any(not shape and bool(cuts[-1]) for _, shape, cuts in stored)


def same_mesh(prefill: Sequence[MeshSearch], decode: Sequence[MeshSearch]) -> Iterator[tuple[MeshSearch, MeshSearch]]:
    """Yield the two phases' mesh searches of each mesh that both have."""
    for first in prefill:
        for second in decode:
            if first.mesh == second.mesh:
                yield first, second
