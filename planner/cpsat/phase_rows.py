"""The two sides of a pair that shares its weights: rows of a phase on one mesh, and what bounds leave out.

The objective is a sum over both phases and all components, each side's seconds times its `factor`. Whatever rows are
chosen, a component's two rows store the weights alike, so at least cut the same dims of the same shapes (`unordered`).
So a row costs at least its own seconds in its best residual and the least of the other side's rows that cut the same.
Sums of such bounds leave out rows and states that no pair within a limit has; a pair that is found within the limit is
the best of all. Where none is found the limit grows, at last to infinity.
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
    """One phase on one mesh at one padded batch; `caches`: caches must be stored alike, too, and whole in S.

    Per component: `rows` that run the batch and alone fit, `seconds` [rows, residuals] times `factor`, bytes of weights
    and cache, and the number of what a row cuts, as in `names`, which both sides share.
    """

    board: MeshSearch
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
    found: dict[tuple[int, int, int], Stored] = field(default_factory=dict)

    def __post_init__(self) -> None:
        mesh_search, fast, rates, batches = self.board, self.board.problem.fast, self.board.rates, self.board.batches
        for i, joined in enumerate(mesh_search.joined):
            specs = specs_of(joined, rates, batches, self.column, self.caches)
            weights = weights_of(joined, rates, fast, batches, self.column)
            alone = joined.stored_bytes[:, self.column] <= mesh_search.problem.usable_bytes
            rows = np.flatnonzero(joined.possible[:, self.column] & alone).astype(np.int64)
            if self.caches:
                rows = rows[[not _cuts_sequence(specs.stored(int(r), self._residual(0))) for r in rows]]
            self.specs.append(specs)
            self.rows.append(rows)
            self.seconds.append(self.factor * self._seconds(i, rows))
            self.weights.append(weights[rows])
            self.kv.append(joined.stored_bytes[rows, self.column] - weights[rows])
            self.peak.append(joined.peak_bytes[rows, self.column])
            self.cut.append(self._cuts(i, rows))

    def _residual(self, residual: int) -> list[int]:
        return [int(c) for c in self.board.state.cuts[residual]]

    def _seconds(self, i: int, rows: Ints) -> Floats:
        """[rows, residuals]: of all layers, reshards included."""
        residuals = range(len(self.board.state.cuts))
        return np.column_stack([self.board.seconds(i, rows, residual, self.column) for residual in residuals])

    def _cuts(self, i: int, rows: Ints) -> Ints:
        residual = self._residual(0)
        cuts = (unordered(self.specs[i].stored(int(row), residual)) for row in rows)
        return np.array([self.names.setdefault(cut, len(self.names)) for cut in cuts], dtype=np.int64)

    @cached_property
    def norms(self) -> float:
        """Bytes of the norms' vectors, which are whole on every device in either phase."""
        return norm_bytes([j.component for j in self.board.joined], self.board.problem.work, self.board.problem.fast)

    def held(self, residual: int) -> float:
        """Bytes of the residual stream and the update that is added to it."""
        return float(self.board.residual_bytes[residual, self.column]) - self.norms

    def stored(self, i: int, at: int, residual: int) -> Stored:
        """The spec, before an order, of the row at a place of component i."""
        key = (i, at, residual)
        if key not in self.found:
            self.found[key] = self.specs[i].stored(int(self.rows[i][at]), self._residual(residual))
        return self.found[key]

    def least(self, i: int) -> Floats:
        """[names]: the least seconds of component i's rows that cut so; inf where none does."""
        best = np.full(len(self.names), np.inf)
        np.minimum.at(best, self.cut[i], self.seconds[i].min(axis=1))
        return best

    def blocks(self, other: Sequence[Floats], limit: float) -> Iterator[PhaseBlock]:
        """The states that a pair within the limit may have, with the rows it may have there.

        `other`: per component, by what is cut, the least seconds of the other side.
        """
        beside = [o[cut] for o, cut in zip(other, self.cut, strict=True)]
        states = self.board.state
        for state, residual in enumerate(states.residual.tolist()):
            sums = [s[:, residual] + b for s, b in zip(self.seconds, beside, strict=True)]
            for i, one in enumerate(sums):
                allowed = self.board.allowed(i, state)
                one[~allowed[self.board.joined[i].boundary[self.rows[i]]]] = np.inf
            least = [float(one.min()) if len(one) else np.inf for one in sums]
            slack = limit * (1 + SLACK) - sum(least) if np.isfinite(limit) else np.inf
            if np.isfinite(sum(least)) and slack >= 0:
                kept = [
                    np.flatnonzero(np.isfinite(one) & (one <= own + slack))
                    for one, own in zip(sums, least, strict=True)
                ]
                yield self._block(state, residual, kept)

    def _block(self, state: int, residual: int, kept: Sequence[NDArray[np.int64]]) -> PhaseBlock:
        options, specs = [], []
        for i, at in enumerate(kept):
            classes: dict[Stored, int] = {}
            stored = [self.stored(i, int(a), residual) for a in at]
            boundary = np.array([classes.setdefault(s, len(classes)) for s in stored], dtype=np.int64)
            front = StateRows(at, self.seconds[i][at, residual], self.kv[i][at], self.peak[i][at]).front(1, boundary)
            options.append(front)
            specs.append([self.stored(i, int(a), residual) for a in front.row])
        return PhaseBlock(self, state, residual, tuple(options), tuple(specs))


@dataclass(frozen=True)
class PhaseBlock:
    """One state of a side: per component options (`row`: places among the side's rows) and their specs."""

    side: PhaseRows
    state: int
    residual: int
    options: tuple[StateRows, ...]
    specs: tuple[list[Stored], ...]


def phase_rows_of(
    mesh_searches: Sequence[MeshSearch], batch: int, factor: float, caches: bool, names: dict[Stored, int]
) -> list[PhaseRows]:
    """The sides of a phase on one mesh, one per padded batch."""
    return [
        PhaseRows(mesh_search, column, factor, caches, names)
        for mesh_search in mesh_searches
        for column, (wanted, _) in enumerate(mesh_search.pairs)
        if wanted == batch
    ]


def least_by_cut(sides: Sequence[PhaseRows]) -> list[Floats]:
    """Per component, by what is cut, the least seconds of any padded batch."""
    parts = len(sides[0].rows)
    return [np.stack([side.least(i) for side in sides]).min(axis=0) for i in range(parts)]


def orders_of(side: PhaseRows) -> dict[int, list[tuple[int, ...]]]:
    """By state, the orders of the mesh axes that its prefixes stand for, and that a plan file can say.

    A file says the order of those that cut the same dim of the residual: so those of B come first, then those of T and
    of D, and at last the others by their place on the torus (`planner.plan.layout_file.laid_out`).
    """
    state, mesh = side.board.state, side.board.mesh
    place = by_place(mesh)
    tables = {(int(r), p.tobytes()): n for n, (r, p) in enumerate(zip(state.residual, state.prefixes, strict=True))}
    orders_by: dict[int, list[tuple[int, ...]]] = {}
    for residual, cut in enumerate(state.cuts.tolist()):
        parts = [[axis for axis in place if CODES[cut[axis]] == dim] for dim in "BTD"]
        rest = [axis for axis in place if CODES[cut[axis]] == "-"]
        for orders in product(*(permutations(part) for part in parts)):
            order = (*chain(*orders), *rest)
            orders_by.setdefault(tables[residual, _prefixes(cut, order).tobytes()], []).append(order)
    return orders_by


def by_place(mesh: Mesh) -> list[int]:
    """The mesh axes by physical axis, major first."""
    return sorted(range(len(mesh)), key=lambda i: (mesh[i].axis, -mesh[i].stride))


def _prefixes(cut: Sequence[int], order: Sequence[int]) -> NDArray[np.bool_]:
    """Return which sets of mesh axes are prefixes, dim by dim, of the axes that cut it in this order."""
    allowed = {0}
    for dim in sorted(set(cut)):
        if dim != CODES.index("-"):
            axes = [axis for axis in order if cut[axis] == dim]
            prefixes = [sum(1 << a for a in axes[:n]) for n in range(len(axes) + 1)]
            allowed = {a | p for a in allowed for p in prefixes}
    table = np.zeros(1 << len(cut), dtype=bool)
    table[list(allowed)] = True
    return table


def _cuts_sequence(stored: Stored) -> bool:
    """Return whether a cache is cut over S: prefill keeps positions in zigzag order, decode striped; never alike."""
    return any(not shape and bool(cuts[-1]) for _, shape, cuts in stored)


def same_mesh(prefill: Sequence[MeshSearch], decode: Sequence[MeshSearch]) -> Iterator[tuple[MeshSearch, MeshSearch]]:
    """The boards of each mesh that both phases have."""
    for one in prefill:
        for other in decode:
            if one.mesh == other.mesh:
                yield one, other
