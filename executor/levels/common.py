"""Helpers that several levels share: the check for models that cannot run, the host's mesh, the experts' slots."""

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
"""A function from a plan and a mesh to an `executor.run.engine.Engine`, or to an object with the same methods."""


def check_supported(plan: Plan) -> None:
    """Raise `Unavailable` if the model has a feature that neither engine nor reference implements.

    Attention sinks are an example; `executor.reference.param_shapes` rejects all such models.
    """
    try:
        param_shapes(plan.model)
    except InputError as error:
        raise Unavailable(f"{plan.model.name} cannot be run: {first_line(error)}") from None


def host_mesh(loaded: Loaded) -> Mesh:
    """Return the plan's mesh on the CPU devices of this host, or of all hosts of a distributed run.

    Raises `Unavailable` if there are fewer devices than the plan needs.
    """
    plan = loaded.plan
    return build_mesh(plan.mesh, loaded.slice_, share(jax.devices("cpu"), plan.devices))


def capacity_factor(plan: Plan) -> float:
    """Return the `RunOptions.capacity_factor` that gives each expert as many slots as the plan prices.

    The plan prices the mean number of slots over its real experts. The engine computes the mean over all experts, so
    the factor is the padded number of experts E over the real one.
    """
    padded = [after / before for name, (before, after) in plan.padded.items() if name.endswith("/E")]
    return max(padded, default=1.0) * (1 - 1e-9)  # the engine rounds up, and the mean is a whole number already


def raised(what: str, promised: str, error: Exception) -> Finding:
    """Return the finding that `what` raised an error instead of doing what the plan states (`promised`)."""
    return Finding(what=what, promised=promised, found=f"{type(error).__name__}: {first_line(error)}")
