"""Seconds of many points as functions of what programs reach: priced once, then evaluated for any constants.

    seconds = sum over steps of max(FLOPs / matmul, bytes / hbm) + bytes moved / link + hops x hop + launches x launch
              less what gathers of weights take behind the matmuls of their component

which is what `pricing.price_layout` gives on `Slice.reaching` those constants (a test says so).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from mesh.chips import Reached
from planner.plan import Plan, StepPlan
from strategies.rates import Flags, Floats, Ints

AT_ONE = Reached(hbm=1, matmul=1, link=1, hop=1, launch_s=0)
"""The constants at which points are priced for `Terms`: every share 1, launches free."""


@dataclass(frozen=True)
class Terms:
    """Per step of all points: seconds at AT_ONE, launches, its point, and its body, which hides gathers of weights."""

    points: int
    point: Ints
    flops_s: Floats
    hbm_s: Floats
    bandwidth_s: Floats
    hops_s: Floats
    launches: Floats
    body: Ints
    """A number per (point, component) for steps of bodies, else 0, which hides nothing."""
    behind: Flags

    def seconds(self, reached: Reached) -> Floats:
        """The estimate of every point."""
        roof_s = np.maximum(self.flops_s / reached.matmul, self.hbm_s / reached.hbm)
        comm_s = self.bandwidth_s / reached.link + self.hops_s * reached.hop + self.launches * reached.launch_s
        bodies = int(self.body.max(initial=0)) + 1
        of = np.zeros(bodies, dtype=np.int64)
        of[self.body] = self.point
        hidden_s = np.minimum(_sums(self.body, roof_s, bodies), _sums(self.body, comm_s * self.behind, bodies))
        hidden_s[0] = 0.0
        return _sums(self.point, roof_s + comm_s, self.points) - _sums(of, hidden_s, self.points)

    def of(self, chosen: Sequence[int]) -> Terms:
        """The terms of these points, in the order in which they were."""
        kept = sorted(set(chosen))
        mask = np.isin(self.point, kept)
        number = np.searchsorted(kept, self.point[mask])
        columns: dict[str, Any] = {name: getattr(self, name)[mask] for name in _COLUMNS}
        return replace(self, points=len(kept), point=number, **columns)


def _sums(of: Ints, values: Floats, many: int) -> Floats:
    """Sums of the values of each number below `many`."""
    return np.bincount(of, weights=values, minlength=many).astype(np.float64)


_COLUMNS = ("flops_s", "hbm_s", "bandwidth_s", "hops_s", "launches", "body", "behind")


def terms_of(plans: Sequence[Plan], keep: Callable[[StepPlan], bool] = lambda _: True) -> Terms:
    """The terms of plans that were priced at AT_ONE, of the steps to keep."""
    bodies: dict[tuple[int, str], int] = {}
    rows = []
    for number, plan in enumerate(plans):
        if plan.reached != AT_ONE:
            raise ValueError(f"expected plans priced at {AT_ONE}, got {plan.reached}")
        for s in filter(keep, plan.cost.steps):
            body = bodies.setdefault((number, s.component), len(bodies) + 1) if s.part == "body" else 0
            moved = (sum(c.bandwidth_s for c in s.comms), sum(c.hops_s for c in s.comms))
            rows.append((number, body, s.behind, *(s.layers * v for v in (s.flops_s, s.hbm_s, *moved, _launches(s)))))
    return _terms(len(plans), rows)


def terms_of_collectives(found: Sequence[tuple[float, float, float]]) -> Terms:
    """The terms of single collectives: (bytes' seconds, hops' seconds, launches) at AT_ONE."""
    return _terms(len(found), [(i, 0, False, 0.0, 0.0, *values) for i, values in enumerate(found)])


def _launches(step: StepPlan) -> int:
    return sum(c.launches for c in step.comms)


def _terms(points: int, rows: Sequence[tuple[float, ...]]) -> Terms:
    table = np.array(rows, dtype=float).T
    return Terms(
        points,
        point=table[0].astype(np.int64),
        body=table[1].astype(np.int64),
        behind=table[2].astype(bool),
        flops_s=table[3],
        hbm_s=table[4],
        bandwidth_s=table[5],
        hops_s=table[6],
        launches=table[7],
    )
