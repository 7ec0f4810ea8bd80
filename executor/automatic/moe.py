"""Mixture of experts of the automatic mode: one shard of the tokens, as `jax.vmap` sees it.

Expert e has C slots on each shard of the tokens: the c-th token of the shard, in order, that chose e has slot c.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import lax

from executor.run.context import Array, Context, float32
from executor.run.steps_moe import capacity


def routed(logits: Array, context: Context) -> tuple[Array, Array]:
    """`[..., E]` -> weights and numbers `[..., k]` of the k best experts; padded experts are never chosen.

    They are sorted: of `lax.top_k` XLA's CPU compiler first gathers all tokens.
    """
    number = lax.broadcasted_iota(jnp.int32, logits.shape, logits.ndim - 1)
    shares = jax.nn.softmax(jnp.where(number < context.real["E"], float32(logits), -jnp.inf), axis=-1)
    least, order = lax.sort((-shares, number), num_keys=1)  # equal shares: the lowest number first
    weights, experts = -least[..., : context.sizes["k"]], order[..., : context.sizes["k"]]
    return weights / jnp.sum(weights, axis=-1, keepdims=True), experts


def slots_of(experts: Array, context: Context) -> Array:
    """`[tokens, k]` -> the token `[E, C]` in each slot; in an empty one a number beyond the tokens."""
    chosen = jnp.any(experts[:, :, None] == jnp.arange(context.sizes["E"]), axis=1)
    taken = jnp.cumsum(chosen.astype(jnp.int32), axis=0)  # [tokens, E]
    slots = jnp.arange(1, capacity(experts.shape[0], context) + 1)
    return jax.vmap(jnp.searchsorted, in_axes=(1, None))(taken, slots)


def dispatched(n: Array, slots: Array) -> Array:
    """`[tokens, D]` -> `[E, C, D]`; empty slots are 0."""
    return jnp.take(n, slots, axis=0, mode="fill", fill_value=0)


def combined(y: Array, slots: Array, weights: Array, experts: Array) -> Array:
    """`[E, C, D]` -> each token's weighted sum `[tokens, D]`: rows are added where they belong."""
    E = jnp.arange(slots.shape[0])[:, None, None]
    ours = jnp.take(experts, slots, axis=0, mode="fill", fill_value=-1) == E  # [E, C, k]
    share = jnp.sum(jnp.where(ours, jnp.take(weights, slots, axis=0, mode="fill", fill_value=0), 0), axis=-1)
    rows = (float32(y) * share[..., None]).astype(y.dtype)
    return jnp.zeros((experts.shape[0], y.shape[-1]), y.dtype).at[slots].add(rows, mode="drop")
