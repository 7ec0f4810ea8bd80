"""Attention in blocks of queries and keys, so that the matrix of scores `[T, S]` is never stored as a whole.

The softmax is accumulated block by block, as in FlashAttention: each block of keys may raise the top score, and the
sums so far are then rescaled to it.
"""

from __future__ import annotations

from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import lax

from executor.run.context import Array, Context, subscripts

Names = tuple[str, ...]

TINY = float(np.finfo(np.float32).tiny)
LANES = 128
SCORES_BYTES = 2**27  # the most bytes that one block of float32 scores may take
MASKED_SCORE = -1e30  # below every score, yet finite, so that the difference of two of them is 0


class SoftmaxSum(NamedTuple):
    """An attention softmax over the keys seen so far.

    `output`: the sum of exp(score - top) * value. `top`: the largest score. `total`: the sum of exp(score - top).
    All are float32, except that a normalised `output` (divided by `total`) has the dtype of the activations.
    """

    output: Array  # [B, K, M, T, H]
    top: Array  # [B, K, M, T]
    total: Array  # [B, K, M, T]


class Keys(NamedTuple):
    """Keys and values in their stored order of dims, and the keys' positions `[B, S]`; a negative one is masked."""

    k: Array
    v: Array
    positions: Array


def _largest_block(block: int, heads: int) -> int:
    """Halve the block while it exceeds `LANES` and the scores of all heads and sequences exceed `SCORES_BYTES`.

    >>> _largest_block(512, 32), _largest_block(512, 16 * 32)
    (512, 256)
    """
    while block > LANES and 4 * heads * block**2 > SCORES_BYTES:
        block //= 2
    return block


class Blocks:
    """Attention of the queries `[B, T, K, M, H]`, in blocks along T.

    `attend_all` takes all keys at once. Ring attention calls `start`, then `attend` with each shard of the keys, then
    `finish`. `names` are the dims of the keys in their stored order; `pos` are the queries' positions, `[B]` or
    `[B, T]`.
    """

    def __init__(self, context: Context, names: Names, q: Array, pos: Array) -> None:
        self.context, self.names, self.T = context, names, q.shape[1]
        self.largest_block = _largest_block(context.block, q.size // (self.T * q.shape[-1]))
        self.block = min(self.largest_block, self.T)
        self.q = _padded(q, 1, self.block, 0)
        self.positions = _padded(pos if pos.ndim == 2 else pos[:, None], 1, self.block, -1)

    def start(self) -> SoftmaxSum:
        """Return the state before any key: outputs and totals of 0, top scores below every score."""
        return self._empty(self.q.shape[1], jnp.dtype("float32"))

    def _empty(self, T: int, dtype: jnp.dtype) -> SoftmaxSum:
        B, _, K, M, H = self.q.shape
        top = jnp.full((B, K, M, T), MASKED_SCORE, jnp.float32)
        return SoftmaxSum(jnp.zeros((B, K, M, T, H), dtype), top, jnp.zeros_like(top))

    def attend_all(self, keys: Keys) -> SoftmaxSum:
        """Return the normalised state after these keys, which are all of them.

        Each block is normalised at once, so that only one block at a time has its output in float32.
        """
        nothing, keys = self._empty(self.block, jnp.dtype("float32")), self._padded_keys(keys)
        if self.block == self.T:
            return self.normalised(self._scan(nothing, self.q, self.positions, keys))

        def attend_block(block_number: Array, states: SoftmaxSum) -> SoftmaxSum:
            state = self._scan(nothing, *self._query_block(block_number), keys)
            return self._store_block(states, self.normalised(state), block_number)

        start = self._empty(self.q.shape[1], self.context.activations)
        return self._without_padding(lax.fori_loop(0, self._count, attend_block, start))

    def attend(self, state: SoftmaxSum, keys: Keys) -> SoftmaxSum:
        """Return the state after these keys; more keys may follow."""
        keys = self._padded_keys(keys)
        if self.block == self.T:
            return self._scan(state, self.q, self.positions, keys)

        def attend_block(block_number: Array, state: SoftmaxSum) -> SoftmaxSum:
            part = SoftmaxSum(*(lax.dynamic_slice_in_dim(x, block_number * self.block, self.block, 3) for x in state))
            return self._store_block(state, self._scan(part, *self._query_block(block_number), keys), block_number)

        states: SoftmaxSum = lax.fori_loop(0, self._count, attend_block, state)
        return states

    def _key_block(self, keys: Keys) -> int:
        S = keys.positions.shape[1]
        return S if self.T == 1 else min(self.largest_block, S)

    def _padded_keys(self, keys: Keys) -> Keys:
        """Return the keys padded to whole blocks; the padding has position -1, which no query sees."""
        seq_axis, block = self.names.index("S"), self._key_block(keys)
        k, v = (_padded(x, seq_axis, block, 0) for x in (keys.k, keys.v))
        return Keys(k, v, _padded(keys.positions, 1, block, -1))

    @property
    def _count(self) -> int:
        return self.q.shape[1] // self.block

    def _query_block(self, i: Array) -> tuple[Array, Array]:
        """Return the queries and positions of block i."""
        q, pos = (lax.dynamic_slice_in_dim(x, i * self.block, self.block, 1) for x in (self.q, self.positions))
        return q, pos

    def _store_block(self, state: SoftmaxSum, part: SoftmaxSum, i: Array) -> SoftmaxSum:
        """Return the state of all blocks with block i replaced, in place."""
        pairs = zip(state, part, strict=True)
        return SoftmaxSum(*(lax.dynamic_update_slice_in_dim(x, new, i * self.block, 3) for x, new in pairs))

    def normalised(self, state: SoftmaxSum) -> SoftmaxSum:
        """Divide the output by `total`, which turns the weighted sum of values into their mean, and cast it.

        The output gets the dtype of the activations; a query that sees no key gets 0.
        """
        output = state.output / jnp.maximum(state.total, TINY)[..., None]
        return SoftmaxSum(output.astype(self.context.activations), state.top, state.total)

    def finish(self, state: SoftmaxSum) -> SoftmaxSum:
        """Return the normalised state `[B, K, M, T, ...]`, without the queries that padded the last block."""
        return self._without_padding(self.normalised(state))

    def _without_padding(self, state: SoftmaxSum) -> SoftmaxSum:
        """Drop the queries that padded the last block."""
        return SoftmaxSum(*(x[:, :, :, : self.T] for x in state))

    def _scan(self, state: SoftmaxSum, q: Array, pos: Array, keys: Keys) -> SoftmaxSum:
        """Attend one block of queries to every block of keys in which it sees a key."""
        seq_axis, block = self.names.index("S"), self._key_block(keys)
        count = keys.positions.shape[1] // block
        if count == 1:
            return self._absorb(state, q, pos, keys)

        def visit(state: SoftmaxSum, i: Array) -> tuple[SoftmaxSum, None]:
            axes = zip(keys, (seq_axis, seq_axis, 1), strict=True)
            part = Keys(*(lax.dynamic_slice_in_dim(x, i * block, block, axis) for x, axis in axes))
            any_visible = jnp.any(self._visible(pos, part.positions))
            return lax.cond(any_visible, lambda s: self._absorb(s, q, pos, part), lambda s: s, state), None

        final: SoftmaxSum = lax.scan(visit, state, jnp.arange(count))[0]
        return final

    def _visible(self, pos: Array, keys: Array) -> Array:
        """Return whether query t sees key s, `[B, T, S]`: not later than t, and inside the sliding window."""
        age = pos[:, :, None] - keys[:, None, :]  # [B, T, S]
        visible = (age >= 0) & (keys >= 0)[:, None, :]
        return visible if self.context.window is None else visible & (age < self.context.window)

    def _absorb(self, state: SoftmaxSum, q: Array, pos: Array, keys: Keys) -> SoftmaxSum:
        """Add one block of keys to the state, rescaling it to the new top score."""
        scores = self._product("BTKMH", self.names, "BKMTS", q, keys.k) * q.shape[-1] ** -0.5
        visible = self._visible(pos, keys.positions)[:, None, None]
        top = jnp.maximum(state.top, jnp.max(jnp.where(visible, scores, MASKED_SCORE), axis=-1))
        weights = jnp.where(visible, jnp.exp(scores - top[..., None]), 0.0)
        rescale = jnp.exp(state.top - top)
        output = self._product("BKMTS", self.names, "BKMTH", weights, keys.v)
        return SoftmaxSum(state.output * rescale[..., None] + output, top, state.total * rescale + weights.sum(-1))

    def _product(self, a: str, b: Names, out: str, x: Array, y: Array) -> Array:
        x, y = x.astype(self.context.compute), y.astype(self.context.compute)
        return jnp.einsum(subscripts(a, b, out), x, y, preferred_element_type=jnp.float32)


def _padded(x: Array, dim: int, block: int, value: int) -> Array:
    """Pad dim number `dim` with `value` to a multiple of the block."""
    extra = -x.shape[dim] % block
    widths = [(0, extra if n == dim else 0) for n in range(x.ndim)]
    return jnp.pad(x, widths, constant_values=value) if extra else x
