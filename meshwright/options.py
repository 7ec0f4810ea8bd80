"""Options that commands share, each declared once: its name, its help, and what reads it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import click

from meshwright.commandline import Argument, choice, flag, option
from meshwright.parsing import fixed_roles, number, one_slice, whole, wholes, words

if TYPE_CHECKING:
    from planner.query.targets import Prices


FORMATS = ("table", "json", "markdown")


def counts(name: str, texts: Sequence[str]) -> tuple[int, ...] | None:
    """Whole numbers; None where the option was not given."""
    return wholes(name, texts) if texts else None


def counts_or_auto(name: str, texts: Sequence[str]) -> tuple[int, ...] | str | None:
    """As `counts`, and `auto` as that."""
    return "auto" if list(texts) == ["auto"] else counts(name, texts)


def prices(_: str, texts: Sequence[str]) -> Prices:
    """Prices by chip."""
    from planner.query.targets import parse_prices

    return parse_prices(texts)


def milliseconds(name: str, text: str) -> float:
    """Seconds, of milliseconds."""
    return number(name, text) / 1e3


def _chip_range(_: str, text: str) -> tuple[int, int | None]:
    from planner.query.slices import chip_range

    return chip_range(text)


def _roles(_: str, texts: Sequence[str]) -> Mapping[str, Mapping[str, str]]:
    return fixed_roles(texts)


MODEL = Argument("model", "MODEL", "A built-in name, a config.json or a folder with one.")
PLAN_FILE = Argument("file", "PLAN.JSON", "A file that `meshwright plan -o` wrote.")
PICK = option("--pick", "N", "Which plan of the plan file.", default="1", read=whole)

_SLICE = "Such as v5e:4x4; repeat or use commas for several."
SLICE = option("--slice slice_", "SLICE", _SLICE, many=True, required=True, read=one_slice)
SLICES = (
    option("--slice slices", "SLICE", _SLICE, many=True, read=words),
    option("--chip chips", "CHIP", "Every legal slice of it, too; repeat for several.", many=True, read=words),
    option("--chips chip_counts", "N|N..M", "Slices of --chip with so many chips only: 4..256.", read=_chip_range),
)
PHASE = option("--phase", "decode|prefill", "What a step is; `plan` takes serve, too: both together.", default="decode")
STEP = choice("--phase", ("decode", "prefill"), "What a step is.", default="decode")
_BATCHES = "Sequences; default 1,2,4,...,256 (prefill: 1,2,4,8,16); `plan`: auto."
BATCHES = option("--batch batches", "N[,N...]|auto", _BATCHES, many=True, read=counts)
BATCHES_OR_AUTO = option("--batch batches", "N[,N...]|auto", _BATCHES, many=True, read=counts_or_auto)
CONTEXT = option("--context", "TOKENS", "Tokens in each filled cache, or in each prompt.", default="8192", read=whole)
WEIGHTS = option("--weights", "DTYPE", "f32, bf16, f16, fp8, int8 or int4.", default="bf16")
CACHE = option("--kv", "DTYPE", "Dtype of the KV cache.", default="bf16")
DTYPES = (
    WEIGHTS,
    CACHE,
    option("--activations", "DTYPE", "Dtype of activations.", default="bf16"),
    option("--compute", "DTYPE", "Of the matmuls; default: the activations'."),
)
FIX = option("--fix", "COMPONENT=AXIS:ROLE,...", "Roles that torus axes must have.", many=True, read=_roles)
CHIP_FILE = option("--chip-file", "FILE", "A chip of your own, as `calibrate` writes it.")
FILES = (option("--program programs", "FILE", "A .layout file of your own; repeat for more.", many=True), CHIP_FILE)
CONSTANTS = option("--constants", "chip|data-sheet|SET", "What programs reach; SET: of `validate`.", default="chip")
GOALS = (
    option("--max-step-ms max_step_s", "MS", "Of a step, at most.", read=milliseconds),
    option("--max-ttft-ms max_ttft_s", "MS", "To the first token, at most (prefill, serve).", read=milliseconds),
    option("--min-tokens-per-s", "N", "Of a slice (serve: output tokens), at least.", read=number),
    option("--max-chips", "N", "Of a slice, at most.", read=whole),
    option(
        "--price-per-chip-hour prices",
        "DOLLARS|CHIP=DOLLARS,...",
        "For the cost of a million tokens.",
        many=True,
        read=prices,
    ),
)
CUTS = (
    choice("--cuts", ("two", "all"), "Pieces of each torus axis: two (four in all) at most, or any.", default="two"),
    flag("--devices-only-whole-axes whole_axes", "Cut no torus axis: meshes that jax.make_mesh gives."),
)
WORKERS = option("--workers", "N", "Processes that search several slices; default: one per core.", read=whole)
PROGRESS = choice("--progress", ("auto", "never"), "Progress on stderr, if that is a terminal.", default="auto")
OUTPUT = option("-o --output", "FILE", "Also write the JSON to this file.")


def format_of(*more: str, default: str = "table") -> click.Option:
    """`--format`: the formats that all take, and more."""
    return choice("--format style", (*FORMATS, *more), "How to print.", default=default)
