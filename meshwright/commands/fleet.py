"""The command `fleet`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from meshwright import commandline
from meshwright.commandline import number, option
from meshwright.exits import INTERRUPTED
from meshwright.options import (
    CONSTANTS,
    CUTS,
    DTYPES,
    FILES,
    LIMITS,
    MODEL,
    OUTPUT,
    PRICES,
    PROGRESS,
    WORKERS,
    Asked,
    counts,
    format_of,
    searching,
)
from meshwright.output import finish, progress_line, say_nothing, show

if TYPE_CHECKING:
    from planner.best.nothing import NothingFits


@searching(
    MODEL,
    option("--quota", "CHIP=N[,...]", "Chips by kind: v5e=256,v6e=64.", many=True, required=True),
    option("--traffic", "NAME=N,...", "Such as requests_per_s=20,input=2000,output=300.", many=True, required=True),
    LIMITS["max_step_s"],
    LIMITS["max_ttft_s"],
    PRICES,
    option("--utilisation", "SHARE", "Of the servers' rates that the traffic may take.", default="1", read=number),
    option("--prefill-batch", "N[,N...]", "Prompts; default 1,2,4,8,16.", many=True, read=counts),
    option("--decode-batch", "N[,N...]", "Default: powers of two and the largest that fits.", many=True, read=counts),
    *DTYPES,
    *FILES,
    CONSTANTS,
    CUTS,
    WORKERS,
    option("--solver-seconds", "S", "Where CP-SAT is ended; its best so far counts.", read=number),
    PROGRESS,
    OUTPUT,
    *format_of(),
)
def fleet(asked: Asked, quota: tuple[str, ...], traffic: tuple[str, ...]) -> int:
    """Find the cheapest prefill and decode servers for a traffic, within a quota of chips. Exit 1: there are none.

    \b
    meshwright fleet llama-3.1-8b --quota v5e=16 --traffic requests_per_s=3,input=2000,output=300
    """
    from meshwright.reports.fleet import report
    from planner.api import fleet as run
    from planner.best.nothing import NothingFits
    from planner.plan.file_fleet import Traffic

    try:
        with progress_line(asked.progress) as say:
            plans = run(
                asked.model,
                commandline.quota(quota),
                Traffic(**commandline.traffic(traffic)),
                progress=say,
                **asked.options,
            )
    except NothingFits as nothing:
        return _show_nothing(nothing, asked.style)
    finish(plans, lambda: report(plans), asked.style, asked.output)
    return INTERRUPTED if plans.interrupted else 0


def _show_nothing(nothing: NothingFits, style: str) -> int:
    """Say why there is no fleet: as JSON on stdout where that was asked for, and in one line on stderr."""
    from meshwright.reports.plan import nothing_as_json

    if style == "json":
        show(nothing_as_json(nothing), lambda: [], style)
    return say_nothing(str(nothing))
