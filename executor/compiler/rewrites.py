"""Promised against found: what the compiler rewrote, and what differs.

Collectives are compared as elements per (kind, mesh axes, size), times their runs. What remains on both sides is
explained by the rewrites that compilers are known to do; the rest are differences, and each is a failure.

    Widened         more bytes per element: CPU computes bf16 as float32       Narrowed   fewer
    Merged          several promised ones run as one with several operands     Regrouped  other sizes, the same sum
    Padded          a ReduceScatter that moves padding, and permutes what lies across its shards' borders
    Repeated        one that XLA runs again where its result is needed again, rather than keep it
    Reordered       an AllReduce behind the ReduceScatter that takes its result: of fewer elements
    AsAllReduce     a ReduceScatter (then sliced), or an AllGather of zero-padded shards, or an AllToAll
    AsAllGather     an AllToAll that gathers all and keeps a slice
    AsPermutes      an AllToAll as shifts
    AsTwo           an AllReduce as ReduceScatter and AllGather
    ByAxes          one over two sets of axes as one over each
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass

from executor.compiler import matching as lots_
from executor.compiler.expected import Promise
from executor.compiler.hlo import Collective
from executor.compiler.matching import Lot, Lots, Rewrite, Sizes
from executor.compiler.rewrite_rules import RULES

__all__ = ["Comparison", "Difference", "Rewrite", "compare_collectives"]


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


def compare_collectives(
    promised: Sequence[Promise], found: Sequence[Collective], sizes: Sizes, *, widens: bool = True
) -> Comparison:
    """Compare on a mesh of these axis sizes (`mesh.shape`). `widens`: the compiler may, as CPU's does with bf16."""
    want = [Lot(p.kind, p.axes, p.elements, p.width, p.runs, promise=p) for p in promised]
    got, foreign = _found_lots(found, sizes, {(p.kind, p.axes, p.elements) for p in promised})
    lots = Lots(sizes, want, got, widens)
    for rule in RULES:
        rule(lots)
    return Comparison(tuple(_together(lots.rewrites)), (*_left(lots), *foreign))


def _found_lots(
    found: Sequence[Collective], sizes: Sizes, promised: Container[tuple[str, tuple[str, ...], float]]
) -> tuple[list[Lot], list[Difference]]:
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
            lots.append(Lot(c.kind, axes, float(elements), width, c.runs, collective=c))
    return lots, foreign


def _operands(c: Collective) -> list[tuple[int, float]]:
    return [(part.elements, part.bits / 8) for part in c.parts]


def _left(lots: Lots) -> Iterator[Difference]:
    for wants, gots in lots.by_key().values():
        kind = "changed" if wants and gots else "missing" if wants else "extra"
        runs = [sum(lot.runs for lot in side) for side in (wants, gots)]
        yield Difference(kind, lots_.promised(wants), lots_.found(gots), lots.extra(wants, gots), *runs)


def _together(rewrites: Sequence[Rewrite]) -> Iterator[Rewrite]:
    """One entry per kind, promise and collective."""
    found: dict[object, list[Rewrite]] = defaultdict(list)
    for r in rewrites:
        found[r.kind, r.promised, r.found].append(r)
    for same in found.values():
        yield Rewrite(same[0].kind, same[0].promised, same[0].found, sum(r.extra_bytes for r in same))
