"""Search every layout of one slice, and prove the best one by exhaustion.

tables    every assignment of roles to mesh axes, per component and batch        strategies.tables.tables
reshards  the cost for each boundary of a component to meet each residual        planner.search.reshard_costs
join      the sum over components is least for some state of the residual; within a state components are
          independent but for memory. States are taken in order of their unconstrained sum, until it exceeds the
          best layout so far: a branch and bound whose bound is exact where memory does not bind.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from planner.query.query import ALL, TWO
from planner.search.component_rows import ComponentRows, join
from planner.search.mesh_search import MeshSearch, worst_of
from planner.search.meshes import COARSE, Mesh, meshes, most_roles
from planner.search.problem import Problem, SearchResult, distinct
from planner.search.prune import prune
from planner.search.residuals import states
from strategies.components import IDLE, Body, Component
from strategies.readers.rates import Ints, Rates, tabulate_rates
from strategies.tables.tables import price_body


def columns(batches: Sequence[int], devices: int) -> list[tuple[int, int]]:
    """Return the (batch, padded batch) pairs to price, called columns.

    A batch is padded to multiples of each divisor of the number of devices, by at most 25%.

    >>> columns([6], 4)
    [(6, 6)]
    >>> columns([7], 4)
    [(7, 7), (7, 8)]
    """
    divisors = [ways for ways in range(1, devices + 1) if devices % ways == 0]
    result = []
    for batch in batches:
        padded = {-(-batch // ways) * ways for ways in divisors}
        result += [(batch, p) for p in sorted(padded) if p <= 1.25 * batch]
    return result


def search(problem: Problem, top: int) -> SearchResult:
    """Return the best `top` layouts of every batch on one slice.

    An interrupt (Ctrl-C) ends the search with the best layouts so far and `interrupted` set; where there are none yet,
    `KeyboardInterrupt` is raised.

    Each mesh is searched in turn: tables of all components, then pruning by the seconds of the best choices so far,
    then the join under each state of the residual. Where there are coarser meshes, they are searched first,
    to make that pruning tight.
    """
    result = _seeded(problem, top)
    try:
        for mesh in meshes(problem.slice_, problem.cuts):
            _search_mesh(problem, mesh, top, result)
    except KeyboardInterrupt:
        if not any(result.choices.values()):
            raise
        result.interrupted = True
    for batch, choices in result.choices.items():
        result.choices[batch] = distinct(choices, problem, top)
    return result


def _seeded(problem: Problem, top: int) -> SearchResult:
    """Search the coarser meshes first: their layouts are in the larger space, and their seconds bound it."""
    fewer = {ALL: TWO, TWO: COARSE}.get(problem.cuts)
    if fewer is None or meshes(problem.slice_, fewer) == meshes(problem.slice_, problem.cuts):
        return SearchResult()
    coarse = search(replace(problem, cuts=fewer), top)
    return SearchResult(choices=coarse.choices, evaluations=coarse.evaluations)


def _search_mesh(problem: Problem, mesh: Mesh, top: int, result: SearchResult) -> None:
    """Search one mesh and add its best choices, candidates and evaluations to `result`."""
    pairs = columns(problem.work.batches, problem.slice_.devices)
    mesh_search = mesh_search_of(problem, mesh, pairs, result)
    if mesh_search is None:
        return
    result.candidates += mesh_search.candidates()
    for column, (batch, _) in enumerate(pairs):
        result.choices.setdefault(batch, [])
        mesh_search.count_over_memory(column, result)
    candidates = _columns_within_memory(mesh_search, result)
    for padded in (False, True):  # layouts without padding come first: their seconds bound the padded ones
        selected = [c for c in candidates if (pairs[c][0] != pairs[c][1]) == padded]
        pruned = prune(mesh_search, {c: worst_of(result.choices[pairs[c][0]], top) for c in selected})
        if pruned is not None:
            result.evaluations += pruned.evaluations
            for column, (batch, _) in enumerate(pruned.pairs):
                pruned.best(column, top, result.choices[batch])


def _columns_within_memory(mesh_search: MeshSearch, result: SearchResult) -> list[int]:
    """Return the columns of which some layout may fit, and note the least bytes while there are no choices."""
    usable, no_choices = mesh_search.problem.usable_bytes, not any(result.choices.values())
    stored = mesh_search.least_stored_bytes
    undecided = [
        column
        for column, (batch, _) in enumerate(mesh_search.pairs)
        if not result.choices[batch] and (no_choices or stored[column] <= usable)
    ]
    least_bytes = dict(zip(undecided, mesh_search.least_bytes(undecided), strict=True))
    if no_choices:
        for column, nbytes in least_bytes.items():
            batch = mesh_search.pairs[column][0]
            result.least_bytes[batch] = min(nbytes, result.least_bytes.get(batch, np.inf))
    return [c for c in range(len(mesh_search.pairs)) if least_bytes.get(c, stored[c]) <= usable]


def mesh_search_of(
    problem: Problem, mesh: Mesh, pairs: Sequence[tuple[int, int]], result: SearchResult
) -> MeshSearch | None:
    """Return the mesh search of all components at these (batch, padded batch) pairs, or None.

    None means that some component has no assignment on the mesh. Evaluations and exclusions are added to `result`.
    """
    rates = tabulate_rates(problem.slice_, [[piece] for piece in mesh])
    batches = np.array([[padded for _, padded in pairs]], dtype=np.int64)
    components = price_tables(problem, mesh, rates, batches, result)
    if components is None:
        return None
    return MeshSearch(problem, mesh, components, states(len(mesh), problem.work.phase), rates, batches, pairs)


def price_tables(
    problem: Problem, mesh: Mesh, rates: Rates, batches: Ints, counts: SearchResult
) -> list[ComponentRows] | None:
    """Return every component's assignments, priced at all batches; None where a component has none.

    `batches` has shape [1, columns]. Evaluations and exclusions are added to `counts`.
    """
    result, role_limit = [], most_roles(mesh, problem.cuts)
    for component in problem.components:
        tables = []
        for body in component.bodies:
            allowed = [_allowed_axes(problem, component, body, piece.axis) for piece in mesh]
            table = price_body(component, body, rates, problem.fast, batches, allowed, role_limit)
            tables.append(table)
            counts.evaluations += table.evaluations
            for rejection in table.rejected:
                counts.reject(*rejection)
        component_rows = join(component, tables)
        if component_rows is None:
            return None
        result.append(component_rows)
    return result


def _allowed_axes(problem: Problem, component: Component, body: Body, axis: int) -> frozenset[str]:
    """Return the program axes that a piece of this physical axis may have: all, or those of its fixed roles."""
    fixed = problem.fixed.get(component.name, {}).get(axis)
    return frozenset(a for a in (*body.axes, IDLE) if fixed is None or body.role_name(a) in fixed)
