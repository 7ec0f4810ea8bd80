"""Pricing many assignments at once, where each step is priced once for all assignments that it cannot tell apart.

A step's price depends on an assignment only through the sets of mesh axes that cut its dims, and how these are padded.
Of thousands of assignments few differ there, so steps are priced on one row for each such class, summed by class, and
the sums are spread over the rows.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

import numpy as np

from strategies.checker import Requirements
from strategies.cost import ArrayScope, Speeds, Totals, price_step
from strategies.notation import Axes, Program, Step
from strategies.rates import Ints

Unions = frozenset[Axes]
MOST_MESH_AXES, PER_CODE = 12, 4  # bits of a set of mesh axes, and sets that an int64 has room for beside a class


@dataclass(frozen=True)
class StepGroup:
    """Steps that ask for no more than these unions of program axes."""

    unions: Unions
    steps: tuple[Step, ...]


class Plays:
    """Which mesh axes play each program axis, as bits [rows, 1], and the classes of rows that unions tell apart."""

    def __init__(self, masks: Mapping[str, Ints], rows: int) -> None:
        self.masks, self.rows = masks, rows
        self._classes: dict[Unions, tuple[Ints, Ints]] = {}

    def classes(self, unions: Unions) -> tuple[Ints, Ints]:
        """The first row of each class [classes], and the class of each row [rows]."""
        if unions not in self._classes:
            code: Ints = np.zeros((self.rows, 1), dtype=np.int64)
            for number, axes in enumerate(sorted(unions)):
                code = (code << MOST_MESH_AXES) | _union(self.masks, axes)
                if number % PER_CODE == PER_CODE - 1:  # no room for another
                    code = np.unique(code, return_inverse=True)[1].reshape(-1, 1)
            _, first, inverse = np.unique(code, return_index=True, return_inverse=True)
            self._classes[unions] = first, inverse.reshape(-1)
        return self._classes[unions]


def _union(masks: Mapping[str, Ints], axes: Axes) -> Ints:
    total: Ints = np.zeros((1, 1), dtype=np.int64)
    for axis in axes:
        total = total | masks[axis]
    return total


@cache
def step_groups(program: Program, needs: Requirements) -> tuple[StepGroup, ...]:
    """The program's steps by the unions that they ask for; steps join a group that asks for as much or more."""
    asked: dict[Unions, list[Step]] = {}
    for step in program.steps:
        asked.setdefault(_asked(step, program, needs), []).append(step)
    groups: dict[Unions, list[Step]] = {}
    for unions in sorted(asked, key=lambda u: (-len(u), sorted(u))):
        home = next((larger for larger in groups if unions <= larger), unions)
        groups.setdefault(home, []).extend(asked[unions])
    return tuple(StepGroup(unions, tuple(steps)) for unions, steps in groups.items())


def _asked(step: Step, program: Program, needs: Requirements) -> Unions:
    """The unions of program axes that a step's price depends on: cuts of its dims, its own axes, what pads its dims."""
    dims = [dim for tensor in (*step.inputs, *step.outputs) for dim in tensor.dims]
    padded = {"N", "M", "K"} if {"N", "M", "K"} & {d.name for d in dims} else set()
    padded |= {d.name for d in dims if d.name in program.pad}
    found = {dim.axes for dim in dims} | {step.axes}
    found |= {axes for name, axes in needs.divides if name in padded}
    if "C" in {d.name for d in dims}:
        found |= {s.outputs[0].axes("C") for s in program.steps if s.op == "Dispatch"}
    return frozenset(axes for axes in found if axes)


def price_shared(
    scope: ArrayScope, needs: Requirements, plays: Plays, fast: Speeds, into: Totals, rows: Ints | None = None
) -> None:
    """Add the totals of the scope's rows, all or these: what adding up `price_steps` gives for each."""
    for group in step_groups(scope.program, needs):
        first, inverse = plays.classes(group.unions)
        here, part = scope.take(first), Totals()
        for step in group.steps:
            part.add(price_step(step, here, fast))
        into.add_rows(part, inverse if rows is None else inverse[rows])
