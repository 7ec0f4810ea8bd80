"""Compare the expected collectives with the compiled ones: find what the compiler rewrote, and what differs.

Collectives of equal kind, mesh axes and elements match, run by run. Rules explain the remaining runs by the rewrites
that compilers are known to do. Runs that no rule explains are differences, and each difference is a failure.

    Widened         more bytes per element: the CPU computes bf16 as float32
    Narrowed        fewer bytes per element
    Merged          several expected collectives run as one with several operands
    Regrouped       collectives of other sizes over the same axes, with the same sum of elements
    Padded          a ReduceScatter of padded shards, and permutes of what crosses the borders of the real shards
    Repeated        a collective that XLA runs again, instead of keeping its result until the next use
    Reordered       an AllReduce done behind the ReduceScatter that reads its result: it has fewer elements there
    AsAllReduce     a ReduceScatter (then sliced), an AllGather of zero-padded shards, or an AllToAll
    AsAllGather     an AllToAll that gathers everything and keeps a slice
    AsPermutes      an AllToAll as shifts
    AsTwo           an AllReduce as ReduceScatter and AllGather
    ByAxes          a collective over two sets of axes as one over each

A rule explains a run only if the kind, the axes and the elements of everything that runs instead prove the rewrite;
otherwise it leaves the run alone.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, combinations, product
from math import isclose

from executor.compiler.expected import ExpectedCollective
from executor.compiler.hlo import Collective
from executor.compiler.matching import Matching, Rewrite, Sizes, UnmatchedRun, collectives_of, expected_collectives_of

__all__ = ["CollectiveDiff", "Difference", "Rewrite", "compare_collectives"]


@dataclass(frozen=True, slots=True)
class Difference:
    """Runs of one kind and axes that no rule explains.

    `kind`: `missing` (expected and not compiled), `extra` (compiled and not expected), or `changed` (both).
    `extra_bytes`: the bytes that each device sends beyond the priced ones, counting only the unexplained runs, which
    may be 1 of 80.
    """

    kind: str
    expected: tuple[ExpectedCollective, ...]
    compiled: tuple[Collective, ...]
    extra_bytes: float


@dataclass(frozen=True, slots=True)
class CollectiveDiff:
    """The outcome of a comparison: the rewrites that explain runs, and the differences that remain."""

    rewrites: tuple[Rewrite, ...]
    differences: tuple[Difference, ...]

    @property
    def holds(self) -> bool:
        """True if every compiled collective is an expected one or a rewrite of one, and none is missing."""
        return not self.differences


def compare_collectives(
    expected: Sequence[ExpectedCollective], compiled: Sequence[Collective], sizes: Sizes, *, widens: bool = True
) -> CollectiveDiff:
    """Compare the expected collectives of a plan with those of its compiled program.

    `sizes`: `mesh.shape`, axis name -> size. `widens`: allow more bytes per element than priced, as the CPU's compiler
    needs for bf16; False for the TPU's. Compiled collectives over no mesh axes, or with an unknown number of runs, are
    differences of kind `extra`.
    """
    unmatched_expected = [UnmatchedRun(p.kind, p.axes, p.elements, p.width, p.runs, expected=p) for p in expected]
    unmatched_compiled, unmatchable = _unmatched_compiled(
        compiled, sizes, {(p.kind, p.axes, p.elements) for p in expected}
    )
    matching = Matching(sizes, unmatched_expected, unmatched_compiled, widens)
    for rule in RULES:
        rule(matching)
    return CollectiveDiff(tuple(_summed(matching.rewrites)), (*_differences(matching), *unmatchable))


def _unmatched_compiled(
    compiled: Sequence[Collective], sizes: Sizes, expected: Container[tuple[str, tuple[str, ...], float]]
) -> tuple[list[UnmatchedRun], list[Difference]]:
    """Return the compiled runs, one entry per operand, and the collectives that are differences at once.

    Differences are collectives over no mesh axes and those that run an unknown number of times. All operands together
    are one entry for an AllToAll (the CPU passes its n shards as operands), and if their sum is expected.
    """
    unmatched, unmatchable = [], []
    for c in compiled:
        axes = c.axes(sizes)
        if axes is None or c.runs is None:
            unmatchable.append(Difference("extra", (), (c,), c.nbytes * (c.runs or 1)))
            continue
        as_one_run = c.kind == "AllToAll" or (c.kind, axes, float(c.elements)) in expected
        for elements, width in [(c.elements, c.nbytes / c.elements)] if as_one_run else _operand_widths(c):
            unmatched.append(UnmatchedRun(c.kind, axes, float(elements), width, c.runs, collective=c))
    return unmatched, unmatchable


def _operand_widths(c: Collective) -> list[tuple[int, float]]:
    return [(part.elements, part.bits / 8) for part in c.parts]


def _differences(matching: Matching) -> Iterator[Difference]:
    for expected, compiled in matching.by_key().values():
        kind = "changed" if expected and compiled else "missing" if expected else "extra"
        yield Difference(
            kind, expected_collectives_of(expected), collectives_of(compiled), matching.extra_bytes(expected, compiled)
        )


def _summed(rewrites: Sequence[Rewrite]) -> Iterator[Rewrite]:
    """Sum the rewrites of equal kind, expected and compiled collectives into one."""
    groups: dict[object, list[Rewrite]] = defaultdict(list)
    for rewrite in rewrites:
        groups[rewrite.kind, rewrite.expected, rewrite.compiled].append(rewrite)
    for group in groups.values():
        yield Rewrite(
            group[0].kind, group[0].expected, group[0].compiled, sum(rewrite.extra_bytes for rewrite in group)
        )


def same(matching: Matching) -> None:
    """Match runs of equal kind, axes and elements; those of equal bytes per element first."""
    for exact in (True, False):
        for expected in matching.expected:
            for compiled in matching.candidates(expected, expected.kind, expected.elements):
                if expected.runs and exact == (expected.width == compiled.width):
                    matching.pairs.append((expected, compiled))
                    matching.match(
                        "" if exact else "Widened" if compiled.width > expected.width else "Narrowed",
                        [expected],
                        [compiled],
                    )


def merged(matching: Matching) -> None:
    """Note the compiled collectives that do the work of several expected ones (`Merged`)."""
    pairs_of: dict[str, list[tuple[UnmatchedRun, UnmatchedRun]]] = defaultdict(list)
    for expected, compiled in matching.pairs:
        if compiled.collective and len(compiled.collective.parts) > 1:
            pairs_of[compiled.collective.name].append((expected, compiled))
    for pairs in pairs_of.values():
        if len(pairs) > 1:
            expected_runs, compiled_runs = zip(*pairs, strict=True)
            matching.note("Merged", expected_runs, compiled_runs, 0.0)


def padded(matching: Matching) -> None:
    """Explain a ReduceScatter of padded shards and the permutes that restore the borders of the real shards."""
    for expected, compiled in matching.pairs:
        c = compiled.collective
        if c and c.padding and c.runs:
            n, permutes = len(c.groups[0]), list(_border_permutes(matching, compiled, c))
            extra = c.runs * (c.padding * compiled.width * (n - 1) / n + sum(map(matching.sent_bytes, permutes)))
            matching.note("Padded", [expected], [compiled, *permutes], extra)
            for permute in permutes:
                permute.runs -= c.runs


def _border_permutes(matching: Matching, scatter: UnmatchedRun, c: Collective) -> Iterator[UnmatchedRun]:
    """Yield at most one permute per distance within the group, of no more elements than must go that far."""
    seen = set()
    for permute in sorted(
        matching.compiled, key=lambda permute: permute.runs != c.runs
    ):  # those that run as often come first
        if (
            permute.kind == "CollectivePermute"
            and permute.collective
            and permute.runs >= (c.runs or 0)
            and permute.width == scatter.width
        ):
            distance = _distance(permute.collective, c)
            if (
                distance
                and distance not in seen
                and permute.elements <= _elements_over_borders(scatter.elements, c, distance)
            ):
                seen.add(distance)
                yield permute


def _distance(permute: Collective, scatter: Collective) -> int | None:
    """Return the number of places that every pair of the permute moves forward in its group; None if they differ."""
    place = {device: (g, i) for g, group in enumerate(scatter.groups) for i, device in enumerate(group)}
    ends = [(place[a], place[b]) for a, b in permute.pairs]
    distances = {b[1] - a[1] if a[0] == b[0] else None for a, b in ends}
    return distances.pop() if len(distances) == 1 else None


def _elements_over_borders(elements: float, c: Collective, distance: int) -> float:
    """Return how many elements of a padded shard must go `distance` places forward, as one span for all devices.

    With n shards of r elements that are padded to p, device i has [i p, i p + p) and needs [i r, i r + r). The span
    runs from the first to the last element of a shard that any device at that distance needs.
    """
    n = len(c.groups[0])
    unpadded, padded = elements / n, (elements + c.padding) / n
    spans = []
    for i in range(distance, n):
        start = (i - distance) * padded
        first, last = max(i * unpadded, start), min((i + 1) * unpadded, start + padded)
        if first < last:
            spans.append((first - start, last - start))
    return max(b for _, b in spans) - min(a for a, _ in spans) if spans else 0.0


def repeated(matching: Matching) -> None:
    """Explain a collective `name.remat`, which repeats the matched collective `name` instead of keeping its result."""
    first = {
        compiled.collective.name: (expected, compiled) for expected, compiled in matching.pairs if compiled.collective
    }
    for repeat in matching.compiled:
        name, remat, _ = repeat.collective.name.partition(".remat") if repeat.collective else ("", "", "")
        if repeat.runs and remat and name in first and _is_repeat(first[name][1], repeat):
            matching.note("Repeated", [first[name][0]], [repeat], repeat.runs * matching.sent_bytes(repeat))
            repeat.runs = 0


def _is_repeat(a: UnmatchedRun, b: UnmatchedRun) -> bool:
    """Return whether b repeats what a does, for the same operation of the program, and no more often."""
    first, second = a.collective, b.collective
    if not first or not second or first.op_name != second.op_name or (second.runs or 0) > (first.runs or 0):
        return False
    return (a.kind, a.axes, a.elements, a.width) == (b.kind, b.axes, b.elements, b.width)


def reordered(matching: Matching) -> None:
    """Explain an AllReduce whose result a ReduceScatter over other axes reads and that runs on its scattered shards."""
    scatters = [
        unmatched
        for unmatched in matching.expected
        if unmatched.kind == "ReduceScatter" and unmatched.expected and not unmatched.runs
    ]
    for expected in (
        unmatched
        for unmatched in matching.expected
        if unmatched.kind == "AllReduce" and unmatched.runs and unmatched.expected
    ):
        for scatter in scatters:
            if _feeds(expected, scatter):
                for compiled in matching.candidates(
                    expected, "AllReduce", expected.elements / matching.devices_along(scatter.axes)
                ):
                    matching.match("Reordered", [expected], [compiled])


def _feeds(reduce: UnmatchedRun, scatter: UnmatchedRun) -> bool:
    """Return whether an expected ReduceScatter reads the result of an expected AllReduce over other axes.

    Their steps' texts decide; both must run equally often and have the same elements.
    """
    a, b = reduce.expected, scatter.expected
    if not a or not b or a.runs != b.runs or a.elements != b.elements or {*a.axes} & {*b.axes}:
        return False
    component, result = a.text.partition(" = ")[0].split(": ", 1)
    return b.text.startswith(f"{component}: ") and b.text.endswith(f"({result})")


def as_one(matching: Matching) -> None:
    """Explain a collective that runs as an AllReduce or an AllGather of the same elements; equal runs first."""
    rewrites = {
        "AsAllReduce": ("AllReduce", ("ReduceScatter", "AllGather", "AllToAll")),
        "AsAllGather": ("AllGather", ("AllToAll",)),
    }
    for equal_runs, (name, (kind, sources)) in product((True, False), rewrites.items()):
        for expected in matching.expected:
            if expected.kind in sources:
                for compiled in matching.candidates(expected, kind, expected.elements):
                    if expected.runs and (expected.runs == compiled.runs or not equal_runs):
                        matching.match(name, [expected], [compiled])


def as_two(matching: Matching) -> None:
    """Explain an AllReduce that runs as a ReduceScatter and an AllGather."""
    for expected in (unmatched for unmatched in matching.expected if unmatched.kind == "AllReduce"):
        for scatter in matching.candidates(expected, "ReduceScatter", expected.elements):
            for gather in matching.candidates(expected, "AllGather", expected.elements):
                if expected.runs and scatter.runs:
                    matching.match("AsTwo", [expected], [scatter, gather])


def by_axes(matching: Matching) -> None:
    """Explain a collective over axes A and B that runs as one over A and one over B.

    The one over B has 1/|A| of the elements; all of them in an AllReduce.
    """
    for expected in (
        unmatched for unmatched in matching.expected if unmatched.kind in ("AllGather", "ReduceScatter", "AllReduce")
    ):
        for part in chain.from_iterable(combinations(expected.axes, k) for k in range(1, len(expected.axes))):
            rest = tuple(axis for axis in expected.axes if axis not in part)
            rest_elements = expected.elements / (1 if expected.kind == "AllReduce" else matching.devices_along(part))
            for a in matching.candidates(expected, expected.kind, expected.elements, part):
                for b in matching.candidates(expected, expected.kind, rest_elements, rest):
                    if expected.runs and a.runs:
                        matching.match("ByAxes", [expected], [a, b])


def as_permutes(matching: Matching) -> None:
    """Explain an AllToAll over n devices that runs as n - 1 shifts of 1/n of the local array."""
    for expected in (unmatched for unmatched in matching.expected if unmatched.kind == "AllToAll"):
        n = matching.devices_along(expected.axes)
        shifts = list(matching.candidates(expected, "CollectivePermute", expected.elements / n**2))
        if expected.runs and sum(unmatched.runs for unmatched in shifts) == expected.runs * (n - 1):
            matching.note("AsPermutes", [expected], shifts, matching.extra_bytes([expected], shifts))
            _use_up(expected, *shifts)


def regrouped(matching: Matching) -> None:
    """Explain collectives over the same axes that have other sizes, but the same sum of elements over all runs."""
    for expected, compiled in matching.by_key().values():
        total = sum(unmatched.elements * unmatched.runs for unmatched in compiled)
        widest = max((unmatched.width for unmatched in expected), default=0)
        allowed_widths = matching.widens or all(unmatched.width <= widest for unmatched in compiled)
        if (
            expected
            and compiled
            and allowed_widths
            and isclose(sum(unmatched.elements * unmatched.runs for unmatched in expected), total, rel_tol=1e-6)
        ):
            matching.note("Regrouped", expected, compiled, matching.extra_bytes(expected, compiled))
            _use_up(*expected, *compiled)


def _use_up(*runs: UnmatchedRun) -> None:
    for unmatched in runs:
        unmatched.runs = 0


RULES = (same, merged, padded, repeated, reordered, as_one, as_two, by_axes, as_permutes, regrouped)
