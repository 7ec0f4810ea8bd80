"""Execute every primitive of `strategies.primitives`; `STEPS` maps its name to its function.

Each function takes a step of a bound program, the context, and the local arrays of the step's inputs, and returns the
local arrays of its outputs. A collective step is one collective over all its tensors. The only other communication is
the one that the prices include: the statistics of AttendReduce and AttendScatter, the (value, index) pairs of ArgMax,
and the hops of RingAttend. Matmuls accumulate in float32; results have the dtype of the activations.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from math import gcd, prod

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from executor.run import steps_attention, steps_moe
from executor.run.context import Array, Context, SoftmaxState, Value, array_of, arrays_of, float32, subscripts, untyped
from mesh.errors import InputError
from strategies.notation import Axes, Step, Tensor

Values = tuple[Value, ...]
Execution = Callable[[Step, Context, Values], Values]

ROWS, LANES = 16, 128  # the tile of a 16-bit array on TPU


def einsum(step: Step, context: Context, values: Values) -> Values:
    """Multiply two tensors in the compute dtype, summing over the dims that the output lacks.

    Weights of any dtype are cast here, where they are used. A sum over a sharded dim is a partial sum.
    """
    a, b = arrays_of(values)
    text = subscripts(*(t.names for t in (*step.inputs, *step.outputs)))
    a, b = a.astype(context.compute), b.astype(context.compute)
    return (jnp.einsum(text, a, b, preferred_element_type=jnp.float32).astype(context.activations),)


def all_gather(step: Step, context: Context, values: Values) -> Values:
    """Gather the dims that lose mesh axes; all tensors in one AllGather.

    One tensor along one dim is gathered as it is. Otherwise the tensors are joined, gathered as one array, and
    reordered.
    """
    arrays = arrays_of(values)
    lost_axes = [_lost_axes(a, b) for a, b in zip(step.inputs, step.outputs, strict=True)]
    if len(arrays) == 1 and len(lost_axes[0]) == 1:
        ((dim, axes),) = lost_axes[0].items()
        return (lax.all_gather(arrays[0], axes, axis=dim, tiled=True),)
    gathered_axes = tuple(axis for axes in lost_axes[0].values() for axis in axes)
    flat = lax.all_gather(_join([x[None] for x in arrays]), gathered_axes, axis=0, tiled=True)
    parts = _split_parts(flat, [x.size for x in arrays])
    return tuple(
        _order_shards(p, x, gathered_axes, dims, context) for p, x, dims in zip(parts, arrays, lost_axes, strict=True)
    )


def _lost_axes(a: Tensor, b: Tensor) -> dict[int, Axes]:
    """Return the mesh axes that each dim loses from type a to type b, by the number of the dim."""
    pairs = enumerate(zip(a.dims, b.dims, strict=True))
    return {n: x.axes[len(y.axes) :] for n, (x, y) in pairs if len(y.axes) < len(x.axes)}


def _gained_axes(a: Tensor, b: Tensor) -> tuple[int, Axes]:
    """Return the number of the one dim that gains mesh axes from type a to type b, and these axes."""
    ((dim, axes),) = _lost_axes(b, a).items()
    return dim, axes


def _join(arrays: Sequence[Array]) -> Array:
    """Join arrays `[n, ...]` into one `[n, rows, columns]`, with columns that all have, so that tiles move uncopied."""
    if len({x.dtype for x in arrays}) > 1:
        raise InputError(f"one collective moves one dtype; got {', '.join(str(x.dtype) for x in arrays)}")
    columns = _columns([x.shape[1:] or (1,) for x in arrays])
    return jnp.concatenate([x.reshape(x.shape[0], -1, columns) for x in arrays], axis=1)


def _columns(shapes: Sequence[Sequence[int]]) -> int:
    """Return a number of columns that divides all shapes; the lanes of one tile if the rows would not fill tiles."""
    columns, narrow = gcd(*(s[-1] for s in shapes)), gcd(LANES, *(prod(s) for s in shapes))
    few = min(prod(s) // columns for s in shapes) < ROWS
    return LANES if few and narrow == LANES else columns


def _split_parts(joined: Array, sizes: Sequence[int]) -> list[Array]:
    """Split a joined array `[n, rows, columns]` into its parts of these sizes."""
    cuts = [size // joined.shape[-1] for size in sizes]
    return [joined[:, a:b] for a, b in pairwise(np.cumsum([0, *cuts]).tolist())]


def _order_shards(part: Array, x: Array, over: Axes, lost_axes: dict[int, Axes], context: Context) -> Array:
    """Reorder a gathered part `[shards over `over`, rows, columns]` so that each axis precedes the dim that it cut."""
    cube = part.reshape(*(context.axes[axis] for axis in over), *x.shape)
    order, shape = [], []
    for dim, size in enumerate(x.shape):
        axes = lost_axes.get(dim, ())
        order += [*(over.index(axis) for axis in axes), len(over) + dim]
        shape.append(size * context.count(axes))
    return cube.transpose(order).reshape(shape)


def reduce_scatter(step: Step, context: Context, values: Values) -> Values:
    """Sum the partial sums and leave each device its shard; all tensors in one ReduceScatter.

    One tensor whose shards are whole tiles is scattered as it is. Otherwise the dim of the shards is moved to the
    front, and the tensors are joined and scattered as one array. Raises `InputError` if the tensors order their mesh
    axes differently.
    """
    arrays = arrays_of(values)
    gained = [_gained_axes(a, b) for a, b in zip(step.inputs, step.outputs, strict=True)]
    axes = gained[0][1]
    if len({order for _, order in gained}) > 1:
        raise InputError(f"one collective has one order of its axes, got {step}")
    n = context.count(axes)
    if len(arrays) == 1 and _whole_tiles(arrays[0].shape, gained[0][0], n):
        return (untyped.psum_scatter(arrays[0], axes, scatter_dimension=gained[0][0], tiled=True),)
    fronts = [_shards_first(x, dim, n) for x, (dim, _) in zip(arrays, gained, strict=True)]
    rows = untyped.psum_scatter(_join(fronts), axes, scatter_dimension=0, tiled=True)
    parts = _split_parts(rows, [x.size // n for x in fronts])
    return tuple(part.reshape(x.shape[1:]) for part, x in zip(parts, fronts, strict=True))


def _whole_tiles(shape: Sequence[int], dim: int, n: int) -> bool:
    """Return whether the shards of a dim are whole tiles in memory.

    If not, the TPU runs the ReduceScatter as an AllReduce and keeps a slice. The answer is also False behind dims of
    size 1, where it costs nothing to move the shards to the front.
    """
    part, lead = shape[dim] // n, prod(shape[:dim])
    if dim == len(shape) - 1:
        return part % (2 * LANES) == 0 and lead >= ROWS
    return lead > 1 and part % ROWS == 0


def _shards_first(x: Array, dim: int, n: int) -> Array:
    """Split a dim into n shards and move them to the front: `[..., dim, ...]` -> `[n, ..., dim/n, ...]`."""
    split = x.reshape(*x.shape[:dim], n, x.shape[dim] // n, *x.shape[dim + 1 :])
    return jnp.moveaxis(split, dim, 0)


def all_reduce(step: Step, context: Context, values: Values) -> Values:
    """Sum the partial sums of all tensors in one AllReduce (psum)."""
    return tuple(untyped.psum(arrays_of(values), step.axes))


def all_to_all(step: Step, context: Context, values: Values) -> Values:
    """Move mesh axes from one dim to another; all tensors in one AllToAll.

    Each device sends shards of the dim that gains the axes, and concatenates what it receives along the dim that loses
    them.
    """
    arrays, n = arrays_of(values), context.count(step.axes)
    split_dims = [_gained_axes(a, b)[0] for a, b in _swaps(step)]
    concat_dims = [next(iter(_lost_axes(a, b))) for a, b in _swaps(step)]
    if len(arrays) == 1:
        return (
            untyped.all_to_all(arrays[0], step.axes, split_axis=split_dims[0], concat_axis=concat_dims[0], tiled=True),
        )
    fronts = [_shards_first(x, dim, n) for x, dim in zip(arrays, split_dims, strict=True)]
    rows = untyped.all_to_all(_join(fronts), step.axes, split_axis=0, concat_axis=0, tiled=True)
    parts = _split_parts(rows, [x.size // n for x in fronts])
    return tuple(_shards_into(p.reshape(x.shape), dim) for p, x, dim in zip(parts, fronts, concat_dims, strict=True))


def _swaps(step: Step) -> list[tuple[Tensor, Tensor]]:
    return list(zip(step.inputs, step.outputs, strict=True))


def _shards_into(x: Array, dim: int) -> Array:
    """Merge shards in front into a dim: `[n, ..., dim, ...]` -> `[..., n * dim, ...]`."""
    moved = jnp.moveaxis(x, 0, dim)
    return moved.reshape(*moved.shape[:dim], -1, *moved.shape[dim + 2 :])


def slice_(step: Step, context: Context, values: Values) -> Values:
    """Keep this device's shard of the dims that gain mesh axes; nothing is communicated."""
    shards = []
    for x, a, b in zip(arrays_of(values), step.inputs, step.outputs, strict=True):
        for dim, axes in _lost_axes(b, a).items():
            x = context.cut(x, dim, axes)
        shards.append(x)
    return tuple(shards)


def split(step: Step, context: Context, values: Values) -> Values:
    """Split the query heads N into K, M: query head k * M + m belongs to KV head k."""
    heads_dim, K = step.inputs[0].names.index("N"), context.local(step.outputs[0], "K")
    return (
        _map_value(
            values[0], lambda x: x.reshape(*x.shape[:heads_dim], K, x.shape[heads_dim] // K, *x.shape[heads_dim + 1 :])
        ),
    )


def merge(step: Step, context: Context, values: Values) -> Values:
    """Merge K, M into the query heads N."""
    heads_dim = step.inputs[0].names.index("K")
    return (_map_value(values[0], lambda x: x.reshape(*x.shape[:heads_dim], -1, *x.shape[heads_dim + 2 :])),)


def _map_value(value: Value, change: Callable[[Array], Array]) -> Value:
    if isinstance(value, SoftmaxState):
        return SoftmaxState(*(change(x) for x in value))
    return change(array_of(value))


def rename(step: Step, context: Context, values: Values) -> Values:
    """Give tensors new names; one that becomes a cache is cast to the cache's dtype, and later gathered in it."""
    pairs = zip(values, (context.caches.get(t.name) for t in step.outputs), strict=True)
    return tuple(array_of(value).astype(dtype) if dtype else value for value, dtype in pairs)


def gelu(step: Step, context: Context, values: Values) -> Values:
    """Apply gelu in its tanh approximation."""
    return (_activations(jax.nn.gelu(float32(array_of(values[0])), approximate=True), context),)


def silu(step: Step, context: Context, values: Values) -> Values:
    """Apply silu: x * sigmoid(x)."""
    return (_activations(jax.nn.silu(float32(array_of(values[0]))), context),)


def swiglu(step: Step, context: Context, values: Values) -> Values:
    """Return silu(u) * h for the inputs u, the gate, and h."""
    u, h = arrays_of(values)
    return (_activations(jax.nn.silu(float32(u)) * float32(h), context),)


def _activations(x: Array, context: Context) -> Array:
    return x.astype(context.activations)


def add(step: Step, context: Context, values: Values) -> Values:
    """Add two tensors; both may be partial sums over the same axes."""
    a, b = arrays_of(values)
    return (a + b,)


def bias(step: Step, context: Context, values: Values) -> Values:
    """Add a bias, which has some of the tensor's dims, in any order."""
    x, b = arrays_of(values)
    names, dims = step.inputs[0].names, step.inputs[1].names
    ordered = b.transpose([dims.index(d) for d in names if d in dims])
    sizes = dict(zip([d for d in names if d in dims], ordered.shape, strict=True))
    return (_activations(float32(x) + float32(ordered).reshape([sizes.get(d, 1) for d in names]), context),)


def sum_sq(step: Step, context: Context, values: Values) -> Values:
    """Sum the squares over D in float32; a partial sum if D is sharded."""
    x = float32(array_of(values[0]))
    return (jnp.sum(x * x, axis=step.inputs[0].names.index("D")),)


def sum_(step: Step, context: Context, values: Values) -> Values:
    """Sum over D in float32; a partial sum if D is sharded."""
    return (jnp.sum(float32(array_of(values[0])), axis=step.inputs[0].names.index("D")),)


def norm(step: Step, context: Context, values: Values) -> Values:
    """Normalise x with its sum of squares: g * x / sqrt(mean square + eps).

    A layer norm also has the sum of x as an input, and subtracts the mean from x first.
    """
    x, squares, *sums, g = (float32(v) for v in arrays_of(values))
    axis, D = step.inputs[0].names.index("D"), context.sizes["D"]
    for total in sums:
        x, squares = x - jnp.expand_dims(total / D, axis), squares - total**2 / D
    scale = lax.rsqrt(squares / D + context.eps)
    shape = [-1 if n == axis else 1 for n in range(x.ndim)]
    return (_activations(x * jnp.expand_dims(scale, axis) * g.reshape(shape), context),)


def head_norm(step: Step, context: Context, values: Values) -> Values:
    """Apply an RMS norm to each head, over its dim H, which is the last one."""
    x, g = (float32(v) for v in arrays_of(values))
    return (_activations(x * lax.rsqrt(jnp.mean(x * x, axis=-1, keepdims=True) + context.eps) * g, context),)


def rope(step: Step, context: Context, values: Values) -> Values:
    """Apply the rotary embedding: rotate each pair (i, i + H/2) by position * theta^(-2i/H), in float32."""
    x, pos = arrays_of(values)
    names, half = step.inputs[0].names, x.shape[-1] // 2
    where = [x.shape[n] if d in step.inputs[1].names else 1 for n, d in enumerate(names[:-1])]
    angles = float32(pos).reshape(*where, 1) * context.theta ** (-jnp.arange(half, dtype=jnp.float32) / half)
    left, right = float32(x[..., :half]), float32(x[..., half:])
    cos, sin = jnp.cos(angles), jnp.sin(angles)
    return (_activations(jnp.concatenate([left * cos - right * sin, right * cos + left * sin], axis=-1), context),)


STEPS: dict[str, Execution] = {
    "Einsum": einsum,
    "AllGather": all_gather,
    "ReduceScatter": reduce_scatter,
    "AllReduce": all_reduce,
    "AllToAll": all_to_all,
    "Slice": slice_,
    "Split": split,
    "Merge": merge,
    "Rename": rename,
    "Gelu": gelu,
    "Silu": silu,
    "SwiGLU": swiglu,
    "Add": add,
    "Bias": bias,
    "SumSq": sum_sq,
    "Sum": sum_,
    "Norm": norm,
    "HeadNorm": head_norm,
    "Rope": rope,
    "Append": steps_attention.append,
    "Attend": steps_attention.attend,
    "RingAttend": steps_attention.ring_attend,
    "AttendReduce": steps_attention.attend_reduce,
    "AttendScatter": steps_attention.attend_scatter,
    "TopK": steps_moe.top_k,
    "Dispatch": steps_moe.dispatch,
    "Combine": steps_moe.combine,
    "Lookup": steps_moe.lookup,
    "ArgMax": steps_moe.arg_max,
    "Last": steps_moe.last,
}
