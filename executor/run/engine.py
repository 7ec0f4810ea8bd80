"""A whole model run by the programs of its layout: `prefill`, `insert` and `generate`, as a serving engine has them.

Everything that communicates in a step is a step of the programs; the whole step is one `jax.shard_map`. Layers run
under `lax.scan`, layer groups one after the other. Caches `[L, ...]` are carried through it and written in place.
An engine is of one phase: one of decode generates and takes in the prompts that one of prefill has read.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding
from numpy.typing import ArrayLike

from executor.loaded import Loaded
from executor.processes.process_arrays import put
from executor.run.context import Array
from executor.run.interpret import PartitionSpec, spec
from executor.run.model_step import ModelStep, Tree, logits_of
from executor.run.prompts import Prefilled, insert_all, zigzag
from executor.run.runnable import RunnableComponent, RunOptions, Stored, random_weight, units
from strategies.layout import BoundLayout
from strategies.models.models import Model
from strategies.models.workload import Workload

_Shape: Any = jax.ShapeDtypeStruct  # its constructor has no types


@dataclass(frozen=True)
class Engine:
    """A model on a mesh. Trees are {component: {tensor: array}}, stacked over a component's layers."""

    model: Model
    work: Workload
    mesh: Mesh
    units: tuple[RunnableComponent, ...]
    options: RunOptions = field(default_factory=RunOptions)

    @cached_property
    def _whole(self) -> ModelStep:
        return ModelStep(self.model, self.units)

    @property
    def vocab(self) -> RunnableComponent:
        """The vocabulary."""
        return self._whole.vocab

    @cached_property
    def weights(self) -> dict[str, dict[str, Stored]]:
        """Types and shapes of the parameters."""
        return {u.name: dict(u.weights) for u in self.units}

    @cached_property
    def caches(self) -> dict[str, dict[str, Stored]]:
        """Types and shapes of the caches: in decode of what is held, in prefill of what a prompt gives."""
        return {u.name: dict(u.caches) for u in self.units if u.caches}

    def sharding(self, spec_: Any) -> NamedSharding:
        """A PartitionSpec on this mesh."""
        return NamedSharding(self.mesh, spec_)

    def shardings(self, stored: Mapping[str, Mapping[str, Stored]]) -> dict[str, dict[str, NamedSharding]]:
        """The sharding of each tensor of a tree."""
        return {c: {name: self.sharding(s.spec) for name, s in tree.items()} for c, tree in stored.items()}

    def place(self, params: Mapping[str, Mapping[str, ArrayLike]]) -> Tree:
        """Parameters in the model's own shapes: padded, cast and put where the layout wants them."""
        return dict(put(self._padded(params), self.shardings(self.weights)))

    def _padded(self, params: Mapping[str, Mapping[str, ArrayLike]]) -> Tree:
        return {
            u.name: {name: s.padded(jnp.asarray(params[u.name][name]), _heads(u)) for name, s in u.weights.items()}
            for u in self.units
        }

    def init_params(self, key: Array) -> Tree:
        """Random parameters, made where they belong."""

        def make(key: Array) -> Tree:
            names = [(c, name) for c, tree in self.weights.items() for name in tree]
            drawn: Tree = {c: {} for c in self.weights}
            for (c, name), one in zip(names, jax.random.split(key, len(names)), strict=True):
                drawn[c][name] = random_weight(self.weights[c][name], one, name)
            return self._padded(drawn)

        return dict(jax.jit(make, out_shardings=self.shardings(self.weights))(key))

    def init_cache(self) -> Tree:
        """Empty caches, made where they belong."""

        def make() -> Tree:
            return {c: {n: jnp.zeros(s.shape, s.dtype) for n, s in tree.items()} for c, tree in self.caches.items()}

        return dict(jax.jit(make, out_shardings=self.shardings(self.caches))())

    def generate(
        self, params: Tree, cache: Tree, tokens: ArrayLike, pos: ArrayLike, logits: bool = False
    ) -> tuple[Array, Array | None, Tree]:
        """The next token of each sequence, given its last token and where that stands; `cache` is consumed.

        With `logits` also those `[B, V]` (V padded). A sequence may be longer than the cache: the last S tokens stay.
        """
        step = self.decode_step(logits)
        results: tuple[Array, Array | None, Tree] = step(params, cache, *self._put(tokens, pos))
        return results

    def prefill(
        self, params: Tree, tokens: ArrayLike, lengths: ArrayLike, logits: bool = False
    ) -> tuple[Array, Array | None, Prefilled]:
        """The token after each prompt `[B, T]` of these lengths (padded on the right), and the prompts' caches."""
        tokens = np.asarray(tokens)
        order = self.prompt_order(tokens.shape[1])
        whole = self.sharding(PartitionSpec())
        positions, ends = (put(np.asarray(x, np.int32), whole) for x in (order, lengths))
        tok = self._put_tokens(tokens[:, order])
        token, logits_, cache = self.prefill_step(logits)(params, tok, positions, ends)
        dims = tuple((c, next(iter(tree.values())).type.names) for c, tree in self.caches.items())
        return token, logits_, Prefilled(cache, positions, ends, dims)

    def insert(self, cache: Tree, prefilled: Prefilled, slots: ArrayLike) -> Tree:
        """The caches (consumed) with prompt i of `prefilled` in place `slots[i]` of the batch."""
        places = put(jnp.asarray(slots, jnp.int32), self.sharding(PartitionSpec()))
        cache_: Tree = self._insert(cache, prefilled, places)
        return cache_

    @cached_property
    def _insert(self) -> Any:
        stored, shardings = self.caches, self.shardings(self.caches)
        contexts = {u.name: u.context for u in self.units}
        run = lambda cache, prompts, slots: insert_all(cache, prompts, slots, stored, contexts)  # noqa: E731
        return jax.jit(run, donate_argnums=0, out_shardings=shardings)

    def prompt_order(self, T: int) -> np.ndarray[Any, Any]:
        """The positions of a prompt in the order in which T is stored: zigzag where the text says so."""
        steps = [s for u in self.units for p in u.bodies for s in p.steps if s.option("order") == "zigzag"]
        return zigzag(T, max((self.vocab.context.count(s.inputs[0].axes("T")) for s in steps), default=1))

    def _put(self, tokens: ArrayLike, pos: ArrayLike) -> tuple[Array, Array]:
        positions = put(jnp.asarray(pos, jnp.int32), self.sharding(PartitionSpec()))
        return self._put_tokens(tokens), positions

    def _put_tokens(self, tokens: ArrayLike) -> Array:
        where = self.sharding(spec(self.vocab.bodies[0].input))
        placed: Array = put(jnp.asarray(tokens, jnp.int32), where)
        return placed

    def decode_step(self, logits: bool = False) -> Any:
        """The jitted step (params, cache, tokens, pos) -> (tokens, logits or None, cache); the cache is donated."""
        tok = spec(self.vocab.bodies[0].input)
        inputs = (_specs(self.weights), _specs(self.caches), tok, PartitionSpec())
        return self._jit(self._whole.decode, logits, inputs, donate=1)

    def prefill_step(self, logits: bool = False) -> Any:
        """The jitted step (params, tokens, positions [T], lengths [B]) -> (tokens, logits or None, caches)."""
        tok = spec(self.vocab.bodies[0].input)
        return self._jit(self._whole.prefill, logits, (_specs(self.weights), tok, PartitionSpec(), PartitionSpec()))

    def _jit(self, local: Callable[..., Any], logits: bool, inputs: tuple[Any, ...], donate: int | None = None) -> Any:
        key = (local.__name__, logits)
        if key not in self._compiled:
            body = self.vocab.bodies[-1]
            outputs = (spec(body.output), spec(logits_of(body)) if logits else None, _specs(self.caches))
            run = jax.shard_map(
                lambda *args: local(logits, *args), mesh=self.mesh, in_specs=inputs, out_specs=outputs, check_vma=False
            )
            placed, made = (jax.tree.map(self.sharding, t, is_leaf=_is_spec) for t in (inputs, outputs))
            given = () if donate is None else donate
            self._compiled[key] = jax.jit(run, in_shardings=placed, out_shardings=made, donate_argnums=given)
        return self._compiled[key]

    @cached_property
    def _compiled(self) -> dict[Any, Any]:
        return {}

    def abstract_arguments(self, T: int | None = None) -> tuple[Any, ...]:
        """The step's arguments as shapes with shardings, to compile it without data: `step.lower(*arguments)`."""
        B = self.work.batches[0]
        whole, tok = self.sharding(PartitionSpec()), self.sharding(spec(self.vocab.bodies[0].input))
        params = self._abstract(self.weights)
        if self.work.phase == "decode":
            return params, self._abstract(self.caches), _ints((B,), tok), _ints((B,), whole)
        T = T or self.work.context
        return params, _ints((B, T), tok), _ints((T,), whole), _ints((B,), whole)

    def _abstract(self, stored: Mapping[str, Mapping[str, Stored]]) -> Any:
        return {
            c: {n: _Shape(s.shape, s.dtype, sharding=self.sharding(s.spec)) for n, s in tree.items()}
            for c, tree in stored.items()
        }

    def lower(self, logits: bool = False) -> Any:
        """The step of this phase, lowered for the workload's sizes."""
        step = self.decode_step(logits) if self.work.phase == "decode" else self.prefill_step(logits)
        return step.lower(*self.abstract_arguments())


def engine(
    layout: BoundLayout,
    model: Model,
    work: Workload,
    mesh: Mesh,
    options: RunOptions | None = None,
    sequence: Mapping[str, str] | None = None,
) -> Engine:
    """An engine of a layout; `work` has one batch, padded. `sequence`: per component `striped` or `contiguous`."""
    options = options or RunOptions()
    return Engine(model, work, mesh, units(layout, model, work, dict(mesh.shape), options, sequence or {}), options)


def engine_of(loaded: Loaded, mesh: Mesh, options: RunOptions | None = None) -> Engine:
    """An engine of a plan, for its padded batch."""
    plan = loaded.plan
    sequence = {one.component: one.sequence_order for one in plan.layouts if one.sequence_order}
    return engine(loaded.layout, plan.model, loaded.padded_workload, mesh, options, sequence)


def _heads(unit: RunnableComponent) -> int:
    return int(unit.component.dims.get("K", 1))


def _specs(stored: Mapping[str, Mapping[str, Stored]]) -> Any:
    return {c: {name: s.spec for name, s in tree.items()} for c, tree in stored.items()}


def _is_spec(x: object) -> bool:
    return isinstance(x, jax.sharding.PartitionSpec)


def _ints(shape: tuple[int, ...], sharding: NamedSharding) -> Any:
    return _Shape(shape, jnp.int32, sharding=sharding)
