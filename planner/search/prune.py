"""Drop the parts of a mesh search that no layout can use that is as fast as the best ones so far.

Rows that are too slow even with the least seconds of all other components are dropped before reshards are priced.
Residuals whose least seconds are too many follow. With many rows, reshards are most of the work: then components are
priced one by one, those of few boundaries first, and each leaves fewer rows for the next.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from planner.search.component_rows import ComponentRows
from planner.search.mesh_search import MeshSearch
from planner.search.reshard_costs import ALL_ENDS_LIMIT, ReshardCosts, price_reshards, reshard_rows
from planner.search.residuals import States
from strategies.readers.rates import Floats, Ints


def prune(mesh_search: MeshSearch, worst_s: Mapping[int, float]) -> MeshSearch | None:
    """Return the mesh search of these columns, reduced to rows of layouts that may be fast enough; None if none is.

    `worst_s` maps a column to the seconds that a layout may take at most.
    """
    own_s = [j.least_reads_full_s * j.component.times for j in mesh_search.components]
    least_s = np.asarray(sum(own_s))
    columns = np.array([c for c in worst_s if np.isfinite(least_s[c])], dtype=np.int64)
    worst = np.array([worst_s[c] for c in columns.tolist()])
    if not len(columns):
        return None
    if not np.isfinite(worst).any():
        return _restricted(
            mesh_search,
            [j.take(_within(j, worst, columns), columns) for j in mesh_search.components],
            columns,
            mesh_search.state,
            None,
        )
    own_s = [seconds[columns] for seconds in own_s]
    slack = worst - least_s[columns]
    close = [
        j.take(_within(j, seconds + slack, columns), columns)
        for j, seconds in zip(mesh_search.components, own_s, strict=True)
    ]
    if not all(len(j.row_of) for j in close):
        return None
    if reshard_rows(close, mesh_search.state) > ALL_ENDS_LIMIT:
        return _price_one_by_one(mesh_search, close, columns, worst, own_s)
    return _price_all(mesh_search, close, columns, worst)


def _price_all(
    mesh_search: MeshSearch, close: Sequence[ComponentRows], columns: Ints, worst: Floats
) -> MeshSearch | None:
    """Price all reshards at once: with few rows this costs less than dropping some of them would save."""
    state, phase, fast = mesh_search.state, mesh_search.problem.work.phase, mesh_search.problem.fast
    reshards, evaluations = price_reshards(
        close, state, phase, mesh_search.rates, fast, mesh_search.batches[:, columns]
    )
    least_s = [g.least_seconds(j) * j.component.times for j, g in zip(close, reshards, strict=True)]
    bound = np.asarray(sum(least_s))
    feasible = np.isfinite(bound) & (bound <= worst)
    residuals = np.flatnonzero(feasible.any(axis=1))
    if not len(residuals):
        return None
    rows_left = []
    for component_rows, own_s in zip(close, least_s, strict=True):
        most_s = np.full(bound.shape, -np.inf)
        most_s[feasible] = np.broadcast_to(worst, bound.shape)[feasible] - (bound[feasible] - own_s[feasible])
        rows_left.append(_within(component_rows, most_s.max(axis=0)))
    all_columns = np.arange(len(columns))
    taken = [
        (j.take(rows, all_columns), g.for_boundaries(np.unique(j.boundary[rows])))
        for j, g, rows in zip(close, reshards, rows_left, strict=True)
    ]
    if 2 * len(residuals) < len(bound):
        state, taken = state.take(residuals), [(j, g.take(residuals)) for j, g in taken]
    return _restricted(mesh_search, [j for j, _ in taken], columns, state, ([g for _, g in taken], evaluations))


def _price_one_by_one(
    mesh_search: MeshSearch, close: Sequence[ComponentRows], columns: Ints, worst: Floats, own_s: Sequence[Floats]
) -> MeshSearch | None:
    """Price reshards component by component, those of few boundaries first, for the rows left by then.

    `own_s` has the least seconds of each component [columns], without reshards.
    """
    state, phase, fast = mesh_search.state, mesh_search.problem.work.phase, mesh_search.problem.fast
    bound = np.repeat(np.asarray(sum(own_s))[None], len(state.cuts), axis=0)  # [residuals, columns]
    priced_components: dict[int, tuple[ComponentRows, ReshardCosts]] = {}
    evaluations, all_columns = 0, np.arange(len(columns))
    for i in sorted(range(len(close)), key=lambda i: (len(close[i].reads), i)):
        component_rows = close[i].take(_within(close[i], own_s[i] + worst - bound.min(axis=0)), all_columns)
        if not len(component_rows.row_of):
            return None
        (costs,), priced = price_reshards(
            [component_rows], state, phase, mesh_search.rates, fast, mesh_search.batches[:, columns]
        )
        evaluations += priced
        priced_components[i] = component_rows, costs
        bound = bound + costs.least_seconds(component_rows) * component_rows.component.times - own_s[i]
        residuals = np.flatnonzero((bound <= worst).any(axis=1))
        if not len(residuals):
            return None
        if 2 * len(residuals) < len(bound):
            bound, state = bound[residuals], state.take(residuals)
            priced_components = {n: (j, g.take(residuals)) for n, (j, g) in priced_components.items()}
    in_order = [priced_components[i] for i in range(len(mesh_search.components))]
    return _restricted(mesh_search, [j for j, _ in in_order], columns, state, ([g for _, g in in_order], evaluations))


def _within(component_rows: ComponentRows, most_s: Floats, columns: Ints | slice = slice(None)) -> Ints:
    """Return the rows that take at most `most_s` [columns] at some of these batches, without reshards."""
    seconds = component_rows.reads_full_s[:, columns] * component_rows.component.times
    fast: NDArray[np.bool_] = np.isfinite(seconds) & (seconds <= most_s)
    return np.flatnonzero(fast.any(axis=1))


def _restricted(
    mesh_search: MeshSearch,
    components: Sequence[ComponentRows],
    columns: Ints,
    state: States,
    reshards: tuple[list[ReshardCosts], int] | None,
) -> MeshSearch:
    """Return a mesh search of these components, columns and states."""
    pairs = [mesh_search.pairs[c] for c in columns.tolist()]
    return MeshSearch(
        mesh_search.problem,
        mesh_search.mesh,
        components,
        state,
        mesh_search.rates,
        mesh_search.batches[:, columns],
        pairs,
        reshards,
    )
