"""Automatic mode: plain code under `jax.jit` with a plan's specs, and what XLA makes of it.

XLA chooses the collectives. With the plan's constraints on activations it is to choose what was priced; without them
(mode `unconstrained`) it gathers weights. What it does otherwise and moves more is a finding that names the tensor;
rewrites are notes.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import jax
from jax.sharding import Mesh
from msgspec.structs import replace as changed

from executor.automatic_check import judge_collectives
from executor.automatic_model import Plain
from executor.compiled import Compiled, CompileFailed, DoesNotFit, compile_on
from executor.context import Array, untyped
from executor.devices import build_mesh, tpu_devices
from executor.engine import Engine, engine_of
from executor.host_collectives import capacity_factor
from executor.interpret import PartitionSpec, spec
from executor.numerics import check_supported, host_mesh
from executor.shrink import F32, shrink
from executor.units import Options, Unit
from executor.verdict import Finding, Level, verdict
from executor.whole import logits_of
from mesh.chips import Chip
from mesh.slices import Slice, parse_slice
from planner.plan import Plan, TensorSpec
from strategies.notation import Program

MODE = "automatic"
Constraints = Mapping[str, TensorSpec]  # by group/component/tensor


@dataclass(frozen=True)
class Automatic(Engine):
    """An engine whose steps are plain code, cut by XLA; same parameters, caches and methods as the manual one.

    `constraints` are a plan's `activation_specs`: nothing else asks XLA for anything.
    """

    constraints: Constraints = field(default_factory=dict)

    @cached_property
    def _plain(self) -> Plain:
        return Plain(self.model, self.units, self._placed, self._parts)

    def _placed(self, unit: Unit, name: str, dims: str, x: Array) -> Array:
        """`x` where the constraints of that name for these dims want it, one after the other."""
        for asked in self._asked.get(f"{_group(unit)}/{name}", ()):
            if sorted(asked.dims) == sorted(dims):
                axes = dict(zip(asked.dims, asked.axes, strict=True))
                where = self.sharding(PartitionSpec(*(axes[d] or None for d in dims)))
                x = untyped.with_sharding_constraint(x, where)
        return x

    def _parts(self, unit: Unit, name: str) -> int:
        asked = self._asked.get(f"{_group(unit)}/{name}", ())
        return next((spec_.shape[0] for spec_ in asked if spec_.dims[0] == "U"), 1)

    @cached_property
    def _asked(self) -> dict[str, list[TensorSpec]]:
        """The constraints of each tensor in their order: `Q`, `Q@2` and so on."""
        found: dict[str, list[TensorSpec]] = {}
        for name, asked in self.constraints.items():
            found.setdefault(name.partition("@")[0], []).append(asked)
        return found

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
    plan: Plan,
    mesh: Mesh,
    constraints: Constraints,
    options: Options | None = None,
    programs: Sequence[Program] = (),
    chip: Chip | None = None,
) -> Automatic:
    """The engine of a plan in automatic mode, under these constraints."""
    made = engine_of(plan, mesh, options, programs, chip)
    return Automatic(made.model, made.work, made.mesh, made.units, made.options, constraints)


def automatic_step(
    plan: Plan, mesh: Mesh, constrained: bool = True, programs: Sequence[Program] = ()
) -> tuple[Any, tuple[Any, ...]]:
    """The jitted step of a plan's phase and its arguments, as shapes with shardings: `step.lower(*arguments)`."""
    engine = automatic_engine(plan, mesh, plan.activation_specs if constrained else {}, _options(plan), programs)
    return engine.decode_step() if plan.phase == "decode" else engine.prefill_step(), engine.abstract_arguments()


def _group(unit: Unit) -> str:
    """Where the plan has the constraints of a component."""
    return f"{','.join(map(str, unit.component.groups)) or 'model'}/{unit.name}"


def _options(plan: Plan) -> Options:
    return Options(capacity_factor=capacity_factor(plan))


def automatic(
    plan: Plan,
    level: str,
    mode: str = MODE,
    *,
    programs: Sequence[Program] = (),
    without: Sequence[str] = (),
    chip: Chip | None = None,
) -> Level:
    """Level `collectives` (for host devices, shrunken) or `tpu-compiler` (full size) of the plan in automatic mode.

    Mode `unconstrained` gives XLA the specs of parameters, inputs and results only. `without`: tensors to leave to it,
    such as `0/attention/Q`. Raises `Unavailable` where the devices, the compiler or parts of the model are missing.
    """
    started = time.perf_counter()
    check_supported(plan)
    if level == "collectives":
        plan, chip = shrink(plan, programs, F32, chip), None
    slice_ = parse_slice(plan.slice, chip)
    mesh = host_mesh(plan) if level == "collectives" else build_mesh(plan.mesh, slice_, tpu_devices(slice_))
    wanted = plan.activation_specs if mode == MODE else {}
    asked = {n: s for n, s in wanted.items() if n.partition("@")[0] not in without}
    engine = automatic_engine(plan, mesh, asked, _options(plan), programs, chip)
    found = _judged(plan, level, dict(mesh.shape), engine, slice_)
    return changed(found, mode=mode, seconds=time.perf_counter() - started)


def _judged(plan: Plan, level: str, sizes: Mapping[str, int], engine: Automatic, slice_: Slice) -> Level:
    step = engine.decode_step() if plan.phase == "decode" else engine.prefill_step()
    try:
        made = compile_on(slice_, step, engine.abstract_arguments())
    except CompileFailed as error:
        return verdict(level, MODE, 1, (Finding(what="compiling", promised="a program", found=str(error)),))
    if isinstance(made, DoesNotFit):
        return _too_big(plan, level, made)
    found = judge_collectives(plan, made.text, sizes, level, MODE)
    return changed(found, notes=(_memory(made), *found.notes))


def _too_big(plan: Plan, level: str, made: DoesNotFit) -> Level:
    found = made.told(plan.memory.usable_bytes)
    promised = f"{plan.memory.total_bytes / 1e9:.4f} of {plan.memory.usable_bytes / 1e9:.4f} GB"
    if plan.memory.total_bytes > plan.memory.usable_bytes:
        return verdict(level, MODE, 1, (), (f"does not fit, as the plan says: {found}",))
    return verdict(level, MODE, 1, (Finding(what="memory", promised=promised, found=found),))


def _memory(made: Compiled) -> str:
    sizes = (made.argument_bytes, made.temp_bytes, made.alias_bytes)
    return "memory: arguments {:.4f} GB, temporaries {:.4f} GB, updated in place {:.4f} GB".format(
        *(n / 1e9 for n in sizes)
    )
