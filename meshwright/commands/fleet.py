"""The command `fleet`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from meshwright.asked import Asked, searching
from meshwright.commandline import option
from meshwright.options import (
    CONSTANTS,
    CUTS,
    DTYPES,
    FILES,
    MODEL,
    OUTPUT,
    PROGRESS,
    WORKERS,
    counts,
    format_of,
    milliseconds,
    prices,
)
from meshwright.output import INTERRUPTED, NOTHING_FITS, progress_line, show
from meshwright.parsing import number

if TYPE_CHECKING:
    from planner.fleet.fleet import NoFleet
    from planner.plan.planfile import PlanFile


@searching(
    MODEL,
    option("--quota", "CHIP=N[,...]", "Chips by kind: v5e=256,v6e=64.", many=True, required=True),
    option("--traffic", "NAME=N,...", "Such as requests_per_s=20,input=2000,output=300.", many=True, required=True),
    option("--max-step-ms max_step_s", "MS", "The longest decode step.", read=milliseconds),
    option("--max-ttft-ms max_ttft_s", "MS", "Longest time to the first token.", read=milliseconds),
    option(
        "--price-per-chip-hour prices",
        "DOLLARS",
        "1.2, or v5e=1.2,v6e=2.7; else: fewest chips.",
        many=True,
        read=prices,
    ),
    option("--utilisation", "SHARE", "Of the servers' rates that the traffic may take.", default="1", read=number),
    option("--prefill-batch prefill_batches", "N[,N...]", "Prompts; default 1,2,4,8,16.", many=True, read=counts),
    option(
        "--decode-batch decode_batches",
        "N[,N...]",
        "Default: powers of two and the largest that fits.",
        many=True,
        read=counts,
    ),
    *DTYPES,
    *FILES,
    CONSTANTS,
    *CUTS,
    WORKERS,
    option("--solver-seconds", "S", "Where CP-SAT is ended; its best so far counts.", read=number),
    PROGRESS,
    OUTPUT,
    format_of(),
)
def fleet(
    asked: Asked,
    *,
    quota: tuple[str, ...],
    traffic: tuple[str, ...],
    utilisation: float,
    prefill_batches: tuple[int, ...] | None,
    decode_batches: tuple[int, ...] | None,
    solver_seconds: float | None,
    output: str | None,
    style: str,
) -> int:
    """Find the cheapest prefill and decode servers for a traffic, within a quota of chips. Exit 1: there are none."""
    from planner.fleet import fleet as of_fleet
    from planner.fleet.request import PREFILL_BATCHES, parse_quota, parse_traffic

    try:
        with progress_line(asked.progress) as say:
            found = of_fleet.fleet(
                asked.model,
                parse_quota(quota),
                parse_traffic(traffic),
                prefill_batches=prefill_batches or PREFILL_BATCHES,
                decode_batches=decode_batches,
                utilisation=utilisation,
                solver_seconds=solver_seconds,
                progress=say,
                **asked.how,
                **asked.goals,
            )
    except of_fleet.NoFleet as nothing:
        return _show_nothing(nothing, style)
    return _show(found, style, output)


def _show(found: PlanFile, style: str, output: str | None) -> int:
    """Print the fleet and write its file, the file first; returns the exit code."""
    from meshwright.reports.fleet import report
    from planner.files import write_whole
    from planner.plan.planfile import encode

    try:
        if output is not None:
            write_whole(Path(output), encode(found))
    finally:
        show(found, lambda: report(found), style)
    return INTERRUPTED if found.fleet and found.fleet.proof.interrupted else 0


def _show_nothing(nothing: NoFleet, style: str) -> int:
    """Why there is no fleet: as JSON on stdout where that was asked for, and in one line on stderr."""
    from meshwright.reports.nothing import as_json

    if style == "json":
        show(as_json(nothing), lambda: [], style)
    sys.stderr.write(f"meshwright: {nothing}\n")
    return NOTHING_FITS
