"""Chip files: a chip as the TOML that `mesh.chips.read_chip` reads, for chips that were measured."""

from collections.abc import Mapping
from typing import Any

import msgspec

from mesh.chips import Chip, Machine


def chip_toml(chip: Chip, comment: str = "") -> bytes:
    """The chip file of a chip; `comment` stands at its head, one `#` a line. What is not known is left out."""
    head = "".join(f"# {line}".rstrip() + "\n" for line in comment.splitlines())
    known = {name: value for name, value in msgspec.to_builtins(chip).items() if value is not None}
    return head.encode() + msgspec.toml.encode(known)


def measured_chip(
    name: str, devices: int, rates: Mapping[str, Any], sources: Mapping[str, str], *, any_number: bool = False
) -> Chip:
    """A chip of kind `name` as `devices` devices on one switch; `rates` and `sources` are of the fields measured.

    `any_number`: powers of two below are slices, too. That is wrong where devices share what they were measured on.
    """
    how = {"devices_per_chip": "one JAX device", "torus_dims": "one switched axis", "wrap": "one switched axis"}
    smaller = [1 << k for k in range(devices.bit_length()) if 1 << k < devices] if any_number else []
    machine = Machine(
        chips_per_host=devices,
        machine_type="this-machine",
        accelerator_label=name,
        dims=tuple(map(str, (*smaller, devices))),
        source="the devices that were measured",
    )
    fixed = {"name": name, "kind": name, "devices_per_chip": 1, "torus_dims": 1, "wrap": "switch"}
    fields = {**fixed, **rates, "machines": (machine,), "sources": {**how, **sources}}
    return Chip(**fields)
