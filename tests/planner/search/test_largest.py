"""The largest batch and context that fit: exact, where fitting is not monotone."""

from __future__ import annotations

import random
from dataclasses import replace
from functools import lru_cache

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from oracles import bruteforce

from mesh.slices import parse_slice
from planner.plan.pricing import price_layout
from planner.query.query import Query
from planner.search.chosen_layout import from_choice
from planner.search.footprint import Footprints, Key, Need
from planner.search.largest import batch_key, context_key, largest, largest_batch, largest_context
from planner.search.meshes import meshes
from planner.search.problem import Choice, make_problem
from planner.search.search import columns, search
from strategies.models.configs import load_model
from strategies.models.models import Attention, LayerGroup, Mlp, Model
from strategies.models.workload import Dtypes, Workload

SLICES = ("v5e:2x2", "v5p:2x2x1", "tpu7x:2x2x1", "h100:4")
FITTING = Choice((), (), (), 1, 1, 0.0, 0.0)
"""Some choice: what a number that fits has."""
DIVISORS = {4: (1, 2, 4), 12: (1, 2, 3, 4, 6, 12), 16: (1, 2, 4, 8, 16), 30: (1, 2, 3, 5, 6, 10, 15, 30)}


@st.composite
def layouts(draw: st.DrawFn) -> tuple[int, list[tuple[int, int, int]]]:
    """Devices, and what stands for layouts: the ways each cuts the batch, its fixed bytes, and bytes per sequence."""
    devices = draw(st.sampled_from(sorted(DIVISORS)))
    one = st.tuples(st.sampled_from(DIVISORS[devices]), st.integers(0, 400), st.integers(3, 60))
    return devices, draw(st.lists(one, min_size=1, max_size=6))


@settings(max_examples=100)
@given(layouts(), st.integers(0, 1000))
def test_largest_is_the_largest_of_all_numbers(drawn: tuple[int, list[tuple[int, int, int]]], usable: int) -> None:
    """Whatever cuts layouts have and whatever they take, the number found is that of trying every one."""
    devices, many = drawn

    def least(value: int) -> float:
        return min((fixed + each * value for ways, fixed, each in many if value % ways == 0), default=float("inf"))

    def probe(value: int, key: Key) -> Need:
        assert key == batch_key(devices)(value)
        return Need(FITTING if least(value) <= usable else None, least(value))

    fitting = [value for value in range(1, 400) if least(value) <= usable]
    assert largest(devices, 399, probe, batch_key(devices), usable) == (max(fitting) if fitting else None)


def toy(seed: int) -> Query:
    """A toy request on a slice whose HBM is full at a batch or context that is drawn, too."""
    problem, model = bruteforce.toy_case(seed, SLICES, groups=1 + seed % 2)
    rng = random.Random(seed)
    work = msgspec.structs.replace(problem.work, batches=(rng.choice((1, 2, 3, 5, 8)),))
    full = msgspec.structs.replace(work, batches=(rng.randint(3, 40),))
    request = Query(model=model, slices=[problem.slice_], work=full)
    nothing_fits = replace(make_problem(request, problem.slice_), usable_bytes=0.0)
    least_bytes = search(nothing_fits, 1).least_bytes[full.batches[0]]
    chip = msgspec.structs.replace(
        problem.slice_.chip, usable_hbm_bytes_per_device=least_bytes * rng.choice((1.0, 1.0001, 1.01))
    )
    return Query(model=model, slices=[parse_slice(problem.slice_.name, chip)], work=work)


def batches_that_fit(request: Query, most: int) -> list[int]:
    """Every batch up to `most` that the search has a layout for."""
    slice_ = request.slices[0]
    work = msgspec.structs.replace(request.work, batches=tuple(range(1, most + 1)))
    found = search(make_problem(replace(request, work=work), slice_), 1)
    return [batch for batch, choices in found.choices.items() if choices]


def contexts_that_fit(request: Query, most: int) -> list[int]:
    """Every context up to `most` at which the search has a layout for the request's batch."""
    slice_, batch = request.slices[0], request.work.batches[0]
    works = [msgspec.structs.replace(request.work, context=context) for context in range(1, most + 1)]
    return [w.context for w in works if search(make_problem(replace(request, work=w), slice_), 1).choices.get(batch)]


def check_batch(request: Query, most: int) -> list[int]:
    """The largest batch is that of trying every one; returns those that fit."""
    fitting = batches_that_fit(request, most)
    assert not fitting or fitting[-1] < most, "the test's range is too small"
    assert largest_batch(request, request.slices[0]) == (fitting[-1] if fitting else None)
    return fitting


def check_context(request: Query, most: int) -> list[int]:
    """The largest context is that of trying every one, up to `most` and well beyond it; returns those that fit."""
    slice_ = request.slices[0]
    found = largest_context(request, slice_)
    fitting = contexts_that_fit(request, max(most, (found or 0) + 2 * slice_.devices))
    assert found == (fitting[-1] if fitting else None)
    return fitting


@pytest.mark.parametrize("seed", [*(pytest.param(seed, marks=pytest.mark.slow) for seed in (1, 3)), 4])
def test_largest_batch_is_that_of_trying_every_batch(seed: int) -> None:
    """On toy problems whose memory binds, no larger batch fits and the one found does."""
    check_batch(toy(seed), 50)


@pytest.mark.parametrize("seed", [pytest.param(2, marks=pytest.mark.slow), 6])
def test_largest_context_is_that_of_trying_every_context(seed: int) -> None:
    """On toy problems whose memory binds, no larger context fits and the one found does."""
    check_context(toy(seed), 24)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(100, 124))
def test_largest_numbers_are_those_of_trying_all_on_many_problems(seed: int) -> None:
    """The same on more problems and over longer ranges."""
    request = toy(seed)
    check_batch(request, 120)
    if (largest_context(request, request.slices[0]) or 0) <= 200:
        check_context(request, 60)


@lru_cache
def tight(
    phase: str, window: int | None, usable_bytes: float, context: int, batch: int = 1, name: str = "v5e:2x4"
) -> Query:
    """One layer of attention with a single KV head, which can be cut by batch or sequence only."""
    attention = Attention(N=4, K=1, H=64, window=window)
    full = LayerGroup(count=1, attention=Attention(N=4, K=1, H=64), mlp=Mlp(F=64, gated=False))
    group = LayerGroup(count=1, attention=attention, mlp=Mlp(F=64, gated=False))
    model = Model(name="m", D=64, V=64, tied=True, groups=(group, full) if window else (full,))
    slice_ = parse_slice(name)
    chip = msgspec.structs.replace(slice_.chip, usable_hbm_bytes_per_device=usable_bytes)
    work = Workload(phase=phase, batches=(batch,), context=context, dtypes=Dtypes())
    return Query(model=model, slices=[parse_slice(slice_.name, chip)], work=work)


def fixed_to_batch(usable_bytes: float) -> Query:
    """Attention may only cut the batch, over all eight devices: batches that it pads too much do not run."""
    roles = {"attention": {axis: frozenset({"B"}) for axis in ("X", "Y")}}
    return replace(tight("decode", None, usable_bytes, 256), fixed=roles)


def test_fitting_is_not_monotone_and_the_largest_batch_is_found() -> None:
    """With attention fixed to cut the batch over 8 devices some batches below the largest one do not run."""
    fitting = check_batch(fixed_to_batch(4.5e5), 120)
    assert len(fitting) < fitting[-1]


@pytest.mark.parametrize(
    ("phase", "window", "batch", "usable_bytes"),
    [
        pytest.param("decode", None, 33, 9e4, marks=pytest.mark.slow),
        ("prefill", None, 3, 8e4),
        pytest.param("decode", 10, 33, 1.1e5, marks=pytest.mark.slow),
        pytest.param("prefill", 10, 3, 1.1e5, marks=pytest.mark.slow),
    ],
)
def test_short_contexts_are_exact(phase: str, window: int | None, batch: int, usable_bytes: float) -> None:
    """Where a context is of few positions per device it is exact, too, with windows and without."""
    fitting = check_context(tight(phase, window, usable_bytes, 1, batch, "v5e:2x2"), 28)
    assert fitting
    assert fitting[-1] < 28
    assert (len(fitting) < fitting[-1]) == (phase == "prefill")  # a prompt is not padded


def test_padding_a_cache_is_not_monotone_and_the_largest_context_is_found() -> None:
    """With attention fixed to cut the cached positions over 4 devices, those that padding would stretch do not run."""
    roles = {"attention": {axis: frozenset({"S"}) for axis in ("X", "Y")}}
    request = replace(tight("decode", None, 9e4, 1, 33, "v5e:2x2"), fixed=roles)
    assert check_context(request, 28) == [4, 7, 8, 10, 11, 12]


def test_a_class_of_contexts_admits_what_its_key_says() -> None:
    """Which cuts a context admits: within 25% for a cache, whole for a prompt."""
    decode = context_key(tight("decode", None, 1e6, 1), parse_slice("v5e:2x4"))
    assert decode(8) == decode(16) == decode(32)
    assert decode(13) == decode(32)  # padded to 16, by less than 25%
    assert decode(9) < decode(32)  # 9 positions over 8 devices would be padded to 16
    prefill = context_key(tight("prefill", None, 1e6, 1), parse_slice("v5e:2x4"))
    assert prefill(12) < prefill(16)
    assert prefill(101) < prefill(102) < prefill(104)


def test_nothing_fits_where_one_sequence_is_too_large() -> None:
    """Where not one sequence or token fits, there is no largest number."""
    request = tight("decode", None, 1e4, 256)
    assert largest_batch(request, request.slices[0]) is None
    assert largest_context(request, request.slices[0]) is None


def test_the_layout_that_fits_takes_what_the_tables_say() -> None:
    """The layout behind the largest batch, priced in full, takes as many bytes, within usable HBM."""
    slice_ = parse_slice("v5e:4x4")
    work = Workload(phase="decode", batches=(1,), context=8192, dtypes=Dtypes(weights="int8", kv="int8"))
    request = Query(model=load_model("llama-3.1-70b"), slices=[slice_], work=work)
    batch = largest_batch(request, slice_)
    assert batch is not None
    problem = make_problem(request, slice_)
    choice = Footprints(slice_).need(problem, columns([batch], slice_.devices)).choice
    assert choice is not None
    layout = from_choice(choice, problem)
    plan = price_layout(layout, slice_, request.model, work, choice.batch, choice.padded_batch, problem.fast)
    assert plan.memory.total_bytes == pytest.approx(choice.total_bytes, rel=1e-12)
    assert plan.memory.total_bytes <= plan.memory.usable_bytes
    assert batches_that_fit(request, 1) == [1]
    works = msgspec.structs.replace(work, batches=(batch, *range(batch + 1, batch + 17)))
    found = search(make_problem(replace(request, work=works), slice_), 1).choices
    assert [b for b, choices in found.items() if choices] == [batch]


def test_every_mesh_is_asked_and_the_last_that_fitted_first() -> None:
    """A mesh that fits comes first next time, and one that failed with all cuts is not asked of larger numbers."""
    slice_ = parse_slice("v5e:4x4")
    footprints = Footprints(slice_)
    assert sorted(footprints.order) == sorted(meshes(slice_))
    work = Workload(phase="decode", batches=(1,), context=8192, dtypes=Dtypes())
    request = Query(model=load_model("llama-3.1-70b"), slices=[slice_], work=work)
    problem, key = make_problem(request, slice_), batch_key(16)
    assert not footprints.need(problem, [(4096, 4096)], 4096, key(4096)).fits
    assert all(footprints.unfit[mesh] == [(4096, key(4096))] for mesh in meshes(slice_))
    skipped = footprints.need(problem, [(8192, 8192)], 8192, key(8192))
    assert (skipped.fits, skipped.least_bytes) == (False, float("inf"))
