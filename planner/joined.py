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
from functools import cached_property, lru_cache

import numpy as np
from numpy.typing import NDArray

from planner.residuals import CODES, States
from strategies.assignments import fit_part
from strategies.components import Component, Part, entry_parts, exit_parts
from strategies.cost import Speeds, Totals
from strategies.glue import GIVEN
from strategies.plays import Plays
from strategies.rates import Flags, Floats, Ints, Rates
from strategies.shared import price_shared
from strategies.tables import Table, scope_of

ROWS_AT_ONCE, ROWS_CACHED, CELLS_AT_ONCE = 1 << 20, 1 << 15, 1 << 22
_READ = {code: i for i, code in enumerate(CODES)}
_GIVE = {code: i for i, code in enumerate(GIVEN)}


@dataclass
class Joined:
    """Rows of every body of a component, as flat arrays: `face` numbers the faces, `columns` are of the tables."""

    component: Component
    tables: Sequence[Table]
    table_of: Ints
    row_of: Ints
    early_s: Floats
    late_s: Floats
    stored_bytes: Floats
    face: Ints
    reads: Ints
    gives: Ints
    columns: Ints
    fronts: dict[tuple[int, int], Ints] = field(default_factory=dict)

    @cached_property
    def possible(self) -> NDArray[np.bool_]:
        """[rows, columns]: whether an assignment runs a batch."""
        return np.isfinite(self.late_s)

    @cached_property
    def peak_bytes(self) -> Floats:
        """[rows, columns]: the most bytes of activations that live at once; found when first asked for."""
        found = np.empty(self.late_s.shape)
        for number, table in enumerate(self.tables):
            mine = np.flatnonzero(self.table_of == number)
            found[mine] = table.peak_bytes(self.row_of[mine], self.columns)
        return found

    @cached_property
    def least(self) -> tuple[Floats, Floats]:
        """[faces, columns]: the least early and late seconds of one layer, without glue."""
        order = np.argsort(self.face, kind="stable")
        starts = np.searchsorted(self.face[order], np.arange(len(self.reads)))
        early, late = (np.minimum.reduceat(s[order], starts, axis=0) for s in (self.early_s, self.late_s))
        return early, late

    @cached_property
    def least_late_s(self) -> Floats:
        """[columns]: the least late seconds of one layer."""
        return np.asarray(self.late_s.min(axis=0))

    def take(self, rows: Ints, columns: Ints) -> Joined:
        """These rows and columns only."""
        faces, face = np.unique(self.face[rows], return_inverse=True)
        taken = Joined(
            self.component,
            self.tables,
            self.table_of[rows],
            self.row_of[rows],
            self.early_s[rows][:, columns],
            self.late_s[rows][:, columns],
            self.stored_bytes[rows][:, columns],
            face.reshape(-1),
            self.reads[faces],
            self.gives[faces],
            self.columns[columns],
        )
        if "peak_bytes" in vars(self):
            taken.peak_bytes = self.peak_bytes[rows][:, columns]
        return taken


@dataclass(frozen=True)
class GlueOf:
    """A glue program: seconds of each end with each residual [ends, residuals, columns], and the end of each face."""

    early_s: Floats
    late_s: Floats
    end: Ints


@dataclass
class Glue:
    """Seconds of entry and exit of each face with each residual, without and with hops and launches; inf: none."""

    programs: tuple[GlueOf, ...]

    def at(self, residuals: slice) -> tuple[Floats, Floats]:
        """Early and late seconds [faces, residuals, columns] with these residuals."""
        early = sum(one.early_s[:, residuals][one.end] for one in self.programs)
        return np.asarray(early), np.asarray(sum(one.late_s[:, residuals][one.end] for one in self.programs))

    def least(self, joined: Joined) -> Floats:
        """[residuals, columns]: the least seconds of one layer, body and glue."""
        early, late = joined.least
        step, found = max(1, CELLS_AT_ONCE // early.size), []
        for start in range(0, self.programs[0].late_s.shape[1], step):
            early_s, late_s = self.at(slice(start, start + step))
            found.append(np.maximum(early[:, None] + early_s, late[:, None] + late_s).min(axis=0))
        return np.concatenate(found)

    def take(self, residuals: Ints) -> Glue:
        """With these residuals only."""
        programs = (GlueOf(one.early_s[:, residuals], one.late_s[:, residuals], one.end) for one in self.programs)
        return Glue(tuple(programs))

    def of(self, residual: int, column: int) -> tuple[Floats, Floats]:
        """Early and late seconds [faces] with one residual, at one batch."""
        early = sum(one.early_s[:, residual, column][one.end] for one in self.programs)
        return np.asarray(early), np.asarray(sum(one.late_s[:, residual, column][one.end] for one in self.programs))


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
        inverse,
        unique[:, :axes],
        unique[:, axes:],
        np.arange(tables[0].ok.shape[1]),
    )


def _less(seconds: Floats, hidden: Floats, possible: NDArray[np.bool_]) -> Floats:
    return np.asarray(np.subtract(seconds, hidden, out=np.full(possible.shape, np.inf), where=possible))


def _unique_rows(face: Ints) -> tuple[Ints, Ints]:
    codes = face @ (5 ** np.arange(face.shape[1], dtype=np.int64))
    _, first, inverse = np.unique(codes, return_index=True, return_inverse=True)
    return face[first], inverse.reshape(-1)


def price_glue(
    every: Sequence[Joined], states: States, phase: str, rates: Rates, fast: Speeds, batches: Ints
) -> tuple[list[Glue], int]:
    """Entry and exit of every face of each component with every residual; inf where a dim does not divide.

    Components share most of their glue: a program is priced once, for all the ends that any of them has. Also returns
    how many were priced.
    """
    wanted: dict[tuple[int, str], tuple[Part, list[tuple[int, Ints]]]] = {}
    for number, joined in enumerate(every):
        for side, ends in (("entry", joined.reads), ("exit", joined.gives)):
            for part in (entry_parts if side == "entry" else exit_parts)(joined.component, phase):
                wanted.setdefault((id(part), side), (part, []))[1].append((number, ends))
    found: list[list[GlueOf]] = [[] for _ in every]
    evaluations = 0
    for (_, side), (part, users) in wanted.items():
        unique, inverse = _unique_rows(np.concatenate([ends for _, ends in users]))
        step = max(1, ROWS_AT_ONCE // len(unique))
        chunks = [states.cuts[start : start + step] for start in range(0, len(states.cuts), step)]
        priced = [_glue(part, every[0].component, unique, cuts, side, rates, fast, batches) for cuts in chunks]
        early, late = (np.concatenate(one, axis=1) for one in zip(*priced, strict=True))
        evaluations += late.size
        starts = np.cumsum([0, *(len(ends) for _, ends in users)])
        for (number, _), start, stop in zip(users, starts[:-1], starts[1:], strict=True):
            found[number].append(GlueOf(early, late, inverse[start:stop]))
    return [Glue(tuple(programs)) for programs in found], evaluations


def _glue(
    part: Part, component: Component, ends: Ints, cuts: Ints, side: str, rates: Rates, fast: Speeds, batches: Ints
) -> tuple[Floats, Floats]:
    """[ends, residuals, columns]: early and late seconds of a glue program; of the component it needs D and T only."""
    plays_of = _cached_plays if len(ends) * len(cuts) <= ROWS_CACHED else _cached_plays.__wrapped__
    plays = plays_of(part, (ends.tobytes(), ends.shape), (cuts.tobytes(), cuts.shape), side)
    found, total = fit_part(part, component, rates, plays.masks, batches), Totals()
    price_shared(scope_of(part, found.sizes, plays.masks, rates, fast), part.needs, plays, fast, total)
    late = np.where(found.ok, np.broadcast_to(total.step_s, found.ok.shape), np.inf)
    early = _less(late, np.broadcast_to(total.wait_s, late.shape), np.isfinite(late))
    shape = (len(ends), len(cuts), -1)
    return early.reshape(shape), late.reshape(shape)


@lru_cache(maxsize=128)
def _cached_plays(
    part: Part, ends: tuple[bytes, tuple[int, ...]], cuts: tuple[bytes, tuple[int, ...]], side: str
) -> Plays:
    """The `glue_plays` of arrays as bytes and shape: meshes of equally many axes ask for the same ones."""
    first, second = (np.frombuffer(data, dtype=np.int64).reshape(shape) for data, shape in (ends, cuts))
    return glue_plays(part, first, second, side)


def glue_plays(part: Part, ends: Ints, cuts: Ints, side: str) -> Plays:
    """What each mesh axis plays for every end of a body with every residual, [ends * residuals]: a pair of codes."""
    one_position = "T" not in part.program.input.names and side == "entry"
    residual = np.where(cuts == _READ["T"], _READ["-"], cuts) if one_position else cuts
    kinds = (len(GIVEN) * ends[:, None, :] + residual[None]).astype(np.int8)
    members = {role.axis: _pairs_of(part, role.name, side).reshape(-1) for role in part.program.roles}
    return Plays(kinds.reshape(-1, cuts.shape[1]), members)


def _pairs_of(part: Part, name: str, side: str) -> Flags:
    """[the body's end, the residual]: whether that pair of codes plays the role of that name."""
    found = np.zeros((len(GIVEN), len(GIVEN)), dtype=np.bool_)
    if part.program.name == "last":
        found[:, _READ[name[0]]] = True
    elif side == "entry":
        found[_READ[name[1]], _READ[name[0]]] = True
    else:
        found[_GIVE[name[0]], _READ[name[1]]] = True
    return found


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
    plays = glue_plays(
        part,
        np.array([[to_code[e] for e in ends]], dtype=np.int64).reshape(1, -1),
        np.array([[_READ[r] for r in residual]], dtype=np.int64).reshape(1, -1),
        side,
    )
    masks = plays.masks.items()
    return {axis: tuple(n for i, n in enumerate(names) if int(mask[0, 0]) >> i & 1) for axis, mask in masks}
