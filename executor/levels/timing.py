"""Level `timing`: the plan's step, run on the devices that are present, against the seconds that were priced.

A time is the median of repeated runs after a warm-up, each until every result is ready. It is judged only against a
factor that the user gives, and told otherwise: a price is made of bandwidths and FLOP/s, and knows neither what the
launch of a program costs nor what each of its small operations does.
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
from executor.verdict import Finding, Level, informational, verdict
from executor.wording import ms
from planner.plan.accuracy import whose_constants
from planner.plan.plan import Plan

LEVEL = "timing"


def timing(loaded: Loaded, options: LevelOptions = MANUAL, repeats: int = REPEATS) -> Level:
    """The level of a plan, at its full size, on the devices of its chip; raises `Unavailable` where there are none.

    The measured step may be `timing_within` times the priced one, and the priced one that many times the measured;
    without it the time is told and not judged.
    """
    check_supported(loaded.plan)
    devices = present_devices(loaded)
    try:
        measured_s = measure(loaded, devices, options.mode, repeats)
    except Exception as error:  # a step that cannot be run is a finding, whatever it raises
        return verdict(LEVEL, options.mode, 1, (raised("the step", "runs", error),))
    how = f"median of {repeats} on {loaded.plan.devices} x {devices[0].device_kind}"
    return judged(loaded.plan, options, measured_s, how)


def judged(plan: Plan, options: LevelOptions, measured_s: float, how: str) -> Level:
    """The level of a plan whose step took `measured_s`."""
    ratio, within, mode = measured_s / plan.cost.step_s, options.timing_within, options.mode
    notes = tuple(_notes(plan, measured_s, how))
    if within is None:
        return informational(LEVEL, mode, "measured and not judged: no factor was given that it must be within", notes)
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
    """The devices here that are those of the plan's chip; raises `Unavailable` where they or their memory are few."""
    slice_ = loaded.slice_
    platform = slice_.chip.kind
    have = platform_devices(platform)
    if len(have) < slice_.devices:
        raise Unavailable(
            f"{slice_.name} needs {slice_.devices} {platform} devices, there are {len(have)}: `meshwright calibrate` "
            f"the devices that are here, and plan on that chip"
        )
    have = have[: slice_.devices]
    held, need = memory_bytes(have[0], len(have)), loaded.plan.memory.total_bytes
    if need > held:
        raise Unavailable(f"needs {need / 1e9:.2f} GB per device, there are {held / 1e9:.2f} GB: plan a smaller batch")
    return have


def measure(loaded: Loaded, devices: Sequence[jax.Device], mode: str = "manual", repeats: int = REPEATS) -> float:
    """Seconds of the plan's step on these devices: random weights, and caches that are full up to the last token."""
    plan = loaded.plan
    mesh, options = build_mesh(plan.mesh, loaded.slice_, devices), RunOptions(capacity_factor=capacity_factor(plan))
    if mode == "manual":
        return step_seconds(engine_of(loaded, mesh, options), repeats)
    asked = {} if mode == "unconstrained" else plan.activation_specs
    return step_seconds(automatic_engine(loaded, mesh, asked, options), repeats)


def step_seconds(run: Engine, repeats: int = REPEATS) -> float:
    """Seconds of an engine's step. The cache that a decode step consumes is the one that the step before gave."""
    params, T = run.init_params(jax.random.key(0)), run.work.context
    shapes = run.abstract_arguments()
    if run.work.phase == "prefill":
        fixed = [_filled(s, x) for s, x in zip(shapes[1:], (1, run.prompt_order(T), T), strict=True)]
        step = run.prefill_step()
        return median_seconds(lambda: step(params, *fixed), repeats)
    tokens, pos = (_filled(s, x) for s, x in zip(shapes[2:], (1, T - 1), strict=True))
    step, held = run.decode_step(), [run.init_cache()]

    def once() -> Any:
        token, _, held[0] = step(params, held[0], tokens, pos)
        return token, held[0]

    return median_seconds(once, repeats)


def _filled(shape: Any, value: Any) -> Any:
    return jax.device_put(np.broadcast_to(np.asarray(value, np.int32), shape.shape), shape.sharding)


def label(plan: Plan) -> str:
    """A plan's layout in a line: the mesh, what cuts the residual, and per component its program and axes' roles."""
    mesh = " ".join(f"{n}{s}" for n, s in zip(plan.mesh.axis_names, plan.mesh.axis_sizes, strict=True)) or "1"
    cut = "".join(f" {dim}_{''.join(axes)}" for dim, axes in plan.residual.items() if axes) or " whole"
    parts = [f"{o.component} {o.program} {' '.join(map(':'.join, o.assignment.items()))}" for o in plan.layouts]
    return "; ".join((f"{mesh}, residual{cut}", *parts))
