"""The command `plan`."""

from __future__ import annotations

from typing import Any

from mesh.errors import InputError
from meshwright.asked import Asked, searching
from meshwright.commandline import option
from meshwright.commands.serve import SERVING, PlanOptions, only_serving, output_file, serve_command
from meshwright.options import (
    BATCHES_OR_AUTO,
    CONSTANTS,
    CUTS,
    DTYPES,
    FILES,
    GOALS,
    MODEL,
    PHASE,
    PROGRESS,
    SLICES,
    WORKERS,
    format_of,
)
from meshwright.output import INTERRUPTED, progress_line, show_nothing, show_plans
from meshwright.parsing import fixed_roles, number, one_of, whole

PHASES = ("decode", "prefill", "serve")
CONTEXT = 8192


@searching(
    MODEL,
    *SLICES,
    PHASE,
    BATCHES_OR_AUTO,
    option("--context", "TOKENS", "Tokens in each filled cache, or in each prompt; default 8192.", read=whole),
    *DTYPES,
    option(
        "--objective", "latency|throughput|cost", "Throughput is per chip; cost needs a price.", default="throughput"
    ),
    option("--fix", "COMPONENT=AXIS:ROLE,...", "Roles that torus axes must have: attention=Z:B,Y:K.", many=True),
    *FILES,
    CONSTANTS,
    option("--top", "N", "How many of the best one's slice and batch, itself included; default 5.", read=whole),
    *GOALS,
    *CUTS,
    WORKERS,
    option("--solver", "exhaustive|cp-sat", "What finds the best and proves it.", default="exhaustive"),
    option(
        "--solver-seconds",
        "S",
        "Where CP-SAT is ended, for each slice and batch; the best so far counts.",
        read=number,
    ),
    PROGRESS,
    *SERVING,
    option(
        "-o --output outputs",
        "FILE|TOKENS",
        "Also write the JSON to this file; with --phase serve a number is the tokens of each answer.",
        many=True,
    ),
    format_of(),
)
def plan(asked: Asked, **given: Any) -> int:
    """Find the best layouts of a model on one or several slices, and say why they are."""
    options = PlanOptions(**given)
    one_of("--phase", options.phase, PHASES)
    only_serving(options)
    return serve_command(asked, options) if options.phase == "serve" else _plan(asked, options)


def _plan(asked: Asked, options: PlanOptions) -> int:
    from planner import api
    from planner.best.solve import INTERRUPTED as STOPPED
    from planner.best.solve import NothingFits

    if options.solver == "cp-sat" and options.top is not None and options.top > 1:
        raise InputError(
            f"--top {options.top}: --solver cp-sat proves the best alone; expected --top 1, or no --solver"
        )
    file = output_file(options.outputs)
    try:
        with progress_line(asked.progress) as say:
            found = api.plan(
                asked.model,
                phase=options.phase,
                batches=options.batches,
                context=CONTEXT if options.context is None else options.context,
                fix=fixed_roles(options.fix),
                num_slices=options.num_slices,
                progress=say,
                **options.best,
                **asked.where,
                **asked.how,
                **asked.goals,
            )
    except NothingFits as nothing:
        return show_nothing(nothing, options.style)
    code = show_plans(found, options.style, file)
    stopped = found.search.proved_optimal == STOPPED or (found.solver is not None and found.solver.interrupted)
    return INTERRUPTED if stopped else code
