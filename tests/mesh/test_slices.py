"""Slices are those that exist, with their hosts, names and wraparound."""

import msgspec
import pytest
from oracles.torus import legal_slices

from mesh.chips import chip_names, load_chip
from mesh.errors import InputError
from mesh.slices import parse_slice


@pytest.mark.parametrize("chip", chip_names())
def test_every_slice_parses_back_from_its_name(chip: str) -> None:
    """Names are unique and round-trip; slices come by number of chips."""
    slices = legal_slices(chip)
    assert [parse_slice(slice_.name.upper()) for slice_ in slices] == list(slices)
    assert [slice_.chips for slice_ in slices] == sorted(slice_.chips for slice_ in slices)


def test_the_number_of_slices_of_each_chip_is_as_published() -> None:
    """A slice dropped or doubled in the data files shows here."""
    counts = {chip: len(legal_slices(chip)) for chip in chip_names()}
    tpus = {"v3": 8, "v4": 11, "v5e": 8, "v5p": 96, "v6e": 8, "tpu7x": 51}
    assert counts == tpus | {"h100": 4, "h200": 4, "b200": 4}


@pytest.mark.parametrize(
    ("name", "wraps"),
    [
        ("v5e:4x4", (False, False)),
        ("v5e:8x16", (False, True)),
        ("v6e:16x16", (True, True)),
        ("v5p:2x4x4", (False, False, False)),
        ("v5p:4x4x12", (True, True, True)),
        ("tpu7x:2x2x1", (False, False, False)),
        ("v3:16x32", (False, True)),
        ("h100:8", (False,)),
    ],
)
def test_axes_wrap_by_the_rule_of_their_chip(name: str, wraps: tuple[bool, ...]) -> None:
    """v5e and v6e wrap an axis of 16, v3 one of 32, the cubes all axes or none, a switch none."""
    assert parse_slice(name).wraps == wraps


@pytest.mark.parametrize(
    ("name", "chips", "devices", "hosts", "machine_type"),
    [
        ("v5e:4x4", 16, 16, 4, "ct5lp-hightpu-4t"),
        ("v5e:1x1", 1, 1, 1, "ct5lp-hightpu-1t"),
        ("v5p:16x20x28", 8960, 8960, 2240, "ct5p-hightpu-4t"),
        ("tpu7x:2x2x4", 16, 32, 4, "tpu7x-standard-4t"),
        ("v3:4x4", 16, 32, 4, "ct3p-hightpu-4t"),
        ("h100:2", 2, 2, 1, "a3-highgpu-8g"),
    ],
)
def test_chips_devices_and_hosts_are_never_mixed_up(
    name: str, chips: int, devices: int, hosts: int, machine_type: str
) -> None:
    """tpu7x and v3 show two devices per chip; hosts count chips."""
    slice_ = parse_slice(name)
    assert (slice_.chips, slice_.devices, slice_.hosts) == (chips, devices, hosts)
    assert slice_.machine_type == machine_type


def test_the_core_axis_comes_last_and_only_with_two_devices_per_chip() -> None:
    """Pieces count axes in this order."""
    assert [axis.name for axis in parse_slice("v5p:2x2x2").axes] == ["X", "Y", "Z"]
    assert [axis.name for axis in parse_slice("tpu7x:2x2x2").axes] == ["X", "Y", "Z", "core"]
    assert [axis.name for axis in parse_slice("v3:4x4").axes] == ["X", "Y", "core"]


def test_an_axis_of_two_chips_is_never_a_ring() -> None:
    """Two chips are joined by one cable, whatever the rule says."""
    chip = msgspec.structs.replace(load_chip("v5e"), wrap="size-16")
    slice_ = msgspec.structs.replace(parse_slice("v5p:4x4x4"), dims=(2, 16), chip=chip)
    assert [axis.ring for axis in slice_.axes] == [False, True]


def test_a_slice_of_a_chip_of_ones_own_has_its_facts() -> None:
    """parse_slice takes the chip that a user loaded from a file."""
    chip = msgspec.structs.replace(load_chip("v5e"), hop_latency_s=5e-7)
    assert parse_slice("v5e:4x4", chip).chip.hop_latency_s == 5e-7
    assert parse_slice("v5e:4x4").chip.hop_latency_s == 1e-6


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("v5e:3x4", "slice 'v5e:3x4': v5e has no slice 3x4; nearest: v5e:4x4, v5e:2x4, v5e:4x8"),
        ("v5e:4x2", "slice 'v5e:4x2': v5e writes these dims in another order: v5e:2x4"),
        ("v5p:1x2x2", "slice 'v5p:1x2x2': v5p writes these dims in another order: v5p:2x2x1"),
        ("v5e", "slice 'v5e': expected chip:dims, such as v5e:4x4 or h100:8"),
        ("v5:4x4", "slice 'v5:4x4': no chip 'v5'; closest: v5p, v5e, v4"),
        ("v5p:4x4", "slice 'v5p:4x4': expected 3 dims after v5p:, such as v5p:2x4x4"),
        ("v5e:4x?", "slice 'v5e:4x?': expected 2 dims after v5e:, such as v5e:4x4"),
        ("v5e:", "slice 'v5e:': expected 2 dims after v5e:, such as v5e:4x4"),
        ("v5e:0x4", "slice 'v5e:0x4': expected 2 dims after v5e:, such as v5e:4x4"),
        ("h100:16", "slice 'h100:16': h100 has no slice 16; nearest: h100:8, h100:4, h100:2"),
    ],
)
def test_a_slice_that_is_not_names_what_would_work(text: str, message: str) -> None:
    """Each message says the value, what was expected and the nearest that exist."""
    with pytest.raises(InputError) as error:
        parse_slice(text)
    assert str(error.value) == message


def test_a_slice_of_another_chip_than_given_is_refused() -> None:
    """The name and the chip must agree."""
    with pytest.raises(InputError) as error:
        parse_slice("v4:2x2x1", load_chip("v5e"))
    assert str(error.value) == "slice 'v4:2x2x1': expected a slice of the chip 'v5e'"
