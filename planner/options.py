"""Options: how typer declares those that commands share, and how their text is read.

Text: lists with commas, whole numbers, choices and `--fix`, each with one clear line where it is wrong.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from mesh.errors import InputError

if TYPE_CHECKING:
    from planner.targets import Targets

FORMATS = ("table", "json", "markdown")
PROGRESS = ("auto", "never")

ModelName = Annotated[str, typer.Argument(metavar="MODEL", help="A built-in name, a config.json or a folder with one.")]
Slices = Annotated[
    list[str], typer.Option("--slice", metavar="SLICE", help="Such as v5e:4x4; repeat or use commas for several.")
]
AnySlices = Annotated[
    list[str] | None,
    typer.Option("--slice", metavar="SLICE", help="Such as v5e:4x4; repeat or use commas for several."),
]
Chips = Annotated[
    list[str] | None, typer.Option("--chip", metavar="CHIP", help="Every legal slice of it, too; repeat for several.")
]
ChipCounts = Annotated[
    str | None, typer.Option("--chips", metavar="N|N..M", help="Slices of --chip with so many chips only: 4..256.")
]
Cuts = Annotated[
    str,
    typer.Option(metavar="two|all", help="Pieces of each torus axis: two (four in all) at most, or any."),
]
WholeAxes = Annotated[
    bool,
    typer.Option("--devices-only-whole-axes", help="Cut no torus axis: meshes that jax.make_mesh gives."),
]
MaxStep = Annotated[str | None, typer.Option("--max-step-ms", metavar="MS", help="Of a step, at most.")]
MaxTtft = Annotated[
    str | None, typer.Option("--max-ttft-ms", metavar="MS", help="To the first token, at most (prefill, serve).")
]
MinTokens = Annotated[
    str | None, typer.Option("--min-tokens-per-s", metavar="N", help="Of a slice (serve: output tokens), at least.")
]
MaxChips = Annotated[str | None, typer.Option("--max-chips", metavar="N", help="Of a slice, at most.")]
PricesText = Annotated[
    list[str] | None,
    typer.Option("--price-per-chip-hour", metavar="DOLLARS|CHIP=DOLLARS,...", help="For the cost of a million tokens."),
]
Workers = Annotated[
    str | None, typer.Option(metavar="N", help="Processes that search several slices; default: one per core.")
]
Phase = Annotated[
    str, typer.Option(metavar="decode|prefill", help="What a step is; `plan` takes serve, too: both together.")
]
Batches = Annotated[
    list[str] | None,
    typer.Option(
        "--batch", metavar="N[,N...]|auto", help="Sequences; default 1,2,4,...,256 (prefill: 1,2,4,8,16); `plan`: auto."
    ),
]
Context = Annotated[str, typer.Option(metavar="TOKENS", help="Tokens in each filled cache, or in each prompt.")]
Weights = Annotated[str, typer.Option(metavar="DTYPE", help="f32, bf16, f16, fp8, int8 or int4.")]
Cache = Annotated[str, typer.Option("--kv", metavar="DTYPE", help="Dtype of the KV cache.")]
Activations = Annotated[str, typer.Option(metavar="DTYPE", help="Dtype of activations.")]
Compute = Annotated[str | None, typer.Option(metavar="DTYPE", help="Of the matmuls; default: the activations'.")]
Programs = Annotated[
    list[str] | None, typer.Option("--program", metavar="FILE", help="A .layout file of your own; repeat for more.")
]
ChipFile = Annotated[
    str | None, typer.Option("--chip-file", metavar="FILE", help="A chip of your own, as `calibrate` writes it.")
]
Constants = Annotated[
    str, typer.Option("--constants", metavar="chip|data-sheet|SET", help="What programs reach; SET: of `validate`.")
]
Pick = Annotated[str, typer.Option(metavar="N", help="Which plan of the plan file.")]
Output = Annotated[str | None, typer.Option("-o", "--output", metavar="FILE", help="Also write the JSON to this file.")]
Solver = Annotated[
    str, typer.Option("--solver", metavar="exhaustive|cp-sat", help="What finds the best and proves it.")
]
SolverSeconds = Annotated[
    str | None,
    typer.Option(metavar="S", help="Where CP-SAT is ended, for each slice and batch; the best so far counts."),
]
Format = Annotated[str, typer.Option("--format", metavar="table|json|markdown", help="How to print.")]

_WHOLE = re.compile(r"[+-]?[0-9]+")
_MOST_DIGITS = 18


def words(option: str, texts: Sequence[str]) -> tuple[str, ...]:
    """The values of an option that repeats or takes commas, in order, without repetitions.

    >>> words("--slice", ["v5e:4x4,v5e:4x8", "v5e:4x4"])
    ('v5e:4x4', 'v5e:4x8')
    """
    parts = [part.strip() for text in texts for part in text.split(",")]
    if not all(parts):
        raise InputError(f"{option} {','.join(texts)!r}: a value is empty; expected values with commas between them")
    return tuple(dict.fromkeys(parts))


def whole(option: str, text: str) -> int:
    """A whole number; its range is for the caller to check.

    >>> whole("--context", "8192")
    8192
    """
    if not _WHOLE.fullmatch(text.strip()):
        raise InputError(f"{option} {text!r}: expected a whole number, such as 64")
    if len(text.strip()) > _MOST_DIGITS:
        raise InputError(f"{option} {text[:12]}...: expected a whole number of at most {_MOST_DIGITS} digits")
    return int(text)


def wholes(option: str, texts: Sequence[str]) -> tuple[int, ...]:
    """Whole numbers of an option that repeats or takes commas.

    >>> wholes("--batch", ["1,8", "64"])
    (1, 8, 64)
    """
    return tuple(whole(option, word) for word in words(option, texts))


def number(option: str, text: str) -> float:
    """A number; its range is for the caller to check.

    >>> number("--timing-within", "1.5")
    1.5
    """
    try:
        return float(text)
    except ValueError:
        raise InputError(f"{option} {text!r}: expected a number, such as 1.5") from None


def targets_of(max_step: str | None, max_ttft: str | None, min_tokens: str | None, max_chips: str | None) -> Targets:
    """The targets that options name."""
    from planner.targets import Targets

    return Targets(
        max_step_s=None if max_step is None else number("--max-step-ms", max_step) / 1e3,
        max_ttft_s=None if max_ttft is None else number("--max-ttft-ms", max_ttft) / 1e3,
        min_tokens_per_s=None if min_tokens is None else number("--min-tokens-per-s", min_tokens),
        max_chips=None if max_chips is None else whole("--max-chips", max_chips),
    )


def cuts_of(cuts: str, whole_axes: bool) -> str:
    """How torus axes are cut, by `--cuts` and `--devices-only-whole-axes`."""
    one_of("--cuts", cuts, ("two", "all"))
    if whole_axes and cuts == "all":
        raise InputError("--cuts all and --devices-only-whole-axes contradict each other; expected one of them")
    return "none" if whole_axes else cuts


def one_of(option: str, text: str, known: Sequence[str]) -> str:
    """The text, if it is one of the known words."""
    if text not in known:
        raise InputError(f"{option} {text!r}: expected {', '.join(known[:-1])} or {known[-1]}")
    return text


def fixed_roles(texts: Sequence[str]) -> Mapping[str, Mapping[str, str]]:
    """`--fix attention=Z:B,Y:K`, repeated, as roles by component and torus axis.

    >>> fixed_roles(["attention=Z:B,Y:K", "mlp=X:F"])
    {'attention': {'Z': 'B', 'Y': 'K'}, 'mlp': {'X': 'F'}}
    """
    found: dict[str, dict[str, str]] = {}
    for text in texts:
        component, equals, axes = text.partition("=")
        if not equals or not component.strip():
            raise InputError(f"--fix {text!r}: {_FIX}")
        of = found.setdefault(component.strip(), {})
        for part in axes.split(","):
            axis, role = _axis_and_role(part, text)
            if of.setdefault(axis, role) != role:
                raise InputError(
                    f"--fix {text!r}: torus axis {axis} has role {of[axis]} already; expected one per axis"
                )
    return found


_FIX = "expected COMPONENT=TORUSAXIS:ROLE,..., such as attention=Z:B,Y:K"


def _axis_and_role(part: str, text: str) -> tuple[str, str]:
    axis, colon, role = (piece.strip() for piece in part.partition(":"))
    if not axis or not colon or not role:
        raise InputError(f"--fix {text!r}: {part.strip()!r} is not TORUSAXIS:ROLE; {_FIX}")
    return axis, role


def one_slice(texts: Sequence[str]) -> str:
    """The one slice of a command that takes no more."""
    names = words("--slice", texts)
    if len(names) > 1:
        raise InputError(f"--slice {','.join(names)}: expected one slice for this command")
    return names[0]
