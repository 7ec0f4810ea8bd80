"""Calibration: the constants of prices, measured on the devices that are present and written as a chip file.

All devices work at once in every measurement, as they do in a step. Forced devices of a host share its cores and its
memory bus, so what is measured is one device's share of them: such a chip holds for just as many devices.

    FLOP/s     2 n^3 per matmul, the best of several n                     bytes/s    streaming reads, the best of two
    W, hop     fitted to all kinds of collectives, over sizes and groups: `link_fit`
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
    """The sizes that are measured: sides of matmuls; bytes of a stream beyond the caches; V of collectives in bytes.

    `groups`: over how many devices collectives run, besides all of them.
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
    """The answer of `calibrate`. `launch_s`, of a program, is in no chip and in no price: a step has one."""

    chip: Chip
    fits: tuple[LinkFit, ...]
    launch_s: float


def calibrate(
    devices: str = "cpu", *, count: int | None = None, quick: bool = False, progress: Progress = lambda _: None
) -> Calibration:
    """Measure the devices of that platform (all of them, or `count`) and make a chip of that name of them.

    Host devices are made: 8 unless told. `quick`: rough, and several times quicker. Raises `Unavailable` where there
    are too few.
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
    """`count` devices of a platform in a row, or all; raises `Unavailable` where there are fewer."""
    if platform not in PLATFORMS:
        expected = f"expected {', '.join(PLATFORMS[:-1])} or {PLATFORMS[-1]}"
        raise InputError(f"devices {platform!r}: {expected}", "devices")
    if count is not None and count < 1:
        raise InputError(f"count {count}: expected at least 1", "count")
    if platform == "cpu" and count is not None and count > MOST_HOST_DEVICES:
        raise InputError(f"count {count}: expected at most {MOST_HOST_DEVICES} devices of the host's CPU", "count")
    with contextlib.suppress(RuntimeError):  # devices are in use already: there are as many as there are
        prepare_environment(host_devices=(count or HOST_DEVICES) if platform == "cpu" else None, platform=platform)
    available = platform_devices(platform)
    wanted = count or (min(HOST_DEVICES, len(available)) if platform == "cpu" else len(available)) or 1
    if len(available) < wanted:
        raise Unavailable(
            f"needs {wanted} {platform} devices, and JAX has {len(available)} here{_how_to_get(platform)}"
        )
    return Mesh(np.array(available[:wanted]), ("x",), axis_types=(AxisType.Auto,))


def _how_to_get(platform: str) -> str:
    package = {"gpu": "jax[cuda13]", "tpu": "jax[tpu]"}.get(platform)
    return f": a {platform.upper()} and its JAX are needed (pip install '{package}')" if package else ""


def on_all(mesh: Mesh, local: Callable[..., Any], *shapes: tuple[int, ...], dtype: Any = jnp.float32) -> Any:
    """`local` on every device at once, each on the same noise of these shapes; to be called."""
    spec = PartitionSpec(mesh.axis_names)
    sharding, generator = NamedSharding(mesh, spec), np.random.default_rng(0)

    def placed(shape: tuple[int, ...]) -> Any:
        noise = generator.standard_normal((1, *shape), np.float32)
        noise = (noise * shape[-1] ** -0.5 if jnp.issubdtype(dtype, jnp.floating) else noise).astype(dtype)
        return jax.make_array_from_callback((mesh.size, *shape), sharding, lambda _: noise)

    inputs = [placed(shape) for shape in shapes]
    on_device = lambda *xs: local(*(x[0] for x in xs))[None]  # noqa: E731
    run = jax.jit(jax.shard_map(on_device, mesh=mesh, in_specs=spec, out_specs=spec, check_vma=False))
    return lambda: run(*inputs)


def matmul_s(mesh: Mesh, name: str, rows: int, side: int, launch_s: float, *, runs: int = 8, repeats: int = 5) -> float:
    """Seconds of a matmul [rows, side] x [side, side] in a dtype, on every device at once; one after the other."""
    dtype, accumulator = dtype_of(name), jnp.int32 if name == "int8" else jnp.float32

    def chain(a: Any, b: Any) -> Any:
        return lax.fori_loop(0, runs, lambda _, x: jnp.dot(x, b, preferred_element_type=accumulator).astype(dtype), a)

    run = on_all(mesh, chain, (rows, side), (side, side), dtype=dtype)
    return _without_launch(median_seconds(run, repeats), launch_s) / runs


def _without_launch(seconds: float, launch_s: float) -> float:
    """Return a program's time without its launch, which is never more than half of it."""
    return max(seconds - launch_s, seconds / 2)


def matmul_fit(mesh: Mesh, name: str, effort: Effort, launch_s: float) -> LinkFit:
    """FLOP/s of one device in a dtype: the best over sizes of square matmuls, all devices at once."""
    rates = {n: 2 * n**3 / matmul_s(mesh, name, n, n, launch_s, runs=4, repeats=effort.repeats) for n in effort.matmuls}
    note = "best of " + ", ".join(f"n={n} {rate:.3g}" for n, rate in rates.items())
    return LinkFit(name=f"flops_per_s.{name}", value=max(rates.values()), unit="FLOP/s", note=note)


def stream_fit(mesh: Mesh, effort: Effort, launch_s: float) -> LinkFit:
    """Bytes/s that one device reads, all at once: a sum over an array, or a vector times a matrix; the better one."""
    side, runs = int((effort.stream_bytes / 4) ** 0.5), 4
    sums = on_all(mesh, lambda x: lax.fori_loop(0, runs, lambda _, s: jnp.sum(x + s), 0.0), (side, side))
    seconds = {
        "sum": _without_launch(median_seconds(sums, effort.repeats), launch_s) / runs,
        "vector x matrix": matmul_s(mesh, "f32", 1, side, launch_s, runs=runs, repeats=effort.repeats),
    }
    rates = {name: 4 * side * side / read_s for name, read_s in seconds.items()}
    others = ", ".join(f"{name} {rate:.3g}" for name, rate in rates.items())
    note = f"best of {others}; {4 * side * side / 1e6:.0f} MB per device"
    return LinkFit(name="hbm_bytes_per_s", value=max(rates.values()), unit="bytes/s", note=note)


def launch_fit(mesh: Mesh, effort: Effort) -> LinkFit:
    """Seconds from the call of a program that does next to nothing on all devices to its end."""
    run = on_all(mesh, lambda x: x + 1, (8,))
    return LinkFit(
        name="launch_s", value=median_seconds(run, 8 * effort.repeats), unit="s", note="of a program: not priced"
    )


def collective_samples(mesh: Mesh, effort: Effort, progress: Progress = lambda _: None) -> Iterator[LinkSample]:
    """Every kind over groups of several sizes and of all devices; all groups at once."""
    for n in sorted({mesh.size, *(n for n in effort.groups if n <= mesh.size and mesh.size % n == 0)}):
        grouped = Mesh(mesh.devices.reshape(-1, n), ("others", "x"), axis_types=(AxisType.Auto,) * 2)
        for kind in KINDS:
            progress(f"measuring {kind} over {n} devices")
            yield from (_sample(grouped, kind, nbytes, effort) for nbytes in effort.collectives)


def _sample(mesh: Mesh, kind: str, nbytes: float, effort: Effort) -> LinkSample:
    """V is of the gathered array, so n times what a device holds in an AllToAll; of a permute it is the shard."""
    n = mesh.shape["x"]
    shards = n * n if kind == "AllToAll" else n
    shard_elements = max(1, round(nbytes / 4 / shards))  # a whole number of f32 on each device
    local = shard_elements if kind == "AllGather" else shard_elements * n
    seconds = median_seconds(on_all(mesh, _chain(kind, n, effort.runs), (local,)), effort.repeats)
    per_byte, hops = unit_rates(kind, n)
    V = 4.0 * shard_elements * n * (n if kind == "AllToAll" else 1)
    return LinkSample(kind=kind, runs=effort.runs, moved=V * per_byte, hops=hops, seconds=seconds)


def _chain(kind: str, n: int, runs: int) -> Callable[[Any], Any]:
    """`runs` collectives, each of what the one before gave, cut to the shape that it started from."""
    once: dict[str, Callable[[Any], Any]] = {
        "AllGather": lambda x: _untyped.all_gather(x, "x", tiled=True)[: x.shape[0]],
        "ReduceScatter": lambda x: lax.dynamic_update_slice(x, _untyped.psum_scatter(x, "x", tiled=True), (0,)),
        "AllReduce": lambda x: _untyped.psum(x, "x"),
        "AllToAll": lambda x: _untyped.all_to_all(x, "x", 0, 0, tiled=True),
        "CollectivePermute": lambda x: _untyped.ppermute(x, "x", [(i, (i + 1) % n) for i in range(n)]),
    }
    return lambda x: lax.fori_loop(0, runs, lambda _, y: once[kind](y), x)


def calibration_of(name: str, mesh: Mesh, fits: Sequence[LinkFit]) -> Calibration:
    """The chip of these fits. One device has no link: its memory's bandwidth stands in, and the chip says so."""
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
    """Return the source that the chip file states for each measured field."""
    sources: dict[str, str] = {}
    for fit in fits:
        field, _, variant = fit.name.partition(".")
        if field in Chip.__struct_fields__:
            text = f"{variant} {fit.quality}".strip()
            sources[field] = f"{sources[field]}; {text}" if field in sources else f"{how}: {text}"
    return sources


def chip_file(calibration: Calibration) -> bytes:
    """The chip file, with every fit in the comment at its head."""
    fits = [f"{f.name} = {f.value:.4g} {f.unit}: {f.quality}" for f in calibration.fits]
    return chip_toml(
        calibration.chip, "\n".join(("Measured by `meshwright calibrate`", *shared(calibration.chip), *fits))
    )


def shared(chip: Chip) -> list[str]:
    """Return a line of caution for devices that share a host; no line for others."""
    return [SHARED.format(n=chip.machines[0].chips_per_host)] if chip.kind == "cpu" else []
