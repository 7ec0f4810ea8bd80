"""Compare two plans, and price a plan at other hardware numbers, with arithmetic on the plans' own steps."""

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
    """A change of one hardware number, by a factor, that makes the other plan the faster one."""

    quantity: str
    factor: float


@dataclass(frozen=True)
class PlanComparison:
    """Explain why a plan lost: the margin, the step that decides most, and the 20% changes that would turn it.

    `margin_s` is in seconds, `margin` a share of the winner's step.
    """

    margin_s: float
    margin: float
    deciding_text: str
    deciding_component: str
    deciding_s: float
    turns: tuple[Turn, ...]


def step_seconds(plan: Plan, *, flops: float = 1.0, hbm: float = 1.0, ici: float = 1.0) -> float:
    """Return the plan's estimate in seconds with FLOP/s, HBM and ICI bandwidth times these factors.

    The layout stays the same.
    """
    total = sum(s.layers * _seconds(s, plan, flops, hbm, ici) for s in plan.cost.steps)
    return total - hidden_s(plan.cost.steps, plan.reached, plan.prefetch_s, flops, hbm, ici)


def _seconds(step: StepPlan, plan: Plan, flops: float, hbm: float, ici: float) -> float:
    """Return the seconds of one step of one layer at these factors."""
    return max(step.flops_s / flops, step.hbm_s / hbm) + sum(c.seconds(plan.reached, ici) for c in step.comms)


def hidden_s(
    steps: Sequence[StepPlan],
    reached: Reached | None,
    prefetch_s: float,
    flops: float = 1.0,
    hbm: float = 1.0,
    ici: float = 1.0,
) -> float:
    """Return the seconds that the components of a step do not wait, by `overlap.overlapped_s` of each.

    Gathers run behind the operations of the body. At the data sheet (`reached` None) nothing overlaps.

    `prefetch_s` is the time in seconds by which weights can be read ahead in a layer; `flops`, `hbm` and `ici` are
    factors of the hardware numbers.
    """
    if reached is None:
        return 0.0
    hiding_of = defaultdict[str, _Hiding](_Hiding)
    for s in steps:
        hiding, flops_s, hbm_s = hiding_of[s.component], s.flops_s / flops, s.hbm_s / hbm
        hiding.layers = s.layers
        hiding.roof_s += max(flops_s, hbm_s) if s.part == "body" else 0.0
        hiding.spare_s += max(hbm_s - flops_s, 0.0) if reads_ahead(s.op) else 0.0
        if s.behind:
            hiding.behind_s += sum(c.seconds(reached, ici) for c in s.comms)
        else:
            hiding.wait_s += sum(c.hops_s + c.launches * reached.launch_s for c in s.comms)
    return sum(hiding_of_component.seconds(prefetch_s / hbm) for hiding_of_component in hiding_of.values())


@dataclass
class _Hiding:
    """Sum the terms of one layer of a component that decide what overlaps."""

    layers: int = 1
    roof_s: float = 0.0
    behind_s: float = 0.0
    wait_s: float = 0.0
    spare_s: float = 0.0

    def seconds(self, prefetch_s: float) -> float:
        """Return the hidden seconds of all layers."""
        return self.layers * float(overlapped_s(self.roof_s, self.behind_s, self.wait_s, self.spare_s, prefetch_s))


def compare(winner: Plan, loser: Plan) -> PlanComparison:
    """Compare two plans of one slice and batch.

    The deciding step is the one whose seconds differ most in the winner's favour; the changes are those of 20% in one
    of `QUANTITIES`.
    """
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
    """Return the seconds per component and operation-with-result, and the longest step of each.

    All reshards of a component count as one operation: one plan's AllReduce is another's ReduceScatter and AllGather.
    """
    result: dict[tuple[str, str, str], tuple[float, StepPlan | None]] = {}
    for step in plan.cost.steps:
        what = f"{step.op} {step.text.split('[')[0]}" if step.part == "body" else "reshard"
        key = (step.component, step.part if step.part == "body" else "reshard", what)
        seconds, longest = result.get(key, (0.0, None))
        if longest is None or step.seconds > longest.seconds:
            longest = step
        result[key] = (seconds + step.layers * step.seconds, longest)
    return result


def _turns(winner: Plan, loser: Plan) -> Iterator[Turn]:
    """Yield the changes of one hardware number that make the loser the faster plan."""
    for quantity, name in zip(QUANTITIES, ("hbm", "ici", "flops"), strict=True):
        for factor in SWINGS:
            if step_seconds(loser, **{name: factor}) < step_seconds(winner, **{name: factor}):
                yield Turn(quantity, factor)


def cache_copies(plan: Plan) -> int:
    """Return the number of devices that store each entry of the KV cache; 1 means no copies."""
    copies = 1
    for spec in plan.specs.values():
        if spec.is_cache:
            cut = {axis for axes in spec.axes for axis in axes}
            sizes = [s for n, s in plan.mesh.sizes.items() if n not in cut]
            spec_copies = 1
            for size in sizes:
                spec_copies *= size
            copies = max(copies, spec_copies)
    return copies
