"""What the command writes: to stdout, to a file, and progress to a terminal."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from mesh.errors import InputError

if TYPE_CHECKING:
    from meshwright.reports.text import Block
    from planner.best.solve import NothingFits
    from planner.plan.planfile import PlanFile

NOTHING_FITS, INTERRUPTED = 1, 130
Blocks = Callable[[], "Sequence[Block]"]


def show(value: object, blocks: Blocks, style: str) -> None:
    """Print the value as JSON, or the blocks that say it to people."""
    from meshwright.reports.text import render

    if style == "json":
        from planner.plan.planfile import encode

        write(encode(value))
    else:
        write(render(blocks(), style).encode("utf-8", "backslashreplace"))


def show_plans(
    found: PlanFile, style: str, output: str | None, blocks: Callable[[PlanFile], Sequence[Block]] | None = None
) -> int:
    """Print a plan file (as `blocks` says it, by default as plans) and write it; returns the exit code."""
    from meshwright.reports.plan import fits, report
    from planner.files import write_whole
    from planner.plan.planfile import encode

    failed = None
    try:  # the file first: it must not be lost where whoever reads stdout goes away
        if output is not None:
            write_whole(Path(output), encode(found))
    except InputError as error:
        failed = error
    show(found, lambda: (blocks or report)(found), style)
    if failed:
        raise failed
    return 0 if any(map(fits, found.plans)) else say_nothing("this layout does not fit at any batch")


def show_nothing(nothing: NothingFits, style: str) -> int:
    """What was rejected to stdout; why nothing fits, in one line, to stderr."""
    from meshwright.reports.nothing import as_json, blocks, line

    if nothing.rejected or style == "json":
        show(as_json(nothing), lambda: blocks(nothing), style)
    return say_nothing(line(nothing))


def say_nothing(why: str) -> int:
    """Why nothing fits, in one line on stderr; returns the exit code."""
    sys.stderr.write(f"meshwright: {why}\n")
    return NOTHING_FITS


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
    """What writes progress over one line of a terminal, which is clear again afterwards."""
    shown = mode == "auto" and sys.stderr.isatty()

    def say(text: str) -> None:
        if shown:
            sys.stderr.write(f"\r\x1b[K{text}")
            sys.stderr.flush()

    try:
        yield say
    finally:
        say("")
