"""The command `plan`."""

from __future__ import annotations

from mesh.errors import InputError
from meshwright.commandline import choice, flag, number, one_of, option, whole
from meshwright.options import (
    BATCHES_OR_AUTO,
    CONSTANTS,
    CUTS,
    DTYPES,
    FILES,
    FIX,
    GOALS,
    MODEL,
    OUTPUT,
    PHASE,
    PROGRESS,
    SLICES,
    WORKERS,
    Asked,
    counts,
    format_of,
    searching,
)
from meshwright.output import ended, finish, progress_line, show_nothing
from planner.query.targets import OBJECTIVES

PHASES = ("decode", "prefill", "serve")
SERVING = {
    "input_tokens": option("--input-tokens", "TOKENS", "--phase serve: tokens of each prompt.", read=whole),
    "output_tokens": option("--output-tokens", "TOKENS", "--phase serve: tokens of each answer.", read=whole),
    "serving": option(
        "--serving",
        "batched|interleaved|disaggregated|all",
        "--phase serve: which ways; default: all.",
        many=True,
    ),
    "prefill_batch": option(
        "--prefill-batch",
        "N[,N...]",
        "--phase serve: prompts; default 1,2,4,8,16.",
        many=True,
        read=counts,
    ),
}
"""Options of `--phase serve` alone, by keyword."""
NUM_SLICES = option(
    "--num-slices",
    "N",
    "Equal slices joined by DCN; each batch is cut over them, data parallel.",
    default="1",
    read=whole,
)


@searching(
    MODEL,
    *SLICES,
    PHASE,
    BATCHES_OR_AUTO,
    option("--context", "TOKENS", "Tokens in each filled cache, or in each prompt; default 8192.", read=whole),
    *DTYPES,
    option("--objective", "|".join(OBJECTIVES), "Throughput is per chip; cost needs a price.", default="throughput"),
    FIX,
    *FILES,
    CONSTANTS,
    option("--top", "N", "How many of the best one's slice and batch, itself included; default 5.", read=whole),
    *GOALS,
    CUTS,
    WORKERS,
    choice("--solver", ("exhaustive", "cp-sat"), "What finds the best and proves it.", default="exhaustive"),
    option(
        "--solver-seconds",
        "S",
        "Where CP-SAT is ended, for each slice and batch; the best so far counts.",
        read=number,
    ),
    PROGRESS,
    *SERVING.values(),
    NUM_SLICES,
    flag("--rejected", "Show what was ruled out, why, and how often."),
    OUTPUT,
    *format_of(),
)
def plan(asked: Asked, rejected: bool) -> int:
    """Find the best layouts of a model on one or several slices, and say why they are.

    \b
    meshwright plan llama-3.1-70b --slice v5e:4x4 --weights int8 --kv int8 -o plan.json
    """
    if one_of("--phase", asked.options["phase"], PHASES) == "serve":
        from meshwright.commands.serve import serve

        return serve(asked)
    for name, declared in SERVING.items():
        if name in asked.options:
            raise InputError(f"{declared.opts[0]} belongs to --phase serve; the phase is {asked.options['phase']}")
    top = asked.options.get("top", 1)
    if asked.options["solver"] == "cp-sat" and top > 1:
        raise InputError(f"--top {top}: --solver cp-sat proves the best alone; expected --top 1, or no --solver")
    return _plan(asked, rejected)


def _plan(asked: Asked, rejected: bool) -> int:
    from meshwright.reports.plan import report
    from planner.api import plan as run
    from planner.best.nothing import NothingFits

    try:
        with progress_line(asked.progress) as say:
            plans = run(asked.model, asked.slices, progress=say, **asked.options)
    except NothingFits as nothing:
        return show_nothing(nothing, asked.style)
    finish(plans, lambda: report(plans, rejected), asked.style, asked.output)
    return ended(plans)
