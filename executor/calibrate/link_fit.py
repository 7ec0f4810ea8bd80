"""Fits of measured seconds of collectives, in the form in which they are priced, and how well they fit.

    seconds of a program = launch + runs x max(V x share / W, hops x hop)

`share` and `hops` are what `mesh.collectives` says of a kind. W and hop are those with the least errors of the
logarithm: a time of a microsecond counts as much as one of a second, and a wild one little (soft L1).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray
from scipy.optimize import least_squares

from mesh.chipfile import measured_chip
from mesh.pieces import Piece
from mesh.slices import parse_slice
from planner.plan.plan import Value
from strategies.kinds import KINDS
from strategies.readers.rates import tabulate_rates


class LinkFit(Value, frozen=True, kw_only=True):
    """A constant, and how well it says what was measured: relative errors, the median and the one of 1 in 10.

    `points` = 1: it was read off one measurement, the best, and explains no other.
    """

    name: str
    value: float
    unit: str
    points: int = 1
    median_error: float = 0.0
    tenth_error: float = 0.0
    note: str = ""

    @property
    def quality(self) -> str:
        """Return how well the constant fits the measurements, in words."""
        if self.points == 1:
            return self.note
        return f"fit of {self.points} times: median error {self.median_error:.0%}, 1 in 10 over {self.tenth_error:.0%}"


@dataclass(frozen=True)
class LinkSample:
    """A program of `runs` collectives: `moved` is the bytes of one that W divides, `hops` its hops."""

    kind: str
    runs: int
    moved: float
    hops: float
    seconds: float


def unit_rates(kind: str, n: int) -> tuple[float, float]:
    """Seconds per byte and of hops of a collective over n devices on a switch of 1 byte/s, with a hop of 1 s.

    >>> unit_rates("AllReduce", 4)  # 2 x 3/4 of V, 2 hops
    (1.5, 2.0)
    """
    ones = ("hbm_bytes", "hbm_bytes_per_s", "usable_hbm_bytes_per_device", "link_bytes_per_s", "hop_latency_s")
    rates: dict[str, Any] = dict.fromkeys(ones, 1.0) | {"flops_per_s": {}}
    chip = measured_chip("cpu", n, rates, dict.fromkeys(rates, "by definition"))
    table = tabulate_rates(parse_slice(f"cpu:{n}", chip), [[Piece(axis=0, stride=1, size=n)]])
    return float(table.s_per_byte[kind][1]), float(table.latency_s[kind][1])


def link_fits(samples: Sequence[LinkSample], launch_s: float) -> tuple[LinkFit, ...]:
    """W and the hop that all kinds share, which the chip has; then each kind's own, to show where they differ."""
    kinds = [kind for kind in KINDS if any(s.kind == kind for s in samples)]
    own = [_link_fit([s for s in samples if s.kind == kind], launch_s, f" of {kind}") for kind in kinds]
    return (*_link_fit(samples, launch_s, ""), *(fit for fits in own for fit in fits))


def _link_fit(samples: Sequence[LinkSample], launch_s: float, suffix: str) -> tuple[LinkFit, LinkFit]:
    work = np.array([[s.runs * s.moved, s.runs * s.hops] for s in samples])  # [samples, bytes and hops]
    seconds = np.array([s.seconds for s in samples])

    def errors(logs: NDArray[np.float64]) -> NDArray[np.float64]:
        log_errors: NDArray[np.float64] = np.log((launch_s + (work * np.exp(logs)).max(axis=1)) / seconds)
        return log_errors

    start = np.log((seconds[:, None] / work).min(axis=0))  # each term alone explains at most the quickest
    logs = least_squares(errors, start, loss="soft_l1", f_scale=0.1).x
    relative_errors = np.abs(np.expm1(errors(logs)))
    per_byte, hop_s = map(float, np.exp(logs))
    link = LinkFit(
        name=f"link_bytes_per_s{suffix}",
        value=1 / per_byte,
        unit="bytes/s",
        points=len(samples),
        median_error=float(np.median(relative_errors)),
        tenth_error=float(np.quantile(relative_errors, 0.9)),
    )
    return link, replace(link, name=f"hop_latency_s{suffix}", value=hop_s, unit="s")
