"""Relations that every plan keeps: the general lower bound, faster hardware, more memory, and equal answers."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from oracles import bruteforce

from mesh.slices import Slice, parse_slice
from planner.best.solve import make_plan
from planner.plan.compare import step_seconds
from planner.plan.plan import Plan
from planner.plan.pricing import price_layout
from planner.query.query import Query
from planner.search.chosen_layout import from_choice
from planner.search.problem import Choice, Problem
from planner.search.search import search
from strategies.models.configs import load_model
from strategies.models.models import Model
from strategies.models.workload import Dtypes, Workload, dtype_bytes
from strategies.readers.cost import speeds

SLICES = ("v5e:2x2", "v5p:2x2x1", "tpu7x:2x2x1", "h100:4", "v5e:2x4")
SEEDS = st.integers(min_value=0, max_value=10_000)
MORE = 1 + 1e-12
FEW = settings(max_examples=settings.default.max_examples // 25)  # type: ignore[union-attr]


def general_bound_s(model: Model, work: Workload, batch: int, slice_: Slice) -> float:
    """The chapter's general step time, with the parameters counted honestly; written apart from the planner.

    KV bytes read / total HBM + max(2 * tokens * matmul params / total FLOPs, weight bytes read / total HBM). An
    untied embedding is a lookup; a prompt's logits are of its last position; an expert is read if a token chose it.
    """
    chip = slice_.chip
    hbm_bytes_per_s = chip.hbm_bytes_per_s * slice_.chips
    flops_per_s = chip.flops_per_s[work.dtypes.compute] * slice_.chips
    tokens = batch * work.tokens_per_sequence
    flops, params, kv = 2.0 * batch * model.V * model.D, float(model.V * model.D), 0.0
    for group in model.groups:
        a, mlp = group.attention, group.mlp
        projections = 2 * model.D * a.H * (a.N + a.K)
        expert = (3 if mlp.gated else 2) * model.D * mlp.F
        router = model.D * mlp.E if mlp.E > 1 else 0
        distinct = mlp.E * (1 - (1 - mlp.k / mlp.E) ** tokens)
        flops += group.count * 2.0 * tokens * (projections + router + mlp.k * expert)
        params += group.count * (projections + router + distinct * expert)
        kv += group.count * 2.0 * a.K * a.H * min(work.context, a.window or work.context) * batch
    weights_s = params * dtype_bytes(work.dtypes.weights) / hbm_bytes_per_s
    kv_s = kv * dtype_bytes(work.dtypes.kv) / hbm_bytes_per_s if work.phase == "decode" else 0.0
    return kv_s + max(flops / flops_per_s, weights_s)


def _price(choice: Choice, problem: Problem, model: Model, slice_: Slice | None = None) -> Plan:
    slice_ = slice_ or problem.slice_
    fast = speeds(slice_.chip, problem.work.dtypes)
    layout = from_choice(choice, problem)
    return price_layout(layout, slice_, model, problem.work, choice.batch, choice.padded_batch, fast)


def _best(problem: Problem, top: int = 3) -> list[Choice]:
    return search(problem, top).choices.get(problem.work.batches[0], [])


@FEW
@given(seed=SEEDS)
def test_no_plan_beats_the_general_lower_bound(seed: int) -> None:
    """The best of all layouts of a toy problem takes at least the general step time."""
    problem, model = bruteforce.toy_case(seed, SLICES)
    batch = problem.work.batches[0]
    bound_s = general_bound_s(model, problem.work, batch, problem.slice_)
    for choice in _best(problem):
        assert choice.step_s * MORE >= bound_s


@pytest.mark.parametrize(
    "name",
    ["llama-3.1-8b", "mixtral-8x7b", *(pytest.param(m, marks=pytest.mark.slow) for m in ("gpt-oss-20b", "palm-8b"))],
)
@pytest.mark.parametrize(("phase", "context"), [("decode", 8192), ("prefill", 2048)])
def test_no_plan_of_a_real_model_beats_the_general_lower_bound(name: str, phase: str, context: int) -> None:
    """At no batch does the best plan of a real model take less than the general step time."""
    model, slice_ = load_model(name), parse_slice("v5p:2x2x1")
    work = Workload(phase=phase, batches=(1, 8, 64), context=context, dtypes=Dtypes(weights="int8"))
    plans = make_plan(Query(model=model, slices=[slice_], work=work, top=1)).plans
    assert plans
    for plan in plans:
        assert plan.cost.step_s * MORE >= general_bound_s(model, work, plan.batch, slice_)


def _faster(slice_: Slice, changes: Mapping[str, float]) -> Slice:
    """The slice of a chip whose numbers are multiplied."""
    chip = slice_.chip
    new: dict[str, object] = {}
    for name, factor in changes.items():
        old = getattr(chip, name)
        if old is not None:
            new[name] = {k: v * factor for k, v in old.items()} if isinstance(old, dict) else old * factor
    return parse_slice(slice_.name, msgspec.structs.replace(chip, **new))


@FEW
@given(seed=SEEDS, factor=st.sampled_from((2.0, 1.2)))
def test_more_bandwidth_never_slows_a_fixed_plan(seed: int, factor: float) -> None:
    """A plan priced again on a chip with more FLOP/s, HBM or link bandwidth is no slower, as `step_seconds` says."""
    problem, model = bruteforce.toy_case(seed, SLICES)
    for choice in _best(problem, 2):
        plan = _price(choice, problem, model)
        assert step_seconds(plan) == pytest.approx(plan.cost.step_s, rel=1e-12)
        for keyword, fields in (
            ("flops", ("flops_per_s",)),
            ("hbm", ("hbm_bytes_per_s",)),
            ("ici", ("link_bytes_per_s", "core_link_bytes_per_s")),
        ):
            again = _price(choice, problem, model, _faster(problem.slice_, dict.fromkeys(fields, factor)))
            assert again.cost.step_s <= plan.cost.step_s * MORE
            assert again.memory == plan.memory
            assert step_seconds(plan, **{keyword: factor}) == pytest.approx(again.cost.step_s, rel=1e-12)


@FEW
@given(seed=SEEDS)
def test_faster_hardware_never_slows_the_best_plan(seed: int) -> None:
    """With twice the bandwidth of anything, the best of all layouts is no slower than it was."""
    problem, _ = bruteforce.toy_case(seed, SLICES[:4])
    before = _best(problem, 1)[0].step_s
    for field in ("flops_per_s", "hbm_bytes_per_s", "link_bytes_per_s"):
        slice_ = _faster(problem.slice_, {field: 2.0})
        after = _best(replace(problem, slice_=slice_, fast=speeds(slice_.chip, problem.work.dtypes)), 1)
        assert after[0].step_s <= before * MORE


@FEW
@given(seed=SEEDS, share=st.floats(min_value=0.0, max_value=1.0))
def test_more_memory_never_removes_a_plan(seed: int, share: float) -> None:
    """With more HBM there is a plan wherever there was one, and the best is no slower."""
    problem, _ = bruteforce.toy_case(seed, SLICES[:4])
    least_bytes = search(replace(problem, usable_bytes=0.0), 1).least_bytes[problem.work.batches[0]]
    roomy = _best(problem, 1)[0].total_bytes
    sizes = sorted((least_bytes, least_bytes + share * (roomy - least_bytes), roomy, 2 * roomy))
    bests = [_best(replace(problem, usable_bytes=usable * MORE), 1) for usable in sizes]
    for less, more in itertools.pairwise(bests):
        assert len(more) >= len(less)
        for slow, fast in zip(less, more, strict=False):
            assert fast.step_s <= slow.step_s * MORE
    for usable, found in zip(sizes, bests, strict=True):
        assert all(c.total_bytes <= usable * MORE * MORE for c in found)


@FEW
@given(seed=SEEDS)
def test_the_estimate_lies_between_the_bounds(seed: int) -> None:
    """Full overlap is a lower bound, none an upper bound, and the estimate lies between."""
    problem, model = bruteforce.toy_case(seed, SLICES)
    for choice in _best(problem):
        cost = _price(choice, problem, model).cost
        assert 0 < cost.lower_bound_s <= cost.step_s * MORE
        assert cost.step_s <= cost.upper_bound_s * MORE


@FEW
@given(seed=SEEDS)
def test_the_same_search_gives_the_same_answer(seed: int) -> None:
    """A search has no state: a second one, after others, finds the same choices and counts."""
    problem, _ = bruteforce.toy_case(seed, SLICES)
    first = search(problem, 3)
    search(bruteforce.toy_case(seed + 1, SLICES)[0], 2)
    assert search(problem, 3) == first


_SCRIPT = """
import sys
import msgspec
from mesh.slices import parse_slice
from planner.plan.planfile import encode
from planner.query.query import Query
from planner.best.solve import make_plan
from strategies.models.configs import load_model
from strategies.models.workload import Dtypes, Workload
slices = [parse_slice("v5e:2x4"), parse_slice("v5e:2x2")]
for name, phase in (("qwen3-8b", "decode"), ("gpt-oss-20b", "prefill")):
    work = Workload(phase=phase, batches=(4, 1), context=512, dtypes=Dtypes())
    file = make_plan(Query(model=load_model(name), slices=slices, work=work, top=4))
    search = msgspec.structs.replace(file.search, wall_s=0.0, evaluations_per_s=0.0)
    sys.stdout.buffer.write(encode(msgspec.structs.replace(file, search=search)))
"""


@pytest.mark.slow
def test_plans_are_the_same_bytes_under_any_hash_seed() -> None:
    """All JSON but the times is the same byte for byte in processes that order sets differently."""
    root = str(Path(__file__).parents[3])
    runs = [
        subprocess.Popen(
            [sys.executable, "-c", _SCRIPT],
            env={**os.environ, "PYTHONPATH": root, "PYTHONHASHSEED": hash_seed},
            stdout=subprocess.PIPE,
        )
        for hash_seed in ("0", "1", "4242")
    ]
    texts = [run.communicate()[0] for run in runs]
    assert [run.returncode for run in runs] == [0, 0, 0]
    assert len(texts[0]) > 10_000
    assert texts[0] == texts[1] == texts[2]
