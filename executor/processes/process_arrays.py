"""Arrays and devices of several processes: each holds the shards on its own devices, and no others.

With one process these are `jax.device_put`, `numpy.asarray` and the first devices.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from executor.devices import Unavailable


def put(tree: Any, shardings: Any) -> Any:
    """Values, which every process has, where their shardings want them; trees of equal structure."""
    if all(s.is_fully_addressable for s in jax.tree.leaves(shardings)):
        return jax.device_put(tree, shardings)
    return jax.tree.map(_place_own_shards, tree, shardings)


def _place_own_shards(x: Any, sharding: jax.sharding.Sharding) -> jax.Array:
    if isinstance(x, jax.Array) and not x.is_fully_addressable:
        placed: jax.Array = jax.device_put(x, sharding)
        return placed
    value = np.asarray(x)
    return jax.make_array_from_callback(value.shape, sharding, lambda index: value[index])


def fetch(x: Any) -> np.ndarray[Any, Any]:
    """The whole array in every process; where others hold parts of it, all of them must ask at the same time."""
    if isinstance(x, jax.Array) and not x.is_fully_addressable:
        from jax.experimental import multihost_utils

        x = multihost_utils.process_allgather(x, tiled=True)
    return np.asarray(x)


def share(devices: Sequence[jax.Device], count: int) -> list[jax.Device]:
    """`wanted` devices, as many of each process as can be, process after process.

    Raises `Unavailable` where there are too few, or a process would have none.
    """
    owners = sorted({device.process_index for device in devices})
    if count < len(owners):
        raise Unavailable(f"its copy has devices for {count} of the {len(owners)} processes: start at most {count}")
    chosen = []
    for number, owner in enumerate(owners):
        part = count // len(owners) + (number < count % len(owners))
        chosen += [device for device in devices if device.process_index == owner][:part]
    if len(chosen) < count:
        where = f" in {len(owners)} processes" if len(owners) > 1 else ""
        raise Unavailable(
            f"needs {count} host devices{where}, there are {len(devices)}: "
            f"set XLA_FLAGS=--xla_force_host_platform_device_count={-(-count // len(owners))}"
        )
    return chosen


def lost_others(error: Exception) -> bool:
    """Return whether this says that processes cannot reach each other, which is no plan's fault."""
    return "Gloo" in str(error)
