"""The execution of the attention primitives: caches written in place, attention in blocks, softmaxes combined.

A query sees the keys whose position is not negative, not after its own, and inside the window. Positions are data:
prompts may be stored in any order of T, and a cache of S slots holds position p in slot p % S, so that a slot holds
the last position of its class that has been written. Slots are shared out over the shards of a cache contiguously,
or striped: slot s is on shard s % n at s // n.
"""

from __future__ import annotations

from math import prod
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import lax

from executor.context import Array, Context, Stacked, Triple, Value, plain, plains, subscripts, untyped, wide
from mesh.errors import InputError
from strategies.notation import Axes, Step, Tensor

Values = tuple[Value, ...]
Names = tuple[str, ...]

TINY = float(np.finfo(np.float32).tiny)
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
    mine = shard == context.index(axes)
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
        return lax.dynamic_update_slice(held, jnp.where(mine[at[B]], piece, there), where)

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
    state = _attend_all(context, keys.names, _canonical(q, given), pos, [Keys(k, v, positions)])
    return (_result(state, given, bool(keys.axes("S")), context),)


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


def _result(state: State, names: Names, triple: bool, context: Context) -> Value:
    """The state as a normalised output in the queries' order of dims, with its statistics where S is cut."""
    output = state.output / jnp.maximum(state.total, TINY)[..., None]
    output = _ordered(output, "BKMTH", names).astype(context.activations)
    if not triple:
        return output
    rest = tuple(d for d in names if d != "H")
    return Triple(output, _ordered(state.top, "BKMT", rest), _ordered(state.total, "BKMT", rest))


def _ordered(x: Array, have: str, names: Names) -> Array:
    if "T" not in names:
        x, have = x.squeeze(have.index("T")), have.replace("T", "")
    return x.transpose([have.index(d) for d in names])


def _attend_all(context: Context, names: Names, q: Array, pos: Array, shards: list[Keys]) -> State:
    blocks = Blocks(context, names, q, pos)
    state = blocks.start()
    for keys in shards:
        state = blocks.attend(state, keys)
    return blocks.finish(state)


class Blocks:
    """Queries `[B, T, K, M, H]` in blocks along T, which attend to keys that come shard by shard."""

    def __init__(self, context: Context, names: Names, q: Array, pos: Array) -> None:
        self.context, self.names, self.T = context, names, q.shape[1]
        block = min(context.block, self.T)
        positions = pos if pos.ndim == 2 else pos[:, None]
        self.q = _in_blocks(_padded(q, 1, block, 0), 1, block)
        self.positions = _in_blocks(_padded(positions, 1, block, -1), 1, block)

    def start(self) -> State:
        """Nothing attended yet, for every block."""
        n, B, T, K, M, H = self.q.shape
        top = jnp.full((n, B, K, M, T), LEAST, jnp.float32)
        return State(jnp.zeros((n, B, K, M, T, H), jnp.float32), top, jnp.zeros_like(top))

    def attend(self, state: State, keys: Keys) -> State:
        """The state after these keys."""
        S, where = keys.positions.shape[1], self.names.index("S")
        block = S if self.T == 1 else min(self.context.block, S)
        padded = Keys(
            _padded(keys.k, where, block, 0), _padded(keys.v, where, block, 0), _padded(keys.positions, 1, block, -1)
        )
        if self.q.shape[0] == 1:
            return _first(self._scan(_block(state), self.q[0], self.positions[0], padded, block))

        def one(x: tuple[State, Array, Array]) -> State:
            return self._scan(x[0], x[1], x[2], padded, block)

        found: State = lax.map(one, (state, self.q, self.positions))
        return found

    def _scan(self, state: State, q: Array, pos: Array, keys: Keys, block: int) -> State:
        """One block of queries against every block of keys that it sees."""
        count, where = keys.positions.shape[1] // block, self.names.index("S")
        if count == 1:
            return self._absorb(state, q, pos, keys)

        def visit(state: State, i: Array) -> tuple[State, None]:
            axes = zip(keys, (where, where, 1), strict=True)
            part = Keys(*(lax.dynamic_slice_in_dim(x, i * block, block, axis) for x, axis in axes))
            seen = jnp.any(self._visible(pos, part.positions))
            return lax.cond(seen, lambda s: self._absorb(s, q, pos, part), lambda s: s, state), None

        found: State = lax.scan(visit, state, jnp.arange(count))[0]
        return found

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

    def finish(self, state: State) -> State:
        """The blocks joined along T again."""
        return State(*(jnp.concatenate(list(x), axis=3)[:, :, :, : self.T] for x in state))


def _block(state: State) -> State:
    return State(*(x[0] for x in state))


def _first(state: State) -> State:
    return State(*(x[None] for x in state))


def _padded(x: Array, dim: int, block: int, value: int) -> Array:
    """`dim` filled up to a multiple of the block."""
    extra = -x.shape[dim] % block
    widths = [(0, extra if n == dim else 0) for n in range(x.ndim)]
    return jnp.pad(x, widths, constant_values=value) if extra else x


def _in_blocks(x: Array, dim: int, block: int) -> Array:
    """`[..., dim, ...]` -> `[blocks, ..., block, ...]`."""
    return jnp.moveaxis(x.reshape(*x.shape[:dim], -1, block, *x.shape[dim + 1 :]), dim, 0)


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
    return (_result(blocks.finish(state), given, False, context),)


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
    return (Triple(output, top, total) if step.outputs[0].triple else output,)


def attend_scatter(step: Step, context: Context, values: Values) -> Values:
    """One gather of the statistics, one psum_scatter of the rescaled outputs."""
    ours, top, total = _rescaled(step, context, values[0])
    pairs = zip(step.inputs[0].dims, step.outputs[0].dims, strict=True)
    ((dim, axes),) = ((n, y.axes[len(x.axes) :]) for n, (x, y) in enumerate(pairs) if x.axes != y.axes)
    output = untyped.psum_scatter(ours, axes, scatter_dimension=dim, tiled=True)
    if not step.outputs[0].triple:
        return (output,)
    return (Triple(output, context.cut(top, dim, axes), context.cut(total, dim, axes)),)


def _rescaled(step: Step, context: Context, value: Value) -> tuple[Array, Array, Array]:
    """This device's share of the output over all shards, and the joint statistics."""
    if not isinstance(value, Triple):
        raise InputError(f"{step.op} needs a softmax triple {{A}}, got an array")
    every = lax.all_gather(jnp.stack([value.top, value.total]), step.axes)  # [shards, 2, ...]
    top = jnp.max(every[:, 0], axis=0)
    total = jnp.sum(every[:, 1] * jnp.exp(every[:, 0] - top), axis=0)
    share = value.total * jnp.exp(value.top - top) / jnp.maximum(total, TINY)
    return (wide(value.output) * share[..., None]).astype(context.activations), top, total
