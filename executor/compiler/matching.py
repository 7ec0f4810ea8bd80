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
    promised: tuple[ExpectedCollective, ...]
    found: tuple[Collective, ...]
    extra_bytes: float


@dataclass(slots=True)
class UnmatchedRun:
    """Runs of one promise, or of one operand of a collective, that are not explained yet."""

    kind: str
    axes: tuple[str, ...]
    elements: float
    width: float
    runs: int
    promise: ExpectedCollective | None = None
    collective: Collective | None = None


@dataclass(slots=True)
class Matching:
    """Both sides on a mesh of these sizes. `widens`: whether the compiler may move more bytes per element."""

    sizes: Sizes
    want: list[UnmatchedRun]
    got: list[UnmatchedRun]
    widens: bool = True
    rewrites: list[Rewrite] = field(default_factory=list)
    pairs: list[tuple[UnmatchedRun, UnmatchedRun]] = field(default_factory=list)

    def ways(self, axes: tuple[str, ...]) -> int:
        """Devices along these axes."""
        return prod(self.sizes[axis] for axis in axes)

    def sent(self, run: UnmatchedRun) -> float:
        """Bytes that each device sends in one run."""
        return run.elements * run.width * sent_share(run.kind, self.ways(run.axes))

    def extra(self, wants: Sequence[UnmatchedRun], gots: Sequence[UnmatchedRun]) -> float:
        """Bytes that all runs left of these send beyond those of the promises."""
        sent = [sum(run.runs * self.sent(run) for run in runs_of_side) for runs_of_side in (wants, gots)]
        return sent[1] - sent[0]

    def take(self, kind: str, want: Sequence[UnmatchedRun], got: Sequence[UnmatchedRun]) -> None:
        """Explain as many runs as all of these lots have."""
        runs = min(run.runs for run in (*want, *got))
        extra = runs * (sum(map(self.sent, got)) - sum(map(self.sent, want)))
        for run in (*want, *got):
            run.runs -= runs
        if runs and kind:
            self.note(kind, want, got, extra)

    def note(self, kind: str, want: Sequence[UnmatchedRun], got: Sequence[UnmatchedRun], extra_bytes: float) -> None:
        """Add a rewrite."""
        self.rewrites.append(Rewrite(kind, promised(want), found(got), extra_bytes))

    def open(
        self, want: UnmatchedRun, kind: str, elements: float, axes: tuple[str, ...] | None = None
    ) -> Iterator[UnmatchedRun]:
        """Found lots with runs left of this kind and size that may do what was promised, over its axes or others."""
        for run in self.got:
            if (
                run.runs
                and (run.kind, run.axes) == (kind, want.axes if axes is None else axes)
                and isclose(run.elements, elements, rel_tol=1e-6)
                and (self.widens or run.width <= want.width)
            ):
                yield run

    def by_key(self) -> dict[tuple[str, tuple[str, ...]], tuple[list[UnmatchedRun], list[UnmatchedRun]]]:
        """Return the unmatched runs of both sides, by kind and axes."""
        left: dict[tuple[str, tuple[str, ...]], tuple[list[UnmatchedRun], list[UnmatchedRun]]] = defaultdict(
            lambda: ([], [])
        )
        for side, side_runs in enumerate((self.want, self.got)):
            for run in side_runs:
                if run.runs:
                    left[run.kind, run.axes][side].append(run)
        return left


def promised(runs: Sequence[UnmatchedRun]) -> tuple[ExpectedCollective, ...]:
    """The promises of lots, each once."""
    return tuple(dict.fromkeys(run.promise for run in runs if run.promise))


def found(runs: Sequence[UnmatchedRun]) -> tuple[Collective, ...]:
    """The collectives of lots, each once."""
    return tuple(dict.fromkeys(run.collective for run in runs if run.collective))
