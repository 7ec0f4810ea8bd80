"""One layout in full: steps, sums, memory and specs."""

from __future__ import annotations

from dataclasses import replace
from math import prod

import msgspec
import pytest
from oracles import bruteforce

from mesh.chips import load_chip
from mesh.pieces import Piece
from mesh.slices import parse_slice
from planner.plan.plan import Plan
from planner.plan.pricing import price_layout
from planner.search.chosen_layout import from_choice
from planner.search.problem import Problem
from planner.search.search import search
from strategies.book.crossover import Grid, ws1d_comms_s, ws2d_comms_s
from strategies.components import Component, components
from strategies.layout import Assigned, lay_out, mesh_of
from strategies.models.models import Attention, LayerGroup, Mlp, Model
from strategies.models.workload import Dtypes, Workload
from strategies.notation import LayoutError
from strategies.readers.cost import speeds

SLICES = ("v5e:2x2", "v5p:2x2x1", "tpu7x:2x2x1", "h100:4", "v5e:2x4")
CASES = [*range(5), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(5, 14))]
BATCH = 4096


def _plans(seed: int) -> tuple[Problem, list[Plan]]:
    problem, model = bruteforce.toy_case(seed, SLICES)
    (batch,) = problem.work.batches
    return problem, [
        price_layout(from_choice(c, problem), problem.slice_, model, problem.work, batch, c.padded_batch, problem.fast)
        for c in search(problem, 3).choices[batch]
    ]


@pytest.mark.parametrize("seed", CASES)
def test_steps_sum_to_the_totals(seed: int) -> None:
    """Every total is the sum of its steps times their layers; the estimate is that of their seconds less what hides."""
    for plan in _plans(seed)[1]:
        cost = plan.cost
        for name in ("flops_s", "hbm_s", "ici_s", "latency_s"):
            assert getattr(cost, name) == pytest.approx(sum(s.layers * getattr(s, name) for s in cost.steps), rel=1e-12)
        assert cost.upper_bound_s == pytest.approx(cost.flops_s + cost.hbm_s + cost.ici_s + cost.latency_s, rel=1e-12)
        seconds = sum(s.layers * s.seconds for s in cost.steps) - cost.hidden_s
        assert cost.step_s == pytest.approx(seconds, rel=1e-12)
        may_hide = sum(s.layers * (s.latency_s + s.ici_s * s.behind) for s in cost.steps)
        assert 0 <= cost.hidden_s <= may_hide * (1 + 1e-12)
        for step in cost.steps:
            comms_s = sum(c.seconds(plan.reached) for c in step.comms)
            assert step.seconds == pytest.approx(max(step.flops_s, step.hbm_s) + comms_s, rel=1e-12)
            assert step.ici_s + step.latency_s == pytest.approx(comms_s, rel=1e-12, abs=1e-30)
            assert (step.bound_by == "free") == (step.seconds == 0)


@pytest.mark.parametrize("seed", CASES)
def test_memory_sums_and_weights_are_those_of_the_specs(seed: int) -> None:
    """The total is weights, cache and activations; the cache is what its specs leave on one device.

    Of a prompt longer than a sliding window the window is kept.
    """
    widths = {"bf16": 2, "int8": 1}
    problem, plans = _plans(seed)
    kept = {c.name: c.dims["kept"] for c in problem.components if "kept" in c.dims}
    for plan in plans:
        memory = plan.memory
        total = memory.weights_bytes + memory.kv_bytes + memory.activation_bytes
        assert memory.total_bytes == pytest.approx(total, rel=1e-12)
        sizes = plan.mesh.sizes
        layers = {layout.component: layout.layers for layout in plan.layouts}
        held = 0.0
        for name, spec in plan.specs.items():
            for size, axes in zip(spec.shape, spec.axes, strict=True):
                assert size % prod(sizes[a] for a in axes) == 0
            if name.endswith(("/Kc", "/Vc")):
                ways = prod(sizes[a] for axes in spec.axes for a in axes)
                owner = name.split("/")[0]
                held += layers[owner] * kept[owner] * prod(spec.shape) / ways * widths[spec.dtype]
        assert memory.kv_bytes == pytest.approx(held, rel=1e-12)


@pytest.mark.parametrize("seed", CASES)
def test_axes_cut_each_tensor_once(seed: int) -> None:
    """No mesh axis cuts two dims of one tensor, in a weight, a cache or an activation."""
    for plan in _plans(seed)[1]:
        for spec in (*plan.specs.values(), *plan.activation_specs.values()):
            used = [axis for axes in spec.axes for axis in axes]
            assert len(used) == len(set(used))
            assert set(used) <= set(plan.mesh.axis_names)


def dense_mlp(name: str, gated: bool) -> tuple[Problem, Model, Component]:
    """A dense layer with F = 4D on a slice of v5p whose hops take no time: bandwidth decides."""
    slice_ = parse_slice(name, msgspec.structs.replace(load_chip("v5p"), hop_latency_s=1e-12)).at_data_sheet
    group = LayerGroup(count=1, attention=Attention(N=64, K=8, H=128), mlp=Mlp(F=32768, gated=gated))
    model = Model(name="dense", D=8192, V=32000, tied=False, groups=(group,))
    work = Workload(phase="decode", batches=(BATCH,), context=1024, dtypes=Dtypes())
    mlp = next(c for c in components(model, work) if c.kind == "mlp")
    return Problem(slice_, work, (mlp,), speeds(slice_.chip, work.dtypes), 1e15), model, mlp


def _mlp_plan(name: str, gated: bool, roles: tuple[str, ...], residual: tuple[str, ...]) -> Plan:
    problem, model, mlp = dense_mlp(name, gated)
    mesh = mesh_of(problem.slice_, [(Piece(axis=i, stride=1, size=n),) for i, n in enumerate(problem.slice_.dims)])
    layout = lay_out(mesh, residual, [Assigned(mlp, mlp.body("mlp"), roles)], "abc")
    return price_layout(layout, problem.slice_, model, problem.work, BATCH, BATCH, problem.fast)


def _large_comms_s(plan: Plan) -> float:
    """Bandwidth seconds of the collectives of activations; the norm's sums (4 bytes a token) are left out."""
    return sum(c.bandwidth_s for s in plan.cost.steps for c in s.comms if c.bytes > 1e6)


@pytest.mark.parametrize("gated", [False, True], ids=["plain", "gated"])
@pytest.mark.parametrize("name", ["v5p:4x4x4", "v5p:4x4x8"])
def test_mlp_collectives_take_what_the_closed_forms_say(name: str, gated: bool) -> None:
    """1D and 2D weight-stationary MLPs are priced at the chapter's formulas with the exact (n-1)/n."""
    slice_ = parse_slice(name)
    axis_bytes_per_s = 2 * slice_.chip.link_bytes_per_s
    one = _mlp_plan(name, gated, ("Y", "Y", "Y"), ("-", "-", "-"))
    two = _mlp_plan(name, gated, ("X", "Y", "Y"), ("D", "D", "D"))
    want = ws1d_comms_s(batch=BATCH, d=8192, chips=slice_.chips, ici_bytes_per_s=axis_bytes_per_s)
    assert _large_comms_s(one) == pytest.approx(want, rel=1e-9)
    want = ws2d_comms_s(
        batch=BATCH,
        d=8192,
        f=32768,
        grid=Grid(x=slice_.dims[0], yz=slice_.chips // slice_.dims[0]),
        ici_bytes_per_s=axis_bytes_per_s,
        gated=gated,
    )
    assert _large_comms_s(two) == pytest.approx(want, rel=1e-9)


def _fixed_best(name: str, gated: bool, roles: str) -> tuple[float, frozenset[str]]:
    """Seconds and roles of the best layout of the MLP whose every axis plays one of these roles."""
    problem, _, _ = dense_mlp(name, gated)
    fixed = {"mlp": {i: frozenset(roles) for i in range(3)}}
    best = search(replace(problem, fixed=fixed), 1).choices[BATCH][0]
    return best.step_s, frozenset(best.picks[0].axes)


@pytest.mark.parametrize(
    ("name", "gated", "wins_2d"),
    [
        ("v5p:4x4x4", False, True),
        ("v5p:4x4x4", True, False),
        ("v5p:4x4x8", False, True),
        ("v5p:4x4x8", True, True),
    ],
)
def test_the_search_takes_the_cheaper_mlp(name: str, gated: bool, wins_2d: bool) -> None:
    """With F = 4D and exact (n-1)/n, 2D wins at 4x4x4 if not gated, and at 4x4x8 in both forms, as its prices say."""
    one_s, roles = _fixed_best(name, gated, "F")
    assert roles == {"Y"}
    best_s, roles = _fixed_best(name, gated, "DF")
    two_s = _mlp_plan(name, gated, ("X", "Y", "Y"), ("D", "D", "D")).cost.step_s
    assert best_s <= min(one_s, two_s) * (1 + 1e-12)
    assert (roles == {"X", "Y"}) == wins_2d == (two_s < one_s)
    assert wins_2d or best_s == pytest.approx(one_s, rel=1e-12)


def test_a_dim_that_does_not_divide_is_named() -> None:
    """A layout that cuts a dim unevenly is refused with the dim, its size and the ways."""
    problem, model, mlp = dense_mlp("v5p:4x4x4", False)
    mesh = mesh_of(problem.slice_, [(Piece(axis=i, stride=1, size=4),) for i in range(3)])
    layout = lay_out(mesh, "---", [Assigned(mlp, mlp.body("mlp"), ("G",) * 3)])
    with pytest.raises(LayoutError, match="mlp: B does not divide: B = 24, cut 64 ways"):
        price_layout(layout, problem.slice_, model, problem.work, 24, 24, problem.fast)
