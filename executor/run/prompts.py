"""Prompts: the order in which their positions are stored, and the insertion of prefill's caches into decode's."""

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
    """The KV caches that a prefill returns, ready to be inserted into a decode engine.

    `cache`: the cache tensors of each component, stacked over layers. `positions`: the position of each token, `[T]`,
    in the order in which T is stored. `lengths`: the prompts' lengths, `[B]`. `dims`: the names of the dims of each
    component's cache tensors, without the layers.
    """

    cache: Tree
    positions: Array
    lengths: Array
    dims: tuple[tuple[str, tuple[str, ...]], ...] = field(metadata={"static": True})


def zigzag(T: int, shards: int) -> np.ndarray[Any, Any]:
    """Return the positions of a prompt in zigzag order: of 2n chunks, shard i of n has chunks i and 2n - 1 - i.

    With causal attention, later positions see more keys; this order gives each shard of a ring equal work. The order
    is 0, 1, ... if T cannot be divided into 2n equal chunks.

    >>> zigzag(8, 2).tolist()
    [0, 1, 6, 7, 2, 3, 4, 5]
    """
    if T % (2 * shards):
        return np.arange(T)
    chunks = np.arange(T).reshape(2 * shards, -1)
    return np.concatenate([chunks[[i, 2 * shards - 1 - i]].reshape(-1) for i in range(shards)])


def stored_slots(stored: Stored, context: Context) -> Array:
    """Return the slot numbers of a cache's dim S in the order of the whole array: shard after shard."""
    n = context.count(stored.type.axes("S"))
    return jnp.concatenate([slots(i, n, context.sizes["S"] // n, context.sequence) for i in range(n)])


def insert_all(
    cache: Tree,
    prompts: Prefilled,
    places: Array,
    stored: Mapping[str, Mapping[str, Stored]],
    contexts: Mapping[str, Context],
) -> Tree:
    """Return the caches with prompt i written into row `places[i]` of the batch.

    `stored` and `contexts` describe the cache tensors and their components by name.
    """

    def insert_one(c: str, n: str, x: Array) -> Array:
        return _insert(x, prompts, _like(stored[c][n], prompts, c, n), places, stored[c][n], contexts[c])

    return {c: {n: insert_one(c, n, x) for n, x in tree.items()} for c, tree in cache.items()}


def _like(stored: Stored, prompts: Prefilled, component: str, name: str) -> Array:
    """Return a prompt's cache transposed to the order of dims of the cache that receives it."""
    dims = dict(prompts.dims)[component]
    return prompts.cache[component][name].transpose(0, *(1 + dims.index(d) for d in stored.type.names))


def _insert(
    x: Array, prompts: Prefilled, prompt_cache: Array, places: Array, stored: Stored, context: Context
) -> Array:
    """Write the prompts into one cache tensor; each slot takes the last position that it is responsible for.

    Slots that no position has reached yet get arbitrary entries, which no query sees.
    """
    B, S = (stored.type.names.index(d) + 1 for d in "BS")
    order, slot = jnp.argsort(prompts.positions), stored_slots(stored, context)

    def insert_one(i: Array, x: Array) -> Array:
        positions = last_written(slot, prompts.lengths[i] - 1, slot.shape[0])
        entry = lax.dynamic_slice_in_dim(prompt_cache, i, 1, B)
        entry = jnp.take(entry, order[jnp.maximum(positions, 0)], axis=S, mode="clip").astype(x.dtype)
        inserted: Array = lax.dynamic_update_slice_in_dim(x, entry, places[i], B)
        return inserted

    filled: Array = lax.fori_loop(0, places.shape[0], insert_one, x)
    return filled
