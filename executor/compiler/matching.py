"""Runs of promised and of found collectives that are not explained yet, and the rewrites that explained others."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import isclose, prod

from executor.compiler.expected import ExpectedCollective
from executor.compiler.hlo import Collective, sent_share

Sizes = Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Rewrite:
    """Promised collectives that run as others; `extra_bytes`: what each device sends beyond what was priced."""

    kind: str
    expected: tuple[ExpectedCollective, ...]
    compiled: tuple[Collective, ...]
    extra_bytes: float


@dataclass(slots=True)
class UnmatchedRun:
    """Runs of one promise, or of one operand of a collective, that are not explained yet."""

    kind: str
    axes: tuple[str, ...]
    elements: float
    width: float
    runs: int
    expected: ExpectedCollective | None = None
    collective: Collective | None = None


@dataclass(slots=True)
class Matching:
    """Both sides on a mesh of these sizes. `widens`: whether the compiler may move more bytes per element."""

    sizes: Sizes
    expected: list[UnmatchedRun]
    compiled: list[UnmatchedRun]
    widens: bool = True
    rewrites: list[Rewrite] = field(default_factory=list)
    pairs: list[tuple[UnmatchedRun, UnmatchedRun]] = field(default_factory=list)

    def devices_along(self, axes: tuple[str, ...]) -> int:
        """Devices along these axes."""
        return prod(self.sizes[axis] for axis in axes)

    def sent_bytes(self, unmatched: UnmatchedRun) -> float:
        """Bytes that each device sends in one run."""
        return unmatched.elements * unmatched.width * sent_share(unmatched.kind, self.devices_along(unmatched.axes))

    def extra_bytes(self, expected: Sequence[UnmatchedRun], compiled: Sequence[UnmatchedRun]) -> float:
        """Bytes that all runs left of these send beyond those of the promises."""
        sent = [sum(unmatched.runs * self.sent_bytes(unmatched) for unmatched in runs) for runs in (expected, compiled)]
        return sent[1] - sent[0]

    def match(self, kind: str, expected: Sequence[UnmatchedRun], compiled: Sequence[UnmatchedRun]) -> None:
        """Explain as many runs as all of these lots have."""
        runs = min(unmatched.runs for unmatched in (*expected, *compiled))
        extra = runs * (sum(map(self.sent_bytes, compiled)) - sum(map(self.sent_bytes, expected)))
        for unmatched in (*expected, *compiled):
            unmatched.runs -= runs
        if runs and kind:
            self.note(kind, expected, compiled, extra)

    def note(
        self, kind: str, expected: Sequence[UnmatchedRun], compiled: Sequence[UnmatchedRun], extra_bytes: float
    ) -> None:
        """Add a rewrite."""
        self.rewrites.append(Rewrite(kind, expected_collectives_of(expected), collectives_of(compiled), extra_bytes))

    def candidates(
        self, expected: UnmatchedRun, kind: str, elements: float, axes: tuple[str, ...] | None = None
    ) -> Iterator[UnmatchedRun]:
        """Found lots with runs left of this kind and size that may do what was promised, over its axes or others."""
        for unmatched in self.compiled:
            if (
                unmatched.runs
                and (unmatched.kind, unmatched.axes) == (kind, expected.axes if axes is None else axes)
                and isclose(unmatched.elements, elements, rel_tol=1e-6)
                and (self.widens or unmatched.width <= expected.width)
            ):
                yield unmatched

    def by_key(self) -> dict[tuple[str, tuple[str, ...]], tuple[list[UnmatchedRun], list[UnmatchedRun]]]:
        """What is left on both sides, by kind and axes."""
        left: dict[tuple[str, tuple[str, ...]], tuple[list[UnmatchedRun], list[UnmatchedRun]]] = defaultdict(
            lambda: ([], [])
        )
        for side, runs in enumerate((self.expected, self.compiled)):
            for unmatched in runs:
                if unmatched.runs:
                    left[unmatched.kind, unmatched.axes][side].append(unmatched)
        return left


def expected_collectives_of(runs: Sequence[UnmatchedRun]) -> tuple[ExpectedCollective, ...]:
    """The promises of lots, each once."""
    return tuple(dict.fromkeys(unmatched.expected for unmatched in runs if unmatched.expected))


def collectives_of(runs: Sequence[UnmatchedRun]) -> tuple[Collective, ...]:
    """The collectives of lots, each once."""
    return tuple(dict.fromkeys(unmatched.collective for unmatched in runs if unmatched.collective))
