"""The type rules of experts: routing tokens, sending them to slots and weighting what comes back."""

from __future__ import annotations

from collections.abc import Sequence

from strategies.notation import Dim, Step, Tensor
from strategies.rules.common import (
    WholeIfCut,
    listed,
    must_be_complete,
    must_match,
    need,
    partial_mark,
    takes,
    token_dims,
)


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
    """Tokens go to the slots of their experts; C is cut by the axes that cut the tokens, in any order.

    Each of E experts has C slots per device group; a token takes k of them. Its result is `[E, C, D]`.
    """
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
    """Weighted sum of each token's experts; linear, so partial sums pass; a cut E leaves {U}.

    A shard that has some of the experts sums what these give its tokens; {U} is then reduced over the axes of E.
    """
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
