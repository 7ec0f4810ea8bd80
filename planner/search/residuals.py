"""Enumerate the states of the residual stream: the dim that each mesh axis cuts, and the order of the axes.

Components agree on a residual only if each keeps a *prefix* of the axes that cut a dim (the left one is major). So a
state is an assignment of `D`, `B`, `T` or `-` to the mesh axes and an order of the axes that cut the same dim;
for each state a table says which sets of kept axes are prefixes.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from itertools import permutations, product

import numpy as np
from numpy.typing import NDArray

from strategies.readers.rates import Ints

CODES = "DBT-"


@dataclass(frozen=True)
class States:
    """Residuals and their states as arrays.

    `cuts` [residuals, axes] has indices into `CODES`; `residual` [states] numbers the residual of each state;
    `prefixes` [states, 2^axes] is true where a set of axes (a bit mask) is a prefix, dim by dim, of the state's order.
    """

    cuts: Ints
    residual: Ints
    prefixes: NDArray[np.bool_]

    def take(self, residuals: Ints) -> States:
        """Return the states of these residuals only, with the residuals numbered from 0."""
        place = np.full(len(self.cuts), -1, dtype=np.int64)
        place[residuals] = np.arange(len(residuals))
        selected = np.flatnonzero(place[self.residual] >= 0)
        return States(self.cuts[residuals], place[self.residual[selected]], self.prefixes[selected])


@cache
def states(axes: int, phase: str) -> States:
    """Return every state of a residual on a mesh of that many axes; decode has no T to cut.

    >>> states(1, "decode").cuts.tolist()  # one axis: D, B or -
    [[0], [1], [3]]
    """
    values = [i for i, code in enumerate(CODES) if phase == "prefill" or code != "T"]
    cuts = list(product(values, repeat=axes))
    residual, tables = [], []
    for number, cut in enumerate(cuts):
        for table in _prefix_tables(cut):
            residual.append(number)
            tables.append(table)
    return States(np.array(cuts, dtype=np.int64).reshape(len(cuts), axes), np.array(residual), np.array(tables))


def _prefix_tables(cut: tuple[int, ...]) -> list[NDArray[np.bool_]]:
    """Return the different prefix tables [2^axes] that the orders of a residual's axes give."""
    sets = [[i for i, value in enumerate(cut) if CODES[value] == dim] for dim in "DBT"]
    tables: dict[bytes, NDArray[np.bool_]] = {}
    for orders in product(*(permutations(members) for members in sets)):
        allowed = {0}
        for order in orders:
            prefixes = [sum(1 << i for i in order[:n]) for n in range(len(order) + 1)]
            allowed = {a | p for a in allowed for p in prefixes}
        table = np.zeros(1 << len(cut), dtype=bool)
        table[list(allowed)] = True
        tables[table.tobytes()] = table
    return list(tables.values())
