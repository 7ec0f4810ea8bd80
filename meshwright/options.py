"""Options that commands share, each declared once with its name, its help and its reader.

A parameter's name is the keyword of the function behind the command, so that what is read is handed on as it is.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import wraps
from typing import Any

import click

from mesh.errors import InputError
from meshwright import commandline
from meshwright.commandline import (
    Argument,
    Command,
    chip_range,
    choice,
    command,
    fixed_roles,
    flag,
    number,
    one_slice,
    option,
    whole,
    wholes,
    words,
)
from planner.query.targets import TARGETS, Target, Targets

FORMATS = ("table", "json", "markdown")


def counts(name: str, texts: Sequence[str]) -> tuple[int, ...] | None:
    """Read whole numbers; None where the option was not given."""
    return wholes(name, texts) if texts else None


def counts_or_auto(name: str, texts: Sequence[str]) -> tuple[int, ...] | str | None:
    """Read whole numbers, or the word `auto`; None where the option was not given."""
    return "auto" if list(texts) == ["auto"] else counts(name, texts)


def above_zero(unit: str, scale: float) -> Callable[[str, str], float]:
    """Return a reader of numbers above 0 of a unit, which divides what is typed by `scale`."""

    def read(name: str, text: str) -> float:
        value = number(name, text)
        if not 0 < value < float("inf"):
            raise InputError(f"{name} {value:g}: expected a number of {unit} above 0")
        return value / scale

    return read


def _prices(_: str, texts: Sequence[str]) -> dict[str, float]:
    return commandline.prices(texts)


def _chip_range(_: str, text: str) -> tuple[int, int | None]:
    return chip_range(text)


def _roles(_: str, texts: Sequence[str]) -> Mapping[str, Mapping[str, str]]:
    return fixed_roles(texts)


def _models() -> Sequence[str]:
    from strategies.models.configs import builtin_names

    return builtin_names()


def _chips() -> Sequence[str]:
    from mesh.chips import chip_names

    return chip_names()


def _slices() -> Sequence[str]:
    from mesh.chips import chip_names, load_chip
    from mesh.slices import slices_of

    return [slice_.name for name in chip_names() for slice_ in slices_of(load_chip(name))]


MODEL = Argument("model", "MODEL", "A built-in name, a config.json or a folder with one.", words=_models)
PLAN_FILE = Argument("file", "PLAN.JSON", "A file that `meshwright plan -o` wrote.")
PICK = option("--pick", "N", "Which plan of the plan file.", default="1", read=whole)

_SLICE = "Such as v5e:4x4; repeat or use commas for several."
SLICE = option("--slice slice_", "SLICE", _SLICE, many=True, required=True, read=one_slice, words=_slices)
SLICES = (
    option("--slice slices", "SLICE", _SLICE, many=True, read=words, words=_slices),
    option(
        "--chip chips", "CHIP", "Every legal slice of it, too; repeat for several.", many=True, read=words, words=_chips
    ),
    option("--chips chip_counts", "N|N..M", "Slices of --chip with so many chips only: 4..256.", read=_chip_range),
)
PHASE = option("--phase", "decode|prefill", "What a step is; `plan` takes serve, too: both together.", default="decode")
STEP = choice("--phase", ("decode", "prefill"), "What a step is.", default="decode")
_BATCHES = "Sequences; default 1,2,4,...,256 (prefill: 1,2,4,8,16); `plan`: auto."
BATCHES = option("--batch", "N[,N...]|auto", _BATCHES, many=True, read=counts)
BATCHES_OR_AUTO = option("--batch", "N[,N...]|auto", _BATCHES, many=True, read=counts_or_auto)
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


def target_option(target: Target) -> click.Option:
    """Make the option that asks for a target."""
    unit = {"MS": "milliseconds"}.get(target.metavar, target.unit)
    read = whole if target.whole else above_zero(unit, target.scale)
    return option(f"--{target.option} {target.field}", target.metavar, target.about, read=read)


LIMITS = {target.field: target_option(target) for target in TARGETS}
"""The option of each target, by its field in `Targets`."""
PRICES = option(
    "--price-per-chip-hour prices",
    "DOLLARS|CHIP=DOLLARS,...",
    "For the cost of a million tokens.",
    many=True,
    read=_prices,
)
GOALS = (*LIMITS.values(), PRICES)
CUTS = choice(
    "--cuts",
    ("two", "all", "none"),
    "Pieces of each torus axis: two at most (four in all), any, or none: the meshes that jax.make_mesh gives.",
    default="two",
)
WORKERS = option("--workers", "N", "Processes that search several slices; default: one per core.", read=whole)
PROGRESS = choice("--progress", ("auto", "never"), "Progress on stderr, if that is a terminal.", default="auto")
WIDE = flag("--wide", "Tables as wide as they are, with the mesh and the roles in exact letters.")
OUTPUT = option("-o --output", "FILE", "Also write the JSON to this file.")


def format_of(*more: str, default: str = "table") -> tuple[click.Option, click.Option]:
    """Make `--format`, of the formats that all commands take, and more; and `--wide`, of tables."""
    return choice("--format style", (*FORMATS, *more), "How to print.", default=default), WIDE


@dataclass(frozen=True, kw_only=True)
class Asked:
    """The options of a command that searches: model, slices, and the keywords of the function behind the command."""

    model: str
    slices: tuple[str, ...] = ()
    options: dict[str, Any] = field(default_factory=dict)
    progress: str
    output: str | None
    style: str


def searching(*params: click.Parameter) -> Callable[[Callable[..., int]], Command]:
    """Make a function a command that gets its options as `Asked`, and those that it names as parameters by name."""

    def made(run: Callable[..., int]) -> Command:
        own = tuple(name for name in run.__annotations__ if name not in ("asked", "return"))

        @wraps(run)
        def read(**given: Any) -> int:
            others = {name: given.pop(name) for name in own}
            return run(asked_of(given), **others)

        return command(*params)(read)

    return made


def asked_of(given: Mapping[str, Any]) -> Asked:
    """Sort the options of a command that searches; options that were not given are left out of the keywords."""
    rest = {name: value for name, value in given.items() if value is not None and value != ()}
    targets = Targets(**{name: rest.pop(name) for name in LIMITS if name in rest})
    return Asked(
        model=rest.pop("model"),
        slices=rest.pop("slices", ()),
        progress=rest.pop("progress"),
        output=rest.pop("output", None),
        style=rest.pop("style"),
        options=rest | {"targets": targets},
    )
