"""Run a whole model by the programs of its layout, with `prefill`, `insert` and `generate` like a serving engine.

The whole step is one `jax.shard_map`, and all its communication is in the steps of the layout's programs. Layers run
under `lax.scan`, layer groups one after the other; KV caches `[L, ...]` are carried through the scan and written in
place. An engine has one phase: a prefill engine reads prompts, and a decode engine takes in their caches (`insert`) and
generates tokens.
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
from executor.run.runnable import RunnableComponent, RunOptions, Stored, random_weight, runnable_components
from strategies.layout import BoundLayout
from strategies.models.models import Model
from strategies.models.workload import Workload

_Shape: Any = jax.ShapeDtypeStruct  # its constructor has no types


@dataclass(frozen=True)
class Engine:
    """A model on a mesh, for the phase and the batch of a workload.

    Parameters and caches are trees {component: {tensor: array}}; each array is stacked over the component's layers.
    """

    model: Model
    work: Workload
    mesh: Mesh
    components: tuple[RunnableComponent, ...]
    options: RunOptions = field(default_factory=RunOptions)

    @cached_property
    def _model_step(self) -> ModelStep:
        return ModelStep(self.model, self.components)

    @property
    def vocab(self) -> RunnableComponent:
        """The component that embeds and unembeds tokens."""
        return self._model_step.vocab

    @cached_property
    def weights(self) -> dict[str, dict[str, Stored]]:
        """The type, shapes and dtype of each parameter, as a tree."""
        return {component.name: dict(component.weights) for component in self.components}

    @cached_property
    def caches(self) -> dict[str, dict[str, Stored]]:
        """The type, shapes and dtype of each cache, as a tree.

        In decode these are the KV cache of the batch, in prefill the caches that the prompts give.
        """
        return {component.name: dict(component.caches) for component in self.components if component.caches}

    def sharding(self, spec_: Any) -> NamedSharding:
        """Return the NamedSharding of a PartitionSpec on this mesh."""
        return NamedSharding(self.mesh, spec_)

    def shardings(self, stored: Mapping[str, Mapping[str, Stored]]) -> dict[str, dict[str, NamedSharding]]:
        """Return the sharding of each tensor of a tree."""
        return {c: {name: self.sharding(s.spec) for name, s in tree.items()} for c, tree in stored.items()}

    def place(self, params: Mapping[str, Mapping[str, ArrayLike]]) -> Tree:
        """Pad, cast and shard parameters that have the model's own shapes, and return them on the devices.

        The names and shapes are those of `executor.reference.param_shapes`.
        """
        return dict(put(self._padded(params), self.shardings(self.weights)))

    def _padded(self, params: Mapping[str, Mapping[str, ArrayLike]]) -> Tree:
        return {
            component.name: {
                name: s.padded(jnp.asarray(params[component.name][name]), _heads(component))
                for name, s in component.weights.items()
            }
            for component in self.components
        }

    def init_params(self, key: Array) -> Tree:
        """Return random parameters (`random_weight`), made on the devices that store them."""

        def make(key: Array) -> Tree:
            names = [(c, name) for c, tree in self.weights.items() for name in tree]
            drawn: Tree = {c: {} for c in self.weights}
            for (c, name), tensor_key in zip(names, jax.random.split(key, len(names)), strict=True):
                drawn[c][name] = random_weight(self.weights[c][name], tensor_key, name)
            return self._padded(drawn)

        return dict(jax.jit(make, out_shardings=self.shardings(self.weights))(key))

    def init_cache(self) -> Tree:
        """Return caches of zeros, made on the devices that store them."""

        def make() -> Tree:
            return {c: {n: jnp.zeros(s.shape, s.dtype) for n, s in tree.items()} for c, tree in self.caches.items()}

        return dict(jax.jit(make, out_shardings=self.shardings(self.caches))())

    def generate(
        self, params: Tree, cache: Tree, tokens: ArrayLike, pos: ArrayLike, logits: bool = False
    ) -> tuple[Array, Array | None, Tree]:
        """Run one decode step and return (next tokens `[B]`, logits or None, the updated cache).

        `tokens`: the last token of each sequence, `[B]`. `pos`: its position, `[B]`, from 0. `cache` is donated and
        must not be used again. With `logits` the step also returns the logits `[B, V]`, V padded. A sequence may grow
        longer than the cache, which then has its last S tokens.
        """
        step = self.decode_step(logits)
        result: tuple[Array, Array | None, Tree] = step(params, cache, *self._put(tokens, pos))
        return result

    def prefill(
        self, params: Tree, tokens: ArrayLike, lengths: ArrayLike, logits: bool = False
    ) -> tuple[Array, Array | None, Prefilled]:
        """Read prompts and return (the next token of each `[B]`, logits `[B, V]` or None, their caches).

        `tokens`: the prompts `[B, T]`, padded on the right. `lengths`: their lengths `[B]`. The caches can be passed to
        `insert` of a decode engine.
        """
        tokens = np.asarray(tokens)
        order = self.prompt_order(tokens.shape[1])
        replicated = self.sharding(PartitionSpec())
        positions, placed_lengths = (put(np.asarray(x, np.int32), replicated) for x in (order, lengths))
        tok = self._put_tokens(tokens[:, order])
        token, next_logits, cache = self.prefill_step(logits)(params, tok, positions, placed_lengths)
        dims = tuple((c, next(iter(tree.values())).type.names) for c, tree in self.caches.items())
        return token, next_logits, Prefilled(cache, positions, placed_lengths, dims)

    def insert(self, cache: Tree, prefilled: Prefilled, slots: ArrayLike) -> Tree:
        """Insert the caches of prompts into a decode cache: prompt i becomes sequence `slots[i]` of the batch.

        `cache` is donated and must not be used again; the updated cache is returned.
        """
        placed_slots = put(jnp.asarray(slots, jnp.int32), self.sharding(PartitionSpec()))
        inserted: Tree = self._insert(cache, prefilled, placed_slots)
        return inserted

    @cached_property
    def _insert(self) -> Any:
        stored, shardings = self.caches, self.shardings(self.caches)
        contexts = {component.name: component.context for component in self.components}
        run = lambda cache, prompts, slots: insert_all(cache, prompts, slots, stored, contexts)  # noqa: E731
        return jax.jit(run, donate_argnums=0, out_shardings=shardings)

    def prompt_order(self, T: int) -> np.ndarray[Any, Any]:
        """Return the positions `[T]` of a prompt in the order in which T is stored.

        The order is `zigzag` if a step of a program has that option, and 0, 1, ... otherwise.
        """
        steps = [
            s
            for component in self.components
            for p in component.bodies
            for s in p.steps
            if s.option("order") == "zigzag"
        ]
        return zigzag(T, max((self.vocab.context.count(s.inputs[0].axes("T")) for s in steps), default=1))

    def _put(self, tokens: ArrayLike, pos: ArrayLike) -> tuple[Array, Array]:
        positions = put(jnp.asarray(pos, jnp.int32), self.sharding(PartitionSpec()))
        return self._put_tokens(tokens), positions

    def _put_tokens(self, tokens: ArrayLike) -> Array:
        sharding = self.sharding(spec(self.vocab.bodies[0].input))
        placed: Array = put(jnp.asarray(tokens, jnp.int32), sharding)
        return placed

    def decode_step(self, logits: bool = False) -> Any:
        """Return the jitted step (params, cache, tokens, pos) -> (tokens, logits or None, cache).

        The cache is donated. Tokens and positions are `[B]`.
        """
        tok = spec(self.vocab.bodies[0].input)
        inputs = (_specs(self.weights), _specs(self.caches), tok, PartitionSpec())
        return self._jit(self._model_step.decode, logits, inputs, donate=1)

    def prefill_step(self, logits: bool = False) -> Any:
        """Return the jitted step (params, tokens, positions, lengths) -> (next tokens, logits or None, caches).

        Tokens `[B, T]` and positions `[T]` are in the order in which T is stored (`prompt_order`); lengths are `[B]`.
        """
        tok = spec(self.vocab.bodies[0].input)
        return self._jit(
            self._model_step.prefill, logits, (_specs(self.weights), tok, PartitionSpec(), PartitionSpec())
        )

    def _jit(self, local: Callable[..., Any], logits: bool, inputs: tuple[Any, ...], donate: int | None = None) -> Any:
        key = (local.__name__, logits)
        if key not in self._compiled:
            body = self.vocab.bodies[-1]
            outputs = (spec(body.output), spec(logits_of(body)) if logits else None, _specs(self.caches))
            run = jax.shard_map(
                lambda *args: local(logits, *args), mesh=self.mesh, in_specs=inputs, out_specs=outputs, check_vma=False
            )
            in_shardings, out_shardings = (jax.tree.map(self.sharding, t, is_leaf=_is_spec) for t in (inputs, outputs))
            donated = () if donate is None else donate
            self._compiled[key] = jax.jit(
                run, in_shardings=in_shardings, out_shardings=out_shardings, donate_argnums=donated
            )
        return self._compiled[key]

    @cached_property
    def _compiled(self) -> dict[Any, Any]:
        return {}

    def abstract_arguments(self, T: int | None = None) -> tuple[Any, ...]:
        """Return the step's arguments as shapes with shardings, to compile it without data: `step.lower(*arguments)`.

        `T`: the length of the prompts; None: the workload's context. Decode ignores it.
        """
        B = self.work.batches[0]
        replicated, tok = self.sharding(PartitionSpec()), self.sharding(spec(self.vocab.bodies[0].input))
        params = self._abstract(self.weights)
        if self.work.phase == "decode":
            return params, self._abstract(self.caches), _ints((B,), tok), _ints((B,), replicated)
        T = T or self.work.context
        return params, _ints((B, T), tok), _ints((T,), replicated), _ints((B,), replicated)

    def _abstract(self, stored: Mapping[str, Mapping[str, Stored]]) -> Any:
        return {
            c: {n: _Shape(s.shape, s.dtype, sharding=self.sharding(s.spec)) for n, s in tree.items()}
            for c, tree in stored.items()
        }

    def lower(self, logits: bool = False) -> Any:
        """Return the step of this phase, lowered for the workload's sizes."""
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
    """Return an engine of a layout on a mesh.

    `work`: a workload with one batch, already padded. `sequence`: component name -> `striped` or `contiguous`, the
    order of its KV cache over shards. Raises the errors of `runnable_components`.
    """
    options = options or RunOptions()
    return Engine(
        model, work, mesh, runnable_components(layout, model, work, dict(mesh.shape), options, sequence or {}), options
    )


def engine_of(loaded: Loaded, mesh: Mesh, options: RunOptions | None = None) -> Engine:
    """Return an engine of a plan, for its padded batch."""
    plan = loaded.plan
    sequence = {
        plan_layout.component: plan_layout.sequence_order for plan_layout in plan.layouts if plan_layout.sequence_order
    }
    return engine(loaded.layout, plan.model, loaded.padded_workload, mesh, options, sequence)


def _heads(component: RunnableComponent) -> int:
    return int(component.component.dims.get("K", 1))


def _specs(stored: Mapping[str, Mapping[str, Stored]]) -> Any:
    return {c: {name: s.spec for name, s in tree.items()} for c, tree in stored.items()}


def _is_spec(x: object) -> bool:
    return isinstance(x, jax.sharding.PartitionSpec)


def _ints(shape: tuple[int, ...], sharding: NamedSharding) -> Any:
    return _Shape(shape, jnp.int32, sharding=sharding)
