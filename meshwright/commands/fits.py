"""The command `fits`."""

from __future__ import annotations

from meshwright.commandline import option, whole
from meshwright.exits import INTERRUPTED
from meshwright.options import (
    CUTS,
    DTYPES,
    FILES,
    FIX,
    MODEL,
    OUTPUT,
    PROGRESS,
    SLICES,
    STEP,
    WORKERS,
    Asked,
    format_of,
    searching,
)
from meshwright.output import check_output, finish, progress_line, say_nothing


@searching(
    MODEL,
    *SLICES,
    STEP,
    option("--batch", "N", "Sequences, for the largest context; default 1.", read=whole),
    option("--context", "TOKENS", "Tokens in each cache or prompt, for the largest batch; 8192.", read=whole),
    *DTYPES,
    FIX,
    *FILES,
    CUTS,
    WORKERS,
    PROGRESS,
    OUTPUT,
    *format_of(),
)
def fits(asked: Asked) -> int:
    """Find the largest batch and the largest context that fit each slice, and what runs out.

    Exit 1: a batch at a context was asked for, and none of the slices takes it.

    \b
    meshwright fits llama-3.1-70b --chip v5e --batch 16 --context 8192
    """
    from meshwright.reports.fits import report, smallest_text
    from planner.api import fits as run

    check_output(asked.output)
    with progress_line(asked.progress) as say:
        answer = run(asked.model, asked.slices, progress=say, **asked.options)
    finish(answer, lambda: report(answer), asked.style, asked.output)
    if answer.interrupted:
        return INTERRUPTED
    if not {"batch", "context"} <= asked.options.keys() or answer.smallest is not None:
        return 0
    return say_nothing(f"{answer.model}: {smallest_text(answer)}")
