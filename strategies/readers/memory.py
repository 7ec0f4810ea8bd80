"""The memory reader: a program's weights, KV caches and live activations on one device, in bytes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np

from strategies.components import Component, entry_parts, exit_parts
from strategies.models.workload import Workload
from strategies.notation import Axes, Program, Step, Tensor
from strategies.prices import Number
from strategies.primitives import PRIMITIVES
from strategies.readers.cost import ArrayScope, Speeds


def weight_bytes(scope: ArrayScope) -> Number:
    """Bytes of the program's weights on one device, in the dtype of weights: [rows, 1]."""
    return sum((scope.nbytes(t) for t in scope.program.arguments if t.name in scope.program.weights), 0.0)


def cache_bytes(scope: ArrayScope) -> Number:
    """Bytes of the program's KV caches on one device: a share `kept` of the entries stays after the step."""
    caches = scope.program.caches
    if not caches:
        return 0.0
    return sum(scope.nbytes(t) for t in caches) * scope.size("kept")


def norm_bytes(components: Sequence[Component], work: Workload, fast: Speeds) -> float:
    """The norms' vectors between components and residual: counted whole on every device, which some layouts cut."""
    vectors = 0
    for component in components:
        parts = (*entry_parts(component, work.phase), *exit_parts(component, work.phase))
        vectors += component.times * sum(len(part.program.weights) for part in parts)
    return vectors * components[0].dims["D"] * fast.widths["weight"]


@dataclass(frozen=True, slots=True)
class Held:
    """A tensor that lives, and the step that made it (None: the program's input)."""

    tensor: Tensor
    by: Step | None


@dataclass(frozen=True, slots=True)
class Moment:
    """The tensors that live while a step runs: its results, its operands (and whether they live on), others."""

    step: Step
    made: tuple[Held, ...]
    operands: tuple[tuple[Held, bool], ...]
    others: tuple[Held, ...]

    @property
    def axes(self) -> frozenset[Axes]:
        """Every union of program axes that its bytes depend on, but for how dims are padded."""
        held = (*self.made, *(one for one, _ in self.operands), *self.others)
        unions = {dim.axes for one in held for dim in one.tensor.dims} | {self.step.axes}
        unions |= {one.by.axes for one in held if one.by is not None}
        return frozenset(unions | {axes for cuts in _cuts(self.step) for axes in cuts})

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """Every tensor that lives."""
        return tuple(one.tensor for one in (*self.made, *(one for one, _ in self.operands), *self.others))


@cache
def moments(program: Program) -> tuple[Moment, ...]:
    """Return the live tensors of each step: operands live until their last use; stored tensors are left out.

    The largest sum over moments is the working set (`peak_activation_bytes`). The program's input lives from the start,
    its output to the end.
    """
    last = {t.name: i for i, s in enumerate(program.steps) for t in s.inputs} | {
        program.output.name: len(program.steps)
    }
    live: dict[str, Held] = {program.input.name: Held(program.input, None)}
    results = []
    for number, step in enumerate(program.steps):
        made = {t.name: Held(t, step) for t in step.outputs if t.name not in (*program.weights, *program.cache)}
        sources = {t.name for t in step.inputs}
        others = tuple(held for name, held in live.items() if name not in made and name not in sources)
        operands = tuple(
            (held, last[name] > number and name not in made) for name, held in live.items() if name in sources
        )
        results.append(Moment(step, tuple(made.values()), operands, others))
        live = {name: held for name, held in {**live, **made}.items() if last.get(name, -1) > number}
    return tuple(results)


def peak_activation_bytes(scope: ArrayScope) -> Number:
    """The most bytes of activations (gathered weights included) that live at once, over the program's steps.

    Moves and matmuls need source and result at once, everything else works in place. A gather of two dims in one
    collective needs its result twice, once to reorder it.
    """
    peak: Number = np.zeros((1, 1))
    for moment in moments(scope.program):
        peak = np.maximum(peak, moment_bytes(moment, scope))
    return peak


def moment_bytes(moment: Moment, scope: ArrayScope) -> Number:
    """Bytes that live at a moment."""
    total: Number = _reordered(moment.step, scope)
    for held in (*moment.made, *moment.others):
        total = total + _bytes(held, scope)
    for held, needed in moment.operands:
        total = total + _beside(moment.step, held, scope, needed)
    return total


def _bytes(held: Held, scope: ArrayScope) -> Number:
    """Bytes of what lives: none where it only names a stored weight or cache (a gather over nothing)."""
    stored = held.by is not None and scope.classes[held.tensor.name] in ("weight", "cache")
    return scope.nbytes(held.tensor) * (scope.ways(held.by.axes) > 1 if stored and held.by else 1.0)


def _beside(step: Step, held: Held, scope: ArrayScope, needed: bool) -> Number:
    """Bytes of a step's operand that live beside its result."""
    operands = PRIMITIVES[step.op].operands
    if needed or operands == "read":
        return _bytes(held, scope)
    return _bytes(held, scope) * (scope.ways(step.axes) > 1) if operands == "sent" else 0.0


def _cuts(step: Step) -> list[list[Axes]]:
    """The axes that a gather takes off each dim of a tensor, for every tensor, where it must reorder them."""
    if not PRIMITIVES[step.op].reorders:
        return []
    return [
        [d.axes[len(target.axes(d.name)) :] for d in source.dims if d.axes != target.axes(d.name)]
        for source, target in zip(step.inputs, step.outputs, strict=True)
    ]


def _reordered(step: Step, scope: ArrayScope) -> Number:
    total: Number = 0.0
    for target, cuts in zip(step.outputs, _cuts(step), strict=False):
        if len(cuts) > 1:
            cut = sum(np.asarray(scope.ways(axes) > 1, dtype=np.int64) for axes in cuts)
            total = total + scope.nbytes(target) * (cut > 1)
    return total
