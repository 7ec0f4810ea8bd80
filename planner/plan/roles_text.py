"""Roles as text that does not depend on how mesh axes are named: over how many devices each is played."""

from __future__ import annotations

from planner.plan.plan import LayoutOf, MeshAxes
from strategies.components import IDLE


def roles_over(layout: LayoutOf, mesh: MeshAxes) -> str:
    """A component's program, where its name says more than the component's, and the devices of each role.

    `N+K 8, D+B 2`.
    """
    ways: dict[str, int] = {}
    for name, size in zip(mesh.axis_names, mesh.axis_sizes, strict=True):
        if size > 1:
            role = layout.assignment[name]
            ways[role] = ways.get(role, 1) * size
    played = [f"{'idle' if role == IDLE else role} {n}" for role, n in sorted(ways.items(), key=_order)]
    program = "" if layout.component.startswith(layout.program) else f"{layout.program} "
    return f"{program}{', '.join(played) or 'whole'}"


def _order(of: tuple[str, int]) -> tuple[bool, int, str]:
    role, ways = of
    return role == IDLE, -ways, role
