"""What of a mesh may be part of a layout no slower than those found already.

Glue is most of the work, and takes time itself. So components are taken one by one, those of few faces first: rows
whose own seconds are too many with the least of all else are left out before their glue is priced, and then residuals
under which the least of the components so far is too much.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from planner.board import Board
from planner.glued import Glue, price_glue
from planner.joined import Joined
from planner.residuals import States
from strategies.rates import Floats, Ints


def near(board: Board, worst_s: Mapping[int, float]) -> Board | None:
    """The board of these columns, with what may be part of a layout that takes at most so long; None: nothing."""
    least_s = np.asarray(sum(j.least_late_s * j.component.times for j in board.joined))
    columns = np.array([c for c in worst_s if np.isfinite(least_s[c])], dtype=np.int64)
    worst = np.array([worst_s[c] for c in columns.tolist()])
    if not len(columns):
        return None
    if not np.isfinite(worst).any():
        return _of(board, [_rows(j, columns, worst) for j in board.joined], columns, board.state, None)
    return _one_by_one(board, columns, worst, least_s[columns])


def _one_by_one(board: Board, columns: Ints, worst: Floats, least_s: Floats) -> Board | None:
    state = board.state
    bound = np.repeat(least_s[None], len(state.cuts), axis=0)  # [residuals, columns]
    found: dict[int, tuple[Joined, Glue]] = {}
    evaluations, every = 0, np.arange(len(columns))
    close = [_rows(j, columns, j.least_late_s[columns] * j.component.times + worst - least_s) for j in board.joined]
    for i in sorted(range(len(close)), key=lambda i: (len(close[i].reads), i)):
        times, own_s = close[i].component.times, board.joined[i].least_late_s[columns] * close[i].component.times
        joined = _rows(close[i], every, own_s + worst - bound.min(axis=0))
        if not len(joined.row_of):
            return None
        phase, fast = board.problem.work.phase, board.problem.fast
        (glue,), priced = price_glue([joined], state, phase, board.rates, fast, board.batches[:, columns])
        evaluations += priced
        found[i] = joined, glue
        bound = bound + glue.least(joined) * times - own_s
        some = np.flatnonzero((bound <= worst).any(axis=1))
        if not len(some):
            return None
        if 2 * len(some) < len(bound):
            bound, state = bound[some], state.take(some)
            found = {n: (j, g.take(some)) for n, (j, g) in found.items()}
    in_order = [found[i] for i in range(len(board.joined))]
    return _of(board, [j for j, _ in in_order], columns, state, ([g for _, g in in_order], evaluations))


def _rows(joined: Joined, columns: Ints, most_s: Floats) -> Joined:
    """The rows that take no longer than this [columns] at some batch, without glue."""
    seconds = joined.late_s[:, columns] * joined.component.times
    fast: NDArray[np.bool_] = np.isfinite(seconds) & (seconds <= most_s)
    return joined.take(np.flatnonzero(fast.any(axis=1)), columns)


def _of(
    board: Board, joined: Sequence[Joined], columns: Ints, state: States, glue: tuple[list[Glue], int] | None
) -> Board:
    pairs = [board.pairs[c] for c in columns.tolist()]
    return Board(board.problem, board.mesh, joined, state, board.rates, board.batches[:, columns], pairs, glue)
