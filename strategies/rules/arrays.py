"""The type rules of local work on arrays: matmuls, views, element-wise operations and norms."""

from __future__ import annotations

from collections.abc import Sequence

from strategies.notation import Dim, Step, Tensor
from strategies.rules.common import (
    Rule,
    WholeIfCut,
    keeps_marks,
    listed,
    must_be_complete,
    must_follow_tokens,
    must_match,
    need,
    partial_mark,
    takes,
)


def einsum(step: Step) -> Sequence[WholeIfCut]:
    """Shared dims are cut alike; a contracted dim that is cut leaves {U}.

        h[B, F_Y] {U_X} = n[B, D_X] * Wi[D_X, F_Y]    D is contracted and cut by X: each shard has a part of the sum

    A partial sum may be multiplied only by what is whole over its axes. Raises `Broken` otherwise.
    """
    takes(step, 2)
    (a, b), (out,) = step.inputs, step.outputs
    shared = [d for d in a.names if d in b.names]
    for d in shared:
        need(
            a.axes(d) == b.axes(d),
            f"shared dims must be cut alike: {Dim(d, a.axes(d))} in {a.name} against {Dim(d, b.axes(d))} in {b.name}",
        )
    for x, y in ((a, b), (b, a)):
        need(not x.triple, f"needs a combined softmax; got {x}")
        varies = {axis for d in y.dims for axis in d.axes} | set(y.partial)
        clash = [axis for axis in x.partial if axis in varies]
        need(
            not clash,
            f"a partial sum over {listed(tuple(clash))} ({x}) may not meet an operand that varies over it ({y})",
        )
    for dim in out.dims:
        need(dim.name in a.names or dim.name in b.names, f"{dim.name} of {out} is in neither operand")
        source = a.axes(dim.name) if dim.name in a.names else b.axes(dim.name)
        need(
            dim.axes == source, f"{out.name} keeps the cut of its operands; required {Dim(dim.name, source)}, got {dim}"
        )
    single = [d for t, o in ((a, b), (b, a)) for d in t.names if d not in o.names and d not in out.names]
    need(not single, f"{', '.join(single)} would be summed although only one operand has it")
    need(not out.triple, f"makes no softmax triple; got {out}")
    left = {axis for d in shared if d not in out.names for axis in a.axes(d)} | set(a.partial) | set(b.partial)
    need(
        set(out.partial) == left,
        f"a contracted dim that is cut leaves a partial sum: required {partial_mark(left)}, got {out}",
    )
    return ()


def split(step: Step) -> Sequence[WholeIfCut]:
    """Heads become groups: N -> K, M, cut by the same axes, those of K first.

    Q[B, K_Y, M_V, H] = Split(Q[B, N_YV, H])
    """
    takes(step, 1)
    return _split_merge(step, step.inputs[0], step.outputs[0])


def merge(step: Step) -> Sequence[WholeIfCut]:
    """Groups become heads again: K, M -> N, the reverse of `split`.

    O[B, N_YV, H] = Merge(O[B, K_Y, M_V, H])
    """
    takes(step, 1)
    return _split_merge(step, step.outputs[0], step.inputs[0])


def _split_merge(step: Step, whole: Tensor, parts: Tensor) -> Sequence[WholeIfCut]:
    need("N" in whole.names and {"K", "M"} <= set(parts.names), f"is between N and K, M; got {whole} and {parts}")
    where = parts.names.index("K")
    need(parts.names[where : where + 2] == ("K", "M"), f"puts M right after K, got {parts}")
    names = tuple(d for d in parts.names if d != "M")
    need(names == tuple("K" if d == "N" else d for d in whole.names), f"keeps the other dims, got {whole} and {parts}")
    for d in whole.dims:
        if d.name != "N":
            need(
                d.axes == parts.axes(d.name),
                f"keeps the other dims' cuts; {d} against {Dim(d.name, parts.axes(d.name))}",
            )
    joined = parts.axes("K") + parts.axes("M")
    need(
        whole.axes("N") == joined,
        f"requires axes(N) = axes(K) + axes(M): {Dim('N', joined)}, got {Dim('N', whole.axes('N'))}",
    )
    keeps_marks(whole, parts)
    return (WholeIfCut("K", parts.axes("K"), parts.axes("M"), "M"),) if parts.axes("M") else ()


def rename(step: Step) -> Sequence[WholeIfCut]:
    """T -> S: the same data under another tensor name, or with T called S.

    Kc[B, S_W, K, H] = Rename(k[B, T_W, K, H])    a prompt's keys become its cache
    """
    takes(step, 1)
    (a,), (b,) = step.inputs, step.outputs
    cuts = [d.axes for d in a.dims] == [d.axes for d in b.dims]
    need(cuts, f"keeps dims and cuts; got {a} -> {b}")
    for x, y in zip(a.names, b.names, strict=True):
        need(x == y or (x, y) == ("T", "S"), f"may only call T S, for the cache; {x} cannot become {y}")
    keeps_marks(a, b)
    return ()


def elementwise(operands: int) -> Rule:
    """The rule of so many operands: these and the result have one type, without partial sums."""

    def rule(step: Step) -> Sequence[WholeIfCut]:
        takes(step, operands)
        for tensor in step.inputs:
            must_be_complete(tensor)
            must_match(step.inputs[0], tensor)
        must_match(step.inputs[0], step.outputs[0])
        return ()

    return rule


def add(step: Step) -> Sequence[WholeIfCut]:
    """Identical types; partial sums over the same axes may be added.

    R[B_Y, D_X] = Add(R[B_Y, D_X], o[B_Y, D_X])    the residual stream and a component's output
    """
    takes(step, 2)
    for tensor in step.inputs:
        need(not tensor.triple, f"needs a combined softmax; got {tensor}: use AttendReduce or AttendScatter first")
        must_match(step.inputs[0], tensor)
    must_match(step.inputs[0], step.outputs[0])
    return ()


def bias(step: Step) -> Sequence[WholeIfCut]:
    """A vector over some of the dims is added to a complete tensor."""
    takes(step, 2)
    (x, b), (out,) = step.inputs, step.outputs
    must_be_complete(x)
    must_match(x, out)
    for d in b.dims:
        need(d.name in x.names and x.axes(d.name) == d.axes, f"dims must be cut alike: {d} of {b.name} in {x}")
    return ()


def sum_over_d(step: Step) -> Sequence[WholeIfCut]:
    """Sum, or sum of squares, over D; a cut D leaves {U}.

    q[B] {U_X} = SumSq(R[B, D_X])    the statistic of an RMS norm, to be reduced over X
    """
    takes(step, 1)
    (x,), (out,) = step.inputs, step.outputs
    must_be_complete(x)
    need("D" in x.names, f"sums over D, got {x}")
    rest = Tensor(out.name, tuple(d for d in x.dims if d.name != "D"), x.axes("D"))
    must_match(rest, out)
    return ()


def norm(step: Step) -> Sequence[WholeIfCut]:
    """Scale by the complete sum of squares and by g; a layer norm takes the mean off first, by the complete sum."""
    layer = len(step.inputs) == 4
    takes(step, 4 if layer else 3)
    x, *sums, g = step.inputs
    must_be_complete(x)
    for tensor in sums:
        must_be_complete(tensor)
        must_match(Tensor(tensor.name, tuple(d for d in x.dims if d.name != "D")), tensor)
    must_match(Tensor(g.name, (Dim("D", x.axes("D")),)), g)
    must_match(x, step.outputs[0])
    return ()


def head_norm(step: Step) -> Sequence[WholeIfCut]:
    """Normalises each head and scales it by g[H]; needs H whole."""
    takes(step, 2)
    g = step.inputs[1]
    must_match(Tensor(g.name, (Dim("H"),)), g)
    return _whole_h(step)


def rope(step: Step) -> Sequence[WholeIfCut]:
    """Rotates each head by its position; needs H whole, and positions cut as the tokens are.

    k[B_Y, K_X, H] = Rope(k[B_Y, K_X, H], pos[B_Y])
    """
    takes(step, 2)
    x, pos = step.inputs
    must_follow_tokens(pos, x)
    return _whole_h(step)


def _whole_h(step: Step) -> Sequence[WholeIfCut]:
    x = step.inputs[0]
    must_be_complete(x)
    need("H" in x.names and not x.axes("H"), f"needs H whole, got {x}")
    must_match(x, step.outputs[0])
    return ()
