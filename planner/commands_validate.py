"""The command `validate`: joins the planner's others."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from planner.commands import SCHEMAS
from planner.commands_sensitivity import app
from planner.options import PROGRESS, one_of, words
from planner.output import progress_line, write

if TYPE_CHECKING:
    from planner.scores import Validation

__all__ = ["app"]

FORMATS = ("table", "json", "markdown", "svg")
TARGETS_MISSED = 1


def _validation_type() -> type:
    from planner.scores import Validation

    return Validation


SCHEMAS["validation"] = _validation_type


@app.command()
def validate(
    sets: Annotated[
        list[str] | None, typer.Option("--set", metavar="NAME", help="A data set; repeat or use commas; default: all.")
    ] = None,
    data: Annotated[
        str | None, typer.Option("--data", metavar="FOLDER", help="Data sets of your own (*.toml), instead of ours.")
    ] = None,
    progress: Annotated[str, typer.Option(metavar="auto|never", help="Progress on stderr, if a terminal.")] = "auto",
    output: Annotated[
        str | None, typer.Option("-o", "--output", metavar="FILE", help="Also write it to this file; svg: only there.")
    ] = None,
    bars: Annotated[
        str | None, typer.Option("--error-bars", metavar="FILE", help="Also write the error bars that plans carry.")
    ] = None,
    style: Annotated[str, typer.Option("--format", metavar="table|json|markdown|svg", help="How to print.")] = "table",
) -> int:
    """Put predictions beside published measurements. Exit 0: within the errors that the data states; 1: not."""
    from planner.error_bars import error_bars
    from planner.files import write_whole
    from planner.measured import MEASURED
    from planner.planfile import encode
    from planner.validate import validate as run

    one_of("--format", style, FORMATS)
    one_of("--progress", progress, PROGRESS)
    folder = Path(data) if data else MEASURED
    with progress_line(progress) as say:
        found = run(words("--set", sets) if sets else None, folder, say)
    text = _encoded(found, style)
    if bars is not None:
        write_whole(Path(bars), encode(error_bars(found, folder)))
    if output is not None:
        write_whole(Path(output), text)
    if output is None or style != "svg":
        write(text)
    return 0 if found.holds else TARGETS_MISSED


def _encoded(found: Validation, style: str) -> bytes:
    """The findings as text of that format."""
    from planner.planfile import encode
    from planner.plot import svg
    from planner.report_text import render
    from planner.report_validate import report

    if style == "svg":
        return svg(found)
    return encode(found) if style == "json" else render(report(found), style).encode("utf-8", "backslashreplace")
