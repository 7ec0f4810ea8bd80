"""The command `pareto`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from mesh.errors import InputError
from meshwright.commandline import option
from meshwright.exits import INTERRUPTED
from meshwright.options import (
    CONSTANTS,
    CONTEXT,
    CUTS,
    DTYPES,
    FILES,
    FIX,
    GOALS,
    MODEL,
    PROGRESS,
    SLICES,
    STEP,
    WORKERS,
    Asked,
    counts_or_auto,
    format_of,
    searching,
)
from meshwright.output import check_output, finish, progress_line, show_nothing

if TYPE_CHECKING:
    from planner.plan.planfile import PlanFile

SUFFIXES = ("json", "csv", "svg", "png", "html")


@searching(
    MODEL,
    *SLICES,
    STEP,
    option(
        "--batch",
        "N[,N...]|auto",
        "Default auto: 1, 2, 4, ... and the largest that fits.",
        many=True,
        read=counts_or_auto,
    ),
    CONTEXT,
    *DTYPES,
    FIX,
    *FILES,
    CONSTANTS,
    *GOALS,
    CUTS,
    WORKERS,
    PROGRESS,
    option("-o --output", "FILE", "Also write it: .json, .csv, or a plot: .svg, .png, .html."),
    *format_of("csv"),
)
def pareto(asked: Asked) -> int:
    """Find the frontier of latency against throughput per chip, and cost, over slices and batches.

    \b
    meshwright pareto llama-3.1-8b --chip v5e --chips 8..32 --price-per-chip-hour 1.2
    """
    from planner.api import pareto as run
    from planner.best.nothing import NothingFits

    suffix = _suffix(asked.output)
    try:
        with progress_line(asked.progress) as say:
            plans = run(asked.model, asked.slices, progress=say, **asked.options)
    except NothingFits as nothing:
        return show_nothing(nothing, "table" if asked.style == "csv" else asked.style)
    _finish(plans, asked, suffix)
    return INTERRUPTED if plans.interrupted else 0


def _suffix(output: str | None) -> str:
    """Return the suffix of the file to write; raises `InputError`, before the search, where it cannot be written."""
    if output is None:
        return ""
    from meshwright.reports import frontier_plot

    suffix = Path(output).suffix.lower().removeprefix(".")
    if suffix not in SUFFIXES:
        known = ", ".join(f".{one}" for one in SUFFIXES)
        raise InputError(f"-o {output!r}: expected a file that ends in one of {known}")
    if suffix in frontier_plot.SUFFIXES:
        frontier_plot.check_plot(f"-o {output!r}")
    check_output(output)
    return suffix


def _finish(plans: PlanFile, asked: Asked, suffix: str) -> None:
    from meshwright.reports.frontier import as_csv, report
    from meshwright.reports.frontier_plot import plot

    frontier = plans.frontier
    assert frontier is not None
    csv = as_csv(frontier).encode()
    data = None if suffix in ("", "json") else csv if suffix == "csv" else plot(plans, frontier, suffix)
    finish(plans, lambda: csv if asked.style == "csv" else report(plans, frontier), asked.style, asked.output, data)
