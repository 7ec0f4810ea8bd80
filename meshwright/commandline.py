"""Commands and options, built on click, and the functions that read the texts of options."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import Any

import click

from mesh.errors import InputError
from meshwright.output import write

_RANGE = re.compile(r"([0-9]{1,9})?(\.\.)?([0-9]{1,9})?")
_WHOLE = re.compile(r"[+-]?[0-9]+")
_MOST_DIGITS = 18
HELP_WIDTH = 100
"""The most columns of `--help`; a narrower terminal has fewer."""

Read = Callable[[str, Any], Any]
"""From an option's name and its text (of one that repeats: its texts) to its value; raises `InputError`."""


GROUPS = {
    "Workload": (
        "phase", "batch", "context", "weights", "kv", "activations", "compute", "input_tokens", "output_tokens",
        "serving", "prefill_batch", "decode_batch", "traffic", "kv_heads", "layout",
    ),
    "Hardware": (
        "slice_", "slices", "chips", "chip_counts", "num_slices", "quota", "chip_file", "constants", "devices",
    ),
    "Targets": (
        "objective", "max_step_s", "max_ttft_s", "min_tokens_per_s", "max_chips", "prices", "utilisation",
        "timing_within",
    ),
    "Search": ("fix", "programs", "cuts", "solver", "solver_seconds", "workers", "swing", "levels", "mode"),
    "Output": ("top", "pick", "rejected", "wide", "output", "bars", "style", "progress"),
}  # fmt: skip
"""The sections of `--help`, and the parameters in each; all others are in a last section, `Options`."""


def group_of(parameter: click.Parameter) -> str:
    """Return the section of `--help` in which a parameter stands."""
    return next((title for title, names in GROUPS.items() if parameter.name in names), "Options")


class Argument(click.Argument):
    """An argument that `--help` explains."""

    def __init__(
        self,
        name: str,
        metavar: str,
        about: str,
        *,
        required: bool = True,
        default: str | None = None,
        words: Callable[[], Sequence[str]] = tuple,
    ):
        super().__init__(
            [name], metavar=metavar, required=required, shell_complete=_completing(words), **_default(default)
        )
        shown = "required" if required else default and f"default: {default}"
        self.about = f"{about}  [{shown}]" if shown else about


def option(
    names: str,
    metavar: str,
    about: str,
    *,
    default: str | None = None,
    many: bool = False,
    required: bool = False,
    read: Read | None = None,
    words: Callable[[], Sequence[str]] = tuple,
) -> click.Option:
    """Make an option with one value or, `many`, with several; `names`: "-o --output", and the parameter."""
    spelt = next(name for name in names.split() if name.startswith("--"))

    def value(_: click.Context, __: click.Parameter, text: Any) -> Any:
        return text if read is None or text is None else read(spelt, text)

    return click.Option(
        names.split(),
        metavar=metavar,
        help=about,
        multiple=many,
        required=required,
        callback=value,
        shell_complete=_completing(words),
        **_default(default),
    )


def _completing(words: Callable[[], Sequence[str]]) -> Callable[[click.Context, click.Parameter, str], list[str]]:
    """Return what completes a value for a shell: the words that begin as it does, the last one after a comma."""

    def complete(_: click.Context, __: click.Parameter, begun: str) -> list[str]:
        before, comma, last = begun.rpartition(",")
        return [before + comma + word for word in words() if word.startswith(last)]

    return complete


def _default(text: str | None) -> dict[str, Any]:
    """Return the keyword `default` only where there is one: click takes None for a value."""
    return {} if text is None else {"default": text}


def choice(names: str, known: Sequence[str], about: str, *, default: str) -> click.Option:
    """Make an option whose value is one of the known words."""
    return option(
        names,
        "|".join(known),
        about,
        default=default,
        read=lambda name, text: one_of(name, text, known),
        words=lambda: known,
    )


def flag(names: str, about: str) -> click.Option:
    """Make an option without a value."""
    return click.Option(names.split(), is_flag=True, help=about)


class Command(click.Command):
    """A command whose `--help` lists its arguments and groups its options, and whose errors name the option."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Read the arguments; raises `click.UsageError`."""
        try:
            return super().parse_args(ctx, args)
        except click.UsageError as error:
            error.ctx = error.ctx or ctx
            raise

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command; an argument that is wrong is called by its option. `--wide` is the style of a table."""
        if ctx.params.pop("wide", False) and ctx.params["style"] == "table":
            ctx.params["style"] = "wide"
        try:
            return super().invoke(ctx)
        except InputError as error:
            spelt = next((one.opts[-1] for one in self.params if one.name == error.field), None)
            if spelt is None:
                raise
            raise InputError(spelt + str(error).removeprefix(error.field)) from None

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the arguments, then the options by what they are about."""
        sections: dict[str, list[tuple[str, str]]] = {title: [] for title in ("Arguments", *GROUPS, "Options")}
        for parameter in self.get_params(ctx):
            if isinstance(parameter, Argument):
                sections["Arguments"].append((parameter.human_readable_name, parameter.about))
            elif record := parameter.get_help_record(ctx):
                sections[group_of(parameter)].append(record)
        for title, rows in sections.items():
            if rows:
                with formatter.section(title):
                    formatter.write_dl(rows)


def command(*params: click.Parameter) -> Callable[[Callable[..., int | None]], Command]:
    """Make a function a command of its name, with its docstring as help."""

    def made(run: Callable[..., int | None]) -> Command:
        return Command(run.__name__, params=list(params), callback=run, help=run.__doc__)

    return made


def _print_version(ctx: click.Context, _: click.Parameter, wanted: bool) -> None:
    if wanted:
        from mesh.version import VERSION

        write(f"meshwright {VERSION}\n".encode())
        ctx.exit()


_VERSION = click.Option(
    ["--version"],
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_print_version,
    help="Print the version.",
)


class Commands(click.Group):
    """The commands, each imported when it is called, from the module that `homes` names."""

    def __init__(self, homes: Mapping[str, str]) -> None:
        super().__init__(
            params=[_VERSION],
            help="Choose how a Transformer is sharded for inference on a TPU mesh, and say why.",
            no_args_is_help=False,
            context_settings={
                "help_option_names": ["-h", "--help"],
                "show_default": True,
                "max_content_width": HELP_WIDTH,
            },
        )
        self.homes = homes

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of the commands, in the order of `homes`."""
        return list(self.homes)

    def get_command(self, ctx: click.Context, cmd_name: str) -> Command:
        """Return the command of that name; where there is none, fail with the closest names."""
        if cmd_name not in self.homes:
            from difflib import get_close_matches

            close = ", ".join(map(repr, get_close_matches(cmd_name, self.homes)))
            ctx.fail(f"No such command {cmd_name!r}." + (f" Did you mean {close}?" if close else ""))
        command = getattr(import_module(self.homes[cmd_name]), cmd_name)
        assert isinstance(command, Command)
        return command


def wrong_usage(error: click.ClickException) -> str:
    """Return click's message about wrong usage, and the command whose `--help` says more."""
    said = error.format_message()
    if isinstance(error, click.NoSuchOption):  # which versions of click say in words of their own
        close = f" (Possible options: {', '.join(sorted(error.possibilities))})" if error.possibilities else ""
        said = f"No such option: {error.option_name}{close}"
    context = getattr(error, "ctx", None)
    return f"{said.rstrip('.')}; see '{context.command_path if context else 'meshwright'} --help'"


def words(option: str, texts: Sequence[str]) -> tuple[str, ...]:
    """Split the texts of an option that repeats or takes commas into words, in order, each once.

    >>> words("--slice", ["v5e:4x4,v5e:4x8", "v5e:4x4"])
    ('v5e:4x4', 'v5e:4x8')
    """
    parts = [part.strip() for text in texts for part in text.split(",")]
    if not all(parts):
        raise InputError(f"{option} {','.join(texts)!r}: a value is empty; expected values with commas between them")
    return tuple(dict.fromkeys(parts))


def whole(option: str, text: str) -> int:
    """Read a whole number; the caller checks its range.

    >>> whole("--context", "8192")
    8192
    """
    if not _WHOLE.fullmatch(text.strip()):
        raise InputError(f"{option} {text!r}: expected a whole number, such as 64")
    if len(text.strip()) > _MOST_DIGITS:
        raise InputError(f"{option} {text[:12]}...: expected a whole number of at most {_MOST_DIGITS} digits")
    return int(text)


def wholes(option: str, texts: Sequence[str]) -> tuple[int, ...]:
    """Read the whole numbers of an option that repeats or takes commas.

    >>> wholes("--batch", ["1,8", "64"])
    (1, 8, 64)
    """
    return tuple(whole(option, word) for word in words(option, texts))


def number(option: str, text: str) -> float:
    """Read a number; the caller checks its range.

    >>> number("--timing-within", "1.5")
    1.5
    """
    try:
        return float(text)
    except ValueError:
        raise InputError(f"{option} {text!r}: expected a number, such as 1.5") from None


def one_of(option: str, text: str, known: Sequence[str]) -> str:
    """Return the text if it is one of the known words; raises `InputError` otherwise."""
    if text not in known:
        raise InputError(f"{option} {text!r}: expected {', '.join(known[:-1])} or {known[-1]}")
    return text


def fixed_roles(texts: Sequence[str]) -> Mapping[str, Mapping[str, str]]:
    """Read `--fix attention=Z:B,Y:K`, repeated, as roles by component and torus axis.

    >>> fixed_roles(["attention=Z:B,Y:K", "mlp=X:F"])
    {'attention': {'Z': 'B', 'Y': 'K'}, 'mlp': {'X': 'F'}}
    """
    roles: dict[str, dict[str, str]] = {}
    for text in texts:
        component, equals, axes = text.partition("=")
        if not equals or not component.strip():
            raise InputError(f"--fix {text!r}: {_FIX}")
        axes_of = roles.setdefault(component.strip(), {})
        for part in axes.split(","):
            axis, role = _axis_and_role(part, text)
            if axes_of.setdefault(axis, role) != role:
                raise InputError(
                    f"--fix {text!r}: torus axis {axis} has role {axes_of[axis]} already; expected one per axis"
                )
    return roles


_FIX = "expected COMPONENT=TORUSAXIS:ROLE,..., such as attention=Z:B,Y:K"


def _axis_and_role(part: str, text: str) -> tuple[str, str]:
    axis, colon, role = (piece.strip() for piece in part.partition(":"))
    if not axis or not colon or not role:
        raise InputError(f"--fix {text!r}: {part.strip()!r} is not TORUSAXIS:ROLE; {_FIX}")
    return axis, role


def one_slice(option: str, texts: Sequence[str]) -> str:
    """Read the one slice of a command that takes no more."""
    names = words(option, texts)
    if len(names) > 1:
        raise InputError(f"{option} {','.join(names)}: expected one slice for this command")
    return names[0]


def chip_range(text: str) -> tuple[int, int | None]:
    """Read the range of `--chips`: a number, or `least..most`, of which one may be missing.

    >>> chip_range("4..256"), chip_range("16"), chip_range("64..")
    ((4, 256), (16, 16), (64, None))
    """
    match = _RANGE.fullmatch(text.strip())
    if not match or not any(match.group(1, 3)):
        raise InputError(f"--chips {text!r}: expected a number of chips or a range, such as 16 or 4..256")
    first, dots, last = match.groups()
    least = int(first or 1)
    most = int(last) if last else None if dots else least
    if least < 1 or (most is not None and most < least):
        raise InputError(f"--chips {text!r}: expected the smaller number first, from 1 on, such as 4..256")
    return least, most


def prices(texts: Sequence[str]) -> dict[str, float]:
    """Read `--price-per-chip-hour`: one price for every chip (named `*`), or `chip=price` with commas between.

    >>> prices(["v5e=1.2,v6e=2.7"]), prices(["1.2"])
    ({'v5e': 1.2, 'v6e': 2.7}, {'*': 1.2})
    """
    by_chip: dict[str, float] = {}
    for word in (part.strip() for text in texts for part in text.split(",")):
        name, equals, price = (piece.strip() for piece in word.rpartition("="))
        if (equals and not name) or not price:
            raise InputError(f"--price-per-chip-hour {word!r}: {_PRICE}")
        key = name.lower() or "*"
        if key in by_chip:
            raise InputError(f"--price-per-chip-hour {word!r}: a second price; {_PRICE}")
        try:
            by_chip[key] = float(price)
        except ValueError:
            raise InputError(f"--price-per-chip-hour {word!r}: {_PRICE}") from None
    return by_chip


_PRICE = "expected dollars, such as 1.2, or one for each chip, such as v5e=1.2,v6e=2.7"


def quota(texts: Sequence[str]) -> dict[str, int]:
    """Read the chips by kind of `--quota`, which repeats or takes commas.

    >>> quota(["v5e=256,V6E=64"])
    {'v5e': 256, 'v6e': 64}
    """
    by_chip: dict[str, int] = {}
    for word, name, chips in _pairs("--quota", texts, _QUOTA):
        key = name.lower()
        if key in by_chip:
            raise InputError(f"--quota {word}: a second quota of {key}; {_QUOTA}")
        by_chip[key] = whole(f"--quota {name}", chips)
    return by_chip


_QUOTA = "expected chips by kind, such as v5e=256,v6e=64"


def traffic(texts: Sequence[str]) -> dict[str, Any]:
    """Read the numbers of `--traffic`, in any order.

    >>> traffic(["requests_per_s=20,input=2000,output=300"])
    {'requests_per_s': 20.0, 'input': 2000, 'output': 300}
    """
    read = {"requests_per_s": number, "input": whole, "output": whole}
    numbers: dict[str, Any] = {}
    for word, name, value in _pairs("--traffic", texts, _TRAFFIC):
        if name not in read or name in numbers:
            raise InputError(f"--traffic {word}: {'given twice' if name in numbers else 'not known'}; {_TRAFFIC}")
        numbers[name] = read[name](f"--traffic {name}", value)
    missing = [name for name in read if name not in numbers]
    if missing:
        raise InputError(f"--traffic {','.join(texts)}: {', '.join(missing)} missing; {_TRAFFIC}")
    return numbers


_TRAFFIC = "expected requests_per_s=20,input=2000,output=300"


def _pairs(option: str, texts: Sequence[str], expected: str) -> list[tuple[str, str, str]]:
    """Split each `name=value` into (word, name, value)."""
    triples = []
    for word in (part.strip() for text in texts for part in text.split(",")):
        name, equals, value = (piece.strip() for piece in word.partition("="))
        if not (name and equals and value):
            raise InputError(f"{option} {word!r}: {expected}")
        triples.append((word, name, value))
    return triples
