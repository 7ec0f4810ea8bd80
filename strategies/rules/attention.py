"""The type rules of attention: writing a cache, attending to it, and combining softmax triples."""

from __future__ import annotations

from collections.abc import Sequence

from strategies.notation import Dim, Step, Tensor
from strategies.rules.common import (
    WholeIfCut,
    listed,
    must_be_complete,
    must_follow_tokens,
    must_gain_suffix,
    must_match,
    need,
    takes,
)


def append(step: Step) -> Sequence[WholeIfCut]:
    """The new entry goes to the cache shard that owns its position, in place.

        Kc[B_Y, K_X, S_W, H] = Append(Kc[B_Y, K_X, S_W, H], k[B_Y, K_X, H], pos[B_Y])

    The entry is whole over the axes that cut S: every shard has it, and one stores it.
    """
    takes(step, 3)
    cache, new, pos = step.inputs
    for tensor in (cache, new):
        must_be_complete(tensor)
    must_match(cache, step.outputs[0])
    need("S" in cache.names, f"needs a cache with a dim S, got {cache}")
    expected = Tensor(new.name, tuple(d for d in cache.dims if d.name != "S"))
    must_match(expected, new)
    must_match(Tensor(pos.name, (Dim("B", cache.axes("B")),)), pos)
    return ()


def _attention_types(step: Step) -> tuple[Tensor, Tensor, Tensor]:
    takes(step, 4)
    q, k, v, pos = step.inputs
    for tensor in (q, k, v):
        must_be_complete(tensor)
    need({"K", "M", "H"} <= set(q.names), f"needs queries split into K and M, got {q}")
    need(set(k.names) == {"B", "S", "K", "H"}, f"needs keys [B, S, K, H], got {k}")
    need(k.dims == v.dims, f"needs keys and values of one type, got {k} and {v}")
    for d in ("B", "K", "H"):
        need(
            q.axes(d) == k.axes(d),
            f"queries and cache must be cut alike: {Dim(d, q.axes(d))} against {Dim(d, k.axes(d))}",
        )
    need(not k.axes("H"), f"needs H whole, got {k}")
    must_follow_tokens(pos, q)
    return q, k, step.outputs[0]


def attend(step: Step) -> Sequence[WholeIfCut]:
    """Blockwise attention; a cut S leaves the triple {A} of max, sum and output.

        O[B, K_X, M, H] {A_W} = Attend(Q[B, K_X, M, H], Kc[B, K_X, S_W, H], Vc[B, K_X, S_W, H], pos[B])

    Queries are cut as the cache in B and K; each shard of S attends to its part of the keys.
    """
    q, k, out = _attention_types(step)
    must_match(Tensor(out.name, q.dims, (), k.axes("S")), out)
    return ()


def ring_attend(step: Step) -> Sequence[WholeIfCut]:
    """Attention whose KV shards rotate over the axes that cut S."""
    q, k, out = _attention_types(step)
    need(k.axes("S") == step.axes, f"over {listed(step.axes)} rotates the shards of S; got {Dim('S', k.axes('S'))}")
    need(q.axes("T") == step.axes, f"needs queries cut as the keys: required {Dim('T', step.axes)}, got {q}")
    must_match(Tensor(out.name, q.dims), out)
    return ()


def _without_softmax_state(step: Step) -> tuple[Tensor, Tensor]:
    takes(step, 1)
    (a,), (b,) = step.inputs, step.outputs
    need(bool(step.axes) and set(step.axes) <= set(a.triple), f"needs {listed(step.axes)} in {{A}}, got {a}")
    need(set(b.triple) == set(a.triple) - set(step.axes), f"removes {listed(step.axes)} from {{A}}, got {a} -> {b}")
    need(set(b.partial) == set(a.partial), f"leaves {{U}} as it is, got {a} -> {b}")
    return a, b


def attend_reduce(step: Step) -> Sequence[WholeIfCut]:
    """Combines the triple over sequence axes; every shard gets the result.

    O[B, N, H] = AttendReduce_W(O[B, N, H] {A_W})
    """
    a, b = _without_softmax_state(step)
    need(a.dims == b.dims, f"keeps the cut; required the dims of {a}, got {b}")
    return ()


def attend_scatter(step: Step) -> Sequence[WholeIfCut]:
    """Combines the triple over sequence axes, which become a suffix of one dim.

    O[B, N_W, H] = AttendScatter_W(O[B, N, H] {A_W})
    """
    a, b = _without_softmax_state(step)
    must_gain_suffix(step, a, b)
    return ()
