"""Levels `collectives` and `tpu-compiler` in automatic mode: XLA compiles plain code under a plan's PartitionSpecs.

XLA chooses the collectives. With the plan's constraints on activations it is expected to choose the priced ones;
without them (mode `unconstrained`) it gathers weights. A choice that moves more bytes is a finding that names the
tensor; rewrites that do not are notes.
"""

from __future__ import annotations

from collections.abc import Sequence

from jax.sharding import Mesh
from msgspec.structs import replace as changed

from executor.automatic.judge import judge_collectives
from executor.automatic.mode import automatic_engine
from executor.compiler.compiled import Compiled, CompileFailed, DoesNotFit, compile_on
from executor.devices import build_mesh, tpu_devices
from executor.levels.common import capacity_factor, check_supported, host_mesh
from executor.levels.level import LevelOptions
from executor.levels.shrink import F32, shrink
from executor.loaded import Loaded
from executor.run.runnable import RunOptions
from executor.verdict import Finding, Level, verdict
from executor.wording import gb
from planner.plan.plan import Plan

AUTOMATIC = LevelOptions(mode="automatic")


def automatic_collectives(loaded: Loaded, options: LevelOptions = AUTOMATIC, without: Sequence[str] = ()) -> Level:
    """Return the level `collectives` for host devices, of the plan's shrunken copy in float32.

    `without`: tensors whose constraints are left out, such as `0/attention/Q`.
    """
    check_supported(loaded.plan)
    small = shrink(loaded, F32)
    return _judge("collectives", small, host_mesh(small), options.mode, without)


def automatic_tpu_compiler(loaded: Loaded, options: LevelOptions = AUTOMATIC) -> Level:
    """Return the level `tpu-compiler` of the plan at full size."""
    check_supported(loaded.plan)
    mesh = build_mesh(loaded.plan.mesh, loaded.slice_, tpu_devices(loaded.slice_))
    return _judge("tpu-compiler", loaded, mesh, options.mode)


def _judge(level: str, loaded: Loaded, mesh: Mesh, mode: str, without: Sequence[str] = ()) -> Level:
    """Compile the step and judge its collectives; mode `unconstrained` gives XLA no specs of activations."""
    plan = loaded.plan
    available = plan.activation_specs if mode == AUTOMATIC.mode else {}
    constraints = {name: spec for name, spec in available.items() if name.partition("@")[0] not in without}
    engine = automatic_engine(loaded, mesh, constraints, RunOptions(capacity_factor=capacity_factor(plan)))
    step = engine.decode_step() if plan.phase == "decode" else engine.prefill_step()
    try:
        compiled = compile_on(loaded.slice_, step, engine.abstract_arguments())
    except CompileFailed as error:
        return verdict(level, mode, 1, (Finding(what="compiling", promised="a program", found=str(error)),))
    if isinstance(compiled, DoesNotFit):
        return _judge_too_big(plan, level, mode, compiled)
    result = judge_collectives(plan, compiled.text, dict(mesh.shape), level, mode)
    return changed(result, notes=(_memory_note(compiled), *result.notes))


def _judge_too_big(plan: Plan, level: str, mode: str, does_not_fit: DoesNotFit) -> Level:
    described = does_not_fit.describe(plan.memory.usable_bytes)
    promised = f"{plan.memory.total_bytes / 1e9:.4f} of {gb(plan.memory.usable_bytes)}"
    if plan.memory.total_bytes > plan.memory.usable_bytes:
        return verdict(level, mode, 1, (), (f"does not fit, as the plan says: {described}",))
    return verdict(level, mode, 1, (Finding(what="memory", promised=promised, found=described),))


def _memory_note(compiled: Compiled) -> str:
    return (
        f"memory: arguments {gb(compiled.argument_bytes)}, temporaries {gb(compiled.temp_bytes)}, "
        f"updated in place {gb(compiled.alias_bytes)}"
    )
