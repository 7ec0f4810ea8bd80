"""The commands `pareto` and `fits`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from mesh.errors import InputError
from meshwright.asked import Asked, searching
from meshwright.commandline import option
from meshwright.options import (
    CONSTANTS,
    CONTEXT,
    CUTS,
    DTYPES,
    FILES,
    FIX,
    GOALS,
    MODEL,
    OUTPUT,
    PROGRESS,
    SLICES,
    STEP,
    WORKERS,
    counts_or_auto,
    format_of,
)
from meshwright.output import INTERRUPTED, progress_line, say_nothing, show, show_nothing, write
from meshwright.parsing import whole

if TYPE_CHECKING:
    from planner.plan.planfile import PlanFile

SUFFIXES = ("json", "csv", "svg", "png", "html")
BATCHES = "Default auto: 1, 2, 4, ... and the largest that fits."


@searching(
    MODEL,
    *SLICES,
    STEP,
    option("--batch batches", "N[,N...]|auto", BATCHES, many=True, read=counts_or_auto),
    CONTEXT,
    *DTYPES,
    FIX,
    *FILES,
    CONSTANTS,
    *GOALS,
    *CUTS,
    WORKERS,
    PROGRESS,
    option("-o --output", "FILE", "Also write it: .json, .csv, or a plot: .svg, .png, .html."),
    format_of("csv"),
)
def pareto(
    asked: Asked,
    *,
    phase: str,
    batches: tuple[int, ...] | str | None,
    context: int,
    fix: Mapping[str, Mapping[str, str]],
    output: str | None,
    style: str,
) -> int:
    """Find the frontier of latency against throughput per chip, and cost, over slices and batches."""
    from planner.best.solve import INTERRUPTED as STOPPED
    from planner.best.solve import NothingFits
    from planner.frontier.pareto import pareto as run

    suffix = _suffix(output)
    try:
        with progress_line(asked.progress) as say:
            found = run(
                asked.model,
                phase=phase,
                batches=batches or "auto",
                context=context,
                fix=fix,
                progress=say,
                **asked.where,
                **asked.how,
                **asked.goals,
            )
    except NothingFits as nothing:
        return show_nothing(nothing, "table" if style == "csv" else style)
    _show_frontier(found, style, output, suffix)
    return INTERRUPTED if found.search.proved_optimal == STOPPED else 0


def _suffix(output: str | None) -> str:
    """What to write by the file's suffix; all that would stop it is said before the search."""
    if output is None:
        return ""
    from meshwright.reports import frontier_plot
    from planner.files import check_writable

    suffix = Path(output).suffix.lower().removeprefix(".")
    if suffix not in SUFFIXES:
        known = ", ".join(f".{one}" for one in SUFFIXES)
        raise InputError(f"-o {output!r}: expected a file that ends in one of {known}")
    if suffix in frontier_plot.SUFFIXES:
        frontier_plot.check_plot(f"-o {output!r}")
    check_writable(Path(output))
    return suffix


def _show_frontier(found: PlanFile, style: str, output: str | None, suffix: str) -> None:
    from meshwright.reports.frontier import as_csv, report
    from meshwright.reports.frontier_plot import plot
    from planner.files import write_whole
    from planner.plan.planfile import encode

    assert found.frontier is not None
    frontier, failed = found.frontier, None
    if output is not None:  # the file first: it must not be lost where whoever reads stdout goes away
        of = {"json": lambda: encode(found), "csv": lambda: as_csv(frontier).encode()}
        data = of[suffix]() if suffix in of else plot(found, frontier, suffix)
        try:
            write_whole(Path(output), data)
        except InputError as error:
            failed = error
    if style == "csv":
        write(as_csv(frontier).encode())
    else:
        show(found, lambda: report(found, frontier), style)
    if failed:
        raise failed


@searching(
    MODEL,
    *SLICES,
    STEP,
    option("--batch", "N", "Sequences, for the largest context; default 1.", read=whole),
    option("--context", "TOKENS", "Tokens in each cache or prompt, for the largest batch; 8192.", read=whole),
    *DTYPES,
    FIX,
    *FILES,
    *CUTS,
    WORKERS,
    PROGRESS,
    OUTPUT,
    format_of(),
)
def fits(
    asked: Asked,
    *,
    phase: str,
    batch: int | None,
    context: int | None,
    fix: Mapping[str, Mapping[str, str]],
    output: str | None,
    style: str,
) -> int:
    """Find the largest batch and the largest context that fit each slice, and what runs out.

    Exit 1: a batch at a context was asked for, and none of the slices takes it.
    """
    from meshwright.reports.fits import report, smallest_text
    from planner.files import check_writable, write_whole
    from planner.fits.fits import fits as run
    from planner.plan.planfile import encode

    if output is not None:
        check_writable(Path(output))
    with progress_line(asked.progress) as say:
        found = run(
            asked.model,
            phase=phase,
            batch=1 if batch is None else batch,
            context=8192 if context is None else context,
            fix=fix,
            progress=say,
            **asked.where,
            **asked.how,
        )
    if output is not None:
        write_whole(Path(output), encode(found))
    show(found, lambda: report(found), style)
    if found.interrupted:
        return INTERRUPTED
    if batch is None or context is None or found.smallest is not None:
        return 0
    return say_nothing(f"{found.model}: {smallest_text(found)}")
