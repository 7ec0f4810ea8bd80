"""The command `sensitivity`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from meshwright.commandline import command, option
from meshwright.options import CUTS, FILES, FIX, OUTPUT, PICK, PLAN_FILE, PROGRESS, format_of
from meshwright.output import progress_line, show
from meshwright.parsing import cuts_of, number


@command(
    PLAN_FILE,
    PICK,
    option("--swing", "SHARE", "By how much each number is less and more.", default="0.2", read=number),
    FIX,
    *FILES,
    *CUTS,
    PROGRESS,
    OUTPUT,
    format_of(),
)
def sensitivity(
    *,
    file: str,
    pick: int,
    swing: float,
    fix: Mapping[str, Mapping[str, str]],
    programs: tuple[str, ...],
    chip_file: str | None,
    cuts: str,
    whole_axes: bool,
    progress: str,
    output: str | None,
    style: str,
) -> None:
    """Say what a little less or more of each hardware number does to a plan's choice."""
    from meshwright.reports.sensitivity import report
    from planner.files import check_writable, write_whole
    from planner.plan.planfile import encode
    from planner.sensitivity.sensitivity import sensitivity as run

    if output is not None:
        check_writable(Path(output))
    with progress_line(progress) as say:
        found = run(
            file,
            pick=pick,
            swing=swing,
            fix=fix,
            programs=programs,
            cuts=cuts_of(cuts, whole_axes),
            chip_file=chip_file,
            progress=say,
        )
    if output is not None:
        write_whole(Path(output), encode(found))
    show(found, lambda: report(found), style)
