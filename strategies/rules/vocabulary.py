"""The type rules of the vocabulary: embedding, choosing a token, and the last position of a prompt."""

from __future__ import annotations

from collections.abc import Sequence

from strategies.notation import Dim, Step, Tensor
from strategies.rules.common import Broken, WholeIfCut, must_be_complete, must_match, need, takes


def lookup(step: Step) -> Sequence[WholeIfCut]:
    """Rows of a table; a cut V leaves {U}.

    x[B, D] {U_Y} = Lookup(tok[B], Em[V_Y, D])    the shard that has a token's row gives it, the others zeros
    """
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
