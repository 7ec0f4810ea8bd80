"""Execute the attention primitives: update KV caches in place, attend in blocks, combine softmax states of shards.

A query sees the keys whose position is not negative, not after its own, and inside the sliding window. Positions are
data, so prompts may be stored in any order of T. A cache of S slots stores position p in slot p % S, so a slot always
has the last position written to it. The slots lie on the n shards of a cache `contiguous` (slot s on shard
s // (S / n)) or `striped` (slot s on shard s % n, there at s // n).
"""

from __future__ import annotations

from math import prod

import jax.numpy as jnp
from jax import lax

from executor.run.blocks import TINY, Blocks, Keys, SoftmaxSum
from executor.run.context import Array, Context, SoftmaxState, Stacked, Value, array_of, arrays_of, float32, untyped
from mesh.errors import InputError
from strategies.notation import Axes, Step, Tensor

Values = tuple[Value, ...]
Names = tuple[str, ...]


def append(step: Step, context: Context, values: Values) -> Values:
    """Write the new keys or values of each sequence into their slot of the KV cache, in place.

    Each contiguous piece is one `dynamic_update_slice`: the shard that owns the slot writes the new entry, the others
    write back what is there. A piece consists of the dims behind S, in the stored order, of one sequence's entry.
    Larger updates, a scatter, or dims of size 1 behind S make the TPU compiler choose another layout for the whole
    cache and copy it.
    """
    cache, new, pos = values[0], array_of(values[1]), array_of(values[2])
    names, axes = step.inputs[0].names, step.inputs[0].axes("S")
    array, layer_index = (cache.array, (cache.layer,)) if isinstance(cache, Stacked) else (array_of(cache), ())
    B, S = names.index("B"), names.index("S")
    entries = jnp.expand_dims(new, S).astype(array.dtype)
    shard, place = _owning_slot(pos, context, axes, array.shape[len(layer_index) + S])
    is_owner = shard == context.index(axes)
    looped = {d: n for d, n in enumerate(entries.shape) if d in (B, *range(S))}
    thin = [len(layer_index) + d for d, n in enumerate(entries.shape) if d > S and n == 1]

    def write(number: Array, cache_array: Array) -> Array:
        indices = dict(zip(looped, jnp.unravel_index(number, tuple(looped.values())), strict=True))
        start = [indices.get(d, jnp.int32(0)) for d in range(len(names))]
        piece = lax.dynamic_slice(entries, start, [1 if d in looped else n for d, n in enumerate(entries.shape)])
        piece = piece.reshape(*(1,) * len(layer_index), *piece.shape).squeeze(thin)
        start[S] = place[indices[B]]
        start_indices = [x for d, x in enumerate((*layer_index, *start)) if d not in thin]
        current = lax.dynamic_slice(cache_array, start_indices, piece.shape)
        return lax.dynamic_update_slice(cache_array, jnp.where(is_owner[indices[B]], piece, current), start_indices)

    array = jnp.expand_dims(lax.fori_loop(0, prod(looped.values()), write, array.squeeze(thin)), thin)
    return (Stacked(array, cache.layer) if isinstance(cache, Stacked) else array,)


def _owning_slot(pos: Array, context: Context, axes: Axes, shard_slots: int) -> tuple[Array, Array]:
    """Return the shard that owns the slot of each position, and the slot's index within it."""
    n = context.count(axes)
    slot = pos % (shard_slots * n)
    return (slot // shard_slots, slot % shard_slots) if context.sequence == "contiguous" else (slot % n, slot // n)


def slots(shard: Array | int, shards: int, shard_slots: int, sequence: str) -> Array:
    """Return the slot numbers on one shard of a cache, `[shard_slots]`, if each of `shards` shards has `shard_slots`.

    `sequence` is `contiguous` or `striped`:

    >>> slots(1, 2, 4, "contiguous").tolist(), slots(1, 2, 4, "striped").tolist()
    ([4, 5, 6, 7], [1, 3, 5, 7])
    """
    places = jnp.arange(shard_slots)
    return shard * shard_slots + places if sequence == "contiguous" else places * shards + shard


def last_written(slot: Array, pos: Array, size: int) -> Array:
    """Return the position stored in a slot of a cache of `size` slots once position `pos` is written.

    A negative result means that nothing has been written to the slot yet.

    >>> [int(last_written(slot, 5, 4)) for slot in range(4)]
    [4, 5, 2, 3]
    """
    return pos - (pos - slot) % size


def attend(step: Step, context: Context, values: Values) -> Values:
    """Attend to all keys on this device; the result is a softmax state `{A}` if the keys' S is sharded.

    A decode step takes all keys at once; a prompt is attended in blocks of queries and keys.
    """
    q, k, v, pos = arrays_of(values)
    query_names, keys = step.inputs[0].names, step.inputs[1]
    positions = _key_positions(context, keys, pos, k.shape[keys.names.index("S")])
    state = Blocks(context, keys.names, _canonical(q, query_names), pos).attend_all(Keys(k, v, positions))
    return (_result(state, query_names, bool(keys.axes("S"))),)


def _key_positions(context: Context, keys: Tensor, pos: Array, shard_slots: int) -> Array:
    """Return the positions `[B, S]` of the keys on this device: of a prompt's tokens, or of a cache's slots."""
    pos_all = context.replicated["pos"]
    if pos_all.ndim == 2:
        return context.cut(context.cut(pos_all, 0, keys.axes("B")), 1, keys.axes("S"))
    axes, n = keys.axes("S"), context.count(keys.axes("S"))
    return last_written(slots(context.index(axes), n, shard_slots, context.sequence), pos[:, None], shard_slots * n)


def _canonical(q: Array, names: Names) -> Array:
    """Transpose queries to `[B, T, K, M, H]`; a decode step gets T = 1."""
    if "T" not in names:
        q, names = q[None], ("T", *names)
    return q.transpose([names.index(d) for d in "BTKMH"])


def _result(state: SoftmaxSum, names: Names, with_statistics: bool) -> Value:
    """Return the output in the queries' order of dims, with its softmax statistics if S is sharded."""
    output = _ordered(state.output, "BKMTH", names)
    if not with_statistics:
        return output
    statistics_names = tuple(d for d in names if d != "H")
    return SoftmaxState(
        output, _ordered(state.top, "BKMT", statistics_names), _ordered(state.total, "BKMT", statistics_names)
    )


def _ordered(x: Array, dims: str, names: Names) -> Array:
    if "T" not in names:
        x, dims = x.squeeze(dims.index("T")), dims.replace("T", "")
    return x.transpose([dims.index(d) for d in names])


def ring_attend(step: Step, context: Context, values: Values) -> Values:
    """Attend to the keys of all devices of a ring, whose shards of keys and values move one device per hop.

    Keys and values of a hop move in one CollectivePermute. Their positions need not move, because every device has all
    positions.
    """
    q, k, v, pos = arrays_of(values)
    query_names, keys = step.inputs[0].names, step.inputs[1]
    ring = tuple(axis for axis in context.axes if axis in step.axes)  # ppermute numbers devices in the mesh's order
    n = context.count(ring)
    blocks = Blocks(context, keys.names, _canonical(q, query_names), pos)
    pos_all = context.cut(context.replicated["pos"], 0, keys.axes("B"))

    def attend_to(state: SoftmaxSum, keys_and_values: Array, hop: Array | int) -> SoftmaxSum:
        shard = _place_on_ring((context.index(ring) - hop) % n, ring, keys.axes("S"), context)
        size = keys_and_values.shape[1 + keys.names.index("S")]
        return blocks.attend(
            state,
            Keys(keys_and_values[0], keys_and_values[1], lax.dynamic_slice_in_dim(pos_all, shard * size, size, 1)),
        )

    def next_hop(carry: tuple[SoftmaxSum, Array], hop: Array) -> tuple[tuple[SoftmaxSum, Array], None]:
        state, keys_and_values = carry
        keys_and_values = untyped.ppermute(keys_and_values, ring, [(i, (i + 1) % n) for i in range(n)])
        return (attend_to(state, keys_and_values, hop), keys_and_values), None

    keys_and_values = jnp.stack([k, v])
    start = (attend_to(blocks.start(), keys_and_values, 0), keys_and_values)
    (state, _), _ = lax.scan(next_hop, start, jnp.arange(1, n))
    return (_result(blocks.finish(state), query_names, False),)


def _place_on_ring(number: Array | int, ring: Axes, axes: Axes, context: Context) -> Array | int:
    """Return the number of the shard of S with which device `number` of the ring started."""
    coordinates = {}
    for axis in reversed(ring):
        coordinates[axis] = number % context.axes[axis]
        number = number // context.axes[axis]
    index: Array | int = 0
    for axis in axes:
        index = index * context.axes[axis] + coordinates[axis]
    return index


def attend_reduce(step: Step, context: Context, values: Values) -> Values:
    """Combine the softmax states of all shards: one AllGather of the statistics, one psum of the rescaled outputs."""
    rescaled, top, total = _rescaled(step, context, values[0])
    output = untyped.psum(rescaled, step.axes)
    return (SoftmaxState(output, top, total) if step.outputs[0].triple else output,)


def attend_scatter(step: Step, context: Context, values: Values) -> Values:
    """Combine the softmax states of all shards and leave each device its shard of the output.

    This is one AllGather of the statistics and one psum_scatter of the rescaled outputs.
    """
    rescaled, top, total = _rescaled(step, context, values[0])
    pairs = zip(step.inputs[0].dims, step.outputs[0].dims, strict=True)
    ((dim, axes),) = ((n, y.axes[len(x.axes) :]) for n, (x, y) in enumerate(pairs) if x.axes != y.axes)
    output = untyped.psum_scatter(rescaled, axes, scatter_dimension=dim, tiled=True)
    if not step.outputs[0].triple:
        return (output,)
    return (SoftmaxState(output, context.cut(top, dim, axes), context.cut(total, dim, axes)),)


def _rescaled(step: Step, context: Context, value: Value) -> tuple[Array, Array, Array]:
    """Return this device's share of the combined output, and the combined statistics `top` and `total`."""
    if not isinstance(value, SoftmaxState):
        raise InputError(f"{step.op} needs a softmax triple {{A}}, got an array")
    statistics = lax.all_gather(jnp.stack([value.top, value.total]), step.axes)  # [shards, 2, ...]
    top = jnp.max(statistics[:, 0], axis=0)
    total = jnp.sum(statistics[:, 1] * jnp.exp(statistics[:, 0] - top), axis=0)
    share = value.total * jnp.exp(value.top - top) / jnp.maximum(total, TINY)
    return (float32(value.output) * share[..., None]).astype(context.activations), top, total
