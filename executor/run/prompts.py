"""Prompts: the order in which their positions are stored, and their way from prefill's caches into those of decode."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from executor.run.context import Array, Context
from executor.run.runnable import Stored
from executor.run.steps_attention import last_written, slots

Tree = dict[str, dict[str, Array]]


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Prefilled:
    """Caches of prompts, stacked over layers: `positions` `[T]` in the order in which T is stored; `lengths` `[B]`.

    `dims`: of each component's cache tensors, without the layers.
    """

    cache: Tree
    positions: Array
    lengths: Array
    dims: tuple[tuple[str, tuple[str, ...]], ...] = field(metadata={"static": True})


def zigzag(T: int, shards: int) -> np.ndarray[Any, Any]:
    """Positions in the order of storage: of 2n chunks, shard i has chunks i and 2n - 1 - i.

    They stay as they come where T has no 2n equal chunks.

    >>> zigzag(8, 2).tolist()
    [0, 1, 6, 7, 2, 3, 4, 5]
    """
    if T % (2 * shards):
        return np.arange(T)
    chunks = np.arange(T).reshape(2 * shards, -1)
    return np.concatenate([chunks[[i, 2 * shards - 1 - i]].reshape(-1) for i in range(shards)])


def stored_slots(stored: Stored, context: Context) -> Array:
    """The slots of a cache in the order in which the whole array has them: shard after shard."""
    n = context.count(stored.type.axes("S"))
    return jnp.concatenate([slots(i, n, context.sizes["S"] // n, context.sequence) for i in range(n)])


def insert_all(
    cache: Tree,
    prompts: Prefilled,
    places: Array,
    stored: Mapping[str, Mapping[str, Stored]],
    contexts: Mapping[str, Context],
) -> Tree:
    """Every cache with the prompts in their places."""

    def one(c: str, n: str, x: Array) -> Array:
        return _insert(x, prompts, _like(stored[c][n], prompts, c, n), places, stored[c][n], contexts[c])

    return {c: {n: one(c, n, x) for n, x in tree.items()} for c, tree in cache.items()}


def _like(stored: Stored, prompts: Prefilled, component: str, name: str) -> Array:
    """A prompt's cache with its dims in the order of the cache it goes to."""
    dims = dict(prompts.dims)[component]
    return prompts.cache[component][name].transpose(0, *(1 + dims.index(d) for d in stored.type.names))


def _insert(x: Array, prompts: Prefilled, rows: Array, places: Array, stored: Stored, context: Context) -> Array:
    """Slot s of a sequence takes the last position of its class; slots without one keep what nobody reads."""
    B, S = (stored.type.names.index(d) + 1 for d in "BS")
    order, slot = jnp.argsort(prompts.positions), stored_slots(stored, context)

    def one(i: Array, x: Array) -> Array:
        positions = last_written(slot, prompts.lengths[i] - 1, slot.shape[0])
        row = lax.dynamic_slice_in_dim(rows, i, 1, B)
        row = jnp.take(row, order[jnp.maximum(positions, 0)], axis=S, mode="clip").astype(x.dtype)
        updated: Array = lax.dynamic_update_slice_in_dim(x, row, places[i], B)
        return updated

    filled: Array = lax.fori_loop(0, places.shape[0], one, x)
    return filled
