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

A rule explains runs on both sides, or leaves them alone: it accepts only what its promises prove, the kind, the axes
and the elements of all that runs instead.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, combinations, product
from math import isclose

from executor.compiler import matching as lots_
from executor.compiler.expected import ExpectedCollective
from executor.compiler.hlo import Collective
from executor.compiler.matching import Matching, Rewrite, Sizes, UnmatchedRun

__all__ = ["CollectiveDiff", "Difference", "Rewrite", "compare_collectives"]


@dataclass(frozen=True, slots=True)
class Difference:
    """`missing`: promised and not found; `extra`: the reverse; `changed`: both, for one kind and axes.

    `extra_bytes`: what each device sends beyond what was priced, of the runs that nothing explains: 1 of 80, say.
    """

    kind: str
    promised: tuple[ExpectedCollective, ...]
    found: tuple[Collective, ...]
    extra_bytes: float


@dataclass(frozen=True, slots=True)
class CollectiveDiff:
    """The outcome for one program; it holds unless there is a difference."""

    rewrites: tuple[Rewrite, ...]
    differences: tuple[Difference, ...]

    @property
    def holds(self) -> bool:
        """Return whether every collective was promised, or is a rewrite of what was."""
        return not self.differences


def compare_collectives(
    promised: Sequence[ExpectedCollective], compiled: Sequence[Collective], sizes: Sizes, *, widens: bool = True
) -> CollectiveDiff:
    """Compare on a mesh of these axis sizes (`mesh.shape`). `widens`: the compiler may, as CPU's does with bf16."""
    want = [UnmatchedRun(p.kind, p.axes, p.elements, p.width, p.runs, promise=p) for p in promised]
    got, foreign = _unmatched_found(compiled, sizes, {(p.kind, p.axes, p.elements) for p in promised})
    matching = Matching(sizes, want, got, widens)
    for rule in RULES:
        rule(matching)
    return CollectiveDiff(tuple(_together(matching.rewrites)), (*_left(matching), *foreign))


def _unmatched_found(
    compiled: Sequence[Collective], sizes: Sizes, promised: Container[tuple[str, tuple[str, ...], float]]
) -> tuple[list[UnmatchedRun], list[Difference]]:
    """A lot per operand; collectives over no mesh axes, or run an unknown number of times, are differences at once.

    Of an AllToAll (CPU passes its n shards), and where their sum was promised, all operands are one lot.
    """
    runs, foreign = [], []
    for c in compiled:
        axes = c.axes(sizes)
        if axes is None or c.runs is None:
            foreign.append(Difference("extra", (), (c,), c.nbytes * (c.runs or 1)))
            continue
        whole = c.kind == "AllToAll" or (c.kind, axes, float(c.elements)) in promised
        for elements, width in [(c.elements, c.nbytes / c.elements)] if whole else _operands(c):
            runs.append(UnmatchedRun(c.kind, axes, float(elements), width, c.runs, collective=c))
    return runs, foreign


def _operands(c: Collective) -> list[tuple[int, float]]:
    return [(part.elements, part.bits / 8) for part in c.parts]


def _left(matching: Matching) -> Iterator[Difference]:
    for wants, gots in matching.by_key().values():
        kind = "changed" if wants and gots else "missing" if wants else "extra"
        yield Difference(kind, lots_.promised(wants), lots_.found(gots), matching.extra(wants, gots))


def _together(rewrites: Sequence[Rewrite]) -> Iterator[Rewrite]:
    """One entry per kind, promise and collective."""
    alike: dict[object, list[Rewrite]] = defaultdict(list)
    for r in rewrites:
        alike[r.kind, r.promised, r.found].append(r)
    for same in alike.values():
        yield Rewrite(same[0].kind, same[0].promised, same[0].found, sum(r.extra_bytes for r in same))


def same(matching: Matching) -> None:
    """Equal kind, axes and elements; equal width first."""
    for exact in (True, False):
        for want in matching.want:
            for got in matching.open(want, want.kind, want.elements):
                if want.runs and exact == (want.width == got.width):
                    matching.pairs.append((want, got))
                    matching.take("" if exact else "Widened" if got.width > want.width else "Narrowed", [want], [got])


def merged(matching: Matching) -> None:
    """Note which collectives do the work of several promises."""
    did: dict[str, list[tuple[UnmatchedRun, UnmatchedRun]]] = defaultdict(list)
    for want, got in matching.pairs:
        if got.collective and len(got.collective.parts) > 1:
            did[got.collective.name].append((want, got))
    for several in did.values():
        if len(several) > 1:
            wants, gots = zip(*several, strict=True)
            matching.note("Merged", wants, gots, 0.0)


def padded(matching: Matching) -> None:
    """A ReduceScatter of padded shards: what lies across the real ones' borders is permuted there."""
    for want, got in matching.pairs:
        c = got.collective
        if c and c.padding and c.runs:
            n, across = len(c.groups[0]), list(_across(matching, got, c))
            extra = c.runs * (c.padding * got.width * (n - 1) / n + sum(map(matching.sent, across)))
            matching.note("Padded", [want], [got, *across], extra)
            for run in across:
                run.runs -= c.runs


def _across(matching: Matching, scatter: UnmatchedRun, c: Collective) -> Iterator[UnmatchedRun]:
    """At most one permute for each distance in the group, always forward, of no more than what must go so far."""
    seen = set()
    for run in sorted(matching.got, key=lambda run: run.runs != c.runs):  # those that run as often come first
        if (
            run.kind == "CollectivePermute"
            and run.collective
            and run.runs >= (c.runs or 0)
            and run.width == scatter.width
        ):
            far = _distance(run.collective, c)
            if far and far not in seen and run.elements <= _over_borders(scatter.elements, c, far):
                seen.add(far)
                yield run


def _distance(permute: Collective, scatter: Collective) -> int | None:
    """By how many places each pair of the permute goes forward in its group of the scatter, if all by the same."""
    place = {device: (g, i) for g, group in enumerate(scatter.groups) for i, device in enumerate(group)}
    ends = [(place[a], place[b]) for a, b in permute.pairs]
    far = {b[1] - a[1] if a[0] == b[0] else None for a, b in ends}
    return far.pop() if len(far) == 1 else None


def _over_borders(elements: float, c: Collective, far: int) -> float:
    """Elements of a padded shard that some device needs, of those `far` places on: of all, from the first to the last.

    With n shards of r elements that are padded to p, device i has [i p, i p + p) and needs [i r, i r + r).
    """
    n = len(c.groups[0])
    real, held = elements / n, (elements + c.padding) / n
    spans = []
    for i in range(far, n):
        at = (i - far) * held
        first, last = max(i * real, at), min((i + 1) * real, at + held)
        if first < last:
            spans.append((first - at, last - at))
    return max(b for _, b in spans) - min(a for a, _ in spans) if spans else 0.0


def repeated(matching: Matching) -> None:
    """A matched collective that XLA runs again where its result is needed again, rather than keep it: `name.remat`."""
    first = {got.collective.name: (want, got) for want, got in matching.pairs if got.collective}
    for again in matching.got:
        name, remat, _ = again.collective.name.partition(".remat") if again.collective else ("", "", "")
        if again.runs and remat and name in first and _alike(first[name][1], again):
            matching.note("Repeated", [first[name][0]], [again], again.runs * matching.sent(again))
            again.runs = 0


def _alike(a: UnmatchedRun, b: UnmatchedRun) -> bool:
    """Return whether b does what a did, for the same operation of the program, and no more often."""
    one, two = a.collective, b.collective
    if not one or not two or one.op_name != two.op_name or (two.runs or 0) > (one.runs or 0):
        return False
    return (a.kind, a.axes, a.elements, a.width) == (b.kind, b.axes, b.elements, b.width)


def reordered(matching: Matching) -> None:
    """An AllReduce whose result only a ReduceScatter over other axes reads, done on the scattered shards."""
    scatters = [run for run in matching.want if run.kind == "ReduceScatter" and run.promise and not run.runs]
    for want in (run for run in matching.want if run.kind == "AllReduce" and run.runs and run.promise):
        for scatter in scatters:
            if _feeds(want, scatter):
                for got in matching.open(want, "AllReduce", want.elements / matching.ways(scatter.axes)):
                    matching.take("Reordered", [want], [got])


def _feeds(reduce: UnmatchedRun, scatter: UnmatchedRun) -> bool:
    """Return whether an expected scatter takes, as often, the result of an expected AllReduce over other axes."""
    a, b = reduce.promise, scatter.promise
    if not a or not b or a.runs != b.runs or a.elements != b.elements or {*a.axes} & {*b.axes}:
        return False
    component, result = a.text.partition(" = ")[0].split(": ", 1)
    return b.text.startswith(f"{component}: ") and b.text.endswith(f"({result})")


def as_one(matching: Matching) -> None:
    """Another kind whose elements are the same number; equal runs first."""
    others = {
        "AsAllReduce": ("AllReduce", ("ReduceScatter", "AllGather", "AllToAll")),
        "AsAllGather": ("AllGather", ("AllToAll",)),
    }
    for alike, (name, (kind, sources)) in product((True, False), others.items()):
        for want in matching.want:
            if want.kind in sources:
                for got in matching.open(want, kind, want.elements):
                    if want.runs and (want.runs == got.runs or not alike):
                        matching.take(name, [want], [got])


def as_two(matching: Matching) -> None:
    """An AllReduce as a ReduceScatter and an AllGather."""
    for want in (run for run in matching.want if run.kind == "AllReduce"):
        for scatter in matching.open(want, "ReduceScatter", want.elements):
            for gather in matching.open(want, "AllGather", want.elements):
                if want.runs and scatter.runs:
                    matching.take("AsTwo", [want], [scatter, gather])


def by_axes(matching: Matching) -> None:
    """Over A and B: whole over A, and 1/|A| of it (an AllReduce: whole) over B."""
    for want in (run for run in matching.want if run.kind in ("AllGather", "ReduceScatter", "AllReduce")):
        for part in chain.from_iterable(combinations(want.axes, k) for k in range(1, len(want.axes))):
            rest = tuple(axis for axis in want.axes if axis not in part)
            less = want.elements / (1 if want.kind == "AllReduce" else matching.ways(part))
            for a in matching.open(want, want.kind, want.elements, part):
                for b in matching.open(want, want.kind, less, rest):
                    if want.runs and a.runs:
                        matching.take("ByAxes", [want], [a, b])


def as_permutes(matching: Matching) -> None:
    """An AllToAll of n as n - 1 shifts of 1/n of the local array."""
    for want in (run for run in matching.want if run.kind == "AllToAll"):
        n = matching.ways(want.axes)
        shifts = list(matching.open(want, "CollectivePermute", want.elements / n**2))
        if want.runs and sum(run.runs for run in shifts) == want.runs * (n - 1):
            matching.note("AsPermutes", [want], shifts, matching.extra([want], shifts))
            _spend(want, *shifts)


def regrouped(matching: Matching) -> None:
    """Other sizes over the same axes, and the same sum."""
    for wants, gots in matching.by_key().values():
        total = sum(run.elements * run.runs for run in gots)
        wide = max((run.width for run in wants), default=0)
        narrow = matching.widens or all(run.width <= wide for run in gots)
        if wants and gots and narrow and isclose(sum(run.elements * run.runs for run in wants), total, rel_tol=1e-6):
            matching.note("Regrouped", wants, gots, matching.extra(wants, gots))
            _spend(*wants, *gots)


def _spend(*runs: UnmatchedRun) -> None:
    for run in runs:
        run.runs = 0


RULES = (same, merged, padded, repeated, reordered, as_one, as_two, by_axes, as_permutes, regrouped)
