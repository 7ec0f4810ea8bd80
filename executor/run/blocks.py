"""Attention in blocks of queries and keys, never with the whole matrix of scores."""

from __future__ import annotations

from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import lax

from executor.run.context import Array, Context, subscripts

Names = tuple[str, ...]

TINY = float(np.finfo(np.float32).tiny)
LANES = 128
SCORES_BYTES = 2**27  # of a block, in float32
LEAST = -1e30  # below every score; finite, so that a difference of two of them is 0


class State(NamedTuple):
    """Attention so far, in float32: the sum of exp(score - top) * value, the top score, the sum of exp(score - top)."""

    output: Array  # [B, K, M, T, H]
    top: Array  # [B, K, M, T]
    total: Array  # [B, K, M, T]


class Keys(NamedTuple):
    """Keys and values in the order in which they are stored, and the keys' positions `[B, S]`."""

    k: Array
    v: Array
    positions: Array


def _largest_block(block: int, heads: int) -> int:
    """The block, halved until the scores of all heads of all sequences fit.

    >>> _largest_block(512, 32), _largest_block(512, 16 * 32)
    (512, 256)
    """
    while block > LANES and 4 * heads * block**2 > SCORES_BYTES:
        block //= 2
    return block


class Blocks:
    """Queries `[B, T, K, M, H]` in blocks along T, which attend to keys that come at once or shard by shard."""

    def __init__(self, context: Context, names: Names, q: Array, pos: Array) -> None:
        self.context, self.names, self.T = context, names, q.shape[1]
        self.most = _largest_block(context.block, q.size // (self.T * q.shape[-1]))
        self.block = min(self.most, self.T)
        self.q = _padded(q, 1, self.block, 0)
        self.positions = _padded(pos if pos.ndim == 2 else pos[:, None], 1, self.block, -1)

    def start(self) -> State:
        """Nothing attended yet."""
        return self._nothing(self.q.shape[1], jnp.dtype("float32"))

    def _nothing(self, T: int, dtype: jnp.dtype) -> State:
        B, _, K, M, H = self.q.shape
        top = jnp.full((B, K, M, T), LEAST, jnp.float32)
        return State(jnp.zeros((B, K, M, T, H), dtype), top, jnp.zeros_like(top))

    def attend_all(self, keys: Keys) -> State:
        """The normalised state after these keys, which are all: what is in float32 does not outlive its block."""
        nothing, keys = self._nothing(self.block, jnp.dtype("float32")), self._filled(keys)
        if self.block == self.T:
            return self.normalised(self._scan(nothing, self.q, self.positions, keys))

        def one(i: Array, so_far: State) -> State:
            state = self._scan(nothing, *self._at(i), keys)
            return self._put(so_far, self.normalised(state), i)

        start = self._nothing(self.q.shape[1], self.context.activations)
        return self._whole(lax.fori_loop(0, self._count, one, start))

    def attend(self, state: State, keys: Keys) -> State:
        """The state after these keys; others may follow."""
        keys = self._filled(keys)
        if self.block == self.T:
            return self._scan(state, self.q, self.positions, keys)

        def one(i: Array, state: State) -> State:
            part = State(*(lax.dynamic_slice_in_dim(x, i * self.block, self.block, 3) for x in state))
            return self._put(state, self._scan(part, *self._at(i), keys), i)

        state_: State = lax.fori_loop(0, self._count, one, state)
        return state_

    def _key_block(self, keys: Keys) -> int:
        S = keys.positions.shape[1]
        return S if self.T == 1 else min(self.most, S)

    def _filled(self, keys: Keys) -> Keys:
        """Keys in whole blocks; positions below 0 are seen by nobody."""
        where, block = self.names.index("S"), self._key_block(keys)
        k, v = (_padded(x, where, block, 0) for x in (keys.k, keys.v))
        return Keys(k, v, _padded(keys.positions, 1, block, -1))

    @property
    def _count(self) -> int:
        return self.q.shape[1] // self.block

    def _at(self, i: Array) -> tuple[Array, Array]:
        """Queries and positions of block i."""
        q, pos = (lax.dynamic_slice_in_dim(x, i * self.block, self.block, 1) for x in (self.q, self.positions))
        return q, pos

    def _put(self, state: State, part: State, i: Array) -> State:
        """The state of all blocks with that of block i, in place."""
        pairs = zip(state, part, strict=True)
        return State(*(lax.dynamic_update_slice_in_dim(x, new, i * self.block, 3) for x, new in pairs))

    def normalised(self, state: State) -> State:
        """The weighted mean of the values for their weighted sum, in the dtype of activations."""
        output = state.output / jnp.maximum(state.total, TINY)[..., None]
        return State(output.astype(self.context.activations), state.top, state.total)

    def finish(self, state: State) -> State:
        """The normalised state."""
        return self._whole(self.normalised(state))

    def _whole(self, state: State) -> State:
        """Without what filled up the last block."""
        return State(*(x[:, :, :, : self.T] for x in state))

    def _scan(self, state: State, q: Array, pos: Array, keys: Keys) -> State:
        """One block of queries against every block of keys that it sees."""
        where, block = self.names.index("S"), self._key_block(keys)
        count = keys.positions.shape[1] // block
        if count == 1:
            return self._absorb(state, q, pos, keys)

        def visit(state: State, i: Array) -> tuple[State, None]:
            axes = zip(keys, (where, where, 1), strict=True)
            part = Keys(*(lax.dynamic_slice_in_dim(x, i * block, block, axis) for x, axis in axes))
            seen = jnp.any(self._visible(pos, part.positions))
            return lax.cond(seen, lambda s: self._absorb(s, q, pos, part), lambda s: s, state), None

        last: State = lax.scan(visit, state, jnp.arange(count))[0]
        return last

    def _visible(self, pos: Array, keys: Array) -> Array:
        age = pos[:, :, None] - keys[:, None, :]  # [B, T, S]
        seen = (age >= 0) & (keys >= 0)[:, None, :]
        return seen if self.context.window is None else seen & (age < self.context.window)

    def _absorb(self, state: State, q: Array, pos: Array, keys: Keys) -> State:
        scores = self._product("BTKMH", self.names, "BKMTS", q, keys.k) * q.shape[-1] ** -0.5
        seen = self._visible(pos, keys.positions)[:, None, None]
        top = jnp.maximum(state.top, jnp.max(jnp.where(seen, scores, LEAST), axis=-1))
        weights = jnp.where(seen, jnp.exp(scores - top[..., None]), 0.0)
        kept = jnp.exp(state.top - top)
        output = self._product("BKMTS", self.names, "BKMTH", weights, keys.v)
        return State(state.output * kept[..., None] + output, top, state.total * kept + weights.sum(-1))

    def _product(self, a: str, b: Names, out: str, x: Array, y: Array) -> Array:
        x, y = x.astype(self.context.compute), y.astype(self.context.compute)
        return jnp.einsum(subscripts(a, b, out), x, y, preferred_element_type=jnp.float32)


def _padded(x: Array, dim: int, block: int, value: int) -> Array:
    """`dim` filled up to a multiple of the block."""
    extra = -x.shape[dim] % block
    widths = [(0, extra if n == dim else 0) for n in range(x.ndim)]
    return jnp.pad(x, widths, constant_values=value) if extra else x
