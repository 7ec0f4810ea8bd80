"""The command `sensitivity`."""

from __future__ import annotations

from typing import Any

from meshwright.commandline import command, number, option
from meshwright.options import CUTS, FILES, FIX, OUTPUT, PICK, PLAN_FILE, PROGRESS, format_of
from meshwright.output import check_output, finish, progress_line


@command(
    PLAN_FILE,
    PICK,
    option("--swing", "SHARE", "By how much each number is less and more.", default="0.2", read=number),
    FIX,
    *FILES,
    CUTS,
    PROGRESS,
    OUTPUT,
    *format_of(),
)
def sensitivity(*, file: str, progress: str, output: str | None, style: str, **given: Any) -> None:
    """Say what a little less or more of each hardware number does to a plan's choice.

    \b
    meshwright sensitivity plan.json --swing 0.1
    """
    from meshwright.reports.sensitivity import report
    from planner.sensitivity.sensitivity import sensitivity as run

    check_output(output)
    with progress_line(progress) as say:
        answer = run(file, progress=say, **given)
    finish(answer, lambda: report(answer), style, output)
