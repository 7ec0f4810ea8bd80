"""Automatic mode"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import jax
from jax.sharding import Mesh

from executor.automatic_model import Plain
from executor.context import Array
from executor.engine import Engine, engine_of
from executor.interpret import PartitionSpec, spec
from executor.units import Options, Unit
from executor.whole import logits_of
from planner.plan import Plan, TensorSpec
from strategies.notation import Program


@dataclass(frozen=True)
class Automatic(Engine):
    """An engine whose step is plain code under `jit`; `constraints` by `group/component/tensor`."""

    constraints: Mapping[str, TensorSpec] = field(default_factory=dict)

    @cached_property
    def _plain(self) -> Plain:
        return Plain(self.model, self.units, self.constrain)

    def constrain(self, unit: Unit, name: str, dims: str, x: Array) -> Array:
        group = ",".join(map(str, unit.component.groups)) or "model"
        asked = self.constraints.get(f"{group}/{unit.name}/{name}")
        if asked is None or sorted(asked.dims) != sorted(dims):
            return x
        axes = dict(zip(asked.dims, asked.axes, strict=True))
        where = PartitionSpec(*(axes[d] or None for d in dims))
        found: Array = jax.lax.with_sharding_constraint(x, self.sharding(where))
        return found

    def decode_step(self, logits: bool = False) -> Any:
        return self._automatic(self._plain.decode, logits, donate=1)

    def prefill_step(self, logits: bool = False) -> Any:
        return self._automatic(self._plain.prefill, logits)

    def _automatic(self, run: Any, logits: bool, donate: int | None = None) -> Any:
        key = ("automatic", self.work.phase, logits)
        if key not in self._compiled:
            body = self.vocab.bodies[-1]
            placed = jax.tree.map(lambda x: x.sharding, self.abstract_arguments())
            out = self.sharding(spec(logits_of(body))) if logits else None
            made = (self.sharding(spec(body.output)), out, self.shardings(self.caches))
            self._compiled[key] = jax.jit(
                lambda *args: run(logits, *args), in_shardings=placed, out_shardings=made,
                donate_argnums=() if donate is None else donate,
            )
        return self._compiled[key]


def automatic_engine(plan: Plan, mesh: Mesh, constrained: bool = True, options: Options | None = None, programs=()) -> Automatic:
    e = engine_of(plan, mesh, options, programs)
    return Automatic(e.model, e.work, e.mesh, e.units, e.options, plan.activation_specs if constrained else {})
