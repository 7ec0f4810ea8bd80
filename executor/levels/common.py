"""Shared parts of the levels: refusals of what they cannot run, the mesh of a host's devices, the slots of experts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
from jax.sharding import Mesh

from executor.devices import Unavailable, build_mesh
from executor.loaded import Loaded
from executor.processes.process_arrays import share
from executor.reference import param_shapes
from executor.verdict import Finding
from executor.wording import first_line
from mesh.errors import InputError
from planner.plan.plan import Plan

MakeEngine = Callable[[Loaded, Mesh], Any]
"""From a plan and a mesh to an engine (`executor.run.engine.Engine`), or to what has its methods."""


def check_supported(plan: Plan) -> None:
    """Raise `Unavailable` where the model has what neither engine nor reference can run, such as attention sinks."""
    try:
        param_shapes(plan.model)
    except InputError as error:
        raise Unavailable(f"{plan.model.name} cannot be run: {first_line(error)}") from None


def host_mesh(loaded: Loaded) -> Mesh:
    """The plan's mesh on devices of the host, or of all hosts; raises `Unavailable` where there are too few."""
    plan = loaded.plan
    return build_mesh(plan.mesh, loaded.slice_, share(jax.devices("cpu"), plan.devices))


def capacity_factor(plan: Plan) -> float:
    """The factor by which the experts of a plan have the slots that were priced: the mean over its real experts."""
    padded = [after / before for name, (before, after) in plan.padded.items() if name.endswith("/E")]
    return max(padded, default=1.0) * (1 - 1e-9)  # the mean is a whole number, and rounded up


def raised(what: str, promised: str, error: Exception) -> Finding:
    """The finding that something raised an error in place of what it was to do."""
    return Finding(what=what, promised=promised, found=f"{type(error).__name__}: {first_line(error)}")
