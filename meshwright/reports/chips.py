"""The chips in a table, and one chip in full with its sources and slices."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from mesh.chips import Chip
from mesh.slices import Slice, slices_of
from meshwright.reports.text import Block, Lines, TextTable
from planner.numbers import digits, gb

_TERA = 1e12


def chips(every: Iterable[Chip]) -> Sequence[Block]:
    """Return one row per chip."""
    headers = (
        "chip", "kind", "bf16 TFLOP/s", "int8 TOP/s", "HBM GB", "usable", "HBM GB/s", "link GB/s", "devices", "slices",
        "hop us",
    )  # fmt: skip
    legend = (
        "per chip, but usable GB are per device, and link GB/s of one link, one way; devices: per chip; GB = 1e9 "
        "bytes; `meshwright chips NAME` shows sources and slices"
    )
    return [TextTable("", headers, [_row(chip) for chip in every], wide=frozenset({10})), Lines("", [legend])]


def _row(chip: Chip) -> list[str]:
    flops = [digits(chip.flops_per_s.get(dtype, 0) / _TERA) for dtype in ("bf16", "int8")]
    rates = [digits(chip.hbm_bytes_per_s / 1e9), digits(chip.link_bytes_per_s / 1e9)]
    memory = [gb(chip.hbm_bytes), gb(chip.usable_hbm_bytes_per_device)]
    counts = [str(chip.devices_per_chip), str(len(slices_of(chip)))]
    return [chip.name, chip.kind, *flops, *memory, *rates, *counts, digits(chip.hop_latency_s * 1e6)]


def chip(one: Chip) -> Sequence[Block]:
    """Return one chip in full: facts with their sources, and slices with their hosts."""
    headers = ("slice", "chips", "devices", "hosts", "wraparound", "machine type", "accelerator label")
    rows = [_slice_row(slice_) for slice_ in slices_of(one)]
    sources = dict.fromkeys(machine.source for machine in one.machines)
    return [
        TextTable(f"{one.name} ({one.kind})", ("fact", "value", "source"), _facts(one)),
        TextTable("Slices", headers, rows),
        Lines("Sources of the slices", list(sources)),
    ]


def _facts(one: Chip) -> list[tuple[str, str, str]]:
    values: dict[str, object] = {f"flops_per_s.{dtype}": value for dtype, value in one.flops_per_s.items()}
    skip = ("name", "kind", "flops_per_s", "reached", "sources", "machines")
    values |= {field: getattr(one, field) for field in one.__struct_fields__ if field not in skip}
    if one.reached:
        values |= {f"reached.{field}": getattr(one.reached, field) for field in one.reached.__struct_fields__}
    return [
        (field, _value(value), one.sources.get(field, one.sources.get(field.split(".")[0], "")))
        for field, value in values.items()
        if value is not None
    ]


def _value(value: object) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{key}={one}" for key, one in value.items())
    return f"{value:g}" if isinstance(value, float) else str(value)


def _slice_row(slice_: Slice) -> list[str]:
    rings = [axis.name for axis in slice_.axes if axis.ring]
    counts = map(str, (slice_.chips, slice_.devices, slice_.hosts))
    return [slice_.name, *counts, " ".join(rings) or "-", slice_.machine_type, slice_.accelerator_label]
