"""The step of a whole model on one device: embedding, layers under `lax.scan`, the last norm, logits.

It runs inside one `jax.shard_map`; all that communicates is a step of the layout's programs. Layer groups run one
after the other. Caches that are held are carried through the scan, all layers of them, and written in place.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import jax.numpy as jnp
from jax import lax

from executor.run.context import Array, Context, Stacked, Value, plain
from executor.run.interpret import interpret
from executor.run.runnable import RunnableComponent
from strategies.models.models import LayerGroup, Model
from strategies.notation import Program, Tensor

Tree = dict[str, dict[str, Array]]  # component -> tensor -> array


@dataclass(frozen=True)
class ModelStep:
    """A model's components, one of which is the vocabulary."""

    model: Model
    units: tuple[RunnableComponent, ...]

    @cached_property
    def vocab(self) -> RunnableComponent:
        """The vocabulary."""
        return next(u for u in self.units if u.component.kind == "vocab")

    def decode(self, logits: bool, params: Tree, cache: Tree, tok: Array, pos: Array) -> tuple[Any, ...]:
        """(next tokens, their logits or None, the caches with what was appended)."""
        whole = {"pos": pos}
        R = self._embed(params, tok, whole)
        for number, group in enumerate(self.model.groups):
            R, cache, _ = self._layers(number, group, params, cache, R, whole)
        return (*self._unembed(logits, params, R, whole), cache)

    def prefill(self, logits: bool, params: Tree, tok: Array, positions: Array, ends: Array) -> tuple[Any, ...]:
        """(next tokens, their logits or None, the prompts' caches); T is stored in the order of `positions`."""
        whole = {"pos": jnp.broadcast_to(positions, (ends.shape[0], positions.shape[0])), "lengths": ends}
        R = self._embed(params, tok, whole)
        made: list[Tree] = []
        for number, group in enumerate(self.model.groups):
            R, _, caches = self._layers(number, group, params, {}, R, whole)
            made.append(caches)
        return (*self._unembed(logits, params, R, whole), _joined(made))

    def _embed(self, params: Tree, tok: Array, whole: Mapping[str, Array]) -> Array:
        context = replace(self.vocab.context, whole=whole)
        return _chain((self.vocab.bodies[0], *self.vocab.leave), tok, params["vocab"], context)

    def _unembed(self, logits: bool, params: Tree, R: Array, whole: Mapping[str, Array]) -> tuple[Array, Array | None]:
        context = replace(self.vocab.context, whole=whole)
        values = {"Um": params["vocab"]["Em"]} | params["vocab"] | {"g": params["vocab"]["norm"]}
        body = self.vocab.bodies[-1]
        n = _chain(self.vocab.entry, R, values, context)
        held = interpret(body, {**values, body.input.name: n}, context)
        return plain(held[body.output.name]), plain(held[logits_of(body).name]) if logits else None

    def _layers(
        self, number: int, group: LayerGroup, params: Tree, cache: Tree, R: Array, whole: Mapping[str, Array]
    ) -> tuple[Array, Tree, Tree]:
        """A layer group: the residual after it, the caches held, and the caches made (of prompts, stacked)."""
        ours = [u for u in self.units if number in u.component.groups]
        ours.sort(key=lambda u: u.component.kind != "attention")  # components come in the order of their first groups
        first = {u.name: sum(self.model.groups[g].count for g in u.component.groups if g < number) for u in ours}

        def layer(carry: tuple[Array, Tree], at: Array) -> tuple[tuple[Array, Tree], Tree]:
            R, cache, made = carry[0], dict(carry[1]), {}
            for unit in ours:
                context = replace(unit.context, whole=whole)
                R, written = _run(unit, R, params[unit.name], cache.get(unit.name, {}), first[unit.name] + at, context)
                if unit.name in cache:
                    cache[unit.name] = written
                elif written:
                    made[unit.name] = written
            return (R, cache), made

        (R, cache), made = lax.scan(layer, (R, cache), jnp.arange(group.count))
        return R, cache, made


def _chain(programs: Sequence[Program], value: Array, values: Mapping[str, Value], context: Context) -> Array:
    """Programs one after the other: what one gives is what the next reads."""
    for program in programs:
        value = plain(interpret(program, {**values, program.input.name: value}, context)[program.output.name])
    return value


def _run(
    unit: RunnableComponent,
    R: Array,
    weights: Mapping[str, Array],
    cache: Mapping[str, Array],
    layer: Array,
    context: Context,
) -> tuple[Array, dict[str, Array]]:
    """One layer of a component: the residual after it, and its caches, all layers of which are held, or those made."""
    values: dict[str, Value] = {n: Stacked(x, layer) for n, x in (*weights.items(), *cache.items())}
    values |= {"g": values["norm"], "R": R}
    (body,) = unit.bodies
    n = _chain(unit.entry, R, values, context)
    held = interpret(body, {**values, body.input.name: n}, context)
    R = _chain(unit.leave, plain(held[body.output.name]), values, context)
    caches = {name: held[name] for name in unit.caches}
    return R, {name: x.array if isinstance(x, Stacked) else plain(x) for name, x in caches.items()}


def logits_of(body: Program) -> Tensor:
    """The tensor that the next token is chosen from."""
    return next(step.inputs[0] for step in reversed(body.steps) if body.output.name in (t.name for t in step.outputs))


def _joined(made: Sequence[Tree]) -> Tree:
    """Caches of layer groups as those of components, whose layers come in the groups' order."""
    trees: dict[str, dict[str, list[Array]]] = {}
    for tree in made:
        for component, tensors in tree.items():
            for name, x in tensors.items():
                trees.setdefault(component, {}).setdefault(name, []).append(x)
    return {c: {n: x[0] if len(x) == 1 else jnp.concatenate(x) for n, x in t.items()} for c, t in trees.items()}
