"""The collectives that a plan expects in its compiled program: the priced ones, counted in elements.

Elements rather than bytes are compared because a compiler may change the dtype of what it moves.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from planner.plan.plan import CommPlan, Plan, StepPlan
from strategies.models.workload import dtype_bytes
from strategies.primitives import known_primitive
from strategies.readers.cost import STATISTIC_BYTES

Width = Callable[[StepPlan, CommPlan], float]
"""A function from a step and one of its priced collectives to the bytes of one element."""

_TENSOR = re.compile(r"(\w+)\[")


@dataclass(frozen=True, slots=True)
class ExpectedCollective:
    """A collective that the plan prices and the compiled program should contain.

    `axes`: its mesh axes, in the mesh's order. `elements`: the elements of one run, in the convention of
    `executor.compiler.hlo`. `width`: bytes of one element. `runs`: runs per step of the model, over all layers.
    `text`: the component and the step of the layout program that it belongs to.
    """

    kind: str
    axes: tuple[str, ...]
    elements: float
    width: float
    runs: int
    text: str


def expected_collectives(
    steps: Sequence[StepPlan], sizes: Mapping[str, int], width: Width, *, as_run: bool = False
) -> list[ExpectedCollective]:
    """Return the priced collectives over mesh axes longer than 1; axes of size 1 move nothing.

    `sizes`: `mesh.shape`, axis name -> size. `width`: bytes of one element, from `widths`. `as_run`: use the kind that
    the slice's own compiler turns a collective into (`CommPlan.runs_as`) instead of the kind in the layout program.
    """
    expected = []
    for step in steps:
        for comm in step.comms:
            axes = tuple(axis for axis in sizes if axis in comm.axes and sizes[axis] > 1)
            if axes and comm.bytes * comm.times * step.layers:
                element_bytes = width(step, comm)
                text = f"{step.component}: {step.text}"
                kind = (as_run and comm.runs_as) or comm.kind
                expected.append(
                    ExpectedCollective(
                        kind, axes, comm.bytes / element_bytes, element_bytes, comm.times * step.layers, text
                    )
                )
    return expected


def widths(plan: Plan) -> Width:
    """Return a function that gives the bytes per element with which the plan priced a collective.

    Weights and caches have the dtype of their specs, statistics (softmax, norms) 4 bytes, and all other tensors the
    dtype of the activations.
    """
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
    """Return the name of a step's operand; an empty string if it has no operand of that number."""
    operands = _TENSOR.findall(step.text.partition("=")[2])
    return operands[number] if number < len(operands) else ""
