"""The commands `pareto` and `fits`: they join the planner's others."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mesh.errors import InputError
from planner.commands import SCHEMAS
from planner.commands_plan import app
from planner.options import (
    FORMATS,
    PROGRESS,
    Activations,
    AnySlices,
    Cache,
    ChipCounts,
    ChipFile,
    Chips,
    Compute,
    Constants,
    Context,
    Cuts,
    Format,
    MaxChips,
    MaxStep,
    MaxTtft,
    MinTokens,
    ModelName,
    Output,
    PricesText,
    Programs,
    Weights,
    WholeAxes,
    Workers,
    cuts_of,
    fixed_roles,
    one_of,
    targets_of,
    whole,
    wholes,
    words,
)
from planner.output import INTERRUPTED, progress_line, say_nothing, show, show_nothing, write

if TYPE_CHECKING:
    from planner.planfile import PlanFile

__all__ = ["app"]

FRONTIER_FORMATS = (*FORMATS, "csv")
SUFFIXES = ("json", "csv", "svg", "png", "html")

Fix = Annotated[
    list[str] | None,
    typer.Option("--fix", metavar="COMPONENT=AXIS:ROLE,...", help="Roles that torus axes must have."),
]
Progress = Annotated[str, typer.Option(metavar="auto|never", help="Progress on stderr, if that is a terminal.")]


def _fits_type() -> type:
    from planner.fits import Fits

    return Fits


SCHEMAS["fits"] = _fits_type


@app.command()
def pareto(
    model: ModelName,
    slices: AnySlices = None,
    chips: Chips = None,
    chip_counts: ChipCounts = None,
    phase: Annotated[str, typer.Option(metavar="decode|prefill", help="What a step is.")] = "decode",
    batches: Annotated[
        list[str] | None,
        typer.Option("--batch", metavar="N[,N...]|auto", help="Default auto: 1, 2, 4, ... and the largest that fits."),
    ] = None,
    context: Context = "8192",
    weights: Weights = "bf16",
    kv: Cache = "bf16",
    activations: Activations = "bf16",
    compute: Compute = None,
    fix: Fix = None,
    program: Programs = None,
    chip_file: ChipFile = None,
    constants: Constants = "chip",
    max_step: MaxStep = None,
    max_ttft: MaxTtft = None,
    min_tokens: MinTokens = None,
    max_chips: MaxChips = None,
    price: PricesText = None,
    cuts: Cuts = "two",
    whole_axes: WholeAxes = False,
    workers: Workers = None,
    progress: Progress = "auto",
    output: Annotated[
        str | None,
        typer.Option(
            "-o", "--output", metavar="FILE", help="Also write it: .json, .csv, or a plot: .svg, .png, .html."
        ),
    ] = None,
    style: Annotated[str, typer.Option("--format", metavar="table|json|markdown|csv", help="How to print.")] = "table",
) -> int:
    """Find the frontier of latency against throughput per chip, and cost, over slices and batches."""
    from planner.frontier import pareto as run
    from planner.ranges import chip_range
    from planner.solve import INTERRUPTED as STOPPED
    from planner.solve import NothingFits
    from planner.targets import parse_prices

    one_of("--format", style, FRONTIER_FORMATS)
    one_of("--progress", progress, PROGRESS)
    suffix = _suffix(output)
    try:
        with progress_line(progress) as say:
            found = run(
                model,
                words("--slice", slices or ()),
                chips=words("--chip", chips or ()),
                chip_counts=None if chip_counts is None else chip_range(chip_counts),
                phase=one_of("--phase", phase, ("decode", "prefill")),
                batches="auto" if batches in (None, ["auto"]) else wholes("--batch", batches or ()),
                context=whole("--context", context),
                weights=weights,
                kv=kv,
                activations=activations,
                compute=compute,
                fix=fixed_roles(fix or ()),
                programs=program or (),
                targets=targets_of(max_step, max_ttft, min_tokens, max_chips),
                prices=parse_prices(price or ()),
                cuts=cuts_of(cuts, whole_axes),
                workers=None if workers is None else whole("--workers", workers),
                chip_file=chip_file,
                constants=constants,
                progress=say,
            )
    except NothingFits as nothing:
        return show_nothing(nothing, "table" if style == "csv" else style)
    _show_frontier(found, style, output, suffix)
    return INTERRUPTED if found.search.proved_optimal == STOPPED else 0


def _suffix(output: str | None) -> str:
    """What to write by the file's suffix; all that would stop it is said before the search."""
    if output is None:
        return ""
    from planner import plot_frontier
    from planner.files import check_writable

    suffix = Path(output).suffix.lower().removeprefix(".")
    if suffix not in SUFFIXES:
        known = ", ".join(f".{one}" for one in SUFFIXES)
        raise InputError(f"-o {output!r}: expected a file that ends in one of {known}")
    if suffix in plot_frontier.SUFFIXES:
        plot_frontier.check_plot(f"-o {output!r}")
    check_writable(Path(output))
    return suffix


def _show_frontier(found: PlanFile, style: str, output: str | None, suffix: str) -> None:
    from planner.files import write_whole
    from planner.planfile import encode
    from planner.plot_frontier import plot
    from planner.report_frontier import as_csv, report

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


def check(style: str, progress: str, output: str | None) -> None:
    """What would stop a command after its work is said before it."""
    from planner.files import check_writable

    one_of("--format", style, FORMATS)
    one_of("--progress", progress, PROGRESS)
    if output is not None:
        check_writable(Path(output))


@app.command()
def fits(
    model: ModelName,
    slices: AnySlices = None,
    chips: Chips = None,
    chip_counts: ChipCounts = None,
    phase: Annotated[str, typer.Option(metavar="decode|prefill", help="What a step is.")] = "decode",
    batch: Annotated[
        str | None, typer.Option(metavar="N", help="Sequences, for the largest context; default 1.")
    ] = None,
    context: Annotated[
        str | None, typer.Option(metavar="TOKENS", help="Tokens in each cache or prompt, for the largest batch; 8192.")
    ] = None,
    weights: Weights = "bf16",
    kv: Cache = "bf16",
    activations: Activations = "bf16",
    compute: Compute = None,
    fix: Fix = None,
    program: Programs = None,
    chip_file: ChipFile = None,
    cuts: Cuts = "two",
    whole_axes: WholeAxes = False,
    workers: Workers = None,
    progress: Progress = "auto",
    output: Output = None,
    style: Format = "table",
) -> int:
    """Find the largest batch and the largest context that fit each slice, and what runs out.

    Exit 1: a batch at a context was asked for, and none of the slices takes it.
    """
    from planner.files import write_whole
    from planner.fits import fits as run
    from planner.planfile import encode
    from planner.ranges import chip_range
    from planner.report_fits import report, smallest_text

    check(style, progress, output)
    with progress_line(progress) as say:
        found = run(
            model,
            words("--slice", slices or ()),
            chips=words("--chip", chips or ()),
            chip_counts=None if chip_counts is None else chip_range(chip_counts),
            phase=one_of("--phase", phase, ("decode", "prefill")),
            batch=1 if batch is None else whole("--batch", batch),
            context=8192 if context is None else whole("--context", context),
            weights=weights,
            kv=kv,
            activations=activations,
            compute=compute,
            fix=fixed_roles(fix or ()),
            programs=program or (),
            cuts=cuts_of(cuts, whole_axes),
            workers=None if workers is None else whole("--workers", workers),
            chip_file=chip_file,
            progress=say,
        )
    if output is not None:
        write_whole(Path(output), encode(found))
    show(found, lambda: report(found), style)
    if found.interrupted:
        return INTERRUPTED
    if batch is None or context is None or found.smallest is not None:
        return 0
    return say_nothing(f"{found.model}: {smallest_text(found)}")
