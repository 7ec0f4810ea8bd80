"""The layout that a search's choice is: pieces of the mesh with equal roles become one mesh axis."""

from __future__ import annotations

from collections.abc import Sequence

from mesh.pieces import Piece
from planner.plan.layout import NAMES, Assigned, Layout, residual_order
from planner.search.problem import Choice
from strategies.components import Component


def from_choice(choice: Choice, components: Sequence[Component]) -> Layout:
    """The layout of a choice; pieces that play the same roles everywhere become one mesh axis."""
    bodies = [c.body(p.body) for c, p in zip(components, choice.picks, strict=True)]
    groups: dict[tuple[str, tuple[str, ...]], list[Piece]] = {}
    for i, piece in enumerate(choice.mesh):
        groups.setdefault((choice.residual[i], tuple(p.axes[i] for p in choice.picks)), []).append(piece)
    found = sorted(groups.items(), key=lambda item: _by_place(item[1]))
    names = tuple(NAMES[: len(found)])
    assigned = tuple(
        Assigned(c, body, tuple(roles[n] for (_, roles), _ in found))
        for n, (c, body) in enumerate(zip(components, bodies, strict=True))
    )
    residual = tuple(cut for (cut, _), _ in found)
    pieces = tuple(tuple(sorted(p, key=lambda x: (x.axis, -x.stride))) for _, p in found)
    return Layout(names, pieces, residual, assigned, residual_order(names, residual, assigned))


def _by_place(pieces: list[Piece]) -> tuple[int, int]:
    first = min(pieces, key=lambda p: (p.axis, -p.stride))
    return first.axis, -first.stride
