"""The type rules of the attention, MoE and vocabulary primitives."""

from __future__ import annotations

from collections.abc import Sequence

from strategies.notation import Dim, Step, Tensor
from strategies.rules.common import (
    Broken,
    WholeIfCut,
    listed,
    must_be_complete,
    must_follow_tokens,
    must_gain_suffix,
    must_match,
    need,
    partial_mark,
    takes,
    token_dims,
)


def append(step: Step) -> Sequence[WholeIfCut]:
    """The new entry goes to the cache shard that owns its position, in place."""
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
    """Blockwise attention; a cut S leaves the triple {A} of max, sum and output."""
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


def _triple_less(step: Step) -> tuple[Tensor, Tensor]:
    takes(step, 1)
    (a,), (b,) = step.inputs, step.outputs
    need(bool(step.axes) and set(step.axes) <= set(a.triple), f"needs {listed(step.axes)} in {{A}}, got {a}")
    need(set(b.triple) == set(a.triple) - set(step.axes), f"removes {listed(step.axes)} from {{A}}, got {a} -> {b}")
    need(set(b.partial) == set(a.partial), f"leaves {{U}} as it is, got {a} -> {b}")
    return a, b


def attend_reduce(step: Step) -> Sequence[WholeIfCut]:
    """Combines the triple over sequence axes; every shard gets the result."""
    a, b = _triple_less(step)
    need(a.dims == b.dims, f"keeps the cut; required the dims of {a}, got {b}")
    return ()


def attend_scatter(step: Step) -> Sequence[WholeIfCut]:
    """Combines the triple over sequence axes, which become a suffix of one dim."""
    a, b = _triple_less(step)
    must_gain_suffix(step, a, b)
    return ()


def top_k(step: Step) -> Sequence[WholeIfCut]:
    """The k best experts of each token and their weights; needs E whole."""
    takes(step, 1, 2)
    (logits,) = step.inputs
    must_be_complete(logits)
    need("E" in logits.names and not logits.axes("E"), f"needs E whole, got {logits}")
    for out in step.outputs:
        must_match(Tensor(out.name, tuple(Dim("k") if d.name == "E" else d for d in logits.dims)), out)
    return ()


def _token_axes(tensor: Tensor) -> set[str]:
    return {axis for d in ("B", "T") for axis in tensor.axes(d)}


def _routed(routing: Tensor, tokens: Tensor) -> None:
    required = Tensor(routing.name, (*token_dims(tokens), Dim("k")))
    need(
        required.same_type(routing),
        f"needs the routing cut as the tokens of {tokens}: required {required}, got {routing}",
    )


def dispatch(step: Step) -> Sequence[WholeIfCut]:
    """Tokens go to the slots of their experts; C is cut by the axes that cut the tokens, in any order."""
    takes(step, 2)
    (x, choice), (out,) = step.inputs, step.outputs
    must_be_complete(x)
    need(out.names == ("E", "C", "D"), f"gives [E, C, D], got {out}")
    need(out.axes("D") == x.axes("D"), f"keeps the cut of D: {Dim('D', x.axes('D'))} against {Dim('D', out.axes('D'))}")
    must_be_complete(choice)
    _routed(choice, x)
    need(not (out.partial or out.triple), f"gives complete rows, got {out}")
    got = set(out.axes("C"))
    need(
        got == _token_axes(x),
        f"cuts C as the tokens are cut: required {listed(tuple(sorted(_token_axes(x))))}, got {out}",
    )
    return ()


def combine(step: Step) -> Sequence[WholeIfCut]:
    """Weighted sum of each token's experts; linear, so partial sums pass; a cut E leaves {U}."""
    takes(step, 3)
    (y, weight, choice), (out,) = step.inputs, step.outputs
    need(not (y.triple or out.triple), f"needs a combined softmax; got {y} -> {out}")
    need(y.names == ("E", "C", "D"), f"takes [E, C, D], got {y}")
    need(out.names == (*(d.name for d in token_dims(out)), "D"), f"gives [B, D] or [B, T, D], got {out}")
    need(set(y.axes("C")) == _token_axes(out), f"needs C cut as the tokens, got {y} and {out}")
    for tensor in (weight, choice):
        must_be_complete(tensor)
        _routed(tensor, out)
    need(out.axes("D") == y.axes("D"), f"keeps the cut of D: {Dim('D', y.axes('D'))} against {Dim('D', out.axes('D'))}")
    required = set(y.partial) | set(y.axes("E"))
    need(
        set(out.partial) == required,
        f"a cut E leaves a partial sum: required {partial_mark(required)}, got {out}",
    )
    return ()


def lookup(step: Step) -> Sequence[WholeIfCut]:
    """Rows of a table; a cut V leaves {U}."""
    takes(step, 2)
    (token, table), (out,) = step.inputs, step.outputs
    for tensor in (token, table):
        must_be_complete(tensor)
    need(set(table.names) == {"V", "D"}, f"needs a table [V, D], got {table}")
    expected = Tensor(out.name, (*token.dims, Dim("D", table.axes("D"))), table.axes("V"))
    must_match(expected, out)
    return ()


def arg_max(step: Step) -> Sequence[WholeIfCut]:
    """The best token; shards exchange one (value, index) pair per token."""
    takes(step, 1)
    (logits,), (out,) = step.inputs, step.outputs
    must_be_complete(logits)
    need("V" in logits.names, f"needs a dim V, got {logits}")
    must_match(Tensor(out.name, tuple(d for d in logits.dims if d.name != "V")), out)
    return ()


def last(step: Step) -> Sequence[WholeIfCut]:
    """The last position of each sequence; a cut T leaves {U} (its owner has it, the others zeros)."""
    takes(step, 1)
    (x,), (out,) = step.inputs, step.outputs
    if "T" not in x.names:
        raise Broken(f"needs a dim T, got {x}")
    must_be_complete(x)
    must_match(Tensor(out.name, tuple(d for d in x.dims if d.name != "T"), x.axes("T")), out)
    return ()
