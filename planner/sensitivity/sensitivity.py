"""Report what a little less or more of each hardware number does to the choice of a layout (`sensitivity`).

For each number the search runs again on the plan's slice, batch and context, and the plan's own layout is priced again:
the cost of keeping it instead of choosing anew is the regret.
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
"""Least swing; the effect of a smaller one is lost in rounding."""
_EQUAL = 1e-9  # a layout that is faster by less than this share counts as equal

Changed = Callable[[Chip, float], Chip]


@dataclass(frozen=True)
class Quantity:
    """A hardware number: `value` reads it from a chip, `times` returns the chip with a multiple of it.

    The value is None where it is unknown, or where nothing depends on it.
    """

    name: str
    unit: str
    value: Callable[[Chip, str], float | None]
    times: Changed


def _field(name: str) -> Changed:
    """Return a function that multiplies a field of the chip."""

    def times(chip: Chip, factor: float) -> Chip:
        """Return the chip with the field multiplied."""
        value = getattr(chip, name) * factor
        return msgspec.structs.replace(chip, **{name: int(value) if name == "vmem_bytes" else value})

    return times


def _times_flops(chip: Chip, factor: float) -> Chip:
    """Multiply the FLOP/s of all dtypes."""
    flops_per_s = {dtype: value * factor for dtype, value in chip.flops_per_s.items()}
    return msgspec.structs.replace(chip, flops_per_s=flops_per_s)


def _times_launch(chip: Chip, factor: float) -> Chip:
    """Multiply the launch cost."""
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
"""Hardware numbers to vary; VMEM only where estimates use reached constants, as nothing else depends on it."""


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
    """Report what +-`swing` of each hardware number does to plan `pick` of a plan file.

    `fix`, `programs`, `cuts` and `chip_file` must be those with which the plan was made. Constants are those of the
    plan. Raises `InputError` on bad input, and where the file's layout does not fit its model and slice.

    Each number is multiplied by 1 - `swing` and 1 + `swing`; the default is 20%. For each, the layout is searched again
    on the plan's slice and batch, and the plan's own layout is priced again.
    """
    if not LEAST_SWING <= swing < 1:
        raise InputError(f"swing {swing:g}: expected a share of at least {LEAST_SWING:g} and below 1, such as 0.2")
    path = Path(file)
    plan_file = read_plan(path)
    if not plan_file.plans:
        raise InputError(f"the plan file '{path}' holds no plan; expected one, as `meshwright plan` writes it")
    plan = pick_plan(plan_file, path, pick)
    extra_programs = programs_of(programs)
    fixed = fixed_roles(fix)
    subject = Subject(plan, *layout_of(plan, extra_programs, chip_of(plan, chip_file)), extra_programs, fixed, cuts)
    return _report(subject, str(path), pick, swing, progress)


@dataclass(frozen=True)
class Subject:
    """A plan with its layout (`kept`), slice and workload."""

    plan: Plan
    kept: BoundLayout
    slice_: Slice
    work: Workload
    programs: tuple[Program, ...] = ()
    fixed: Fixed = field(default_factory=dict)
    cuts: str = TWO

    def on(self, chip: Chip) -> tuple[Plan, Plan | None]:
        """Return the plan of the kept layout on this chip, and the best plan, or None where nothing fits."""
        slice_ = msgspec.structs.replace(self.slice_, chip=chip)
        return self._kept_on(slice_), self._best_on(slice_)

    def _kept_on(self, slice_: Slice) -> Plan:
        """Price the kept layout on a slice."""
        plan, fast = self.plan, speeds(slice_.chip, self.work.dtypes)
        return price_layout(self.kept, slice_, plan.model, self.work, plan.batch, plan.padded_batch, fast)

    def _best_on(self, slice_: Slice) -> Plan | None:
        """Search for the best plan on a slice."""
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
    """Return the sensitivities of all quantities that the chip has."""
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
            _sensitivity_to(subject, quantity, swing, progress)
            for quantity in QUANTITIES
            if quantity.value(chip, plan.dtypes.compute) is not None
        ),
    )


def _sensitivity_to(subject: Subject, quantity: Quantity, swing: float, progress: Progress) -> QuantityEffect:
    """Return the sensitivity to one quantity: elasticities, and the outcomes with less and more of it."""
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
    """Return the outcome of one changed number."""
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
    """Return the best layout of a plan."""
    return None if plan is None else Best(step_s=plan.cost.step_s, mesh=plan.mesh, layouts=plan.layouts)


def _regret(kept: Plan, best: Plan | None) -> float | None:
    """Return the share by which the kept layout is slower than the best one."""
    return None if best is None else kept.cost.step_s / best.cost.step_s - 1


def _changed(kept: Plan, best: Plan | None) -> bool:
    """Return whether the best layout beats the kept one, or fits where that does not; ties are no change."""
    if best is None:
        return False
    return not kept.fits or kept.cost.step_s > best.cost.step_s * (1 + _EQUAL)


def changes(kept: Plan, best: Plan | None) -> tuple[Change, ...]:
    """Return the components whose program differs, or the number of devices of a role."""
    if best is None:
        return ()
    texts = [{layout.component: layout.roles_over(plan.mesh) for layout in plan.layouts} for plan in (kept, best)]
    return tuple(
        Change(component=name, kept=before, best=texts[1][name])
        for name, before in texts[0].items()
        if before != texts[1][name]
    )
