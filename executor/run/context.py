"""The context of a step: dim sizes, constants of the model, and this device's place in the mesh."""

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
    """The softmax state `{A}` of attention over one shard of the keys, before the shards are combined.

    `output`: the attention output, normalised over this shard, with H as its last dim. `top`: the largest score;
    `total`: the sum of exp(score - top). Both lack H and are float32. Without a visible key `total` and `output` are 0.
    """

    output: Array
    top: Array
    total: Array


class Stacked(NamedTuple):
    """Layer number `layer` of a tensor that is stored as `[L, ...]`, such as a KV cache that is written in place."""

    array: Array
    layer: Array


Value = Array | SoftmaxState | Stacked


@dataclass(frozen=True)
class Context:
    """The sizes and constants that a step needs besides its tensors.

    `axes`: the size of each mesh axis, in the mesh's order. `sizes`: the global size of each dim after padding;
    `real`: the sizes of V and E before padding. `replicated`: arrays that every device has as a whole and that each
    step cuts for itself: `pos` (`[B]` in decode, `[B, T]` in prefill, T in its stored order) and `lengths` `[B]`.

    `activations`, `compute`: the dtypes of activations and of matmul inputs. `eps`: epsilon of the norms. `theta`: base
    of the rotary embedding. `window`: the sliding window in tokens; None: full attention. `capacity_factor`: slots per
    expert over the mean number; None: as many slots as tokens, so that none is dropped. `sequence`: `striped` or
    `contiguous`, the slots of a KV cache on each shard (`steps_attention`). `block`: queries and keys per block of
    attention. `caches`: the dtypes of cache tensors by name.
    """

    axes: Mapping[str, int] = field(default_factory=dict)
    sizes: Mapping[str, int] = field(default_factory=dict)
    real: Mapping[str, int] = field(default_factory=dict)
    replicated: Mapping[str, Array] = field(default_factory=dict)
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
        """Return the number of shards that these mesh axes make: the product of their sizes."""
        return prod(self.axes[axis] for axis in axes)

    def index(self, axes: Axes) -> Array | int:
        """Return the number of this device's shard among those that these mesh axes (major first) make."""
        index: Array | int = 0
        for axis in axes:
            index = index * self.axes[axis] + lax.axis_index(axis)
        return index

    def local(self, tensor: Tensor, dim: str) -> int:
        """Return the size of a dim of the tensor on one device."""
        return self.sizes[dim] // self.count(tensor.axes(dim))

    def cut(self, x: Array, dim: int, axes: Axes) -> Array:
        """Cut dim number `dim` of an array along these mesh axes and return this device's shard."""
        if not axes:
            return x
        size = x.shape[dim] // self.count(axes)
        shard: Array = lax.dynamic_slice_in_dim(x, self.index(axes) * size, size, dim)
        return shard

    def shard(self, x: Array, tensor: Tensor) -> Array:
        """Cut a whole array as its tensor type says and return this device's shard."""
        for number, dim in enumerate(tensor.dims):
            x = self.cut(x, number, dim.axes)
        return x


def array_of(value: Value) -> Array:
    """Return the array of a value; a `Stacked` value gives its layer.

    Raises `InputError` on a softmax state `{A}`, which is no single array.
    """
    if isinstance(value, SoftmaxState):
        raise InputError("a softmax triple {A} can only be split, merged or combined; use AttendReduce first")
    if isinstance(value, Stacked):
        layer: Array = lax.dynamic_index_in_dim(value.array, value.layer, 0, keepdims=False)
        return layer
    return value


def arrays_of(values: Sequence[Value]) -> tuple[Array, ...]:
    """Return `array_of` of each value."""
    return tuple(array_of(value) for value in values)


def float32(x: Array) -> Array:
    """Return the array in float32."""
    return x.astype(jnp.float32)


def subscripts(*names: Sequence[str]) -> str:
    """Return the subscripts of an einsum, given the dims of its inputs and, last, those of its result.

    >>> subscripts("BD", "DF", "BF")
    'ab,bc->ac'
    """
    letters: dict[str, str] = {}
    words = ["".join(letters.setdefault(n, chr(ord("a") + len(letters))) for n in dims) for dims in names]
    return ",".join(words[:-1]) + "->" + words[-1]
