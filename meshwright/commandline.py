"""Commands by click: options whose text is read by functions of ours, and a group that imports what it calls."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import Any

import click

from mesh.errors import InputError
from meshwright.output import write
from meshwright.parsing import one_of

Read = Callable[[str, Any], Any]
"""From an option's name and its text (of one that repeats: its texts) to its value; raises `InputError`."""


class Argument(click.Argument):
    """An argument that `--help` explains."""

    def __init__(self, name: str, metavar: str, about: str, *, required: bool = True, default: str | None = None):
        super().__init__([name], metavar=metavar, required=required, **_default(default))
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
) -> click.Option:
    """An option with a value or, `many`, with all that it is given; `names`: as "-o --output", and the parameter's."""
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
        **_default(default),
    )


def _default(text: str | None) -> dict[str, Any]:
    """As click takes it: a default of None would be one, and nothing missing."""
    return {} if text is None else {"default": text}


def choice(names: str, known: Sequence[str], about: str, *, default: str) -> click.Option:
    """An option whose value is one of the known words."""
    return option(names, "|".join(known), about, default=default, read=lambda name, text: one_of(name, text, known))


def flag(names: str, about: str) -> click.Option:
    """An option without a value."""
    return click.Option(names.split(), is_flag=True, help=about)


class Command(click.Command):
    """A command whose `--help` has a section of arguments; it is named by whatever is wrong in its own."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Read the arguments; raises `click.UsageError`."""
        try:
            return super().parse_args(ctx, args)
        except click.UsageError as error:
            error.ctx = error.ctx or ctx
            raise

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command; an argument that is wrong is called by its option."""
        try:
            return super().invoke(ctx)
        except InputError as error:
            spelt = next((one.opts[-1] for one in self.params if one.name == error.field), None)
            if spelt is None:
                raise
            raise InputError(spelt + str(error).removeprefix(error.field)) from None

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the arguments, then the options."""
        if rows := [(one.human_readable_name, one.about) for one in self.params if isinstance(one, Argument)]:
            with formatter.section("Arguments"):
                formatter.write_dl(rows)
        super().format_options(ctx, formatter)


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
    """Commands in the modules that `homes` names, under their own names; one is imported when it is called."""

    def __init__(self, homes: Mapping[str, str]) -> None:
        super().__init__(
            params=[_VERSION],
            help="Choose how a Transformer is sharded for inference on a TPU mesh, and say why.",
            no_args_is_help=False,
            context_settings={"help_option_names": ["-h", "--help"], "show_default": True},
        )
        self.homes = homes

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Their names, in the order of `homes`."""
        return list(self.homes)

    def get_command(self, ctx: click.Context, cmd_name: str) -> Command:
        """The command of that name; ends with the closest names where there is none."""
        if cmd_name not in self.homes:
            from difflib import get_close_matches

            close = ", ".join(map(repr, get_close_matches(cmd_name, self.homes)))
            ctx.fail(f"No such command {cmd_name!r}." + (f" Did you mean {close}?" if close else ""))
        found = getattr(import_module(self.homes[cmd_name]), cmd_name)
        assert isinstance(found, Command)
        return found


def wrong_usage(error: click.ClickException) -> str:
    """What click says about wrong usage, and where to look."""
    said = error.format_message()
    if isinstance(error, click.NoSuchOption):  # which versions of click say in words of their own
        close = f" (Possible options: {', '.join(sorted(error.possibilities))})" if error.possibilities else ""
        said = f"No such option: {error.option_name}{close}"
    context = getattr(error, "ctx", None)
    return f"{said.rstrip('.')}; see '{context.command_path if context else 'meshwright'} --help'"
