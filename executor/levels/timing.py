"""Level `timing`: the plan's step, run on the devices that are present, against the seconds that were priced.

A time is the median of repeated runs after a warm-up, each until every result is ready. It is judged only against a
factor that the user gives, and told otherwise: a price is made of bandwidths and FLOP/s, and knows neither what the
launch of a program costs nor what each of its small operations does.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from executor.automatic.mode import automatic_engine
from executor.devices import Unavailable, build_mesh, first_line, platform_devices
from executor.levels.host_collectives import capacity_factor
from executor.levels.numerics import check_supported
from executor.levels.verdict import Finding, Level, told, verdict
from executor.run.engine import Engine, engine_of
from executor.run.runnable import Options
from mesh.chips import Chip
from mesh.slices import Slice, parse_slice
from meshwright.reports.plan import constants_lines
from planner.plan.plan import Plan
from strategies.notation import Program

LEVEL = "timing"
REPEATS = 7
CGROUP = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")
_untyped: Any = jax  # what waits has no types


def timing(
    plan: Plan,
    mode: str = "manual",
    *,
    programs: Sequence[Program] = (),
    chip: Chip | None = None,
    within: float | None = None,
    repeats: int = REPEATS,
) -> Level:
    """The level of a plan, at its full size; `chip`: of the file that it was made with (`--chip-file`).

    The measured step may be `within` times the priced one, and the priced one `within` times the measured; without
    it the time is told and not judged. Raises `Unavailable` where the devices are not those of the plan's chip.
    """
    check_supported(plan)
    slice_ = parse_slice(plan.slice, chip)
    devices = present_devices(plan, slice_)
    try:
        measured_s = measure(plan, slice_, devices, mode, programs, repeats)
    except Exception as error:  # a step that cannot be run is a finding, whatever it raises
        found = f"{type(error).__name__}: {first_line(error)}"
        return verdict(LEVEL, mode, 1, (Finding(what="the step", promised="runs", found=found),))
    how = f"median of {repeats} on {plan.devices} x {devices[0].device_kind}"
    return judged(plan, mode, measured_s, within, how)


def judged(plan: Plan, mode: str, measured_s: float, within: float | None, how: str) -> Level:
    """The level of a plan whose step took `measured_s`."""
    ratio = measured_s / plan.cost.step_s
    notes = tuple(_notes(plan, measured_s, how))
    if within is None:
        return told(LEVEL, mode, "measured and not judged: --timing-within FACTOR sets a bound", notes)
    if 1 / within <= ratio <= within:
        return verdict(LEVEL, mode, 1, (), notes)
    promised = f"{_ms(plan.cost.step_s)} within a factor of {within:g}"
    finding = Finding(what=f"the {plan.phase} step", promised=promised, found=f"{_ms(measured_s)}: {ratio:.2f} x")
    return verdict(LEVEL, mode, 1, (finding,), notes)


def _notes(plan: Plan, measured_s: float, how: str) -> Iterator[str]:
    cost = plan.cost
    yield (
        f"{plan.phase} step: {_ms(measured_s)} measured ({how}), {_ms(cost.step_s)} priced: "
        f"{measured_s / cost.step_s:.2f} x"
    )
    terms = {"FLOPs": cost.flops_s, "HBM": cost.hbm_s, "ICI": cost.ici_s, "hops": cost.latency_s}
    yield "priced: " + ", ".join(f"{name} {_ms(seconds)}" for name, seconds in terms.items())
    yield f"layout: {label(plan)}"
    yield from constants_lines(plan.constants)


def present_devices(plan: Plan, slice_: Slice) -> Sequence[jax.Device]:
    """The devices here that are those of the plan's chip; raises `Unavailable` where they or their memory are few."""
    platform = slice_.chip.kind
    have = platform_devices(platform)
    if len(have) < slice_.devices:
        raise Unavailable(
            f"{slice_.name} needs {slice_.devices} {platform} devices, there are {len(have)}: `meshwright calibrate` "
            f"the devices that are here, and plan on that chip"
        )
    have = have[: slice_.devices]
    held, need = memory_bytes(have[0], len(have)), plan.memory.total_bytes
    if need > held:
        raise Unavailable(f"needs {need / 1e9:.2f} GB per device, there are {held / 1e9:.2f} GB: plan a smaller batch")
    return have


def memory_bytes(device: jax.Device, devices: int) -> float:
    """Bytes of memory of one device; devices of a host share the host's, or what its control group lets them have."""
    if device.platform != "cpu":
        return float((device.memory_stats() or {}).get("bytes_limit", 0))
    limits = [Path(name).read_text().strip() for name in CGROUP if Path(name).is_file()]
    installed = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return min([installed, *(int(limit) for limit in limits if limit.isdigit())]) / devices


def measure(
    plan: Plan,
    slice_: Slice,
    devices: Sequence[jax.Device],
    mode: str = "manual",
    programs: Sequence[Program] = (),
    repeats: int = REPEATS,
) -> float:
    """Seconds of the plan's step on these devices: random weights, and caches that are full up to the last token."""
    mesh, options = build_mesh(plan.mesh, slice_, devices), Options(capacity_factor=capacity_factor(plan))
    if mode == "manual":
        return step_seconds(engine_of(plan, mesh, options, programs, slice_.chip), repeats)
    asked = {} if mode == "unconstrained" else plan.activation_specs
    return step_seconds(automatic_engine(plan, mesh, asked, options, programs, slice_.chip), repeats)


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


def median_seconds(run: Callable[[], Any], repeats: int = REPEATS) -> float:
    """The median of `repeats` runs, each until its results are ready, after one that is not counted."""
    _untyped.block_until_ready(run())
    return statistics.median(_seconds(run) for _ in range(repeats))


def _seconds(run: Callable[[], Any]) -> float:
    started = time.perf_counter()
    _untyped.block_until_ready(run())
    return time.perf_counter() - started


def label(plan: Plan) -> str:
    """A plan's layout in a line: the mesh, what cuts the residual, and per component its program and axes' roles."""
    mesh = " ".join(f"{n}{s}" for n, s in zip(plan.mesh.axis_names, plan.mesh.axis_sizes, strict=True)) or "1"
    cut = "".join(f" {dim}_{''.join(axes)}" for dim, axes in plan.residual.items() if axes) or " whole"
    parts = [f"{o.component} {o.program} {' '.join(map(':'.join, o.assignment.items()))}" for o in plan.layouts]
    return "; ".join((f"{mesh}, residual{cut}", *parts))


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.3g} ms"
