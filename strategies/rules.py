"""The type rules of the primitives: what each step requires of its tensors.

Each rule takes a step and raises `Broken` (without the place) when the step breaks it. `strategies.checker`
adds file, line and step. A rule that depends on sizes returns `Requirement`s, which the checker evaluates on
numbers and the search on arrays.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from strategies.notation import Axes, Dim, Step, Tensor


class Broken(Exception):
    """A rule that a step breaks: what was required and what was got."""


@dataclass(frozen=True, slots=True)
class WholeIfCut:
    """`dim` must be cut exactly as often as it is long where `by` cuts anything (Split and Merge)."""

    dim: str
    axes: Axes
    by: Axes
    other: str


Rule = Callable[[Step], Sequence[WholeIfCut]]


def _text(axes: Axes) -> str:
    return "".join(axes) or "nothing"


def _need(condition: bool, message: str) -> None:
    if not condition:
        raise Broken(message)


def _count(step: Step, inputs: int, outputs: int = 1) -> None:
    _need(len(step.inputs) == inputs, f"takes {inputs} tensors, got {len(step.inputs)}")
    _need(len(step.outputs) == outputs, f"gives {outputs} tensors, got {len(step.outputs)}")


def _pairs(step: Step) -> list[tuple[Tensor, Tensor]]:
    _need(
        len(step.inputs) == len(step.outputs),
        f"gives as many tensors as it takes, got {len(step.outputs)} for {len(step.inputs)}",
    )
    _need(bool(step.axes), "needs the axes it runs over, such as AllGather_X")
    return list(zip(step.inputs, step.outputs, strict=True))


def _same_names(a: Tensor, b: Tensor) -> None:
    _need(a.names == b.names, f"keeps the dims; required [{', '.join(a.names)}], got [{', '.join(b.names)}] in {b}")


def _complete(tensor: Tensor) -> None:
    _need(not tensor.partial, f"is not linear, so it needs a complete sum; got {tensor}: reduce {{U}} first")
    _need(not tensor.triple, f"needs a combined softmax; got {tensor}: use AttendReduce or AttendScatter first")


def _same_type(required: Tensor, got: Tensor) -> None:
    _need(required.same_type(got.renamed(required.name)), f"requires {required}, got {got}")


def _same_marks(a: Tensor, b: Tensor) -> None:
    same = set(a.partial) == set(b.partial) and set(a.triple) == set(b.triple)
    _need(same, f"keeps partial sums as they are; required the marks of {a}, got {b}")


def well_formed(tensor: Tensor) -> None:
    """No dim twice, and no axis twice in the dims or marks of one tensor."""
    _need(len(set(tensor.names)) == len(tensor.names), f"{tensor} has a dim twice")
    used = [axis for dim in tensor.dims for axis in dim.axes] + list(tensor.partial) + list(tensor.triple)
    for axis in used:
        _need(used.count(axis) == 1, f"axis {axis} is used twice in {tensor}; an axis cuts one dim or is one of {{U}}")


def all_gather(step: Step) -> Sequence[WholeIfCut]:
    """Drops suffixes of one or more dims."""
    for a, b in _pairs(step):
        _same_names(a, b)
        _same_marks(a, b)
        dropped: list[str] = []
        for x, y in zip(a.dims, b.dims, strict=True):
            prefix = x.axes[: len(y.axes)]
            _need(
                prefix == y.axes,
                f"may drop only a suffix of a dim's axes (left is major): {x} cannot become {y}; "
                f"that would permute the data of {a.name}",
            )
            dropped += x.axes[len(y.axes) :]
        _need(set(dropped) == set(step.axes), f"over {_text(step.axes)} must drop these axes, got {a} -> {b}")
    return ()


def reduce_scatter(step: Step) -> Sequence[WholeIfCut]:
    """Axes of {U} become a suffix of one dim."""
    for a, b in _pairs(step):
        _need(set(step.axes) <= set(a.partial), f"over {_text(step.axes)} needs them in {{U}}, got {a}")
        _need(
            set(b.partial) == set(a.partial) - set(step.axes), f"removes {_text(step.axes)} from {{U}}, got {a} -> {b}"
        )
        _gains_suffix(step, a, b)
    return ()


def _gains_suffix(step: Step, a: Tensor, b: Tensor, lost: str | None = None) -> None:
    _same_names(a, b)
    gained = 0
    for x, y in zip(a.dims, b.dims, strict=True):
        if x.axes == y.axes or x.name == lost:
            continue
        suffix = y.axes[len(x.axes) :]
        fits = y.axes[: len(x.axes)] == x.axes and set(suffix) == set(step.axes)
        _need(fits, f"must append {_text(step.axes)} to one dim as its suffix (left is major): {x} cannot become {y}")
        gained += 1
    _need(gained == 1, f"must append {_text(step.axes)} to exactly one dim, got {a} -> {b}")


def all_reduce(step: Step) -> Sequence[WholeIfCut]:
    """Axes of {U} vanish: all of them or a part."""
    for a, b in _pairs(step):
        _need(set(step.axes) <= set(a.partial), f"over {_text(step.axes)} needs them in {{U}}, got {a}")
        _need(a.dims == b.dims, f"keeps the cut; required the dims of {a}, got {b}")
        _need(
            set(b.partial) == set(a.partial) - set(step.axes), f"removes {_text(step.axes)} from {{U}}, got {a} -> {b}"
        )
    return ()


def all_to_all(step: Step) -> Sequence[WholeIfCut]:
    """Moves a suffix from one dim to another."""
    for a, b in _pairs(step):
        _same_names(a, b)
        _same_marks(a, b)
        n = len(step.axes)
        lost = [x for x, y in zip(a.dims, b.dims, strict=True) if len(y.axes) < len(x.axes)]
        _need(len(lost) == 1, f"must take {_text(step.axes)} from exactly one dim, got {a} -> {b}")
        x, y = lost[0], Dim(lost[0].name, b.axes(lost[0].name))
        fits = x.axes[-n:] == step.axes and y.axes == x.axes[:-n]
        _need(
            fits,
            f"may take only a suffix of a dim's axes (left is major): {x} cannot become {y} over {_text(step.axes)}",
        )
        _gains_suffix(step, a, b, lost=x.name)
        gained = next(d for d in b.dims if d.axes[-n:] == step.axes)
        _need(gained.name != x.name, f"must move {_text(step.axes)} to another dim than {x.name}, got {a} -> {b}")
    return ()


def slice_(step: Step) -> Sequence[WholeIfCut]:
    """A replicated tensor is cut: suffixes appear; nothing moves."""
    for a, b in _pairs(step):
        _same_names(a, b)
        _same_marks(a, b)
        gained: list[str] = []
        for x, y in zip(a.dims, b.dims, strict=True):
            _need(
                y.axes[: len(x.axes)] == x.axes, f"may only append axes to a dim (left is major): {x} cannot become {y}"
            )
            gained += y.axes[len(x.axes) :]
        _need(set(gained) == set(step.axes), f"over {_text(step.axes)} must append these axes, got {a} -> {b}")
    return ()


def einsum(step: Step) -> Sequence[WholeIfCut]:
    """Shared dims are cut alike; a contracted dim that is cut leaves {U}."""
    _count(step, 2)
    (a, b), (out,) = step.inputs, step.outputs
    shared = [d for d in a.names if d in b.names]
    for d in shared:
        _need(
            a.axes(d) == b.axes(d),
            f"shared dims must be cut alike: {Dim(d, a.axes(d))} in {a.name} against {Dim(d, b.axes(d))} in {b.name}",
        )
    for x, y in ((a, b), (b, a)):
        _need(not x.triple, f"needs a combined softmax; got {x}")
        varies = {axis for d in y.dims for axis in d.axes} | set(y.partial)
        clash = [axis for axis in x.partial if axis in varies]
        _need(
            not clash,
            f"a partial sum over {_text(tuple(clash))} ({x}) may not meet an operand that varies over it ({y})",
        )
    for dim in out.dims:
        _need(dim.name in a.names or dim.name in b.names, f"{dim.name} of {out} is in neither operand")
        source = a.axes(dim.name) if dim.name in a.names else b.axes(dim.name)
        _need(
            dim.axes == source, f"{out.name} keeps the cut of its operands; required {Dim(dim.name, source)}, got {dim}"
        )
    single = [d for t, o in ((a, b), (b, a)) for d in t.names if d not in o.names and d not in out.names]
    _need(not single, f"{', '.join(single)} would be summed although only one operand has it")
    left = {axis for d in shared if d not in out.names for axis in a.axes(d)} | set(a.partial) | set(b.partial)
    _need(
        set(out.partial) == left,
        f"a contracted dim that is cut leaves a partial sum: required {{U_{_text(tuple(sorted(left)))}}}, got {out}",
    )
    return ()


def _split_merge(step: Step, whole: Tensor, parts: Tensor) -> Sequence[WholeIfCut]:
    _need("N" in whole.names and {"K", "M"} <= set(parts.names), f"is between N and K, M; got {whole} and {parts}")
    where = parts.names.index("K")
    _need(parts.names[where : where + 2] == ("K", "M"), f"puts M right after K, got {parts}")
    names = tuple(d for d in parts.names if d != "M")
    _need(names == tuple("K" if d == "N" else d for d in whole.names), f"keeps the other dims, got {whole} and {parts}")
    for d in whole.dims:
        if d.name != "N":
            _need(
                d.axes == parts.axes(d.name),
                f"keeps the other dims' cuts; {d} against {Dim(d.name, parts.axes(d.name))}",
            )
    joined = parts.axes("K") + parts.axes("M")
    _need(
        whole.axes("N") == joined,
        f"requires axes(N) = axes(K) + axes(M): {Dim('N', joined)}, got {Dim('N', whole.axes('N'))}",
    )
    _same_marks(whole, parts)
    return (WholeIfCut("K", parts.axes("K"), parts.axes("M"), "M"),) if parts.axes("M") else ()


def split(step: Step) -> Sequence[WholeIfCut]:
    """N -> K, M."""
    _count(step, 1)
    return _split_merge(step, step.inputs[0], step.outputs[0])


def merge(step: Step) -> Sequence[WholeIfCut]:
    """K, M -> N."""
    _count(step, 1)
    return _split_merge(step, step.outputs[0], step.inputs[0])


def rename(step: Step) -> Sequence[WholeIfCut]:
    """T -> S: the same data under another dim name."""
    _count(step, 1)
    (a,), (b,) = step.inputs, step.outputs
    cuts = [d.axes for d in a.dims] == [d.axes for d in b.dims]
    _need(cuts and len(a.dims) == len(b.dims), f"changes dim names only; got {a} -> {b}")
    _same_marks(a, b)
    return ()


def elementwise(step: Step) -> Sequence[WholeIfCut]:
    """Every operand and the result have one type, without partial sums."""
    _need(len(step.inputs) in (1, 2), f"takes 1 or 2 tensors, got {len(step.inputs)}")
    for tensor in step.inputs:
        _complete(tensor)
        _same_type(step.outputs[0], tensor)
    return ()


def add(step: Step) -> Sequence[WholeIfCut]:
    """Identical types; partial sums over the same axes may be added."""
    _count(step, 2)
    for tensor in step.inputs:
        _same_type(step.outputs[0], tensor)
    return ()


def bias(step: Step) -> Sequence[WholeIfCut]:
    """A vector over some of the dims is added to a complete tensor."""
    _count(step, 2)
    (x, b), (out,) = step.inputs, step.outputs
    _complete(x)
    _same_type(out, x)
    for d in b.dims:
        _need(d.name in x.names and x.axes(d.name) == d.axes, f"dims must be cut alike: {d} of {b.name} in {x}")
    return ()


def sum_sq(step: Step) -> Sequence[WholeIfCut]:
    """Sum of squares over D; a cut D leaves {U}."""
    _count(step, 1)
    (x,), (out,) = step.inputs, step.outputs
    _complete(x)
    rest = Tensor(out.name, tuple(d for d in x.dims if d.name != "D"), x.axes("D"))
    _same_type(rest, out)
    return ()


def norm(step: Step) -> Sequence[WholeIfCut]:
    """Scale by the complete sum of squares and by g."""
    _count(step, 3)
    x, sq, g = step.inputs
    for tensor in (x, sq):
        _complete(tensor)
    _same_type(Tensor(sq.name, tuple(d for d in x.dims if d.name != "D")), sq)
    _same_type(Tensor(g.name, (Dim("D", x.axes("D")),)), g)
    _same_type(step.outputs[0], x)
    return ()


def head_norm(step: Step) -> Sequence[WholeIfCut]:
    """Normalises each head; needs H whole."""
    _count(step, 2)
    return _whole_h(step)


def rope(step: Step) -> Sequence[WholeIfCut]:
    """Rotates each head by its position; needs H whole, and positions cut as the tokens are."""
    _count(step, 2)
    x, pos = step.inputs
    for d in pos.dims:
        _need(x.axes(d.name) == d.axes, f"positions must be cut as the tokens: {d} of {pos.name} in {x}")
    return _whole_h(step)


def _whole_h(step: Step) -> Sequence[WholeIfCut]:
    x = step.inputs[0]
    _complete(x)
    _need("H" in x.names and not x.axes("H"), f"needs H whole, got {x}")
    _same_type(step.outputs[0], x)
    return ()
