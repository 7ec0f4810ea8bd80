"""Prefill and decode that share their weights: CP-SAT against every pair of layouts, and what a pair must keep."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import Any

import msgspec
import numpy as np
import pytest
from helpers import drawn
from oracles import bruteforce

from mesh.errors import InputError
from mesh.slices import Slice, parse_slice
from planner.best.sweep import sweep
from planner.cpsat import pair as coupled_pair
from planner.cpsat.pair import check_shared, pair_bytes, shared_pair
from planner.cpsat.phase_rows import PhaseRows, orders_of
from planner.cpsat.rows import mesh_searches
from planner.cpsat.solver import run
from planner.cpsat.specs import ordered
from planner.plan.file_proof import FEASIBLE, OPTIMAL
from planner.plan.layout_file import layout_of
from planner.plan.pricing import price_layout
from planner.query.query import Query
from planner.search.candidate import price_candidate
from planner.search.meshes import Mesh, meshes
from planner.search.problem import Problem, SearchResult, make_problem
from planner.search.residuals import CODES
from planner.search.search import columns
from strategies.components import IDLE, Component, components
from strategies.layout import NAMES, Assigned
from strategies.models.configs import load_model
from strategies.models.models import Model
from strategies.models.workload import Dtypes, Workload
from strategies.readers.bound import programs, size_program
from strategies.readers.memory import cache_bytes, weight_bytes
from strategies.readers.rates import Floats, tabulate_rates
from strategies.readers.specs import specs

ONE_AXIS, TWO_AXES = ("h100:2", "tpu7x:1x1x1"), ("v5e:2x2", "v5p:2x2x1", "h100:4")
SHARES = (None, 0.0, 0.3, 0.7)  # of the HBM between the least that a pair needs and what the fastest takes
QUICK = (pytest.param(22, marks=pytest.mark.slow), 43)
MANY = range(56)


def _close(a: float, b: float) -> bool:
    return abs(a - b) <= 1e-9 * max(abs(a), abs(b))


@dataclass(frozen=True)
class Case:
    """A toy pair: the two requests, their slice, the output tokens, and whether caches must be stored alike."""

    prefill: Query
    decode: Query
    slice_: Slice
    output: int
    cache: str

    def within(self, usable_bytes: float) -> Case:
        """The same with this much HBM."""
        chip = msgspec.structs.replace(self.slice_.chip, usable_hbm_bytes_per_device=usable_bytes)
        slice_ = parse_slice(self.slice_.name, chip)
        return Case(_request(self.prefill, slice_), _request(self.decode, slice_), slice_, self.output, self.cache)


def _request(request: Query, slice_: Slice) -> Query:
    return replace(request, slices=(slice_,))


def draw(seed: int) -> Case:
    """A toy model of one layer group on two or four chips, with batches, contexts and dtypes drawn from the seed.

    On two mesh axes, which every third case has, components have few roles, or there would be too many layouts.
    """
    random = Random(seed)
    two_axes = seed % 3 == 0
    model, slice_ = bruteforce.toy_model(random), bruteforce.toy_slice(random, TWO_AXES if two_axes else ONE_AXIS)
    dtypes = Dtypes(weights=random.choice(("bf16", "int8")), kv=random.choice(("bf16", "int8")))
    batches = random.choice((1, 2, 3, 4)), random.choice((2, 4, 8))
    context, output = random.choice((8, 16, 32)), random.choice((1, 10, 100))
    works = [
        Workload(phase="prefill", batches=batches[:1], context=context, dtypes=dtypes),
        Workload(phase="decode", batches=batches[1:], context=2 * context, dtypes=dtypes),
    ]
    first, second = (
        Query(
            model=model,
            slices=(slice_,),
            work=w,
            fixed=_some_roles(random, model, w, slice_, 1 + seed % 2) if two_axes else {},
        )
        for w in works
    )
    return Case(first, second, slice_, output, random.choice(coupled_pair.CACHES)).within(1e15)


def _some_roles(
    random: Random, model: Model, work: Workload, slice_: Slice, roles: int
) -> dict[str, dict[str, frozenset[str]]]:
    """Per component and axis idle and few roles drawn at random: every pair of layouts can be listed."""
    found: dict[str, dict[str, frozenset[str]]] = {}
    for component in components(model, work):
        names = sorted({role.name for body in component.bodies for role in body.parts[0].program.roles})
        for axis in slice_.axes:
            if axis.size > 1:
                drawn = frozenset({IDLE, *random.sample(names, min(roles, len(names)))})
                found.setdefault(component.name, {})[axis.name] = drawn
    return found


@dataclass(frozen=True)
class Row:
    """One assignment of a component in one situation: its stored specs, seconds, and bytes."""

    stored: tuple[object, ...]
    seconds: float
    weights: float
    kv: float
    peak: float


@dataclass(frozen=True)
class Situation:
    """A mesh, a padded batch, a residual and an order of the mesh axes; the rows of every component that meet there."""

    mesh: Mesh
    held: float
    rows: tuple[tuple[Row, ...], ...]


class EveryPair:
    """Every pair of layouts: bound, checked and priced one by one, and stored alike where their specs are equal."""

    def __init__(self, case: Case) -> None:
        self.case, self.bruteforce = case, bruteforce
        self.problems = [make_problem(r, case.slice_) for r in (case.prefill, case.decode)]
        self.norms = sum(c.times for c in self.problems[0].components) * case.prefill.model.D
        self.norms *= self.problems[0].fast.widths["weight"]

    def costs(self) -> tuple[Floats, Floats]:
        """Seconds per request and bytes per device of every pair."""
        decode = list(self._situations(self.problems[1]))
        found = [
            self._pairs(one, other)
            for one in self._situations(self.problems[0])
            for other in decode
            if one.mesh == other.mesh
        ]
        return tuple(np.concatenate([f[n] for f in found]) for n in range(2))  # type: ignore[return-value]

    def _situations(self, problem: Problem) -> Iterator[Situation]:
        oracle = self.bruteforce.Oracle(problem, "all")
        (batch,) = problem.work.batches
        for mesh in meshes(problem.slice_):
            for _, padded in columns([batch], problem.slice_.devices):
                for residual, told in self.bruteforce.states(len(mesh), problem.work.phase, "told apart"):
                    order = _sayable(mesh, residual, told)
                    held = self.bruteforce.held_bytes(problem, mesh, residual, padded) - self.norms
                    yield from self._met(oracle, problem, mesh, residual, order, padded, held)

    def _met(
        self,
        oracle: object,
        problem: Problem,
        mesh: Mesh,
        residual: tuple[str, ...],
        order: tuple[int, ...],
        padded: int,
        held: float,
    ) -> Iterator[Situation]:
        """One situation for each way in which all components mean one residual stream."""
        rates = tabulate_rates(problem.slice_, [[piece] for piece in mesh])
        options = [
            oracle._options(c, mesh, rates, residual, order, padded)  # type: ignore[attr-defined]
            for c in problem.components
        ]
        streams: list[tuple[frozenset[str], ...]] = [()]
        for component in options:
            kinds = sorted({share.residual for _, share in component}, key=sorted)
            streams = [(*s, kind) for s in streams for kind in kinds]
        for chosen in streams:
            if self.bruteforce._agree(chosen):
                rows = tuple(
                    tuple(
                        self._row(problem, c, mesh, residual, order, padded, pick, share)
                        for pick, share in of
                        if share.residual == stream
                    )
                    for c, of, stream in zip(problem.components, options, chosen, strict=True)
                )
                yield Situation(mesh, held, rows)

    def _row(
        self,
        problem: Problem,
        component: Component,
        mesh: Mesh,
        residual: tuple[str, ...],
        order: tuple[int, ...],
        padded: int,
        pick: object,
        share: object,
    ) -> Row:
        """What a share of the oracle stores, by the specs that its plan would have."""
        body = component.body(pick.body)  # type: ignore[attr-defined]
        assigned = (Assigned(component, body, pick.axes),)  # type: ignore[attr-defined]
        layout = self.bruteforce.make_layout(problem.slice_, mesh, residual, order, assigned)
        rates = tabulate_rates(problem.slice_, [[piece] for piece in mesh])
        priced = [size_program(layout, b, rates, problem.fast, padded) for b in programs(layout)]
        stored, weights, kv, bodies = [], 0.0, 0.0, 0
        for name, spec in specs(priced, problem.work).items():
            if name.endswith(("/Kc", "/Vc")):
                if self.case.cache == "equal":
                    axes = dict(zip(spec.dims, spec.axes, strict=True))
                    stored.append((name, axes["B"], axes["K"], axes["S"] and problem.work.phase))
            elif not name.endswith("/norm"):
                stored.append((name, spec.shape, spec.dims, spec.axes))
        for p in priced:
            if p.bound.part == "body":
                weights += 0.0 if component.tied and bodies else float(np.max(weight_bytes(p.scope)))
                kv += float(np.max(cache_bytes(p.scope)))
                bodies += 1
        return Row(
            tuple(sorted(stored, key=str)),
            share.seconds,  # type: ignore[attr-defined]
            component.times * weights,
            component.times * kv,
            share.peak,  # type: ignore[attr-defined]
        )

    def _pairs(self, one: Situation, other: Situation) -> tuple[Floats, Floats]:
        """All combinations of rows that are stored alike."""
        per_prefill = 1 / self.case.prefill.work.batches[0]
        per_decode = self.case.output / self.case.decode.work.batches[0]
        zero = np.zeros(())
        cost, kept, made, first, second = zero, zero, zero, zero, zero
        for mine, its in zip(one.rows, other.rows, strict=True):
            alike = [(a, b) for a in mine for b in its if a.stored == b.stored]
            cost = cost[..., None] + np.array([per_prefill * a.seconds + per_decode * b.seconds for a, b in alike])
            kept = kept[..., None] + np.array([b.weights + b.kv for _, b in alike])
            made = made[..., None] + np.array([a.kv for a, _ in alike])
            first = np.maximum(first[..., None], np.array([a.peak for a, _ in alike]))
            second = np.maximum(second[..., None], np.array([b.peak for _, b in alike]))
        total = self.norms + kept + np.maximum(made + first + one.held, second + other.held)
        return cost.reshape(-1), total.reshape(-1)


def _agrees(case: Case, costs: Floats, total: Floats, usable: float) -> None:
    """The pair found within this HBM costs what the best of every pair does; none where none fits."""
    case = case.within(usable)
    fits = costs[total <= usable]
    got = shared_pair(case.prefill, case.decode, case.slice_, output=case.output, cache=case.cache)
    if not len(fits):
        assert got is None
        return
    assert got is not None
    prefill, decode, proof = got
    assert proof.status == OPTIMAL
    assert proof.objective_s is not None
    assert _close(proof.objective_s, float(fits.min()))
    assert _close(proof.bound_s, float(fits.min()))
    plans = price_candidate(prefill, case.prefill), price_candidate(decode, case.decode)
    check_shared(*plans, cache=case.cache)
    assert pair_bytes(*plans) <= usable * (1 + 1e-9)
    for plan, problem in zip(plans, (prefill.problem, decode.problem), strict=True):
        layout, _, work = layout_of(plan, (), case.slice_.chip)
        again = price_layout(layout, case.slice_, plan.model, work, plan.batch, plan.padded_batch, problem.fast)
        assert again.specs == plan.specs, "a file of this plan would be another plan"
    cost = plans[0].cost.step_s / plans[0].batch + case.output * plans[1].cost.step_s / plans[1].batch
    assert _close(cost, proof.objective_s)


def _check(seed: int) -> None:
    case = draw(seed)
    costs, total = EveryPair(case).costs()
    if not len(costs):
        assert shared_pair(case.prefill, case.decode, case.slice_, output=case.output, cache=case.cache) is None
        return
    fastest = float(total[costs <= costs.min() * (1 + 1e-12)].min())
    for share in SHARES:
        least = float(total.min())
        _agrees(case, costs, total, 1e15 if share is None else least + (fastest - least) * share + 1)


def _sayable(mesh: Mesh, residual: Sequence[str], told: Sequence[int]) -> tuple[int, ...]:
    """The order that a plan file says, of those that agree on each dim: axes of B, T and D first, then the rest."""
    rest = [i for i in sorted(range(len(mesh)), key=lambda i: (mesh[i].axis, -mesh[i].stride)) if residual[i] == IDLE]
    return (*(i for dim in "BTD" for i in told if residual[i] == dim), *rest)


@pytest.mark.parametrize("seed", QUICK)
def test_the_best_pair_is_that_of_all_pairs(seed: int) -> None:
    """CP-SAT's pair costs what the best of every pair of layouts with equal specs does, whether memory binds or not."""
    _check(seed)


@pytest.mark.slow
@pytest.mark.parametrize("seed", MANY)
def test_the_best_of_many_pairs_is_that_of_all_pairs(seed: int) -> None:
    """The same for more than fifty problems."""
    _check(seed)


@pytest.mark.parametrize(
    ("kind", "phase"), [("gqa", "decode"), pytest.param("mixed", "prefill", marks=pytest.mark.slow)]
)
def test_specs_are_those_of_the_bound_programs(kind: str, phase: str) -> None:
    """On three mesh axes, rows drawn at random store what their programs say, in any order that a state stands for."""
    random, long = Random(7), 0
    work = Workload(phase=phase, batches=(16,), context=32, dtypes=Dtypes())
    request = Query(model=drawn.MODELS[kind], slices=(parse_slice("v5e:2x4"),), work=work)
    problem = make_problem(request, request.slices[0])
    (mesh_search,) = mesh_searches(problem, SearchResult())
    side, names = PhaseRows(mesh_search, 0, 1.0, True, {}), NAMES[: len(mesh_search.mesh)]
    orders = orders_of(side)
    while long < 40:
        i, state = random.randrange(len(side.rows)), random.randrange(len(mesh_search.state.residual))
        residual, order = int(mesh_search.state.residual[state]), random.choice(orders[state])
        at = random.randrange(len(side.rows[i]))
        component_rows, row = mesh_search.components[i], int(side.rows[i][at])
        if not mesh_search.allowed(i, state)[component_rows.boundary[row]]:
            continue
        table = component_rows.tables[component_rows.table_of[row]]
        axes = tuple(table.choices[c] for c in table.rows[component_rows.row_of[row]])
        cuts = tuple(CODES[c] for c in mesh_search.state.cuts[residual])
        assigned = (Assigned(problem.components[i], table.body, axes),)
        layout = bruteforce.make_layout(problem.slice_, mesh_search.mesh, cuts, order, assigned)
        rates = tabulate_rates(problem.slice_, [(p,) for p in mesh_search.mesh])
        found = specs([size_program(layout, b, rates, problem.fast, 16) for b in programs(layout)], work)
        for name, shape, dims in ordered(side.stored(i, at, residual), order):
            spec = found[f"{problem.components[i].name}/{name}"]
            cut = [tuple(names[axis] for axis in sum(dim, ())) for dim in dims]
            where = (*sorted(set(spec.dims) - {"S"}), "S") if name in ("Kc", "Vc") else spec.dims
            assert shape in ((), spec.shape)
            assert cut == [spec.axes[spec.dims.index(dim)] for dim in where]
            long += any(len(axes) > 1 for axes in cut)


def _case_of(model: str, slice_name: str, prompts: int = 1, slots: int = 16) -> tuple[Query, Query, Slice]:
    slice_ = parse_slice(slice_name)
    works = [
        Workload(phase=phase, batches=(batch,), context=context, dtypes=Dtypes())
        for phase, batch, context in (("prefill", prompts, 2000), ("decode", slots, 2300))
    ]
    requests = [Query(model=load_model(model), slices=(slice_,), work=work) for work in works]
    return requests[0], requests[1], slice_


def test_a_pair_costs_no_less_than_the_best_of_each_phase_and_less_freedom_never_pays() -> None:
    """Llama-3.1-8B on four chips: weights in one layout cost something, caches in one layout cost more."""
    prefill, decode, slice_ = _case_of("llama-3.1-8b", "v5e:2x2")
    alone = sum(
        weight * sweep(request).bests[0].choice.step_s for weight, request in ((1.0, prefill), (300 / 16, decode))
    )
    free, equal = (shared_pair(prefill, decode, slice_, output=300, cache=cache) for cache in ("resharded", "equal"))
    assert free is not None
    assert equal is not None
    assert free[2].objective_s is not None
    assert equal[2].objective_s is not None
    assert alone * (1 - 1e-9) <= free[2].objective_s <= equal[2].objective_s * (1 + 1e-9)
    for (first, second, _), cache in ((free, "resharded"), (equal, "equal")):
        plans = price_candidate(first, prefill), price_candidate(second, decode)
        check_shared(*plans, cache=cache)
        assert plans[0].mesh == plans[1].mesh


def test_a_pair_that_does_not_share_is_an_error() -> None:
    """Plans of which one stores a weight otherwise, or that do not fit together, are refused."""
    prefill, decode, slice_ = _case_of("llama-3.1-8b", "v5e:2x2")
    plans = [price_candidate(sweep(request).bests[0], request) for request in (prefill, decode)]
    with pytest.raises(RuntimeError, match="does not share"):
        check_shared(plans[0], plans[1])
    shared = shared_pair(prefill, decode, slice_, output=300)
    assert shared is not None
    first, second = price_candidate(shared[0], prefill), price_candidate(shared[1], decode)
    memory = msgspec.structs.replace(second.memory, usable_bytes=pair_bytes(first, second) * 0.99)
    with pytest.raises(RuntimeError, match="are usable"):
        check_shared(first, msgspec.structs.replace(second, memory=memory))


def test_no_pair_where_the_weights_do_not_fit() -> None:
    """Llama-3.1-70B in bf16 fits four v5e chips in no layout, and so in no pair."""
    assert shared_pair(*_case_of("llama-3.1-70b", "v5e:2x2"), output=300) is None


def test_a_limit_that_ends_a_pair_before_one_is_found_is_said() -> None:
    """Ended after a microsecond, one line says to give it more time."""
    with pytest.raises(InputError, match="no pair was found in so short a time; give it more"):
        shared_pair(*_case_of("llama-3.1-8b", "v5e:2x2"), output=300, seconds=1e-6)


def test_a_limit_that_ends_a_pair_leaves_its_gap(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the solver is ended with a pair in hand, the optimum lies between the proof's bound and objective."""
    arguments = _case_of("llama-3.1-8b", "v5e:2x2")
    whole = shared_pair(*arguments, output=300)
    monkeypatch.setattr(coupled_pair, "run", lambda model, seconds: replace(run(model, seconds), status=FEASIBLE))
    found = shared_pair(*arguments, output=300)
    assert whole is not None
    assert found is not None
    proof = found[2]
    assert proof.status == FEASIBLE
    assert proof.objective_s is not None
    assert whole[2].objective_s is not None
    assert proof.bound_s <= whole[2].objective_s * (1 + 1e-9) <= proof.objective_s * (1 + 2e-9)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"output": 0}, "output 0: expected a whole number from 1"),
        ({"output": 300, "cache": "none"}, "cache 'none': expected resharded or equal"),
        ({"output": 300, "seconds": 0.0}, "solver_seconds 0: expected a number of seconds above 0"),
    ],
)
def test_bad_input_of_a_pair_is_named(change: dict[str, Any], said: str) -> None:
    """No output tokens, an unknown treatment of caches, and a limit that is none are refused."""
    with pytest.raises(InputError, match=said):
        shared_pair(*_case_of("llama-3.1-8b", "v5e:2x2"), **change)


def test_a_pair_is_one_prefill_and_one_decode_batch_of_one_model() -> None:
    """Phases the wrong way round, and different models, are refused."""
    prefill, decode, slice_ = _case_of("llama-3.1-8b", "v5e:2x2")
    with pytest.raises(InputError, match="decode at batch 16: expected one prefill batch"):
        shared_pair(decode, prefill, slice_, output=300)
    other = _case_of("llama-3.1-70b", "v5e:2x2")[1]
    with pytest.raises(InputError, match="expected one model"):
        shared_pair(prefill, other, slice_, output=300)
