"""Measure the constants of the prices on the devices of this machine and write them as a chip file.

All devices work at once in every measurement, as they do in a step. CPU devices of one host share its cores and its
memory bus, so each number is one device's share of them, and such a chip is valid only for the same number of devices.

    FLOP/s                      2 n^3 per matmul, the best of several sizes n
    HBM bytes/s                 streaming reads, the better of two
    link bytes/s, hop seconds   fitted to all kinds of collectives, over sizes and groups: `link_fit`
"""

from __future__ import annotations

import contextlib
import datetime
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import AxisType, Mesh, NamedSharding

from executor.calibrate.link_fit import LinkFit, LinkSample, link_fits, unit_rates
from executor.clock import median_seconds
from executor.devices import Unavailable, memory_bytes, platform_devices, prepare_environment
from executor.run.interpret import PartitionSpec
from executor.run.runnable import dtype_of
from mesh.chipfile import chip_toml, measured_chip
from mesh.chips import Chip
from mesh.errors import InputError
from planner.plan.accuracy import CALIBRATED_FROM
from planner.plan.plan import Value
from strategies.kinds import KINDS

PLATFORMS = ("cpu", "gpu", "tpu")
HOST_DEVICES, MOST_HOST_DEVICES = 8, 64
USABLE = 0.9
SHARED = "{n} devices share the cores, memory bus and memory of one host: each number is one's share with all at work"
Progress = Callable[[str], None]
_untyped: Any = lax


@dataclass(frozen=True, kw_only=True)
class Effort:
    """The sizes and the number of measurements of a calibration.

    `matmuls`: the sizes n of square matmuls. `stream_bytes`: the bytes of a streaming read on one device, more than its
    caches have. `collectives`: the bytes V of collectives. `groups`: the sizes of the groups that collectives run over,
    besides all devices. `runs`: collectives per program. `repeats`: timed runs of each program.
    """

    matmuls: tuple[int, ...] = (256, 512, 1024)
    stream_bytes: int = 1 << 26
    collectives: tuple[int, ...] = (1 << 12, 1 << 15, 1 << 18, 1 << 20, 1 << 22)
    groups: tuple[int, ...] = (2, 4, 8)
    runs: int = 8
    repeats: int = 5


ACCELERATOR = Effort(
    matmuls=(2048, 4096, 8192),
    stream_bytes=1 << 30,
    collectives=(1 << 12, 1 << 16, 1 << 20, 1 << 23, 1 << 26, 1 << 28),
    repeats=15,
)
QUICK = Effort(matmuls=(128, 256), stream_bytes=1 << 23, collectives=(1 << 12, 1 << 16, 1 << 19), groups=(), repeats=3)


class Calibration(Value, frozen=True, kw_only=True):
    """The result of a calibration: the chip, and the fits that its constants come from.

    `launch_s`: the seconds of launching a program. It is part of no chip and no price; a step is one program.
    """

    chip: Chip
    fits: tuple[LinkFit, ...]
    launch_s: float


def calibrate(
    devices: str = "cpu", *, count: int | None = None, quick: bool = False, progress: Progress = lambda _: None
) -> Calibration:
    """Measure the devices of a platform (`cpu`, `gpu` or `tpu`) and return a chip of that name.

    `count`: how many devices; None: all of them, or 8 devices of the host's CPU. `quick`: measure less, for rough
    constants in a fraction of the time. `progress` is called with a line of text before each measurement. Raises
    `Unavailable` if there are fewer devices, `InputError` on an unknown platform or a count out of range.
    """
    mesh = device_mesh(devices, count)
    effort = QUICK if quick else Effort() if devices == "cpu" else ACCELERATOR
    progress("measuring launches")
    launch = launch_fit(mesh, effort)
    fits = [launch]
    for name in ("f32", "bf16") if devices == "cpu" else ("f32", "bf16", "int8"):
        progress(f"measuring matmuls in {name}")
        fits.append(matmul_fit(mesh, name, effort, launch.value))
    progress("measuring memory")
    fits.append(stream_fit(mesh, effort, launch.value))
    links = link_fits(list(collective_samples(mesh, effort, progress)), launch.value) if mesh.size > 1 else ()
    return calibration_of(devices, mesh, (*fits, *links))


def device_mesh(platform: str, count: int | None = None) -> Mesh:
    """Return a mesh with one axis `x` of `count` devices of a platform, or of all of them.

    Raises `Unavailable` if there are fewer devices, `InputError` on an unknown platform or a count out of range.
    """
    if platform not in PLATFORMS:
        expected = f"expected {', '.join(PLATFORMS[:-1])} or {PLATFORMS[-1]}"
        raise InputError(f"devices {platform!r}: {expected}", "devices")
    if count is not None and count < 1:
        raise InputError(f"count {count}: expected at least 1", "count")
    if platform == "cpu" and count is not None and count > MOST_HOST_DEVICES:
        raise InputError(f"count {count}: expected at most {MOST_HOST_DEVICES} devices of the host's CPU", "count")
    with contextlib.suppress(RuntimeError):  # devices are in use already, so their number stays
        prepare_environment(host_devices=(count or HOST_DEVICES) if platform == "cpu" else None, platform=platform)
    available = platform_devices(platform)
    mesh_size = count or (min(HOST_DEVICES, len(available)) if platform == "cpu" else len(available)) or 1
    if len(available) < mesh_size:
        raise Unavailable(
            f"needs {mesh_size} {platform} devices, and JAX has {len(available)} here{_how_to_get(platform)}"
        )
    return Mesh(np.array(available[:mesh_size]), ("x",), axis_types=(AxisType.Auto,))


def _how_to_get(platform: str) -> str:
    """Return the end of an error message that says which JAX package a platform needs."""
    package = {"gpu": "jax[cuda13]", "tpu": "jax[tpu]"}.get(platform)
    return f": a {platform.upper()} and its JAX are needed (pip install '{package}')" if package else ""


def on_all(mesh: Mesh, local: Callable[..., Any], *shapes: tuple[int, ...], dtype: Any = jnp.float32) -> Any:
    """Return a function without arguments that runs `local` on every device at once.

    Each device gets the same random arrays of these local shapes and of this dtype.
    """
    spec = PartitionSpec(mesh.axis_names)
    sharding, generator = NamedSharding(mesh, spec), np.random.default_rng(0)

    def placed(shape: tuple[int, ...]) -> Any:
        """Return random noise of a local shape, equal on every device."""
        noise = generator.standard_normal((1, *shape), np.float32)
        noise = (noise * shape[-1] ** -0.5 if jnp.issubdtype(dtype, jnp.floating) else noise).astype(dtype)
        return jax.make_array_from_callback((mesh.size, *shape), sharding, lambda _: noise)

    inputs = [placed(shape) for shape in shapes]
    on_device = lambda *xs: local(*(x[0] for x in xs))[None]  # noqa: E731
    run = jax.jit(jax.shard_map(on_device, mesh=mesh, in_specs=spec, out_specs=spec, check_vma=False))
    return lambda: run(*inputs)


def matmul_s(mesh: Mesh, name: str, rows: int, side: int, launch_s: float, *, runs: int = 8, repeats: int = 5) -> float:
    """Return the seconds of one matmul `[rows, side] x [side, side]`, with every device at work.

    `name`: the dtype's name in a plan, such as `bf16`. A program chains `runs` matmuls; its seconds, less `launch_s`,
    are the median of `repeats` runs.
    """
    dtype, accumulator = dtype_of(name), jnp.int32 if name == "int8" else jnp.float32

    def chain(a: Any, b: Any) -> Any:
        return lax.fori_loop(0, runs, lambda _, x: jnp.dot(x, b, preferred_element_type=accumulator).astype(dtype), a)

    run = on_all(mesh, chain, (rows, side), (side, side), dtype=dtype)
    return _without_launch(median_seconds(run, repeats), launch_s) / runs


def _without_launch(seconds: float, launch_s: float) -> float:
    """Subtract the launch from a program's seconds; at most half of them."""
    return max(seconds - launch_s, seconds / 2)


def matmul_fit(mesh: Mesh, name: str, effort: Effort, launch_s: float) -> LinkFit:
    """Measure the FLOP/s of one device in a dtype: the best over the sizes of square matmuls, all devices at work."""
    rates = {n: 2 * n**3 / matmul_s(mesh, name, n, n, launch_s, runs=4, repeats=effort.repeats) for n in effort.matmuls}
    note = "best of " + ", ".join(f"n={n} {rate:.3g}" for n, rate in rates.items())
    return LinkFit(name=f"flops_per_s.{name}", value=max(rates.values()), unit="FLOP/s", note=note)


def stream_fit(mesh: Mesh, effort: Effort, launch_s: float) -> LinkFit:
    """Measure the bytes/s that one device reads with all devices at work.

    The result is the better of a sum over an array and a vector times a matrix.
    """
    side, runs = int((effort.stream_bytes / 4) ** 0.5), 4
    sums = on_all(mesh, lambda x: lax.fori_loop(0, runs, lambda _, s: jnp.sum(x + s), 0.0), (side, side))
    seconds = {
        "sum": _without_launch(median_seconds(sums, effort.repeats), launch_s) / runs,
        "vector x matrix": matmul_s(mesh, "f32", 1, side, launch_s, runs=runs, repeats=effort.repeats),
    }
    rates = {name: 4 * side * side / read_s for name, read_s in seconds.items()}
    rates_text = ", ".join(f"{name} {rate:.3g}" for name, rate in rates.items())
    note = f"best of {rates_text}; {4 * side * side / 1e6:.0f} MB per device"
    return LinkFit(name="hbm_bytes_per_s", value=max(rates.values()), unit="bytes/s", note=note)


def launch_fit(mesh: Mesh, effort: Effort) -> LinkFit:
    """Measure the seconds from the call to the end of a program that does next to nothing on all devices."""
    run = on_all(mesh, lambda x: x + 1, (8,))
    return LinkFit(
        name="launch_s", value=median_seconds(run, 8 * effort.repeats), unit="s", note="of a program: not priced"
    )


def collective_samples(mesh: Mesh, effort: Effort, progress: Progress = lambda _: None) -> Iterator[LinkSample]:
    """Measure every kind of collective over groups of several sizes and over all devices, all groups at work."""
    for n in sorted({mesh.size, *(n for n in effort.groups if n <= mesh.size and mesh.size % n == 0)}):
        grouped = Mesh(mesh.devices.reshape(-1, n), ("others", "x"), axis_types=(AxisType.Auto,) * 2)
        for kind in KINDS:
            progress(f"measuring {kind} over {n} devices")
            yield from (_sample(grouped, kind, nbytes, effort) for nbytes in effort.collectives)


def _sample(mesh: Mesh, kind: str, nbytes: float, effort: Effort) -> LinkSample:
    """Measure one kind of collective with about `nbytes` bytes V on the mesh axis `x`, in a chain of runs."""
    n = mesh.shape["x"]
    shards = n * n if kind == "AllToAll" else n
    shard_elements = max(1, round(nbytes / 4 / shards))  # a whole number of f32 on each device
    local = shard_elements if kind == "AllGather" else shard_elements * n
    seconds = median_seconds(on_all(mesh, _chain(kind, n, effort.runs), (local,)), effort.repeats)
    per_byte, hops = unit_rates(kind, n)
    V = 4.0 * shard_elements * n * (n if kind == "AllToAll" else 1)
    return LinkSample(kind=kind, runs=effort.runs, moved=V * per_byte, hops=hops, seconds=seconds)


def _chain(kind: str, n: int, runs: int) -> Callable[[Any], Any]:
    """Return a function that runs a chain of collectives; each reads the result of the one before, cut to its shape."""
    once: dict[str, Callable[[Any], Any]] = {
        "AllGather": lambda x: _untyped.all_gather(x, "x", tiled=True)[: x.shape[0]],
        "ReduceScatter": lambda x: lax.dynamic_update_slice(x, _untyped.psum_scatter(x, "x", tiled=True), (0,)),
        "AllReduce": lambda x: _untyped.psum(x, "x"),
        "AllToAll": lambda x: _untyped.all_to_all(x, "x", 0, 0, tiled=True),
        "CollectivePermute": lambda x: _untyped.ppermute(x, "x", [(i, (i + 1) % n) for i in range(n)]),
    }
    return lambda x: lax.fori_loop(0, runs, lambda _, y: once[kind](y), x)


def calibration_of(name: str, mesh: Mesh, fits: Sequence[LinkFit]) -> Calibration:
    """Make a chip of measured constants, with a source for each.

    A single device has no link; its memory bandwidth and a hop of 1 microsecond stand in, marked as assumptions.
    Raises `Unavailable` if the device does not report its memory.
    """
    value = {fit.name: fit.value for fit in fits}
    device = mesh.devices.flat[0]
    memory = memory_bytes(device, mesh.size)
    if not memory:
        raise Unavailable(f"{device.device_kind} does not say how much memory it has")
    rates = {
        "flops_per_s": {n.split(".")[1]: v for n, v in value.items() if n.startswith("flops_per_s.")},
        "hbm_bytes": memory,
        "hbm_bytes_per_s": value["hbm_bytes_per_s"],
        "usable_hbm_bytes_per_device": USABLE * memory,
        "link_bytes_per_s": value.get("link_bytes_per_s", value["hbm_bytes_per_s"]),
        "hop_latency_s": value.get("hop_latency_s", 1e-6),
    }
    device_text = f"{mesh.size} x {device.device_kind}"
    sources = {
        "hbm_bytes": "the host's memory, shared" if name == "cpu" else "what the runtime lets a program use",
        "usable_hbm_bytes_per_device": f"assumption: {USABLE} of hbm_bytes",
        **dict.fromkeys(("link_bytes_per_s", "hop_latency_s"), "assumption: one device has no link"),
        **_sources(fits, f"{CALIBRATED_FROM} {device_text}, all at once, on {datetime.date.today()}"),
    }
    chip = measured_chip(name, mesh.size, rates, sources, any_number=name != "cpu")
    return Calibration(chip=chip, fits=tuple(fits), launch_s=value["launch_s"])


def _sources(fits: Sequence[LinkFit], how: str) -> dict[str, str]:
    """Return the source text of each measured field of the chip file."""
    sources: dict[str, str] = {}
    for fit in fits:
        field, _, variant = fit.name.partition(".")
        if field in Chip.__struct_fields__:
            text = f"{variant} {fit.quality}".strip()
            sources[field] = f"{sources[field]}; {text}" if field in sources else f"{how}: {text}"
    return sources


def chip_file(calibration: Calibration) -> bytes:
    """Return the contents of the chip file (TOML), with every fit in the comment at its head."""
    fits = [f"{f.name} = {f.value:.4g} {f.unit}: {f.quality}" for f in calibration.fits]
    return chip_toml(
        calibration.chip, "\n".join(("Measured by `meshwright calibrate`", *shared(calibration.chip), *fits))
    )


def shared(chip: Chip) -> list[str]:
    """Return the note that devices of one host share it, as a list of one line; an empty list for other chips."""
    return [SHARED.format(n=chip.machines[0].chips_per_host)] if chip.kind == "cpu" else []
