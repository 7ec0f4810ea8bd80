"""Define candidates: choices of a search on their slices, ready to be ranked, judged by targets and priced in full."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

from mesh.slices import Slice
from planner.plan.plan import Plan
from planner.plan.pricing import price_layout
from planner.query.query import Query
from planner.query.targets import Merits, Prices, dollars_per_million_tokens, price_of
from planner.search.chosen_layout import from_choice
from planner.search.largest import largest_batch
from planner.search.problem import Choice, Problem, make_problem
from strategies.layout import BoundLayout


@dataclass(frozen=True)
class Candidate:
    """A choice with its slice and problem.

    Its properties are the figures by which targets are judged (`planner.query.targets.Figures`).
    """

    slice_: Slice
    problem: Problem
    choice: Choice

    def layout(self) -> BoundLayout:
        """Return the layout of the choice, bound to the problem's components."""
        return from_choice(self.choice, self.problem)

    @property
    def step_s(self) -> float:
        """Seconds of one step."""
        return self.choice.step_s

    @property
    def ttft_s(self) -> float | None:
        """Time to first token (TTFT) in seconds: the step of a prefill, None for a decode step."""
        return self.choice.step_s if self.problem.work.phase == "prefill" else None

    @property
    def tokens_per_s(self) -> float:
        """Tokens per second: decoded ones, or in prefill those of the prompts."""
        work = self.problem.work
        return self.choice.batch * work.tokens_per_sequence / self.choice.step_s

    @property
    def chips(self) -> int:
        """Number of chips of the slice."""
        return self.slice_.chips

    @property
    def tokens_per_s_per_chip(self) -> float:
        """Tokens per second, divided by the number of chips of the slice."""
        return self.tokens_per_s / self.slice_.chips

    def dollars(self, prices: Prices) -> float | None:
        """Return dollars per million tokens, or None where the slice's chip has no price."""
        price = price_of(prices, self.slice_.chip.name)
        return None if price is None else dollars_per_million_tokens(price, self.tokens_per_s_per_chip)

    def merits(self, prices: Prices) -> Merits:
        """Return the numbers by which an objective ranks the candidate; without a price the cost is infinite."""
        dollars = self.dollars(prices)
        return Merits(self.choice.step_s, self.tokens_per_s_per_chip, inf if dollars is None else dollars)


def problem_of(query: Query, slice_: Slice) -> Problem:
    """Return the problem of a slice, with its batches chosen where the query asks for automatic ones.

    Automatic batches are the powers of two up to the largest batch that fits, and that batch.
    """
    if not query.auto:
        return make_problem(query, slice_)
    largest = largest_batch(query, slice_) or 1
    powers = (1 << i for i in range(largest.bit_length()))
    return make_problem(query.at(*dict.fromkeys((*powers, largest))), slice_)


def price_candidate(candidate: Candidate, query: Query) -> Plan:
    """Return the plan of a candidate, priced step by step with the plain cost function.

    Raises `RuntimeError` where its seconds or bytes differ from those of the search's tables by more than 1e-9.
    """
    choice, problem = candidate.choice, candidate.problem
    plan = price_layout(
        candidate.layout(),
        candidate.slice_,
        query.model,
        query.work,
        choice.batch,
        choice.padded_batch,
        problem.fast,
    )
    for name, plain, searched in (
        ("step_s", plan.cost.step_s, choice.step_s),
        ("total_bytes", plan.memory.total_bytes, choice.total_bytes),
    ):
        if abs(plain - searched) > 1e-9 * max(plain, searched):
            raise RuntimeError(f"the search priced {name} at {searched}, the plain cost function at {plain}: {choice}")
    return plan
