"""What `plan` is asked for, and the search problem that it is on one slice."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from mesh.errors import InputError
from mesh.slices import Slice
from planner.choices import Problem
from strategies.components import IDLE, Component, components
from strategies.cost import Speeds, check_compute, speeds
from strategies.models import Model
from strategies.notation import Program
from strategies.workload import Workload

OBJECTIVES = ("throughput", "latency")
Progress = Callable[[str], None]
Fixed = Mapping[str, Mapping[str, frozenset[str]]]


@dataclass(frozen=True)
class Request:
    """What `plan` is asked for."""

    model: Model
    slices: Sequence[Slice]
    work: Workload
    objective: str = "throughput"
    top: int = 5
    fixed: Fixed | None = None
    programs: Sequence[Program] = ()

    def __post_init__(self) -> None:
        if self.objective not in OBJECTIVES:
            raise InputError(f"objective '{self.objective}' is not known; expected {' or '.join(OBJECTIVES)}")
        if not 1 <= self.top <= 1000:
            raise InputError(f"top {self.top}: expected a whole number from 1 to 1000")
        if not self.slices:
            raise InputError("no slice given; expected at least one, such as v5e:4x4")
        for slice_ in self.slices:
            check_compute(slice_.chip, self.work.dtypes.compute)


def make_problem(request: Request, slice_: Slice) -> Problem:
    """The search problem of one slice."""
    parts = components(request.model, request.work, request.programs)
    fast: Speeds = speeds(slice_.chip, request.work.dtypes)
    fixed = _fixed_roles(request.fixed or {}, parts, slice_)
    return Problem(slice_, request.work, parts, fast, slice_.chip.usable_hbm_bytes_per_device, fixed)


def _fixed_roles(fixed: Fixed, parts: Sequence[Component], slice_: Slice) -> dict[str, dict[int, frozenset[str]]]:
    """Roles by component name and physical axis; raises `InputError` on a component, axis or role there is none of."""
    names = {axis.name: i for i, axis in enumerate(slice_.axes) if axis.size > 1}
    result: dict[str, dict[int, frozenset[str]]] = {}
    for kind, axes in fixed.items():
        matching = [c for c in parts if kind in (c.name, c.kind)]
        if not matching:
            raise InputError(f"--fix {kind}: no such component; this model has {', '.join(c.name for c in parts)}")
        for component in matching:
            limits = result.setdefault(component.name, {})
            for axis, roles in axes.items():
                names_of = [_roles(role, component, kind, axis) for role in sorted(roles)]
                limits[_axis(axis, names, slice_, kind)] = frozenset().union(*names_of)
    return result


def _axis(axis: str, names: Mapping[str, int], slice_: Slice, kind: str) -> int:
    if axis not in names:
        raise InputError(f"--fix {kind}={axis}: {slice_.name} has no torus axis '{axis}'; it has {', '.join(names)}")
    return names[axis]


def _roles(role: str, component: Component, kind: str, axis: str) -> frozenset[str]:
    """All roles of that name, or whose cache (or, where there is none, weights) part is it."""
    known = {r.name: r for body in component.bodies for r in body.parts[0].program.roles}
    found = {name for name, r in known.items() if role in (name, r.cache or r.weights)}
    if role == IDLE:
        found.add(IDLE)
    if not found:
        parts = sorted({r.cache or r.weights for r in known.values()})
        raise InputError(
            f"--fix {kind}={axis}:{role}: no role '{role}'; expected one of {', '.join(sorted(known))}, or the part "
            f"{', '.join(parts)}"
        )
    return frozenset(found)
