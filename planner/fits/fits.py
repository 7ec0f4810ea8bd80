"""Find per slice the largest batch at a context and the largest context at a batch, and what runs out (`fits`).

Largest numbers are exact (`planner.search.largest`). The bytes that devices then store are of one layout that fits,
priced in full: of those in the search's tables, one that takes about the least bytes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import inf

from mesh.slices import Slice
from mesh.version import VERSION
from planner.parallel import in_parallel
from planner.plan.plan import Memory, Plan, Value
from planner.plan.pricing import price_layout
from planner.query.query import Progress, Query, silent
from planner.query.slices import in_order
from planner.search.chosen_layout import from_choice
from planner.search.footprint import Footprints, Key
from planner.search.largest import batch_key, context_key, largest_batch, largest_context
from planner.search.problem import Choice, Problem, make_problem
from planner.search.search import columns
from strategies.layout import ComponentLayout, MeshAxes
from strategies.models.workload import LARGEST_BATCH, LARGEST_CONTEXT, Dtypes

SCHEMA = "meshwright.fits/1"
WEIGHTS, CACHE, ACTIVATIONS, DIVISION, NOTHING = "weights alone", "KV cache", "activations", "divisibility", "nothing"
_UNLIMITED_BYTES = 1e18


class Largest(Value, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The largest number that fits (None: not even one), and the resource that limits it.

    `runs_out` is HBM, by what fills it (`weights alone`, `KV cache`, `activations`); `divisibility`, where no layout
    runs any number; `nothing` up to the largest number that is supported. `next` is the least larger number that some
    layout runs, padded by at most 25%, which does not fit. `memory` and the layout are those at the largest number;
    where there is none, those that one sequence (or token) would need.
    """

    largest: int | None
    runs_out: str
    next: int | None
    memory: Memory | None
    mesh: MeshAxes | None
    layouts: tuple[ComponentLayout, ...]


class SliceFits(Value, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The answers of one slice: the largest `batch` at the query's context, the largest `context` at its batch.

    `fits` is true where the query's batch fits at its context.
    """

    slice: str
    chips: int
    devices: int
    fits: bool
    batch: Largest
    context: Largest


class Fits(Value, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The result of `fits`: slices by chips, and the smallest on which `batch` fits at `context`.

    `interrupted` is true where not all slices were searched.
    """

    schema: str
    tool_version: str
    model: str
    phase: str
    batch: int
    context: int
    dtypes: Dtypes
    smallest: str | None
    slices: tuple[SliceFits, ...]
    interrupted: bool = False


def make_fits(query: Query, progress: Progress = silent) -> Fits:
    """Find the largest batch at the query's context and the largest context at its one batch, on each of its slices.

    An interrupt keeps the slices so far; where there are none, `KeyboardInterrupt` is raised.

    The batch is searched from 1 to `LARGEST_BATCH` sequences, the context from 1 to `LARGEST_CONTEXT` tokens.
    """
    query = replace(query, slices=in_order(query.slices))
    rows: list[SliceFits] = []
    try:
        for row in in_parallel([(query, slice_) for slice_ in query.slices], fits_of_slice, query.workers):
            progress(f"filled {row.slice}")
            rows.append(row)
    except KeyboardInterrupt:
        if not rows:
            raise
    fitting = [row for row in rows if row.fits]
    return Fits(
        schema=SCHEMA,
        tool_version=VERSION,
        model=query.model.name,
        phase=query.work.phase,
        batch=query.work.batches[0],
        context=query.work.context,
        dtypes=query.work.dtypes,
        smallest=min(fitting, key=lambda row: (row.chips, row.slice)).slice if fitting else None,
        slices=tuple(rows),
        interrupted=len(rows) < len(query.slices),
    )


def fits_of_slice(item: tuple[Query, Slice]) -> SliceFits:
    """Return both answers for one (query, slice) pair."""
    query, slice_ = item
    batch, context = query.work.batches[0], query.work.context
    footprints = [Footprints(slice_, query.cuts) for _ in range(2)]
    largest_fitting = largest_batch(query, slice_, footprints[0])
    of_batch = _Question(
        query, slice_, lambda v: (v, context), batch_key(slice_.devices), LARGEST_BATCH, largest_fitting, footprints[0]
    )
    longest_fitting = largest_context(query, slice_, batch, footprints[1])
    of_context = _Question(
        query, slice_, lambda v: (batch, v), context_key(query, slice_), LARGEST_CONTEXT, longest_fitting, footprints[1]
    )
    return SliceFits(
        slice=slice_.name,
        chips=slice_.chips,
        devices=slice_.devices,
        fits=of_batch.plan(batch) is not None,
        batch=of_batch.answer(),
        context=of_context.answer(),
    )


@dataclass(frozen=True)
class _Question:
    """Pose one question on one slice: `sizes` gives batch and context of a number, `key` the cuts that it admits."""

    query: Query
    slice_: Slice
    sizes: Callable[[int], tuple[int, int]]
    key: Callable[[int], Key]
    limit: int
    largest: int | None
    footprints: Footprints

    def answer(self) -> Largest:
        """Return the largest number with its reason, or the needs of the least number where none fits."""
        after = self._next()
        plan = self.plan(self.largest) if self.largest else self.plan(after, free=True) if after else None
        return Largest(
            largest=self.largest,
            runs_out=self._runs_out(plan),
            next=after,
            memory=plan.memory if plan else None,
            mesh=plan.mesh if plan else None,
            layouts=plan.layouts if plan else (),
        )

    def _next(self) -> int | None:
        """Return the least number above the largest that some layout runs.

        No search is needed where the number admits the cuts of the largest one.
        """
        start = (self.largest or 0) + 1
        fitting_keys = [self.key(self.largest)] if self.largest else []
        for number in range(start, min(start + self.slice_.devices, self.limit + 1)):
            key = self.key(number)
            if any(smaller_key <= key for smaller_key in fitting_keys) or self._choice(number, free=True):
                return number
        return None

    def _runs_out(self, plan: Plan | None) -> str:
        """Return the resource that limits the number."""
        if self.largest == self.limit:
            return NOTHING
        if plan is None:
            return DIVISION
        if self.largest is None and self._least_bytes(1, 1) > plan.memory.usable_bytes:
            return WEIGHTS
        return CACHE if plan.memory.kv_bytes >= plan.memory.activation_bytes else ACTIVATIONS

    def _least_bytes(self, batch: int, context: int) -> float:
        """Return a lower bound of any layout's bytes, or 0 where no layout divides."""
        problem, pairs = self._problem(batch, context), columns((batch,), self.slice_.devices)
        need = self.footprints.need(problem, pairs)
        return need.least_bytes if need.least_bytes < inf else 0.0

    def plan(self, number: int, free: bool = False) -> Plan | None:
        """Return a layout that fits the number, priced in full; with `free` it may take any number of bytes."""
        choice = self._choice(number, free)
        if choice is None:
            return None
        problem = self._problem(*self.sizes(number))
        layout, work, model = from_choice(choice, problem), problem.work, self.query.model
        plan = price_layout(layout, self.slice_, model, work, choice.batch, choice.padded_batch, problem.fast)
        if abs(plan.memory.total_bytes - choice.total_bytes) > 1e-9 * choice.total_bytes:
            raise RuntimeError(f"the tables say {choice.total_bytes} bytes, the layout takes {plan.memory.total_bytes}")
        return plan

    def _choice(self, number: int, free: bool = False) -> Choice | None:
        """Return a choice that fits the number, or None."""
        problem, pairs = self._problem(*self.sizes(number)), columns(self.sizes(number)[:1], self.slice_.devices)
        posed = replace(problem, usable_bytes=_UNLIMITED_BYTES) if free else problem
        return self.footprints.need(posed, pairs).choice

    def _problem(self, batch: int, context: int) -> Problem:
        """Return the search problem of one batch and context."""
        return make_problem(self.query.at(batch, context=context), self.slice_)
