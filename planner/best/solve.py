"""Make a plan (`plan`): search slices, rank layouts, price the best in full, and note what was excluded and why."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace

from mesh.version import VERSION
from planner.best.nothing import NothingFits, nothing_fits, why_none
from planner.best.sweep import rejected, sweep
from planner.parallel import meanwhile
from planner.plan.plan import Plan
from planner.plan.planfile import SCHEMA, PlanFile
from planner.query.query import EXHAUSTIVE, Progress, Query, silent
from planner.query.targets import OBJECTIVES
from planner.search.cache_notes import cache_note
from planner.search.candidate import Candidate, price_candidate
from planner.search.problem import Problem, SearchResult
from planner.search.search import search


def make_plan(query: Query, progress: Progress = silent) -> PlanFile:
    """Search every slice and batch, and return the plans, best first.

    `plans` has the best layout of every slice and batch that meets the targets (if any layout of it does, the best
    does); with `per_slice` the best batch of every slice. The runners-up (`top` in all) of the best of these are added.
    Raises `NothingFits` where no layout fits or meets the targets, and `InputError` on bad input.

    The search's numbers are not trusted: each shown layout is priced again by the plain cost function
    (`price_candidate`), and a difference raises `RuntimeError`. With `num_slices` above 1 the plans are of one slice,
    and their throughput of all.
    """
    query.check_targets()
    started = time.perf_counter()
    swept = sweep(query, progress)
    searched = time.perf_counter()
    fitting = sorted(swept.bests, key=lambda c: _rank(c, query))
    if not fitting:
        raise nothing_fits(query, swept.results, swept.covered(started, searched))
    bests = [c for c in fitting if not query.targets.missed(c)]
    if not bests and swept.interrupted:
        raise KeyboardInterrupt
    if not bests:
        raise NothingFits(why_none(fitting, query), (), None, swept.covered(started, searched))
    if query.per_slice:
        bests = _first_of_each_slice(bests)
    ranked, note, again = _ranked(query, bests, query.top if not swept.interrupted else 1, progress)
    file = PlanFile(
        schema=SCHEMA,
        tool_version=VERSION,
        objective=query.objective,
        plans=tuple(plan for _, plan in ranked),
        rejected=rejected(swept.results),
        search=swept.covered(started, searched, again),
        notes=(*((note,) if note else ()), *_unfit_notes(swept.results, fitting, query)),
        targets=query.targets.words,
        prices=dict(query.prices),
        solver=swept.solver,
    )
    if query.num_slices == 1:
        return file
    from planner.best.replicas import replicated

    return replicated(file, query.num_slices)


def _ranked(
    query: Query, bests: Sequence[Candidate], top: int, progress: Progress
) -> tuple[list[tuple[Candidate, Plan]], str | None, SearchResult]:
    """Return candidates with their plans, the first one's runners-up among them, a note, and the second search."""

    def priced(candidates: Sequence[Candidate]) -> list[tuple[Candidate, Plan]]:
        """Return the candidates with their plans."""
        return [(c, price_candidate(c, query)) for c in candidates]

    def note(best: Candidate, plan: Plan) -> str | None:
        """Return the note on the KV cache of the best plan."""
        return cache_note(best.problem, query.model, query.programs, best.choice, plan)

    if top == 1 or query.solver != EXHAUSTIVE:
        plans = priced(bests)
        return plans, note(*plans[0]), SearchResult()
    best = bests[0]
    progress(f"ranking the runners-up on {best.slice_.name}")
    problem = replace(best.problem, work=query.at(best.choice.batch).work)
    with meanwhile(_search, (problem, top), query.workers) as runners_up:
        plans = priced(bests)
        best_note = note(*plans[0])
        second_search = runners_up()
    runners = [Candidate(best.slice_, problem, c) for c in second_search.choices[best.choice.batch]]
    ranked = sorted((*priced(runners), *plans[1:]), key=lambda pair: _rank(pair[0], query))
    unchanged = ranked[0][1].layouts == plans[0][1].layouts  # a search for more may put another one of equals first
    return ranked, best_note if unchanged else note(*ranked[0]), second_search


def _search(problem_and_top: tuple[Problem, int]) -> SearchResult:
    """Search a problem for its best `top` layouts, in another process."""
    return search(*problem_and_top)


def _unfit_notes(results: Mapping[str, SearchResult], fitting: Sequence[Candidate], query: Query) -> list[str]:
    """Return one line for each slice on which some batches do not fit, and one for slices where none does."""
    notes, never = [], []
    for name, result in results.items():
        fits = {c.choice.batch for c in fitting if c.slice_.name == name}
        unfit = sorted(batch for batch in result.choices if batch not in fits)
        if query.per_slice and not fits:
            never.append(name)
        elif unfit:
            notes.append(f"{name}: no layout fits batch {', '.join(map(str, unfit))}")
    if never:
        notes.append(f"no layout fits any of the batches on {', '.join(never)}")
    return notes


def _first_of_each_slice(ranked: Sequence[Candidate]) -> list[Candidate]:
    """Return the best-ranked candidate of each slice."""
    first: dict[str, Candidate] = {}
    for candidate in ranked:
        first.setdefault(candidate.slice_.name, candidate)
    return list(first.values())


def _rank(candidate: Candidate, query: Query) -> tuple[object, ...]:
    """Return the sort key, best first by the objective; ties break by chips, name, batch and bytes."""
    choice, slice_ = candidate.choice, candidate.slice_
    merit = OBJECTIVES[query.objective].rank(candidate.merits(query.prices))
    return (*merit, slice_.chips, slice_.name, choice.batch, choice.total_bytes)
