"""The report of `calibrate`."""

from __future__ import annotations

from collections.abc import Sequence

from executor.calibrate.calibrate import Calibration, shared
from mesh.slices import slices_of
from meshwright.reports.text import Block, Lines, TextTable


def blocks(calibration: Calibration, path: str | None) -> Sequence[Block]:
    """Return each constant and how well it fits, the slices of the chip, and the commands that take its file."""
    rows = [(f.name, f"{f.value:.4g}", f.unit, f.quality) for f in calibration.fits]
    slices = [slice_.name for slice_ in slices_of(calibration.chip)]
    use = [f"to plan for it: meshwright plan MODEL --slice {slices[-1]} --chip-file {path}"] if path else []
    return [
        TextTable(f"Chip {calibration.chip.name}", ("constant", "value", "unit", "how well it fits"), rows),
        Lines("", [*shared(calibration.chip), f"slices: {', '.join(slices)}", *use]),
    ]
