"""Automatic mode: the engine whose steps are plain code under `jax.jit`, with a plan's specs and constraints."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import jax
from jax.sharding import Mesh

from executor.automatic.model import Plain
from executor.loaded import Loaded
from executor.run.context import Array, untyped
from executor.run.engine import Engine, engine_of
from executor.run.interpret import PartitionSpec, spec
from executor.run.model_step import logits_of
from executor.run.runnable import RunnableComponent, RunOptions
from strategies.readers.specs import TensorSpec

Constraints = Mapping[str, TensorSpec]  # by group/component/tensor


@dataclass(frozen=True)
class Automatic(Engine):
    """An engine whose steps are plain code, cut by XLA; same parameters, caches and methods as the manual one.

    `constraints` are a plan's `activation_specs`: nothing else asks XLA for anything.
    """

    constraints: Constraints = field(default_factory=dict)

    @cached_property
    def _plain(self) -> Plain:
        return Plain(self.model, self.components, self._placed, self._parts)

    def _placed(self, unit: RunnableComponent, name: str, dims: str, x: Array) -> Array:
        """`x` where the constraints of that name for these dims want it, one after the other."""
        for asked in self._asked.get(f"{_group(unit)}/{name}", ()):
            if sorted(asked.dims) == sorted(dims):
                axes = dict(zip(asked.dims, asked.axes, strict=True))
                where = self.sharding(PartitionSpec(*(axes[d] or None for d in dims)))
                x = untyped.with_sharding_constraint(x, where)
        return x

    def _parts(self, unit: RunnableComponent, name: str) -> int:
        asked = self._asked.get(f"{_group(unit)}/{name}", ())
        return next((spec_.shape[0] for spec_ in asked if spec_.dims[0] == "U"), 1)

    @cached_property
    def _asked(self) -> dict[str, list[TensorSpec]]:
        """The constraints of each tensor in their order: `Q`, `Q@2` and so on."""
        requested: dict[str, list[TensorSpec]] = {}
        for name, asked in self.constraints.items():
            requested.setdefault(name.partition("@")[0], []).append(asked)
        return requested

    def decode_step(self, logits: bool = False) -> Any:
        """The jitted step (params, cache, tokens, pos) -> (tokens, logits or None, cache); the cache is donated."""
        return self._under_jit(self._plain.decode, logits, 1)

    def prefill_step(self, logits: bool = False) -> Any:
        """The jitted step (params, tokens, positions [T], lengths [B]) -> (tokens, logits or None, caches)."""
        return self._under_jit(self._plain.prefill, logits)

    def _under_jit(self, run: Any, logits: bool, *donated: int) -> Any:
        key = (run.__name__, logits)
        if key not in self._compiled:
            body, arguments = self.vocab.bodies[-1], self.abstract_arguments()
            wanted = self.sharding(spec(logits_of(body))) if logits else None
            self._compiled[key] = jax.jit(
                lambda *args: run(logits, *args),
                in_shardings=jax.tree.map(lambda x: x.sharding, arguments),
                out_shardings=(self.sharding(spec(body.output)), wanted, self.shardings(self.caches)),
                donate_argnums=donated,
            )
        return self._compiled[key]


def automatic_engine(
    loaded: Loaded, mesh: Mesh, constraints: Constraints, options: RunOptions | None = None
) -> Automatic:
    """The engine of a plan in automatic mode, under these constraints."""
    made = engine_of(loaded, mesh, options)
    return Automatic(made.model, made.work, made.mesh, made.components, made.options, constraints)


def _group(unit: RunnableComponent) -> str:
    """Return the prefix under which the plan has the constraints of a component."""
    return f"{','.join(map(str, unit.component.groups)) or 'model'}/{unit.name}"
