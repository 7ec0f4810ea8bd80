"""The search: every layout of one slice, priced as tables, joined exactly, and proved best by exhaustion.

tables    every assignment of roles to mesh axes, per component and batch        strategies.tables
glue      what each face of a component pays to meet each residual               planner.joined
join      the sum over components is least for some state of the residual; within a state components are
          independent but for memory. States are taken in order of their unconstrained sum, until it exceeds
          what was found: a branch and bound whose bound is exact where memory does not bind.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import prod

import numpy as np

from mesh.slices import Slice
from planner.joined import Joined, join, prefix_masks, price_glue
from planner.meshes import Mesh, meshes, symmetries
from planner.residuals import CODES, States, states
from strategies.components import IDLE, Body, Component
from strategies.cost import Speeds
from strategies.rates import Floats, Ints, Rates, tabulate_rates
from strategies.tables import price_body
from strategies.workload import Workload


@dataclass(frozen=True)
class Pick:
    """What one component does: the body's name and the program axis that each piece of the mesh plays."""

    component: str
    body: str
    axes: tuple[str, ...]


@dataclass(frozen=True)
class Choice:
    """One layout as the search sees it: mesh, residual, a pick per component, and what the tables say it costs."""

    mesh: Mesh
    residual: tuple[str, ...]
    picks: tuple[Pick, ...]
    batch: int
    padded_batch: int
    step_s: float
    total_bytes: float


@dataclass
class Found:
    """What a search of one slice gives: per batch the best choices, and what was ruled out."""

    choices: dict[int, list[Choice]] = field(default_factory=dict)
    rejected: dict[tuple[str, str], tuple[int, dict[str, float]]] = field(default_factory=dict)
    least_bytes: dict[int, float] = field(default_factory=dict)
    candidates: int = 0
    evaluations: int = 0

    def reject(self, component: str, reason: str, count: int, example: dict[str, float]) -> None:
        """Count assignments that a reason rules out; keep the first example."""
        before, first = self.rejected.get((component, reason), (0, example))
        self.rejected[component, reason] = (before + count, first)


_FEW = 50  # up to so many options are joined without being pruned
OVER_MEMORY = "needs more than the usable HBM, even with the least of everything else"


@dataclass(frozen=True)
class Problem:
    """One slice, its workload, and the components to lay out; `fixed` limits roles per component and axis."""

    slice_: Slice
    work: Workload
    components: Sequence[Component]
    fast: Speeds
    usable_bytes: float
    fixed: Mapping[str, Mapping[int, frozenset[str]]] = field(default_factory=dict)
    ici: float = 1.0


def columns(batches: Sequence[int], devices: int) -> list[tuple[int, int]]:
    """(batch, padded batch): each batch, and its multiples of what the devices divide into, at most 25% above."""
    found = []
    for batch in batches:
        padded = {-(-batch // ways) * ways for ways in range(1, devices + 1) if devices % ways == 0}
        found += [(batch, p) for p in sorted(padded) if p <= 1.25 * batch]
    return found


def search(problem: Problem, top: int) -> Found:
    """The best layouts of every batch on one slice; `top` of the best batch's, one of the others'."""
    found = Found()
    for mesh in meshes(problem.slice_):
        _search_mesh(problem, mesh, top, found)
    for batch, choices in found.choices.items():
        found.choices[batch] = _distinct(choices, problem, top)
    return found


def _search_mesh(problem: Problem, mesh: Mesh, top: int, found: Found) -> None:
    rates = tabulate_rates(problem.slice_, [[piece] for piece in mesh])
    rates = rates if problem.ici == 1.0 else rates.scaled(problem.ici)
    pairs = columns(problem.work.batches, problem.slice_.devices)
    batches = np.array([[padded for _, padded in pairs]], dtype=np.int64)
    joined = _tables(problem, mesh, rates, batches, found)
    if joined is None:
        return
    state = states(len(mesh), problem.work.phase)
    board = _Board(problem, mesh, joined, state, rates, batches, pairs)
    found.candidates += board.candidates()
    for column, (batch, _) in enumerate(pairs):
        board.best(column, top, found.choices.setdefault(batch, []))
        least = board.least_bytes(column)
        found.least_bytes[batch] = min(least, found.least_bytes.get(batch, np.inf))
        board.over_memory(column, found)


def _tables(problem: Problem, mesh: Mesh, rates: Rates, batches: Ints, found: Found) -> list[Joined] | None:
    result = []
    for component in problem.components:
        tables = []
        for body in component.bodies:
            allowed = [_allowed_axes(problem, component, body, piece.axis) for piece in mesh]
            table = price_body(component, body, rates, problem.fast, batches, allowed)
            tables.append(table)
            found.evaluations += table.evaluations
            for rejection in table.rejected:
                found.reject(*rejection)
        joined = join(component, tables)
        if joined is None:
            return None
        result.append(joined)
    return result


def _allowed_axes(problem: Problem, component: Component, body: Body, axis: int) -> frozenset[str]:
    """The program axes that a piece of this physical axis may play: all, or those of the roles it is fixed to."""
    fixed = problem.fixed.get(component.name, {}).get(axis)
    return frozenset(a for a in (*body.axes, IDLE) if fixed is None or body.role_name(a) in fixed)


class _Board:
    """All components of one mesh side by side."""

    def __init__(
        self,
        problem: Problem,
        mesh: Mesh,
        joined: Sequence[Joined],
        state: States,
        rates: Rates,
        batches: Ints,
        pairs: Sequence[tuple[int, int]],
    ) -> None:
        self.problem, self.mesh, self.joined, self.state, self.pairs = problem, mesh, joined, state, pairs
        phase = problem.work.phase
        self.glue = [price_glue(j, state, phase, rates, problem.fast, batches) for j in joined]
        self.masks = [prefix_masks(j, state.cuts) for j in joined]
        self.residual_bytes = _residual_bytes(problem, state, rates, batches)
        parts = [self._component_best(i) * j.component.times for i, j in enumerate(joined)]
        self.total: Floats = np.sum(parts, axis=0)

    def candidates(self) -> int:
        """How many layouts the tables cover: every combination of possible assignments, batches and residuals."""
        per_column = [
            prod(int((np.isfinite(j.time_s[:, c])).sum()) for j in self.joined) for c in range(len(self.pairs))
        ]
        return sum(per_column) * len(self.state.cuts)

    def _component_best(self, i: int) -> Floats:
        """[states, columns]: the least seconds of one layer of component i in each state."""
        joined, parts = self.joined[i], []
        for residual in range(len(self.state.cuts)):
            seconds = joined.best + self.glue[i][:, residual]
            prefixes = self.state.prefixes[self.state.residual == residual]
            allowed = self._allowed(i, residual, prefixes)
            parts.append(_masked_min(seconds, allowed))
        return np.concatenate(parts)

    def _allowed(self, i: int, residual: int, prefixes: np.ndarray) -> np.ndarray:
        """[states of the residual, faces]: whether a face's kept axes are prefixes."""
        return np.asarray(np.logical_and.reduce([prefixes[:, mask[:, residual]] for mask in self.masks[i]]))

    def least_bytes(self, column: int) -> float:
        """The least memory of any layout of this batch."""
        least = [np.where(np.isfinite(j.time_s[:, column]), j.stored_bytes[:, column], np.inf) for j in self.joined]
        peaks = [np.where(np.isfinite(j.time_s[:, column]), j.peak_bytes[:, column], np.inf).min() for j in self.joined]
        return float(sum(part.min() for part in least) + max(peaks) + self.residual_bytes[:, column].min())

    def over_memory(self, column: int, found: Found) -> None:
        """Count assignments that need more than the usable HBM even with the least of everything else."""
        usable = self.problem.usable_bytes
        possible = [np.isfinite(j.time_s[:, column]) for j in self.joined]
        least = [
            float(np.where(p, j.stored_bytes[:, column], np.inf).min())
            for j, p in zip(self.joined, possible, strict=True)
        ]
        for joined, ok, own in zip(self.joined, possible, least, strict=True):
            needs = sum(least) - own + joined.stored_bytes[:, column]
            over = ok & (needs > usable)
            if over.any():
                example = {"bytes": float(needs[over].min()), "usable": usable, "batch": float(self.pairs[column][0])}
                found.reject(joined.component.name, OVER_MEMORY, int(over.sum()), example)

    def best(self, column: int, top: int, into: list[Choice]) -> None:
        """Add the best `top` distinct choices of a column to `into`."""
        if self.least_bytes(column) > self.problem.usable_bytes:
            return
        keep: dict[object, Choice] = {_key(c, self.problem): c for c in into}
        totals = self.total[:, column]
        for state in np.argsort(totals, kind="stable"):
            worst = _worst(keep, top)
            if not np.isfinite(totals[state]) or totals[state] > worst:
                break
            for choice in self._state(int(state), column, top, worst):
                key = _key(choice, self.problem)
                if key not in keep or _order(choice) < _order(keep[key]):
                    keep[key] = choice
        into[:] = sorted(keep.values(), key=_order)[:top]

    def _state(self, state: int, column: int, top: int, worst: float) -> list[Choice]:
        """The best layouts of a state that take no longer than `worst` and fit."""
        residual = int(self.state.residual[state])
        usable = self.problem.usable_bytes - self.residual_bytes[residual, column]
        options = [self._options(i, state, residual, column, top) for i in range(len(self.joined))]
        if any(not len(o.row) for o in options):
            return []
        joint = _join_all(options, worst, usable, top * self._room())
        fits = np.flatnonzero(joint.stored + joint.peak <= usable)
        chosen = fits[np.argsort(joint.seconds[fits], kind="stable")][: top * self._room()]
        total = joint.stored + joint.peak + self.residual_bytes[residual, column]
        return [
            self._choice(state, column, joint.row[c].tolist(), float(joint.seconds[c]), float(total[c])) for c in chosen
        ]

    def _room(self) -> int:
        return 2 * symmetries(self.problem.slice_)

    def _options(self, i: int, state: int, residual: int, column: int, top: int) -> _Options:
        """Rows of component i worth joining in a state."""
        joined = self.joined[i]
        rows = self._front_rows(i, column, 1 if joined.component.kind == "vocab" or top == 1 else top * self._room())
        face = joined.face[rows]
        allowed = self._allowed(i, residual, self.state.prefixes[state : state + 1])[0]
        glue = self.glue[i][face, residual, column]
        rows, glue = rows[allowed[face] & np.isfinite(glue)], glue[allowed[face] & np.isfinite(glue)]
        seconds = joined.component.times * (joined.time_s[rows, column] + glue)
        return _Options(rows, seconds, joined.stored_bytes[rows, column], joined.peak_bytes[rows, column])

    def _front_rows(self, i: int, column: int, top: int) -> Ints:
        """Of every face, the rows that fewer than `top` others of the face beat."""
        joined = self.joined[i]
        if (column, top) not in joined.fronts:
            rows = np.flatnonzero(
                np.isfinite(joined.time_s[:, column]) & (joined.stored_bytes[:, column] <= self.problem.usable_bytes)
            )
            options = _Options(
                rows, joined.time_s[rows, column], joined.stored_bytes[rows, column], joined.peak_bytes[rows, column]
            )
            joined.fronts[column, top] = options.front(top, joined.face[rows]).row
        return joined.fronts[column, top]

    def _choice(self, state: int, column: int, rows: Sequence[int], step_s: float, total_bytes: float) -> Choice:
        picks = []
        for joined, row in zip(self.joined, rows, strict=True):
            table = joined.tables[joined.table_of[row]]
            axes = tuple(table.choices[c] for c in table.rows[joined.row_of[row]])
            picks.append(Pick(joined.component.name, table.body.name, axes))
        residual = tuple(CODES[c] for c in self.state.cuts[self.state.residual[state]])
        batch, padded = self.pairs[column]
        return Choice(self.mesh, residual, tuple(picks), batch, padded, step_s, total_bytes)


def _masked_min(seconds: Floats, allowed: np.ndarray) -> Floats:
    """[states, columns]: the least of the allowed faces' seconds."""
    return np.asarray(np.where(allowed[:, :, None], seconds[None], np.inf).min(axis=1))


def _residual_bytes(problem: Problem, state: States, rates: Rates, batches: Ints) -> Floats:
    """[residuals, columns]: the residual stream and the update that is added to it."""
    bits = 1 << np.arange(state.cuts.shape[1])
    ways = rates.n[((state.cuts != CODES.index("-")) * bits).sum(axis=1)][:, None]
    tokens = batches * (problem.work.context if problem.work.phase == "prefill" else 1)
    D = problem.components[0].dims["D"]
    return np.asarray(2 * tokens * D * problem.fast.widths["activation"] / ways)


@dataclass(frozen=True)
class _Options:
    """Rows of one component in one state: seconds of all its layers, stored and peak bytes."""

    row: Ints
    seconds: Floats
    stored: Floats
    peak: Floats

    def take(self, which: Ints) -> _Options:
        return _Options(self.row[which], self.seconds[which], self.stored[which], self.peak[which])

    def within(self, limit_s: float) -> _Options:
        """Those that take no longer than the limit."""
        return self.take(np.flatnonzero(self.seconds <= limit_s))

    def front(self, top: int, face: Ints | None = None, safe: float = -np.inf) -> _Options:
        """Those that fewer than `top` others (of their face) beat in seconds, stored and peak bytes alike.

        Rows that store no more than `safe` bytes fit whatever joins them, so their memory counts for nothing.
        """
        face = np.zeros(len(self.row), dtype=np.int64) if face is None else face
        stored, peak = (np.where(self.stored <= safe, -np.inf, x) for x in (self.stored, self.peak))
        ties = self.row if self.row.ndim == 1 else np.arange(len(self.row))
        order = np.lexsort((ties, self.peak, self.stored, self.seconds, face))
        kept: list[int] = []
        last, near = -1, list[tuple[float, float]]()
        for n, f, s, p in zip(
            order.tolist(), face[order].tolist(), stored[order].tolist(), peak[order].tolist(), strict=True
        ):
            if f != last:
                last, near = f, []
            if _fewer_beat(near, s, p, top):
                near.append((s, p))
                kept.append(n)
        return self.take(np.array(kept, dtype=np.int64))


def _fewer_beat(kept: list[tuple[float, float]], stored: float, peak: float, top: int) -> bool:
    beaten = 0
    for s, p in kept:
        if s <= stored and p <= peak:
            beaten += 1
            if beaten == top:
                return False
    return True


def _join_all(options: Sequence[_Options], worst: float, usable: float, top: int) -> _Options:
    """Combinations of one row per component (`row` [combinations, components]) that may be among the best `top`.

    One component joins at a time; what cannot end within `worst`, or is beaten in everything by `top` others, goes.
    """
    joint = _Options(np.zeros((1, 0), dtype=np.int64), np.zeros(1), np.zeros(1), np.zeros(1))
    slack = worst - sum(float(o.seconds.min()) for o in options)
    options = [o.within(float(o.seconds.min()) + slack) for o in options]
    most = [float(o.stored.max()) for o in options]
    peak = max(float(o.peak.max()) for o in options)
    for number, o in enumerate(options):
        spare = usable - peak - sum(most)
        o = o.front(top, safe=spare + most[number]) if len(o.row) > _FEW else o
        seconds = joint.seconds[:, None] + o.seconds[None]
        first, second = np.nonzero(seconds <= seconds.min() + slack)
        joint = _Options(
            np.column_stack([joint.row[first], o.row[second]]),
            seconds[first, second],
            joint.stored[first] + o.stored[second],
            np.maximum(joint.peak[first], o.peak[second]),
        )
        joint = joint.front(top, safe=spare + sum(most[: number + 1])) if len(joint.row) > _FEW else joint
    return joint


def _worst(keep: Mapping[object, Choice], top: int) -> float:
    """The seconds that a further choice must not exceed (ties count) to be among the best `top`."""
    seconds = sorted(c.step_s for c in keep.values())
    return seconds[top - 1] * (1 + 1e-12) if len(seconds) >= top else np.inf


def _order(choice: Choice) -> tuple[object, ...]:
    """Ties break on memory, then padding, then names: never on the order of the search."""
    return (
        round(choice.step_s, 15),
        choice.total_bytes,
        choice.padded_batch,
        choice.mesh,
        choice.residual,
        [(p.body, p.axes) for p in choice.picks],
    )


def _key(choice: Choice, problem: Problem) -> object:
    """What makes two choices the same layout: bodies and roles per physical axis, whichever equal axis it is.

    The vocabulary's layout and the residual are details of a layout: of those that differ only there, the best
    is shown.
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


def _distinct(choices: list[Choice], problem: Problem, top: int) -> list[Choice]:
    best: dict[object, Choice] = {}
    for choice in sorted(choices, key=_order):
        best.setdefault(_key(choice, problem), choice)
    return list(best.values())[:top]
