"""Build the CP-SAT model of a pair on one mesh: a state, an order of the mesh axes and rows per phase, one shared spec.

of each phase p      sum_b z_pb = 1      sum_r x_pbcr = z_pb for each component c      sum_o order_po = 1
                     z_pb needs an order that its prefixes describe
of each component c  sum_s y_cs = 1      a row whose spec is s in order o, with that order, needs y_cs
memory               norms + sum weights_s y_cs + kv of decode + work <= usable,
                     work >= kv of prefill + peak_prefill + residual_prefill,   work >= peak_decode + residual_decode
minimise             sum seconds_r x_pbcr, in seconds of the slice per request
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import permutations

import numpy as np
from ortools.sat.python import cp_model

from planner.cpsat.phase_rows import PhaseBlock, orders_of
from planner.cpsat.solver import Ended, scale_of
from planner.cpsat.specs import Stored, ordered
from planner.search.problem import Choice
from strategies.readers.rates import Floats

Literals = list[cp_model.IntVar]
Order = tuple[int, ...]


@dataclass(frozen=True)
class PhaseVariables:
    """The solution of one phase: its block, the rows' places in the block, and its order of the mesh axes."""

    block: PhaseBlock
    rows: tuple[int, ...]
    order: Order

    @property
    def cost_s(self) -> float:
        """Seconds that the phase adds to the objective."""
        return sum(float(o.seconds[row]) for o, row in zip(self.block.options, self.rows, strict=True))

    def choice(self) -> Choice:
        """Return the choice of the phase, as the tables price it on its own."""
        block, phase_rows = self.block, self.block.phase_rows
        places = [int(o.row[row]) for o, row in zip(block.options, self.rows, strict=True)]
        stored = sum(float(phase_rows.weights[i][a] + phase_rows.kv[i][a]) for i, a in enumerate(places))
        total = (
            stored
            + max(float(phase_rows.peak[i][a]) for i, a in enumerate(places))
            + phase_rows.residual_bytes(block.residual)
            + phase_rows.norms
        )
        rows = [int(phase_rows.rows[i][a]) for i, a in enumerate(places)]
        return phase_rows.mesh_search.choice(
            block.state, phase_rows.column, rows, self.cost_s / phase_rows.factor, total
        )


class PairModel:
    """The choice of a pair over the blocks of both phases.

    `blocks` has the prefill's first. `least_s` is a lower bound of the cost of any pair, in seconds per request.
    """

    def __init__(self, blocks: Sequence[Sequence[PhaseBlock]], least_s: float) -> None:
        self.blocks, self.model, self.least_s = blocks, cp_model.CpModel(), least_s
        phase_rows = blocks[0][0].phase_rows
        self.parts = len(phase_rows.rows)
        self.orders: list[Order] = list(permutations(range(phase_rows.mesh_search.state.cuts.shape[1])))
        self.scale = scale_of(least_s, 2 * self.parts)
        self.usable = phase_rows.mesh_search.problem.usable_bytes
        self.z = [[self._bool() for _ in phase_blocks] for phase_blocks in blocks]
        self.x = [
            [[[self._bool() for _ in o.row] for o in block.options] for block in phase_blocks]
            for phase_blocks in blocks
        ]
        self.order = [[self._bool() for _ in self.orders] for _ in blocks]
        self.y: list[dict[Stored, cp_model.IntVar]] = [{} for _ in range(self.parts)]
        for phase in range(2):
            self._choose(phase)
        for i in range(self.parts):
            self._share(i)
        self.total = self._memory()
        self.cost = self._sum([(p, i, "seconds") for p in range(2) for i in range(self.parts)])
        self.model.minimize(self.cost)

    def _bool(self) -> cp_model.IntVar:
        """Return a new Boolean variable."""
        return self.model.new_bool_var("")

    def _choose(self, phase: int) -> None:
        """Require one block, one row of each of its components, and one order that its prefixes describe."""
        self.model.add_exactly_one(self.z[phase])
        self.model.add_exactly_one(self.order[phase])
        places = {order: n for n, order in enumerate(self.orders)}
        orders_by_state = {}
        for z, xs, block in zip(self.z[phase], self.x[phase], self.blocks[phase], strict=True):
            for literals in xs:
                self.model.add_exactly_one([*literals, z.negated()])
            if block.phase_rows not in orders_by_state:
                orders_by_state[block.phase_rows] = orders_of(block.phase_rows)
            allowed_orders = [
                self.order[phase][places[order]] for order in orders_by_state[block.phase_rows][block.state]
            ]
            self.model.add_bool_or([z.negated(), *allowed_orders])

    def _share(self, i: int) -> None:
        """Require that both phases' rows of a component have the chosen spec."""
        classes = [self._classes(phase, i) for phase in range(2)]
        specs = [{s: [ordered(s, order) for order in self.orders] for s in by_stored} for by_stored in classes]
        phase_spec_sets = [
            dict.fromkeys(spec for by_stored in phase_specs.values() for spec in by_stored) for phase_specs in specs
        ]
        self.y[i] = {spec: self._bool() for spec in phase_spec_sets[0] if spec in phase_spec_sets[1]}
        self.model.add_exactly_one(self.y[i].values())
        for phase in range(2):
            for stored, literals in classes[phase].items():
                self._meets(phase, i, literals, specs[phase][stored])

    def _classes(self, phase: int, i: int) -> dict[Stored, Literals]:
        """Return the rows of a component by their spec before an order."""
        result: dict[Stored, Literals] = {}
        for xs, block in zip(self.x[phase], self.blocks[phase], strict=True):
            for literal, stored in zip(xs[i], block.specs[i], strict=True):
                result.setdefault(stored, []).append(literal)
        return result

    def _meets(self, phase: int, i: int, literals: Literals, specs: Sequence[Stored]) -> None:
        """Require, with each order, the spec that these rows have in it, if one of them is chosen."""
        selected = self._bool()
        self.model.add(sum(literals) == selected)
        by_spec: dict[Stored, Literals] = {}
        for order, spec in zip(self.order[phase], specs, strict=True):
            by_spec.setdefault(spec, []).append(order)
        for spec, orders in by_spec.items():
            spec_literal = [self.y[i][spec]] if spec in self.y[i] else []
            if len(by_spec) == 1:
                self.model.add_bool_or([selected.negated(), *spec_literal])
            else:
                for order in orders:
                    self.model.add_bool_or([selected.negated(), order.negated(), *spec_literal])

    def _sum(self, terms: Sequence[tuple[int, int, str]]) -> cp_model.LinearExprT:
        """Return the sum over (phase, component, quantity) of the chosen rows' quantities."""
        literals: Literals = []
        weights: list[int] = []
        for phase, i, name in terms:
            scale = self.scale.nearest if name == "seconds" else self.bytes.up
            for xs, block in zip(self.x[phase], self.blocks[phase], strict=True):
                literals += xs[i]
                weights += scale(getattr(block.options[i], name))
        return cp_model.LinearExpr.weighted_sum(literals, weights)

    def _memory(self) -> cp_model.LinearExprT:
        """Return all bytes of a device, and require that they fit."""
        largest_bytes = sum(
            max(self._most(p, i, "stored") + self._most(p, i, "peak") for p in range(2)) for i in range(self.parts)
        )
        residual_bytes = max(
            block.phase_rows.residual_bytes(block.residual) for by_spec in self.blocks for block in by_spec
        )
        weights = [self._weights(i) for i in range(self.parts)]
        norms = self.blocks[1][0].phase_rows.norms
        largest_bytes = 2 * largest_bytes + residual_bytes + norms + sum(max(by_spec.values()) for by_spec in weights)
        self.bytes = scale_of(max(1.0, min(largest_bytes, self.usable)))
        work = self.model.new_int_var(0, self.bytes.up(np.array([largest_bytes]))[0], "")
        prefill_caches = self._sum([(0, i, "stored") for i in range(self.parts)])
        self.model.add(cp_model.LinearExpr.sum([self._work(0), prefill_caches]) <= work)
        self.model.add(self._work(1) <= work)
        shared = [
            cp_model.LinearExpr.weighted_sum(
                list(self.y[i].values()), self.bytes.up(np.array([by_spec[s] for s in self.y[i]]))
            )
            for i, by_spec in enumerate(weights)
        ]
        caches = self._sum([(1, i, "stored") for i in range(self.parts)])
        total = cp_model.LinearExpr.sum([*shared, caches, work, self.bytes.up(np.array([norms]))[0]])
        if largest_bytes > self.usable:
            self.model.add(total <= self.bytes.down(self.usable))
        return total

    def _work(self, phase: int) -> cp_model.LinearExprT:
        """Return the bytes of a phase's largest temporaries and its residual stream."""
        peaks = [block.options[i].peak for block in self.blocks[phase] for i in range(self.parts)]
        peak = self.model.new_int_var(0, max(max(self.bytes.up(p)) for p in peaks), "")
        for i in range(self.parts):
            self.model.add(self._sum([(phase, i, "peak")]) <= peak)
        residual_bytes: Floats = np.array(
            [block.phase_rows.residual_bytes(block.residual) for block in self.blocks[phase]]
        )
        return cp_model.LinearExpr.sum(
            [peak, cp_model.LinearExpr.weighted_sum(self.z[phase], self.bytes.up(residual_bytes))]
        )

    def _most(self, phase: int, i: int, name: str) -> float:
        """Return the largest value of a quantity among a component's options."""
        return max(float(getattr(block.options[i], name).max()) for block in self.blocks[phase])

    def _weights(self, i: int) -> dict[Stored, float]:
        """Return the bytes of a component's weights by spec."""
        result: dict[Stored, float] = {}
        for block in self.blocks[1]:
            for place, stored in zip(block.options[i].row.tolist(), block.specs[i], strict=True):
                for order in self.orders:
                    result[ordered(stored, order)] = float(block.phase_rows.weights[i][place])
        return result

    def least_bytes(self, cost: float) -> None:
        """Minimise memory among the pairs that cost no more than `cost`, an optimum as a whole number."""
        self.model.add(self.cost <= round(cost))
        self.model.minimize(self.total)

    def solution(self, ended: Ended) -> tuple[PhaseVariables, PhaseVariables]:
        """Return the solution of both phases, the prefill's first."""
        first, second = (self._phase_variables(phase, ended) for phase in range(2))
        return first, second

    def _phase_variables(self, phase: int, ended: Ended) -> PhaseVariables:
        """Return the solution of one phase."""
        number = ended.chosen(self.z[phase])
        rows = tuple(ended.chosen(literals) for literals in self.x[phase][number])
        return PhaseVariables(self.blocks[phase][number], rows, self.orders[ended.chosen(self.order[phase])])

    def bound_s(self, ended: Ended) -> float:
        """Return a lower bound of the cost of these blocks' pairs: the solver's bound less the rounding."""
        return max(self.least_s, (ended.bound - 2 * self.parts) / self.scale.factor)
