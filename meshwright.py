"""Meshwright's front door: the public Python API and the `meshwright` command.

Everything loads on first use, and only from the packages beside this file: `import meshwright` loads none of
numpy, networkx, ortools and jax.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import re
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mesh.chips import Chip as Chip
    from mesh.chips import load_chip as load_chip
    from mesh.errors import InputError as InputError
    from mesh.slices import Slice as Slice
    from mesh.slices import parse_slice as parse_slice
    from planner.api import plan as plan
    from planner.api import price as price
    from planner.api import roofline as roofline
    from planner.fits.fits import Fits as Fits
    from planner.fits.fits import fits as fits
    from planner.fleet.fleet import NoFleet as NoFleet
    from planner.fleet.fleet import fleet as fleet
    from planner.frontier.pareto import pareto as pareto
    from planner.plan import Plan as Plan
    from planner.planfile import PlanFile as PlanFile
    from planner.planfile import read_plan as read_plan
    from planner.sensitivity.sensitivity import sensitivity as sensitivity
    from planner.sensitivity.types import SensitivityFile as SensitivityFile
    from planner.serve.serve import serve as serve
    from planner.solve import NothingFits as NothingFits
    from planner.stated.fleet import Fleet as Fleet
    from planner.stated.fleet import Traffic as Traffic
    from planner.stated.frontier import Frontier as Frontier
    from planner.stated.serving import Serving as Serving
    from planner.targets import Targets as Targets
    from planner.validate.scores import Validation as Validation
    from planner.validate.validate import validate as validate
    from strategies.configs import load_model as load_model
    from strategies.models import Model as Model
    from strategies.rooftable import RooflineTable as RooflineTable

_HOMES = {
    "Chip": "mesh.chips",
    "Fits": "planner.fits.fits",
    "Fleet": "planner.stated.fleet",
    "Frontier": "planner.stated.frontier",
    "InputError": "mesh.errors",
    "Model": "strategies.models",
    "NoFleet": "planner.fleet.fleet",
    "NothingFits": "planner.solve",
    "Plan": "planner.plan",
    "PlanFile": "planner.planfile",
    "RooflineTable": "strategies.rooftable",
    "SensitivityFile": "planner.sensitivity.types",
    "Serving": "planner.stated.serving",
    "Slice": "mesh.slices",
    "Validation": "planner.validate.scores",
    "Targets": "planner.targets",
    "Traffic": "planner.stated.fleet",
    "fits": "planner.fits.fits",
    "fleet": "planner.fleet.fleet",
    "load_chip": "mesh.chips",
    "load_model": "strategies.configs",
    "pareto": "planner.frontier.pareto",
    "parse_slice": "mesh.slices",
    "plan": "planner.api",
    "price": "planner.api",
    "read_plan": "planner.planfile",
    "roofline": "planner.api",
    "sensitivity": "planner.sensitivity.sensitivity",
    "serve": "planner.serve.serve",
    "validate": "planner.validate.validate",
}
_COMMANDS = {
    "models": "planner.commands.shown",
    "chips": "planner.commands.shown",
    "schema": "executor.commands",
    "roofline": "planner.commands.shown",
    "price": "planner.commands.shown",
    "explain": "planner.commands.shown",
    "plan": "planner.commands.plan",
    "pareto": "planner.commands.frontier",
    "fits": "planner.commands.frontier",
    "sensitivity": "planner.commands.sensitivity",
    "validate": "planner.commands.validate",
    "fleet": "planner.commands.fleet",
    "verify": "executor.commands",
    "calibrate": "executor.commands",
}
_PACKAGES = ("mesh", "strategies", "planner", "executor")
BAD_INPUT, BUG, INTERRUPTED, BROKEN_PIPE = 2, 70, 130, 141
"""Exit codes besides 0 (a plan was found) and 1 (nothing fits)."""


def __getattr__(name: str) -> Any:
    if name == "__version__":
        return _load("planner.version").VERSION
    if name not in _HOMES:
        raise AttributeError(f"module 'meshwright' has no attribute {name!r}")
    return getattr(_load(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES, "__version__"})


def _load(module: str) -> Any:
    if shadow := _shadow():
        raise ImportError(shadow)
    return importlib.import_module(module)


def _shadow() -> str | None:
    """One line if `import` finds something else under the name of one of our packages."""
    folder = Path(__file__).parent
    for name in _PACKAGES:
        found = _found(name)
        if os.path.realpath(found) != os.path.realpath(folder / name / "__init__.py"):
            return (
                f"'{found}' shadows meshwright's own package '{name}' in '{folder}'; rename it, take it off "
                "PYTHONPATH, or run from another folder"
            )
    return None


def _found(name: str) -> str:
    """What `import name` finds: a file, or the folder where that has no `__init__.py`."""
    try:
        spec = importlib.util.find_spec(name)
    except ValueError:  # a module without a spec was loaded under this name
        return getattr(sys.modules[name], "__file__", None) or f"a module '{name}' without a file"
    if spec is None:
        return "nothing"
    return spec.origin or next(iter(spec.submodule_search_locations or ()), "nothing")


def main(arguments: Sequence[str] | None = None) -> int:
    """The `meshwright` command: runs it and returns its exit code; an error is one line on stderr."""
    if shadow := _shadow():
        return _complain(shadow, BAD_INPUT)
    try:
        return _run(sys.argv[1:] if arguments is None else list(arguments))
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
    from planner.commands.commandline import Commands, wrong_usage

    commands = Commands(_COMMANDS)
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


if __name__ == "__main__":
    sys.exit(main())
