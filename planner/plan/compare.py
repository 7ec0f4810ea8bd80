"""Comparison of two plans, and of one plan on other hardware: arithmetic on a plan's own steps."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from mesh.chips import Reached
from planner.plan.plan import Plan, StepPlan
from strategies.primitives import reads_ahead
from strategies.readers.overlap import overlapped_s

QUANTITIES = ("HBM bandwidth", "ICI bandwidth", "FLOP/s")
SWINGS = (0.8, 1.2)


@dataclass(frozen=True)
class Turn:
    """A change of one hardware number that makes the other plan the faster one."""

    quantity: str
    factor: float


@dataclass(frozen=True)
class PlanComparison:
    """Why `loser` lost: by how much, in which step most, and which +-20% would turn it."""

    margin_s: float
    margin: float
    deciding_text: str
    deciding_component: str
    deciding_s: float
    turns: tuple[Turn, ...]


def step_seconds(plan: Plan, *, flops: float = 1.0, hbm: float = 1.0, ici: float = 1.0) -> float:
    """The plan's estimate with its FLOP/s, HBM and ICI bandwidth times these factors; the layout stays."""
    total = sum(s.layers * _seconds(s, plan, flops, hbm, ici) for s in plan.cost.steps)
    return total - hidden_s(plan.cost.steps, plan.reached, plan.prefetch_s, flops, hbm, ici)


def _seconds(step: StepPlan, plan: Plan, flops: float, hbm: float, ici: float) -> float:
    return max(step.flops_s / flops, step.hbm_s / hbm) + sum(c.seconds(plan.reached, ici) for c in step.comms)


def hidden_s(
    steps: Sequence[StepPlan],
    reached: Reached | None,
    prefetch_s: float,
    flops: float = 1.0,
    hbm: float = 1.0,
    ici: float = 1.0,
) -> float:
    """Seconds that a step's components do not wait, of those that their steps have: `overlap.overlapped_s` of each.

    The operations behind which gathers run are the body's. At the data sheet nothing overlaps (`reached` None).
    """
    if reached is None:
        return 0.0
    layers = defaultdict[str, _Hiding](_Hiding)
    for s in steps:
        of, flops_s, hbm_s = layers[s.component], s.flops_s / flops, s.hbm_s / hbm
        of.layers = s.layers
        of.roof_s += max(flops_s, hbm_s) if s.part == "body" else 0.0
        of.spare_s += max(hbm_s - flops_s, 0.0) if reads_ahead(s.op) else 0.0
        if s.behind:
            of.behind_s += sum(c.seconds(reached, ici) for c in s.comms)
        else:
            of.wait_s += sum(c.hops_s + c.launches * reached.launch_s for c in s.comms)
    return sum(one.seconds(prefetch_s / hbm) for one in layers.values())


@dataclass
class _Hiding:
    """The seconds of one layer of a component that can hide others, and that can be hidden."""

    layers: int = 1
    roof_s: float = 0.0
    behind_s: float = 0.0
    wait_s: float = 0.0
    spare_s: float = 0.0

    def seconds(self, prefetch_s: float) -> float:
        return self.layers * float(overlapped_s(self.roof_s, self.behind_s, self.wait_s, self.spare_s, prefetch_s))


def compare(winner: Plan, loser: Plan) -> PlanComparison:
    """Compare two plans of one slice and batch."""
    margin = loser.cost.step_s - winner.cost.step_s
    gains = _by_role(loser)
    for key, (seconds, _) in _by_role(winner).items():
        before, step = gains.get(key, (0.0, None))
        gains[key] = (before - seconds, step)
    key = max(gains, key=lambda k: (gains[k][0], k))
    seconds, step = gains[key]
    return PlanComparison(
        margin_s=margin,
        margin=margin / winner.cost.step_s,
        deciding_text=step.text if step else key[2],
        deciding_component=key[0],
        deciding_s=seconds,
        turns=tuple(_turns(winner, loser)),
    )


def _by_role(plan: Plan) -> dict[tuple[str, str, str], tuple[float, StepPlan | None]]:
    """Seconds per component and operation-with-result, and the longest step of each.

    How a component meets the residual counts as one: one plan's AllReduce is another's ReduceScatter and AllGather.
    """
    by_role: dict[tuple[str, str, str], tuple[float, StepPlan | None]] = {}
    for step in plan.cost.steps:
        what = f"{step.op} {step.text.split('[')[0]}" if step.part == "body" else "reshard"
        key = (step.component, step.part if step.part == "body" else "reshard", what)
        seconds, longest = by_role.get(key, (0.0, None))
        if longest is None or step.seconds > longest.seconds:
            longest = step
        by_role[key] = (seconds + step.layers * step.seconds, longest)
    return by_role


def _turns(winner: Plan, loser: Plan) -> Iterator[Turn]:
    for quantity, name in zip(QUANTITIES, ("hbm", "ici", "flops"), strict=True):
        for factor in SWINGS:
            if step_seconds(loser, **{name: factor}) < step_seconds(winner, **{name: factor}):
                yield Turn(quantity, factor)


def cache_copies(plan: Plan) -> int:
    """On how many devices each entry of the KV cache is held; 1 where no copy is held twice."""
    copies = 1
    for spec in plan.specs.values():
        if spec.is_cache:
            cut = {axis for axes in spec.axes for axis in axes}
            sizes = [s for n, s in plan.mesh.sizes.items() if n not in cut]
            here = 1
            for size in sizes:
                here *= size
            copies = max(copies, here)
    return copies
