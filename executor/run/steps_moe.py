"""Execute the primitives that index: the routing of a mixture of experts, embedding lookup, argmax, last position.

Expert e has C slots on each shard of the tokens; the c-th token of the shard that chose e, in order, has slot c. There
is no scatter: a cumulative sum counts the slots, and rows are gathered. Tokens beyond the capacity C are dropped.
"""

from __future__ import annotations

from math import ceil

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from executor.run.context import Array, Context, Value, array_of, arrays_of, float32
from strategies.notation import Step, Tensor

Values = tuple[Value, ...]


def top_k(step: Step, context: Context, values: Values) -> Values:
    """Choose the k experts of each token and their weights: a softmax over E, of which the k largest are kept.

    The k weights are scaled to add up to 1. Padded experts are never chosen.
    """
    expert_dim, k = step.inputs[0].names.index("E"), context.sizes["k"]
    logits = jnp.moveaxis(float32(array_of(values[0])), expert_dim, -1)
    real = jnp.arange(logits.shape[-1]) < context.real.get("E", logits.shape[-1])
    weights, experts = lax.top_k(jax.nn.softmax(jnp.where(real, logits, -jnp.inf), axis=-1), k)
    weights = weights / jnp.sum(weights, axis=-1, keepdims=True)
    return jnp.moveaxis(weights, -1, expert_dim), jnp.moveaxis(experts, -1, expert_dim)


def dispatch(step: Step, context: Context, values: Values) -> Values:
    """Fill the slots `[E, C, D]` of this device's experts with their tokens; empty slots are 0."""
    x, choice = arrays_of(values)
    rows = _rows(x, step.inputs[0], "D")
    taken = _slots_taken(_rows(choice, step.inputs[1], "k"), step.outputs[0], context)
    C = capacity(rows.shape[0], context)
    tokens = jax.vmap(jnp.searchsorted, in_axes=(1, None))(taken, jnp.arange(1, C + 1))  # [E, C]
    return (jnp.take(rows, tokens, axis=0, mode="fill", fill_value=0),)


def combine(step: Step, context: Context, values: Values) -> Values:
    """Sum the outputs of each token's experts on this device, times their weights; a partial sum if E is sharded."""
    y, weight, choice = arrays_of(values)
    weights, chosen = (_rows(x, t, "k") for x, t in zip((weight, choice), step.inputs[1:], strict=True))
    experts, C, D = y.shape
    taken = _slots_taken(chosen, step.inputs[0], context)
    expert = chosen - _first_expert(step.inputs[0], context)
    local = jnp.clip(expert, 0, experts - 1)
    slot = jnp.take_along_axis(taken, local, axis=1) - 1
    is_here = (expert == local) & (slot < C)
    rows = jnp.take(y.reshape(-1, D), jnp.where(is_here, local * C + slot, 0), axis=0)
    total = jnp.sum(float32(rows) * jnp.where(is_here, weights, 0)[..., None], axis=1)
    return (_token_dims(total.astype(context.activations), step.outputs[0], step.inputs[1], weight),)


def _rows(x: Array, tensor: Tensor, last: str) -> Array:
    """Reshape to `[tokens, last]`: dim `last` becomes the last one, and the token dims become one."""
    return jnp.moveaxis(x, tensor.names.index(last), -1).reshape(-1, x.shape[tensor.names.index(last)])


def _token_dims(rows: Array, tensor: Tensor, like: Tensor, x: Array) -> Array:
    """Split the one dim of tokens into the token dims of `x`, an array of type `like`; undoes `_rows`."""
    sizes = dict(zip(like.names, x.shape, strict=True))
    split = rows.reshape(*(sizes[d] for d in like.names if d != "k"), -1)
    return jnp.moveaxis(split, -1, tensor.names.index("D"))


def _first_expert(tensor: Tensor, context: Context) -> Array | int:
    """Return the number of the first expert on this device."""
    return context.index(tensor.axes("E")) * context.local(tensor, "E")


def _slots_taken(choice: Array, tensor: Tensor, context: Context) -> Array:
    """Count the taken slots of each expert on this device up to and including each token: `[tokens, E]`."""
    experts = _first_expert(tensor, context) + jnp.arange(context.local(tensor, "E"))
    member = jnp.any(choice[:, :, None] == experts, axis=1)
    return jnp.cumsum(member.astype(jnp.int32), axis=0)


def capacity(tokens: int, context: Context) -> int:
    """Return the slots per expert, C, on one shard of `tokens` tokens.

    C is the mean number tokens * k / E times `context.capacity_factor`, rounded up, and at most `tokens`; without a
    factor it is `tokens`, so that no token is dropped.

    >>> capacity(64, Context(sizes={"k": 2, "E": 8}, capacity_factor=1.25)), capacity(64, Context())
    (20, 64)
    """
    if context.capacity_factor is None:
        return tokens
    mean = tokens * context.sizes["k"] / context.sizes["E"]
    return min(tokens, ceil(mean * context.capacity_factor))


def lookup(step: Step, context: Context, values: Values) -> Values:
    """Look up the tokens' rows of the embedding table; a shard without a row gives 0, a part of a partial sum."""
    token, table = arrays_of(values)
    V, D = (step.inputs[1].names.index(d) for d in "VD")
    row = token - context.index(step.inputs[1].axes("V")) * table.shape[V]
    is_here = (row >= 0) & (row < table.shape[V])
    rows = jnp.take(table, jnp.where(is_here, row, 0), axis=V)
    rows = jnp.moveaxis(rows, token.ndim if D > V else 0, -1)
    return (jnp.where(is_here[..., None], rows, 0).astype(context.activations),)


def arg_max(step: Step, context: Context, values: Values) -> Values:
    """Return the index of the largest logit over all shards of V; among equal ones the lowest index.

    Each shard finds its best, and one AllGather of (value, index) pairs, the values as bits of int32, compares them.
    Padded rows of the vocabulary are never chosen.
    """
    logits, tensor = float32(array_of(values[0])), step.inputs[0]
    vocab_dim, axes = tensor.names.index("V"), tensor.axes("V")
    logits = jnp.moveaxis(logits, vocab_dim, -1)
    number = context.index(axes) * logits.shape[-1] + jnp.arange(logits.shape[-1])
    logits = jnp.where(number < context.real.get("V", context.sizes.get("V", logits.shape[-1])), logits, -jnp.inf)
    best, index = jnp.max(logits, axis=-1), number[jnp.argmax(logits, axis=-1)].astype(jnp.int32)
    if not axes:
        return (index,)
    candidates = lax.all_gather(jnp.stack([lax.bitcast_convert_type(best, jnp.int32), index]), axes)  # [shards, 2, ...]
    scores = lax.bitcast_convert_type(candidates[:, 0], jnp.float32)
    lowest = jnp.where(scores == jnp.max(scores, axis=0), candidates[:, 1], np.iinfo(np.int32).max)
    return (jnp.min(lowest, axis=0),)


def last(step: Step, context: Context, values: Values) -> Values:
    """Return the entry of each sequence's last token, at position length - 1; 0 if another shard of T has it."""
    x, tensor = array_of(values[0]), step.inputs[0]
    B, T = (tensor.names.index(d) for d in "BT")
    pos = context.cut(context.cut(context.replicated["pos"], 0, tensor.axes("B")), 1, tensor.axes("T"))
    ends = context.cut(context.replicated["lengths"], 0, tensor.axes("B")) - 1
    is_last = pos == ends[:, None]  # [B, T]
    x = jnp.moveaxis(x, (B, T), (0, 1))
    rows = jnp.take_along_axis(x, jnp.argmax(is_last, axis=1).reshape(-1, *(1,) * (x.ndim - 1)), axis=1)[:, 0]
    rows = jnp.where(jnp.any(is_last, axis=1).reshape(-1, *(1,) * (rows.ndim - 1)), rows, 0)
    return (jnp.moveaxis(rows, 0, [d for d in tensor.names if d != "T"].index("B")),)
