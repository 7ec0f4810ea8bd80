"""A shrunken plan has the layouts, features and ratios of the real one, on axes of 2."""

from __future__ import annotations

from math import prod

import pytest
from helpers.planned import planned
from msgspec.structs import replace as changed

import meshwright
from executor.devices import Unavailable
from executor.levels.shrink import F32, MINIMUM_SIZES, shrink
from executor.loaded import load
from mesh.errors import InputError
from planner.plan.plan import Plan
from strategies.models.models import Attention, LayerGroup, Mlp, Model
from strategies.models.workload import Dtypes

CASES = [
    ("llama-3.1-70b", "v5e:8x8", "decode", 64),
    ("llama-3.1-70b", "v5p:4x4x4", "prefill", 4),
    ("qwen3-30b-a3b", "v5e:4x4", "decode", 64),
    ("mixtral-8x7b", "v5e:4x8", "prefill", 16),
    ("palm-540b", "v4:4x4x4", "decode", 64),
    ("gpt-oss-20b", "tpu7x:2x2x1", "decode", 8),
]
LONG = [
    case for case in CASES if case[0] in ("mixtral-8x7b", "palm-540b") or case[:2] == ("llama-3.1-70b", "v5p:4x4x4")
]
"""Their searches take seconds."""


def best(model: str | Model, slice_name: str, phase: str, batch: int) -> Plan:
    """The best plan."""
    return planned(model, slice_name, phase=phase, batch=(batch,), context=2048).plans[0]


def cuts(plan: Plan) -> dict[tuple[str, str], tuple[int, int]]:
    """(tensor, dim) -> (size, parts), of everything that the plan stores."""
    sizes = dict(zip(plan.mesh.axis_names, plan.mesh.axis_sizes, strict=True))
    return {
        (name, dim): (size, prod(sizes[a] for a in axes))
        for name, spec in plan.specs.items()
        for dim, size, axes in zip(spec.dims, spec.shape, spec.axes, strict=True)
    }


@pytest.mark.parametrize(
    ("model", "slice_name", "phase", "batch"),
    [pytest.param(*case, marks=pytest.mark.slow if case in LONG else []) for case in CASES],
)
def test_layouts_axes_and_features_stay(model: str, slice_name: str, phase: str, batch: int) -> None:
    """The same programs, roles and residual; every axis 2; two layers a group; what a layer has, it has."""
    plan = best(model, slice_name, phase, batch)
    small = shrink(load(plan)).plan
    assert small.mesh.axis_sizes == tuple(min(size, 2) for size in plan.mesh.axis_sizes)
    assert (small.mesh.axis_names, small.residual) == (plan.mesh.axis_names, plan.residual)
    for a, b in zip(plan.layouts, small.layouts, strict=True):
        assert (a.program, a.assignment, a.sequence_order) == (b.program, b.assignment, b.sequence_order)
    assert small.model.tied == plan.model.tied
    assert small.model.norm == plan.model.norm
    for a, b in zip(plan.model.groups, small.model.groups, strict=True):
        assert b.count == min(a.count, 2)
        assert (a.attention.K == 1, a.attention.M == 1) == (b.attention.K == 1, b.attention.M == 1)
        assert (a.mlp.moe, a.mlp.gated, a.parallel, a.mlp.k > 1) == (b.mlp.moe, b.mlp.gated, b.parallel, b.mlp.k > 1)
        for name in ("qk_norm", "qkv_bias", "o_bias", "sinks"):
            assert getattr(a.attention, name) == getattr(b.attention, name)
        if a.attention.window is not None:
            assert (a.attention.window < plan.context) == (b.attention.window < small.context)
    assert plan.specs.keys() == small.specs.keys()


@pytest.mark.parametrize(
    ("model", "slice_name", "phase", "batch"),
    [pytest.param(*case, marks=pytest.mark.slow if case in LONG else []) for case in CASES],
)
def test_what_is_cut_into_single_elements_stays_so_and_the_rest_does_not_become_it(
    model: str, slice_name: str, phase: str, batch: int
) -> None:
    """The ratio of dim to cut is 1 or more than 1, as in the plan; MoE batches may grow."""
    plan = best(model, slice_name, phase, batch)
    before, after = cuts(plan), cuts(shrink(load(plan)).plan)
    assert before.keys() == after.keys()
    for key, (size, parts) in after.items():
        if key[1] not in ("S", "B", "N"):
            assert (before[key][0] == before[key][1]) == (size == parts), key


def test_the_shrunken_plan_is_a_plan() -> None:
    """Its slice exists, its layout can be read back, and its collectives are priced."""
    loaded = shrink(load(best(*CASES[0])))
    small = loaded.plan
    assert (loaded.slice_.devices, loaded.workload.context) == (small.devices, MINIMUM_SIZES["S"])
    assert loaded.layout.names == small.mesh.axis_names
    assert any(step.comms for step in small.cost.steps)
    assert max(small.model.D, small.model.V, small.context) <= 64


def test_dtypes_can_be_others_than_the_plans() -> None:
    """Float32 for numerics."""
    plan = best(*CASES[0])
    assert (shrink(load(plan)).plan.dtypes, shrink(load(plan), F32).plan.dtypes) == (Dtypes(), F32)
    assert {spec.dtype for spec in shrink(load(plan), F32).plan.specs.values()} == {"f32"}


def test_what_was_padded_is_padded_again() -> None:
    """Vocabulary and width of an MLP that its axes do not divide."""
    group = LayerGroup(count=3, attention=Attention(N=16, K=8, H=64), mlp=Mlp(F=1030, gated=True))
    model = Model(name="m", D=1024, V=1003, tied=False, groups=(group,))
    fix = {"mlp": {"X": "F", "Y": "F"}, "vocab": {"X": "V", "Y": "V"}}
    (plan, *_) = meshwright.plan(model, "v5e:4x4", phase="decode", batch=[16], context=2048, fix=fix).plans
    assert plan.padded.keys() == {"mlp/F", "vocab/V"}
    assert shrink(load(plan)).plan.padded.keys() == plan.padded.keys()


def test_layers_that_differ_stay_components_of_their_own() -> None:
    """Two head sizes, two windows, and two widths, all of which would shrink to the same."""
    groups = tuple(
        LayerGroup(count=2, attention=Attention(N=16, K=8, H=H, window=w), mlp=Mlp(F=F, gated=True))
        for H, w, F in ((64, None, 2048), (128, None, 1024), (64, 4096, 1024), (64, 512, 512))
    )
    plan = best(Model(name="m", D=1024, V=1024, tied=False, groups=groups), "v5e:2x2", "decode", 16)
    assert [one.component for one in shrink(load(plan)).plan.layouts] == [one.component for one in plan.layouts]


def test_nonsense_is_refused() -> None:
    """A role that the program has not; a mesh with five axes."""
    plan = best(*CASES[0])
    first = plan.layouts[0]
    wrong = changed(first, assignment=dict.fromkeys(first.assignment, "nonsense"))
    with pytest.raises(InputError, match="has no role 'nonsense'"):
        shrink(load(changed(plan, layouts=(wrong, *plan.layouts[1:]))))
    assert issubclass(Unavailable, Exception)
