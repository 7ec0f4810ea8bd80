"""Binding: a program with roles becomes a program on the axes of a mesh.

A role may have several mesh axes or none. Roles without one vanish with their collectives,
so 1D weight-stationary is the 2D program with X empty.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from strategies.notation import Axes, Dim, Program, Step, Tensor
from strategies.primitives import PRIMITIVES

SortKey = Callable[[str, str], tuple[int, ...]]


def bind(program: Program, role_axes: Mapping[str, Axes], key: SortKey | None = None) -> Program:
    """The program on mesh axes: `role_axes` maps each program axis to the mesh axes bound to it, major first.

    Axes that the program never separates (such as X, P, R of `D_XPR`) have no order of their own: `key` (dim of
    the input or output, mesh axis) orders the mesh axes bound to them, so that they agree with the residual
    stream, and every other dim that they cut follows.
    """
    order = _Order(program, role_axes, key)
    steps, alias = list[Step](), dict[str, str]()
    for number, step in enumerate(program.steps):
        steps += _bind_step(step, order, alias, program.steps[number + 1 :])
    output = order.tensor(program.output)
    return replace(
        program,
        roles=(),
        steps=tuple(steps),
        input=order.tensor(program.input),
        output=replace(output, name=alias.get(output.name, output.name)),
        constraints=tuple(c for c in program.constraints if c not in alias),
    )


def axis_runs(program: Program, tensor: Tensor) -> tuple[tuple[tuple[Axes, str], ...], ...]:
    """Per dim the program axes that binding sorts together, and the dim of the input or output that sorts them.

    That is empty where nothing does: axes of such a run stay in the order of the notation.
    """
    order = _Order(program, {}, None)
    return tuple(tuple((tuple(run), order.boundary(dim, run[0])) for run in order.runs(dim)) for dim in tensor.dims)


class _Order:
    """Replaces program axes by the mesh axes bound to them, in an order that all tensors share."""

    def __init__(self, program: Program, role_axes: Mapping[str, Axes], key: SortKey | None) -> None:
        self.role_axes, self.key = role_axes, key
        self.boundaries: dict[str, list[str]] = {}
        for dim in (*program.input.dims, *program.output.dims):
            for letter in dim.axes:
                self.boundaries.setdefault(letter, []).append(dim.name)
        tensors = [program.input, program.output, *(t for s in program.steps for t in (*s.inputs, *s.outputs))]
        self.where: dict[tuple[str, str], set[int]] = {}
        for number, t in enumerate(tensors):
            for dim in t.dims:
                for letter in dim.axes:
                    self.where.setdefault((dim.name, letter), set()).add(number)

    def flat(self, letters: Axes) -> Axes:
        """The mesh axes bound to these program axes."""
        return tuple(axis for letter in letters for axis in self.role_axes.get(letter, ()))

    def tensor(self, t: Tensor) -> Tensor:
        """The tensor on mesh axes."""
        dims = tuple(Dim(d.name, self.cut(d)) for d in t.dims)
        return Tensor(t.name, dims, self.flat(t.partial), self.flat(t.triple))

    def cut(self, dim: Dim) -> Axes:
        """The mesh axes that cut a dim, major first."""
        axes: list[str] = []
        for run in self.runs(dim):
            axes += self.sorted(self.boundary(dim, run[0]), self.flat(tuple(run)))
        return tuple(axes)

    def sorted(self, boundary: str, axes: Axes) -> Axes:
        """Mesh axes in the residual stream's order, where their program axis meets it in the dim `boundary`."""
        key = self.key
        return tuple(sorted(axes, key=lambda axis: key(boundary, axis))) if key and boundary else axes

    def boundary(self, dim: Dim, letter: str) -> str:
        """The dim of the input or output that gives a program axis its order in `dim`; empty where there is none."""
        boundaries = self.boundaries.get(letter, [""])
        return dim.name if dim.name in boundaries else boundaries[0]

    def runs(self, dim: Dim) -> list[list[str]]:
        """Neighbours that are never separated, in this dim and in the one of the input or output that they cut."""
        runs: list[list[str]] = []
        for letter in dim.axes:
            if runs and letter in self.boundaries and self.signature(dim, runs[-1][-1]) == self.signature(dim, letter):
                runs[-1].append(letter)
            else:
                runs.append([letter])
        return runs

    def signature(self, dim: Dim, letter: str) -> tuple[object, ...]:
        """Neighbours with equal signatures are never separated."""
        boundary = self.boundary(dim, letter)
        return boundary, self.where.get((boundary, letter)), self.where[dim.name, letter]


def _bind_step(step: Step, order: _Order, alias: dict[str, str], later: Sequence[Step]) -> list[Step]:
    over = order.flat(step.axes)
    inputs = tuple(order.tensor(t).renamed(alias.get(t.name, t.name)) for t in step.inputs)
    outputs = tuple(order.tensor(t) for t in step.outputs)
    for target in outputs:
        alias.pop(target.name, None)
    primitive = PRIMITIVES[step.op]
    if primitive.vanishes and not over:
        rewritten = {t.name for s in later for t in s.outputs}
        return [
            r for a, b in zip(inputs, outputs, strict=True) for r in _vanish(step, a, b, alias, a.name in rewritten)
        ]
    if primitive.order is not None:
        over = primitive.order(inputs, outputs)
    return [Step(step.op, over, inputs, outputs, step.options, step.line)]


def _vanish(step: Step, source: Tensor, target: Tensor, alias: dict[str, str], rewritten: bool) -> list[Step]:
    """A collective over nothing: its result is its operand, under that name unless a later step writes it anew."""
    if source.name == target.name:
        return []
    if rewritten:
        return [Step("Rename", (), (source,), (target,), (), step.line)]
    alias[target.name] = source.name
    return []
