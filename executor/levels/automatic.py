"""Levels `collectives` and `tpu-compiler` in automatic mode: what XLA makes of plain code under a plan's specs.

XLA chooses the collectives. With the plan's constraints on activations it is to choose what was priced; without them
(mode `unconstrained`) it gathers weights. What it does otherwise and moves more is a finding that names the tensor;
rewrites are notes.
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
    """Level `collectives`, for host devices: of the plan's shrunken copy, in float32.

    `without`: tensors whose constraints are left out, such as `0/attention/Q`.
    """
    check_supported(loaded.plan)
    small = shrink(loaded, F32)
    return _judged("collectives", small, host_mesh(small), options.mode, without)


def automatic_tpu_compiler(loaded: Loaded, options: LevelOptions = AUTOMATIC) -> Level:
    """Level `tpu-compiler`: of the plan at full size."""
    check_supported(loaded.plan)
    mesh = build_mesh(loaded.plan.mesh, loaded.slice_, tpu_devices(loaded.slice_))
    return _judged("tpu-compiler", loaded, mesh, options.mode)


def _judged(level: str, loaded: Loaded, mesh: Mesh, mode: str, without: Sequence[str] = ()) -> Level:
    """Mode `unconstrained` gives XLA the specs of parameters, inputs and results only."""
    plan = loaded.plan
    constraints = plan.activation_specs if mode == AUTOMATIC.mode else {}
    kept = {name: spec for name, spec in constraints.items() if name.partition("@")[0] not in without}
    engine = automatic_engine(loaded, mesh, kept, RunOptions(capacity_factor=capacity_factor(plan)))
    step = engine.decode_step() if plan.phase == "decode" else engine.prefill_step()
    try:
        made = compile_on(loaded.slice_, step, engine.abstract_arguments())
    except CompileFailed as error:
        return verdict(level, mode, 1, (Finding(what="compiling", promised="a program", found=str(error)),))
    if isinstance(made, DoesNotFit):
        return _too_big(plan, level, mode, made)
    judged = judge_collectives(plan, made.text, dict(mesh.shape), level, mode)
    return changed(judged, notes=(_memory(made), *judged.notes))


def _too_big(plan: Plan, level: str, mode: str, made: DoesNotFit) -> Level:
    finding = made.told(plan.memory.usable_bytes)
    promised = f"{plan.memory.total_bytes / 1e9:.4f} of {gb(plan.memory.usable_bytes)}"
    if plan.memory.total_bytes > plan.memory.usable_bytes:
        return verdict(level, mode, 1, (), (f"does not fit, as the plan says: {finding}",))
    return verdict(level, mode, 1, (Finding(what="memory", promised=promised, found=finding),))


def _memory(made: Compiled) -> str:
    return (
        f"memory: arguments {gb(made.argument_bytes)}, temporaries {gb(made.temp_bytes)}, "
        f"updated in place {gb(made.alias_bytes)}"
    )
