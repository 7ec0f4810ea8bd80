"""The mesh of a plan lies where its pieces say, on described TPU slices and on host devices."""

import importlib.util
import os
import subprocess
import sys
from dataclasses import dataclass

import msgspec
import numpy as np
import pytest
from oracles.torus import legal_slices

from executor.devices import (
    Unavailable,
    _places,
    build_mesh,
    coordinates,
    place,
    prepare_environment,
    topology_options,
    tpu_devices,
)
from mesh.errors import InputError
from mesh.slices import Slice, parse_slice
from strategies.layout import MeshAxes, MeshPiece

prepare_environment()
needs_compiler = pytest.mark.skipif(
    importlib.util.find_spec("libtpu") is None, reason="needs the TPU compiler: pip install 'meshwright[tpu]'"
)
TPUS = ("v3", "v4", "v5e", "v5p", "v6e", "tpu7x")


def axes_of(**pieces: list[tuple[str, int, int]]) -> MeshAxes:
    """Mesh axes from (physical axis, stride, size) of each piece, major first."""
    parts = [tuple(MeshPiece(axis=a, stride=s, size=m) for a, s, m in of) for of in pieces.values()]
    sizes = tuple(int(np.prod([p.size for p in of])) for of in parts)
    return MeshAxes(axis_names=tuple(pieces), axis_sizes=sizes, pieces=tuple(parts))


@dataclass
class Device:
    """A device with coordinates, as TPUs have them."""

    coords: tuple[int, ...]
    core_on_chip: int = 0


@dataclass
class HostDevice:
    """A device without coordinates."""

    id: int


def test_a_device_is_placed_by_the_mixed_radix_of_its_pieces() -> None:
    """Major pieces count first: X // 2 is the far half, and Y = X's near half with all of physical Y."""
    mesh = axes_of(A=[("X", 2, 2)], B=[("X", 1, 2), ("Y", 1, 4)])
    assert place(mesh, {"X": 3, "Y": 2}) == (1, 6)
    assert place(mesh, {"X": 2, "Y": 3}) == (1, 3)


def test_coordinates_count_from_the_corner_of_the_slice() -> None:
    """A slice cut out of a larger pod starts at zero, and the cores of a chip are the last axis."""
    slice_ = parse_slice("tpu7x:2x2x1")
    found = coordinates(slice_, [Device((4 + x, 2 + y, 0), c) for x in range(2) for y in range(2) for c in range(2)])  # type: ignore[misc]
    assert found[0] == {"X": 0, "Y": 0, "Z": 0, "core": 0}
    assert found[-1] == {"X": 1, "Y": 1, "Z": 0, "core": 1}


def test_host_devices_stand_for_the_slice_row_by_row() -> None:
    """Without coordinates device 0..n-1 are the slice's devices in the order of its axes."""
    mesh = axes_of(A=[("Y", 1, 2)], B=[("X", 1, 2)])
    found = _places(mesh, parse_slice("v5e:2x2"), [HostDevice(n) for n in range(4)])  # type: ignore[misc]
    assert {at: device.id for at, device in found} == {(0, 0): 0, (1, 0): 1, (0, 1): 2, (1, 1): 3}


def test_a_shrunken_mesh_is_filled_row_by_row() -> None:
    """Fewer devices than the slice has: only the mesh's sizes count."""
    found = _places(axes_of(A=[("Y", 1, 2)], B=[("X", 1, 1)]), parse_slice("v5e:4x4"), [HostDevice(n) for n in (7, 5)])  # type: ignore[misc]
    assert {at: device.id for at, device in found} == {(0, 0): 7, (1, 0): 5}


def test_pieces_that_give_two_devices_one_place_are_rejected() -> None:
    """Overlapping pieces, and a plan of too few devices, are bad input."""
    slice_ = parse_slice("v5e:2x2")
    devices = [Device((x, y, 0)) for x in range(2) for y in range(2)]
    with pytest.raises(InputError, match="a place of its own"):
        build_mesh(axes_of(A=[("X", 1, 2)], B=[("X", 1, 2)]), slice_, devices)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="4 devices of v5e:2x2, got 3"):
        build_mesh(axes_of(A=[("X", 1, 2)], B=[("Y", 1, 2)]), slice_, devices[:3])  # type: ignore[arg-type]
    with pytest.raises(InputError, match="has the axes X, Y"):
        build_mesh(axes_of(A=[("Z", 1, 2)]), slice_, devices)


def test_a_slice_is_described_with_our_wraparound() -> None:
    """Without `wrap` the compiler assumes lines; one chip needs its host's bounds, v4 its two cores as one."""
    assert topology_options(parse_slice("v5e:8x16")) == {"wrap": (False, True, False)}
    assert topology_options(parse_slice("v5e:1x1"))["chips_per_host_bounds"] == (1, 1, 1)
    assert topology_options(parse_slice("v4:4x4x4")) == {"wrap": (True, True, True), "chip_config_name": "megacore"}


def test_only_tpu_slices_can_be_described() -> None:
    """A GPU needs its devices."""
    with pytest.raises(Unavailable, match="h100:8 is no TPU slice"):
        tpu_devices(parse_slice("h100:8"))


def test_without_the_compiler_the_line_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """The extra is named."""
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(Unavailable, match=r"pip install 'meshwright\[tpu\]'"):
        tpu_devices(parse_slice("v5e:4x4"))


@needs_compiler
def test_an_unknown_chip_is_one_clear_line() -> None:
    """What the compiler said is in it."""
    slice_ = parse_slice("v5e:4x4")
    with pytest.raises(Unavailable, match="does not know v9z:4x4: INVALID_ARGUMENT"):
        tpu_devices(msgspec.structs.replace(slice_, chip=msgspec.structs.replace(slice_.chip, name="v9z")))


def described(slice_: Slice) -> None:
    """The compiler's devices are the slice's, each coordinate and core once."""
    where = coordinates(slice_, tpu_devices(slice_))
    rows = {tuple(at.values()) for at in where}
    assert rows == set(np.ndindex(*(axis.size for axis in slice_.axes)))
    assert len(where) == slice_.devices


@needs_compiler
@pytest.mark.parametrize("chip", TPUS)
def test_the_compiler_knows_the_slices_of_every_chip(chip: str) -> None:
    """Those of at most 64 chips; all of them in the next test."""
    for slice_ in legal_slices(chip):
        if slice_.chips <= 64:
            described(slice_)


@needs_compiler
@pytest.mark.slow
@pytest.mark.parametrize("chip", TPUS)
def test_the_compiler_knows_all_slices(chip: str) -> None:
    """182 of them, to 9216 chips."""
    for slice_ in legal_slices(chip):
        described(slice_)


@needs_compiler
@pytest.mark.parametrize(
    ("name", "mesh"),
    [
        ("v5e:4x4", axes_of(A=[("X", 2, 2)], B=[("X", 1, 2), ("Y", 1, 4)])),
        ("v5p:4x4x4", axes_of(A=[("Z", 1, 4)], B=[("Y", 2, 2), ("X", 1, 4)], C=[("Y", 1, 2)])),
        ("v4:2x2x1", axes_of(A=[("Y", 1, 2), ("X", 1, 2)])),
        ("tpu7x:2x2x1", axes_of(A=[("core", 1, 2)], B=[("X", 1, 2)], C=[("Y", 1, 2)])),
    ],
)
def test_neighbours_in_the_mesh_are_where_the_pieces_say(name: str, mesh: MeshAxes) -> None:
    """Every device of the mesh has the coordinates that its place stands for."""
    slice_ = parse_slice(name)
    built = build_mesh(mesh, slice_, tpu_devices(slice_))
    assert {kind.name for kind in built.axis_types} == {"Auto"}
    for at, device in np.ndenumerate(built.devices):
        assert place(mesh, coordinates_of(device)) == at


def coordinates_of(device: object) -> dict[str, int]:
    """A described device's coordinates by axis."""
    x, y, z = device.coords  # type: ignore[attr-defined]
    return {"X": x, "Y": y, "Z": z, "core": device.core_on_chip}  # type: ignore[attr-defined]


@needs_compiler
@pytest.mark.slow
def test_two_processes_can_describe_slices_at_once_and_say_nothing() -> None:
    """libtpu's lock file does not matter, since no TPU is held; nothing is written to the terminal."""
    code = (
        "from executor.devices import prepare_environment, tpu_devices\nprepare_environment(host_devices=3)\n"
        "from mesh.slices import parse_slice\nimport jax, time\n"
        "print(len(tpu_devices(parse_slice('v5e:4x4'))), len(jax.devices())); time.sleep(0.5)"
    )
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("TPU_", "JAX_", "ALLOW_"))}
    jobs = [
        subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=clean)
        for _ in range(2)
    ]
    assert [job.communicate() for job in jobs] == [(b"16 3\n", b"")] * 2
