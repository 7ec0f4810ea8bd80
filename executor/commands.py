"""The command that proves: `verify` joins the planner's. jax loads only when it runs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mesh.errors import InputError
from planner.commands import SCHEMAS
from planner.commands_fleet import app
from planner.options import FORMATS, PROGRESS, ChipFile, Format, Output, Pick, Programs, number, one_of, whole, words
from planner.output import progress_line, show, write

if TYPE_CHECKING:
    from executor.verdict import Report

__all__ = ["app"]


def _report_type() -> type:
    from executor.verdict import Report

    return Report


SCHEMAS["report"] = _report_type
REPORT_FORMATS = ("table", "json", "junit", "markdown")

Levels = Annotated[
    list[str] | None,
    typer.Option("--level", metavar="LEVEL[,...]", help="Default: numerics,collectives,tpu-compiler; also: timing."),
]
Mode = Annotated[
    str,
    typer.Option(
        "--mode",
        metavar="manual|automatic|unconstrained|both",
        help="shard_map; jit with the plan's specs and constraints; with its specs alone; the first two.",
    ),
]
Within = Annotated[
    str | None, typer.Option("--timing-within", metavar="FACTOR", help="Of the priced step: judges level timing.")
]
Progress = Annotated[str, typer.Option(metavar="auto|never", help="Progress on stderr, if that is a terminal.")]
ReportFormat = Annotated[str, typer.Option("--format", metavar="table|json|junit|markdown", help="How to print.")]
Coordinator = Annotated[
    str | None,
    typer.Option(metavar="HOST:PORT", help="Several processes: where process 0 listens (or JAX_COORDINATOR_ADDRESS)."),
]
Processes = Annotated[str | None, typer.Option(metavar="N", help="How many there are (or JAX_NUM_PROCESSES).")]
ProcessId = Annotated[str | None, typer.Option(metavar="I", help="Which this one is, from 0 (or JAX_PROCESS_ID).")]
Distributed = Annotated[bool, typer.Option("--distributed", help="Ask the cluster for these: a TPU pod, Slurm, ...")]
Timeout = Annotated[str, typer.Option(metavar="SECONDS", help="How long to wait for the other processes.")]


@app.command()
def verify(
    file: Annotated[str, typer.Argument(metavar="PLAN.JSON", help="A file that `meshwright plan -o` wrote.")],
    pick: Pick = "1",
    level: Levels = None,
    mode: Mode = "manual",
    program: Programs = None,
    chip_file: ChipFile = None,
    timing_within: Within = None,
    progress: Progress = "auto",
    output: Output = None,
    style: ReportFormat = "table",
    coordinator: Coordinator = None,
    processes: Processes = None,
    process_id: ProcessId = None,
    distributed: Distributed = False,
    timeout: Timeout = "60",
) -> int:
    """Run and compile a plan, and say whether it does what was promised. Exit 0: it holds; 1: it does not."""
    from executor.hosts import hosts_of, joined
    from executor.verify import verify as run
    from strategies.layoutfile import read_layout

    one_of("--format", style, REPORT_FORMATS)
    one_of("--progress", progress, PROGRESS)
    levels = words("--level", level) if level else None
    programs = tuple(p for name in program or () for p in read_layout(Path(name)))
    found = {"--coordinator": coordinator, "--processes": processes, "--process-id": process_id}
    with joined(hosts_of(found, distributed=distributed, timeout=timeout)) as together:
        with progress_line(progress if together.process_id == 0 else "never") as say:
            report = run(
                Path(file),
                pick=whole("--pick", pick),
                levels=levels,
                mode=mode,
                programs=programs,
                chip_file=None if chip_file is None else Path(chip_file),
                timing_within=None if timing_within is None else number("--timing-within", timing_within),
                together=together,
                progress=say,
            )
        return together.last(lambda: _finish(report, style, output))


def _finish(report: Report, style: str, output: str | None) -> int:
    from planner.files import write_whole

    write(_encoded(report, style))
    if output is not None:
        write_whole(Path(output), _encoded(report, style if style == "junit" else "json"))
    if report.only_told:
        raise InputError("nothing was judged: level timing needs --timing-within FACTOR, or another level beside it")
    return 0 if report.holds else 1


def _encoded(report: Report, style: str) -> bytes:
    from executor.report import blocks, junit
    from planner.planfile import encode
    from planner.report_text import render

    if style == "json":
        return encode(report)
    return junit(report) if style == "junit" else render(blocks(report), style).encode("utf-8", "backslashreplace")


@app.command()
def calibrate(
    devices: Annotated[str, typer.Option(metavar="cpu|gpu|tpu", help="Which of this machine's.")] = "cpu",
    count: Annotated[str | None, typer.Option(metavar="N", help="How many; default: all, of a CPU 8.")] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Rough, and several times quicker.")] = False,
    progress: Progress = "auto",
    output: Annotated[str | None, typer.Option("-o", "--output", metavar="CHIP.TOML", help="The chip file.")] = None,
    style: Format = "table",
) -> None:
    """Measure the devices of this machine, and write them as a chip file, which --chip-file takes."""
    from executor.calibrate import blocks, chip_file
    from executor.calibrate import calibrate as run
    from executor.devices import Unavailable
    from planner.files import check_writable, write_whole

    one_of("--format", style, FORMATS)
    one_of("--progress", progress, PROGRESS)
    if output is not None:
        check_writable(Path(output))
    try:
        with progress_line(progress) as say:
            found = run(devices, count=None if count is None else whole("--count", count), quick=quick, progress=say)
    except Unavailable as reason:
        raise InputError(f"--devices {devices}: {reason}") from None
    if output is not None:
        write_whole(Path(output), chip_file(found))
    show(found, lambda: blocks(found, output), style)
