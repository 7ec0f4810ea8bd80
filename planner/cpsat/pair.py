"""Find the best prefill and decode layouts of one slice that share one copy of the weights, proved by CP-SAT.

Both run on one mesh. Every weight tensor has one spec: the same shape after padding, and per dim the same mesh axes in
the same order, in both phases. Layouts are those that a plan file can state (`phase_rows.orders_of`). The norms'
vectors are not part of this: either layout reads its part of vectors that every device stores in full
(`norms.norm_bytes`). Caches have one spec too (`cache="equal"`: no cut over S then, whose positions a prefill keeps in
zigzag order and a decode striped), or they are free (`"resharded"`: the caller prices their move, as
`planner.serve.reshard.insert_move` does).

Minimised are the seconds of the slice per request of `output` tokens:

    prefill step / prefill batch  +  output x decode step / decode batch

Memory of a device, which must fit: the weights and norms once, the decode's caches, and the larger working set of

    prefill   the caches that its batch makes, its largest temporaries, its residual stream and update
    decode    its largest temporaries, its residual stream and update

A prefill thus runs while the decode batch's caches stay in HBM, and its own caches are not among them yet.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import isfinite
from typing import TYPE_CHECKING

import numpy as np

from mesh.errors import InputError
from mesh.slices import Slice
from planner.cpsat.phase_rows import PhaseRows, by_place, least_by_cut, phase_rows_of, same_mesh
from planner.cpsat.rows import SLACK, mesh_searches
from planner.cpsat.solver import Ended, run
from planner.cpsat.specs import Stored
from planner.plan.file_proof import FEASIBLE, INFEASIBLE, OPTIMAL, Proof
from planner.plan.plan import Plan
from planner.query.query import CP_SAT, Query, check_solver
from planner.search.candidate import Candidate, price_candidate
from planner.search.problem import SearchResult, make_problem
from strategies.layout import Assigned, BoundLayout, lay_out, mesh_of
from strategies.models.workload import LARGEST_CONTEXT, check_count
from strategies.notation import SEQUENCE

if TYPE_CHECKING:
    from planner.cpsat.pair_model import PairModel, PhaseVariables

CACHES = ("resharded", "equal")
GROWTH = (1.02, 1.1, 1.3, 2.0, 4.0, 16.0, np.inf)
"""Limits to try, as multiples of the lower bound of a pair's cost: the first limit that a pair meets proves it."""


class NoPairInTime(InputError):
    """Raised where the time limit of a pair's search ended it before there was any pair."""


@dataclass(frozen=True)
class SharedCandidate(Candidate):
    """Extend a candidate by an order of the mesh axes: its layout keeps the mesh's pieces, none of them merged."""

    order: tuple[int, ...]

    def layout(self) -> BoundLayout:
        """Return the layout of the choice, with one mesh axis for each piece, major first."""
        place = by_place(self.choice.mesh)
        mesh = mesh_of(self.slice_, [(self.choice.mesh[i],) for i in place])
        assigned = [
            Assigned(c, c.body(p.body), tuple(p.axes[i] for i in place))
            for c, p in zip(self.problem.components, self.choice.picks, strict=True)
        ]
        order = [mesh.axis_names[place.index(i)] for i in self.order]
        return lay_out(mesh, [self.choice.residual[i] for i in place], assigned, order)


Pair = tuple[SharedCandidate, SharedCandidate, Proof]


@dataclass(frozen=True)
class _Best:
    """The best pair so far."""

    phases: tuple[PhaseVariables, PhaseVariables]

    @property
    def cost_s(self) -> float:
        """Seconds of the slice per request, summed over both phases."""
        return sum(half.cost_s for half in self.phases)


def shared_pair(
    prefill: Query,
    decode: Query,
    slice_: Slice,
    *,
    output: int,
    cache: str = "resharded",
    seconds: float | None = None,
) -> Pair | None:
    """Return the best prefill and decode layouts of one slice that store every weight alike, or None.

    None means that no pair fits. Each query has one batch; `output` is the number of tokens of a request. The proof's
    objective and bound are seconds of the slice per request. When `seconds` of solving are over, the best pair so far
    is returned. Both candidates are priced again with the plain cost function, and their specs compared. Raises
    `InputError` on bad input, and `NoPairInTime` where there was no pair in time.
    """
    _check(prefill, decode, output, cache, seconds)
    queries = (prefill, decode)
    problems = [make_problem(query, slice_) for query in queries]
    batches = [query.work.batches[0] for query in queries]
    factors = (1 / batches[0], output / batches[1])
    search = _PairSearch(seconds)
    for pair in same_mesh(mesh_searches(problems[0], SearchResult()), mesh_searches(problems[1], SearchResult())):
        names: dict[Stored, int] = {}
        phase_rows = [
            phase_rows_of([b], n, f, cache == "equal", names) for b, n, f in zip(pair, batches, factors, strict=True)
        ]
        search.mesh(phase_rows)
    best = search.ended_best()
    if best is None:
        return None
    candidates = [
        SharedCandidate(slice_, problem, variables.choice(), variables.order)
        for problem, variables in zip(problems, best.phases, strict=True)
    ]
    plans = [price_candidate(c, r) for c, r in zip(candidates, queries, strict=True)]
    check_shared(plans[0], plans[1], cache)
    return candidates[0], candidates[1], search.proof()


def _check(prefill: Query, decode: Query, output: int, cache: str, seconds: float | None) -> None:
    """Raise `InputError` unless the queries are one prefill and one decode batch of one model and dtypes."""
    check_solver(CP_SAT, seconds)
    check_count("output", output, LARGEST_CONTEXT)
    if cache not in CACHES:
        raise InputError(f"cache '{cache}': expected {' or '.join(CACHES)}")
    for query, phase in ((prefill, "prefill"), (decode, "decode")):
        if query.work.phase != phase or len(query.work.batches) != 1:
            batches = ",".join(map(str, query.work.batches))
            raise InputError(f"{query.work.phase} at batch {batches}: expected one {phase} batch")
    if prefill.model != decode.model or prefill.work.dtypes != decode.work.dtypes:
        raise InputError(f"{prefill.model.name} and {decode.model.name}: expected one model and the same dtypes")


def pair_bytes(prefill: Plan, decode: Plan) -> float:
    """Return the bytes per device of both plans: weights once, the decode's caches, the larger working set."""
    prefill_memory, decode_memory = prefill.memory, decode.memory
    return (
        decode_memory.weights_bytes
        + decode_memory.kv_bytes
        + max(prefill_memory.kv_bytes + prefill_memory.activation_bytes, decode_memory.activation_bytes)
    )


def check_shared(prefill: Plan, decode: Plan, cache: str = "resharded") -> None:
    """Raise `RuntimeError` unless the plans store the weights alike and fit on one slice.

    With `cache="equal"` the caches must be stored alike, too.

    The norms' vectors are not compared. Bytes may exceed the usable HBM by the relative `SLACK` only.
    """
    for name, spec in decode.specs.items():
        short = name.rpartition("/")[2]
        if short == "norm" or (spec.is_cache and cache != "equal"):
            continue
        other = prefill.specs[name]
        if spec.is_cache:
            same = all(spec.cut_by(dim) == other.cut_by(dim) for dim in spec.dims) and not spec.cut_by(SEQUENCE)
        else:
            same = spec == other
        if not same:
            raise RuntimeError(f"CP-SAT found a pair that does not share {name}: {other} and {spec}")
    usable = decode.memory.usable_bytes
    if pair_bytes(prefill, decode) > usable * (1 + SLACK):
        raise RuntimeError(f"CP-SAT found a pair of {pair_bytes(prefill, decode)} bytes; {usable} are usable")


class _PairSearch:
    """The best pair of the meshes so far, and the proof about it."""

    def __init__(self, seconds: float | None) -> None:
        self.seconds = seconds
        self.best: _Best | None = None
        self.bound_s, self.wall_s, self.variables = np.inf, 0.0, 0
        self.cut_short = self.interrupted = False

    def mesh(self, phases: Sequence[Sequence[PhaseRows]]) -> None:
        """Find the best pair of one mesh, if it is better than those of the meshes before."""
        from planner.cpsat.pair_model import PairModel

        least_s_by_cut = [least_by_cut(phase_rows) for phase_rows in phases]
        least_s = sum(float((a + b).min(initial=np.inf)) for a, b in zip(*least_s_by_cut, strict=True))
        if not isfinite(least_s):
            return
        for factor in GROWTH:
            limit = min(factor * least_s, self.best.cost_s if self.best else np.inf)
            blocks = [
                [b for rows in phase_rows for b in rows.blocks(other_least_s, limit)]
                for phase_rows, other_least_s in zip(phases, least_s_by_cut[::-1], strict=True)
            ]
            bound_s = min(limit, self._solve(PairModel(blocks, least_s))) if all(blocks) else limit
            if self.cut_short or not isfinite(limit) or (self.best and self.best.cost_s <= limit * (1 + SLACK)):
                self.bound_s = min(self.bound_s, max(least_s, bound_s))
                return

    def _solve(self, model: PairModel) -> float:
        """Keep the best pair of a model if it is better, and return a lower bound of the model's pairs."""
        ended = self._run(model)
        if ended.has_solution:
            phases = model.solution(ended)
            if (
                abs(sum(phase.cost_s for phase in phases) - ended.objective / model.scale.factor)
                > SLACK * model.least_s * 2
            ):
                raise RuntimeError(
                    f"CP-SAT found {ended.objective / model.scale.factor} s, the tables differ: {phases}"
                )
            if ended.status == OPTIMAL:
                model.least_bytes(ended.objective)
                cheapest = self._run(model)
                phases = model.solution(cheapest) if cheapest.has_solution else phases
            if self.best is None or _Best(phases).cost_s < self.best.cost_s * (1 - SLACK):
                self.best = _Best(phases)
        self.cut_short |= ended.status not in (OPTIMAL, INFEASIBLE)
        return np.inf if ended.status == INFEASIBLE else model.bound_s(ended)

    def _run(self, model: PairModel) -> Ended:
        """Run the solver in the time that is left."""
        ended = run(model.model, None if self.seconds is None else max(self.seconds - self.wall_s, 1e-9))
        self.wall_s, self.variables = self.wall_s + ended.wall_s, max(self.variables, ended.variables)
        self.interrupted |= ended.interrupted
        return ended

    def ended_best(self) -> _Best | None:
        """Return the best pair, or None where it is proved that there is none.

        Raises `KeyboardInterrupt` or `NoPairInTime` where the search ended before there was a pair.
        """
        if self.best is None and self.interrupted:
            raise KeyboardInterrupt
        if self.best is None and self.cut_short:
            raise NoPairInTime(
                f"solver_seconds {self.seconds:g}: no pair was found in so short a time; give it more", "solver_seconds"
            )
        return self.best

    def proof(self) -> Proof:
        """Return the proof about the best pair."""
        assert self.best is not None
        cost_s = self.best.cost_s
        bound_s = min(self.bound_s, cost_s)
        return Proof(
            status=FEASIBLE if self.cut_short else OPTIMAL,
            objective_s=cost_s,
            bound_s=bound_s,
            gap=(cost_s - bound_s) / cost_s if self.cut_short else 0.0,
            wall_s=self.wall_s,
            variables=self.variables,
            interrupted=self.interrupted,
        )
