"""The context of a step: sizes, constants, and this device's place in the mesh."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from mesh.errors import InputError
from strategies.notation import Axes, Tensor

Array = jax.Array
untyped: Any = lax  # its collectives have no types


class SoftmaxState(NamedTuple):
    """A softmax over a part of the keys, `{A}`: its output (normalised over that part), and its scores' max and sum.

    `output` has H last; `top` and `total` lack it and are float32. Without a visible key `total` and `output` are 0.
    """

    output: Array
    top: Array
    total: Array


class Stacked(NamedTuple):
    """Layer `layer` of a tensor that is stored as `[L, ...]`: a cache that is written in place."""

    array: Array
    layer: Array


Value = Array | SoftmaxState | Stacked


@dataclass(frozen=True)
class Context:
    """`axes`: sizes of the mesh axes, in the mesh's order; `sizes`: whole dims after padding; `real`: before it.

    `whole` holds what is given whole to every device and cut by each step: `pos` (`[B]`, or `[B, T]` in the order
    in which T is stored) and `lengths` `[B]`. `capacity_factor`: slots per expert over the mean; None: as many as
    tokens. `sequence`: which positions a shard of a cache holds. `block`: queries and keys attended at once. `caches`:
    the dtypes of cache tensors by name.
    """

    axes: Mapping[str, int] = field(default_factory=dict)
    sizes: Mapping[str, int] = field(default_factory=dict)
    real: Mapping[str, int] = field(default_factory=dict)
    whole: Mapping[str, Array] = field(default_factory=dict)
    activations: jnp.dtype = field(default_factory=lambda: jnp.dtype("float32"))
    compute: jnp.dtype = field(default_factory=lambda: jnp.dtype("float32"))
    eps: float = 1e-5
    theta: float = 10000.0
    window: int | None = None
    capacity_factor: float | None = None
    sequence: str = "striped"
    block: int = 512
    caches: Mapping[str, jnp.dtype] = field(default_factory=dict)

    def count(self, axes: Axes) -> int:
        """Devices over which these axes cut."""
        return prod(self.axes[axis] for axis in axes)

    def index(self, axes: Axes) -> Array | int:
        """Return the index of this device's shard among those that these axes (major first) make."""
        index: Array | int = 0
        for axis in axes:
            index = index * self.axes[axis] + lax.axis_index(axis)
        return index

    def local(self, tensor: Tensor, dim: str) -> int:
        """Size of a dim of the tensor on one device."""
        return self.sizes[dim] // self.count(tensor.axes(dim))

    def cut(self, x: Array, dim: int, axes: Axes) -> Array:
        """This device's shard of dim number `dim`, which is whole here."""
        if not axes:
            return x
        size = x.shape[dim] // self.count(axes)
        part: Array = lax.dynamic_slice_in_dim(x, self.index(axes) * size, size, dim)
        return part

    def shard(self, x: Array, tensor: Tensor) -> Array:
        """This device's shard of a whole array of this type."""
        for number, dim in enumerate(tensor.dims):
            x = self.cut(x, number, dim.axes)
        return x


def plain(value: Value) -> Array:
    """The array of a value, a stacked layer taken out; raises `InputError` on a softmax triple."""
    if isinstance(value, SoftmaxState):
        raise InputError("a softmax triple {A} can only be split, merged or combined; use AttendReduce first")
    if isinstance(value, Stacked):
        layer: Array = lax.dynamic_index_in_dim(value.array, value.layer, 0, keepdims=False)
        return layer
    return value


def plains(values: Sequence[Value]) -> tuple[Array, ...]:
    """`plain` of each."""
    return tuple(plain(value) for value in values)


def wide(x: Array) -> Array:
    """The array in float32."""
    return x.astype(jnp.float32)


def subscripts(*names: Sequence[str]) -> str:
    """Subscripts for einsum: the last tensor's dims are the result's.

    >>> subscripts("BD", "DF", "BF")
    'ab,bc->ac'
    """
    letters: dict[str, str] = {}
    words = ["".join(letters.setdefault(n, chr(ord("a") + len(letters))) for n in dims) for dims in names]
    return ",".join(words[:-1]) + "->" + words[-1]
