"""One component on one mesh: its priced assignments, grouped by how they meet the residual stream.

The glue's price depends only on what each mesh axis cuts in the body's input and does to its output (the
*face*). So assignments with one face share their glue, and only the best of each face is of interest.

Hops and launches hide while weights are read ahead, those of the glue like those of the body: with T, w, s a body's
seconds, waiting and spare seconds, and G, v those of its glue, both together take

    T + G - min(w + v, s)  =  max((T - w) + (G - v), (T - s) + G)

two sums of the body's and the glue's own terms, `early_s` and `late_s`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from planner.residuals import CODES, States
from strategies.components import Component, Part, entry_parts, exit_parts
from strategies.cost import Speeds, Totals, price_steps
from strategies.glue import GIVEN
from strategies.rates import Floats, Ints, Rates
from strategies.tables import Table, fit_part, scope_of

_READ = {code: i for i, code in enumerate(CODES)}
_GIVE = {code: i for i, code in enumerate(GIVEN)}


@dataclass
class Joined:
    """Rows of every body of a component, as flat arrays; `face` numbers the faces."""

    component: Component
    tables: Sequence[Table]
    table_of: Ints
    row_of: Ints
    early_s: Floats
    late_s: Floats
    stored_bytes: Floats
    peak_bytes: Floats
    face: Ints
    reads: Ints
    gives: Ints
    fronts: dict[tuple[int, int], Ints] = field(default_factory=dict)

    @cached_property
    def possible(self) -> NDArray[np.bool_]:
        """[rows, columns]: whether an assignment runs a batch."""
        return np.isfinite(self.late_s)

    @cached_property
    def least(self) -> tuple[Floats, Floats]:
        """[faces, columns]: the least early and late seconds of one layer, without glue."""
        order = np.argsort(self.face, kind="stable")
        starts = np.searchsorted(self.face[order], np.arange(len(self.reads)))
        early, late = (np.minimum.reduceat(s[order], starts, axis=0) for s in (self.early_s, self.late_s))
        return early, late


@dataclass(frozen=True)
class Glue:
    """[faces, residuals, columns]: seconds of entry and exit, without and with hops and launches; inf: impossible."""

    early_s: Floats
    late_s: Floats


def join(component: Component, tables: Sequence[Table]) -> Joined | None:
    """Flatten the tables of a component's bodies; None where no assignment is possible."""
    faces, rows, numbers = [], [], []
    for number, table in enumerate(tables):
        reads = np.array([_READ[table.body.reads(a)] for a in table.choices])[table.rows]
        gives = np.array([_GIVE[table.body.gives(a)] for a in table.choices])[table.rows]
        faces.append(np.concatenate([reads, gives], axis=1))
        rows.append(np.arange(len(table.rows)))
        numbers.append(np.full(len(table.rows), number))
    face = np.concatenate(faces)
    if not len(face):
        return None
    unique, inverse = _unique_rows(face)
    axes = face.shape[1] // 2
    runs = [t.ok & np.isfinite(t.step_s) for t in tables]
    waits, spares = ([getattr(t, name) for t in tables] for name in ("wait_s", "spare_s"))
    return Joined(
        component,
        tables,
        np.concatenate(numbers),
        np.concatenate(rows),
        np.concatenate([_less(t.step_s, w, ok) for t, w, ok in zip(tables, waits, runs, strict=True)]),
        np.concatenate([_less(t.step_s, s, ok) for t, s, ok in zip(tables, spares, runs, strict=True)]),
        np.concatenate([t.stored_bytes for t in tables]),
        np.concatenate([t.peak_bytes for t in tables]),
        inverse,
        unique[:, :axes],
        unique[:, axes:],
    )


def _less(seconds: Floats, hidden: Floats, possible: NDArray[np.bool_]) -> Floats:
    return np.asarray(np.subtract(seconds, hidden, out=np.full(possible.shape, np.inf), where=possible))


def _unique_rows(face: Ints) -> tuple[Ints, Ints]:
    codes = face @ (5 ** np.arange(face.shape[1], dtype=np.int64))
    _, first, inverse = np.unique(codes, return_index=True, return_inverse=True)
    return face[first], inverse.reshape(-1)


def price_glue(joined: Joined, states: States, phase: str, rates: Rates, fast: Speeds, batches: Ints) -> Glue:
    """Entry and exit of every face with every residual; inf where a dim does not divide."""
    component = joined.component
    entry = [
        _glue(p, component, joined.reads, states.cuts, "entry", rates, fast, batches)
        for p in entry_parts(component, phase)
    ]
    leave = [
        _glue(p, component, joined.gives, states.cuts, "exit", rates, fast, batches)
        for p in exit_parts(component, phase)
    ]
    early, late = zip(*entry, *leave, strict=True)
    return Glue(np.asarray(sum(early)), np.asarray(sum(late)))


def _glue(
    part: Part, component: Component, ends: Ints, cuts: Ints, side: str, rates: Rates, fast: Speeds, batches: Ints
) -> tuple[Floats, Floats]:
    unique, inverse = _unique_rows(ends)
    masks = glue_masks(part, unique, cuts, side)
    found = fit_part(part, component, rates, masks, batches)
    total = Totals()
    for cost in price_steps(scope_of(part, found.sizes, masks, rates, fast), fast):
        total.add(cost)
    late = np.where(found.ok, np.broadcast_to(total.step_s, found.ok.shape), np.inf)
    early = _less(late, np.broadcast_to(total.wait_s, late.shape), np.isfinite(late))
    shape = (len(unique), len(cuts), -1)
    return early.reshape(shape)[inverse], late.reshape(shape)[inverse]


def glue_masks(part: Part, ends: Ints, cuts: Ints, side: str) -> dict[str, Ints]:
    """The pair that each mesh axis plays, for every end of a body with every residual: [ends * residuals, 1]."""
    axes = cuts.shape[1]
    names = {role.axis: role.name for role in part.program.roles}
    one_position = "T" not in part.program.input.names and side == "entry"
    residual = np.where(cuts == _READ["T"], _READ["-"], cuts) if one_position else cuts
    grid_ends = np.repeat(ends, len(cuts), axis=0)
    grid_cuts = np.tile(residual, (len(ends), 1))
    bits = 1 << np.arange(axes, dtype=np.int64)
    masks = {}
    for axis, name in names.items():
        plays = _plays(part, name, grid_ends, grid_cuts, side)
        masks[axis] = (plays * bits).sum(axis=1, dtype=np.int64)[:, None]
    return masks


def _plays(part: Part, name: str, ends: Ints, cuts: Ints, side: str) -> NDArray[np.bool_]:
    if part.program.name == "last":
        return np.asarray(cuts == _READ[name[0]])
    if side == "entry":
        return np.asarray((cuts == _READ[name[0]]) & (ends == _READ[name[1]]))
    return np.asarray((ends == _GIVE[name[0]]) & (cuts == _READ[name[1]]))


def prefix_masks(joined: Joined, cuts: Ints) -> tuple[Ints, Ints, Ints]:
    """[faces, residuals]: sets of axes that must be prefixes of the residual's order.

    They are the axes kept on entry, those kept on exit, and those kept or sliced on exit.
    """
    bits = 1 << np.arange(cuts.shape[1], dtype=np.int64)
    cut = (cuts != _READ["-"])[None]
    reads, gives = joined.reads[:, None, :], joined.gives[:, None, :]
    codes = np.array([_READ.get(code, -1) for code in GIVEN])
    return (
        (((reads == cuts[None]) & cut) * bits).sum(-1),
        (((codes[gives] == cuts[None]) & cut) * bits).sum(-1),
        (((gives != _GIVE["U"]) & cut) * bits).sum(-1),
    )


def playing(
    part: Part, ends: Sequence[str], residual: Sequence[str], names: Sequence[str], side: str
) -> Mapping[str, tuple[str, ...]]:
    """Which named mesh axes play each pair of the glue, for one layout."""
    to_code = _READ if side == "entry" else _GIVE
    masks = glue_masks(
        part,
        np.array([[to_code[e] for e in ends]]).reshape(1, -1),
        np.array([[_READ[r] for r in residual]]).reshape(1, -1),
        side,
    )
    return {axis: tuple(n for i, n in enumerate(names) if int(mask[0, 0]) >> i & 1) for axis, mask in masks.items()}
