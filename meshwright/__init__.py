"""Meshwright: how a Transformer is sharded for inference on a TPU mesh, chosen and proved.

Everything loads on first use, and only from the packages beside this one: `import meshwright` loads none of numpy,
networkx, ortools and jax.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from meshwright.cli import main as main
from meshwright.cli import shadow

if TYPE_CHECKING:
    from mesh.chips import Chip as Chip
    from mesh.chips import load_chip as load_chip
    from mesh.errors import InputError as InputError
    from mesh.errors import MeshwrightError as MeshwrightError
    from mesh.slices import Slice as Slice
    from mesh.slices import parse_slice as parse_slice
    from meshwright.answers import Fits as Fits
    from meshwright.answers import Plan as Plan
    from meshwright.answers import Plans as Plans
    from meshwright.answers import Sensitivity as Sensitivity
    from meshwright.answers import Validation as Validation
    from meshwright.answers import load as load
    from meshwright.api import fits as fits
    from meshwright.api import fleet as fleet
    from meshwright.api import pareto as pareto
    from meshwright.api import plan as plan
    from meshwright.api import price as price
    from meshwright.api import sensitivity as sensitivity
    from meshwright.api import serve as serve
    from meshwright.api import validate as validate
    from planner.api import query as query
    from planner.api import roofline as roofline
    from planner.best.nothing import NothingFits as NothingFits
    from planner.fleet.fleet import NoFleet as NoFleet
    from planner.plan.file_fleet import Fleet as Fleet
    from planner.plan.file_fleet import Traffic as Traffic
    from planner.plan.file_serving import Serving as Serving
    from planner.plan.planfile import Frontier as Frontier
    from planner.plan.planfile import PlanFile as PlanFile
    from planner.plan.planfile import read_plan as read_plan
    from planner.query.query import Query as Query
    from planner.query.targets import Targets as Targets
    from strategies.book.rooftable import RooflineTable as RooflineTable
    from strategies.models.configs import load_model as load_model
    from strategies.models.models import Model as Model

_NAMES = {
    "mesh.chips": "Chip load_chip",
    "mesh.errors": "InputError MeshwrightError",
    "mesh.slices": "Slice parse_slice",
    "meshwright.answers": "Fits Plan Plans Sensitivity Validation load",
    "meshwright.api": "fits fleet pareto plan price sensitivity serve validate",
    "planner.api": "query roofline",
    "planner.best.nothing": "NothingFits",
    "planner.fleet.fleet": "NoFleet",
    "planner.plan.file_fleet": "Fleet Traffic",
    "planner.plan.file_serving": "Serving",
    "planner.plan.planfile": "Frontier PlanFile read_plan",
    "planner.query.query": "Query",
    "planner.query.targets": "Targets",
    "strategies.book.rooftable": "RooflineTable",
    "strategies.models.configs": "load_model",
    "strategies.models.models": "Model",
}
"""The public names by the module that has them; a test holds them to the imports above."""
_HOMES = {name: module for module, names in _NAMES.items() for name in names.split()}


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
