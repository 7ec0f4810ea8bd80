"""The command `validate`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from meshwright.commandline import choice, command, option, words
from meshwright.options import format_of
from meshwright.output import as_text, progress_line, write

if TYPE_CHECKING:
    from planner.validate.scores import Validation

TARGETS_MISSED = 1


@command(
    option("--set sets", "NAME", "A data set; repeat or use commas; default: all.", many=True, read=words),
    option("--data", "FOLDER", "Data sets of your own (*.toml), instead of ours."),
    choice("--progress", ("auto", "never"), "Progress on stderr, if a terminal.", default="auto"),
    option("-o --output", "FILE", "Also write it to this file; svg: only there."),
    option("--error-bars bars", "FILE", "Also write the error bars that plans carry."),
    *format_of("svg"),
)
def validate(
    *, sets: tuple[str, ...], data: str | None, progress: str, output: str | None, bars: str | None, style: str
) -> int:
    """Put predictions beside published measurements. Exit 0: within the errors that the data states; 1: not.

    \b
    meshwright validate --set llama3-70b-v5e16
    """
    from planner.files import write_whole
    from planner.plan.planfile import encode
    from planner.validate.measured import MEASURED
    from planner.validate.validate import error_bars
    from planner.validate.validate import validate as run

    folder = Path(data) if data else MEASURED
    with progress_line(progress) as say:
        validation = run(sets or None, folder, say)
    text = _encoded(validation, style)
    if bars is not None:
        write_whole(Path(bars), encode(error_bars(validation, folder)))
    if output is not None:
        write_whole(Path(output), text)
    if output is None or style != "svg":
        write(text)
    return 0 if validation.holds else TARGETS_MISSED


def _encoded(validation: Validation, style: str) -> bytes:
    """Return the findings as text of that format."""
    from meshwright.reports.validate import report, svg
    from planner.plan.planfile import encode

    if style == "svg":
        return svg(validation)
    return encode(validation) if style == "json" else as_text(report(validation), style)
