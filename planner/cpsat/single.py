"""Choose the layout of one slice and batch by a CP-SAT model, with a proof and an optional time limit.

It proves a second time what the exhaustive search finds. One block (mesh, padded batch, state of the residual) is
chosen, and in it one option of every component, so that the seconds are least and the stored bytes, the largest working
set and the residual fit:

    sum_b z_b = 1        sum_r x_bcr = z_b  for each component c of block b
    peak_b >= sum_r peak_r x_bcr            sum_cr stored_r x_bcr + peak_b + residual_b z_b <= usable z_b
    minimise sum_bcr seconds_r x_bcr

The answer is priced again with the tables' own numbers, and by the planner with the plain cost function; a difference
is an error. Of layouts that take equally long (to 12 digits) the first by `order_key` is chosen, in further
solves: bytes, then padded batch, mesh and residual, then names.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from math import isfinite
from typing import TYPE_CHECKING

import numpy as np

from planner.cpsat.rows import SLACK, Block, Reduced, all_rows, reduce_blocks
from planner.cpsat.solver import Ended, Scale, run, scale_of
from planner.plan.file_proof import FEASIBLE, INFEASIBLE, OPTIMAL, Proof
from planner.search.mesh_search import MeshSearch
from planner.search.problem import Choice, order_key

if TYPE_CHECKING:
    from ortools.sat.python import cp_model


def solve_batch(
    searches: Sequence[MeshSearch], batch: int, seconds: float | None = None, cutoff: bool = True
) -> tuple[Choice | None, Proof]:
    """Return the best layout of one batch on mesh searches that are priced already, with its proof.

    `seconds` limits the wall time of the solver. The choice is None where nothing fits or nothing was found in time.
    Raises `RuntimeError` where the solver's answer contradicts the tables.

    The exhaustive reduction (`reduce_blocks`) first gives blocks and a known layout, which starts the solver. The proof
    has the solver's status, objective, bound and gap, and its wall time.
    """
    reduced = reduce_blocks(searches, batch, cutoff)
    if not reduced.blocks:
        return None, _proof(INFEASIBLE, None, np.inf, 0.0, 0)
    model = _Model(reduced.blocks, searches[0].problem.usable_bytes, reduced.most_s)
    if reduced.known is not None:
        model.hint(*_place(reduced))
    model.minimise_seconds()
    ended = run(model.model, seconds)
    if not ended.has_solution:
        return _without(ended, reduced, model)
    choice, objective_s = model.choice(ended), ended.objective / model.scale.factor
    if choice.step_s > reduced.most_s * (1 + SLACK) and ended.status == OPTIMAL:
        raise RuntimeError(
            f"CP-SAT says {choice.step_s} s is optimal, but a layout of {reduced.most_s} s fits: {choice}"
        )
    if abs(choice.step_s - objective_s) > SLACK * choice.step_s:
        raise RuntimeError(f"CP-SAT found {objective_s} s, the tables say {choice.step_s} s: {choice}")
    if ended.status == OPTIMAL:
        choice = _first_of_ties(searches, reduced, choice)
    return choice, _proof(ended.status, choice.step_s, model.bound_s(ended), ended.wall_s, ended.variables, ended)


def _without(ended: Ended, reduced: Reduced, model: _Model) -> tuple[Choice | None, Proof]:
    """Return the answer where the solver has no solution: the known layout if the solver was ended, else none.

    Raises `RuntimeError` where the solver says that nothing fits although a layout is known that does.
    """
    if ended.status == INFEASIBLE and reduced.known is not None:
        raise RuntimeError(f"CP-SAT says that nothing fits, but this does: {reduced.known[0].choice(reduced.known[1])}")
    bound_s = np.inf if ended.status == INFEASIBLE else model.bound_s(ended)
    choice = reduced.known[0].choice(reduced.known[1]) if reduced.known else None
    status = FEASIBLE if choice else ended.status
    objective_s = choice.step_s if choice else None
    return choice, _proof(status, objective_s, bound_s, ended.wall_s, ended.variables, ended)


def _place(reduced: Reduced) -> tuple[int, tuple[int, ...]]:
    """Return the known layout as places among the blocks that are left, and among their options."""
    assert reduced.known is not None
    block, rows = reduced.known
    for number, block_left in enumerate(reduced.blocks):
        if block_left.mesh_search is block.mesh_search and (block_left.column, block_left.state) == (
            block.column,
            block.state,
        ):
            names = [int(o.row[row]) for o, row in zip(block.options, rows, strict=True)]
            return number, tuple(
                int(np.flatnonzero(o.row == n)[0]) for o, n in zip(block_left.options, names, strict=True)
            )
    raise RuntimeError("the known layout's block was left out")


def _proof(
    status: str, objective_s: float | None, bound_s: float, wall_s: float, variables: int, ended: Ended | None = None
) -> Proof:
    """Return the proof with its gap, a share of the objective."""
    known = objective_s is not None and status != INFEASIBLE
    bound_s = min(bound_s, objective_s) if known and objective_s is not None else bound_s
    gap = None
    if known and objective_s:
        gap = 0.0 if status == OPTIMAL else max(0.0, (objective_s - bound_s) / objective_s)
    return Proof(
        status=status,
        objective_s=objective_s,
        bound_s=bound_s if isfinite(bound_s) else 0.0,
        gap=gap,
        wall_s=wall_s,
        variables=variables,
        interrupted=ended is not None and ended.interrupted,
    )


class _Model:
    """The choice among some blocks.

    `most_s` has the seconds of a layout that fits: longer options may round to one value.
    """

    def __init__(self, blocks: Sequence[Block], usable: float, most_s: float) -> None:
        from ortools.sat.python import cp_model

        self.blocks, self.model = blocks, cp_model.CpModel()
        self.parts = len(blocks[0].options)
        self.scale = scale_of(min(b.least_s for b in blocks), self.parts)
        if isfinite(most_s):
            self.scale = Scale(self.scale.factor, min(self.scale.most, int(most_s * self.scale.factor * 2) + 1))
        self.bytes = scale_of(_most_bytes(blocks, usable))
        self.z = [self.model.new_bool_var("") for _ in blocks]
        self.model.add_exactly_one(self.z)
        self.x = [
            [[z] if len(o.row) == 1 else [self.model.new_bool_var("") for _ in o.row] for o in block.options]
            for z, block in zip(self.z, blocks, strict=True)
        ]
        self.seconds = [[self.scale.nearest(o.seconds) for o in block.options] for block in blocks]
        self.total = [self._memory(n, block, usable) for n, block in enumerate(blocks)]

    def _memory(self, number: int, block: Block, usable: float) -> cp_model.LinearExprT:
        """Require one option of each component where the block is chosen, and return its bytes, which must fit.

        The bytes are 0 where the block is not chosen.
        """
        from ortools.sat.python import cp_model

        z, xs, model = self.z[number], self.x[number], self.model
        for literals in xs:
            if literals != [z]:
                model.add_exactly_one([*literals, z.negated()])
        peaks = [self.bytes.up(o.peak) for o in block.options]
        peak = model.new_int_var(0, max(map(max, peaks)), "")
        for literals, peak_bytes in zip(xs, peaks, strict=True):
            model.add(cp_model.LinearExpr.weighted_sum(literals, peak_bytes) <= peak)
        stored = [self.bytes.up(o.stored) for o in block.options]
        residual_bytes = self.bytes.up(np.array([block.residual_bytes]))[0]
        total = (
            sum(cp_model.LinearExpr.weighted_sum(a, b) for a, b in zip(xs, stored, strict=True))
            + peak
            + residual_bytes * z
        )
        if sum(map(max, stored)) + max(map(max, peaks)) + residual_bytes > self.bytes.down(usable):
            model.add(total <= self.bytes.down(usable) * z)
        return total

    def hint(self, number: int, rows: Sequence[int]) -> None:
        """Let the solver start from this layout."""
        for n, (z, xs) in enumerate(zip(self.z, self.x, strict=True)):
            self.model.add_hint(z, n == number)
            for literals, row in zip(xs, rows, strict=True):
                for place, literal in enumerate(literals if literals != [z] else []):
                    self.model.add_hint(literal, n == number and place == row)

    def _sum(self, weights: Sequence[Sequence[Sequence[int]]]) -> cp_model.LinearExprT:
        """Return the weighted sum of all options' variables."""
        from ortools.sat.python import cp_model

        literals = [literal for block in self.x for component in block for literal in component]
        return cp_model.LinearExpr.weighted_sum(
            literals, [w for block in weights for option_weights in block for w in option_weights]
        )

    def minimise_seconds(self) -> None:
        """Set the first objective, the seconds."""
        self.model.minimize(self._sum(self.seconds))

    def limit_seconds(self, most_s: float) -> None:
        """Allow only layouts that take at most `most_s`, up to the rounding."""
        self.model.add(self._sum(self.seconds) <= self.scale.down(most_s) + self.parts)

    def minimise_bytes(self) -> cp_model.LinearExprT:
        """Set the second objective, all bytes, and return it."""
        total = sum(self.total)
        self.model.minimize(total)
        return total

    def minimise_ranks(self, ranks: Sequence[int]) -> cp_model.LinearExprT:
        """Set the chosen block's rank as the objective, and return it."""
        from ortools.sat.python import cp_model

        rank = cp_model.LinearExpr.weighted_sum(self.z, list(ranks))
        self.model.minimize(rank)
        return rank

    def minimise_names(self, component: int, ranks: Sequence[Sequence[int]]) -> cp_model.LinearExprT:
        """Set the rank of a component's option by its names as the objective, and return it."""
        weights = [[[0] * len(options) for options in block] for block in self.x]
        for block, block_ranks in zip(weights, ranks, strict=True):
            block[component] = list(block_ranks)
        rank = self._sum(weights)
        self.model.minimize(rank)
        return rank

    def choice(self, ended: Ended) -> Choice:
        """Return the choice of the solution, priced by the tables."""
        number = ended.chosen(self.z)
        return self.blocks[number].choice([ended.chosen(literals) for literals in self.x[number]])

    def bound_s(self, ended: Ended) -> float:
        """Return a lower bound of the seconds: the solver's less the rounding, or the least of the blocks."""
        least_s = min(b.least_s for b in self.blocks)
        return max(least_s, (ended.bound - self.parts) / self.scale.factor) if isfinite(ended.bound) else least_s


def _most_bytes(blocks: Sequence[Block], usable: float) -> float:
    """Return the largest number of bytes that the model must represent."""
    largest = max(sum(float(o.stored.max() + o.peak.max()) for o in b.options) + b.residual_bytes for b in blocks)
    return max(1.0, min(largest, usable))


def _first_of_ties(searches: Sequence[MeshSearch], reduced: Reduced, best: Choice) -> Choice:
    """Return the first layout by `order_key` of all that take as long as the best (to 12 digits)."""
    limit_s = best.step_s * (1 + 1e-12)
    blocks = []
    for block in reduced.blocks:
        if block.least_s <= limit_s:
            block_with_ties = all_rows(block.mesh_search, block.column).block(block.state, limit_s, ties=True)
            assert block_with_ties is not None
            blocks.append(block_with_ties)
    if sum(block.size for block in blocks) == len(blocks[0].options):
        return best
    model = _Model(blocks, searches[0].problem.usable_bytes, limit_s)
    model.limit_seconds(limit_s)
    return _lexicographic(model, best)


def _lexicographic(model: _Model, best: Choice) -> Choice:
    """Minimise bytes, the block's rank and each component's names in turn, each at the minima before."""
    keys = [_block_key(block) for block in model.blocks]
    order = {key: n for n, key in enumerate(sorted(set(keys)))}
    names = _name_ranks(model.blocks)
    objectives: list[Callable[[], cp_model.LinearExprT]] = [
        model.minimise_bytes,
        partial(model.minimise_ranks, [order[key] for key in keys]),
        *(partial(model.minimise_names, i, names[i]) for i in range(model.parts)),
    ]
    choice = best
    for objective in objectives:
        rank = objective()
        ended = run(model.model)
        if ended.status != OPTIMAL:
            raise RuntimeError(f"CP-SAT lost the layout that it proved best ({ended.status}): {best}")
        model.model.add(rank <= round(ended.objective))
        choice = model.choice(ended)
    return min(best, choice, key=order_key)


def _block_key(block: Block) -> tuple[object, ...]:
    """Return the sort key of a block: padded batch, mesh and residual."""
    choice = block.choice([0] * len(block.options))
    return (choice.padded_batch, choice.mesh, choice.residual)


def _name_ranks(blocks: Sequence[Block]) -> list[list[list[int]]]:
    """Return [components][blocks][options] the places of bodies and roles in alphabetical order."""
    result = []
    for i in range(len(blocks[0].options)):
        names = [[block.name(i, row) for row in range(len(block.options[i].row))] for block in blocks]
        order = {name: n for n, name in enumerate(sorted({name for block_names in names for name in block_names}))}
        result.append([[order[name] for name in block_names] for block_names in names])
    return result
