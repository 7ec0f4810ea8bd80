"""The execution of the attention primitives: caches written in place, attention in blocks, softmaxes combined.

A query sees the keys whose position is not negative, not after its own, and inside the window. Positions are data:
prompts may be stored in any order of T, and a cache of S slots holds position p in slot p % S, so that a slot holds
the last position of its class that has been written. Slots are shared out over the shards of a cache contiguously,
or striped: slot s is on shard s % n at s // n.
"""

from __future__ import annotations

from math import prod

import jax.numpy as jnp
from jax import lax

from executor.run.blocks import TINY, Blocks, Keys, State
from executor.run.context import Array, Context, SoftmaxState, Stacked, Value, plain, plains, untyped, wide
from mesh.errors import InputError
from strategies.notation import Axes, Step, Tensor

Values = tuple[Value, ...]
Names = tuple[str, ...]


def append(step: Step, context: Context, values: Values) -> Values:
    """One dynamic_update_slice per contiguous piece: the owner writes the new entry, others what is there.

    A piece is what one sequence's entry has behind S in the stored order. Larger updates than that, or a scatter, make
    the TPU compiler choose another order for the whole cache, and copy it; so do dims of size 1 behind S.
    """
    cache, new, pos = values[0], plain(values[1]), plain(values[2])
    names, axes = step.inputs[0].names, step.inputs[0].axes("S")
    array, lead = (cache.array, (cache.layer,)) if isinstance(cache, Stacked) else (plain(cache), ())
    B, S = names.index("B"), names.index("S")
    entries = jnp.expand_dims(new, S).astype(array.dtype)
    shard, place = _owner(pos, context, axes, array.shape[len(lead) + S])
    here = shard == context.index(axes)
    over = {d: n for d, n in enumerate(entries.shape) if d in (B, *range(S))}
    thin = [len(lead) + d for d, n in enumerate(entries.shape) if d > S and n == 1]

    def write(number: Array, held: Array) -> Array:
        at = dict(zip(over, jnp.unravel_index(number, tuple(over.values())), strict=True))
        start = [at.get(d, jnp.int32(0)) for d in range(len(names))]
        piece = lax.dynamic_slice(entries, start, [1 if d in over else n for d, n in enumerate(entries.shape)])
        piece = piece.reshape(*(1,) * len(lead), *piece.shape).squeeze(thin)
        start[S] = place[at[B]]
        where = [x for d, x in enumerate((*lead, *start)) if d not in thin]
        there = lax.dynamic_slice(held, where, piece.shape)
        return lax.dynamic_update_slice(held, jnp.where(here[at[B]], piece, there), where)

    array = jnp.expand_dims(lax.fori_loop(0, prod(over.values()), write, array.squeeze(thin)), thin)
    return (Stacked(array, cache.layer) if isinstance(cache, Stacked) else array,)


def _owner(pos: Array, context: Context, axes: Axes, held: int) -> tuple[Array, Array]:
    """The shard that owns each position, and where in it."""
    n = context.count(axes)
    slot = pos % (held * n)
    return (slot // held, slot % held) if context.sequence == "contiguous" else (slot % n, slot // n)


def slots(shard: Array | int, shards: int, held: int, sequence: str) -> Array:
    """The slots of a cache that one of its shards, of `held` slots each, has: `[S]`."""
    places = jnp.arange(held)
    return shard * held + places if sequence == "contiguous" else places * shards + shard


def last_written(slot: Array, pos: Array, size: int) -> Array:
    """The position that a slot of a cache of `size` slots holds once `pos` is written; negative: none yet."""
    return pos - (pos - slot) % size


def attend(step: Step, context: Context, values: Values) -> Values:
    """A decode step takes all keys at once; a prompt goes in blocks of queries and keys."""
    q, k, v, pos = plains(values)
    given, keys = step.inputs[0].names, step.inputs[1]
    positions = _key_positions(context, keys, pos, k.shape[keys.names.index("S")])
    state = Blocks(context, keys.names, _canonical(q, given), pos).attend_all(Keys(k, v, positions))
    return (_result(state, given, bool(keys.axes("S"))),)


def _key_positions(context: Context, keys: Tensor, pos: Array, held: int) -> Array:
    """`[B, S]` on this device; of a prompt S is T, of a cache the slots say."""
    whole = context.whole["pos"]
    if whole.ndim == 2:
        return context.cut(context.cut(whole, 0, keys.axes("B")), 1, keys.axes("S"))
    axes, n = keys.axes("S"), context.count(keys.axes("S"))
    return last_written(slots(context.index(axes), n, held, context.sequence), pos[:, None], held * n)


def _canonical(q: Array, names: Names) -> Array:
    """Queries as `[B, T, K, M, H]`."""
    if "T" not in names:
        q, names = q[None], ("T", *names)
    return q.transpose([names.index(d) for d in "BTKMH"])


def _result(state: State, names: Names, triple: bool) -> Value:
    """A normalised state in the queries' order of dims, with its statistics where S is cut."""
    output = _ordered(state.output, "BKMTH", names)
    if not triple:
        return output
    rest = tuple(d for d in names if d != "H")
    return SoftmaxState(output, _ordered(state.top, "BKMT", rest), _ordered(state.total, "BKMT", rest))


def _ordered(x: Array, have: str, names: Names) -> Array:
    if "T" not in names:
        x, have = x.squeeze(have.index("T")), have.replace("T", "")
    return x.transpose([have.index(d) for d in names])


def ring_attend(step: Step, context: Context, values: Values) -> Values:
    """Each hop moves keys and values on together, in one CollectivePermute; their positions are known everywhere."""
    q, k, v, pos = plains(values)
    given, keys = step.inputs[0].names, step.inputs[1]
    ring = tuple(axis for axis in context.axes if axis in step.axes)  # ppermute numbers devices in the mesh's order
    n = context.count(ring)
    blocks = Blocks(context, keys.names, _canonical(q, given), pos)
    whole = context.cut(context.whole["pos"], 0, keys.axes("B"))

    def attend_to(state: State, pair: Array, hop: Array | int) -> State:
        at = _place_on_ring((context.index(ring) - hop) % n, ring, keys.axes("S"), context)
        size = pair.shape[1 + keys.names.index("S")]
        return blocks.attend(state, Keys(pair[0], pair[1], lax.dynamic_slice_in_dim(whole, at * size, size, 1)))

    def go_on(carry: tuple[State, Array], hop: Array) -> tuple[tuple[State, Array], None]:
        state, pair = carry
        pair = untyped.ppermute(pair, ring, [(i, (i + 1) % n) for i in range(n)])
        return (attend_to(state, pair, hop), pair), None

    pair = jnp.stack([k, v])
    start = (attend_to(blocks.start(), pair, 0), pair)
    (state, _), _ = lax.scan(go_on, start, jnp.arange(1, n))
    return (_result(blocks.finish(state), given, False),)


def _place_on_ring(number: Array | int, ring: Axes, axes: Axes, context: Context) -> Array | int:
    """The shard of S that the ring's device of this number started with."""
    coordinates = {}
    for axis in reversed(ring):
        coordinates[axis] = number % context.axes[axis]
        number = number // context.axes[axis]
    index: Array | int = 0
    for axis in axes:
        index = index * context.axes[axis] + coordinates[axis]
    return index


def attend_reduce(step: Step, context: Context, values: Values) -> Values:
    """One gather of the statistics, one psum of the rescaled outputs."""
    ours, top, total = _rescaled(step, context, values[0])
    output = untyped.psum(ours, step.axes)
    return (SoftmaxState(output, top, total) if step.outputs[0].triple else output,)


def attend_scatter(step: Step, context: Context, values: Values) -> Values:
    """One gather of the statistics, one psum_scatter of the rescaled outputs."""
    ours, top, total = _rescaled(step, context, values[0])
    pairs = zip(step.inputs[0].dims, step.outputs[0].dims, strict=True)
    ((dim, axes),) = ((n, y.axes[len(x.axes) :]) for n, (x, y) in enumerate(pairs) if x.axes != y.axes)
    output = untyped.psum_scatter(ours, axes, scatter_dimension=dim, tiled=True)
    if not step.outputs[0].triple:
        return (output,)
    return (SoftmaxState(output, context.cut(top, dim, axes), context.cut(total, dim, axes)),)


def _rescaled(step: Step, context: Context, value: Value) -> tuple[Array, Array, Array]:
    """This device's share of the output over all shards, and the joint statistics."""
    if not isinstance(value, SoftmaxState):
        raise InputError(f"{step.op} needs a softmax triple {{A}}, got an array")
    every = lax.all_gather(jnp.stack([value.top, value.total]), step.axes)  # [shards, 2, ...]
    top = jnp.max(every[:, 0], axis=0)
    total = jnp.sum(every[:, 1] * jnp.exp(every[:, 0] - top), axis=0)
    share = value.total * jnp.exp(value.top - top) / jnp.maximum(total, TINY)
    return (wide(value.output) * share[..., None]).astype(context.activations), top, total
