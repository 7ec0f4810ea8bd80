"""Benchmark: a matmul over batches: from which one on is it bound by FLOPs, and no longer by reading its weights?

    [B, D] x [D, D]:  seconds = max(2 B D^2 / C, bytes(D^2 + 2 B D) / bandwidth),  B_crit = C / bandwidth x bytes / 2

`python tests/bench/bench_batch_sweep.py [--devices gpu] [--count N] [--dtype bf16] [--side 8192] [--chip-file FILE]`
calibrates the devices that are here, C and bandwidth, or takes them from a chip file, and prints a Markdown table:
priced against measured, and both B_crit. All devices work at once.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from executor.calibrate.calibrate import PLATFORMS, Effort, calibrate, device_mesh, launch_fit, matmul_s
from executor.devices import Unavailable
from mesh.chips import Chip, read_chip
from mesh.errors import InputError
from strategies.book.intensity import break_even_uses, roofline_s
from strategies.models.workload import dtype_bytes

BATCHES = {"cpu": 256, "gpu": 2048, "tpu": 2048}  # up to there in powers of two
SIDES = {"cpu": 2048, "gpu": 8192, "tpu": 8192}  # weights larger than a device's share of the caches


@dataclass(frozen=True, kw_only=True)
class Point:
    """One batch."""

    batch: int
    priced_s: float
    measured_s: float


@dataclass(frozen=True, kw_only=True)
class Sweep:
    """A sweep over batches, and the batch at which reading and multiplying take equally long."""

    what: str
    points: tuple[Point, ...]
    predicted_critical_batch: float

    @property
    def measured_critical_batch(self) -> float:
        """Where the floor of the smallest batch meets the slope of the largest."""
        return knee([p.batch for p in self.points], [p.measured_s for p in self.points])

    def text(self) -> str:
        """A Markdown table, and both critical batches."""
        lines = [self.what, "", "| batch | priced ms | measured ms | measured/priced |", "|--:|--:|--:|--:|"]
        for p in self.points:
            times = f"{p.priced_s * 1e3:.3f} | {p.measured_s * 1e3:.3f}"
            lines.append(f"| {p.batch} | {times} | {p.measured_s / p.priced_s:.2f} |")
        found = f"{self.measured_critical_batch:.0f} measured, {self.predicted_critical_batch:.0f} predicted"
        return "\n".join((*lines, "", f"B_crit {found}."))


def knee(batches: Sequence[int], seconds: Sequence[float]) -> float:
    """The batch where the smallest batch's time meets a line from 0 through the largest batch's.

    >>> knee([1, 10, 100, 1000], [2.0, 2.0, 2.0, 10.0])  # 10 s for 1000 is 2 s for 200
    200.0
    """
    return seconds[0] * batches[-1] / seconds[-1]


def batch_sweep(
    chip: Chip, *, dtype: str = "bf16", side: int | None = None, most: int | None = None, repeats: int = 5
) -> Sweep:
    """Time `[B, side] x [side, side]` on all devices of a calibrated chip at once, a program's launch taken off."""
    mesh, width = device_mesh(chip.kind, chip.machines[0].chips_per_host), dtype_bytes(dtype)
    D, most = side or SIDES[chip.kind], most or BATCHES[chip.kind]
    launch_s = launch_fit(mesh, Effort()).value
    C, W = chip.device_flops_per_s(dtype), chip.device_hbm_bytes_per_s
    points = []
    for B in (1 << k for k in range(most.bit_length())):
        moved = width * (D * D + 2 * B * D)
        priced_s = roofline_s(flops=2.0 * B * D * D, moved_bytes=moved, flops_per_s=C, bytes_per_s=W)
        measured_s = matmul_s(mesh, dtype, B, D, launch_s, repeats=repeats)
        points.append(Point(batch=B, priced_s=priced_s, measured_s=measured_s))
    critical = break_even_uses(flops_per_s=C, bytes_per_s=W, value_bytes=width)
    what = f"[B, {D}] x [{D}, {D}] in {dtype} on each of {mesh.size} x {mesh.devices.flat[0].device_kind}"
    return Sweep(what=what, points=tuple(points), predicted_critical_batch=critical)


def main(words: Sequence[str] | None = None) -> None:
    """Calibrate the devices that are here, and sweep a matmul over batches."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--devices", choices=PLATFORMS, default="cpu")
    parser.add_argument("--count", type=int)
    parser.add_argument("--dtype", default="bf16")
    parser.add_argument("--side", type=int, help="D; default: 2048 on a CPU, 8192 elsewhere")
    parser.add_argument("--chip-file", type=Path, help="what `meshwright calibrate` wrote, instead of measuring anew")
    given = parser.parse_args(words)
    try:
        chip = read_chip(given.chip_file) if given.chip_file else calibrate(given.devices, count=given.count).chip
        print(batch_sweep(chip, dtype=given.dtype, side=given.side).text())
    except (InputError, Unavailable) as error:
        parser.error(str(error))


if __name__ == "__main__":
    main()
