"""Compute seconds of many points as functions of the reached constants: priced once, evaluated for any constants.

    seconds = sum over steps of max(FLOPs / matmul, bytes / hbm) + bytes moved / link + hops x hop + launches x launch
              less what overlaps in each component (`strategies.readers.overlap`)

A test checks that this equals `pricing.price_layout` on `Slice.reaching` those constants.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np

from mesh.chips import Reached
from planner.plan.plan import Plan, StepPlan
from strategies.primitives import reads_ahead
from strategies.readers.overlap import overlapped_s
from strategies.readers.rates import Flags, Floats, Ints

AT_ONE = Reached(hbm=1, matmul=1, link=1, hop=1, launch_s=0)
"""The constants at which points are priced for `Terms`: every share 1, launches free."""


@dataclass(frozen=True)
class Terms:
    """For each step of all points its seconds at AT_ONE, its launches, and the numbers of its point and component.

    `body` marks steps of the component's body, behind which gathers of weights (`behind`) run; `matmul` marks steps
    that read weights, for at most `ahead_s` ahead of time (of the component). All arrays have shape [steps].
    """

    points: int
    point: Ints
    component: Ints
    body: Flags
    behind: Flags
    matmul: Flags
    flops_s: Floats
    hbm_s: Floats
    bandwidth_s: Floats
    hops_s: Floats
    launches: Floats
    ahead_s: Floats

    def seconds(self, reached: Reached) -> Floats:
        """Return the estimate of every point in seconds [points]."""
        flops_s, hbm_s = self.flops_s / reached.matmul, self.hbm_s / reached.hbm
        roof_s, wait_s = np.maximum(flops_s, hbm_s), self.hops_s * reached.hop + self.launches * reached.launch_s
        comm_s = self.bandwidth_s / reached.link + wait_s
        body_s = self._of_components(roof_s * self.body)
        gathers_s, latency_s = self._of_components(comm_s * self.behind), self._of_components(wait_s * ~self.behind)
        spare_s = self._of_components(np.maximum(hbm_s - flops_s, 0.0) * self.matmul)
        ahead_s = np.zeros(len(spare_s))
        ahead_s[self.component] = self.ahead_s / reached.hbm
        hidden_s = np.asarray(overlapped_s(body_s, gathers_s, latency_s, spare_s, ahead_s))
        point_of_component = np.zeros(len(spare_s), dtype=np.int64)
        point_of_component[self.component] = self.point
        return _sums(self.point, roof_s + comm_s, self.points) - _sums(point_of_component, hidden_s, self.points)

    def _of_components(self, values: Floats) -> Floats:
        """Return the sums of a quantity per component."""
        return _sums(self.component, values, int(self.component.max(initial=0)) + 1)

    def of(self, chosen: Sequence[int]) -> Terms:
        """Return the terms of these points, in their original order."""
        kept_points = sorted(set(chosen))
        mask = np.isin(self.point, kept_points)
        columns: dict[str, Any] = {name: getattr(self, name)[mask] for name in _COLUMNS}
        return replace(self, points=len(kept_points), point=np.searchsorted(kept_points, self.point[mask]), **columns)


def _sums(numbers: Ints, values: Floats, count: int) -> Floats:
    """Return the sums of the values of each number below `count`."""
    return np.bincount(numbers, weights=values, minlength=count).astype(np.float64)


_COLUMNS = tuple(f.name for f in fields(Terms) if f.name not in ("points", "point"))


def terms_of(plans: Sequence[Plan], keep: Callable[[StepPlan], bool] = lambda _: True) -> Terms:
    """Return the terms of plans that were priced at AT_ONE, of the steps to keep.

    Raises `ValueError` on plans priced at other constants.
    """
    components: dict[tuple[int, str], int] = {}
    rows = []
    for number, plan in enumerate(plans):
        if plan.reached != AT_ONE:
            raise ValueError(f"expected plans priced at {AT_ONE}, got {plan.reached}")
        for s in filter(keep, plan.cost.steps):
            component = components.setdefault((number, s.component), len(components))
            moved = (sum(c.bandwidth_s for c in s.comms), sum(c.hops_s for c in s.comms), _launches(s))
            flags = (s.part == "body", s.behind, reads_ahead(s.op))
            values = (s.flops_s, s.hbm_s, *moved, plan.prefetch_s)
            rows.append((number, component, *flags, *(s.layers * value for value in values)))
    return _terms(len(plans), rows)


def terms_of_collectives(collectives: Sequence[tuple[float, float, float]]) -> Terms:
    """Return the terms of single collectives: (bytes' seconds, hops' seconds, launches) at AT_ONE."""
    rows = [(i, i, False, False, False, 0.0, 0.0, *values, 0.0) for i, values in enumerate(collectives)]
    return _terms(len(collectives), rows)


def _launches(step: StepPlan) -> int:
    """Return the launches of a step."""
    return sum(c.launches for c in step.comms)


def _terms(points: int, rows: Sequence[tuple[float, ...]]) -> Terms:
    """Return the terms of rows of (point, component, body, behind, matmul, values...)."""
    point, component, body, behind, matmul, *values = np.array(rows, dtype=float).T
    flags = (column.astype(bool) for column in (body, behind, matmul))
    return Terms(points, point.astype(np.int64), component.astype(np.int64), *flags, *values)
