"""Search one mesh: all components side by side, joined under each state of the residual stream."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from heapq import heapify, heappop, heappush
from math import prod

import numpy as np

from planner.search.component_rows import ComponentRows, prefix_masks
from planner.search.meshes import Mesh, symmetries
from planner.search.pareto import StateRows, join_all
from planner.search.problem import OVER_MEMORY, Choice, Problem, SearchResult, layout_key, order_key
from planner.search.reshard_costs import ReshardCosts, price_reshards
from planner.search.residuals import CODES, States
from strategies.readers.memory import norm_bytes
from strategies.readers.rates import Flags, Floats, Ints, Rates


class MeshSearch:
    """All components of one mesh, and the best combinations of their rows.

    `pairs` are the (batch, padded batch) columns, `batches` [1, columns] their padded batches. `state` has the states
    of the residual stream; `residual_bytes` [residuals, columns] includes the norms' vectors. Reshards are priced on
    first use, unless they are passed.

    Throughout, `i` numbers a component, `state` a state of the residual, `residual` its residual and `column` a
    (batch, padded batch) pair. A layout costs the sum of its components' seconds; its bytes are the sum of their stored
    bytes, the largest of their working sets, and those of the residual.
    """

    def __init__(
        self,
        problem: Problem,
        mesh: Mesh,
        components: Sequence[ComponentRows],
        state: States,
        rates: Rates,
        batches: Ints,
        pairs: Sequence[tuple[int, int]],
        reshards: tuple[list[ReshardCosts], int] | None = None,
    ) -> None:
        self.problem, self.mesh, self.components, self.state, self.pairs = problem, mesh, components, state, pairs
        self.rates, self.batches, self._given = rates, batches, reshards
        self._masks: dict[tuple[int, int], list[Ints]] = {}
        norms = norm_bytes([j.component for j in components], problem.work, problem.fast)
        self.main = sum(j.component.kind != "vocab" for j in components)
        self.residual_bytes = residual_bytes(problem, state, rates, batches) + norms

    @cached_property
    def _priced_reshards(self) -> tuple[list[ReshardCosts], int]:
        """Reshards of each component, and the number of programs priced for them."""
        phase, fast = self.problem.work.phase, self.problem.fast
        return self._given or price_reshards(self.components, self.state, phase, self.rates, fast, self.batches)

    @property
    def reshards(self) -> list[ReshardCosts]:
        """Reshard costs of each component."""
        return self._priced_reshards[0]

    @property
    def evaluations(self) -> int:
        """Number of reshard programs that were priced."""
        return self._priced_reshards[1]

    @cached_property
    def residual_least_s(self) -> Floats:
        """Sum of the components' least seconds [residuals, columns], in any order of the residual's axes."""
        pairs = zip(self.components, self.reshards, strict=True)
        return np.asarray(
            sum(
                reshards.least_seconds(component_rows) * component_rows.component.times
                for component_rows, reshards in pairs
            )
        )

    def _states_of(self, residual: int, column: int) -> list[tuple[float, int]]:
        """Return every state of a residual with the sum of the components' least seconds in it."""
        state_numbers = np.flatnonzero(self.state.residual == residual)
        total = np.zeros(len(state_numbers))
        for i, component_rows in enumerate(self.components):
            body_hops_hidden_s, body_reads_full_s = component_rows.least_seconds
            hops_hidden_s, reads_full_s = self.reshards[i].seconds(residual, column)
            seconds = np.maximum(
                body_hops_hidden_s[:, column] + hops_hidden_s, body_reads_full_s[:, column] + reads_full_s
            )
            allowed = self._allowed(i, residual, self.state.prefixes[state_numbers])
            total += component_rows.component.times * np.where(allowed, seconds, np.inf).min(axis=1)
        return list(zip(total.tolist(), state_numbers.tolist(), strict=True))

    def candidates(self) -> int:
        """Return the number of layouts covered: combinations of possible assignments, batches and residuals."""
        per_column = [prod(int(j.possible[:, c].sum()) for j in self.components) for c in range(len(self.pairs))]
        return sum(per_column) * len(self.state.cuts)

    def allowed(self, i: int, state: int) -> Flags:
        """Return, [boundaries], whether the axes that component i keeps are prefixes of the state's order."""
        return np.asarray(self._allowed(i, int(self.state.residual[state]), self.state.prefixes[state : state + 1])[0])

    def seconds(self, i: int, rows: Ints, residual: int, column: int) -> Floats:
        """Return the seconds [rows] of all layers of component i under a residual, with its reshards.

        They are infinite where a row cannot run.

        A row takes max(hops_hidden_s + v, reads_full_s + w) per layer, where v and w are those sums of the reshards;
        see `planner.search.component_rows`.
        """
        component_rows, boundary = self.components[i], self.components[i].boundary[rows]
        hops_hidden_s, reads_full_s = self.reshards[i].seconds(residual, column)
        total_reads_full_s = component_rows.reads_full_s[rows, column] + reads_full_s[boundary]
        seconds = np.maximum(component_rows.hops_hidden_s[rows, column] + hops_hidden_s[boundary], total_reads_full_s)
        return component_rows.component.times * np.where(np.isfinite(total_reads_full_s), seconds, np.inf)

    def options(self, i: int, rows: Ints, state: int, column: int) -> StateRows:
        """Return the rows, of these rows of component i, that run in a state."""
        component_rows = self.components[i]
        rows = rows[self.allowed(i, state)[component_rows.boundary[rows]]]
        seconds = self.seconds(i, rows, int(self.state.residual[state]), column)
        finite = np.isfinite(seconds)
        rows = rows[finite]
        return StateRows(
            rows, seconds[finite], component_rows.stored_bytes[rows, column], component_rows.peak_bytes[rows, column]
        )

    def _allowed(self, i: int, residual: int, prefixes: Flags) -> Flags:
        """Return, [states of the residual, boundaries], whether the kept axes are prefixes."""
        if (i, residual) not in self._masks:
            masks = prefix_masks(self.components[i], self.state.cuts[residual : residual + 1])
            self._masks[i, residual] = [mask[:, 0] for mask in masks]
        return np.asarray(np.logical_and.reduce([prefixes[:, mask] for mask in self._masks[i, residual]]))

    @cached_property
    def least_stored_bytes(self) -> Floats:
        """Least bytes [columns] of any layout, without the temporaries inside a component."""
        stored = sum(np.where(j.possible, j.stored_bytes, np.inf).min(axis=0) for j in self.components)
        return np.asarray(stored + self.residual_bytes.min(axis=0))

    def least_bytes(self, columns: Sequence[int]) -> list[float]:
        """Return the least bytes per device of any layout at these columns."""
        selected: Ints = np.array(columns, dtype=np.int64)
        if not len(selected):
            return []
        every_column = len(selected) == len(self.pairs)
        components = [j if every_column else j.take(np.arange(len(j.row_of)), selected) for j in self.components]
        peak = np.max([np.where(j.possible, j.peak_bytes, np.inf).min(axis=0) for j in components], axis=0)
        least: list[float] = (self.least_stored_bytes[selected] + peak).tolist()
        return least

    def count_over_memory(self, column: int, result: SearchResult) -> None:
        """Count the assignments that exceed the usable HBM even with the least bytes of all else."""
        usable = self.problem.usable_bytes
        possible = [j.possible[:, column] for j in self.components]
        stored_bytes = [
            float(np.where(p, j.stored_bytes[:, column], np.inf).min())
            for j, p in zip(self.components, possible, strict=True)
        ]
        for component_rows, runs, own_bytes in zip(self.components, possible, stored_bytes, strict=True):
            total_bytes = sum(stored_bytes) - own_bytes + component_rows.stored_bytes[:, column]
            over = runs & (total_bytes > usable)
            if over.any():
                example = {
                    "bytes": float(total_bytes[over].min()),
                    "usable": usable,
                    "batch": float(self.pairs[column][0]),
                }
                result.reject(component_rows.component.name, OVER_MEMORY, int(over.sum()), example)

    def best(self, column: int, top: int, choices: list[Choice]) -> None:
        """Add the best `top` distinct choices of a column to `choices`, which stay the best `top` in order.

        States are taken in the order of a lower bound of their seconds, and the search of the column ends at the first
        state whose bound exceeds the seconds of the `top`-th choice.
        """
        best_of_layout: dict[object, Choice] = {layout_key(c, self.problem): c for c in choices}
        for least_s, state in self.states_in_order(column):
            worst = worst_of(best_of_layout.values(), top)
            if least_s > worst:
                break
            for choice in self._state(state, column, top, worst):
                key = layout_key(choice, self.problem)
                if key not in best_of_layout or order_key(choice) < order_key(best_of_layout[key]):
                    best_of_layout[key] = choice
        choices[:] = sorted(best_of_layout.values(), key=order_key)[:top]

    def states_in_order(self, column: int) -> Iterator[tuple[float, int]]:
        """Yield the possible states and, before each, the sum of the components' least seconds in it.

        The order is by that sum. A residual's states are enumerated only once its own, lower sum is reached, which most
        never are.
        """
        heap = [(seconds, -1, residual) for residual, seconds in enumerate(self.residual_least_s[:, column].tolist())]
        heapify(heap)
        while heap and heap[0][0] < np.inf:
            seconds, state, residual = heappop(heap)
            if state >= 0:
                yield seconds, state
            else:
                for total, number in self._states_of(residual, column):
                    heappush(heap, (total, number, residual))

    def _state(self, state: int, column: int, top: int, worst: float) -> list[Choice]:
        """Return the best layouts of a state that take at most `worst` seconds and fit."""
        residual = int(self.state.residual[state])
        usable = self.problem.usable_bytes - self.residual_bytes[residual, column]
        options = [self._options(i, state, column, top) for i in range(len(self.components))]
        if any(not len(o.row) for o in options):
            return []
        combinations = join_all(options, worst, usable, top * self._room())
        fits = np.flatnonzero(combinations.stored + combinations.peak <= usable)
        ranked = fits[np.argsort(combinations.seconds[fits], kind="stable")]
        _, first = np.unique(
            combinations.row[ranked][:, : self.main], axis=0, return_index=True
        )  # the vocabulary is the last component
        chosen = ranked[np.sort(first)][: top * self._room()]
        total = combinations.stored + combinations.peak + self.residual_bytes[residual, column]
        return [
            self.choice(state, column, combinations.row[c].tolist(), float(combinations.seconds[c]), float(total[c]))
            for c in chosen
        ]

    def _room(self) -> int:
        """Return the number of equivalent combinations to allow for each distinct layout."""
        return 2 * symmetries(self.problem.slice_)

    def _options(self, i: int, state: int, column: int, top: int) -> StateRows:
        """Return the rows of component i that are worth joining in a state."""
        vocabulary = self.components[i].component.kind == "vocab"
        rows = self._front_rows(i, column, 1 if vocabulary or top == 1 else top * self._room())
        return self.options(i, rows, state, column)

    def _front_rows(self, i: int, column: int, top: int) -> Ints:
        """Return the rows of every boundary that fewer than `top` others of the boundary dominate."""
        component_rows = self.components[i]
        if (column, top) not in component_rows.fronts:
            rows = np.flatnonzero(
                component_rows.possible[:, column]
                & (component_rows.stored_bytes[:, column] <= self.problem.usable_bytes)
            )
            peak = np.maximum(component_rows.peak_bytes[rows, column], self._others_peak(i, column))
            options = StateRows(
                rows, component_rows.reads_full_s[rows, column], component_rows.stored_bytes[rows, column], peak
            )
            safe = self._safe_bytes(i, column)
            front = options.front(top, component_rows.boundary[rows], safe, component_rows.hops_hidden_s[rows, column])
            component_rows.fronts[column, top] = front.row
        return component_rows.fronts[column, top]

    @cached_property
    def _extremes(self) -> list[tuple[Floats, Floats, Floats]]:
        """Least and largest working set and most stored bytes of any row, per component, [columns] each."""
        extremes = []
        for component_rows in self.components:
            peak, possible = component_rows.peak_bytes, component_rows.possible
            stored = np.where(possible, component_rows.stored_bytes, 0.0).max(axis=0)
            least_peak = np.where(possible, peak, np.inf).min(axis=0)
            extremes.append((least_peak, np.where(possible, peak, 0.0).max(axis=0), stored))
        return extremes

    def _others_peak(self, i: int, column: int) -> float:
        """Return the largest of the other components' least working sets; a smaller one of i saves nothing."""
        least_peaks = (float(least_peaks[column]) for n, (least_peaks, _, _) in enumerate(self._extremes) if n != i)
        return max(least_peaks, default=0.0)

    def _safe_bytes(self, i: int, column: int) -> float:
        """Return the stored bytes with which a row of component i fits beside any rows of the others."""
        peak = max(float(peak[column]) for _, peak, _ in self._extremes)
        others = sum(float(stored[column]) for n, (_, _, stored) in enumerate(self._extremes) if n != i)
        return self.problem.usable_bytes - peak - float(self.residual_bytes[:, column].max()) - others

    def choice(self, state: int, column: int, rows: Sequence[int], step_s: float, total_bytes: float) -> Choice:
        """Return the choice of one row of each component in a state."""
        picks = tuple(component_rows.pick(row) for component_rows, row in zip(self.components, rows, strict=True))
        residual = tuple(CODES[c] for c in self.state.cuts[self.state.residual[state]])
        return Choice(self.mesh, residual, picks, *self.pairs[column], step_s, total_bytes)


def residual_bytes(problem: Problem, state: States, rates: Rates, batches: Ints) -> Floats:
    """Return the bytes per device [residuals, columns] of the residual stream and the update added to it."""
    bits = 1 << np.arange(state.cuts.shape[1])
    ways = rates.n[((state.cuts != CODES.index("-")) * bits).sum(axis=1)][:, None]
    tokens = batches * problem.work.tokens_per_sequence
    D = problem.components[0].dims["D"]
    return np.asarray(2 * tokens * D * problem.fast.widths["activation"] / ways)


def worst_of(choices: Iterable[Choice], top: int) -> float:
    """Return the seconds that a further choice may take at most (ties count) to be among the best `top`.

    The result is infinite while there are fewer than `top` choices.
    """
    seconds = sorted(c.step_s for c in choices)
    return seconds[top - 1] * (1 + 1e-12) if len(seconds) >= top else np.inf
