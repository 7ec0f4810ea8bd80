"""Attention of the automatic mode on whole arrays: the cache's update, rotations, and softmax block by block."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
from jax import lax

from executor.run.blocks import MASKED_SCORE, TINY
from executor.run.context import Array, Context, float32

State = tuple[Array, Array, Array]  # output [B, K, M, T, H], top score and sum of weights [B, K, M, T], in float32


def update(cache: Array, names: tuple[str, ...], new: Array, index: Array, at: Array) -> Array:
    """The layer's entry of each sequence replaced at `at` [B].

    A choice among all slots is what XLA fuses and cuts along B and S alike. It keeps the buffer but reads and writes
    the layer's whole cache; one dynamic_update_slice per sequence would write a slot, but gathers the new entries of
    all devices and makes the TPU copy the cache into another order of dims.
    """
    S = names.index("S")
    new = new.transpose(0, *("BKH".index(d) for d in names if d not in "BS"))
    layer = lax.dynamic_index_in_dim(cache, index, 0, keepdims=False)
    slots = jnp.arange(layer.shape[S]).reshape([-1 if d == "S" else 1 for d in names])
    ours = slots == at.reshape([-1 if d == "B" else 1 for d in names])
    layer = jnp.where(ours, jnp.expand_dims(new, S), layer)
    updated: Array = lax.dynamic_update_index_in_dim(cache, layer, index, 0)
    return updated


def rope(x: Array, pos: Array, context: Context) -> Array:
    """Turns the pairs (i, i + H/2) of `[..., heads, H]` by pos * theta^(-2i/H)."""
    half = x.shape[-1] // 2
    angles = float32(pos)[..., None, None] * context.theta ** (-jnp.arange(half, dtype=jnp.float32) / half)
    left, right, cos, sin = float32(x[..., :half]), float32(x[..., half:]), jnp.cos(angles), jnp.sin(angles)
    return jnp.concatenate([left * cos - right * sin, right * cos + left * sin], axis=-1).astype(x.dtype)


def attend(q: Array, k: Array, v: Array, pos: Array, at: Array, context: Context) -> Array:
    """`[B, (T,) K, M, H]` queries at `pos` [B, T] on keys `[B, S, K, H]` at `at` [B, S]."""
    decode = q.ndim == 4
    q = q[:, None] if decode else q
    S = k.shape[1]
    block = S if decode else _divisor(S, context.block)
    B, T, K, M, H = q.shape
    top = jnp.full((B, K, M, T), MASKED_SCORE, jnp.float32)
    state = (jnp.zeros((B, K, M, T, H), jnp.float32), top, jnp.zeros_like(top))

    def visit(state: Any, i: Array) -> tuple[Any, None]:
        part = [lax.dynamic_slice_in_dim(x, i * block, block, 1) for x in (k, v, at)] if block < S else [k, v, at]
        return _absorbed(state, q, pos, part[0], part[1], part[2], context), None

    state = visit(state, jnp.int32(0))[0] if block == S else lax.scan(visit, state, jnp.arange(S // block))[0]
    attended: Array = (
        (state[0] / jnp.maximum(state[2], TINY)[..., None]).transpose(0, 3, 1, 2, 4).astype(context.activations)
    )
    return attended[:, 0] if decode else attended


def _divisor(size: int, least: int) -> int:
    return max(d for d in range(1, min(size, least) + 1) if size % d == 0)


def _absorbed(state: State, q: Array, pos: Array, k: Array, v: Array, at: Array, context: Context) -> State:
    def product(text: str, x: Array, y: Array) -> Array:
        return jnp.einsum(
            text, x.astype(context.compute), y.astype(context.compute), preferred_element_type=jnp.float32
        )

    scores = product("btkmh,bskh->bkmts", q, k) * q.shape[-1] ** -0.5
    age = pos[:, :, None] - at[:, None, :]
    seen = (age >= 0) & (at >= 0)[:, None] & (True if context.window is None else age < context.window)
    seen = seen[:, None, None]
    top = jnp.maximum(state[1], jnp.max(jnp.where(seen, scores, MASKED_SCORE), axis=-1))
    weights = jnp.where(seen, jnp.exp(scores - top[..., None]), 0.0)
    kept = jnp.exp(state[1] - top)
    return (
        state[0] * kept[..., None] + product("bkmts,bskh->bkmth", weights, v),
        top,
        state[2] * kept + weights.sum(-1),
    )
