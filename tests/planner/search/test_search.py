"""The search against brute force: the undecomposed product of all layouts of toy problems."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from random import Random

import pytest
from oracles import bruteforce
from oracles.answers import CASES, TWO_AXES, Answer, Best, computed, kept, two_axes

import strategies.tables.assignments
from mesh.slices import parse_slice
from planner.plan.pricing import price_layout
from planner.query.query import ALL
from planner.search.chosen_layout import from_choice
from planner.search.meshes import meshes
from planner.search.problem import Choice, Problem, layout_key
from planner.search.search import search
from strategies.models.models import Model
from strategies.notation import LayoutError
from strategies.readers.rates import tabulate_rates

THREE_AXES = ("v5p:2x2x2", "v5e:2x4")
SLOW = [(1, seed) for seed in (*range(44), 143) if seed not in (1, 4)]  # (layer groups, seed)
SLOW += [(2, seed) for seed in (69, 94, 158, 177, 167, 125)]
SLOW_THREE_AXES = [180, 153, 29, 61, 69, 19]


def _close(a: float, b: float) -> bool:
    return abs(a - b) <= 1e-9 * max(abs(a), abs(b))


def _check(problem: Problem, answers: Sequence[Answer], top: int) -> None:
    """The search's best `top` are brute force's, with HBM that binds and that does not."""
    (batch,) = problem.work.batches
    assert answers[0].best, "a toy problem without any layout tests nothing"
    for answer in answers:
        got = search(replace(problem, usable_bytes=answer.usable_bytes), top).choices.get(batch, [])
        _same(answer.best[:top], got, problem)


def _same(want: Sequence[Best], got: Sequence[Choice], problem: Problem) -> None:
    assert len(got) == len(want)
    for mine, theirs in zip(got, want, strict=True):
        assert _close(mine.step_s, theirs.step_s), (mine, theirs)
    keys = {str(layout_key(c, problem)) for c in got}
    assert len(keys) == len(got)
    alone = [c for c in want if sum(_close(c.step_s, other.step_s) for other in want) == 1]
    assert {c.layout for c in alone if not _close(c.step_s, want[-1].step_s)} <= keys


def _price_again(problem: Problem, model: Model, choices: Sequence[Choice]) -> None:
    for choice in choices:
        layout = from_choice(choice, problem)
        plan = price_layout(
            layout, problem.slice_, model, problem.work, choice.batch, choice.padded_batch, problem.fast
        )
        assert _close(plan.cost.step_s, choice.step_s)
        assert _close(plan.memory.total_bytes, choice.total_bytes)


@pytest.mark.parametrize(("groups", "seed"), CASES)
def test_best_five_are_those_of_brute_force(groups: int, seed: int) -> None:
    """The search finds the five best layouts of the whole product, whether or not memory binds."""
    problem, model = two_axes(groups, seed)
    _check(problem, kept(groups, seed), 5)
    _price_again(problem, model, search(problem, 5).choices[problem.work.batches[0]])


@pytest.mark.parametrize(("groups", "seed"), CASES)
def test_the_best_is_that_of_brute_force(groups: int, seed: int) -> None:
    """The search finds the best layout of the whole product, whether or not memory binds."""
    _check(two_axes(groups, seed)[0], kept(groups, seed), 1)


@pytest.mark.slow
@pytest.mark.parametrize(("groups", "seed"), CASES)
def test_kept_answers_are_those_of_brute_force(groups: int, seed: int) -> None:
    """Computed again they are the same; where prices have changed on purpose, see tests/oracles/answers.py."""
    again = computed(two_axes(groups, seed)[0])
    for was, now in zip(kept(groups, seed), again, strict=True):
        assert _close(was.usable_bytes, now.usable_bytes)
        assert [b.layout for b in was.best] == [b.layout for b in now.best]
        for mine, theirs in zip(was.best, now.best, strict=True):
            assert _close(mine.step_s, theirs.step_s)
            assert _close(mine.total_bytes, theirs.total_bytes)


@pytest.mark.slow
@pytest.mark.parametrize(("groups", "seed"), SLOW)
def test_best_five_of_many_problems_are_those_of_brute_force(groups: int, seed: int) -> None:
    """The same for many more problems on two mesh axes, with every order of the axes for every third."""
    problem, model = bruteforce.toy_case(seed, TWO_AXES, groups)
    _check(problem, computed(problem, "told apart" if seed % 3 else "all"), 5)
    _price_again(problem, model, search(problem, 5).choices[problem.work.batches[0]])


@pytest.mark.slow
@pytest.mark.parametrize("seed", SLOW_THREE_AXES)
def test_best_five_on_three_axes_are_those_of_brute_force(seed: int) -> None:
    """The same on meshes of three axes, where cuts of one dim have up to six orders."""
    problem, model = bruteforce.toy_case(seed, THREE_AXES)
    _check(problem, computed(problem), 5)
    _price_again(problem, model, search(problem, 5).choices[problem.work.batches[0]])


@pytest.mark.slow
@pytest.mark.parametrize("seed", [180, 153])
def test_best_five_of_all_cuts_are_those_of_brute_force(seed: int) -> None:
    """A line of eight cut three times, with pieces of one role that are not adjacent among the assignments."""
    problem, model = bruteforce.toy_case(seed, ("h100:8",))
    problem = replace(problem, cuts=ALL)
    _check(problem, computed(problem), 5)
    _price_again(problem, model, search(problem, 5).choices[problem.work.batches[0]])


@pytest.mark.parametrize("name", ["v5e:4x8", "v5p:4x4x4", "v5p:4x4x12"])
def test_all_cuts_cover_the_default_ones(name: str) -> None:
    """Every mesh of the default is one of all cuts whose adjacent pieces are put together."""
    slice_ = parse_slice(name)
    every = {tuple(sorted((p.axis, p.stride) for p in mesh)) for mesh in meshes(slice_, ALL)}
    mirrored = {tuple(sorted(((len(slice_.dims) - 1 - a), s) for a, s in mesh)) for mesh in every}
    for mesh in meshes(slice_):
        assert any({(p.axis, p.stride) for p in mesh} <= set(finer) for finer in every | mirrored)


@pytest.mark.parametrize("seed", [180, 153, 4])
def test_assignments_that_grow_axis_by_axis_are_all_that_run(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ruling out early what does not divide gives the same choices, candidates and count of rejections."""
    problem, _ = bruteforce.toy_case(seed, THREE_AXES)
    found = []
    for limit in (strategies.tables.assignments.LISTED_AT_ONCE, 0):
        monkeypatch.setattr(strategies.tables.assignments, "LISTED_AT_ONCE", limit)
        found.append(search(problem, 5))
    listed, grown = found
    assert grown.choices == listed.choices
    assert (grown.candidates, grown.evaluations) == (listed.candidates, listed.evaluations)
    counts = [sum(n for (name, _), (n, _) in one.rejected.items()) for one in found]
    assert counts[0] == counts[1] > 0


@pytest.mark.parametrize("seed", [pytest.param(seed, marks=pytest.mark.slow) for seed in (180, 143)])
def test_brute_force_adds_up_what_whole_layouts_cost(seed: int) -> None:
    """Layouts drawn at random cost what the oracle's shares sum to, or are illegal for both."""
    problem, model = bruteforce.toy_case(seed, TWO_AXES)
    oracle, random = bruteforce.Oracle(problem), Random(seed)
    (batch,), legal = problem.work.batches, 0
    mesh = meshes(problem.slice_)[0]
    rates = tabulate_rates(problem.slice_, [[piece] for piece in mesh])
    every = list(bruteforce.states(len(mesh), problem.work.phase, "all"))
    for _ in range(30):
        residual, order = random.choice(every)
        options = [oracle._options(c, mesh, rates, residual, order, batch) for c in problem.components]
        if not all(options):
            continue
        picks, shares = zip(*(random.choice(o) for o in options), strict=True)
        choice = Choice(mesh, residual, picks, batch, batch, 0.0, 0.0)
        if not bruteforce._agree([s.residual for s in shares]):
            with pytest.raises(LayoutError):
                bruteforce.price_choice(choice, problem, model, order)
            continue
        legal += 1
        plan = bruteforce.price_choice(choice, problem, model, order)
        assert _close(plan.cost.step_s, sum(s.seconds for s in shares))
        held = bruteforce.held_bytes(problem, mesh, residual, batch)
        total = sum(s.stored for s in shares) + max(s.peak for s in shares) + held
        assert _close(plan.memory.total_bytes, total)
    assert legal >= 5


@pytest.mark.slow
def test_no_whole_layout_of_two_devices_beats_the_search() -> None:
    """On one mesh axis every single layout is priced whole, in no parts: the best that fits is the search's."""
    problem, model = bruteforce.toy_case(7, ("h100:2",))
    (batch,), (mesh,) = problem.work.batches, meshes(problem.slice_)
    plans = [
        plan
        for picks in product(*(list(bruteforce.picks(c, 1)) for c in problem.components))
        for residual in ("D", "B", "-")
        if (plan := bruteforce.price_or_none(Choice(mesh, (residual,), picks, batch, batch, 0.0, 0.0), problem, model))
    ]
    most = max(plan.memory.total_bytes for plan in plans)
    least = min(plan.memory.total_bytes for plan in plans)
    assert problem.work.phase == "decode"
    for usable_bytes in (most, (most + least) / 2, least):
        fitting = [p.cost.step_s for p in plans if p.memory.total_bytes <= usable_bytes * (1 + 1e-12)]
        found = search(replace(problem, usable_bytes=usable_bytes * (1 + 1e-12)), 1).choices[batch]
        assert _close(found[0].step_s, min(fitting))


def test_what_does_not_fit_is_said_with_the_least_that_it_needs() -> None:
    """Below the least memory of any layout nothing is found, and the least is reported."""
    problem, _ = bruteforce.toy_case(180, TWO_AXES)
    (batch,) = problem.work.batches
    least_bytes = search(replace(problem, usable_bytes=0.0), 1).least_bytes[batch]
    found = search(replace(problem, usable_bytes=least_bytes * 0.99), 3)
    assert not found.choices.get(batch)
    assert found.least_bytes[batch] == least_bytes
    assert sum(count for count, _ in found.rejected.values()) > 0
