"""Automatic mode: plain code under `jax.jit` with a plan's specs, and what XLA makes of it.

XLA chooses the collectives. With the plan's constraints on activations it is to choose what was priced; without them
it gathers weights. What it does otherwise and moves more is a finding that names the tensor; rewrites are notes.
"""

from __future__ import annotations

import re
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
from mesh.slices import parse_slice
from planner.plan import Plan, TensorSpec
from strategies.notation import Program

MODE = "automatic"
Constraints = Mapping[str, TensorSpec]  # by group/component/tensor


@dataclass(frozen=True)
class Automatic(Engine):
    """An engine whose steps are plain code, cut by XLA; same parameters, caches and methods as the manual one."""

    constraints: Constraints = field(default_factory=dict)

    @cached_property
    def _plain(self) -> Plain:
        return Plain(self.model, self.units, self._placed)

    def _placed(self, unit: Unit, name: str, dims: str, x: Array) -> Array:
        """`x` where the constraint of that name wants it, if there is one for these dims."""
        asked = self.constraints.get(f"{_group(unit)}/{name}")
        if asked is None or sorted(asked.dims) != sorted(dims):
            return x
        axes = dict(zip(asked.dims, asked.axes, strict=True))
        where = self.sharding(PartitionSpec(*(axes[d] or None for d in dims)))
        found: Array = untyped.with_sharding_constraint(x, where)
        return found

    def decode_step(self, logits: bool = False) -> Any:
        """The jitted step (params, cache, tokens, pos) -> (tokens, logits or None, cache); the cache is donated."""
        return self._under_jit(self._plain.decode, logits, 1)

    def prefill_step(self, logits: bool = False) -> Any:
        """The jitted step (params, tokens, positions [T], lengths [B]) -> (tokens, logits or None, caches)."""
        return self._under_jit(self._plain.prefill, logits)

    def _under_jit(self, run: Any, logits: bool, *donated: int) -> Any:
        key = (MODE, run.__name__, logits)
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
    plan: Plan, mesh: Mesh, constraints: Constraints, options: Options | None = None, programs: Sequence[Program] = ()
) -> Automatic:
    """The engine of a plan in automatic mode, under these constraints."""
    made = engine_of(plan, mesh, options, programs)
    return Automatic(made.model, made.work, made.mesh, made.units, made.options, constraints)


def automatic_step(
    plan: Plan, mesh: Mesh, constrained: bool = True, programs: Sequence[Program] = ()
) -> tuple[Any, tuple[Any, ...]]:
    """The jitted step of a plan's phase and its arguments, as shapes with shardings: `step.lower(*arguments)`."""
    engine = automatic_engine(plan, mesh, constraints_of(plan) if constrained else {}, _options(plan), programs)
    return engine.decode_step() if plan.phase == "decode" else engine.prefill_step(), engine.abstract_arguments()


def _group(unit: Unit) -> str:
    """Where the plan has the constraints of a component."""
    return f"{','.join(map(str, unit.component.groups)) or 'model'}/{unit.name}"


def _options(plan: Plan) -> Options:
    return Options(capacity_factor=capacity_factor(plan))


def constraints_of(plan: Plan) -> dict[str, TensorSpec]:
    """The plan's constraints on activations, and those that follow from them and are needed as well.

    Of a prompt: keys and values (and positions) are whole along T where queries attend, or XLA gathers them once
    per block of keys. The embedding is looked up in the table's cut of D, or XLA moves the tokens.
    """
    found = dict(plan.activation_specs)
    for name, k in plan.activation_specs.items():
        unit, _, tensor = name.rpartition("/")
        if tensor == "k" and "T" in k.dims:
            keys = _uncut(k, "T")
            dims = ("B", "S", *k.dims[2:])
            found |= {f"{unit}/{c}": changed(k, dims=dims) for c in ("Kc", "Vc")}
            found |= {f"{unit}/{g}": changed(keys, dims=dims) for g in ("Kg", "Vg")}
            found[f"{unit}/at"] = changed(keys, dims=("B", "S"), shape=k.shape[:2], axes=((), ()))
    return found | _embedded(plan)


def _uncut(t: TensorSpec, dim: str) -> TensorSpec:
    return changed(t, axes=tuple(() if d == dim else a for d, a in zip(t.dims, t.axes, strict=True)))


def _embedded(plan: Plan) -> dict[str, TensorSpec]:
    """Where the embedding's rows are found, if one device has them whole; positions, which all have."""
    stream = next((s for n, s in plan.activation_specs.items() if n.startswith("0/") and n.endswith("/residual")), None)
    table, given = plan.specs.get("vocab/Em"), next(s for s in plan.cost.steps if s.op == "Lookup")
    if stream is None or table is None:
        return {}
    tokens = stream.dims[:-1]  # B, and T in prefill
    pos = TensorSpec(dims=tokens, shape=stream.shape[: len(tokens)], axes=((),) * len(tokens), dtype="int32")
    found = {"model/vocab/pos": pos}
    cut = {dim: tuple(axes) for dim, axes in re.findall(r"(\w)_(\w+)", given.text.split("=")[0])}
    if not table.axes[table.dims.index("V")]:
        found["model/vocab/x"] = changed(stream, axes=tuple(cut.get(d, ()) for d in stream.dims))
    return found


def automatic(
    plan: Plan,
    level: str,
    constrained: bool = True,
    *,
    programs: Sequence[Program] = (),
    without: Sequence[str] = (),
) -> Level:
    """Level `collectives` (for host devices, shrunken) or `tpu-compiler` (full size) of the plan in automatic mode.

    `without`: constraints to drop, such as `0/attention/Q`. Raises `Unavailable` where the devices, the compiler or
    parts of the model are missing.
    """
    started = time.perf_counter()
    check_supported(plan)
    plan = shrink(plan, programs, F32) if level == "collectives" else plan
    slice_ = parse_slice(plan.slice)
    mesh = host_mesh(plan) if level == "collectives" else build_mesh(plan.mesh, slice_, tpu_devices(slice_))
    asked = {n: s for n, s in constraints_of(plan).items() if constrained and n not in without}
    found = _judged(plan, level, mesh, automatic_engine(plan, mesh, asked, _options(plan), programs))
    return changed(found, seconds=time.perf_counter() - started)


def _judged(plan: Plan, level: str, mesh: Mesh, engine: Automatic) -> Level:
    step = engine.decode_step() if plan.phase == "decode" else engine.prefill_step()
    try:
        made = compile_on(parse_slice(plan.slice), step, engine.abstract_arguments())
    except CompileFailed as error:
        return verdict(level, MODE, 1, (Finding(what="compiling", promised="a program", found=str(error)),))
    if isinstance(made, DoesNotFit):
        return _too_big(plan, level, made)
    found = judge_collectives(plan, made.text, dict(mesh.shape), level, MODE)
    return changed(found, notes=(_memory(made), *found.notes))


def _too_big(plan: Plan, level: str, made: DoesNotFit) -> Level:
    found = f"{made.need_bytes / 1e9:.4f} GB needed, {made.have_bytes / 1e9:.4f} GB usable"
    promised = f"{plan.memory.total_bytes / 1e9:.4f} of {plan.memory.usable_bytes / 1e9:.4f} GB"
    if plan.memory.total_bytes > plan.memory.usable_bytes:
        return verdict(level, MODE, 1, (), (f"does not fit, as the plan says: {found}",))
    return verdict(level, MODE, 1, (Finding(what="memory", promised=promised, found=found),))


def _memory(made: Compiled) -> str:
    sizes = (made.argument_bytes, made.temp_bytes, made.alias_bytes)
    return "memory: arguments {:.4f} GB, temporaries {:.4f} GB, updated in place {:.4f} GB".format(
        *(n / 1e9 for n in sizes)
    )
