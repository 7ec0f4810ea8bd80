"""Meshwright: how a Transformer is sharded for inference on a TPU mesh, chosen and proved.

Everything loads on first use, and only from the packages beside this one: `import meshwright` loads none of numpy,
networkx, ortools and jax.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from meshwright.shadows import shadow

if TYPE_CHECKING:
    from mesh.chips import Chip as Chip
    from mesh.chips import load_chip as load_chip
    from mesh.errors import InputError as InputError
    from mesh.slices import Slice as Slice
    from mesh.slices import parse_slice as parse_slice
    from planner.api import fits as fits
    from planner.api import fleet as fleet
    from planner.api import pareto as pareto
    from planner.api import plan as plan
    from planner.api import price as price
    from planner.api import roofline as roofline
    from planner.api import serve as serve
    from planner.best.nothing import NothingFits as NothingFits
    from planner.fits.fits import Fits as Fits
    from planner.fleet.fleet import NoFleet as NoFleet
    from planner.plan.file_fleet import Fleet as Fleet
    from planner.plan.file_fleet import Traffic as Traffic
    from planner.plan.file_serving import Serving as Serving
    from planner.plan.plan import Plan as Plan
    from planner.plan.planfile import Frontier as Frontier
    from planner.plan.planfile import PlanFile as PlanFile
    from planner.plan.planfile import read_plan as read_plan
    from planner.query.targets import Targets as Targets
    from planner.sensitivity.sensitivity import sensitivity as sensitivity
    from planner.sensitivity.types import SensitivityFile as SensitivityFile
    from planner.validate.scores import Validation as Validation
    from planner.validate.validate import validate as validate
    from strategies.book.rooftable import RooflineTable as RooflineTable
    from strategies.models.configs import load_model as load_model
    from strategies.models.models import Model as Model

_HOMES = {
    "Chip": "mesh.chips",
    "Fits": "planner.fits.fits",
    "Fleet": "planner.plan.file_fleet",
    "Frontier": "planner.plan.planfile",
    "InputError": "mesh.errors",
    "Model": "strategies.models.models",
    "NoFleet": "planner.fleet.fleet",
    "NothingFits": "planner.best.nothing",
    "Plan": "planner.plan.plan",
    "PlanFile": "planner.plan.planfile",
    "RooflineTable": "strategies.book.rooftable",
    "SensitivityFile": "planner.sensitivity.types",
    "Serving": "planner.plan.file_serving",
    "Slice": "mesh.slices",
    "Validation": "planner.validate.scores",
    "Targets": "planner.query.targets",
    "Traffic": "planner.plan.file_fleet",
    "fits": "planner.api",
    "fleet": "planner.api",
    "load_chip": "mesh.chips",
    "load_model": "strategies.models.configs",
    "pareto": "planner.api",
    "parse_slice": "mesh.slices",
    "plan": "planner.api",
    "price": "planner.api",
    "read_plan": "planner.plan.planfile",
    "roofline": "planner.api",
    "sensitivity": "planner.sensitivity.sensitivity",
    "serve": "planner.api",
    "validate": "planner.validate.validate",
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the `meshwright` command and return its exit code; an error is one line on stderr."""
    from meshwright.cli import main as run

    return run(arguments)


def __getattr__(name: str) -> Any:
    if name == "__version__":
        return _load("mesh.version").VERSION
    if name not in _HOMES:
        raise AttributeError(f"module 'meshwright' has no attribute {name!r}")
    return getattr(_load(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES, "__version__"})


def _load(module: str) -> Any:
    if line := shadow():
        raise ImportError(line)
    return importlib.import_module(module)
