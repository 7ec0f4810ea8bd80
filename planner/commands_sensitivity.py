"""The command `sensitivity`: joins the planner's others."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from planner.commands import SCHEMAS
from planner.commands_frontier import Fix, Progress, app, check
from planner.options import (
    ChipFile,
    Cuts,
    Format,
    Output,
    Pick,
    Programs,
    WholeAxes,
    cuts_of,
    fixed_roles,
    number,
    whole,
)
from planner.output import progress_line, show

__all__ = ["app"]


def _sensitivity_type() -> type:
    from planner.sensitivity_types import SensitivityFile

    return SensitivityFile


SCHEMAS["sensitivity"] = _sensitivity_type


@app.command()
def sensitivity(
    file: Annotated[str, typer.Argument(metavar="PLAN.JSON", help="A file that `meshwright plan -o` wrote.")],
    pick: Pick = "1",
    swing: Annotated[str, typer.Option(metavar="SHARE", help="By how much each number is less and more.")] = "0.2",
    fix: Fix = None,
    program: Programs = None,
    chip_file: ChipFile = None,
    cuts: Cuts = "two",
    whole_axes: WholeAxes = False,
    progress: Progress = "auto",
    output: Output = None,
    style: Format = "table",
) -> None:
    """Say what a little less or more of each hardware number does to a plan's choice."""
    from planner.files import write_whole
    from planner.planfile import encode
    from planner.report_sensitivity import report
    from planner.sensitivity import sensitivity as run

    check(style, progress, output)
    with progress_line(progress) as say:
        found = run(
            file,
            pick=whole("--pick", pick),
            swing=number("--swing", swing),
            fix=fixed_roles(fix or ()),
            programs=program or (),
            cuts=cuts_of(cuts, whole_axes),
            chip_file=chip_file,
            progress=say,
        )
    if output is not None:
        write_whole(Path(output), encode(found))
    show(found, lambda: report(found), style)
