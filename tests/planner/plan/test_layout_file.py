"""A plan says its whole layout: read back from its fields, it is priced as it was."""

from __future__ import annotations

from pathlib import Path

import pytest

import meshwright
from executor.levels.integrity import plan_file
from executor.loaded import load
from planner.api import plan
from planner.plan.layout_file import layout_of
from planner.plan.planfile import read_plan
from planner.plan.pricing import price_layout
from strategies.readers.cost import speeds

CASES = [
    ("palm-540b", "v4:4x4x4", "decode", 64),
    ("palm-540b", "v4:4x4x4", "prefill", 64),
    ("mixtral-8x7b", "v5p:2x2x4", "decode", 32),
    ("llama-3.1-8b", "v5e:4x8", "prefill", 2),
    ("gpt-oss-20b", "v5e:2x4", "decode", 8),
    ("qwen3-30b-a3b", "tpu7x:2x2x2", "decode", 16),
]


QUICK = ("mixtral-8x7b",)


@pytest.mark.parametrize(
    "case",
    [pytest.param(case, marks=[] if case[0] in QUICK else pytest.mark.slow) for case in CASES],
    ids=lambda case: f"{case[0]} {case[1]} {case[2]}",
)
def test_a_plan_is_what_its_own_layouts_give(case: tuple[str, str, str, int]) -> None:
    """Specs, steps, memory and cost of every plan follow from its mesh, residual and layouts alone."""
    model, slice_name, phase, batch = case
    found = plan(model, slice_name, phase=phase, batch=[batch], context=2048, weights="int8", kv="int8", top=4)
    for one in found.plans:
        layout, slice_, work = layout_of(one)
        fast = speeds(slice_.chip, work.dtypes)
        assert price_layout(layout, slice_, one.model, work, one.batch, one.padded_batch, fast) == one


def test_a_plan_file_of_before_the_layout_was_one_value_still_holds() -> None:
    """Written before the packages were reorganised: it loads, explains itself and promises the same."""
    path = Path(__file__).parents[2] / "cases" / "plan-of-schema-1.json"
    plans = meshwright.load(path)
    assert "Weights and caches" in str(plans.best.explain())
    loaded = load(read_plan(path).plans[0])
    assert plan_file(loaded).findings == ()
    again = meshwright.price("llama-3.1-8b", "v6e:2x2", path, batch=16, context=2048, weights="int8", kv="int8")
    assert again.best == plans.best
