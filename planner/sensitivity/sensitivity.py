"""`sensitivity`: what a little less or more of each hardware number does to the choice of a layout.

For each number the search runs again on the plan's slice, batch and context, and the plan's own layout is priced again:
what it then costs not to have chosen anew is the regret.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import log
from pathlib import Path

import msgspec

from mesh.chips import Chip
from mesh.errors import InputError
from mesh.slices import Slice
from mesh.version import VERSION
from planner.plan.layout_file import chip_of, layout_of
from planner.plan.plan import Plan
from planner.plan.planfile import pick_plan, read_plan
from planner.plan.pricing import price_layout
from planner.query.query import TWO, Fixed, Progress, Query, fixed_roles, programs_of, silent
from planner.search.candidate import Candidate, price_candidate
from planner.search.problem import Problem, make_problem
from planner.search.search import search
from planner.sensitivity.types import SCHEMA, Best, Change, Outcome, QuantityEffect, SensitivityFile
from strategies.layout import BoundLayout
from strategies.models.workload import Workload
from strategies.notation import Program
from strategies.readers.cost import speeds

SWING = 0.2
LEAST_SWING = 1e-4
"""What a smaller one does is lost in rounding."""
_EQUAL = 1e-9  # a layout that is faster by less than this share is no better

Changed = Callable[[Chip, float], Chip]


@dataclass(frozen=True)
class Quantity:
    """A hardware number: its value of a chip (None: not known, or nothing depends on it), and a chip with more."""

    name: str
    unit: str
    value: Callable[[Chip, str], float | None]
    times: Changed


def _field(name: str) -> Changed:
    """Multiplies a field of the chip."""

    def times(chip: Chip, factor: float) -> Chip:
        value = getattr(chip, name) * factor
        return msgspec.structs.replace(chip, **{name: int(value) if name == "vmem_bytes" else value})

    return times


def _times_flops(chip: Chip, factor: float) -> Chip:
    flops_per_s = {dtype: value * factor for dtype, value in chip.flops_per_s.items()}
    return msgspec.structs.replace(chip, flops_per_s=flops_per_s)


def _times_launch(chip: Chip, factor: float) -> Chip:
    assert chip.reached is not None
    reached = msgspec.structs.replace(chip.reached, launch_s=chip.reached.launch_s * factor)
    return msgspec.structs.replace(chip, reached=reached)


QUANTITIES = (
    Quantity("FLOP/s", "FLOP/s", lambda chip, dtype: chip.flops_per_s[dtype], _times_flops),
    Quantity("HBM bandwidth", "bytes/s", lambda chip, _: chip.hbm_bytes_per_s, _field("hbm_bytes_per_s")),
    Quantity("ICI bandwidth", "bytes/s", lambda chip, _: chip.link_bytes_per_s, _field("link_bytes_per_s")),
    Quantity(
        "core link bandwidth", "bytes/s", lambda chip, _: chip.core_link_bytes_per_s, _field("core_link_bytes_per_s")
    ),
    Quantity("hop latency", "s", lambda chip, _: chip.hop_latency_s, _field("hop_latency_s")),
    Quantity("launch cost", "s", lambda chip, _: (chip.reached and chip.reached.launch_s) or None, _times_launch),
    Quantity(
        "HBM capacity",
        "bytes",
        lambda chip, _: chip.usable_hbm_bytes_per_device,
        _field("usable_hbm_bytes_per_device"),
    ),
    Quantity("VMEM", "bytes", lambda chip, _: chip.vmem_bytes if chip.reached else None, _field("vmem_bytes")),
)
"""What is varied; VMEM only where estimates are of what programs reach, as nothing else depends on it."""


def sensitivity(
    file: str | Path,
    *,
    pick: int = 1,
    swing: float = SWING,
    fix: Mapping[str, Mapping[str, str]] | None = None,
    programs: Sequence[str | Path] = (),
    cuts: str = TWO,
    chip_file: str | Path | None = None,
    progress: Progress = silent,
) -> SensitivityFile:
    """Search again with `swing` less and more of each hardware number, for plan `pick` of a plan file.

    `fix`, `programs`, `cuts` and `chip_file`: what the plan was made with. Constants are those that the plan says.
    Raises `InputError` on bad input, and where the file's layout is none of its model and slice.
    """
    if not LEAST_SWING <= swing < 1:
        raise InputError(f"swing {swing:g}: expected a share of at least {LEAST_SWING:g} and below 1, such as 0.2")
    path = Path(file)
    file_ = read_plan(path)
    if not file_.plans:
        raise InputError(f"the plan file '{path}' holds no plan; expected one, as `meshwright plan` writes it")
    plan = pick_plan(file_, path, pick)
    read = programs_of(programs)
    fixed = fixed_roles(fix)
    subject = Subject(plan, *layout_of(plan, read, chip_of(plan, chip_file)), read, fixed, cuts)
    return _report(subject, str(path), pick, swing, progress)


@dataclass(frozen=True)
class Subject:
    """A plan with the layout, slice and workload that it says; `kept` is its layout."""

    plan: Plan
    kept: BoundLayout
    slice_: Slice
    work: Workload
    programs: tuple[Program, ...] = ()
    fixed: Fixed = field(default_factory=dict)
    cuts: str = TWO

    def on(self, chip: Chip) -> tuple[Plan, Plan | None]:
        """The kept layout on this chip, and the best one; None where nothing fits."""
        slice_ = msgspec.structs.replace(self.slice_, chip=chip)
        return self._kept_on(slice_), self._best_on(slice_)

    def _kept_on(self, slice_: Slice) -> Plan:
        plan, fast = self.plan, speeds(slice_.chip, self.work.dtypes)
        return price_layout(self.kept, slice_, plan.model, self.work, plan.batch, plan.padded_batch, fast)

    def _best_on(self, slice_: Slice) -> Plan | None:
        query = Query(
            model=self.plan.model,
            slices=(slice_,),
            work=self.work,
            fixed=self.fixed,
            programs=self.programs,
            cuts=self.cuts,
        )
        problem: Problem = make_problem(query, slice_)
        choices = search(problem, 1).choices.get(self.plan.batch)
        return price_candidate(Candidate(slice_, problem, choices[0]), query) if choices else None


def _report(subject: Subject, path: str, pick: int, swing: float, progress: Progress) -> SensitivityFile:
    plan, chip = subject.plan, subject.slice_.chip
    kept, best = subject.on(chip)
    return SensitivityFile(
        schema=SCHEMA,
        tool_version=VERSION,
        plan=path,
        pick=pick,
        model=plan.model.name,
        slice=plan.slice,
        phase=plan.phase,
        batch=plan.batch,
        context=plan.context,
        dtypes=plan.dtypes,
        swing=swing,
        step_s=kept.cost.step_s,
        best=_best(best),
        regret=_regret(kept, best),
        changes=changes(kept, best) if _changed(kept, best) else (),
        quantities=tuple(
            _of(subject, quantity, swing, progress)
            for quantity in QUANTITIES
            if quantity.value(chip, plan.dtypes.compute) is not None
        ),
    )


def _of(subject: Subject, quantity: Quantity, swing: float, progress: Progress) -> QuantityEffect:
    progress(f"searching with {100 * swing:g}% less and more {quantity.name}")
    value = quantity.value(subject.slice_.chip, subject.plan.dtypes.compute) or 0.0
    less, more = (_outcome(subject, quantity, value, factor) for factor in (1 - swing, 1 + swing))
    span = log((1 + swing) / (1 - swing))
    return QuantityEffect(
        quantity=quantity.name,
        unit=quantity.unit,
        value=value,
        elasticity=log(more.kept_s / less.kept_s) / span,
        best_elasticity=log(more.best.step_s / less.best.step_s) / span if more.best and less.best else None,
        less=less,
        more=more,
    )


def _outcome(subject: Subject, quantity: Quantity, value: float, factor: float) -> Outcome:
    kept, best = subject.on(quantity.times(subject.slice_.chip, factor))
    changed = _changed(kept, best)
    return Outcome(
        factor=factor,
        value=value * factor,
        kept_s=kept.cost.step_s,
        kept_fits=kept.fits,
        best=_best(best),
        regret=_regret(kept, best),
        changed=changed,
        changes=changes(kept, best) if changed else (),
    )


def _best(plan: Plan | None) -> Best | None:
    return None if plan is None else Best(step_s=plan.cost.step_s, mesh=plan.mesh, layouts=plan.layouts)


def _regret(kept: Plan, best: Plan | None) -> float | None:
    return None if best is None else kept.cost.step_s / best.cost.step_s - 1


def _changed(kept: Plan, best: Plan | None) -> bool:
    """Return whether the best layout beats the kept one, or fits where that does not; ties are no change."""
    if best is None:
        return False
    return not kept.fits or kept.cost.step_s > best.cost.step_s * (1 + _EQUAL)


def changes(kept: Plan, best: Plan | None) -> tuple[Change, ...]:
    """The components whose program differs, or over how many devices a role is played."""
    if best is None:
        return ()
    texts = [{one.component: one.roles_over(plan.mesh) for one in plan.layouts} for plan in (kept, best)]
    return tuple(
        Change(component=name, kept=before, best=texts[1][name])
        for name, before in texts[0].items()
        if before != texts[1][name]
    )
