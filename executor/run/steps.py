"""The execution of every primitive, under the name that it has in `strategies.primitives`.

Each function takes a step of a bound program, the context, and the local arrays of the step's inputs, and gives
those of its outputs. A collective step is one collective over all its tensors; nothing else communicates, but for
what `strategies.prices` prices: the statistics of AttendReduce and AttendScatter, the pairs of ArgMax, the
hops of RingAttend. Matmuls accumulate in float32; results have the dtype of the activations.
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
from executor.run.context import Array, Context, SoftmaxState, Value, plain, plains, subscripts, untyped, wide
from mesh.errors import InputError
from strategies.notation import Axes, Step, Tensor

Values = tuple[Value, ...]
Execution = Callable[[Step, Context, Values], Values]

ROWS, LANES = 16, 128  # the tile of a 16-bit array on TPU


def einsum(step: Step, context: Context, values: Values) -> Values:
    """Weights of any dtype are cast to the compute dtype here, where they are used."""
    a, b = plains(values)
    text = subscripts(*(t.names for t in (*step.inputs, *step.outputs)))
    a, b = a.astype(context.compute), b.astype(context.compute)
    return (jnp.einsum(text, a, b, preferred_element_type=jnp.float32).astype(context.activations),)


def all_gather(step: Step, context: Context, values: Values) -> Values:
    """One tensor along one dim as it is; else joined, gathered together, and put in order."""
    arrays = plains(values)
    lost = [_lost(a, b) for a, b in zip(step.inputs, step.outputs, strict=True)]
    if len(arrays) == 1 and len(lost[0]) == 1:
        ((dim, axes),) = lost[0].items()
        return (lax.all_gather(arrays[0], axes, axis=dim, tiled=True),)
    over = tuple(axis for axes in lost[0].values() for axis in axes)
    flat = lax.all_gather(_joined([x[None] for x in arrays]), over, axis=0, tiled=True)
    parts = _parted(flat, [x.size for x in arrays])
    return tuple(_gathered(p, x, over, gone, context) for p, x, gone in zip(parts, arrays, lost, strict=True))


def _lost(a: Tensor, b: Tensor) -> dict[int, Axes]:
    """For each dim that loses axes its number and these axes."""
    pairs = enumerate(zip(a.dims, b.dims, strict=True))
    return {n: x.axes[len(y.axes) :] for n, (x, y) in pairs if len(y.axes) < len(x.axes)}


def _gained(a: Tensor, b: Tensor) -> tuple[int, Axes]:
    """The dim that gains axes, and these axes."""
    ((dim, axes),) = _lost(b, a).items()
    return dim, axes


def _joined(arrays: Sequence[Array]) -> Array:
    """`[n, ...]` each -> `[n, rows, columns]`, by the columns that all have: equal tiles move without a copy."""
    if len({x.dtype for x in arrays}) > 1:
        raise InputError(f"one collective moves one dtype; got {', '.join(str(x.dtype) for x in arrays)}")
    columns = _columns([x.shape[1:] or (1,) for x in arrays])
    return jnp.concatenate([x.reshape(x.shape[0], -1, columns) for x in arrays], axis=1)


def _columns(shapes: Sequence[Sequence[int]]) -> int:
    """The columns that all have; those of one tile where rows of them would not fill tiles."""
    columns, narrow = gcd(*(s[-1] for s in shapes)), gcd(LANES, *(prod(s) for s in shapes))
    few = min(prod(s) // columns for s in shapes) < ROWS
    return LANES if few and narrow == LANES else columns


def _parted(joined: Array, sizes: Sequence[int]) -> list[Array]:
    """The parts, of these sizes for each of n, that were joined."""
    cuts = [size // joined.shape[-1] for size in sizes]
    return [joined[:, a:b] for a, b in pairwise(np.cumsum([0, *cuts]).tolist())]


def _gathered(part: Array, x: Array, over: Axes, lost: dict[int, Axes], context: Context) -> Array:
    """`part` is [shards over `over`, rows, columns]: each axis goes before the dim that it cut."""
    cube = part.reshape(*(context.axes[axis] for axis in over), *x.shape)
    order, shape = [], []
    for dim, size in enumerate(x.shape):
        axes = lost.get(dim, ())
        order += [*(over.index(axis) for axis in axes), len(over) + dim]
        shape.append(size * context.count(axes))
    return cube.transpose(order).reshape(shape)


def reduce_scatter(step: Step, context: Context, values: Values) -> Values:
    """A tensor along a dim of whole tiles as it is; else with the shards in front, joined, scattered together."""
    arrays = plains(values)
    gained = [_gained(a, b) for a, b in zip(step.inputs, step.outputs, strict=True)]
    axes = gained[0][1]
    if len({order for _, order in gained}) > 1:
        raise InputError(f"one collective has one order of its axes, got {step}")
    n = context.count(axes)
    if len(arrays) == 1 and _whole_tiles(arrays[0].shape, gained[0][0], n):
        return (untyped.psum_scatter(arrays[0], axes, scatter_dimension=gained[0][0], tiled=True),)
    fronts = [_shards_first(x, dim, n) for x, (dim, _) in zip(arrays, gained, strict=True)]
    rows = untyped.psum_scatter(_joined(fronts), axes, scatter_dimension=0, tiled=True)
    parts = _parted(rows, [x.size // n for x in fronts])
    return tuple(part.reshape(x.shape[1:]) for part, x in zip(parts, fronts, strict=True))


def _whole_tiles(shape: Sequence[int], dim: int, n: int) -> bool:
    """Return whether shards of a dim are whole tiles where they lie: otherwise the TPU reduces all and keeps a slice.

    Behind dims of size 1 that is so as well; there it costs nothing to have the shards in front.
    """
    part, lead = shape[dim] // n, prod(shape[:dim])
    if dim == len(shape) - 1:
        return part % (2 * LANES) == 0 and lead >= ROWS
    return lead > 1 and part % ROWS == 0


def _shards_first(x: Array, dim: int, n: int) -> Array:
    """`[..., dim, ...]` -> `[n, ..., dim/n, ...]`."""
    split = x.reshape(*x.shape[:dim], n, x.shape[dim] // n, *x.shape[dim + 1 :])
    return jnp.moveaxis(split, dim, 0)


def all_reduce(step: Step, context: Context, values: Values) -> Values:
    """All tensors in one psum."""
    return tuple(untyped.psum(plains(values), step.axes))


def all_to_all(step: Step, context: Context, values: Values) -> Values:
    """Shards of the dim that gains axes are sent; what comes is put in front of the dim that loses them."""
    arrays, n = plains(values), context.count(step.axes)
    to = [_gained(a, b)[0] for a, b in _swaps(step)]
    back = [next(iter(_lost(a, b))) for a, b in _swaps(step)]
    if len(arrays) == 1:
        return (untyped.all_to_all(arrays[0], step.axes, split_axis=to[0], concat_axis=back[0], tiled=True),)
    fronts = [_shards_first(x, dim, n) for x, dim in zip(arrays, to, strict=True)]
    rows = untyped.all_to_all(_joined(fronts), step.axes, split_axis=0, concat_axis=0, tiled=True)
    parts = _parted(rows, [x.size // n for x in fronts])
    return tuple(_shards_into(p.reshape(x.shape), dim) for p, x, dim in zip(parts, fronts, back, strict=True))


def _swaps(step: Step) -> list[tuple[Tensor, Tensor]]:
    return list(zip(step.inputs, step.outputs, strict=True))


def _shards_into(x: Array, dim: int) -> Array:
    """`[n, ..., dim, ...]` -> `[..., n * dim, ...]`."""
    moved = jnp.moveaxis(x, 0, dim)
    return moved.reshape(*moved.shape[:dim], -1, *moved.shape[dim + 2 :])


def slice_(step: Step, context: Context, values: Values) -> Values:
    """This device's part of what all have."""
    sliced = []
    for x, a, b in zip(plains(values), step.inputs, step.outputs, strict=True):
        for dim, axes in _lost(b, a).items():
            x = context.cut(x, dim, axes)
        sliced.append(x)
    return tuple(sliced)


def split(step: Step, context: Context, values: Values) -> Values:
    """N -> K, M: query head k * M + m belongs to KV head k."""
    where, K = step.inputs[0].names.index("N"), context.local(step.outputs[0], "K")
    return (_each(values[0], lambda x: x.reshape(*x.shape[:where], K, x.shape[where] // K, *x.shape[where + 1 :])),)


def merge(step: Step, context: Context, values: Values) -> Values:
    """K, M -> N."""
    where = step.inputs[0].names.index("K")
    return (_each(values[0], lambda x: x.reshape(*x.shape[:where], -1, *x.shape[where + 2 :])),)


def _each(value: Value, change: Callable[[Array], Array]) -> Value:
    if isinstance(value, SoftmaxState):
        return SoftmaxState(*(change(x) for x in value))
    return change(plain(value))


def rename(step: Step, context: Context, values: Values) -> Values:
    """Give the data a new name; a value that becomes a cache is cast to the cache's dtype, and is gathered in it."""
    pairs = zip(values, (context.caches.get(t.name) for t in step.outputs), strict=True)
    return tuple(plain(value).astype(dtype) if dtype else value for value, dtype in pairs)


def gelu(step: Step, context: Context, values: Values) -> Values:
    """The tanh form."""
    return (_narrow(jax.nn.gelu(wide(plain(values[0])), approximate=True), context),)


def silu(step: Step, context: Context, values: Values) -> Values:
    """x * sigmoid(x)."""
    return (_narrow(jax.nn.silu(wide(plain(values[0]))), context),)


def swiglu(step: Step, context: Context, values: Values) -> Values:
    """silu(u) * h, where u is the gate."""
    u, h = plains(values)
    return (_narrow(jax.nn.silu(wide(u)) * wide(h), context),)


def _narrow(x: Array, context: Context) -> Array:
    return x.astype(context.activations)


def add(step: Step, context: Context, values: Values) -> Values:
    """The sum; of partial sums, too."""
    a, b = plains(values)
    return (a + b,)


def bias(step: Step, context: Context, values: Values) -> Values:
    """A vector over some of the dims, added."""
    x, b = plains(values)
    names, dims = step.inputs[0].names, step.inputs[1].names
    ordered = b.transpose([dims.index(d) for d in names if d in dims])
    sizes = dict(zip([d for d in names if d in dims], ordered.shape, strict=True))
    return (_narrow(wide(x) + wide(ordered).reshape([sizes.get(d, 1) for d in names]), context),)


def sum_sq(step: Step, context: Context, values: Values) -> Values:
    """The sum of squares over D."""
    x = wide(plain(values[0]))
    return (jnp.sum(x * x, axis=step.inputs[0].names.index("D")),)


def sum_(step: Step, context: Context, values: Values) -> Values:
    """The sum over D."""
    return (jnp.sum(wide(plain(values[0])), axis=step.inputs[0].names.index("D")),)


def norm(step: Step, context: Context, values: Values) -> Values:
    """g * x / sqrt(mean square + eps); a layer norm, which has the sum too, takes the mean from x first."""
    x, squares, *sums, g = (wide(v) for v in plains(values))
    axis, D = step.inputs[0].names.index("D"), context.sizes["D"]
    for total in sums:
        x, squares = x - jnp.expand_dims(total / D, axis), squares - total**2 / D
    scale = lax.rsqrt(squares / D + context.eps)
    shape = [-1 if n == axis else 1 for n in range(x.ndim)]
    return (_narrow(x * jnp.expand_dims(scale, axis) * g.reshape(shape), context),)


def head_norm(step: Step, context: Context, values: Values) -> Values:
    """RMS norm of each head; H is the last dim."""
    x, g = (wide(v) for v in plains(values))
    return (_narrow(x * lax.rsqrt(jnp.mean(x * x, axis=-1, keepdims=True) + context.eps) * g, context),)


def rope(step: Step, context: Context, values: Values) -> Values:
    """Turns the pairs (i, i + H/2) by position * theta^(-2i/H), in float32."""
    x, pos = plains(values)
    names, half = step.inputs[0].names, x.shape[-1] // 2
    where = [x.shape[n] if d in step.inputs[1].names else 1 for n, d in enumerate(names[:-1])]
    angles = wide(pos).reshape(*where, 1) * context.theta ** (-jnp.arange(half, dtype=jnp.float32) / half)
    left, right = wide(x[..., :half]), wide(x[..., half:])
    cos, sin = jnp.cos(angles), jnp.sin(angles)
    return (_narrow(jnp.concatenate([left * cos - right * sin, right * cos + left * sin], axis=-1), context),)


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
