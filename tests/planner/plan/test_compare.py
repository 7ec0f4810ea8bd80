"""What decides between two plans, and how often a cache is held."""

from __future__ import annotations

import pytest

from mesh.slices import parse_slice
from planner.best.solve import make_plan
from planner.plan.compare import cache_copies, compare, step_seconds
from planner.plan.plan import Plan
from planner.query.query import Query
from strategies.models.configs import load_model
from strategies.models.workload import Dtypes, Workload

INT8 = Dtypes(weights="int8", kv="int8")


def _plans(name: str, slice_name: str, batch: int, context: int, top: int = 1) -> tuple[Plan, ...]:
    work = Workload(phase="decode", batches=(batch,), context=context, dtypes=INT8)
    return make_plan(Query(model=load_model(name), slices=[parse_slice(slice_name)], work=work, top=top)).plans


def _cache_ways(plan: Plan, dim: str) -> int:
    """Into how many parts the cache's dim is cut."""
    (spec,) = (s for n, s in plan.specs.items() if n.endswith("/Kc"))
    sizes = plan.mesh.sizes
    ways = 1
    for axis in spec.axes[spec.dims.index(dim)]:
        ways *= sizes[axis]
    return ways


@pytest.fixture(scope="module")
def ranked() -> tuple[Plan, ...]:
    """Five plans of Llama-3.1-70B, best first."""
    return _plans("llama-3.1-70b", "v5e:4x4", 64, 8192, 5)


def test_no_cache_is_held_twice_where_it_is_large(ranked: tuple[Plan, ...]) -> None:
    """Llama-3.1-70B int8 on v5e:4x4 at batch 64 and context 8192: every cache entry is on one device."""
    assert cache_copies(ranked[0]) == 1
    assert _cache_ways(ranked[0], "B") * _cache_ways(ranked[0], "K") == 16


def test_the_sequence_is_cut_where_one_long_cache_is_all_there_is() -> None:
    """The same model at batch 1 and context 128k: beyond its 8 KV heads the cache is cut over the sequence."""
    (plan,) = _plans("llama-3.1-70b", "v5e:4x4", 1, 131072)
    assert cache_copies(plan) == 1
    assert _cache_ways(plan, "S") == 2
    assert _cache_ways(plan, "K") == 8
    assert plan.layouts[0].sequence_order is not None


def test_copies_may_win_where_the_cache_is_small() -> None:
    """The same model at batch 1 and context 2048: cutting the sequence would cost more than reading it twice."""
    (plan,) = _plans("llama-3.1-70b", "v5e:4x4", 1, 2048)
    assert cache_copies(plan) == 2
    assert _cache_ways(plan, "S") == 1


@pytest.mark.parametrize(
    ("name", "slice_name", "batch", "ways"),
    [
        ("palm-8b", "v5e:4x4", 4, {"B": 4, "S": 4, "K": 1}),
        pytest.param("llama-3.1-70b", "v5e:4x8", 2, {"B": 2, "S": 2, "K": 8}, marks=pytest.mark.slow),
        pytest.param("qwen3-30b-a3b", "v5e:4x4", 2, {"B": 2, "S": 2, "K": 4}, marks=pytest.mark.slow),
    ],
)
def test_the_hybrid_wins_where_few_long_sequences_meet_few_heads(
    name: str, slice_name: str, batch: int, ways: dict[str, int]
) -> None:
    """At context 128k the best layout cuts batch on one axis and sequence on another, and holds no copy."""
    (plan,) = _plans(name, slice_name, batch, 131072)
    assert {dim: _cache_ways(plan, dim) for dim in "BSK"} == ways
    assert cache_copies(plan) == 1


def test_steps_at_todays_speeds_add_up_to_the_estimate(ranked: tuple[Plan, ...]) -> None:
    """With every factor 1 the arithmetic on a plan's steps is its estimate."""
    for plan in ranked:
        assert step_seconds(plan) == pytest.approx(plan.cost.step_s, rel=1e-12)


def test_margin_is_the_difference_and_its_share(ranked: tuple[Plan, ...]) -> None:
    """A comparison says by how much the loser is slower, in seconds and against the winner."""
    winner, *losers = ranked
    for loser in losers:
        found = compare(winner, loser)
        assert found.margin_s == pytest.approx(loser.cost.step_s - winner.cost.step_s)
        assert found.margin == pytest.approx(found.margin_s / winner.cost.step_s)
        assert found.margin >= 0
        assert found.deciding_s > 0
        assert found.deciding_component in {layout.component for layout in winner.layouts}


def test_turns_are_the_changes_that_turn_it(ranked: tuple[Plan, ...]) -> None:
    """A turn is listed exactly where the loser would be the faster one with that bandwidth."""
    winner, *losers = ranked
    names = {"HBM bandwidth": "hbm", "ICI bandwidth": "ici", "FLOP/s": "flops"}
    for loser in losers:
        listed = {(t.quantity, t.factor) for t in compare(winner, loser).turns}
        for quantity, name in names.items():
            for factor in (0.8, 1.2):
                faster = step_seconds(loser, **{name: factor}) < step_seconds(winner, **{name: factor})
                assert ((quantity, factor) in listed) == faster


def test_a_plan_against_itself_has_no_margin_and_no_turn(ranked: tuple[Plan, ...]) -> None:
    """Equal plans differ in nothing."""
    found = compare(ranked[0], ranked[0])
    assert found.margin_s == 0
    assert found.turns == ()
