"""The checker: a type system for shardings.

`check` proves that a program follows every rule whatever its axes' sizes; `requirements` lists what it asks
of sizes; `check_sizes` holds these against numbers. Every error names line, step, tensor, dim and axis, what
was required and what was got.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod

from strategies.notation import SEQUENCE, Axes, Dim, LayoutError, Program, Step, Tensor
from strategies.primitives import PRIMITIVES
from strategies.rules.common import Broken, WholeIfCut, well_formed

_TOKENS = {"decode": ("B",), "prefill": ("B", "T")}


@dataclass(frozen=True, slots=True)
class Requirements:
    """The conditions of a program on sizes: dims that axes must divide, and dims that must be cut fully."""

    divides: tuple[tuple[str, Axes], ...]
    whole: tuple[WholeIfCut, ...]


def check(program: Program) -> Requirements:
    """Check header and steps; raise `LayoutError` at the first that breaks a rule.

    Every step's result must be the type that its operation's rule gives for its operands (`strategies.rules`), and
    every tensor must be read as it was written. The answer has the conditions on sizes: axes that must divide a dim.
    """
    _check_ends(program)
    known: dict[str, Tensor] = {program.input.name: program.input}
    whole: list[WholeIfCut] = []
    for step in program.steps:
        try:
            whole += _check_step(step, known, program)
        except Broken as broken:
            raise LayoutError(f"{program.source}, line {step.line}: {step.op}: {broken}") from None
    _check_promises(program, known)
    return Requirements(_divides(program), tuple(dict.fromkeys(whole)))


def _check_ends(program: Program) -> None:
    """The header's input and output are complete tensors over the dims that the residual stream hands over."""
    for side, tensor in (("input", program.input), ("output", program.output)):
        try:
            well_formed(tensor)
            _known_axes(tensor, program)
            may_be_partial = program.component == "reshard" or (side == "output" and program.component != "unembed")
            if tensor.triple or (tensor.partial and not may_be_partial):
                raise Broken(f"requires a complete tensor, got {tensor}")
            required = _end_dims(program, side)
            if required and tensor.names != required:
                raise Broken(f"requires dims [{', '.join(required)}], got {tensor}")
        except Broken as broken:
            where = f"{program.source}: program {program.name}, {side}"
            raise LayoutError(f"{where}: {broken}") from None


def _end_dims(program: Program, side: str) -> tuple[str, ...]:
    tokens = _TOKENS[program.phase]
    if program.component == "reshard":
        return ()
    if program.component == "unembed":
        return ("B", "D") if side == "input" else ("B",)
    return tokens if (program.component, side) == ("embed", "input") else (*tokens, "D")


def _check_step(step: Step, known: dict[str, Tensor], program: Program) -> Sequence[WholeIfCut]:
    primitive = PRIMITIVES.get(step.op)
    if primitive is None:
        raise Broken(f"no such primitive; known: {', '.join(PRIMITIVES)}")
    _known_options(step, primitive.options)
    for axis in step.axes:
        _known_axis(axis, step.op, program)
        if step.axes.count(axis) > 1:
            raise Broken(f"runs over axis {axis} twice")
    for tensor in (*step.inputs, *step.outputs):
        well_formed(tensor)
        _known_axes(tensor, program)
    for tensor in step.inputs:
        _check_operand(tensor, known, program)
    needs = primitive.rule(step)
    for tensor in (*step.inputs, *step.outputs):
        _check_stored(tensor, program)
    known.update({tensor.name: tensor for tensor in step.outputs})
    return needs


def _known_options(step: Step, known: Mapping[str, tuple[str, ...]]) -> None:
    for key, value in step.options:
        if value not in known.get(key, ()):
            expected = [f"{name}={choice}" for name, choices in known.items() for choice in choices] or ["none"]
            raise Broken(f"has no option {key}={value}; expected {' or '.join(expected)}")


def _known_axes(tensor: Tensor, program: Program) -> None:
    for axis in (*(axis for dim in tensor.dims for axis in dim.axes), *tensor.partial, *tensor.triple):
        _known_axis(axis, str(tensor), program)


def _known_axis(axis: str, owner: str, program: Program) -> None:
    """A program with roles uses their axes only; one that is bound to a mesh has no roles."""
    letters = sorted(role.axis for role in program.roles)
    if letters and axis not in letters:
        raise Broken(f"axis {axis} of {owner} has no role; the header knows {', '.join(letters)}")


def _check_stored(tensor: Tensor, program: Program) -> None:
    """Caches have the dim of keys, and weights do not: plans tell them apart by it."""
    if tensor.name in program.cache and SEQUENCE not in tensor.names:
        raise Broken(f"{tensor.name} is a cache of the header, so it has the dim {SEQUENCE}; got {tensor}")
    if tensor.name in program.weights and SEQUENCE in tensor.names:
        raise Broken(f"{tensor.name} is a weight of the header, so it has no dim {SEQUENCE}; got {tensor}")


def _check_operand(tensor: Tensor, known: dict[str, Tensor], program: Program) -> None:
    outside = (*program.weights, *program.cache, *program.index)
    if tensor.name not in known:
        if tensor.name not in outside:
            raise Broken(f"{tensor.name} is used before it is written, and is no weight, cache or index of the header")
        if tensor.partial or tensor.triple:
            raise Broken(f"{tensor.name} comes from outside, so it is complete; got {tensor}")
        known[tensor.name] = tensor
    elif tensor.name not in program.index and not known[tensor.name].same_type(tensor):
        raise Broken(f"{tensor.name} is {known[tensor.name]} in an earlier line; got {tensor}")


def _check_promises(program: Program, known: dict[str, Tensor]) -> None:
    final = known.get(program.output.name)
    if final is None or not final.same_type(program.output):
        raise LayoutError(
            f"{program.source}: program {program.name} promises the output {program.output}, and ends with "
            f"{final if final is not None else 'no such tensor'}"
        )
    for name in program.constraints:
        if name not in known:
            raise LayoutError(f"{program.source}: program {program.name} constrains {name}, which no step writes")


def _divides(program: Program) -> tuple[tuple[str, Axes], ...]:
    divides: dict[tuple[str, Axes], None] = {}
    for step in program.steps:
        for tensor in (*step.inputs, *step.outputs):
            for dim in tensor.dims:
                if dim.axes:
                    divides[(dim.name, dim.axes)] = None
    return tuple(divides)


def check_sizes(needs: Requirements, dims: Mapping[str, int], sizes: Mapping[str, int], where: str = "") -> None:
    """Hold the requirements against numbers; raise `LayoutError` naming dim, axes, sizes and what would work."""
    for need in needs.whole:
        cut, by = prod(sizes[a] for a in need.axes), prod(sizes[a] for a in need.by)
        if by > 1 and cut != dims[need.dim]:
            moved = "".join(need.by)
            raise LayoutError(
                f"{where}{need.other} may be cut (by {moved}, {by} ways) only where {need.dim} is cut fully: "
                f"{Dim(need.dim, need.axes)} is cut {cut} ways, {need.dim} = {dims[need.dim]}; "
                f"merge the heads first, then move {moved}"
            )
    for name, axes in needs.divides:
        cut = prod(sizes[a] for a in axes)
        if name in dims and dims[name] % cut:
            raise LayoutError(
                f"{where}{name} = {dims[name]} cannot be cut {cut} ways by {''.join(axes)}; "
                f"{_divisors(dims[name])} would work"
            )


def _divisors(n: int) -> str:
    divisors = [d for d in range(1, min(n, 4096) + 1) if n % d == 0]
    return ", ".join(map(str, divisors[:12])) + (", ..." if len(divisors) > 12 else "")
