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

    def sent(self, lot: UnmatchedRun) -> float:
        """Bytes that each device sends in one run."""
        return lot.elements * lot.width * sent_share(lot.kind, self.ways(lot.axes))

    def extra(self, wants: Sequence[UnmatchedRun], gots: Sequence[UnmatchedRun]) -> float:
        """Bytes that all runs left of these send beyond those of the promises."""
        sent = [sum(lot.runs * self.sent(lot) for lot in lots) for lots in (wants, gots)]
        return sent[1] - sent[0]

    def take(self, kind: str, want: Sequence[UnmatchedRun], got: Sequence[UnmatchedRun]) -> None:
        """Explain as many runs as all of these lots have."""
        runs = min(lot.runs for lot in (*want, *got))
        extra = runs * (sum(map(self.sent, got)) - sum(map(self.sent, want)))
        for lot in (*want, *got):
            lot.runs -= runs
        if runs and kind:
            self.note(kind, want, got, extra)

    def note(self, kind: str, want: Sequence[UnmatchedRun], got: Sequence[UnmatchedRun], extra_bytes: float) -> None:
        """Add a rewrite."""
        self.rewrites.append(Rewrite(kind, promised(want), found(got), extra_bytes))

    def open(
        self, want: UnmatchedRun, kind: str, elements: float, axes: tuple[str, ...] | None = None
    ) -> Iterator[UnmatchedRun]:
        """Found lots with runs left of this kind and size that may do what was promised, over its axes or others."""
        for lot in self.got:
            if (
                lot.runs
                and (lot.kind, lot.axes) == (kind, want.axes if axes is None else axes)
                and isclose(lot.elements, elements, rel_tol=1e-6)
                and (self.widens or lot.width <= want.width)
            ):
                yield lot

    def by_key(self) -> dict[tuple[str, tuple[str, ...]], tuple[list[UnmatchedRun], list[UnmatchedRun]]]:
        """Return the unmatched runs of both sides, by kind and axes."""
        left: dict[tuple[str, tuple[str, ...]], tuple[list[UnmatchedRun], list[UnmatchedRun]]] = defaultdict(
            lambda: ([], [])
        )
        for side, lots in enumerate((self.want, self.got)):
            for lot in lots:
                if lot.runs:
                    left[lot.kind, lot.axes][side].append(lot)
        return left


def promised(lots: Sequence[UnmatchedRun]) -> tuple[ExpectedCollective, ...]:
    """The promises of lots, each once."""
    return tuple(dict.fromkeys(lot.promise for lot in lots if lot.promise))


def found(lots: Sequence[UnmatchedRun]) -> tuple[Collective, ...]:
    """The collectives of lots, each once."""
    return tuple(dict.fromkeys(lot.collective for lot in lots if lot.collective))
