"""Write the note of a plan about copies of its KV cache, computed with the plan's own cost functions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import msgspec

from planner.plan.compare import cache_copies
from planner.plan.plan import Plan
from planner.plan.pricing import estimate_s, price_layout
from planner.search.chosen_layout import from_choice
from planner.search.problem import Choice, Problem
from planner.search.search import search
from strategies.components import Component, components
from strategies.layout import BoundLayout, bind_layout
from strategies.models.models import Model
from strategies.notation import LayoutError, Program

SHORT_CONTEXT = 128
LONGEST_CONTEXT = 1 << 22


@dataclass(frozen=True)
class _Study:
    """A problem that can be posed again at other contexts."""

    problem: Problem
    model: Model
    programs: tuple[Program, ...]
    batch: int

    def at(self, context: int, without_copies: bool = False) -> Problem:
        """Return the problem at a context; `without_copies` excludes every role that copies the cache."""
        work = msgspec.structs.replace(self.problem.work, context=context, batches=(self.batch,))
        parts = components(self.model, work, self.programs)
        roles = _without_copies(self.problem, parts) if without_copies else self.problem.fixed
        return replace(self.problem, work=work, components=parts, fixed=roles)

    def best(self, context: int, without_copies: bool = False) -> tuple[Choice, BoundLayout] | None:
        """Return the best choice at a context with its layout, or None where nothing fits."""
        problem = self.at(context, without_copies)
        choices = search(problem, 1).choices.get(self.batch)
        return (choices[0], from_choice(choices[0], problem)) if choices else None

    def price(self, layout: BoundLayout, padded: int, context: int) -> Plan:
        """Return the plan of a layout at a context."""
        problem, layout = self._posed(layout, context)
        return price_layout(layout, problem.slice_, self.model, problem.work, self.batch, padded, problem.fast)

    def seconds(self, layout: BoundLayout, padded: int, context: int) -> float:
        """Return the step seconds of a layout at a context."""
        problem, layout = self._posed(layout, context)
        return estimate_s(layout, problem.slice_, padded, problem.fast)

    def _posed(self, layout: BoundLayout, context: int) -> tuple[Problem, BoundLayout]:
        """Return the problem at a context, and the layout bound to its components."""
        problem = self.at(context)
        return problem, bind_layout(layout.layout, problem.components)


def cache_note(problem: Problem, model: Model, programs: tuple[Program, ...], choice: Choice, plan: Plan) -> str | None:
    """Return a note on whether copies of the KV cache pay, and up to which context; None for prefill or one device."""
    if plan.phase != "decode" or plan.devices == 1:
        return None
    study = _Study(problem, model, programs, plan.batch)
    copies = cache_copies(plan)
    chosen = (choice, from_choice(choice, problem))
    if copies > 1:
        return _note_of_copies(study, plan, chosen, copies)
    return _note_of_one_copy(study, plan, chosen)


def _note_of_copies(study: _Study, plan: Plan, chosen: tuple[Choice, BoundLayout], copies: int) -> str:
    """Return the note of a layout with copies: the best layout without them, and where it becomes faster."""
    note = f"KV cache: each entry is held on {copies} devices"
    other = study.best(plan.context, without_copies=True)
    if other is None:
        return f"{note}; no layout that holds it once fits"
    slower = other[0].step_s / plan.cost.step_s - 1
    switch = _switch(study, chosen, other, plan.context, LONGEST_CONTEXT)
    until = f"from context {switch} on it is the faster one" if switch else "it stays slower at any context that fits"
    return f"{note}; the best layout that holds it once is {slower:.2%} slower here: {until}"


def _note_of_one_copy(study: _Study, plan: Plan, chosen: tuple[Choice, BoundLayout]) -> str:
    """Return the note of a layout without copies: the context below which copies are faster."""
    note = "KV cache: no entry is held twice"
    short = study.best(SHORT_CONTEXT) if plan.context > SHORT_CONTEXT else None
    if short is None:
        return note
    copies = cache_copies(study.price(short[1], short[0].padded_batch, SHORT_CONTEXT))
    switch = _switch(study, short, chosen, SHORT_CONTEXT, plan.context) if copies > 1 else None
    if not switch:
        return f"{note}, and at batch {plan.batch} copies do not pay at any shorter context either"
    return f"{note}; below context {switch} a layout that holds it on {copies} devices is faster"


def _switch(
    study: _Study, copied: tuple[Choice, BoundLayout], single: tuple[Choice, BoundLayout], low: int, high: int
) -> int | None:
    """Return the least context at which the layout with one copy is the faster of the two, or None."""

    def single_wins(context: int) -> bool:
        """Return whether the layout with one copy is faster at a context."""
        single_s, copied_s = (study.seconds(layout, c.padded_batch, context) for c, layout in (single, copied))
        return single_s < copied_s

    return _bisect(single_wins, low, high)


def _bisect(holds: Callable[[int], bool], low: int, high: int) -> int | None:
    """Return the least value in (low, high] at which `holds`; it must hold at `high` and, once it does, stay so."""
    try:
        if not holds(high):
            return None
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (low, middle) if holds(middle) else (middle, high)
    except LayoutError:
        return None
    return high


def _without_copies(problem: Problem, parts: tuple[Component, ...]) -> dict[str, dict[int, frozenset[str]]]:
    """Return the roles that cut the cache, for every axis of every component that has a cache."""
    result = {name: dict(axes) for name, axes in problem.fixed.items()}
    for component in parts:
        roles = {b.role_name(axis) for b in component.bodies for t in b.caches for d in t.dims for axis in d.axes}
        if roles:
            for axis in range(len(problem.slice_.axes)):
                before = result.setdefault(component.name, {}).get(axis)
                result[component.name][axis] = frozenset(roles if before is None else roles & before)
    return result
