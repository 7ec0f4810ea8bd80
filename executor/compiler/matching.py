"""The state of a comparison: expected and compiled runs that nothing explains yet, and the rewrites found so far.

The rules of `executor.compiler.rewrites` work on a `Matching` one after the other: each subtracts the runs that it
explains, and runs that are left at the end are differences.
"""

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
    """Expected collectives that the compiler runs as others.

    `kind`: a name from the table in `executor.compiler.rewrites`. `extra_bytes`: the bytes that each device sends
    beyond the priced ones, over all runs; negative if it sends fewer.
    """

    kind: str
    expected: tuple[ExpectedCollective, ...]
    compiled: tuple[Collective, ...]
    extra_bytes: float


@dataclass(slots=True)
class UnmatchedRun:
    """Runs that no rule has explained yet, of one expected collective or of one operand of a compiled collective.

    `runs` counts down as rules explain runs. Either `expected` or `collective` names the origin.
    """

    kind: str
    axes: tuple[str, ...]
    elements: float
    width: float
    runs: int
    expected: ExpectedCollective | None = None
    collective: Collective | None = None


@dataclass(slots=True)
class Matching:
    """The expected and the compiled runs of one program on a mesh.

    `sizes`: `mesh.shape`, axis name -> size. `widens`: the compiler may move more bytes per element than priced, as the
    CPU's does with bf16. `rewrites`: what the rules have found so far. `pairs`: expected and compiled runs of equal
    kind, axes and elements.
    """

    sizes: Sizes
    expected: list[UnmatchedRun]
    compiled: list[UnmatchedRun]
    widens: bool = True
    rewrites: list[Rewrite] = field(default_factory=list)
    pairs: list[tuple[UnmatchedRun, UnmatchedRun]] = field(default_factory=list)

    def devices_along(self, axes: tuple[str, ...]) -> int:
        """Return the number of devices along these mesh axes."""
        return prod(self.sizes[axis] for axis in axes)

    def sent_bytes(self, unmatched: UnmatchedRun) -> float:
        """Return the bytes that each device sends in one run."""
        return unmatched.elements * unmatched.width * sent_share(unmatched.kind, self.devices_along(unmatched.axes))

    def extra_bytes(self, expected: Sequence[UnmatchedRun], compiled: Sequence[UnmatchedRun]) -> float:
        """Return the bytes that a device sends in the compiled runs that are left beyond those of the expected ones."""
        sent = [sum(unmatched.runs * self.sent_bytes(unmatched) for unmatched in runs) for runs in (expected, compiled)]
        return sent[1] - sent[0]

    def match(self, kind: str, expected: Sequence[UnmatchedRun], compiled: Sequence[UnmatchedRun]) -> None:
        """Explain the expected runs by the compiled ones, as many runs as all of them have left.

        `kind`: the rewrite to note; an empty string notes none, for runs that are equal.
        """
        runs = min(unmatched.runs for unmatched in (*expected, *compiled))
        extra = runs * (sum(map(self.sent_bytes, compiled)) - sum(map(self.sent_bytes, expected)))
        for unmatched in (*expected, *compiled):
            unmatched.runs -= runs
        if runs and kind:
            self.note(kind, expected, compiled, extra)

    def note(
        self, kind: str, expected: Sequence[UnmatchedRun], compiled: Sequence[UnmatchedRun], extra_bytes: float
    ) -> None:
        """Add a rewrite to `rewrites`, without changing any number of runs."""
        self.rewrites.append(Rewrite(kind, expected_collectives_of(expected), collectives_of(compiled), extra_bytes))

    def candidates(
        self, expected: UnmatchedRun, kind: str, elements: float, axes: tuple[str, ...] | None = None
    ) -> Iterator[UnmatchedRun]:
        """Yield the compiled runs of this kind and number of elements that may do the work of `expected`.

        `axes`: the mesh axes that they run over; None: those of `expected`. Unless `widens` is set, elements wider than
        the expected ones are left out.
        """
        for unmatched in self.compiled:
            if (
                unmatched.runs
                and (unmatched.kind, unmatched.axes) == (kind, expected.axes if axes is None else axes)
                and isclose(unmatched.elements, elements, rel_tol=1e-6)
                and (self.widens or unmatched.width <= expected.width)
            ):
                yield unmatched

    def by_key(self) -> dict[tuple[str, tuple[str, ...]], tuple[list[UnmatchedRun], list[UnmatchedRun]]]:
        """Return the (expected, compiled) runs that are left, by kind and axes."""
        left: dict[tuple[str, tuple[str, ...]], tuple[list[UnmatchedRun], list[UnmatchedRun]]] = defaultdict(
            lambda: ([], [])
        )
        for side, runs in enumerate((self.expected, self.compiled)):
            for unmatched in runs:
                if unmatched.runs:
                    left[unmatched.kind, unmatched.axes][side].append(unmatched)
        return left


def expected_collectives_of(runs: Sequence[UnmatchedRun]) -> tuple[ExpectedCollective, ...]:
    """Return the expected collectives that these runs belong to, each once."""
    return tuple(dict.fromkeys(unmatched.expected for unmatched in runs if unmatched.expected))


def collectives_of(runs: Sequence[UnmatchedRun]) -> tuple[Collective, ...]:
    """Return the compiled collectives that these runs belong to, each once."""
    return tuple(dict.fromkeys(unmatched.collective for unmatched in runs if unmatched.collective))
