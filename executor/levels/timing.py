"""Level `timing` runs the plan's step on the devices of this machine and compares its seconds with the price.

A measured time is the median of several runs after one warm-up run; each run lasts until every result is ready
(`executor.clock`). The level passes or fails only if the user gives a factor (`timing_within`); without one it reports
the time and judges nothing. A price is made of bandwidths and FLOP/s, so it includes neither the cost of launching a
program nor the cost of each small operation.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import jax
import numpy as np

from executor.automatic.mode import automatic_engine
from executor.clock import REPEATS, median_seconds
from executor.devices import Unavailable, build_mesh, memory_bytes, platform_devices
from executor.levels.common import capacity_factor, check_supported, raised
from executor.levels.level import MANUAL, LevelOptions
from executor.loaded import Loaded
from executor.run.engine import Engine, engine_of
from executor.run.runnable import RunOptions
from executor.verdict import Finding, Level, unjudged, verdict
from executor.wording import ms
from planner.plan.accuracy import whose_constants
from planner.plan.plan import Plan

LEVEL = "timing"


def timing(loaded: Loaded, options: LevelOptions = MANUAL, repeats: int = REPEATS) -> Level:
    """Run the plan's step at full size on the devices of its chip and return the level `timing`.

    With `options.timing_within` = w the level passes if the measured seconds lie between price / w and price * w.
    Without it the time is in the notes, and the status is `told`. A step that raises an error fails the level.
    Raises `Unavailable` if the machine lacks the devices or their memory, or if the model cannot be run.
    """
    check_supported(loaded.plan)
    devices = present_devices(loaded)
    try:
        measured_s = measure(loaded, devices, options.mode, repeats)
    except Exception as error:  # a step that cannot be run is a finding, whatever it raises
        return verdict(LEVEL, options.mode, 1, (raised("the step", "runs", error),))
    how = f"median of {repeats} on {loaded.plan.devices} x {devices[0].device_kind}"
    return judge(loaded.plan, options, measured_s, how)


def judge(plan: Plan, options: LevelOptions, measured_s: float, how: str) -> Level:
    """Return the level of a plan whose step took `measured_s` seconds; `how` says in words how they were measured.

    The ratio of `measured_s` to the priced seconds must lie between 1 / `timing_within` and `timing_within`.
    """
    ratio, within, mode = measured_s / plan.cost.step_s, options.timing_within, options.mode
    notes = tuple(_notes(plan, measured_s, how))
    if within is None:
        return unjudged(LEVEL, mode, "measured and not judged: no factor was given that it must be within", notes)
    if 1 / within <= ratio <= within:
        return verdict(LEVEL, mode, 1, (), notes)
    promised = f"{ms(plan.cost.step_s)} within a factor of {within:g}"
    finding = Finding(what=f"the {plan.phase} step", promised=promised, found=f"{ms(measured_s)}: {ratio:.2f} x")
    return verdict(LEVEL, mode, 1, (finding,), notes)


def _notes(plan: Plan, measured_s: float, how: str) -> Iterator[str]:
    cost = plan.cost
    yield (
        f"{plan.phase} step: {ms(measured_s)} measured ({how}), {ms(cost.step_s)} priced: "
        f"{measured_s / cost.step_s:.2f} x"
    )
    terms = {"FLOPs": cost.flops_s, "HBM": cost.hbm_s, "ICI": cost.ici_s, "hops": cost.latency_s}
    yield "priced: " + ", ".join(f"{name} {ms(seconds)}" for name, seconds in terms.items())
    yield f"layout: {label(plan)}"
    yield whose_constants(plan.constants)


def present_devices(loaded: Loaded) -> Sequence[jax.Device]:
    """Return as many devices of the plan's platform (cpu, gpu or tpu) as its slice has.

    Raises `Unavailable` if there are fewer, or if one has less memory than the plan's bytes per device.
    """
    slice_ = loaded.slice_
    platform = slice_.chip.kind
    devices = platform_devices(platform)
    if len(devices) < slice_.devices:
        raise Unavailable(
            f"{slice_.name} needs {slice_.devices} {platform} devices, there are {len(devices)}: "
            f"`meshwright calibrate` the devices that are here, and plan on that chip"
        )
    devices = devices[: slice_.devices]
    available_bytes, needed_bytes = memory_bytes(devices[0], len(devices)), loaded.plan.memory.total_bytes
    if needed_bytes > available_bytes:
        raise Unavailable(
            f"needs {needed_bytes / 1e9:.2f} GB per device, there are {available_bytes / 1e9:.2f} GB: "
            f"plan a smaller batch"
        )
    return devices


def measure(loaded: Loaded, devices: Sequence[jax.Device], mode: str = "manual", repeats: int = REPEATS) -> float:
    """Return the seconds of the plan's step on these devices, with random weights.

    A decode step runs at position context - 1, the last slot of the KV cache; a prefill step reads prompts of the full
    context. `mode`: `manual` runs the plan's programs under `shard_map`; `automatic` runs plain code under `jit` with
    the plan's constraints on activations, `unconstrained` without them.
    """
    plan = loaded.plan
    mesh, options = build_mesh(plan.mesh, loaded.slice_, devices), RunOptions(capacity_factor=capacity_factor(plan))
    if mode == "manual":
        return step_seconds(engine_of(loaded, mesh, options), repeats)
    constraints = {} if mode == "unconstrained" else plan.activation_specs
    return step_seconds(automatic_engine(loaded, mesh, constraints, options), repeats)


def step_seconds(engine: Engine, repeats: int = REPEATS) -> float:
    """Return the median seconds of an engine's step.

    Each decode step consumes (donates) the KV cache that the previous step returned, as it does when it serves.
    """
    params, T = engine.init_params(jax.random.key(0)), engine.work.context
    shapes = engine.abstract_arguments()
    if engine.work.phase == "prefill":
        fixed = [_filled(s, x) for s, x in zip(shapes[1:], (1, engine.prompt_order(T), T), strict=True)]
        step = engine.prefill_step()
        return median_seconds(lambda: step(params, *fixed), repeats)
    tokens, pos = (_filled(s, x) for s, x in zip(shapes[2:], (1, T - 1), strict=True))
    step, cache = engine.decode_step(), [engine.init_cache()]

    def run_step() -> Any:
        token, _, cache[0] = step(params, cache[0], tokens, pos)
        return token, cache[0]

    return median_seconds(run_step, repeats)


def _filled(shape: Any, value: Any) -> Any:
    """Return an int32 array of an abstract array's shape and sharding, filled with `value` (broadcast)."""
    return jax.device_put(np.broadcast_to(np.asarray(value, np.int32), shape.shape), shape.sharding)


def label(plan: Plan) -> str:
    """Return a plan's layout as one line: mesh, cut of the residual, and each component's program and axis roles."""
    mesh = " ".join(f"{n}{s}" for n, s in zip(plan.mesh.axis_names, plan.mesh.axis_sizes, strict=True)) or "1"
    cut = "".join(f" {dim}_{''.join(axes)}" for dim, axes in plan.residual.items() if axes) or " whole"
    parts = [f"{o.component} {o.program} {' '.join(map(':'.join, o.assignment.items()))}" for o in plan.layouts]
    return "; ".join((f"{mesh}, residual{cut}", *parts))
