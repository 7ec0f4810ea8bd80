"""Find whether any layout fits, with the tables of the search: one layout within memory instead of the fastest.

A layout fits where its stored bytes, summed over the components, the largest working set among them and the residual
stream are within usable HBM. For a given limit on the working set, components are independent within a state of the
residual, each with the least stored bytes among the assignments within the limit. So the least bytes of a state are
the least over the limits, and it is enough to try the limits that are some assignment's working set.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import inf, nan
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mesh.slices import Slice
from planner.query.query import TWO
from planner.search.component_rows import ComponentRows, prefix_masks
from planner.search.mesh_search import MeshSearch
from planner.search.meshes import Mesh, meshes
from planner.search.problem import Choice, Problem, SearchResult
from planner.search.reshard_costs import price_reshards
from planner.search.residuals import CODES, States
from planner.search.search import mesh_search_of
from strategies.readers.rates import Floats, Ints

Pairs = Sequence[tuple[int, int]]
"""(batch, padded batch)."""
Key = frozenset[Any]
"""The set of cuts that a number of sequences or tokens admits."""


@dataclass(frozen=True)
class Need:
    """A layout that runs and fits, and the least bytes per device.

    `choice` is None where no layout fits; its `step_s` is not computed (NaN). No layout fits in fewer than
    `least_bytes`, which are infinite where none runs.
    """

    choice: Choice | None
    least_bytes: float

    @property
    def fits(self) -> bool:
        """True where some layout runs and fits."""
        return self.choice is not None


@dataclass
class Footprints:
    """The memory that layouts need on one slice, for several numbers of sequences or tokens in turn.

    `cuts` selects the meshes, see `planner.search.meshes`; they are tried from the one that fitted last. `unfit` holds,
    by mesh, numbers at which no layout fitted, with their keys (see `planner.search.largest`): no larger number that
    admits no other cuts fits either.
    """

    slice_: Slice
    cuts: str = TWO
    order: list[Mesh] = field(init=False)
    unfit: dict[Mesh, list[tuple[int, Key]]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.order = list(meshes(self.slice_, self.cuts))

    def need(self, problem: Problem, pairs: Pairs, value: int = 0, key: Key = frozenset()) -> Need:
        """Return the need of the first of the pairs that fits.

        `value` is the number of sequences or tokens that `key` belongs to; with 0 a failure is not remembered.
        """
        least_bytes = inf
        for mesh in list(self.order):
            if dominated(value, key, self.unfit.setdefault(mesh, [])):
                continue
            need = need_of(problem, mesh, pairs)
            least_bytes = min(least_bytes, need.least_bytes)
            if need.fits:
                self.order.remove(mesh)
                self.order.insert(0, mesh)
                return Need(need.choice, least_bytes)
            if value:
                self.unfit[mesh].append((value, key))
        return Need(None, least_bytes)


def dominated(value: int, key: Key, unfit: Sequence[tuple[int, Key]]) -> bool:
    """Return whether a number must fail because a smaller one failed that admits all its cuts.

    >>> dominated(8, frozenset({1, 2}), [(4, frozenset({1, 2, 4}))])
    True
    >>> dominated(2, frozenset({1}), [(4, frozenset({1, 2}))])
    False
    """
    return any(value >= less and key <= cuts for less, cuts in unfit)


def need_of(problem: Problem, mesh: Mesh, pairs: Pairs) -> Need:
    """Return the need of the first of the pairs that fits on one mesh."""
    mesh_search = mesh_search_of(problem, mesh, pairs, SearchResult())
    if mesh_search is None:
        return Need(None, inf)
    memory = _Memory(mesh_search)
    least_bytes = inf
    for column in range(len(pairs)):
        need = memory.need(column)
        if need.fits:
            return need
        least_bytes = min(least_bytes, need.least_bytes)
    return Need(None, least_bytes)


class _Memory:
    """The memory that layouts of one mesh search need; columns are (batch, padded batch) pairs."""

    def __init__(self, mesh_search: MeshSearch) -> None:
        self.mesh_search, self.components, self.states = mesh_search, mesh_search.components, mesh_search.state
        self.met: dict[tuple[int, int], list[NDArray[np.bool_]]] = {}

    def need(self, column: int) -> Need:
        """Return a layout that fits, if there is one, taking states from the lowest lower bound of their bytes.

        Reshards are checked only where memory suffices; without them, the bytes are still a lower bound.
        """
        usable_bytes, residual_bytes = self.mesh_search.problem.usable_bytes, self.mesh_search.residual_bytes[:, column]
        stored = sum(_least(j.stored_bytes[:, column], j.possible[:, column]) for j in self.components)
        peak = max(_least(j.peak_bytes[:, column], j.possible[:, column]) for j in self.components)
        least_bytes = stored + peak + float(residual_bytes.min())
        possible = np.flatnonzero(stored + peak + residual_bytes <= usable_bytes)
        if not len(possible):
            return Need(None, least_bytes)
        state, stream_bytes = self.states.take(possible), residual_bytes[possible]
        limits = self._limits(column, peak)
        tables = [_stored_within(j, column, limits) for j in self.components]
        allowed_boundaries = [_prefixed(j, state) for j in self.components]
        bounds = stream_bytes[state.residual] + peak
        for table, allowed in zip(tables, allowed_boundaries, strict=True):
            bounds = bounds + np.where(allowed, table[:, -1], inf).min(axis=1)
        least_bytes = float(np.delete(stored + peak + residual_bytes, possible).min(initial=inf))
        for n in np.argsort(bounds, kind="stable"):
            if bounds[n] >= least_bytes:
                break
            residual, chosen = int(state.residual[n]), [masks[n] for masks in allowed_boundaries]
            limit, nbytes = _least_within(tables, chosen, limits)
            if nbytes <= usable_bytes - stream_bytes[residual]:
                meets = self._meets(int(possible[residual]), column)
                chosen = [a & b for a, b in zip(chosen, meets, strict=True)]
                limit, nbytes = _least_within(tables, chosen, limits)
                if nbytes <= usable_bytes - stream_bytes[residual]:
                    cuts, total_bytes = state.cuts[residual], nbytes + float(stream_bytes[residual])
                    choice = self._choice(cuts, chosen, float(limits[limit]), column, total_bytes)
                    return Need(choice, min(least_bytes, total_bytes))
            least_bytes = min(least_bytes, nbytes + float(stream_bytes[residual]))
        return Need(None, least_bytes)

    def _choice(
        self, cuts: Ints, allowed_boundaries: Sequence[NDArray[np.bool_]], limit: float, column: int, total_bytes: float
    ) -> Choice:
        """Return the assignments of these boundaries that store the least within a limit of working sets."""
        picks = []
        for component_rows, allowed in zip(self.components, allowed_boundaries, strict=True):
            rows = np.flatnonzero(component_rows.possible[:, column] & allowed[component_rows.boundary])
            rows = rows[component_rows.peak_bytes[rows, column] <= limit]
            row = int(rows[component_rows.stored_bytes[rows, column].argmin()])
            picks.append(component_rows.pick(row))
        residual = tuple(CODES[code] for code in cuts)
        return Choice(self.mesh_search.mesh, residual, tuple(picks), *self.mesh_search.pairs[column], nan, total_bytes)

    def _limits(self, column: int, least_peak: float) -> Floats:
        """Return in order the working sets of assignments that may be the largest of a fitting layout."""
        peaks = np.concatenate([j.peak_bytes[j.possible[:, column], column] for j in self.components])
        return np.unique(peaks[(peaks >= least_peak) & (peaks <= self.mesh_search.problem.usable_bytes)])

    def _meets(self, residual: int, column: int) -> list[NDArray[np.bool_]]:
        """Return for each component, [boundaries], whether a reshard joins the boundary and this residual."""
        if (residual, column) not in self.met:
            cuts, none = self.states.cuts[residual : residual + 1], np.zeros(0, dtype=np.int64)
            state = States(cuts, none, np.zeros((0, 1), dtype=bool))
            mesh_search, problem = self.mesh_search, self.mesh_search.problem
            batches = mesh_search.batches[:, column : column + 1]
            reshards, _ = price_reshards(
                self.components, state, problem.work.phase, mesh_search.rates, problem.fast, batches
            )
            self.met[residual, column] = [np.isfinite(costs.seconds(0, 0)[1]) for costs in reshards]
        return self.met[residual, column]


def _least_within(
    tables: Sequence[Floats], allowed_boundaries: Sequence[NDArray[np.bool_]], limits: Floats
) -> tuple[int, float]:
    """Return the limit of working sets at which the allowed boundaries take the least bytes, and those bytes."""
    if not all(allowed.any() for allowed in allowed_boundaries):
        return 0, inf
    needs = limits + sum(table[allowed].min(axis=0) for table, allowed in zip(tables, allowed_boundaries, strict=True))
    place = int(needs.argmin())
    return place, float(needs[place])


def _prefixed(component_rows: ComponentRows, state: States) -> NDArray[np.bool_]:
    """Return, [states, boundaries], whether the axes that a boundary keeps are prefixes of the state's order."""
    rows = np.arange(len(state.residual))[:, None]
    masks = prefix_masks(component_rows, state.cuts)
    return np.asarray(np.logical_and.reduce([state.prefixes[rows, mask.T[state.residual]] for mask in masks]))


def _least(values: Floats, possible: NDArray[np.bool_]) -> float:
    """Return the least possible value, or infinity."""
    return float(values[possible].min()) if possible.any() else inf


def _stored_within(component_rows: ComponentRows, column: int, limits: Floats) -> Floats:
    """Return the least stored bytes [boundaries, limits] of assignments whose working set is within the limit."""
    stored = np.full((len(component_rows.reads), len(limits)), inf)
    rows = np.flatnonzero(component_rows.possible[:, column] & (component_rows.peak_bytes[:, column] <= limits[-1]))
    place = np.searchsorted(limits, component_rows.peak_bytes[rows, column])
    np.minimum.at(stored, (component_rows.boundary[rows], place), component_rows.stored_bytes[rows, column])
    return np.asarray(np.minimum.accumulate(stored, axis=1))
