"""A plan as everything that runs or judges it takes it: read back once, with what follows from it beside it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from mesh.chips import Chip
from mesh.slices import Slice
from planner.plan.layout_file import layout_of
from planner.plan.plan import Plan
from strategies.components import Component
from strategies.layout import BoundLayout
from strategies.models.workload import Workload
from strategies.notation import Program


@dataclass(frozen=True, kw_only=True)
class Loaded:
    """A plan with the layout, slice and workload that it says, as `load` reads them back.

    `programs`: the user's own, which the plan was made with. `chip`: of a chip file, where the plan is on one.
    """

    plan: Plan
    layout: BoundLayout
    slice_: Slice
    workload: Workload
    programs: tuple[Program, ...] = ()
    chip: Chip | None = None

    @property
    def components(self) -> tuple[Component, ...]:
        """The model's components, in the order of the layout."""
        return tuple(assigned.component for assigned in self.layout.assigned)

    @property
    def padded_workload(self) -> Workload:
        """The workload that runs: its one batch is the plan's padded batch."""
        work = self.workload
        return Workload(phase=work.phase, batches=(self.plan.padded_batch,), context=work.context, dtypes=work.dtypes)


def load(plan: Plan, programs: Sequence[Program] = (), chip: Chip | None = None) -> Loaded:
    """Read a plan's layout back, on its slice and with its workload; raises `InputError` where it is no layout."""
    layout, slice_, workload = layout_of(plan, programs, chip)
    return Loaded(plan=plan, layout=layout, slice_=slice_, workload=workload, programs=tuple(programs), chip=chip)
