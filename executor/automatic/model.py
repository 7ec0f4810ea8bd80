"""The step of a whole model as one writes it without thinking of devices: `jax.numpy` on whole arrays.

How it is cut is the compiler's choice, but for what `place` asks: it sees every tensor that a plan may constrain.
Parameters, caches and their order of dims, slots and positions are those of the manual step (`executor.run.engine`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from math import prod
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from executor.automatic.attention import attend, rope, update
from executor.automatic.moe import combined, dispatched, routed, slots_of
from executor.run.context import Array, Context, float32, subscripts
from executor.run.prompts import stored_slots
from executor.run.runnable import RunnableComponent, Stored
from executor.run.steps_attention import last_written
from strategies.models.models import LayerGroup, Model

Tree = dict[str, dict[str, Array]]
Weights = Mapping[str, Array]
Place = Callable[
    [RunnableComponent, str, str, Array], Array
]  # (unit, tensor, dims, array) -> the array where it belongs
Parts = Callable[
    [RunnableComponent, str], int
]  # (unit, tensor) -> of how many parts, a first dim U, it is wanted as a partial sum


@dataclass(frozen=True)
class Plain:
    """A model's steps; `ends` and `pos` as in `executor.run.model_step`."""

    model: Model
    components: tuple[RunnableComponent, ...]
    place: Place
    parts: Parts

    @property
    def vocab(self) -> RunnableComponent:
        """The vocabulary."""
        return next(u for u in self.components if u.component.kind == "vocab")

    def decode(self, logits: bool, params: Tree, cache: Tree, tok: Array, pos: Array) -> tuple[Any, ...]:
        """(next tokens, their logits or None, the caches with what was appended)."""
        R = self._embed(params, tok, "BD")
        for number, group in enumerate(self.model.groups):
            R, cache, _ = self._layers(number, group, params, cache, R, pos)
        return (*self._unembed(logits, params, R), cache)

    def prefill(self, logits: bool, params: Tree, tok: Array, positions: Array, ends: Array) -> tuple[Any, ...]:
        """(next tokens, their logits or None, the prompts' caches)."""
        pos = jnp.broadcast_to(positions, tok.shape)
        made: dict[str, dict[str, list[Array]]] = {}
        R = self._embed(params, tok, "BTD")
        for number, group in enumerate(self.model.groups):
            R, _, caches = self._layers(number, group, params, {}, R, pos)
            for c, tensors in caches.items():
                for name, x in tensors.items():
                    made.setdefault(c, {}).setdefault(name, []).append(x)
        with jax.named_scope("vocab/last"):
            at = jnp.argmax(pos == ends[:, None] - 1, axis=1)
            R = self.place(self.vocab, "last", "BD", jnp.take_along_axis(R, at[:, None, None], axis=1)[:, 0])
        cache = {c: {n: jnp.concatenate(x) if len(x) > 1 else x[0] for n, x in t.items()} for c, t in made.items()}
        return (*self._unembed(logits, params, R), cache)

    def _embed(self, params: Tree, tok: Array, dims: str) -> Array:
        with jax.named_scope("vocab/Em"):
            tok = self.place(self.vocab, "tok", dims[:-1], tok)
            x = jnp.take(params["vocab"]["Em"], tok, axis=0).astype(self.vocab.context.activations)
            return self.place(self.vocab, "residual", dims, self.place(self.vocab, "x", dims, x))

    def _unembed(self, logits: bool, params: Tree, R: Array) -> tuple[Array, Array | None]:
        ops, p = Ops(self, self.vocab, "BD"), params["vocab"]
        l = ops.product("l", "BV", (ops.normed(R, p["norm"]), "BD"), (p.get("Um", p["Em"]), "VD"))  # noqa: E741
        real = jnp.arange(l.shape[-1]) < self.vocab.context.real["V"]
        with jax.named_scope("vocab/t"):
            token = jnp.argmax(jnp.where(real, float32(l), -jnp.inf), axis=-1).astype(jnp.int32)
        return token, l if logits else None

    def _layers(
        self, number: int, group: LayerGroup, params: Tree, cache: Tree, R: Array, pos: Array
    ) -> tuple[Array, Tree, Tree]:
        """A layer group: the residual after it, the caches held, and the caches made (of prompts, stacked)."""
        ours = [u for u in self.components if number in u.component.groups]
        ours.sort(key=lambda u: u.component.kind != "attention")
        first = {u.name: sum(self.model.groups[g].count for g in u.component.groups if g < number) for u in ours}

        def layer(carry: tuple[Array, Tree], at: Array) -> tuple[tuple[Array, Tree], Tree]:
            R, cache, made = carry[0], dict(carry[1]), Tree()
            for unit in ours:
                index = first[unit.name] + at
                p = {n: _of_layer(unit, n, x, index) for n, x in params[unit.name].items()}
                R, written = Ops(self, unit, "BTD" if pos.ndim == 2 else "BD").layer(
                    R, p, cache.get(unit.name), index, pos
                )
                if written:
                    (cache if unit.name in cache else made)[unit.name] = written
            return (R, cache), made

        (R, cache), made = lax.scan(layer, (R, cache), jnp.arange(group.count))
        return R, cache, made


def _of_layer(unit: RunnableComponent, name: str, x: Array, layer: Array) -> Array:
    """A layer's weight, in the scope of the tensor that it makes: where XLA gathers it, that one is named."""
    with jax.named_scope(f"{unit.name}/{_made_of(unit, name)}"):
        one_layer: Array = lax.dynamic_index_in_dim(x, layer, 0, keepdims=False)
        return one_layer


def _made_of(unit: RunnableComponent, weight: str) -> str:
    """The tensor that a weight, gathered or not, is multiplied into; `n` for the norm's, which the glue reads."""
    for step in (step for body in unit.bodies for step in body.steps):
        names = [t.name for t in step.inputs]
        if weight in names and len(names) == len(step.outputs):  # moved, alone or with others
            weight = step.outputs[names.index(weight)].name
        elif weight in names:
            return step.outputs[0].name
    return "n"


@dataclass(frozen=True)
class Ops:
    """One component on a residual stream of dims `dims`."""

    plain: Plain
    unit: RunnableComponent
    dims: str

    @property
    def _context(self) -> Context:
        return self.unit.context

    @property
    def _tokens(self) -> str:
        return self.dims[:-1]

    @contextmanager
    def _scope(self, name: str) -> Iterator[None]:
        with jax.named_scope(f"{self.unit.name}/{name}"):
            yield

    def _placed(self, name: str, dims: str, x: Array) -> Array:
        with self._scope(name):
            return self.plain.place(self.unit, name, dims, x)

    def product(
        self, name: str, dims: str, a: tuple[Array, str], b: tuple[Array, str], bias: Array | None = None
    ) -> Array:
        """The einsum that makes tensor `name` of these dims, and a bias of its last dims."""
        with self._scope(name):
            x, y = (one.astype(self._context.compute) for one in (a[0], b[0]))
            text = subscripts(a[1], b[1], dims)
            made = jnp.einsum(text, x, y, preferred_element_type=self._context.activations)
            made = made if bias is None else made + bias.astype(made.dtype)
        return self._placed(name, dims, made)

    def parts(self, name: str, dims: str, over: str, a: tuple[Array, str], b: tuple[Array, str]) -> Array:
        """Contract in U parts of dim `over`, unsummed, where the plan wants the sum reduced later: `[U, ...]`."""
        U = self.plain.parts(self.unit, name)
        if U == 1:
            return self.product(name, dims, a, b)[None]
        split = (x.reshape(*x.shape[: (n := d.index(over))], U, -1, *x.shape[n + 1 :]) for x, d in (a, b))
        words = (d.replace(over, "U" + over) for _, d in (a, b))
        first, second = zip(split, words, strict=True)
        return self.product(name, "U" + dims, first, second)

    def normed(self, R: Array, g: Array) -> Array:
        """The input `n` of the component."""
        with self._scope("n"):
            x = float32(R)
            if self.plain.model.norm == "layer":
                x = x - jnp.mean(x, axis=-1, keepdims=True)
            n = x * lax.rsqrt(jnp.mean(x * x, axis=-1, keepdims=True) + self._context.eps) * float32(g)
            n = n.astype(self._context.activations)
        return self._placed("n", self.dims, n)

    def layer(
        self, R: Array, p: Weights, cache: Weights | None, index: Array, pos: Array
    ) -> tuple[Array, dict[str, Array]]:
        """The residual after one layer of the component, and its caches: all layers where held, else this one's."""
        n, written, t = self.normed(R, p["norm"]), dict[str, Array](), self._tokens
        if "WQ" in p:
            heads, written = self._attention(n, p, cache, index, pos)
        if "WQ" in p and "Wi" in p:
            o = self.parts("p", self.dims, "N", (heads, t + "NH"), (p["WO"], "NHD"))
            o = o + self.parts("m", self.dims, "F", (self._hidden(n, p, t, ""), t + "F"), (p["Wo"], "FD"))
            with self._scope("o"):
                o = o.sum(axis=0)
            o = self._placed("o", self.dims, o)
        elif "WQ" in p:
            o = self.product("o", self.dims, (heads, t + "NH"), (p["WO"], "NHD"))
        elif "WR" in p:
            o = self._moe(n, p)
        else:
            o = self.product("o", self.dims, (self._hidden(n, p, t, ""), t + "F"), (p["Wo"], "FD"))
        return self._placed("residual", self.dims, R + o), written

    def _hidden(self, n: Array, p: Weights, t: str, e: str) -> Array:
        """The MLP between its matmuls, or that of each expert (`e`: E)."""
        h = self.product("h", t + "F", (n, t + "D"), (p["Wi"], e + "DF"))
        if "Wg" in p:
            u = self.product("u", t + "F", (n, t + "D"), (p["Wg"], e + "DF"))
            a = jax.nn.silu(float32(u)) * float32(h)
        else:
            a = jax.nn.gelu(float32(h), approximate=True)
        return self._placed("a", t + "F", a.astype(self._context.activations))

    def _moe(self, n: Array, p: Weights) -> Array:
        """Slots are counted on each shard of the tokens, as the plan has them; experts are whole arrays over E."""
        l = self.product("l", self._tokens + "E", (n, self.dims), (p["WR"], "DE"))  # noqa: E741
        with self._scope("l"):
            weights, experts = (self._shards(x) for x in routed(l, self._context))
            slots = jax.vmap(lambda e: slots_of(e, self._context))(experts)
        with self._scope("x"):
            x = jax.vmap(dispatched, out_axes=1)(self._shards(n), slots)  # [E, shards, C, D]
        a = self._hidden(self._placed("x", "ECD", x.reshape(x.shape[0], -1, x.shape[-1])), p, "EC", "E")
        y = self.parts("y", "ECD", "F", (a, "ECF"), (p["Wo"], "EFD"))
        with self._scope("o"):
            each = jax.vmap(jax.vmap(combined, in_axes=(1, 0, 0, 0)), in_axes=(0, None, None, None))
            o = each(y.reshape(-1, *x.shape), slots, weights, experts).sum(axis=0)
        return self._placed("o", self.dims, self._joined(o, n.shape))

    def _counts(self) -> list[int]:
        """Shards of the tokens along each of their dims."""
        n = self.unit.bodies[0].input
        return [self._context.count(n.axes(d)) for d in self._tokens]

    def _shards(self, x: Array) -> Array:
        """`[B, (T,) ...]` -> `[shards, tokens of one, ...]`."""
        counts = self._counts()
        split = x.reshape(*(m for n, size in zip(counts, x.shape, strict=False) for m in (n, size // n)), x.shape[-1])
        moved = jnp.moveaxis(split, [2 * i for i in range(len(counts))], range(len(counts)))
        return moved.reshape(prod(counts), -1, x.shape[-1])

    def _joined(self, x: Array, shape: tuple[int, ...]) -> Array:
        counts = self._counts()
        split = x.reshape(*counts, *(size // n for n, size in zip(counts, shape, strict=False)), shape[-1])
        return jnp.moveaxis(split, range(len(counts)), [2 * i for i in range(len(counts))]).reshape(shape)

    def _attention(
        self, n: Array, p: Weights, cache: Weights | None, index: Array, pos: Array
    ) -> tuple[Array, dict[str, Array]]:
        pos = self._placed("pos", self._tokens, pos)
        q, k, v = self._projected(n, p, pos)
        caches = self.unit.caches
        if cache is None:
            kept = {c: self._placed(c, "BSKH", x.astype(caches[c].dtype)) for c, x in zip(caches, (k, v), strict=True)}
            written = {c: self._in_order(x, caches[c]) for c, x in kept.items()}
            keys, values = (self._placed(c, "BSKH", x) for c, x in zip(("Kg", "Vg"), kept.values(), strict=True))
            at = self._placed("pos", "BT", pos)
        else:
            new = zip(caches, (k, v), strict=True)
            written = {c: self._append(cache[c], caches[c], x, index, pos) for c, x in new}
            keys, values = (self._read(written[c], stored, index) for c, stored in caches.items())
            slots = stored_slots(next(iter(caches.values())), self._context)
            at = last_written(slots, pos[:, None], slots.shape[0])
        with self._scope("O"):
            heads = attend(q, keys, values, pos.reshape(*pos.shape[:1], -1), at, self._context)
        heads = self._placed("O", self._tokens + "KMH", heads)
        return self._placed("O", self._tokens + "NH", heads.reshape(*n.shape[:-1], -1, heads.shape[-1])), written

    def _projected(self, n: Array, p: Weights, pos: Array) -> tuple[Array, Array, Array]:
        t, M = self._tokens, p["WQ"].shape[1] // p["WK"].shape[1]
        s = self._placed("s", self.dims, n)
        q, k, v = (
            self.product(name, f"{t}{head}H", (source, self.dims), (p[f"W{w}"], f"D{head}H"), p.get(f"b{w.lower()}"))
            for name, source, w, head in (("Q", n, "Q", "N"), ("k", s, "K", "K"), ("v", s, "V", "K"))
        )
        if "gq" in p:
            q, k = (self._head_norm(x, p[g]) for x, g in ((q, "gq"), (k, "gk")))
        q, k = rope(q, pos, self._context), rope(k, pos, self._context)
        q = q.reshape(*q.shape[:-2], -1, M, q.shape[-1])
        return self._placed("Q", t + "KMH", q), self._placed("k", t + "KH", k), self._placed("v", t + "KH", v)

    def _head_norm(self, x: Array, g: Array) -> Array:
        y = float32(x)
        return (y * lax.rsqrt(jnp.mean(y * y, axis=-1, keepdims=True) + self._context.eps) * float32(g)).astype(x.dtype)

    def _in_order(self, x: Array, stored: Stored) -> Array:
        order = ["BSKH".index(d) for d in stored.type.names]
        return x.transpose(order)

    def _read(self, cache: Array, stored: Stored, index: Array) -> Array:
        with self._scope("O"):
            x: Array = lax.dynamic_index_in_dim(cache, index, 0, keepdims=False)
        return x.transpose([stored.type.names.index(d) for d in "BSKH"])

    def _append(self, cache: Array, stored: Stored, new: Array, index: Array, pos: Array) -> Array:
        """The new entry `[B, K, H]` of each sequence in its slot of this layer."""
        names = stored.type.names
        held, n = self._context.local(stored.type, "S"), self._context.count(stored.type.axes("S"))
        slot = pos % (held * n)
        at = slot if self._context.sequence == "contiguous" else slot % n * held + slot // n
        with self._scope("append"):
            return update(cache, names, new.astype(cache.dtype), index, at)
