"""Candidates: choices of a search on their slices, and what a sweep over slices is made of."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import msgspec

from mesh.slices import Slice
from planner.plan.file_proof import Solver
from planner.plan.layout import Layout, from_choice
from planner.plan.plan import Plan
from planner.plan.pricing import price_layout
from planner.query.request import Request
from planner.search.largest import largest_batch
from planner.search.problem import Choice, Found, Problem, make_problem


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
    """What was found by slice name, and the best candidate of every slice and batch that has one.

    `solver`: what CP-SAT proved, where it chose; None: the search was exhaustive. `interrupted`: not all was searched.
    """

    found: Mapping[str, Found]
    bests: tuple[Candidate, ...]
    solver: Solver | None = None
    interrupted: bool = False


def problem_of(request: Request, slice_: Slice) -> Problem:
    """The problem of a slice; with automatic batches, powers of two and the largest that fits."""
    if not request.auto:
        return make_problem(request, slice_)
    largest = largest_batch(request, slice_) or 1
    powers = (1 << i for i in range(largest.bit_length()))
    work = msgspec.structs.replace(request.work, batches=tuple(dict.fromkeys((*powers, largest))))
    return make_problem(replace(request, work=work), slice_)


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
