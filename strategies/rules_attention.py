"""The type rules of the attention, MoE and vocabulary primitives."""

from __future__ import annotations

from collections.abc import Sequence

from strategies.notation import Dim, Step, Tensor
from strategies.rules import Broken, WholeIfCut, _complete, _count, _gains_suffix, _need, _same_type, _text


def append(step: Step) -> Sequence[WholeIfCut]:
    """The new entry goes to the cache shard that owns its position, in place."""
    _count(step, 3)
    cache, new, pos = step.inputs
    _complete(new)
    _same_type(step.outputs[0], cache)
    expected = Tensor(new.name, tuple(d for d in cache.dims if d.name != "S"))
    _need("S" in cache.names, f"needs a cache with a dim S, got {cache}")
    _same_type(expected, new)
    _same_type(Tensor(pos.name, (Dim("B", cache.axes("B")),)), pos)
    return ()


def _attention_types(step: Step) -> tuple[Tensor, Tensor, Tensor]:
    _count(step, 4)
    q, k, v, pos = step.inputs
    for tensor in (q, k, v):
        _complete(tensor)
    _need({"K", "M", "H"} <= set(q.names), f"needs queries split into K and M, got {q}")
    _need(set(k.names) == {"B", "S", "K", "H"}, f"needs keys [B, S, K, H], got {k}")
    _need(k.dims == v.dims, f"needs keys and values of one type, got {k} and {v}")
    for d in ("B", "K", "H"):
        _need(
            q.axes(d) == k.axes(d),
            f"queries and cache must be cut alike: {Dim(d, q.axes(d))} against {Dim(d, k.axes(d))}",
        )
    _need(not k.axes("H"), f"needs H whole, got {k}")
    for d in pos.dims:
        _need(q.axes(d.name) == d.axes, f"positions must be cut as the queries: {d} of {pos.name} in {q}")
    return q, k, step.outputs[0]


def attend(step: Step) -> Sequence[WholeIfCut]:
    """Blockwise attention; a cut S leaves the triple {A} of max, sum and output."""
    q, k, out = _attention_types(step)
    _same_type(Tensor(out.name, q.dims, (), k.axes("S")), out)
    return ()


def ring_attend(step: Step) -> Sequence[WholeIfCut]:
    """Attention whose KV shards rotate over the axes that cut S."""
    q, k, out = _attention_types(step)
    _need(k.axes("S") == step.axes, f"over {_text(step.axes)} rotates the shards of S; got {Dim('S', k.axes('S'))}")
    _need(q.axes("T") == step.axes, f"needs queries cut as the keys: required {Dim('T', step.axes)}, got {q}")
    _same_type(Tensor(out.name, q.dims), out)
    return ()


def _triple_less(step: Step) -> tuple[Tensor, Tensor]:
    _count(step, 1)
    (a,), (b,) = step.inputs, step.outputs
    _need(bool(step.axes) and set(step.axes) <= set(a.triple), f"over {_text(step.axes)} needs them in {{A}}, got {a}")
    _need(set(b.triple) == set(a.triple) - set(step.axes), f"removes {_text(step.axes)} from {{A}}, got {a} -> {b}")
    return a, b


def attend_reduce(step: Step) -> Sequence[WholeIfCut]:
    """Combines the triple over sequence axes; every shard gets the result."""
    a, b = _triple_less(step)
    _need(a.dims == b.dims, f"keeps the cut; required the dims of {a}, got {b}")
    return ()


def attend_scatter(step: Step) -> Sequence[WholeIfCut]:
    """Combines the triple over sequence axes, which become a suffix of one dim."""
    a, b = _triple_less(step)
    _gains_suffix(step, a, b)
    return ()


def top_k(step: Step) -> Sequence[WholeIfCut]:
    """The k best experts of each token and their weights; needs E whole."""
    _count(step, 1, 2)
    (logits,) = step.inputs
    _complete(logits)
    _need("E" in logits.names and not logits.axes("E"), f"needs E whole, got {logits}")
    for out in step.outputs:
        _same_type(Tensor(out.name, tuple(Dim("k") if d.name == "E" else d for d in logits.dims)), out)
    return ()


def _token_axes(tensor: Tensor) -> set[str]:
    return {axis for d in ("B", "T") for axis in tensor.axes(d)}


def dispatch(step: Step) -> Sequence[WholeIfCut]:
    """Tokens go to the slots of their experts; C is cut by the axes that cut the tokens, in any order."""
    _count(step, 2)
    (x, choice), (out,) = step.inputs, step.outputs
    _complete(x)
    _need(out.names == ("E", "C", "D"), f"gives [E, C, D], got {out}")
    _need(
        out.axes("D") == x.axes("D"), f"keeps the cut of D: {Dim('D', x.axes('D'))} against {Dim('D', out.axes('D'))}"
    )
    _need(_token_axes(choice) == _token_axes(x), f"needs the choice cut as the tokens, got {choice} and {x}")
    got = set(out.axes("C"))
    _need(
        got == _token_axes(x),
        f"cuts C as the tokens are cut: required {_text(tuple(sorted(_token_axes(x))))}, got {out}",
    )
    return ()


def combine(step: Step) -> Sequence[WholeIfCut]:
    """Weighted sum of each token's experts; linear, so partial sums pass; a cut E leaves {U}."""
    _count(step, 3)
    (y, weight, choice), (out,) = step.inputs, step.outputs
    _need(not y.triple, f"needs a combined softmax; got {y}")
    _need(y.names == ("E", "C", "D"), f"takes [E, C, D], got {y}")
    _need(set(y.axes("C")) == _token_axes(out), f"needs C cut as the tokens, got {y} and {out}")
    for tensor in (weight, choice):
        _need(_token_axes(tensor) == _token_axes(out), f"needs the routing cut as the tokens, got {tensor} and {out}")
    _need(
        out.axes("D") == y.axes("D"), f"keeps the cut of D: {Dim('D', y.axes('D'))} against {Dim('D', out.axes('D'))}"
    )
    required = set(y.partial) | set(y.axes("E"))
    _need(
        set(out.partial) == required,
        f"a cut E leaves a partial sum: required {{U_{_text(tuple(sorted(required)))}}}, got {out}",
    )
    return ()


def lookup(step: Step) -> Sequence[WholeIfCut]:
    """Rows of a table; a cut V leaves {U}."""
    _count(step, 2)
    (token, table), (out,) = step.inputs, step.outputs
    expected = Tensor(out.name, (*token.dims, Dim("D", table.axes("D"))), table.axes("V"))
    _same_type(expected, out)
    return ()


def arg_max(step: Step) -> Sequence[WholeIfCut]:
    """The best token; shards exchange one (value, index) pair per token."""
    _count(step, 1)
    (logits,), (out,) = step.inputs, step.outputs
    _complete(logits)
    _same_type(Tensor(out.name, tuple(d for d in logits.dims if d.name != "V")), out)
    return ()


def last(step: Step) -> Sequence[WholeIfCut]:
    """The last position of each sequence; a cut T leaves {U} (its owner has it, the others zeros)."""
    _count(step, 1)
    (x,), (out,) = step.inputs, step.outputs
    if "T" not in x.names:
        raise Broken(f"needs a dim T, got {x}")
    _complete(x)
    _same_type(Tensor(out.name, tuple(d for d in x.dims if d.name != "T"), x.axes("T")), out)
    return ()
