"""Pruning of a mesh: only rows that may be part of a layout no slower than those found already.

Rows whose own seconds are too many with the least of all else are left out before reshard is priced, and then residuals
under which the least of the components is too much. Of many rows reshard is most of the work: there components are
taken one by one, those of few boundaries first, and each leaves less for the next.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from planner.search.component_rows import ComponentRows
from planner.search.mesh_search import MeshSearch
from planner.search.reshard_costs import TOGETHER, ReshardCosts, price_reshards, reshard_rows
from planner.search.residuals import States
from strategies.readers.rates import Floats, Ints


def near(mesh_search: MeshSearch, worst_s: Mapping[int, float]) -> MeshSearch | None:
    """The board of these columns, with what may be part of a layout that takes at most so long; None: nothing."""
    own_s = [j.least_reads_full_s * j.component.times for j in mesh_search.joined]
    least_s = np.asarray(sum(own_s))
    columns = np.array([c for c in worst_s if np.isfinite(least_s[c])], dtype=np.int64)
    worst = np.array([worst_s[c] for c in columns.tolist()])
    if not len(columns):
        return None
    if not np.isfinite(worst).any():
        return _of(
            mesh_search,
            [j.take(_within(j, worst, columns), columns) for j in mesh_search.joined],
            columns,
            mesh_search.state,
            None,
        )
    own_s = [seconds[columns] for seconds in own_s]
    slack = worst - least_s[columns]
    close = [
        j.take(_within(j, seconds + slack, columns), columns)
        for j, seconds in zip(mesh_search.joined, own_s, strict=True)
    ]
    if not all(len(j.row_of) for j in close):
        return None
    if reshard_rows(close, mesh_search.state) > TOGETHER:
        return one_by_one(mesh_search, close, columns, worst, own_s)
    return at_once(mesh_search, close, columns, worst)


def at_once(mesh_search: MeshSearch, close: Sequence[ComponentRows], columns: Ints, worst: Floats) -> MeshSearch | None:
    """All reshards are priced together: of few rows it costs less than it would save to leave some out."""
    state, phase, fast = mesh_search.state, mesh_search.problem.work.phase, mesh_search.problem.fast
    reshards, evaluations = price_reshards(
        close, state, phase, mesh_search.rates, fast, mesh_search.batches[:, columns]
    )
    least_s = [g.least(j) * j.component.times for j, g in zip(close, reshards, strict=True)]
    bound = np.asarray(sum(least_s))
    well = np.isfinite(bound) & (bound <= worst)
    some = np.flatnonzero(well.any(axis=1))
    if not len(some):
        return None
    left = []
    for joined, own_s in zip(close, least_s, strict=True):
        most_s = np.full(bound.shape, -np.inf)
        most_s[well] = np.broadcast_to(worst, bound.shape)[well] - (bound[well] - own_s[well])
        left.append(_within(joined, most_s.max(axis=0)))
    every = np.arange(len(columns))
    taken = [
        (j.take(rows, every), g.boundaries(np.unique(j.boundary[rows])))
        for j, g, rows in zip(close, reshards, left, strict=True)
    ]
    if 2 * len(some) < len(bound):
        state, taken = state.take(some), [(j, g.take(some)) for j, g in taken]
    return _of(mesh_search, [j for j, _ in taken], columns, state, ([g for _, g in taken], evaluations))


def one_by_one(
    mesh_search: MeshSearch, close: Sequence[ComponentRows], columns: Ints, worst: Floats, own_s: Sequence[Floats]
) -> MeshSearch | None:
    """Reshards are priced for one component after the other, those of few boundaries first, for what is left by then.

    `own_s`: the least seconds of each component, without reshards [columns].
    """
    state, phase, fast = mesh_search.state, mesh_search.problem.work.phase, mesh_search.problem.fast
    bound = np.repeat(np.asarray(sum(own_s))[None], len(state.cuts), axis=0)  # [residuals, columns]
    priced_rows: dict[int, tuple[ComponentRows, ReshardCosts]] = {}
    evaluations, every = 0, np.arange(len(columns))
    for i in sorted(range(len(close)), key=lambda i: (len(close[i].reads), i)):
        joined = close[i].take(_within(close[i], own_s[i] + worst - bound.min(axis=0)), every)
        if not len(joined.row_of):
            return None
        (reshards,), priced = price_reshards(
            [joined], state, phase, mesh_search.rates, fast, mesh_search.batches[:, columns]
        )
        evaluations += priced
        priced_rows[i] = joined, reshards
        bound = bound + reshards.least(joined) * joined.component.times - own_s[i]
        some = np.flatnonzero((bound <= worst).any(axis=1))
        if not len(some):
            return None
        if 2 * len(some) < len(bound):
            bound, state = bound[some], state.take(some)
            priced_rows = {n: (j, g.take(some)) for n, (j, g) in priced_rows.items()}
    in_order = [priced_rows[i] for i in range(len(mesh_search.joined))]
    return _of(mesh_search, [j for j, _ in in_order], columns, state, ([g for _, g in in_order], evaluations))


def _within(joined: ComponentRows, most_s: Floats, columns: Ints | slice = slice(None)) -> Ints:
    """The rows that take no longer than this [columns] at some of these batches, without reshards."""
    seconds = joined.reads_full_s[:, columns] * joined.component.times
    fast: NDArray[np.bool_] = np.isfinite(seconds) & (seconds <= most_s)
    return np.flatnonzero(fast.any(axis=1))


def _of(
    mesh_search: MeshSearch,
    joined: Sequence[ComponentRows],
    columns: Ints,
    state: States,
    reshards: tuple[list[ReshardCosts], int] | None,
) -> MeshSearch:
    pairs = [mesh_search.pairs[c] for c in columns.tolist()]
    return MeshSearch(
        mesh_search.problem,
        mesh_search.mesh,
        joined,
        state,
        mesh_search.rates,
        mesh_search.batches[:, columns],
        pairs,
        reshards,
    )
