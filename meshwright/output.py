"""Everything that a command writes: to stdout, to a file, and progress to a terminal."""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from mesh.errors import InputError
from meshwright.exits import INTERRUPTED, NOTHING_FITS

if TYPE_CHECKING:
    from meshwright.reports.text import Block
    from planner.best.nothing import NothingFits
    from planner.plan.planfile import PlanFile

LEAST_WIDTH = 40
"""The fewest columns that text is made for."""
Blocks = Callable[[], "Sequence[Block] | bytes"]
"""What says an answer to people; bytes are written as they are."""


def show(value: object, blocks: Blocks, style: str) -> None:
    """Print the value as JSON, or the blocks that say it to people."""
    if style == "json":
        from planner.plan.planfile import encode

        write(encode(value))
    else:
        said = blocks()
        write(said if isinstance(said, bytes) else as_text(said, style))


def finish(value: object, blocks: Blocks, style: str, output: str | None = None, data: bytes | None = None) -> None:
    """Write an answer to its file, then show it; `data`: what the file is to hold, by default the JSON.

    The file comes first: it must not be lost where whoever reads stdout goes away. Where it cannot be written, the
    answer is shown all the same, and the error raised then.
    """
    failed = None
    if output is not None:
        from planner.files import write_whole
        from planner.plan.planfile import encode

        try:
            write_whole(Path(output), encode(value) if data is None else data)
        except InputError as error:
            failed = error
    show(value, blocks, style)
    if failed:
        raise failed


def check_output(output: str | None) -> None:
    """Raise `InputError` where the file cannot be written: said before the work, not after it."""
    if output is not None:
        from planner.files import check_writable

        check_writable(Path(output))


def as_text(blocks: Sequence[Block], style: str) -> bytes:
    """Return the blocks as UTF-8 text, whatever characters are in them."""
    from meshwright.reports.text import render

    width, bold = terminal()
    return render(blocks, style, width, bold and style in ("table", "wide")).encode("utf-8", "backslashreplace")


def terminal() -> tuple[int, bool]:
    """Return the columns of what is printed, and whether headings are set bold there.

    COLUMNS counts before the terminal's own width; where stdout is no terminal there are 100 columns, all plain, and
    NO_COLOR keeps them plain everywhere.
    """
    from meshwright.reports.text import WIDTH

    shown = sys.stdout.isatty()
    columns = os.environ.get("COLUMNS", "")
    width = int(columns) if columns.isdecimal() and 0 < len(columns) < 5 else 0
    if not width:
        width = shutil.get_terminal_size((WIDTH, 24)).columns if shown else WIDTH
    plain = bool(os.environ.get("NO_COLOR")) or os.environ.get("TERM", "dumb") == "dumb"
    return max(width, LEAST_WIDTH), shown and not plain


def show_nothing(nothing: NothingFits, style: str) -> int:
    """Print the rejections to stdout and, in one line on stderr, why nothing fits; return the exit code."""
    from meshwright.reports.plan import nothing_as_json, nothing_line, rejected_table

    if nothing.rejected or style == "json":
        show(nothing_as_json(nothing), lambda: [rejected_table(nothing.rejected)], style)
    return say_nothing(nothing_line(nothing))


def say_nothing(why: str) -> int:
    """Print why nothing fits, in one line on stderr, and return the exit code."""
    sys.stderr.write(f"meshwright: {why}\n")
    return NOTHING_FITS


def ended(plans: PlanFile) -> int:
    """Return the exit code of an answer: 1 where none of its layouts fits."""
    if plans.interrupted:
        return INTERRUPTED
    return 0 if any(plan.fits for plan in plans.plans) else say_nothing("this layout does not fit at any batch")


def write(data: bytes) -> None:
    """Write to stdout, whatever its encoding."""
    try:
        sys.stdout.buffer.write(data)
        sys.stdout.buffer.flush()
    except BrokenPipeError:
        raise
    except OSError as error:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # or the flush at exit complains
        raise InputError(f"cannot write to stdout: {error.strerror}") from None


@contextlib.contextmanager
def progress_line(mode: str) -> Iterator[Callable[[str], None]]:
    """Give a function that writes progress over one line of a terminal, and clear that line afterwards."""
    shown = mode == "auto" and sys.stderr.isatty()

    def say(text: str) -> None:
        if shown:
            sys.stderr.write(f"\r\x1b[K{text}")
            sys.stderr.flush()

    try:
        yield say
    finally:
        say("")
