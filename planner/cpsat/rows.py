"""Build the blocks of the coupled choice: a mesh, padded batch and state of the residual, with rows per component.

A layout is one block and, of each component, one of the block's options: seconds add up, stored bytes add up, working
sets do not (the largest counts), and the residual's bytes are the block's. Three reductions leave options out, and none
loses the best layout:

front    an option that another of its block and component dominates in seconds, stored bytes and working set: the
         other can replace it in any layout, which then takes no longer and no more memory.
fit      a block in which not even the least memory fits: for some largest working set p, every component stores the
         least of what works within p. No layout of the block can need less than the least of these over p.
cutoff   a block whose components' least seconds sum to more than a layout that fits takes (`Reduced.most_s`), and an
         option that is over it even beside the least of all others.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain

import numpy as np

from planner.search.mesh_search import MeshSearch
from planner.search.meshes import meshes
from planner.search.pareto import StateRows
from planner.search.problem import Choice, Problem, SearchResult
from planner.search.search import columns, mesh_search_of
from strategies.readers.rates import Ints

SLACK = 1e-9  # relative slack beyond a layout that fits, or a tie, within which rows stay


@dataclass(frozen=True)
class Block:
    """The options of every component in one state of one mesh at one padded batch.

    `options` has one `StateRows` per component, in the order of the mesh search's components.
    """

    mesh_search: MeshSearch
    column: int
    state: int
    options: tuple[StateRows, ...]

    @property
    def residual(self) -> int:
        """Number of the state's residual."""
        return int(self.mesh_search.state.residual[self.state])

    @property
    def residual_bytes(self) -> float:
        """Bytes per device of the residual stream, the update added to it, and the norms."""
        return float(self.mesh_search.residual_bytes[self.residual, self.column])

    @property
    def least_s(self) -> float:
        """Lower bound of the seconds of the block's layouts: the sum of the components' fastest options."""
        return sum(float(o.seconds.min()) for o in self.options)

    @property
    def size(self) -> int:
        """Number of options over all components."""
        return sum(len(o.row) for o in self.options)

    def choice(self, rows: Sequence[int]) -> Choice:
        """Return the choice of these options (places in `options`), priced by the tables."""
        picked = [o.take(np.array([row])) for o, row in zip(self.options, rows, strict=True)]
        step_s = sum(float(o.seconds[0]) for o in picked)
        total = sum(float(o.stored[0]) for o in picked) + max(float(o.peak[0]) for o in picked) + self.residual_bytes
        return self.mesh_search.choice(self.state, self.column, [int(o.row[0]) for o in picked], step_s, total)

    def least_memory(self, usable: float) -> tuple[int, ...] | None:
        """Return the fastest of the least-memory options that fit, or None where none fit.

        For each possible largest working set, the options that store the least within it are tried.
        """
        fitting: list[tuple[float, tuple[int, ...]]] = []
        for peak in np.unique(np.concatenate([o.peak for o in self.options])):
            stored = [np.where(o.peak <= peak, o.stored, np.inf) for o in self.options]
            if sum(float(s.min()) for s in stored) + float(peak) + self.residual_bytes <= usable:
                rows = tuple(int(s.argmin()) for s in stored)
                fitting.append((sum(float(o.seconds[r]) for o, r in zip(self.options, rows, strict=True)), rows))
        return min(fitting)[1] if fitting else None

    def fastest(self, usable: float) -> tuple[int, ...] | None:
        """Return the fastest options if they fit, else None."""
        rows = tuple(int(o.seconds.argmin()) for o in self.options)
        picked = [o.take(np.array([row])) for o, row in zip(self.options, rows, strict=True)]
        total = sum(float(o.stored[0]) for o in picked) + max(float(o.peak[0]) for o in picked) + self.residual_bytes
        return rows if total <= usable else None

    def within(self, most_s: float) -> Block:
        """Return the block without the options that exceed `most_s` even beside the least of all others."""
        return replace(self, options=tuple(within(self.options, most_s)))

    def name(self, i: int, option: int) -> tuple[str, tuple[str, ...]]:
        """Return the body and roles of an option of component i."""
        pick = self.mesh_search.components[i].pick(int(self.options[i].row[option]))
        return pick.body, pick.axes


def within(options: Sequence[StateRows], most_s: float) -> list[StateRows]:
    """Return the options of each component that need at most `most_s` seconds beside the least of all others."""
    least_s = [float(o.seconds.min()) for o in options]
    slack = most_s * (1 + SLACK) - sum(least_s)
    return [o.within(own_s + slack) for o, own_s in zip(options, least_s, strict=True)]


@dataclass(frozen=True)
class Reduced:
    """The blocks among which the best layout is, if any fits, and the best known layout.

    `known` is the block and options of that layout, or None.
    """

    blocks: tuple[Block, ...]
    known: tuple[Block, tuple[int, ...]] | None

    @property
    def most_s(self) -> float:
        """Upper bound of the best layout's seconds: those of the known one, or infinity."""
        return seconds_of(*self.known) if self.known else np.inf


def seconds_of(block: Block, rows: Sequence[int]) -> float:
    """Return the seconds of a layout of the block."""
    return sum(float(o.seconds[row]) for o, row in zip(block.options, rows, strict=True))


def mesh_searches(problem: Problem, result: SearchResult) -> list[MeshSearch]:
    """Return the mesh search of every mesh, for all batches of the problem.

    Candidates and evaluations are added to `result`.
    """
    pairs = columns(problem.work.batches, problem.slice_.devices)
    searches = []
    for mesh in meshes(problem.slice_, problem.cuts):
        mesh_search = mesh_search_of(problem, mesh, pairs, result)
        if mesh_search is not None:
            result.candidates += mesh_search.candidates()
            result.evaluations += mesh_search.evaluations
            searches.append(mesh_search)
    return searches


def reduce_blocks(searches: Sequence[MeshSearch], batch: int, cutoff: bool = True) -> Reduced:
    """Return the blocks of a batch after the reductions.

    Without `cutoff` all blocks are returned, with every option that no other one dominates.
    """
    usable = searches[0].problem.usable_bytes if searches else 0.0
    blocks: list[Block] = []
    known: tuple[Block, tuple[int, ...]] | None = None
    most_s = np.inf
    for least_s, rows, state in _places(searches, batch):
        if cutoff and least_s > most_s * (1 + SLACK):
            break
        block = rows.block(state, most_s if cutoff else np.inf)
        if block is None:
            continue
        fits = block.fastest(usable) or block.least_memory(usable)
        if fits is not None and seconds_of(block, fits) < most_s:
            known, most_s = (block, fits), seconds_of(block, fits)
        if fits is not None or not cutoff:
            blocks.append(block)
    if cutoff:
        blocks = [b.within(most_s) for b in blocks if b.least_s <= most_s * (1 + SLACK)]
    return Reduced(tuple(blocks), known)


def _places(searches: Sequence[MeshSearch], batch: int) -> Iterator[tuple[float, Rows, int]]:
    """Yield every state of every mesh and padded batch that some layout has, least seconds first."""
    rows_of_columns = [
        rows_on_boundaries(mesh_search, column)
        for mesh_search in searches
        for column, (column_batch, _) in enumerate(mesh_search.pairs)
        if column_batch == batch
    ]
    in_order = [
        [(least_s, number, state) for least_s, state in rows.mesh_search.states_in_order(rows.column)]
        for number, rows in enumerate(rows_of_columns)
    ]
    for least_s, number, state in sorted(chain(*in_order)):
        yield least_s, rows_of_columns[number], state


@dataclass(frozen=True)
class Rows:
    """The numbers of the rows of every component that are considered on a mesh at one padded batch."""

    mesh_search: MeshSearch
    column: int
    rows: tuple[Ints, ...]

    def block(self, state: int, most_s: float = np.inf, ties: bool = False) -> Block | None:
        """Return the block of a state: options on the Pareto fronts of layouts of at most `most_s` seconds.

        With `ties` the options are added that are as fast and store as much as one on the front. The result is None
        where a component has no option.
        """
        options = [self.mesh_search.options(i, rows, state, self.column) for i, rows in enumerate(self.rows)]
        if not all(len(o.row) for o in options):
            return None
        options = within(options, most_s)
        if not all(len(o.row) for o in options):
            return None
        fronts = [o.front(1) for o in options]
        if ties:
            fronts = [_with_ties(o, front) for o, front in zip(options, fronts, strict=True)]
        return Block(self.mesh_search, self.column, state, tuple(fronts))


def all_rows(mesh_search: MeshSearch, column: int) -> Rows:
    """Return every row that can run the batch and fits on its own."""
    usable = mesh_search.problem.usable_bytes
    return Rows(
        mesh_search,
        column,
        tuple(
            np.flatnonzero(
                component_rows.possible[:, column] & (component_rows.stored_bytes[:, column] <= usable)
            ).astype(np.int64)
            for component_rows in mesh_search.components
        ),
    )


def rows_on_boundaries(mesh_search: MeshSearch, column: int) -> Rows:
    """Return the rows that no other row of their boundary dominates.

    Compared are both sums of seconds, stored bytes and working set. Rows of one boundary have the same reshards in
    every state, so the dominating row is no slower in any.
    """
    candidates = all_rows(mesh_search, column)
    fronts = []
    for component_rows, rows in zip(mesh_search.components, candidates.rows, strict=True):
        reads_full_s, stored, peak = (
            x[rows, column]
            for x in (component_rows.reads_full_s, component_rows.stored_bytes, component_rows.peak_bytes)
        )
        front = StateRows(rows, reads_full_s, stored, peak).front(
            1, component_rows.boundary[rows], hops_hidden_s=component_rows.hops_hidden_s[rows, column]
        )
        fronts.append(front.row)
    return replace(candidates, rows=tuple(fronts))


def _with_ties(options: StateRows, front: StateRows) -> StateRows:
    """Return the options that have the seconds (to 12 digits) and stored bytes of some option on the front."""
    on_front = set(zip(map(_digits, front.seconds.tolist()), front.stored.tolist(), strict=True))
    values = zip(map(_digits, options.seconds.tolist()), options.stored.tolist(), strict=True)
    return options.take(np.array([n for n, pair in enumerate(values) if pair in on_front], dtype=np.int64))


def _digits(seconds: float) -> float:
    """Round seconds to 12 digits."""
    return float(f"{seconds:.12g}")
