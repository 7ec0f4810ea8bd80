"""The command `fleet`: joins the planner's others."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from planner.commands_validate import app
from planner.options import (
    FORMATS,
    PROGRESS,
    Activations,
    Cache,
    ChipFile,
    Compute,
    Constants,
    Cuts,
    Format,
    ModelName,
    Output,
    Programs,
    Weights,
    WholeAxes,
    Workers,
    cuts_of,
    number,
    one_of,
    targets_of,
    whole,
    wholes,
)
from planner.output import INTERRUPTED, NOTHING_FITS, progress_line, show

if TYPE_CHECKING:
    from planner.fleet import NoFleet
    from planner.planfile import PlanFile

__all__ = ["app"]

Quota = Annotated[list[str], typer.Option("--quota", metavar="CHIP=N[,...]", help="Chips by kind: v5e=256,v6e=64.")]
Traffic = Annotated[
    list[str],
    typer.Option("--traffic", metavar="NAME=N,...", help="Such as requests_per_s=20,input=2000,output=300."),
]
PrefillBatches = Annotated[
    list[str] | None, typer.Option("--prefill-batch", metavar="N[,N...]", help="Prompts; default 1,2,4,8,16.")
]
DecodeBatches = Annotated[
    list[str] | None,
    typer.Option("--decode-batch", metavar="N[,N...]", help="Default: powers of two and the largest that fits."),
]
MaxStep = Annotated[str | None, typer.Option("--max-step-ms", metavar="MS", help="The longest decode step.")]
MaxTtft = Annotated[str | None, typer.Option("--max-ttft-ms", metavar="MS", help="Longest time to the first token.")]
HourPrices = Annotated[
    list[str] | None,
    typer.Option("--price-per-chip-hour", metavar="DOLLARS", help="1.2, or v5e=1.2,v6e=2.7; else: fewest chips."),
]
Utilisation = Annotated[str, typer.Option(metavar="SHARE", help="Of the servers' rates that the traffic may take.")]
Seconds = Annotated[
    str | None, typer.Option("--solver-seconds", metavar="S", help="Where CP-SAT is ended; its best so far counts.")
]
Progress = Annotated[str, typer.Option(metavar="auto|never", help="Progress on stderr, if that is a terminal.")]


@app.command()
def fleet(
    model: ModelName,
    quota: Quota,
    traffic: Traffic,
    max_step: MaxStep = None,
    max_ttft: MaxTtft = None,
    price: HourPrices = None,
    utilisation: Utilisation = "1",
    prefill_batch: PrefillBatches = None,
    decode_batch: DecodeBatches = None,
    weights: Weights = "bf16",
    kv: Cache = "bf16",
    activations: Activations = "bf16",
    compute: Compute = None,
    program: Programs = None,
    chip_file: ChipFile = None,
    constants: Constants = "chip",
    cuts: Cuts = "two",
    whole_axes: WholeAxes = False,
    workers: Workers = None,
    solver_seconds: Seconds = None,
    progress: Progress = "auto",
    output: Output = None,
    style: Format = "table",
) -> int:
    """Find the cheapest prefill and decode servers for a traffic, within a quota of chips. Exit 1: there are none."""
    from planner import fleet as of_fleet
    from planner.fleet_request import PREFILL_BATCHES, parse_quota, parse_traffic
    from planner.targets import parse_prices

    one_of("--format", style, FORMATS)
    one_of("--progress", progress, PROGRESS)
    try:
        with progress_line(progress) as say:
            found = of_fleet.fleet(
                model,
                parse_quota(quota),
                parse_traffic(traffic),
                weights=weights,
                kv=kv,
                activations=activations,
                compute=compute,
                prefill_batches=wholes("--prefill-batch", prefill_batch) if prefill_batch else PREFILL_BATCHES,
                decode_batches=wholes("--decode-batch", decode_batch) if decode_batch else None,
                targets=targets_of(max_step, max_ttft, None, None),
                prices=parse_prices(price or ()),
                utilisation=number("--utilisation", utilisation),
                programs=program or (),
                solver_seconds=None if solver_seconds is None else number("--solver-seconds", solver_seconds),
                cuts=cuts_of(cuts, whole_axes),
                workers=None if workers is None else whole("--workers", workers),
                chip_file=chip_file,
                constants=constants,
                progress=say,
            )
    except of_fleet.NoFleet as nothing:
        return _show_nothing(nothing, style)
    return _show(found, style, output)


def _show(found: PlanFile, style: str, output: str | None) -> int:
    """Print the fleet and write its file, the file first; returns the exit code."""
    from planner.files import write_whole
    from planner.planfile import encode
    from planner.report_fleet import report

    try:
        if output is not None:
            write_whole(Path(output), encode(found))
    finally:
        show(found, lambda: report(found), style)
    return INTERRUPTED if found.fleet and found.fleet.proof.interrupted else 0


def _show_nothing(nothing: NoFleet, style: str) -> int:
    """Why there is no fleet: as JSON on stdout where that was asked for, and in one line on stderr."""
    from planner.report_nothing import as_json

    if style == "json":
        show(as_json(nothing), lambda: [], style)
    sys.stderr.write(f"meshwright: {nothing}\n")
    return NOTHING_FITS
