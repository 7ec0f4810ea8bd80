"""The step of a whole model as one writes it without thinking of devices: `jax.numpy` on whole arrays.

How it is cut is the compiler's choice, but for what `place` asks: it sees every tensor that a plan may constrain.
Parameters, caches and their order of dims, slots and positions are those of the manual step (`executor.engine`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from math import prod
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from executor.automatic_attention import attend, rope, update
from executor.context import Array, Context, plain, plains, subscripts, wide
from executor.prompts import stored_slots
from executor.steps_attention import last_written
from executor.steps_moe import combine, dispatch, top_k
from executor.units import Stored, Unit
from strategies.models import LayerGroup, Model
from strategies.notation import Dim, Step

Tree = dict[str, dict[str, Array]]
Weights = Mapping[str, Array]
Place = Callable[[Unit, str, str, Array], Array]  # (unit, tensor, dims, array) -> the array where it belongs


@dataclass(frozen=True)
class Plain:
    """A model's steps; `ends` and `pos` as in `executor.whole`."""

    model: Model
    units: tuple[Unit, ...]
    place: Place

    @property
    def vocab(self) -> Unit:
        """The vocabulary."""
        return next(u for u in self.units if u.component.kind == "vocab")

    def decode(self, logits: bool, params: Tree, cache: Tree, tok: Array, pos: Array) -> tuple[Any, ...]:
        """(next tokens, their logits or None, the caches with what was appended)."""
        R = self._embed(params, tok, "BD")
        for number, group in enumerate(self.model.groups):
            R, cache, _ = self._layers(number, group, params, cache, R, pos)
        return (*self._unembed(logits, params, R), cache)

    def prefill(self, logits: bool, params: Tree, tok: Array, positions: Array, ends: Array) -> tuple[Any, ...]:
        """(next tokens, their logits or None, the prompts' caches)."""
        pos = self.place(self.vocab, "pos", "BT", jnp.broadcast_to(positions, tok.shape))
        made: dict[str, dict[str, list[Array]]] = {}
        R = self._embed(params, tok, "BTD")
        for number, group in enumerate(self.model.groups):
            R, _, found = self._layers(number, group, params, {}, R, pos)
            for c, tensors in found.items():
                for name, x in tensors.items():
                    made.setdefault(c, {}).setdefault(name, []).append(x)
        with jax.named_scope("vocab/last"):
            at = jnp.argmax(pos == ends[:, None] - 1, axis=1)
            R = jnp.take_along_axis(R, at[:, None, None], axis=1)[:, 0]
        cache = {c: {n: jnp.concatenate(x) if len(x) > 1 else x[0] for n, x in t.items()} for c, t in made.items()}
        return (*self._unembed(logits, params, R), cache)

    def _embed(self, params: Tree, tok: Array, dims: str) -> Array:
        with jax.named_scope("vocab/Em"):
            x = jnp.take(params["vocab"]["Em"], tok, axis=0).astype(self.vocab.context.activations)
            x = self.place(self.vocab, "x", dims, x)
            first = next(u for u in self.units if 0 in u.component.groups)
            return self.place(first, "residual", dims, x)

    def _unembed(self, logits: bool, params: Tree, R: Array) -> tuple[Array, Array | None]:
        ops, p = Ops(self, self.vocab, "BD"), params["vocab"]
        l = ops.product("l", "BV", (ops.normed(R, p["norm"]), "BD"), (p.get("Um", p["Em"]), "VD"))  # noqa: E741
        real = jnp.arange(l.shape[-1]) < self.vocab.context.real["V"]
        with jax.named_scope("vocab/t"):
            token = jnp.argmax(jnp.where(real, wide(l), -jnp.inf), axis=-1).astype(jnp.int32)
        return token, l if logits else None

    def _layers(
        self, number: int, group: LayerGroup, params: Tree, cache: Tree, R: Array, pos: Array
    ) -> tuple[Array, Tree, Tree]:
        """A layer group: the residual after it, the caches held, and the caches made (of prompts, stacked)."""
        ours = [u for u in self.units if number in u.component.groups]
        ours.sort(key=lambda u: u.component.kind != "attention")
        first = {u.name: sum(self.model.groups[g].count for g in u.component.groups if g < number) for u in ours}

        def layer(carry: tuple[Array, Tree], at: Array) -> tuple[tuple[Array, Tree], Tree]:
            R, cache, made = carry[0], dict(carry[1]), Tree()
            where = self.place(self.vocab, "pos", "BT"[: pos.ndim], pos)
            for unit in ours:
                index = first[unit.name] + at
                p = {n: lax.dynamic_index_in_dim(x, index, 0, keepdims=False) for n, x in params[unit.name].items()}
                R, written = Ops(self, unit, "BTD" if pos.ndim == 2 else "BD").layer(
                    R, p, cache.get(unit.name), index, where
                )
                if written:
                    (cache if unit.name in cache else made)[unit.name] = written
            return (R, cache), made

        (R, cache), made = lax.scan(layer, (R, cache), jnp.arange(group.count))
        return R, cache, made


@dataclass(frozen=True)
class Ops:
    """One component on a residual stream of dims `dims`."""

    plain: Plain
    unit: Unit
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

    def product(self, name: str, dims: str, a: tuple[Array, str], b: tuple[Array, str]) -> Array:
        """The einsum that makes tensor `name` of these dims."""
        with self._scope(name):
            x, y = (one.astype(self._context.compute) for one in (a[0], b[0]))
            text = subscripts(a[1], b[1], dims)
            made = jnp.einsum(text, x, y, preferred_element_type=self._context.activations)
        return self._placed(name, dims, made)

    def normed(self, R: Array, g: Array) -> Array:
        """The input `n` of the component."""
        with self._scope("n"):
            x = wide(R)
            if self.plain.model.norm == "layer":
                x = x - jnp.mean(x, axis=-1, keepdims=True)
            n = x * lax.rsqrt(jnp.mean(x * x, axis=-1, keepdims=True) + self._context.eps) * wide(g)
            n = self.plain.place(self.unit, "residual", self.dims, n.astype(self._context.activations))
        return self._placed("n", self.dims, n)

    def layer(
        self, R: Array, p: Weights, cache: Weights | None, index: Array, pos: Array
    ) -> tuple[Array, dict[str, Array]]:
        """The residual after one layer of the component, and its caches: all layers where held, else this one's."""
        n, written, added = self.normed(R, p["norm"]), dict[str, Array](), []
        if "WQ" in p:
            heads, written = self._attention(n, p, cache, index, pos)
            added.append(self.product("o", self.dims, (heads, self._tokens + "NH"), (p["WO"], "NHD")))
        if "WR" in p:
            added.append(self._moe(n, p))
        elif "Wi" in p:
            added.append(self._mlp(n, p))
        with self._scope("residual"):
            R = R + sum(added[1:], added[0])
        return self._placed("residual", self.dims, R), written

    def _mlp(self, n: Array, p: Weights, batch: str | None = None) -> Array:
        """One MLP, or that of each expert (`batch`: E)."""
        t, e = (self._tokens, "") if batch is None else ("EC", "E")
        h = self.product("h", t + "F", (n, t + "D"), (p["Wi"], e + "DF"))
        if "Wg" in p:
            u = self.product("u", t + "F", (n, t + "D"), (p["Wg"], e + "DF"))
            a = jax.nn.silu(wide(u)) * wide(h)
        else:
            a = jax.nn.gelu(wide(h), approximate=True)
        a = self._placed("a", t + "F", a.astype(self._context.activations))
        return self.product("o" if batch is None else "y", t + "D", (a, t + "F"), (p["Wo"], e + "FD"))

    def _moe(self, n: Array, p: Weights) -> Array:
        """Slots are counted on each shard of the tokens, as the plan has them; experts are whole arrays over E."""
        l = self.product("router", self._tokens + "E", (n, self.dims), (p["WR"], "DE"))  # noqa: E741
        with self._scope("router"):
            weights, experts = (self._shards(x) for x in plains(top_k(self._step("TopK"), self._context, (l,))))
        with self._scope("x"):
            run, C = self._step("Dispatch"), self._step("Dispatch").outputs[0].names.index("C")
            x = jax.vmap(lambda *v: plain(dispatch(run, self._context, v)[0]), out_axes=C)(self._shards(n), experts)
        y = self._mlp(self._placed("x", "ECD", x.reshape(x.shape[0], -1, x.shape[-1])), p, "E")
        with self._scope("o"):
            run, y = self._step("Combine"), y.reshape(x.shape)
            o = jax.vmap(lambda *v: plain(combine(run, self._context, v)[0]), in_axes=(C, 0, 0))(y, weights, experts)
        return self._placed("o", self.dims, self._joined(o, n.shape))

    def _step(self, op: str) -> Step:
        """The first step of this kind, with its types uncut."""
        step = next(s for s in self.unit.bodies[0].steps if s.op == op)
        whole = [
            tuple(replace(t, dims=tuple(Dim(d.name, ()) for d in t.dims)) for t in ts)
            for ts in (step.inputs, step.outputs)
        ]
        return replace(step, axes=(), inputs=whole[0], outputs=whole[1])

    def _counts(self) -> list[int]:
        """Shards of the tokens along each of their dims."""
        n = self.unit.bodies[0].input
        return [self._context.count(n.axes(d)) for d in self._tokens]

    def _shards(self, x: Array) -> Array:
        """`[B, (T,) ...]` -> `[shards, B/b, (T/t,) ...]`."""
        counts = self._counts()
        split = x.reshape(*(m for n, size in zip(counts, x.shape, strict=False) for m in (n, size // n)), x.shape[-1])
        moved = jnp.moveaxis(split, [2 * i for i in range(len(counts))], range(len(counts)))
        return moved.reshape(prod(counts), *moved.shape[len(counts) :])

    def _joined(self, x: Array, shape: tuple[int, ...]) -> Array:
        counts = self._counts()
        split = x.reshape(*counts, *x.shape[1:])
        return jnp.moveaxis(split, range(len(counts)), [2 * i for i in range(len(counts))]).reshape(shape)

    def _attention(
        self, n: Array, p: Weights, cache: Weights | None, index: Array, pos: Array
    ) -> tuple[Array, dict[str, Array]]:
        q, k, v = self._projected(n, p, pos)
        if cache is None:
            kept = {c: self._placed(c, "BSKH", x.astype(self.unit.caches[c].dtype)) for c, x in (("Kc", k), ("Vc", v))}
            written = {c: self._in_order(x, self.unit.caches[c]) for c, x in kept.items()}
            keys, values = self._placed("Kg", "BSKH", kept["Kc"]), self._placed("Vg", "BSKH", kept["Vc"])
            at = self._placed("at", "BS", pos)
        else:
            written = {c: self._append(cache[c], self.unit.caches[c], x, index, pos) for c, x in (("Kc", k), ("Vc", v))}
            keys, values = (self._read(written[c], self.unit.caches[c], index) for c in ("Kc", "Vc"))
            slots = stored_slots(self.unit.caches["Kc"], self._context)
            at = last_written(slots, pos[:, None], slots.shape[0])
        with self._scope("O"):
            heads = attend(q, keys, values, pos.reshape(*pos.shape[:1], -1), at, self._context)
        return self._placed("O", self._tokens + "NH", heads.reshape(*n.shape[:-1], -1, heads.shape[-1])), written

    def _projected(self, n: Array, p: Weights, pos: Array) -> tuple[Array, Array, Array]:
        t, M = self._tokens, p["WQ"].shape[1] // p["WK"].shape[1]
        q, k, v = (
            self.product(name, f"{t}{head}H", (n, self.dims), (p[w], f"D{head}H"))
            for name, w, head in (("Q", "WQ", "N"), ("k", "WK", "K"), ("v", "WV", "K"))
        )
        if "bq" in p:
            q, k, v = (x + p[b].astype(x.dtype) for x, b in ((q, "bq"), (k, "bk"), (v, "bv")))
        if "gq" in p:
            q, k = (self._head_norm(x, p[g]) for x, g in ((q, "gq"), (k, "gk")))
        q, k = rope(q, pos, self._context), rope(k, pos, self._context)
        q = q.reshape(*q.shape[:-2], -1, M, q.shape[-1])
        return self._placed("Q", t + "KMH", q), self._placed("k", t + "KH", k), self._placed("v", t + "KH", v)

    def _head_norm(self, x: Array, g: Array) -> Array:
        y = wide(x)
        return (y * lax.rsqrt(jnp.mean(y * y, axis=-1, keepdims=True) + self._context.eps) * wide(g)).astype(x.dtype)

    def _in_order(self, x: Array, stored: Stored) -> Array:
        order = ["BSKH".index(d) for d in stored.type.names]
        return x.transpose(order)

    def _read(self, cache: Array, stored: Stored, index: Array) -> Array:
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
