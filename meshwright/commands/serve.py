"""`plan --phase serve`: its options, and what the command does with them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypedDict

from mesh.errors import InputError
from meshwright.asked import Asked
from meshwright.commandline import option
from meshwright.options import counts
from meshwright.output import INTERRUPTED, progress_line, show_nothing, show_plans
from meshwright.parsing import one_of, whole, words

TOP = 5
SERVING = (
    option("--input tokens_in", "TOKENS", "--phase serve: tokens of each prompt.", read=whole),
    option(
        "--serving",
        "batched|interleaved|disaggregated|all",
        "--phase serve: which ways; default: all.",
        many=True,
    ),
    option(
        "--prefill-batch prefill_batches",
        "N[,N...]",
        "--phase serve: prompts; default 1,2,4,8,16.",
        many=True,
        read=counts,
    ),
    option(
        "--num-slices",
        "N",
        "Equal slices joined by DCN; each batch is cut over them, data parallel.",
        default="1",
        read=whole,
    ),
)
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
    from planner.plan.file_serving import MODES

    named = words("--serving", serving) if serving else ("all",)
    for name in named:
        one_of("--serving", name, (*MODES, "all"))
    return MODES if "all" in named else named


class Best(TypedDict):
    """What is best, how many of them, and who says so."""

    objective: str
    top: int
    solver: str
    solver_seconds: float | None


@dataclass(frozen=True, kw_only=True)
class PlanOptions:
    """The options of `plan` that no other command has, read."""

    phase: str
    batches: tuple[int, ...] | str | None
    context: int | None
    objective: str
    fix: tuple[str, ...]
    top: int | None
    solver: str
    solver_seconds: float | None
    tokens_in: int | None
    serving: tuple[str, ...]
    prefill_batches: tuple[int, ...] | None
    num_slices: int
    outputs: tuple[str, ...]
    style: str

    @property
    def best(self) -> Best:
        """Keywords of the functions behind the command."""
        return {
            "objective": self.objective,
            "top": TOP if self.top is None else self.top,
            "solver": self.solver,
            "solver_seconds": self.solver_seconds,
        }


def only_serving(options: PlanOptions) -> None:
    """Raise `InputError` where an option of `--phase serve` is given for another phase."""
    given = {
        "--input": options.tokens_in,
        "--serving": options.serving or None,
        "--prefill-batch": options.prefill_batches,
    }
    for name, value in given.items():
        if value is not None and options.phase != "serve":
            raise InputError(f"{name} belongs to --phase serve; the phase is {options.phase}")


def _check_other_phases(options: PlanOptions) -> None:
    """Raise `InputError` on options that `--phase serve` does not take."""
    given = [(f"--fix {text}", "plan a phase alone for that") for text in options.fix]
    if options.num_slices != 1:
        given.append((f"--num-slices {options.num_slices}", "it says itself how many slices serve"))
    if options.context is not None:
        given.append((f"--context {options.context}", "expected --input and --output, whose sum it is"))
    for name, hint in given:
        raise InputError(f"{name}: --phase serve does not take it; {hint}")


def serve_command(asked: Asked, options: PlanOptions) -> int:
    """Search, print and write ways to serve; returns the exit code."""
    from meshwright.reports.serve import report
    from planner.best.solve import INTERRUPTED as STOPPED
    from planner.best.solve import NothingFits
    from planner.serve.serve import DECODE_BATCHES, PREFILL_BATCHES, serve

    _check_other_phases(options)
    output_tokens, file = tokens_and_file(options.outputs)
    if options.tokens_in is None:
        raise InputError(f"--phase serve: {_TOKENS}")
    try:
        with progress_line(asked.progress) as say:
            found = serve(
                asked.model,
                input_tokens=options.tokens_in,
                output_tokens=output_tokens,
                serving=modes(options.serving),
                batches=options.batches or DECODE_BATCHES,
                prefill_batches=options.prefill_batches or PREFILL_BATCHES,
                progress=say,
                **options.best,
                **asked.where,
                **asked.how,
                **asked.goals,
            )
    except NothingFits as nothing:
        return show_nothing(nothing, options.style)
    code = show_plans(found, options.style, file, report)
    return INTERRUPTED if found.search.proved_optimal == STOPPED else code
