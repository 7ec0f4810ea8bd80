"""The collectives that a plan expects of the compiled program, in elements."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from planner.plan.plan import CommPlan, Plan, StepPlan
from strategies.models.workload import dtype_bytes
from strategies.primitives import known_primitive
from strategies.readers.cost import STATISTIC_BYTES

Width = Callable[[StepPlan, CommPlan], float]  # bytes of one element of a priced collective

_TENSOR = re.compile(r"(\w+)\[")


@dataclass(frozen=True, slots=True)
class ExpectedCollective:
    """A priced collective: elements of one run, bytes of one element, how often it runs, and the step's text."""

    kind: str
    axes: tuple[str, ...]
    elements: float
    width: float
    runs: int
    text: str


def promises(
    steps: Sequence[StepPlan], sizes: Mapping[str, int], width: Width, *, as_run: bool = False
) -> list[ExpectedCollective]:
    """The priced collectives over mesh axes longer than 1, their axes in the mesh's order (`sizes`: mesh.shape).

    `as_run`: of the kinds that the slice's own compiler makes of them; else of those that the program has.
    """
    expected = []
    for step in steps:
        for comm in step.comms:
            axes = tuple(axis for axis in sizes if axis in comm.axes and sizes[axis] > 1)
            if axes and comm.bytes * comm.times * step.layers:
                each = width(step, comm)
                text = f"{step.component}: {step.text}"
                kind = (as_run and comm.runs_as) or comm.kind
                expected.append(ExpectedCollective(kind, axes, comm.bytes / each, each, comm.times * step.layers, text))
    return expected


def widths(plan: Plan) -> Width:
    """Bytes per element as the plan priced them: of weights and caches by their specs, of statistics 4."""
    statistics = {
        (step.component, _TENSOR.findall(step.text)[0])
        for step in plan.cost.steps
        if (primitive := known_primitive(step.op)) and primitive.made == "statistic"
    }

    def width(step: StepPlan, comm: CommPlan) -> float:
        primitive = known_primitive(step.op)
        moved = primitive.collectives.get(comm.kind, 0) if primitive else 0
        if moved == "statistics":
            return STATISTIC_BYTES
        name = _operand(step, moved)
        spec = plan.specs.get(f"{step.component}/{name}")
        if spec:
            return dtype_bytes(spec.dtype)
        return STATISTIC_BYTES if (step.component, name) in statistics else dtype_bytes(plan.dtypes.activations)

    return width


def _operand(step: StepPlan, number: int) -> str:
    """Name of a step's operand; empty where it has none of that number."""
    operands = _TENSOR.findall(step.text.partition("=")[2])
    return operands[number] if number < len(operands) else ""
