"""Describe how a component's rows store their weights and caches, before an order of the mesh axes is chosen.

A dim of a stored tensor is cut by mesh axes, major first. Binding (`strategies.bind`) joins runs of program axes; the
mesh axes that carry a run's axes are sorted: those that cut the residual in the run's dim first, then by the order of
the mesh axes. So a row and a residual give, per dim, a sequence of groups of mesh axes, and an order of the mesh axes
sorts every group: a spec. Two phases store a weight alike if their specs are equal: shape and axes of dims.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray

from planner.search.component_rows import ComponentRows
from planner.search.residuals import CODES
from strategies.bind import axis_runs
from strategies.notation import SEQUENCE, Axes, Program, Tensor
from strategies.readers.cost import Speeds
from strategies.readers.fit import fit_part, scope_of
from strategies.readers.memory import weight_bytes
from strategies.readers.rates import Floats, Ints, Rates
from strategies.tables.assignments import masks_of

Groups = tuple[tuple[int, ...], ...]
Stored = tuple[tuple[str, tuple[int, ...], tuple[Groups, ...]], ...]
"""Per tensor its name, shape and groups of mesh axes per dim: sets until an order is chosen, then sequences."""


@dataclass(frozen=True)
class SortedAxes:
    """Program axes of a dim that are sorted together, and the dim of the residual that sorts them.

    `residual_dim` is empty where no dim does.
    """

    letters: Axes
    residual_dim: str


@cache
def _runs(program: Program, tensor: Tensor) -> tuple[tuple[SortedAxes, ...], ...]:
    """Return per dim of a tensor the runs of program axes that are sorted together."""
    return tuple(tuple(SortedAxes(letters, dim) for letters, dim in runs) for runs in axis_runs(program, tensor))


def weight_types(program: Program) -> tuple[Tensor, ...]:
    """Return the types of the program's weights."""
    return tuple(t for t in program.arguments if t.name in program.weights)


@dataclass(frozen=True)
class Specs:
    """The specs of a component's rows at one padded batch.

    `sizes` has, per table and part, the padded size of each dim by row. With `caches` the caches have specs, too, with
    the sequence as the last dim.
    """

    component_rows: ComponentRows
    sizes: Sequence[Sequence[dict[str, NDArray[np.float64]]]]
    caches: bool

    def stored(self, row: int, residual: Sequence[int]) -> Stored:
        """Return the groups of mesh axes that cut each dim of each weight of a row.

        `residual` has the code that each mesh axis cuts in the residual stream.
        """
        table_number, table_row = int(self.component_rows.table_of[row]), int(self.component_rows.row_of[row])
        table = self.component_rows.tables[table_number]
        axes_of_role: dict[str, list[int]] = {}
        for axis, choice in enumerate(table.rows[table_row].tolist()):
            axes_of_role.setdefault(table.choices[choice], []).append(axis)
        tensors = []
        for part, sizes in zip(table.body.parts, self.sizes[table_number], strict=True):
            for t in weight_types(part.program):
                shape = tuple(int(sizes[d.name][table_row]) for d in t.dims)
                tensors.append((t.name, shape, self._cuts(part.program, t, axes_of_role, residual)))
            for t in part.program.caches if self.caches else ():
                cuts = dict(zip(t.names, self._cuts(part.program, t, axes_of_role, residual), strict=True))
                tensors.append((t.name, (), tuple(cuts[dim] for dim in (*sorted(cuts.keys() - {SEQUENCE}), SEQUENCE))))
        return tuple(sorted(tensors))

    @staticmethod
    def _cuts(
        program: Program, t: Tensor, axes_of_role: dict[str, list[int]], residual: Sequence[int]
    ) -> tuple[Groups, ...]:
        """Return the groups of mesh axes of each dim of a tensor."""
        return tuple(_groups(runs, axes_of_role, residual) for runs in _runs(program, t))


def _groups(runs: Sequence[SortedAxes], axes_of_role: dict[str, list[int]], residual: Sequence[int]) -> Groups:
    """Return the groups of mesh axes of one dim, major first."""
    groups = []
    for run in runs:
        axes = sorted(axis for letter in run.letters for axis in axes_of_role.get(letter, ()))
        if run.residual_dim:
            cut = [axis for axis in axes if CODES[residual[axis]] == run.residual_dim]
            groups += [tuple(cut), tuple(axis for axis in axes if axis not in cut)]
        else:
            groups += [tuple(sorted(axes_of_role.get(letter, ()))) for letter in run.letters]
    return tuple(group for group in groups if group)


def specs_of(component_rows: ComponentRows, rates: Rates, batches: Ints, column: int, caches: bool) -> Specs:
    """Return the specs of a component on one mesh at one of its padded batches."""
    sizes = []
    for table in component_rows.tables:
        masks = masks_of(table.rows, table.choices)
        fits = [fit_part(part, component_rows.component, rates, masks, batches) for part in table.body.parts]
        shape = (len(table.rows), batches.shape[1])
        sizes.append([{n: np.broadcast_to(size, shape)[:, column] for n, size in f.sizes.items()} for f in fits])
    return Specs(component_rows, sizes, caches)


def weights_of(component_rows: ComponentRows, rates: Rates, fast: Speeds, batches: Ints, column: int) -> Floats:
    """Return the bytes per device [rows] of each row's weights, of all layers; a tied table counts once.

    The formula is that of `strategies.tables.tables`.
    """
    per_table = []
    for table in component_rows.tables:
        masks, total = masks_of(table.rows, table.choices), np.zeros((len(table.rows), batches.shape[1]))
        for number, part in enumerate(table.body.parts):
            if not (component_rows.component.tied and number):
                sizes = fit_part(part, component_rows.component, rates, masks, batches).sizes
                total = total + component_rows.component.times * weight_bytes(scope_of(part, sizes, masks, rates, fast))
        per_table.append(total[:, column])
    return np.concatenate(per_table)


def unordered(stored: Stored) -> Stored:
    """Return a spec without the order of axes within a dim."""
    return tuple(
        (name, shape, tuple((tuple(sorted(axis for group in cut for axis in group)),) for cut in cuts))
        for name, shape, cuts in stored
    )


def ordered(stored: Stored, order: Sequence[int]) -> Stored:
    """Return the spec in an order of the mesh axes, major first, with each dim's axes as one sequence."""
    place = {axis: n for n, axis in enumerate(order)}
    return tuple(
        (name, shape, tuple((tuple(a for group in cut for a in sorted(group, key=place.__getitem__)),) for cut in cuts))
        for name, shape, cuts in stored
    )
