"""The command that proves: `verify` joins the planner's. jax loads only when it runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from planner.commands import SCHEMAS
from planner.commands_validate import app
from planner.options import PROGRESS, Output, Pick, Programs, one_of, whole, words
from planner.output import progress_line, write

__all__ = ["app"]


def _report_type() -> type:
    from executor.verdict import Report

    return Report


SCHEMAS["report"] = _report_type
REPORT_FORMATS = ("table", "json", "junit", "markdown")

Levels = Annotated[
    list[str] | None,
    typer.Option("--level", metavar="LEVEL[,...]", help="numerics, collectives, tpu-compiler; default: all."),
]
Mode = Annotated[
    str, typer.Option("--mode", metavar="manual|automatic|both", help="shard_map, or jit with the plan's specs.")
]
ReportFormat = Annotated[str, typer.Option("--format", metavar="table|json|junit|markdown", help="How to print.")]


@app.command()
def verify(
    file: Annotated[str, typer.Argument(metavar="PLAN.JSON", help="A file that `meshwright plan -o` wrote.")],
    pick: Pick = "1",
    level: Levels = None,
    mode: Mode = "manual",
    program: Programs = None,
    progress: Annotated[str, typer.Option(metavar="auto|never", help="Progress on stderr, if a terminal.")] = "auto",
    output: Output = None,
    style: ReportFormat = "table",
) -> int:
    """Run and compile a plan, and say whether it does what was promised. Exit 0: it holds; 1: it does not."""
    from executor.verify import verify as run
    from planner.files import write_whole
    from strategies.layoutfile import read_layout

    one_of("--format", style, REPORT_FORMATS)
    one_of("--progress", progress, PROGRESS)
    levels = words("--level", level) if level else None
    programs = tuple(p for name in program or () for p in read_layout(Path(name)))
    with progress_line(progress) as say:
        report = run(Path(file), pick=whole("--pick", pick), levels=levels, mode=mode, programs=programs, progress=say)
    write(_encoded(report, style))
    if output is not None:
        write_whole(Path(output), _encoded(report, style if style == "junit" else "json"))
    return 0 if report.holds else 1


def _encoded(report: object, style: str) -> bytes:
    from executor.report import blocks, junit
    from executor.verdict import Report
    from planner.plan import encode
    from planner.report_text import render

    assert isinstance(report, Report)
    if style == "json":
        return encode(report)
    return junit(report) if style == "junit" else render(blocks(report), style).encode("utf-8", "backslashreplace")
