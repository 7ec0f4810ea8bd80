"""Pricing many assignments at once, where each step is priced once for all assignments that it cannot tell apart.

A step's price depends on an assignment only through the sets of mesh axes that cut its dims, and how these are padded.
Of thousands of assignments few differ there, so steps are priced on one row for each such class, summed by class, and
the sums are spread over the rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import TypeVar

import numpy as np

from strategies.checker import Requirements
from strategies.notation import Axes, Program, Step, Tensor
from strategies.prices import Number
from strategies.primitives import PRIMITIVES
from strategies.readers.axis_sets import RoleSets, Unions
from strategies.readers.cost import ArrayScope, Speeds, Totals, price_step
from strategies.readers.memory import Moment, moment_bytes, moments
from strategies.readers.rates import Ints

Asking = TypeVar("Asking")


@cache
def step_groups(program: Program, needs: Requirements) -> tuple[tuple[Unions, tuple[Step, ...]], ...]:
    """The program's steps by the unions that they ask for."""
    return _grouped([(_asked(_axes(s), (*s.inputs, *s.outputs), program, needs), s) for s in program.steps])


@cache
def moment_groups(program: Program, needs: Requirements) -> tuple[tuple[Unions, tuple[Moment, ...]], ...]:
    """Return the live tensors of each step, grouped by the unions of axes that their bytes depend on."""
    return _grouped([(_asked(m.axes, m.tensors, program, needs), m) for m in moments(program)])


def _grouped(asking: Sequence[tuple[Unions, Asking]]) -> tuple[tuple[Unions, tuple[Asking, ...]], ...]:
    """Group those that depend on equal unions, or on a part of them."""
    groups: dict[Unions, list[Asking]] = {}
    for unions, one in sorted(asking, key=lambda pair: (-len(pair[0]), sorted(pair[0]))):
        home = next((larger for larger in groups if unions <= larger), unions)
        groups.setdefault(home, []).append(one)
    return tuple((unions, tuple(members)) for unions, members in groups.items())


def _axes(step: Step) -> frozenset[Axes]:
    return frozenset({dim.axes for t in (*step.inputs, *step.outputs) for dim in t.dims} | {step.axes})


def _asked(axes: frozenset[Axes], tensors: Sequence[Tensor], program: Program, needs: Requirements) -> Unions:
    """The unions of program axes that a price depends on: these, and what pads the dims of the tensors."""
    dims = {dim.name for tensor in tensors for dim in tensor.dims}
    padded = {"N", "M", "K"} if {"N", "M", "K"} & dims else set()
    padded |= dims & set(program.pad)
    unions = axes | {by for name, by in needs.divides if name in padded}
    if "C" in dims:
        unions |= {s.outputs[0].axes("C") for s in program.steps if PRIMITIVES[s.op].slots}
    return frozenset(one for one in unions if one)


def price_shared(
    scope: ArrayScope, needs: Requirements, role_sets: RoleSets, fast: Speeds, into: Totals, rows: Ints | None = None
) -> None:
    """Add the totals of the scope's rows, all or these: what adding up `price_steps` gives for each."""
    for unions, steps in step_groups(scope.program, needs):
        first, row = role_sets.classes_of(unions, rows)
        here, part = scope.take(first), Totals()
        for step in steps:
            part.add(price_step(step, here, fast))
        into.add_rows(part, row)


def peak_shared(
    scope: ArrayScope, needs: Requirements, role_sets: RoleSets, rows: Ints, columns: Ints | None = None
) -> Number:
    """`peak_activation_bytes` of these rows, in these columns (None: in all)."""
    peak: Number = np.zeros((1, 1))
    alone = scope.take(rows, columns)
    for unions, members in moment_groups(scope.program, needs):
        first, row = role_sets.classes_of(unions, rows)
        here = scope.take(first, columns) if 2 * len(first) < len(rows) else alone
        most = np.zeros((1, 1))
        for moment in members:
            most = np.maximum(most, moment_bytes(moment, here))
        peak = np.maximum(peak, most[row] if here is not alone and len(most) > 1 else most)
    return peak
