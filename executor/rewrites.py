"""Promised against found: what the compiler rewrote, and what differs.

Collectives are compared as elements per (kind, mesh axes, size), times their runs. What remains on both sides is
explained by the rewrites that compilers are known to do; the rest are differences, and each is a failure.

    Widened         more bytes per element: CPU computes bf16 as float32       Narrowed   fewer
    Merged          several promised ones run as one with several operands     Regrouped  other sizes, the same sum
    AsAllReduce     a ReduceScatter (then sliced), or an AllGather of zero-padded shards, or an AllToAll
    AsAllGather     an AllToAll that gathers all and keeps a slice
    AsPermutes      an AllToAll as shifts
    AsTwo           an AllReduce as ReduceScatter and AllGather
    ByAxes          one over two sets of axes as one over each
    Padded          a ReduceScatter that moves padding, and permutes what lies across its shards' borders
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, combinations, product
from math import isclose, prod

from executor.hlo import Collective
from executor.promises import Promise

Sizes = Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Rewrite:
    """Promised collectives that run as others; `extra_bytes`: what each device sends beyond what was priced."""

    kind: str
    promised: tuple[Promise, ...]
    found: tuple[Collective, ...]
    extra_bytes: float


@dataclass(frozen=True, slots=True)
class Difference:
    """`missing`: promised and not found; `extra`: the reverse; `changed`: both, for one kind and axes.

    Runs are those that nothing explains: 1 of a promise of 80, say. None: the found ones' number is unknown.
    """

    kind: str
    promised: tuple[Promise, ...]
    found: tuple[Collective, ...]
    extra_bytes: float
    promised_runs: int = 0
    found_runs: int | None = 0


@dataclass(frozen=True, slots=True)
class Comparison:
    """The outcome for one program; it holds unless there is a difference."""

    rewrites: tuple[Rewrite, ...]
    differences: tuple[Difference, ...]

    @property
    def holds(self) -> bool:
        """Whether every collective was promised, or is a rewrite of what was."""
        return not self.differences


@dataclass(slots=True)
class _Lot:
    """Runs of one promise, or of one operand of a collective, that are not explained yet."""

    kind: str
    axes: tuple[str, ...]
    elements: float
    width: float
    runs: int
    promise: Promise | None = None
    collective: Collective | None = None


@dataclass(slots=True)
class _State:
    sizes: Sizes
    want: list[_Lot]
    got: list[_Lot]
    rewrites: list[Rewrite] = field(default_factory=list)
    pairs: list[tuple[_Lot, _Lot]] = field(default_factory=list)

    def ways(self, axes: tuple[str, ...]) -> int:
        return prod(self.sizes[axis] for axis in axes)

    def sent(self, lot: _Lot) -> float:
        """Bytes that each device sends in one run."""
        n, whole = self.ways(lot.axes), lot.elements * lot.width
        factor = {"AllReduce": 2 * (n - 1) / n, "AllToAll": (n - 1) / n**2, "CollectivePermute": 1.0, "Send": 1.0}
        return whole * factor.get(lot.kind, (n - 1) / n)

    def take(self, kind: str, want: Sequence[_Lot], got: Sequence[_Lot], each: int = 1) -> None:
        """Explain as many runs as all of these lots have; each promised run takes `each` runs of every found one."""
        runs = min(*(lot.runs for lot in want), *(lot.runs // each for lot in got))
        extra = runs * (each * sum(map(self.sent, got)) - sum(map(self.sent, want)))
        for lot in want:
            lot.runs -= runs
        for lot in got:
            lot.runs -= runs * each
        if runs and kind:
            self.rewrites.append(Rewrite(kind, _promised(want), _collectives(got), extra))

    def open(self, lots: list[_Lot], kind: str, axes: tuple[str, ...], elements: float) -> Iterator[_Lot]:
        for lot in lots:
            if lot.runs and (lot.kind, lot.axes) == (kind, axes) and isclose(lot.elements, elements, rel_tol=1e-6):
                yield lot


def compare_collectives(promised: Sequence[Promise], found: Sequence[Collective], sizes: Sizes) -> Comparison:
    """Compare on a mesh of these axis sizes (`mesh.shape`)."""
    want = [_Lot(p.kind, p.axes, p.elements, p.width, p.runs, promise=p) for p in promised]
    lots, foreign = _found_lots(found, sizes, {(p.kind, p.axes, p.elements) for p in promised})
    state = _State(sizes, want, lots)
    for rule in (_same, _merged, _padded, _as_one, _as_two, _by_axes, _as_permutes, _regrouped):
        rule(state)
    return Comparison(tuple(_together(state.rewrites)), (*_left(state), *foreign))


def _found_lots(
    found: Sequence[Collective], sizes: Sizes, promised: Container[tuple[str, tuple[str, ...], float]]
) -> tuple[list[_Lot], list[Difference]]:
    """A lot per operand; collectives over no mesh axes, or run an unknown number of times, are differences at once.

    Of an AllToAll (CPU passes its n shards), and where their sum was promised, all operands are one lot.
    """
    lots, foreign = [], []
    for c in found:
        axes = c.axes(sizes)
        if axes is None or c.runs is None:
            foreign.append(Difference("extra", (), (c,), c.nbytes * (c.runs or 1), 0, c.runs))
            continue
        whole = c.kind == "AllToAll" or (c.kind, axes, float(c.elements)) in promised
        for elements, width in [(c.elements, c.nbytes / c.elements)] if whole else _operands(c):
            lots.append(_Lot(c.kind, axes, float(elements), width, c.runs, collective=c))
    return lots, foreign


def _operands(c: Collective) -> list[tuple[int, float]]:
    return [(part.elements, part.bits / 8) for part in c.parts]


def _same(state: _State) -> None:
    """Equal kind, axes and elements; equal width first."""
    for exact in (True, False):
        for want in state.want:
            for got in state.open(state.got, want.kind, want.axes, want.elements):
                if want.runs and exact == (want.width == got.width):
                    state.pairs.append((want, got))
                    state.take("" if exact else "Widened" if got.width > want.width else "Narrowed", [want], [got])


def _merged(state: _State) -> None:
    """Note which collectives do the work of several promises."""
    did: dict[str, list[tuple[_Lot, _Lot]]] = defaultdict(list)
    for want, got in state.pairs:
        if got.collective and len(got.collective.parts) > 1:
            did[got.collective.name].append((want, got))
    for several in did.values():
        if len(several) > 1:
            wants, gots = zip(*several, strict=True)
            state.rewrites.append(Rewrite("Merged", _promised(wants), _collectives(gots), 0.0))


def _padded(state: _State) -> None:
    for want, got in state.pairs:
        c = got.collective
        if c and c.padding and c.runs:
            n = state.ways(got.axes)
            across = [
                lot
                for lot in state.got
                if lot.kind == "CollectivePermute" and lot.runs and lot.axes == got.axes and lot.elements <= c.padding
            ]
            extra = c.runs * (c.padding * got.width * (n - 1) / n) + sum(lot.runs * state.sent(lot) for lot in across)
            state.rewrites.append(Rewrite("Padded", _promised([want]), _collectives([got, *across]), extra))
            for lot in across:
                lot.runs = 0


def _as_one(state: _State) -> None:
    """Another kind whose elements are the same number; equal runs first."""
    others = {
        "AsAllReduce": ("AllReduce", ("ReduceScatter", "AllGather", "AllToAll")),
        "AsAllGather": ("AllGather", ("AllToAll",)),
    }
    for alike, (name, (kind, sources)) in product((True, False), others.items()):
        for want in state.want:
            if want.kind in sources:
                for got in state.open(state.got, kind, want.axes, want.elements):
                    if want.runs and (want.runs == got.runs or not alike):
                        state.take(name, [want], [got])


def _as_two(state: _State) -> None:
    for want in (lot for lot in state.want if lot.kind == "AllReduce"):
        for scatter in state.open(state.got, "ReduceScatter", want.axes, want.elements):
            for gather in state.open(state.got, "AllGather", want.axes, want.elements):
                if want.runs and scatter.runs:
                    state.take("AsTwo", [want], [scatter, gather])


def _by_axes(state: _State) -> None:
    """Over A and B: whole over A, and 1/|A| of it (an AllReduce: whole) over B."""
    for want in (lot for lot in state.want if lot.kind in ("AllGather", "ReduceScatter", "AllReduce")):
        for part in chain.from_iterable(combinations(want.axes, k) for k in range(1, len(want.axes))):
            rest = tuple(axis for axis in want.axes if axis not in part)
            less = want.elements / (1 if want.kind == "AllReduce" else state.ways(part))
            for a in state.open(state.got, want.kind, part, want.elements):
                for b in state.open(state.got, want.kind, rest, less):
                    if want.runs and a.runs:
                        state.take("ByAxes", [want], [a, b])


def _as_permutes(state: _State) -> None:
    """An AllToAll of n as n - 1 shifts of 1/n of the local array."""
    for want in (lot for lot in state.want if lot.kind == "AllToAll"):
        n = state.ways(want.axes)
        shifts = list(state.open(state.got, "CollectivePermute", want.axes, want.elements / n**2))
        if want.runs and sum(lot.runs for lot in shifts) == want.runs * (n - 1):
            extra = sum(lot.runs * state.sent(lot) for lot in shifts) - want.runs * state.sent(want)
            state.rewrites.append(Rewrite("AsPermutes", _promised([want]), _collectives(shifts), extra))
            _spend(want, *shifts)


def _regrouped(state: _State) -> None:
    for wants, gots in _by_key(state).values():
        total = sum(lot.elements * lot.runs for lot in gots)
        if wants and gots and isclose(sum(lot.elements * lot.runs for lot in wants), total, rel_tol=1e-6):
            state.rewrites.append(
                Rewrite("Regrouped", _promised(wants), _collectives(gots), _extra(state, wants, gots))
            )
            _spend(*wants, *gots)


def _left(state: _State) -> Iterator[Difference]:
    for wants, gots in _by_key(state).values():
        kind = "changed" if wants and gots else "missing" if wants else "extra"
        runs = [sum(lot.runs for lot in lots) for lots in (wants, gots)]
        yield Difference(kind, _promised(wants), _collectives(gots), _extra(state, wants, gots), *runs)


def _by_key(state: _State) -> dict[tuple[str, tuple[str, ...]], tuple[list[_Lot], list[_Lot]]]:
    found: dict[tuple[str, tuple[str, ...]], tuple[list[_Lot], list[_Lot]]] = defaultdict(lambda: ([], []))
    for side, lots in enumerate((state.want, state.got)):
        for lot in lots:
            if lot.runs:
                found[lot.kind, lot.axes][side].append(lot)
    return found


def _extra(state: _State, wants: Sequence[_Lot], gots: Sequence[_Lot]) -> float:
    sent = [sum(lot.runs * state.sent(lot) for lot in lots) for lots in (wants, gots)]
    return sent[1] - sent[0]


def _spend(*lots: _Lot) -> None:
    for lot in lots:
        lot.runs = 0


def _together(rewrites: Sequence[Rewrite]) -> Iterator[Rewrite]:
    """One entry per kind, promise and collective."""
    found: dict[object, list[Rewrite]] = defaultdict(list)
    for r in rewrites:
        found[r.kind, r.promised, r.found].append(r)
    for same in found.values():
        yield Rewrite(same[0].kind, same[0].promised, same[0].found, sum(r.extra_bytes for r in same))


def _promised(lots: Sequence[_Lot]) -> tuple[Promise, ...]:
    return tuple(dict.fromkeys(lot.promise for lot in lots if lot.promise))


def _collectives(lots: Sequence[_Lot]) -> tuple[Collective, ...]:
    return tuple(dict.fromkeys(lot.collective for lot in lots if lot.collective))
