"""The execution of the primitives that route: tokens to experts and to rows of the vocabulary, and the last position.

Expert e has C slots on each shard of the tokens: the c-th token of the shard, in order, that chose e has slot c.
Nothing is scattered: slots are counted, and rows gathered. Tokens beyond the capacity are dropped.
"""

from __future__ import annotations

from math import ceil

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from executor.run.context import Array, Context, Value, plain, plains, wide
from strategies.notation import Step, Tensor

Values = tuple[Value, ...]


def top_k(step: Step, context: Context, values: Values) -> Values:
    """softmax over E, the k best, and these scaled to add up to 1; padded experts are never chosen."""
    where, k = step.inputs[0].names.index("E"), context.sizes["k"]
    logits = jnp.moveaxis(wide(plain(values[0])), where, -1)
    held = jnp.arange(logits.shape[-1]) < context.real.get("E", logits.shape[-1])
    weights, experts = lax.top_k(jax.nn.softmax(jnp.where(held, logits, -jnp.inf), axis=-1), k)
    weights = weights / jnp.sum(weights, axis=-1, keepdims=True)
    return jnp.moveaxis(weights, -1, where), jnp.moveaxis(experts, -1, where)


def dispatch(step: Step, context: Context, values: Values) -> Values:
    """`[tokens, D]` -> `[E, C, D]` for the experts that are held here; empty slots are 0."""
    x, choice = plains(values)
    rows = _rows(x, step.inputs[0], "D")
    filled = _filled(_rows(choice, step.inputs[1], "k"), step.outputs[0], context)
    C = capacity(rows.shape[0], context)
    tokens = jax.vmap(jnp.searchsorted, in_axes=(1, None))(filled, jnp.arange(1, C + 1))  # [E, C]
    return (jnp.take(rows, tokens, axis=0, mode="fill", fill_value=0),)


def combine(step: Step, context: Context, values: Values) -> Values:
    """Each token's weighted sum over its experts that are held here."""
    y, weight, choice = plains(values)
    weights, chosen = (_rows(x, t, "k") for x, t in zip((weight, choice), step.inputs[1:], strict=True))
    experts, C, D = y.shape
    filled = _filled(chosen, step.inputs[0], context)
    expert = chosen - _first_expert(step.inputs[0], context)
    local = jnp.clip(expert, 0, experts - 1)
    slot = jnp.take_along_axis(filled, local, axis=1) - 1
    ours = (expert == local) & (slot < C)
    rows = jnp.take(y.reshape(-1, D), jnp.where(ours, local * C + slot, 0), axis=0)
    total = jnp.sum(wide(rows) * jnp.where(ours, weights, 0)[..., None], axis=1)
    return (_unrows(total.astype(context.activations), step.outputs[0], step.inputs[1], weight),)


def _rows(x: Array, tensor: Tensor, last: str) -> Array:
    """`[..., last]` with all token dims as one."""
    return jnp.moveaxis(x, tensor.names.index(last), -1).reshape(-1, x.shape[tensor.names.index(last)])


def _unrows(rows: Array, tensor: Tensor, like: Tensor, x: Array) -> Array:
    """The token dims apart again, as in `x` of type `like`."""
    sizes = dict(zip(like.names, x.shape, strict=True))
    whole = rows.reshape(*(sizes[d] for d in like.names if d != "k"), -1)
    return jnp.moveaxis(whole, -1, tensor.names.index("D"))


def _first_expert(tensor: Tensor, context: Context) -> Array | int:
    return context.index(tensor.axes("E")) * context.local(tensor, "E")


def _filled(choice: Array, tensor: Tensor, context: Context) -> Array:
    """`[tokens, E]`: how many slots of each local expert are taken, up to each token."""
    experts = _first_expert(tensor, context) + jnp.arange(context.local(tensor, "E"))
    member = jnp.any(choice[:, :, None] == experts, axis=1)
    return jnp.cumsum(member.astype(jnp.int32), axis=0)


def capacity(tokens: int, context: Context) -> int:
    """Slots per expert on one shard of the tokens: all of them, or the mean number times a factor."""
    if context.capacity_factor is None:
        return tokens
    mean = tokens * context.sizes["k"] / context.sizes["E"]
    return min(tokens, ceil(mean * context.capacity_factor))


def lookup(step: Step, context: Context, values: Values) -> Values:
    """Rows of the table; a shard that does not hold a row gives 0."""
    token, table = plains(values)
    V, D = (step.inputs[1].names.index(d) for d in "VD")
    at = token - context.index(step.inputs[1].axes("V")) * table.shape[V]
    held = (at >= 0) & (at < table.shape[V])
    rows = jnp.take(table, jnp.where(held, at, 0), axis=V)
    rows = jnp.moveaxis(rows, token.ndim if D > V else 0, -1)
    return (jnp.where(held[..., None], rows, 0).astype(context.activations),)


def arg_max(step: Step, context: Context, values: Values) -> Values:
    """The best of each shard, then of all: one gather of (value, index), as bits of int32. Ties: the lowest."""
    logits, tensor = wide(plain(values[0])), step.inputs[0]
    where, axes = tensor.names.index("V"), tensor.axes("V")
    logits = jnp.moveaxis(logits, where, -1)
    number = context.index(axes) * logits.shape[-1] + jnp.arange(logits.shape[-1])
    logits = jnp.where(number < context.real.get("V", context.sizes.get("V", logits.shape[-1])), logits, -jnp.inf)
    best, index = jnp.max(logits, axis=-1), number[jnp.argmax(logits, axis=-1)].astype(jnp.int32)
    if not axes:
        return (index,)
    pairs = lax.all_gather(jnp.stack([lax.bitcast_convert_type(best, jnp.int32), index]), axes)  # [shards, 2, ...]
    tops = lax.bitcast_convert_type(pairs[:, 0], jnp.float32)
    lowest = jnp.where(tops == jnp.max(tops, axis=0), pairs[:, 1], np.iinfo(np.int32).max)
    return (jnp.min(lowest, axis=0),)


def last(step: Step, context: Context, values: Values) -> Values:
    """Position length - 1 of each sequence; 0 where it is on another shard of T."""
    x, tensor = plain(values[0]), step.inputs[0]
    B, T = (tensor.names.index(d) for d in "BT")
    pos = context.cut(context.cut(context.whole["pos"], 0, tensor.axes("B")), 1, tensor.axes("T"))
    ends = context.cut(context.whole["lengths"], 0, tensor.axes("B")) - 1
    ours = pos == ends[:, None]  # [B, T]
    x = jnp.moveaxis(x, (B, T), (0, 1))
    rows = jnp.take_along_axis(x, jnp.argmax(ours, axis=1).reshape(-1, *(1,) * (x.ndim - 1)), axis=1)[:, 0]
    rows = jnp.where(jnp.any(ours, axis=1).reshape(-1, *(1,) * (rows.ndim - 1)), rows, 0)
    return (jnp.moveaxis(rows, 0, [d for d in tensor.names if d != "T"].index("B")),)
