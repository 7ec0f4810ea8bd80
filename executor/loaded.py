"""A loaded plan: the plan together with the layout, slice and workload that follow from it."""

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
    """A plan with its layout, slice and workload, as `load` reads them back.

    `programs`: the user's own layout programs, if the plan was made with some. `chip`: the chip of a chip file, if the
    plan was made with one.
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
    """Read a plan's layout, slice and workload back; raises `InputError` if they are invalid or do not fit together."""
    layout, slice_, workload = layout_of(plan, programs, chip)
    return Loaded(plan=plan, layout=layout, slice_=slice_, workload=workload, programs=tuple(programs), chip=chip)
