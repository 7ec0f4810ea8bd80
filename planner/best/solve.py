"""`plan`: search slices, rank layouts, price the best in full, and say what was rejected and why."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf

import msgspec

from mesh.slices import Slice, slices_of
from planner.best.candidate import Candidate, Sweep, price_candidate
from planner.best.meeting import check_phase, meeting, why_none
from planner.best.notes import cache_note
from planner.best.sweep import sweep
from planner.parallel import meanwhile
from planner.plan.file_proof import proved
from planner.plan.plan import Plan
from planner.plan.planfile import SCHEMA, Example, PlanFile, Rejected, Search
from planner.query.request import EXHAUSTIVE, Progress, Request
from planner.query.targets import Targets, dollars_per_million_tokens, price_of
from planner.search.problem import OVER_MEMORY, Found, Problem, make_problem
from planner.search.search import search
from strategies.models.workload import Workload

INTERRUPTED = "interrupted"


class NothingFits(Exception):
    """No layout fits: why, and the smallest slice of the same chip that would do."""

    def __init__(self, why: str, rejected: tuple[Rejected, ...], smallest: str | None, covered: Search) -> None:
        super().__init__(why)
        self.rejected, self.smallest, self.search = rejected, smallest, covered


def make_plan(request: Request, version: str, progress: Progress = lambda _: None) -> PlanFile:
    """Search every slice and batch. Raises `NothingFits` where no layout fits, `InputError` on bad input.

    `plans` holds the best layout of every slice and batch that meets the targets (`per_slice`: of every slice), and the
    runners-up (`top` in all) of the best of these.
    """
    check_phase(request)
    started = time.perf_counter()
    swept = sweep(request, progress)
    covered = _Covered(swept, started, time.perf_counter())
    fitting = sorted(swept.bests, key=lambda c: _rank(c, request))
    if not fitting:
        raise _nothing_fits(request, swept.found, _rejected(swept.found), covered.search())
    bests = meeting(fitting, request)
    if not bests and swept.interrupted:
        raise KeyboardInterrupt
    if not bests:
        raise NothingFits(why_none(fitting, request), (), None, covered.search())
    if request.per_slice:
        bests = _first_of_each_slice(bests)
    ranked, note, again = _ranked(request, bests, request.top if not swept.interrupted else 1, progress)
    return PlanFile(
        schema=SCHEMA,
        tool_version=version,
        objective=request.objective,
        plans=tuple(plan for _, plan in ranked),
        rejected=_rejected(swept.found),
        search=covered.search(again),
        notes=(*((note,) if note else ()), *_unfit_notes(swept.found, fitting, request)),
        targets=request.targets.words,
        prices=dict(request.prices),
        solver=swept.solver,
    )


def _ranked(
    request: Request, bests: Sequence[Candidate], top: int, progress: Progress
) -> tuple[list[tuple[Candidate, Plan]], str | None, Found]:
    """Candidates with their plans, the first one's runners-up among them, its note, and the runners-up's search."""

    def priced(candidates: Sequence[Candidate]) -> list[tuple[Candidate, Plan]]:
        return [(c, price_candidate(c, request)) for c in candidates]

    def note(best: Candidate, plan: Plan) -> str | None:
        return cache_note(best.problem, request.model, tuple(request.programs), best.choice, plan)

    if top == 1 or request.solver != EXHAUSTIVE:
        found = priced(bests)
        return found, note(*found[0]), Found()
    best = bests[0]
    progress(f"ranking the runners-up on {best.slice_.name}")
    work = msgspec.structs.replace(best.problem.work, batches=(best.choice.batch,))
    problem = replace(best.problem, work=work)
    with meanwhile(_search, (problem, top), request.workers) as runners_up:
        found = priced(bests)
        said = note(*found[0])
        again = runners_up()
    runners = [Candidate(best.slice_, problem, c) for c in again.choices[best.choice.batch]]
    ranked = sorted((*priced(runners), *found[1:]), key=lambda pair: _rank(pair[0], request))
    same = ranked[0][1].layouts == found[0][1].layouts  # of equals the search of more may put another one first
    return ranked, said if same else note(*ranked[0]), again


def _search(asked: tuple[Problem, int]) -> Found:
    return search(*asked)


@dataclass(frozen=True)
class _Covered:
    """What a sweep covered, between two moments."""

    swept: Sweep
    started: float
    ended: float

    def search(self, again: Found | None = None) -> Search:
        """As the plan file says it; `again`: the second search, for the runners-up."""
        found = self.swept.found.values()
        evaluations = sum(f.evaluations for f in found)
        solver, interrupted = self.swept.solver, self.swept.interrupted
        return Search(
            candidates=sum(f.candidates for f in found),
            evaluations=evaluations + (again.evaluations if again else 0),
            wall_s=time.perf_counter() - self.started,
            proved_optimal=proved(solver) if solver else INTERRUPTED if interrupted else EXHAUSTIVE,
            evaluations_per_s=evaluations / max(self.ended - self.started, 1e-9),
        )


def _unfit_notes(found: Mapping[str, Found], fitting: Sequence[Candidate], request: Request) -> list[str]:
    """One line for each slice on which some of the batches fit in no layout, and for slices on which none does."""
    notes, never = [], []
    for name, one in found.items():
        fits = {c.choice.batch for c in fitting if c.slice_.name == name}
        unfit = sorted(batch for batch in one.choices if batch not in fits)
        if request.per_slice and not fits:
            never.append(name)
        elif unfit:
            notes.append(f"{name}: no layout fits batch {', '.join(map(str, unfit))}")
    if never:
        notes.append(f"no layout fits any of the batches on {', '.join(never)}")
    return notes


def _first_of_each_slice(ranked: Sequence[Candidate]) -> list[Candidate]:
    first: dict[str, Candidate] = {}
    for candidate in ranked:
        first.setdefault(candidate.slice_.name, candidate)
    return list(first.values())


def _rank(candidate: Candidate, request: Request) -> tuple[object, ...]:
    choice, speed = candidate.choice, candidate.tokens_per_s_per_chip
    if request.objective == "latency":
        first = (float(f"{choice.step_s:.12g}"), -speed)
    elif request.objective == "cost":
        price = price_of(request.prices, candidate.slice_.chip.name) or inf
        first = (float(f"{dollars_per_million_tokens(price, speed):.12g}"), choice.step_s)
    else:
        first = (-float(f"{speed:.12g}"), choice.step_s)
    return (*first, candidate.slice_.chips, candidate.slice_.name, choice.batch, choice.total_bytes)


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
            problem = make_problem(
                replace(request, work=work, slices=(larger,), fixed=None, targets=Targets(), auto=False), larger
            )
            if search(problem, 1).choices.get(batch):
                return larger.name
    return None
