"""Shared parts of the type rules: the error that they raise, their conditions on sizes, and common checks."""

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


def listed(axes: Axes) -> str:
    """Axes as an error prints them."""
    return "".join(axes) or "nothing"


def need(condition: bool, message: str) -> None:
    """Raise `Broken` unless the condition holds."""
    if not condition:
        raise Broken(message)


def takes(step: Step, inputs: int, outputs: int = 1) -> None:
    """The step has this many operands and results."""
    for verb, wanted, got in (("takes", inputs, len(step.inputs)), ("gives", outputs, len(step.outputs))):
        need(wanted == got, f"{verb} {wanted} {'tensor' if wanted == 1 else 'tensors'}, got {got}")


def operand_pairs(step: Step) -> list[tuple[Tensor, Tensor]]:
    """Each operand of a collective with its result."""
    need(
        len(step.inputs) == len(step.outputs),
        f"gives as many tensors as it takes, got {len(step.outputs)} for {len(step.inputs)}",
    )
    need(bool(step.axes), "needs the axes it runs over, such as AllGather_X")
    return list(zip(step.inputs, step.outputs, strict=True))


def keeps_names(a: Tensor, b: Tensor) -> None:
    """Both have the same dims, however cut."""
    need(a.names == b.names, f"keeps the dims; required [{', '.join(a.names)}], got [{', '.join(b.names)}] in {b}")


def must_be_complete(tensor: Tensor) -> None:
    """The tensor is neither a partial sum nor a softmax triple."""
    need(not tensor.partial, f"is not linear, so it needs a complete sum; got {tensor}: reduce {{U}} first")
    need(not tensor.triple, f"needs a combined softmax; got {tensor}: use AttendReduce or AttendScatter first")


def must_match(required: Tensor, got: Tensor) -> None:
    """Two tensors have one type; their names may differ."""
    required = required.renamed(got.name)
    need(required.same_type(got), f"requires {required}, got {got}")


def keeps_softmax_state(a: Tensor, b: Tensor) -> None:
    """Both are softmax triples over the same axes."""
    need(set(a.triple) == set(b.triple), f"keeps {{A}} as it is; required the mark of {a}, got {b}")


def keeps_marks(a: Tensor, b: Tensor) -> None:
    """Both are partial sums and softmax triples over the same axes."""
    same = set(a.partial) == set(b.partial) and set(a.triple) == set(b.triple)
    need(same, f"keeps partial sums as they are; required the marks of {a}, got {b}")


def well_formed(tensor: Tensor) -> None:
    """No dim twice, and no axis twice in the dims or marks of one tensor."""
    need(len(set(tensor.names)) == len(tensor.names), f"{tensor} has a dim twice")
    used = [axis for dim in tensor.dims for axis in dim.axes] + list(tensor.partial) + list(tensor.triple)
    for axis in used:
        need(
            used.count(axis) == 1,
            f"axis {axis} is used twice in {tensor}; an axis cuts one dim or is in {{U}} or {{A}}",
        )


def must_gain_suffix(step: Step, a: Tensor, b: Tensor, lost: str | None = None) -> None:
    """The step's axes are a new suffix of exactly one dim; `lost` names a dim that may change otherwise."""
    keeps_names(a, b)
    gained = 0
    for x, y in zip(a.dims, b.dims, strict=True):
        if x.axes == y.axes or x.name == lost:
            continue
        suffix = y.axes[len(x.axes) :]
        fits = y.axes[: len(x.axes)] == x.axes and set(suffix) == set(step.axes)
        need(fits, f"must append {listed(step.axes)} to one dim as its suffix (left is major): {x} cannot become {y}")
        gained += 1
    need(gained == 1, f"must append {listed(step.axes)} to exactly one dim, got {a} -> {b}")


def partial_mark(axes: set[str]) -> str:
    """A mark as an error prints it."""
    return f"{{U_{''.join(sorted(axes))}}}" if axes else "a complete sum"


def token_dims(tensor: Tensor) -> tuple[Dim, ...]:
    """The dims that count tokens: B and T."""
    return tuple(d for d in tensor.dims if d.name in ("B", "T"))


def must_follow_tokens(pos: Tensor, x: Tensor) -> None:
    """Positions have the token dims of `x`, cut as they are."""
    required = Tensor(pos.name, token_dims(x))
    need(required.same_type(pos), f"positions must be cut as the tokens of {x}: required {required}, got {pos}")
