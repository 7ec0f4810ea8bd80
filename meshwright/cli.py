"""The `meshwright` command: it finds the command that is asked for, runs it, and turns errors into exit codes."""

from __future__ import annotations

import importlib.util
import os
import re
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path

from meshwright.exits import BAD_INPUT, BROKEN_PIPE, BUG, INTERRUPTED

COMMANDS = {
    "models": "meshwright.commands.info",
    "chips": "meshwright.commands.info",
    "glossary": "meshwright.commands.glossary",
    "schema": "meshwright.commands.info",
    "roofline": "meshwright.commands.info",
    "book": "meshwright.commands.book",
    "price": "meshwright.commands.info",
    "explain": "meshwright.commands.info",
    "plan": "meshwright.commands.plan",
    "pareto": "meshwright.commands.pareto",
    "fits": "meshwright.commands.fits",
    "sensitivity": "meshwright.commands.sensitivity",
    "validate": "meshwright.commands.validate",
    "fleet": "meshwright.commands.fleet",
    "verify": "meshwright.commands.verify",
    "calibrate": "meshwright.commands.calibrate",
}


COMPLETE = "_MESHWRIGHT_COMPLETE"
"""The variable by which a shell asks for completions: `bash_source` for the script that asks, as click has it."""
_PACKAGES = ("mesh", "strategies", "planner", "executor")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the `meshwright` command and return its exit code; an error is one line on stderr."""
    if line := shadow():
        return _complain(line, BAD_INPUT)
    try:
        return _run((sys.argv[1:] if arguments is None else list(arguments)) or ["--help"])
    except KeyboardInterrupt:
        return _complain("interrupted", INTERRUPTED)
    except BrokenPipeError:  # the reader of stdout has gone
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # or the flush at exit complains
        return BROKEN_PIPE
    except Exception as error:
        return _bug(error)


def _run(arguments: list[str]) -> int:
    import click

    from mesh.errors import InputError
    from meshwright.commandline import Commands, wrong_usage

    commands = Commands(COMMANDS)
    if instruction := os.environ.get(COMPLETE):
        from click.shell_completion import shell_complete

        return shell_complete(commands, {}, "meshwright", COMPLETE, instruction)
    try:
        with commands.make_context("meshwright", arguments) as context:
            code = commands.invoke(context) or 0
    except InputError as error:
        return _complain(str(error), BAD_INPUT)
    except click.ClickException as error:
        return _complain(wrong_usage(error), BAD_INPUT)
    except click.exceptions.Exit as end:
        return end.exit_code
    if code == INTERRUPTED:  # and its best so far is printed
        raise KeyboardInterrupt
    return int(code)


def _bug(error: Exception) -> int:
    if os.environ.get("MESHWRIGHT_DEBUG"):
        traceback.print_exception(error)
    hint = "this is a bug in meshwright: please report it; MESHWRIGHT_DEBUG=1 shows where it happened"
    return _complain(f"{type(error).__name__}: {error}; {hint}", BUG)


def _complain(message: str, code: int) -> int:
    """Print one line, whatever the message has in it."""
    line = re.sub(r"\s+", " ", message)
    sys.stderr.write("meshwright: " + "".join(c if c.isprintable() else repr(c)[1:-1] for c in line) + "\n")
    return code


def shadow() -> str | None:
    """Return one line of complaint where `import` finds something else under the name of one of our packages."""
    folder = Path(__file__).parents[1]
    for name in _PACKAGES:
        origin = _found(name)
        if os.path.realpath(origin) != os.path.realpath(folder / name / "__init__.py"):
            return (
                f"'{origin}' shadows meshwright's own package '{name}' in '{folder}'; rename it, take it off "
                "PYTHONPATH, or run from another folder"
            )
    return None


def _found(name: str) -> str:
    """Return where `import name` looks: a file, or the folder where that has no `__init__.py`."""
    try:
        spec = importlib.util.find_spec(name)
    except ValueError:  # a module without a spec was loaded under this name
        return getattr(sys.modules[name], "__file__", None) or f"a module '{name}' without a file"
    if spec is None:
        return "nothing"
    return spec.origin or next(iter(spec.submodule_search_locations or ()), "nothing")
