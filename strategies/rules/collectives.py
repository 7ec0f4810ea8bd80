"""The type rules of the collectives, and of Slice, which cuts without one."""

from __future__ import annotations

from collections.abc import Sequence

from strategies.notation import Dim, Step
from strategies.rules.common import (
    WholeIfCut,
    keeps_marks,
    keeps_names,
    keeps_softmax_state,
    listed,
    must_gain_suffix,
    need,
    operand_pairs,
    partial_mark,
)


def all_gather(step: Step) -> Sequence[WholeIfCut]:
    """Drops suffixes of one or more dims.

    a[B, F] = AllGather_Y(a[B, F_Y])    every shard of Y gets the whole of F
    """
    for a, b in operand_pairs(step):
        keeps_names(a, b)
        keeps_marks(a, b)
        dropped: list[str] = []
        for x, y in zip(a.dims, b.dims, strict=True):
            prefix = x.axes[: len(y.axes)]
            need(
                prefix == y.axes,
                f"may drop only a suffix of a dim's axes (left is major): {x} cannot become {y}; "
                f"that would permute the data of {a.name}",
            )
            dropped += x.axes[len(y.axes) :]
        need(set(dropped) == set(step.axes), f"must drop {listed(step.axes)}, no more and no less; got {a} -> {b}")
    return ()


def reduce_scatter(step: Step) -> Sequence[WholeIfCut]:
    """Axes of {U} become a suffix of one dim.

    o[B_Y, D] = ReduceScatter_Y(o[B, D] {U_Y})    each shard of Y gets the sum of its part of B
    """
    for a, b in operand_pairs(step):
        need(set(step.axes) <= set(a.partial), f"needs {listed(step.axes)} in {{U}}, got {a}")
        left = set(a.partial) - set(step.axes)
        need(set(b.partial) == left, f"removes {listed(step.axes)} from {{U}}: required {partial_mark(left)}, got {b}")
        keeps_softmax_state(a, b)
        must_gain_suffix(step, a, b)
    return ()


def all_reduce(step: Step) -> Sequence[WholeIfCut]:
    """Axes of {U} vanish: all of them or a part.

    o[B, D] = AllReduce_Y(o[B, D] {U_Y})    every shard of Y gets the whole sum
    """
    for a, b in operand_pairs(step):
        need(set(step.axes) <= set(a.partial), f"needs {listed(step.axes)} in {{U}}, got {a}")
        need(a.dims == b.dims, f"keeps the cut; required the dims of {a}, got {b}")
        left = set(a.partial) - set(step.axes)
        need(set(b.partial) == left, f"removes {listed(step.axes)} from {{U}}: required {partial_mark(left)}, got {b}")
        keeps_softmax_state(a, b)
    return ()


def all_to_all(step: Step) -> Sequence[WholeIfCut]:
    """Moves a suffix from one dim to another.

    Q[B_Z, N, H] = AllToAll_Z(Q[B, N_Z, H])    each shard of Z gives its heads for a part of the batch
    """
    for a, b in operand_pairs(step):
        keeps_names(a, b)
        keeps_marks(a, b)
        n = len(step.axes)
        lost = [x for x, y in zip(a.dims, b.dims, strict=True) if len(y.axes) < len(x.axes)]
        need(len(lost) == 1, f"must take {listed(step.axes)} from exactly one dim, got {a} -> {b}")
        x, y = lost[0], Dim(lost[0].name, b.axes(lost[0].name))
        fits = x.axes[-n:] == step.axes and y.axes == x.axes[:-n]
        need(
            fits,
            f"may take only a suffix of a dim's axes (left is major): {x} cannot become {y} over {listed(step.axes)}",
        )
        must_gain_suffix(step, a, b, lost=x.name)
        gained = next(d for d in b.dims if d.name != x.name and d.axes != a.axes(d.name))
        need(
            gained.axes[-n:] == step.axes,
            f"keeps the order of the axes that it moves: required {gained.name} to end in {listed(step.axes)}, "
            f"got {gained}",
        )
    return ()


def slice_(step: Step) -> Sequence[WholeIfCut]:
    """A replicated tensor is cut: suffixes appear; nothing moves.

    k[B_Z, K, H] = Slice_Z(k[B, K, H])    each shard of Z keeps its part
    """
    for a, b in operand_pairs(step):
        keeps_names(a, b)
        keeps_marks(a, b)
        gained: list[str] = []
        for x, y in zip(a.dims, b.dims, strict=True):
            need(
                y.axes[: len(x.axes)] == x.axes, f"may only append axes to a dim (left is major): {x} cannot become {y}"
            )
            gained += y.axes[len(x.axes) :]
        need(set(gained) == set(step.axes), f"must append {listed(step.axes)}, no more and no less; got {a} -> {b}")
    return ()
