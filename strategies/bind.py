"""Binding: a program with roles becomes a program on the axes of a mesh.

A role may be played by several mesh axes or by none. Roles that nobody plays vanish with their collectives,
so 1D weight-stationary is the 2D program with X empty.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from strategies.notation import Axes, Dim, Program, Step, Tensor

_VANISH = ("AllGather", "ReduceScatter", "AllReduce", "AllToAll", "Slice", "AttendReduce", "AttendScatter")

SortKey = Callable[[str, str], tuple[int, ...]]


def bind(program: Program, playing: Mapping[str, Axes], key: SortKey | None = None) -> Program:
    """The program on mesh axes: `playing` maps each program axis to the mesh axes that play it, major first.

    Program axes that the program never separates (such as X, P, R of `D_XPR`) have no order of their own: `key`
    (dim, mesh axis) orders the mesh axes that play them, so that they agree with the residual stream.
    """
    groups = {dim: _inseparable(program, dim) for dim in (*program.input.names, *program.output.names)}

    def axes(dim: str, letters: Axes) -> Axes:
        found: list[str] = []
        for run in _runs(letters, groups.get(dim, {})):
            members = [axis for letter in run for axis in playing.get(letter, ())]
            found += sorted(members, key=lambda axis: key(dim, axis)) if key and dim in groups else members
        return tuple(found)

    def flat(letters: Axes) -> Axes:
        return tuple(axis for letter in letters for axis in playing.get(letter, ()))

    def tensor(t: Tensor) -> Tensor:
        return Tensor(t.name, tuple(Dim(d.name, axes(d.name, d.axes)) for d in t.dims), flat(t.partial), flat(t.triple))

    steps, alias = [], dict[str, str]()
    for step in program.steps:
        bound = _bind_step(step, tensor, flat, alias)
        if bound is not None:
            steps.append(bound)
    output = tensor(program.output)
    return replace(
        program,
        roles=(),
        steps=tuple(steps),
        input=tensor(program.input),
        output=replace(output, name=alias.get(output.name, output.name)),
        constraints=tuple(c for c in program.constraints if c not in alias),
    )


def _bind_step(
    step: Step, tensor: Callable[[Tensor], Tensor], flat: Callable[[Axes], Axes], alias: dict[str, str]
) -> Step | None:
    over = flat(step.axes)
    inputs = tuple(tensor(t).renamed(alias.get(t.name, t.name)) for t in step.inputs)
    if step.op in _VANISH and not over:
        for source, target in zip(inputs, step.outputs, strict=True):
            alias[target.name] = source.name
            if source.name == target.name:
                del alias[target.name]
        return None
    for target in step.outputs:
        alias.pop(target.name, None)
    outputs = tuple(tensor(t) for t in step.outputs)
    if step.op in ("RingAttend",):
        over = inputs[1].axes("S")
    if step.op == "AllToAll":
        over = _moved(inputs[0], outputs[0])
    return Step(step.op, over, inputs, outputs, step.options, step.line)


def _moved(source: Tensor, target: Tensor) -> Axes:
    """The suffix that an AllToAll takes from one dim, in that dim's order."""
    lost = next(d for d in source.dims if len(target.axes(d.name)) < len(d.axes))
    return lost.axes[len(target.axes(lost.name)) :]


def _inseparable(program: Program, dim: str) -> dict[str, frozenset[int]]:
    """For each program axis, where it cuts `dim`: axes with the same answer are never separated."""
    where: dict[str, set[int]] = {}
    tensors = [program.input, program.output, *(t for s in program.steps for t in (*s.inputs, *s.outputs))]
    for number, t in enumerate(tensors):
        for letter in t.axes(dim):
            where.setdefault(letter, set()).add(number)
    return {letter: frozenset(numbers) for letter, numbers in where.items()}


def _runs(letters: Axes, signature: Mapping[str, frozenset[int]]) -> list[list[str]]:
    runs: list[list[str]] = []
    for letter in letters:
        if runs and signature.get(runs[-1][-1]) == signature.get(letter) and letter in signature:
            runs[-1].append(letter)
        else:
            runs.append([letter])
    return runs
