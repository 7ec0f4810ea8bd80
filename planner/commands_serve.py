"""`plan --phase serve`: its options, and what the command does with them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from mesh.errors import InputError
from planner.options import PROGRESS, one_of, whole, wholes, words
from planner.output import INTERRUPTED, progress_line, show_nothing, show_plans

if TYPE_CHECKING:
    from planner.targets import Prices, Targets

Input = Annotated[str | None, typer.Option("--input", metavar="TOKENS", help="--phase serve: tokens of each prompt.")]
Outputs = Annotated[
    list[str] | None,
    typer.Option(
        "-o", "--output", metavar="FILE|TOKENS",
        help="Also write the JSON to this file; with --phase serve a number is the tokens of each answer.",
    ),
]  # fmt: skip
Serving = Annotated[
    list[str] | None,
    typer.Option(
        "--serving", metavar="batched|interleaved|disaggregated|all", help="--phase serve: which ways; default: all."
    ),
]
PrefillBatches = Annotated[
    list[str] | None,
    typer.Option("--prefill-batch", metavar="N[,N...]", help="--phase serve: prompts; default 1,2,4,8,16."),
]
NumSlices = Annotated[
    str, typer.Option(metavar="N", help="Equal slices joined by DCN; each batch is cut over them, data parallel.")
]
_TOKENS = "expected --input TOKENS and --output TOKENS, such as --input 2000 --output 300"


def output_file(outputs: Sequence[str] | None) -> str | None:
    """The one file to write, or none."""
    if outputs and len(outputs) > 1:
        raise InputError(f"--output {' '.join(outputs)}: expected one file")
    return outputs[0] if outputs else None


def tokens_and_file(outputs: Sequence[str] | None) -> tuple[int, str | None]:
    """Of `--output`, given once or twice with `--phase serve`: the tokens of each answer, and the file if there is one.

    >>> tokens_and_file(["300", "serve.json"]), tokens_and_file(["300"])
    ((300, 'serve.json'), (300, None))
    """
    numbers = [text for text in outputs or () if text.strip().isdecimal()]
    files = [text for text in outputs or () if not text.strip().isdecimal()]
    if len(numbers) != 1:
        raise InputError(f"--output {' '.join(numbers)}: {_TOKENS}" if numbers else f"--phase serve: {_TOKENS}")
    return whole("--output", numbers[0]), output_file(files)


def modes(serving: Sequence[str] | None) -> tuple[str, ...]:
    """The ways to serve that `--serving` names.

    >>> modes(["batched,disaggregated"]), modes(None) == modes(["all"])
    (('batched', 'disaggregated'), True)
    """
    from planner.serving import MODES

    named = words("--serving", serving) if serving else ("all",)
    for name in named:
        one_of("--serving", name, (*MODES, "all"))
    return MODES if "all" in named else named


def only_serving(phase: str, **options: object) -> None:
    """Raise `InputError` where an option of `--phase serve` is given for another phase."""
    for name, value in options.items():
        if value is not None and phase != "serve":
            raise InputError(f"--{name.replace('_', '-')} belongs to --phase serve; the phase is {phase}")


def _check_other_phases(fix: Sequence[str] | None, num_slices: str, context: str | None) -> None:
    """Raise `InputError` on options that `--phase serve` does not take."""
    given = [(f"--fix {text}", "plan a phase alone for that") for text in fix or ()]
    if whole("--num-slices", num_slices) != 1:
        given.append((f"--num-slices {num_slices}", "it says itself how many slices serve"))
    if context is not None:
        given.append((f"--context {context}", "expected --input and --output, whose sum it is"))
    for option, hint in given:
        raise InputError(f"{option}: --phase serve does not take it; {hint}")


def serve_command(
    model: str,
    slices: Sequence[str],
    *,
    fix: Sequence[str] | None,
    solver: str,
    solver_seconds: float | None,
    num_slices: str,
    context: str | None,
    tokens_in: str | None,
    outputs: Sequence[str] | None,
    serving: Sequence[str] | None,
    batches: Sequence[str] | None,
    prefill_batches: Sequence[str] | None,
    weights: str,
    kv: str,
    activations: str,
    compute: str | None,
    objective: str,
    top: str,
    programs: Sequence[str],
    chip_file: str | None,
    constants: str,
    progress: str,
    style: str,
    cuts: str,
    workers: str | None,
    chips: Sequence[str] = (),
    chip_counts: tuple[int, int | None] | None = None,
    targets: Targets | None = None,
    prices: Prices | None = None,
) -> int:
    """Search, print and write ways to serve; returns the exit code."""
    from planner.report_serve import report
    from planner.serve import PREFILL_BATCHES, serve
    from planner.solve import INTERRUPTED as STOPPED
    from planner.solve import NothingFits

    one_of("--progress", progress, PROGRESS)
    _check_other_phases(fix, num_slices, context)
    output_tokens, file = tokens_and_file(outputs)
    if tokens_in is None:
        raise InputError(f"--phase serve: {_TOKENS}")
    try:
        with progress_line(progress) as say:
            found = serve(
                model,
                slices,
                input_tokens=whole("--input", tokens_in),
                output_tokens=output_tokens,
                chips=chips,
                chip_counts=chip_counts,
                serving=modes(serving),
                batches=_decode_batches(batches),
                cuts=cuts,
                solver=solver,
                solver_seconds=solver_seconds,
                workers=None if workers is None else whole("--workers", workers),
                prefill_batches=wholes("--prefill-batch", prefill_batches) if prefill_batches else PREFILL_BATCHES,
                weights=weights,
                kv=kv,
                activations=activations,
                compute=compute,
                objective=objective,
                targets=targets,
                prices=prices,
                programs=programs,
                top=whole("--top", top),
                chip_file=chip_file,
                constants=constants,
                progress=say,
            )
    except NothingFits as nothing:
        return show_nothing(nothing, style)
    code = show_plans(found, style, file, report)
    return INTERRUPTED if found.search.proved_optimal == STOPPED else code


def _decode_batches(batches: Sequence[str] | None) -> tuple[int, ...] | str:
    """What `--batch` says, `auto` as that."""
    from planner.serve import DECODE_BATCHES

    if not batches:
        return DECODE_BATCHES
    return "auto" if list(batches) == ["auto"] else wholes("--batch", batches)
