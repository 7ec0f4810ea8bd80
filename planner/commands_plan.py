"""The command `plan`: its options, and what it asks the planner for."""

from __future__ import annotations

from typing import Annotated

import typer

from mesh.errors import InputError
from planner.commands import app
from planner.commands_serve import (
    Input,
    NumSlices,
    Outputs,
    PrefillBatches,
    Serving,
    only_serving,
    output_file,
    serve_command,
)
from planner.options import (
    FORMATS,
    PROGRESS,
    Activations,
    AnySlices,
    Batches,
    Cache,
    ChipCounts,
    ChipFile,
    Chips,
    Compute,
    Constants,
    Cuts,
    Format,
    MaxChips,
    MaxStep,
    MaxTtft,
    MinTokens,
    ModelName,
    Phase,
    PricesText,
    Programs,
    Solver,
    SolverSeconds,
    Weights,
    WholeAxes,
    Workers,
    cuts_of,
    fixed_roles,
    number,
    one_of,
    targets_of,
    whole,
    wholes,
    words,
)
from planner.output import INTERRUPTED, progress_line, show_nothing, show_plans

__all__ = ["app"]

PHASES = ("decode", "prefill", "serve")
CONTEXT, TOP = "8192", "5"
AnyContext = Annotated[
    str | None,
    typer.Option("--context", metavar="TOKENS", help="Tokens in each filled cache, or in each prompt; default 8192."),
]


@app.command()
def plan(
    model: ModelName,
    slices: AnySlices = None,
    chips: Chips = None,
    chip_counts: ChipCounts = None,
    phase: Phase = "decode",
    batches: Batches = None,
    context: AnyContext = None,
    weights: Weights = "bf16",
    kv: Cache = "bf16",
    activations: Activations = "bf16",
    compute: Compute = None,
    objective: Annotated[
        str, typer.Option(metavar="latency|throughput|cost", help="Throughput is per chip; cost needs a price.")
    ] = "throughput",
    fix: Annotated[
        list[str] | None,
        typer.Option(metavar="COMPONENT=AXIS:ROLE,...", help="Roles that torus axes must have: attention=Z:B,Y:K."),
    ] = None,
    program: Programs = None,
    chip_file: ChipFile = None,
    constants: Constants = "chip",
    top: Annotated[
        str | None,
        typer.Option(metavar="N", help="How many of the best one's slice and batch, itself included; default 5."),
    ] = None,
    max_step: MaxStep = None,
    max_ttft: MaxTtft = None,
    min_tokens: MinTokens = None,
    max_chips: MaxChips = None,
    price: PricesText = None,
    cuts: Cuts = "two",
    whole_axes: WholeAxes = False,
    workers: Workers = None,
    solver: Solver = "exhaustive",
    solver_seconds: SolverSeconds = None,
    progress: Annotated[
        str, typer.Option(metavar="auto|never", help="Progress on stderr, if that is a terminal.")
    ] = "auto",
    tokens_in: Input = None,
    serving: Serving = None,
    prefill_batches: PrefillBatches = None,
    num_slices: NumSlices = "1",
    output: Outputs = None,
    style: Format = "table",
) -> int:
    """Find the best layouts of a model on one or several slices, and say why they are."""
    from planner import api
    from planner.ranges import chip_range
    from planner.solve import INTERRUPTED as STOPPED
    from planner.solve import NothingFits
    from planner.targets import parse_prices

    one_of("--format", style, FORMATS)
    one_of("--phase", phase, PHASES)
    targets = targets_of(max_step, max_ttft, min_tokens, max_chips)
    counts = None if chip_counts is None else chip_range(chip_counts)
    only_serving(phase, input=tokens_in, serving=serving, prefill_batch=prefill_batches)
    if phase == "serve":
        return serve_command(
            model,
            words("--slice", slices or ()),
            context=context,
            chips=words("--chip", chips or ()),
            chip_counts=counts,
            targets=targets,
            prices=parse_prices(price or ()),
            fix=fix,
            solver=solver,
            solver_seconds=None if solver_seconds is None else number("--solver-seconds", solver_seconds),
            num_slices=num_slices,
            cuts=cuts_of(cuts, whole_axes),
            workers=workers,
            tokens_in=tokens_in,
            outputs=output,
            serving=serving,
            batches=batches,
            prefill_batches=prefill_batches,
            weights=weights,
            kv=kv,
            activations=activations,
            compute=compute,
            objective=objective,
            top=TOP if top is None else top,
            programs=program or (),
            chip_file=chip_file,
            constants=constants,
            progress=progress,
            style=style,
        )
    _check_runners_up(solver, top)
    file = output_file(output)
    auto = batches == ["auto"]
    one_of("--progress", progress, PROGRESS)
    try:
        with progress_line(progress) as say:
            found = api.plan(
                model,
                words("--slice", slices or ()),
                chips=words("--chip", chips or ()),
                chip_counts=counts,
                phase=phase,
                batches="auto" if auto else wholes("--batch", batches) if batches else None,
                context=whole("--context", CONTEXT if context is None else context),
                weights=weights,
                kv=kv,
                activations=activations,
                compute=compute,
                objective=objective,
                fix=fixed_roles(fix or ()),
                programs=program or (),
                chip_file=chip_file,
                constants=constants,
                top=whole("--top", TOP if top is None else top),
                targets=targets,
                prices=parse_prices(price or ()),
                cuts=cuts_of(cuts, whole_axes),
                workers=None if workers is None else whole("--workers", workers),
                num_slices=whole("--num-slices", num_slices),
                solver=solver,
                solver_seconds=None if solver_seconds is None else number("--solver-seconds", solver_seconds),
                progress=say,
            )
    except NothingFits as nothing:
        return show_nothing(nothing, style)
    code = show_plans(found, style, file)
    stopped = found.search.proved_optimal == STOPPED or (found.solver is not None and found.solver.interrupted)
    return INTERRUPTED if stopped else code


def _check_runners_up(solver: str, top: str | None) -> None:
    """Raise `InputError` where runners-up are asked of a solver that has none."""
    if solver == "cp-sat" and top is not None and whole("--top", top) > 1:
        raise InputError(f"--top {top}: --solver cp-sat proves the best alone; expected --top 1, or no --solver")
