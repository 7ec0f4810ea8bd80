"""Devices: the mesh of a plan on real, host or described devices, and the devices of a TPU slice that is not there.

A plan's mesh axes are pieces of physical axes, so the mesh is built from coordinates: what was priced on a torus axis
runs on it. `jax.make_mesh` and `create_device_mesh` choose an order of their own, and topology devices come by host.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Mapping, Sequence
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from executor.wording import first_line
from mesh.errors import InputError
from mesh.slices import Slice
from strategies.layout import MeshAxes

if TYPE_CHECKING:
    import jax

CGROUP = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")
"""Where the control group of a process says how much memory it may use."""

Coordinates = Mapping[str, int]  # of one device: physical axis -> coordinate

QUIET = {
    "TPU_SKIP_MDS_QUERY": "1",  # asks no metadata server which TPU this machine is
    "TPU_ACCELERATOR_TYPE": "v5litepod-16",  # any known type: the topology is given by name
    "TPU_WORKER_HOSTNAMES": "localhost",
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",  # two processes may compile at once: no TPU is held
    # The compiler's threads have stacks of 64 KiB, which some fusions of int8 weights overflow: it dies of SIGSEGV.
    "LIBTPU_INIT_ARGS": "--fibers_default_thread_stack_size=1048576",
}


class Unavailable(Exception):
    """A level cannot run here: one line that says what is missing and how to get it."""


def prepare_environment(*, host_devices: int | None = None, platform: str = "cpu") -> None:
    """Make JAX use the host's CPU (as `host_devices` devices), and the TPU compiler quiet and offline.

    With `platform` gpu or tpu JAX sees such devices, too, if there are any; the CPU's remain its default.
    Call it before jax is imported. Afterwards it still works until JAX's first use of a device: libtpu reads its
    variables when the first topology is described, and the rest goes through `jax.config`. A `JAX_PLATFORMS` or a TPU
    variable that the user has set stays; with devices already in use, a change of their number raises `RuntimeError`.
    """
    real_tpu = platform == "tpu" and _tpu_is_here()
    platforms = "cpu,tpu" if real_tpu else "cpu,cuda" if platform == "gpu" else "cpu"
    variables = {"JAX_PLATFORMS": platforms} | ({"JAX_NUM_CPU_DEVICES": str(host_devices)} if host_devices else {})
    for name, value in ((QUIET if not real_tpu else {}) | variables).items():
        os.environ.setdefault(name, value)
    if "jax" in sys.modules:
        _configure(host_devices)


def _tpu_is_here() -> bool:
    """Return whether the machine has TPU chips: without any, asking JAX for them makes libtpu complain at length."""
    return any(Path("/dev").glob("accel[0-9]*")) or any(Path("/dev/vfio").glob("[0-9]*"))


def _configure(host_devices: int | None) -> None:
    import jax

    config: Any = jax.config
    if config.jax_platforms in (None, ""):
        config.update("jax_platforms", os.environ["JAX_PLATFORMS"])
    if host_devices and config.jax_num_cpu_devices != host_devices:
        config.update("jax_num_cpu_devices", host_devices)


def platform_devices(platform: str) -> Sequence[jax.Device]:
    """The devices of `cpu`, `gpu` or `tpu` that JAX has here; none where it has no such platform."""
    import jax

    try:
        return jax.devices(platform)
    except RuntimeError:
        return ()


def memory_bytes(device: jax.Device, devices: int) -> float:
    """Bytes of memory of one device; devices of a host share the host's, or what its control group lets them have."""
    if device.platform != "cpu":
        return float((device.memory_stats() or {}).get("bytes_limit", 0))
    limits = [Path(name).read_text().strip() for name in CGROUP if Path(name).is_file()]
    installed = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return min([installed, *(int(limit) for limit in limits if limit.isdigit())]) / devices


def tpu_devices(slice_: Slice) -> tuple[jax.Device, ...]:
    """The devices of a TPU slice as its compiler sees them; no TPU is needed, and nothing can run on them.

    The compiler assumes no wraparound unless told, so our rule is passed for every slice.
    """
    if slice_.chip.kind != "tpu":
        raise Unavailable(f"{slice_.name} is no TPU slice, and only the TPU compiler works without its devices")
    if importlib.util.find_spec("libtpu") is None:
        raise Unavailable("the TPU compiler (libtpu) is not installed: pip install 'meshwright[tpu]'")
    prepare_environment()
    devices = _topology_devices(slice_)
    if len(devices) != slice_.devices:
        raise Unavailable(f"{slice_.name} has {slice_.devices} devices, but the TPU compiler sees {len(devices)}")
    return devices


def _topology_devices(slice_: Slice) -> tuple[jax.Device, ...]:
    from jax.experimental import topologies

    options = topology_options(slice_)
    try:
        topology = topologies.get_topology_desc(platform="tpu", topology_name=slice_.name, **options)
    except Exception as error:
        raise Unavailable(f"the installed TPU compiler does not know {slice_.name}: {first_line(error)}") from error
    return tuple(topology.devices)


def topology_options(slice_: Slice) -> dict[str, Any]:
    """Return the options that describe a slice beside its name: wraparound, chips per host, and its chip's own.

    >>> from mesh.slices import parse_slice
    >>> topology_options(parse_slice("v4:4x4x4"))
    {'wrap': (True, True, True), 'chip_config_name': 'megacore'}
    """
    options: dict[str, Any] = {"wrap": (*slice_.wraps, False, False)[:3]}
    if slice_.chips == 1:
        options["chips_per_host_bounds"] = (1, 1, 1)
    return options | (slice_.chip.topology_options or {})


def build_mesh(mesh_axes: MeshAxes, slice_: Slice, devices: Sequence[jax.Device]) -> jax.sharding.Mesh:
    """The mesh of a plan: each device goes where its coordinates say.

    Host devices have no coordinates: they stand for the slice's devices row by row. With fewer of them than the slice
    has (a shrunken mesh) they fill the mesh itself row by row.
    """
    from jax.sharding import AxisType, Mesh

    check_pieces(mesh_axes, slice_)
    grid = np.empty(mesh_axes.axis_sizes, dtype=object)
    for place, device in _places(mesh_axes, slice_, devices):
        grid[place] = device
    return Mesh(grid, mesh_axes.axis_names, axis_types=(AxisType.Auto,) * len(mesh_axes.axis_names))


def check_pieces(mesh_axes: MeshAxes, slice_: Slice) -> None:
    """Raise InputError unless names, sizes and pieces go together and the pieces name axes of the slice."""
    names, sizes, pieces = mesh_axes.axis_names, mesh_axes.axis_sizes, mesh_axes.pieces
    if not len(names) == len(sizes) == len(pieces) or len(set(names)) != len(names):
        raise InputError(f"mesh axes {names}: expected distinct names, and a size and pieces for each")
    known = [axis.name for axis in slice_.axes]
    for piece in (piece for axis_pieces in pieces for piece in axis_pieces):
        if piece.axis not in known:
            raise InputError(f"mesh piece {piece}: {slice_.name} has the axes {', '.join(known)}")


def _places(
    mesh_axes: MeshAxes, slice_: Slice, devices: Sequence[jax.Device]
) -> list[tuple[tuple[int, ...], jax.Device]]:
    if not _have_coordinates(devices) and len(devices) == prod(mesh_axes.axis_sizes) != slice_.devices:
        return list(zip(np.ndindex(*mesh_axes.axis_sizes), devices, strict=True))
    if len(devices) != slice_.devices:
        raise InputError(f"the plan is for the {slice_.devices} devices of {slice_.name}, got {len(devices)}")
    places = [place(mesh_axes, device_coordinates) for device_coordinates in coordinates(slice_, devices)]
    if set(places) != set(np.ndindex(*mesh_axes.axis_sizes)) or len(set(places)) != len(devices):
        raise InputError(
            f"the pieces of mesh axes {dict(zip(mesh_axes.axis_names, mesh_axes.axis_sizes, strict=True))} "
            f"must give each of the {slice_.devices} devices of {slice_.name} a place of its own"
        )
    return list(zip(places, devices, strict=True))


def place(mesh_axes: MeshAxes, device_coordinates: Coordinates) -> tuple[int, ...]:
    """A device's index in the mesh: along each axis the mixed radix of its pieces, major first."""
    return tuple(_index(pieces, device_coordinates) for pieces in mesh_axes.pieces)


def _index(pieces: Sequence[Any], device_coordinates: Coordinates) -> int:
    index = 0
    for piece in pieces:
        index = index * piece.size + device_coordinates[piece.axis] // piece.stride % piece.size
    return index


def coordinates(slice_: Slice, devices: Sequence[jax.Device]) -> list[Coordinates]:
    """Each device's coordinate along each axis of the slice, counted from the slice's corner."""
    axes = slice_.axes
    if not _have_coordinates(devices):
        sizes = [axis.size for axis in axes]
        rows = list(np.ndindex(*sizes))
    else:
        physical = np.array([(*device.coords[: len(slice_.dims)], device.core_on_chip) for device in devices])
        rows = [tuple(row)[: len(axes)] for row in physical - physical.min(axis=0)]
    return [{axis.name: int(coordinate) for axis, coordinate in zip(axes, row, strict=True)} for row in rows]


def _have_coordinates(devices: Sequence[jax.Device]) -> bool:
    return all(getattr(device, "coords", None) is not None for device in devices)
