"""What a program holds on one device: weights, KV caches, and the most activations that live at once."""

from __future__ import annotations

import numpy as np

from strategies.cost import ArrayScope
from strategies.notation import Step, Tensor
from strategies.prices import Number

_GATHERS = ("AllGather", "ReduceScatter", "AllToAll", "RingAttend", "AttendScatter")
_READS = ("Einsum", "Attend", "Dispatch", "Combine", "Lookup", "ArgMax")


def weight_bytes(scope: ArrayScope) -> Number:
    """Bytes of the program's weights on one device."""
    return sum((scope.nbytes(t) for t in scope.program.arguments if t.name in scope.program.weights), 0.0)


def cache_bytes(scope: ArrayScope) -> Number:
    """Bytes of the program's KV caches on one device: a share `kept` of the entries stays after the step."""
    program = scope.program
    tensors = {t.name: t for s in reversed(program.steps) for t in (*s.outputs, *s.inputs) if t.name in program.cache}
    if not tensors:
        return 0.0
    return sum(scope.nbytes(t) for t in tensors.values()) * scope.size("kept")


def peak_activation_bytes(scope: ArrayScope) -> Number:
    """The most bytes of activations (gathered weights included) that live at once, over the program's steps.

    A step's operands live until their last use; moves and matmuls need source and result at once, everything
    else works in place. A gather of two dims in one collective needs its result twice, once to reorder it.
    """
    program, peak = scope.program, np.zeros((1, 1))
    last = {t.name: i for i, s in enumerate(program.steps) for t in s.inputs} | {
        program.output.name: len(program.steps)
    }
    live: dict[str, Number] = {program.input.name: scope.nbytes(program.input)}
    for number, step in enumerate(program.steps):
        made = {t.name: _made(step, t, scope) for t in step.outputs if t.name not in (*program.weights, *program.cache)}
        sources = {t.name for t in step.inputs}
        others = {name: size for name, size in live.items() if name not in made and name not in sources}
        kept = [
            _beside(step, name, size, scope, last[name] > number and name not in made)
            for name, size in live.items()
            if name in sources
        ]
        peak = np.maximum(peak, sum(made.values()) + sum(others.values()) + sum(kept) + _reordered(step, scope))
        live = {name: size for name, size in {**live, **made}.items() if last.get(name, -1) > number}
    return peak


def _made(step: Step, target: Tensor, scope: ArrayScope) -> Number:
    """Bytes that a step's result adds: none where it only names a stored weight or cache (a gather over nothing)."""
    stored = scope.classes[target.name] in ("weight", "cache")
    return scope.nbytes(target) * ((scope.ways(step.axes) > 1) if stored else 1.0)


def _beside(step: Step, name: str, size: Number, scope: ArrayScope, needed: bool) -> Number:
    """Bytes of a step's operand that live beside its result."""
    if needed or step.op in _READS:
        return size
    return size * (scope.ways(step.axes) > 1) if step.op in _GATHERS else 0.0


def _reordered(step: Step, scope: ArrayScope) -> Number:
    if step.op != "AllGather":
        return 0.0
    total: Number = 0.0
    for source, target in zip(step.inputs, step.outputs, strict=True):
        cut = [scope.ways(d.axes[len(target.axes(d.name)) :]) > 1 for d in source.dims if d.axes != target.axes(d.name)]
        if len(cut) > 1:
            total = total + scope.nbytes(target) * (sum(np.asarray(c, dtype=np.int64) for c in cut) > 1)
    return total
