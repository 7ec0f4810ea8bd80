"""Define the values of the search: its problem on one slice, a choice, and the result.

`order_key` and `layout_key` say how ties break and when two choices count as one layout.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from mesh.errors import InputError
from mesh.slices import Slice
from planner.query.query import TWO, Fixed, Query
from planner.search.meshes import Mesh
from strategies.components import IDLE, Component, components
from strategies.models.workload import Workload
from strategies.readers.cost import Speeds, speeds

OVER_MEMORY = "needs more than the usable HBM, even with the least of everything else"


@dataclass(frozen=True)
class Pick:
    """The choice for one component: the name of its body, and the program axis that each piece of the mesh carries.

    `axes` has one entry per piece of the mesh, in the order of `Choice.mesh`; `IDLE` (`-`) is a piece without a role.
    """

    component: str
    body: str
    axes: tuple[str, ...]


@dataclass(frozen=True)
class Choice:
    """One layout as the search sees it: mesh, residual, one pick per component, and its cost.

    `residual` has one code per piece of the mesh: the dim of the residual stream that it cuts (`D`, `B`, `T`) or `-`.
    `step_s` is the estimate of one step in seconds, `total_bytes` the memory of one device; both come from the tables.
    `padded_batch` is the batch that runs, at least `batch`.
    """

    mesh: Mesh
    residual: tuple[str, ...]
    picks: tuple[Pick, ...]
    batch: int
    padded_batch: int
    step_s: float
    total_bytes: float


@dataclass
class SearchResult:
    """The result of searching one slice: the best choices of every batch, and the assignments that were excluded.

    `choices` lists per batch the best choices first. `rejected` maps (component, reason) to a count and the numbers of
    one example. `least_bytes` has, where no batch has a choice, the least bytes per device of any layout of each batch.
    `candidates` counts the layouts that the tables cover, `evaluations` the programs that were priced.
    """

    choices: dict[int, list[Choice]] = field(default_factory=dict)
    rejected: dict[tuple[str, str], tuple[int, dict[str, float]]] = field(default_factory=dict)
    least_bytes: dict[int, float] = field(default_factory=dict)
    candidates: int = 0
    evaluations: int = 0
    interrupted: bool = False

    def reject(self, component: str, reason: str, count: int, example: dict[str, float]) -> None:
        """Count assignments that a reason excludes, and keep the first example."""
        before, first = self.rejected.get((component, reason), (0, example))
        self.rejected[component, reason] = (before + count, first)


@dataclass(frozen=True)
class Problem:
    """The search problem of one slice: its workload and the components to lay out.

    `fast` has the speeds of the chip at the workload's dtypes, `usable_bytes` the usable HBM of a device. `fixed`
    limits the roles of a component (by name) on a physical axis (by number). `cuts` selects the meshes, see
    `planner.search.meshes`.
    """

    slice_: Slice
    work: Workload
    components: Sequence[Component]
    fast: Speeds
    usable_bytes: float
    fixed: Mapping[str, Mapping[int, frozenset[str]]] = field(default_factory=dict)
    cuts: str = TWO


def make_problem(query: Query, slice_: Slice) -> Problem:
    """Return the search problem of one slice.

    Raises `InputError` where the query fixes a component, axis or role that the model or the slice does not have.

    The components, their programs and the speeds follow from the query's model, workload and programs; `usable_bytes`
    is the chip's usable HBM per device.
    """
    parts = components(query.model, query.work, query.programs)
    fast = speeds(slice_.chip, query.work.dtypes)
    fixed = _fixed_roles(query.fixed, parts, slice_)
    usable_bytes = slice_.chip.usable_hbm_bytes_per_device
    return Problem(slice_, query.work, parts, fast, usable_bytes, fixed, query.cuts)


def _fixed_roles(fixed: Fixed, parts: Sequence[Component], slice_: Slice) -> dict[str, dict[int, frozenset[str]]]:
    """Return the fixed roles by component name and physical axis.

    Raises `InputError` on a component, an axis or a role that does not exist.
    """
    names = {axis.name: i for i, axis in enumerate(slice_.axes) if axis.size > 1}
    result: dict[str, dict[int, frozenset[str]]] = {}
    for kind, axes in fixed.items():
        matching = [c for c in parts if kind in (c.name, c.kind)]
        if not matching:
            raise InputError(f"fix {kind}: no such component; this model has {', '.join(c.name for c in parts)}", "fix")
        for component in matching:
            limits = result.setdefault(component.name, {})
            for axis, roles in axes.items():
                names_of = [_roles(role, component, kind, axis) for role in sorted(roles)]
                limits[_axis(axis, names, slice_, kind)] = frozenset().union(*names_of)
    return result


def _axis(axis: str, names: Mapping[str, int], slice_: Slice, kind: str) -> int:
    """Return the number of a physical axis from its name; raise `InputError` where the slice has no such axis."""
    if axis not in names:
        raise InputError(
            f"fix {kind}={axis}: {slice_.name} has no torus axis '{axis}'; it has {', '.join(names)}", "fix"
        )
    return names[axis]


def _roles(role: str, component: Component, kind: str, axis: str) -> frozenset[str]:
    """Return the roles with that name, or whose part of the cache (of the weights, where they have none) is `role`."""
    known = {r.name: r for body in component.bodies for r in body.parts[0].program.roles}
    matching = {name for name, r in known.items() if role in (name, r.cache or r.weights)}
    if role == IDLE:
        matching.add(IDLE)
    if not matching:
        parts = sorted({r.cache or r.weights for r in known.values()})
        raise InputError(
            f"fix {kind}={axis}:{role}: no role '{role}'; expected one of {', '.join(sorted(known))}, or the part "
            f"{', '.join(parts)}",
            "fix",
        )
    return frozenset(matching)


def order_key(choice: Choice) -> tuple[object, ...]:
    """Return the sort key of a choice: step seconds (to 12 digits), then bytes, padded batch and names.

    Ties therefore never depend on the order of the search.
    """
    return (
        float(f"{choice.step_s:.12g}"),
        choice.total_bytes,
        choice.padded_batch,
        choice.mesh,
        choice.residual,
        [(p.body, p.axes) for p in choice.picks],
    )


def layout_key(choice: Choice, problem: Problem) -> object:
    """Return the key under which two choices count as the same layout.

    It holds the bodies and the roles per physical axis, whichever of several equal axes has them. The layout of the
    vocabulary and the residual are left out: of choices that differ only there, the best one is shown.
    """
    main = [p for p, c in zip(choice.picks, problem.components, strict=True) if c.kind != "vocab"]
    lines: dict[int, list[tuple[int, int, tuple[str, ...]]]] = {}
    for i, piece in enumerate(choice.mesh):
        roles = tuple(p.axes[i] for p in main)
        line = lines.setdefault(piece.axis, [])
        if line and line[-1][2] == roles:
            line[-1] = (line[-1][0], line[-1][1] * piece.size, roles)
        else:
            line.append((piece.stride, piece.size, roles))
    axes = problem.slice_.axes
    shape = sorted(((axes[a].size, axes[a].ring, axes[a].core), tuple(line)) for a, line in lines.items())
    return (tuple(p.body for p in main), tuple(shape))


def distinct(choices: list[Choice], problem: Problem, top: int) -> list[Choice]:
    """Return the best choice of each layout, best first, and at most `top` of them.

    Candidates that are the same layout differ only in the residual or the vocabulary's layout, see `layout_key`.
    """
    best: dict[object, Choice] = {}
    for choice in sorted(choices, key=order_key):
        best.setdefault(layout_key(choice, problem), choice)
    return list(best.values())[:top]
