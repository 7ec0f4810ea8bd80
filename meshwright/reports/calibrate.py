"""The report of `calibrate`."""

from __future__ import annotations

from collections.abc import Sequence

from executor.calibrate.calibrate import Calibration, shared
from mesh.slices import slices_of
from meshwright.reports.text import Block, Lines, TextTable


def blocks(found: Calibration, path: str | None) -> Sequence[Block]:
    """Each constant and how well it fits; the slices of the chip, and what to do with its file."""
    rows = [(f.name, f"{f.value:.4g}", f.unit, f.quality) for f in found.fits]
    slices = [slice_.name for slice_ in slices_of(found.chip)]
    use = [f"to plan for it: meshwright plan MODEL --slice {slices[-1]} --chip-file {path}"] if path else []
    return [
        TextTable(f"Chip {found.chip.name}", ("constant", "value", "unit", "how well it fits"), rows),
        Lines("", [*shared(found.chip), f"slices: {', '.join(slices)}", *use]),
    ]
