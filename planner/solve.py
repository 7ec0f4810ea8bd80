"""`plan`: search slices, rank layouts, price the best in full, and say what was rejected and why."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from mesh.errors import InputError
from mesh.slices import Slice, slices_of
from planner.choices import OVER_MEMORY, Choice, Found, Problem
from planner.layout import Layout, from_choice
from planner.notes import cache_note
from planner.plan import SCHEMA, Example, Plan, PlanFile, Rejected, Search
from planner.pricing import price_layout
from planner.search import search
from strategies.components import IDLE, Component, components
from strategies.cost import Speeds, check_compute, speeds
from strategies.models import Model
from strategies.notation import Program
from strategies.workload import Workload

OBJECTIVES = ("throughput", "latency")
Progress = Callable[[str], None]
Fixed = Mapping[str, Mapping[str, frozenset[str]]]


class NothingFits(Exception):
    """No layout fits: why, and the smallest slice of the same chip that would do."""

    def __init__(self, why: str, rejected: tuple[Rejected, ...], smallest: str | None, covered: Search) -> None:
        super().__init__(why)
        self.rejected, self.smallest, self.search = rejected, smallest, covered


@dataclass(frozen=True)
class Request:
    """What `plan` is asked for."""

    model: Model
    slices: Sequence[Slice]
    work: Workload
    objective: str = "throughput"
    top: int = 5
    fixed: Fixed | None = None
    programs: Sequence[Program] = ()

    def __post_init__(self) -> None:
        if self.objective not in OBJECTIVES:
            raise InputError(f"objective '{self.objective}' is not known; expected {' or '.join(OBJECTIVES)}")
        if not 1 <= self.top <= 1000:
            raise InputError(f"top {self.top}: expected a whole number from 1 to 1000")
        if not self.slices:
            raise InputError("no slice given; expected at least one, such as v5e:4x4")
        for slice_ in self.slices:
            check_compute(slice_.chip, self.work.dtypes.compute)


@dataclass(frozen=True)
class Candidate:
    """A choice on a slice, ready to be priced in full."""

    slice_: Slice
    problem: Problem
    choice: Choice

    def layout(self) -> Layout:
        """The layout of the choice."""
        return from_choice(self.choice, self.problem.components)


def make_plan(request: Request, version: str, progress: Progress = lambda _: None) -> PlanFile:
    """Search every slice and batch. Raises `NothingFits` where no layout fits, `InputError` on bad input.

    `plans` holds the best layout of every slice and batch, and the runners-up (`top` in all) of the best of these.
    """
    started = time.perf_counter()
    found, bests = {}, []
    for slice_ in request.slices:
        progress(f"searching {slice_.name}")
        problem = make_problem(request, slice_)
        found[slice_.name] = search(problem, 1)
        bests += [Candidate(slice_, problem, c) for cs in found[slice_.name].choices.values() for c in cs[:1]]
    rejected = _rejected(found)
    if not bests:
        raise _nothing_fits(request, found, rejected, _covered(found, started))
    bests.sort(key=lambda c: _rank(c, request))
    runners, found["again"] = _runners_up(request, bests[0], progress)
    ranked = sorted((*runners, *bests[1:]), key=lambda c: _rank(c, request))
    plans = tuple(price_candidate(c, request) for c in ranked)
    note = cache_note(ranked[0].problem, request.model, tuple(request.programs), ranked[0].choice, plans[0])
    return PlanFile(
        schema=SCHEMA,
        tool_version=version,
        objective=request.objective,
        plans=plans,
        rejected=rejected,
        search=_covered(found, started),
        notes=(*((note,) if note else ()), *_unfit_notes(found, bests)),
    )


def _covered(found: Mapping[str, Found], started: float) -> Search:
    return Search(
        candidates=sum(f.candidates for name, f in found.items() if name != "again"),
        evaluations=sum(f.evaluations for f in found.values()),
        wall_s=time.perf_counter() - started,
        proved_optimal="exhaustive",
    )


def _unfit_notes(found: Mapping[str, Found], bests: Sequence[Candidate]) -> list[str]:
    """One line for each slice on which some of the batches fit in no layout."""
    notes = []
    for name, one in found.items():
        fits = {c.choice.batch for c in bests if c.slice_.name == name}
        unfit = sorted(batch for batch in one.choices if batch not in fits)
        if name != "again" and unfit:
            notes.append(f"{name}: no layout fits batch {', '.join(map(str, unfit))}")
    return notes


def make_problem(request: Request, slice_: Slice) -> Problem:
    """The search problem of one slice."""
    parts = components(request.model, request.work, request.programs)
    fast: Speeds = speeds(slice_.chip, request.work.dtypes)
    fixed = _fixed_roles(request.fixed or {}, parts, slice_)
    return Problem(slice_, request.work, parts, fast, slice_.chip.usable_hbm_bytes_per_device, fixed)


def _runners_up(request: Request, best: Candidate, progress: Progress) -> tuple[list[Candidate], Found]:
    if request.top == 1:
        return [best], Found()
    progress(f"ranking the runners-up on {best.slice_.name}")
    work = Workload(
        phase=request.work.phase,
        batches=(best.choice.batch,),
        context=request.work.context,
        dtypes=request.work.dtypes,
    )
    problem = replace(best.problem, work=work)
    found = search(problem, request.top)
    return [Candidate(best.slice_, problem, c) for c in found.choices[best.choice.batch]], found


def _rank(candidate: Candidate, request: Request) -> tuple[object, ...]:
    choice = candidate.choice
    tokens = choice.batch * (request.work.context if request.work.phase == "prefill" else 1)
    speed = tokens / choice.step_s / candidate.slice_.chips
    first = (
        (-float(f"{speed:.12g}"), choice.step_s)
        if request.objective == "throughput"
        else (float(f"{choice.step_s:.12g}"), -speed)
    )
    return (*first, candidate.slice_.chips, candidate.slice_.name, choice.batch, choice.total_bytes)


def price_candidate(candidate: Candidate, request: Request) -> Plan:
    """The plan of a candidate, priced step by step; fails loudly where the search's tables said otherwise."""
    choice, problem = candidate.choice, candidate.problem
    plan = price_layout(
        candidate.layout(),
        candidate.slice_,
        request.model,
        request.work,
        choice.batch,
        choice.padded_batch,
        problem.fast,
    )
    for name, mine, theirs in (
        ("step_s", plan.cost.step_s, choice.step_s),
        ("total_bytes", plan.memory.total_bytes, choice.total_bytes),
    ):
        if abs(mine - theirs) > 1e-9 * max(mine, theirs):
            raise RuntimeError(f"the search priced {name} at {theirs}, the plain cost function at {mine}: {choice}")
    return plan


def _fixed_roles(fixed: Fixed, parts: Sequence[Component], slice_: Slice) -> dict[str, dict[int, frozenset[str]]]:
    """Roles by component name and physical axis; raises `InputError` on a component, axis or role there is none of."""
    names = {axis.name: i for i, axis in enumerate(slice_.axes) if axis.size > 1}
    result: dict[str, dict[int, frozenset[str]]] = {}
    for kind, axes in fixed.items():
        matching = [c for c in parts if kind in (c.name, c.kind)]
        if not matching:
            raise InputError(f"--fix {kind}: no such component; this model has {', '.join(c.name for c in parts)}")
        for component in matching:
            limits = result.setdefault(component.name, {})
            for axis, roles in axes.items():
                names_of = [_roles(role, component, kind, axis) for role in sorted(roles)]
                limits[_axis(axis, names, slice_, kind)] = frozenset().union(*names_of)
    return result


def _axis(axis: str, names: Mapping[str, int], slice_: Slice, kind: str) -> int:
    if axis not in names:
        raise InputError(f"--fix {kind}={axis}: {slice_.name} has no torus axis '{axis}'; it has {', '.join(names)}")
    return names[axis]


def _roles(role: str, component: Component, kind: str, axis: str) -> frozenset[str]:
    """All roles of that name, or whose cache (or, where there is none, weights) part is it."""
    known = {r.name: r for body in component.bodies for r in body.parts[0].program.roles}
    found = {name for name, r in known.items() if role in (name, r.cache or r.weights)}
    if role == IDLE:
        found.add(IDLE)
    if not found:
        parts = sorted({r.cache or r.weights for r in known.values()})
        raise InputError(
            f"--fix {kind}={axis}:{role}: no role '{role}'; expected one of {', '.join(sorted(known))}, or the part "
            f"{', '.join(parts)}"
        )
    return frozenset(found)


def _rejected(found: Mapping[str, Found]) -> tuple[Rejected, ...]:
    grouped: dict[str, tuple[int, Example]] = {}
    for one in found.values():
        for (component, reason), (count, example) in one.rejected.items():
            key = f"{component}: {reason}"
            before, first = grouped.get(key, (0, _example(reason, example)))
            grouped[key] = (before + count, first)
    return tuple(Rejected(reason=k, count=n, example=e) for k, (n, e) in sorted(grouped.items()))


def _example(reason: str, numbers: Mapping[str, float]) -> Example:
    if reason == OVER_MEMORY:
        need, have = f"{numbers['bytes'] / 1e9:.2f} GB per device", f"{numbers['usable'] / 1e9:.2f} GB"
        return Example(need=need, have=have)
    dims = [f"{name} = {value:.0f}" for name, value in numbers.items() if name != "ways"]
    return Example(need=f"a multiple of {numbers['ways']:.0f}", have=", ".join(dims) or "the batch")


def _nothing_fits(
    request: Request, found: Mapping[str, Found], rejected: tuple[Rejected, ...], covered: Search
) -> NothingFits:
    slice_ = max(request.slices, key=lambda s: (s.chips, s.name))
    batch = min(request.work.batches)
    least = found[slice_.name].least_bytes.get(batch)
    usable = slice_.chip.usable_hbm_bytes_per_device
    if least is None:
        why = f"no layout of {request.model.name} divides over {slice_.name} at batch {batch}"
    else:
        why = (
            f"{request.model.name} does not fit on {slice_.name}: at batch {batch} it needs {least / 1e9:.2f} GB "
            f"per device at the least, and {usable / 1e9:.2f} GB are usable"
        )
    return NothingFits(why, rejected, _smallest(request, slice_, batch), covered)


def _smallest(request: Request, slice_: Slice, batch: int) -> str | None:
    """The smallest larger slice of the same chip on which some layout of that batch fits."""
    work = Workload(
        phase=request.work.phase, batches=(batch,), context=request.work.context, dtypes=request.work.dtypes
    )
    for larger in slices_of(slice_.chip):
        if larger.chips > slice_.chips:
            problem = make_problem(replace(request, work=work, slices=(larger,), fixed=None), larger)
            if search(problem, 1).choices.get(batch):
                return larger.name
    return None
