"""One step of the whole model on one device: embedding, layers under `lax.scan`, the last norm, logits.

It runs inside one `jax.shard_map`, and all communication is in the steps of the layout's programs. Layer groups run one
after the other. In decode the scan carries the KV caches `[L, ...]` of all layers and writes them in place.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import jax.numpy as jnp
from jax import lax

from executor.run.context import Array, Context, Stacked, Value, array_of
from executor.run.interpret import interpret
from executor.run.runnable import RunnableComponent
from strategies.models.models import LayerGroup, Model
from strategies.notation import Program, Tensor

Tree = dict[str, dict[str, Array]]  # component -> tensor -> array


@dataclass(frozen=True)
class ModelStep:
    """The components of a model, run one after the other; one of them is the vocabulary."""

    model: Model
    components: tuple[RunnableComponent, ...]

    @cached_property
    def vocab(self) -> RunnableComponent:
        """The component that embeds and unembeds tokens."""
        return next(u for u in self.components if u.component.kind == "vocab")

    def decode(self, logits: bool, params: Tree, cache: Tree, tok: Array, pos: Array) -> tuple[Any, ...]:
        """Run one decode step and return (next tokens, logits or None, caches with the new entries).

        `tok`: this device's shard of the tokens `[B]`. `pos`: the position of each sequence's token, `[B]`, replicated.
        The logits are this device's shard of `[B, V]`.
        """
        replicated = {"pos": pos}
        R = self._embed(params, tok, replicated)
        for number, group in enumerate(self.model.groups):
            R, cache, _ = self._layers(number, group, params, cache, R, replicated)
        return (*self._unembed(logits, params, R, replicated), cache)

    def prefill(self, logits: bool, params: Tree, tok: Array, positions: Array, ends: Array) -> tuple[Any, ...]:
        """Run a prefill step and return (next tokens, logits or None, the prompts' caches).

        `tok`: this device's shard of the prompts `[B, T]`. `positions`: the position of each token, `[T]`, in the order
        in which T is stored. `ends`: the lengths of the prompts, `[B]`. Both are replicated.
        """
        replicated = {"pos": jnp.broadcast_to(positions, (ends.shape[0], positions.shape[0])), "lengths": ends}
        R = self._embed(params, tok, replicated)
        new_caches: list[Tree] = []
        for number, group in enumerate(self.model.groups):
            R, _, caches = self._layers(number, group, params, {}, R, replicated)
            new_caches.append(caches)
        return (*self._unembed(logits, params, R, replicated), _joined(new_caches))

    def _embed(self, params: Tree, tok: Array, replicated: Mapping[str, Array]) -> Array:
        context = replace(self.vocab.context, replicated=replicated)
        return _chain((self.vocab.bodies[0], *self.vocab.leave), tok, params["vocab"], context)

    def _unembed(
        self, logits: bool, params: Tree, R: Array, replicated: Mapping[str, Array]
    ) -> tuple[Array, Array | None]:
        context = replace(self.vocab.context, replicated=replicated)
        arguments = {"Um": params["vocab"]["Em"]} | params["vocab"] | {"g": params["vocab"]["norm"]}
        body = self.vocab.bodies[-1]
        n = _chain(self.vocab.entry, R, arguments, context)
        values_by_name = interpret(body, {**arguments, body.input.name: n}, context)
        return array_of(values_by_name[body.output.name]), array_of(
            values_by_name[logits_of(body).name]
        ) if logits else None

    def _layers(
        self, number: int, group: LayerGroup, params: Tree, cache: Tree, R: Array, replicated: Mapping[str, Array]
    ) -> tuple[Array, Tree, Tree]:
        """Run a layer group and return the residual, the updated caches, and the new caches of prompts, stacked."""
        components = [u for u in self.components if number in u.component.groups]
        components.sort(
            key=lambda u: u.component.kind != "attention"
        )  # components come in the order of their first groups
        first = {u.name: sum(self.model.groups[g].count for g in u.component.groups if g < number) for u in components}

        def layer(carry: tuple[Array, Tree], layer_number: Array) -> tuple[tuple[Array, Tree], Tree]:
            R, cache, new_caches = carry[0], dict(carry[1]), {}
            for component in components:
                context = replace(component.context, replicated=replicated)
                R, written = _run(
                    component,
                    R,
                    params[component.name],
                    cache.get(component.name, {}),
                    first[component.name] + layer_number,
                    context,
                )
                if component.name in cache:
                    cache[component.name] = written
                elif written:
                    new_caches[component.name] = written
            return (R, cache), new_caches

        (R, cache), new_caches = lax.scan(layer, (R, cache), jnp.arange(group.count))
        return R, cache, new_caches


def _chain(programs: Sequence[Program], value: Array, values: Mapping[str, Value], context: Context) -> Array:
    """Run programs one after the other; each reads the output of the one before."""
    for program in programs:
        value = array_of(interpret(program, {**values, program.input.name: value}, context)[program.output.name])
    return value


def _run(
    component: RunnableComponent,
    R: Array,
    weights: Mapping[str, Array],
    cache: Mapping[str, Array],
    layer: Array,
    context: Context,
) -> tuple[Array, dict[str, Array]]:
    """Run one layer of a component and return the residual and its caches: all layers in decode, one in prefill."""
    arguments: dict[str, Value] = {n: Stacked(x, layer) for n, x in (*weights.items(), *cache.items())}
    arguments |= {"g": arguments["norm"], "R": R}
    (body,) = component.bodies
    n = _chain(component.entry, R, arguments, context)
    values_by_name = interpret(body, {**arguments, body.input.name: n}, context)
    R = _chain(component.leave, array_of(values_by_name[body.output.name]), arguments, context)
    caches = {name: values_by_name[name] for name in component.caches}
    return R, {name: x.array if isinstance(x, Stacked) else array_of(x) for name, x in caches.items()}


def logits_of(body: Program) -> Tensor:
    """Return the type of the logits: the input of the step that chooses the next token."""
    return next(step.inputs[0] for step in reversed(body.steps) if body.output.name in (t.name for t in step.outputs))


def _joined(trees: Sequence[Tree]) -> Tree:
    """Concatenate the caches of layer groups into one per component, layers in the order of the groups."""
    lists: dict[str, dict[str, list[Array]]] = {}
    for tree in trees:
        for component, tensors in tree.items():
            for name, x in tensors.items():
                lists.setdefault(component, {}).setdefault(name, []).append(x)
    return {c: {n: x[0] if len(x) == 1 else jnp.concatenate(x) for n, x in t.items()} for c, t in lists.items()}
