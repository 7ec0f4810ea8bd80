"""A sweep: the best layout of every slice and batch that a request names; questions across slices start from it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from mesh.slices import Slice
from planner.choices import Choice, Found, Problem
from planner.layout import Layout, from_choice
from planner.plan import Plan
from planner.pricing import price_layout
from planner.request import Progress, Request, make_problem
from planner.search import search


@dataclass(frozen=True)
class Candidate:
    """A choice on a slice, ready to be priced in full."""

    slice_: Slice
    problem: Problem
    choice: Choice

    def layout(self) -> Layout:
        """The layout of the choice."""
        return from_choice(self.choice, self.problem.components)

    @property
    def tokens_per_s(self) -> float:
        """Tokens decoded, or of prompts, per second."""
        work = self.problem.work
        return self.choice.batch * (work.context if work.phase == "prefill" else 1) / self.choice.step_s

    @property
    def tokens_per_s_per_chip(self) -> float:
        """The same for each chip of the slice."""
        return self.tokens_per_s / self.slice_.chips


@dataclass(frozen=True)
class Sweep:
    """What was found by slice name, and the best candidate of every slice and batch that has one."""

    found: Mapping[str, Found]
    bests: tuple[Candidate, ...]


def sweep(request: Request, progress: Progress = lambda _: None) -> Sweep:
    """Search every slice and batch of the request; by slice, then batch."""
    found, bests = {}, []
    for slice_ in request.slices:
        progress(f"searching {slice_.name}")
        problem = make_problem(request, slice_)
        found[slice_.name] = search(problem, 1)
        bests += [Candidate(slice_, problem, c) for cs in found[slice_.name].choices.values() for c in cs[:1]]
    return Sweep(found, tuple(bests))


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
