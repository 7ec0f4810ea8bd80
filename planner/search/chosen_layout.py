"""Turn a choice of the search into a layout: pieces of the mesh with equal roles become one mesh axis."""

from __future__ import annotations

from mesh.pieces import Piece
from planner.search.problem import Choice, Problem
from strategies.layout import Assigned, BoundLayout, lay_out, mesh_of


def from_choice(choice: Choice, problem: Problem) -> BoundLayout:
    """Return the layout of a choice.

    Pieces that cut the same dim of the residual and have the same role in every component become one mesh axis.
    """
    groups: dict[tuple[str, tuple[str, ...]], list[Piece]] = {}
    for i, piece in enumerate(choice.mesh):
        groups.setdefault((choice.residual[i], tuple(p.axes[i] for p in choice.picks)), []).append(piece)
    mesh_axes = sorted(groups.items(), key=lambda item: _by_place(item[1]))
    assigned = [
        Assigned(c, c.body(pick.body), tuple(roles[n] for (_, roles), _ in mesh_axes))
        for n, (c, pick) in enumerate(zip(problem.components, choice.picks, strict=True))
    ]
    pieces = [sorted(p, key=lambda x: (x.axis, -x.stride)) for _, p in mesh_axes]
    return lay_out(mesh_of(problem.slice_, pieces), [cut for (cut, _), _ in mesh_axes], assigned)


def _by_place(pieces: list[Piece]) -> tuple[int, int]:
    """Return the sort key of a mesh axis: the place of its first piece on the torus."""
    first = min(pieces, key=lambda p: (p.axis, -p.stride))
    return first.axis, -first.stride
