"""Plans over many slices: automatic batches, targets, prices, processes and interrupts."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

import planner.best.solve
import planner.best.sweep
import planner.frontier.pareto
import planner.search.search
from mesh.errors import InputError
from mesh.slices import Slice, parse_slice
from planner.api import plan
from planner.best.nothing import NothingFits
from planner.best.sweep import sweep
from planner.parallel import in_parallel
from planner.plan.planfile import INTERRUPTED, PlanFile, encode, read_plan
from planner.query.query import Query
from planner.query.slices import chosen_slices
from planner.query.targets import Targets
from planner.search.largest import largest_batch
from planner.search.problem import Problem, SearchResult, make_problem
from planner.search.search import search
from strategies.models.configs import load_model
from strategies.models.workload import Dtypes, Workload

MODEL = load_model("llama-3.1-8b")
WORK = Workload(phase="decode", batches=(1, 64), context=8192, dtypes=Dtypes())


def request(chips: str = "v5e", counts: tuple[int, int] = (4, 16), **options: object) -> Query:
    """A request on every slice of a chip in a range."""
    return Query(model=MODEL, slices=chosen_slices((), [chips], counts), work=WORK, **options)  # type: ignore[arg-type]


def test_automatic_batches_are_powers_of_two_and_the_largest() -> None:
    """On each slice its own; the one after the largest does not fit."""
    asked = request(auto=True)
    found = sweep(asked)
    for slice_ in asked.slices:
        largest = largest_batch(asked, slice_)
        assert largest is not None
        batches = list(found.results[slice_.name].choices)
        assert batches == sorted({*(1 << i for i in range(largest.bit_length())), largest})
        assert all(found.results[slice_.name].choices.values())
        work = Workload(phase="decode", batches=(largest + 1,), context=8192, dtypes=Dtypes())
        assert not search(make_problem(replace(asked, work=work, auto=False), slice_), 1).choices.get(largest + 1)


def test_with_a_chip_each_slice_has_the_plan_of_its_best_batch() -> None:
    """Best first, and the runners-up are of the best slice."""
    found = plan(MODEL, chips="v5e", chip_counts=(4, 16), batch=(1, 16), top=3)
    speeds = [p.throughput.tokens_per_s_per_chip for p in found.plans]
    assert speeds == sorted(speeds, reverse=True)
    assert {p.slice for p in found.plans} == {"v5e:2x2", "v5e:2x4", "v5e:4x4"}
    assert [p.slice for p in found.plans].count(found.plans[0].slice) == 3
    every = plan(MODEL, ["v5e:2x2", "v5e:2x4", "v5e:4x4"], batch=(1, 16), top=3)
    assert found.plans[0] == every.plans[0]
    assert found.search.evaluations == every.search.evaluations


@pytest.mark.parametrize(
    "what", ["use_processes", "interrupt_processes", pytest.param("plan_alike_in_processes", marks=pytest.mark.slow)]
)
def test_processes_are_used_where_they_pay_and_give_what_is_ready(what: str) -> None:
    """In an interpreter that has not loaded JAX, whose threads forbid it: see the three functions."""
    code = f"import test_sweep; test_sweep.{what}()"
    path = os.pathsep.join((str(Path(__file__).parent), str(Path(__file__).parents[3])))
    run = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True
    )
    assert run.returncode == 0, run.stderr


def plan_alike_in_processes() -> None:
    """One process, two, and slices the other way round: the same plans byte for byte, runners-up among them."""
    assert "jax" not in sys.modules
    names = ["v5e:1x1", "v5e:2x2", "v5e:2x4", "v5e:4x4", "v6e:2x2"]
    runs = [
        plan(MODEL, order, batch=(1, 16), top=2, workers=workers)
        for order, workers in ((names, 1), (names, 2), (names[::-1], 2))
    ]
    assert len({encode(run.plans) for run in runs}) == 1
    assert len({run.search.evaluations for run in runs}) == 1
    assert len({encode(run.rejected) for run in runs[:2]}) == 1


def use_processes() -> None:
    """Four things on two workers run in other processes, in order; three are not worth one."""
    for _ in range(3):  # none leaves a thread that would keep the next ones in this process
        results = in_parallel(range(4), _square_elsewhere, 2)
        assert [next(results) for _ in range(4)] == [(0, True), (1, True), (4, True), (9, True)]
        del results
        assert list(in_parallel(range(4), _square_elsewhere, 2)) == [(0, True), (1, True), (4, True), (9, True)]
    assert list(in_parallel(range(3), _square_elsewhere, 2)) == [(0, False), (1, False), (4, False)]
    assert list(in_parallel(range(4), _square_elsewhere, 1))[-1] == (9, False)


def interrupt_processes() -> None:
    """The last things are begun first: what is done of them counts, though earlier ones are still under way."""
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a background job ignores it
    results = in_parallel(range(4), _interrupting, 2)
    assert (next(results), next(results)) == (2, 3)
    with pytest.raises(KeyboardInterrupt):
        next(results)


def _interrupting(number: int) -> int:
    """2 and 3, at once; 1 interrupts the parent when these have reached it, and like 0 never ends by itself."""
    assert os.getpid() != _HERE
    if number == 1:
        time.sleep(0.5)
        os.kill(os.getppid(), signal.SIGINT)
    if number < 2:
        time.sleep(20)
    return number


def test_an_interrupt_before_a_target_is_met_proves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Slices that were not searched may meet it: no claim that no plan does."""
    monkeypatch.setattr(planner.best.solve, "sweep", lambda *_: replace(sweep(request()), interrupted=True))
    monkeypatch.setattr(planner.frontier.pareto, "sweep", planner.best.solve.sweep)
    hard = request(targets=Targets(max_step_s=1e-4))
    for make in (planner.best.solve.make_plan, planner.frontier.pareto.make_frontier):
        with pytest.raises(KeyboardInterrupt):
            make(hard)


_HERE = os.getpid()


def _square_elsewhere(number: int) -> tuple[int, bool]:
    return number**2, os.getpid() != _HERE


def test_targets_leave_only_plans_that_meet_them(tmp_path: Path) -> None:
    """What is left is what meets them, and a looser target leaves no worse a plan."""
    best = {}
    for most_s in (None, 0.020, 0.012, 0.008):
        targets = Targets(max_step_s=most_s)
        found = plan(MODEL, chips="v5e", chip_counts=(4, 16), batch=(1, 8, 16, 32, 64), targets=targets, top=1)
        assert all(most_s is None or p.cost.step_s <= most_s for p in found.plans)
        best[most_s] = found.plans[0].throughput.tokens_per_s_per_chip
        assert found.targets == targets.words
        (tmp_path / "plan.json").write_bytes(encode(found))
        assert read_plan(tmp_path / "plan.json") == found
    assert list(best.values()) == sorted(best.values(), reverse=True)
    assert best[0.008] < best[None]


def why(**targets: float) -> str:
    """What is said where nothing meets these targets."""
    with pytest.raises(NothingFits) as caught:
        plan(MODEL, chips="v5e", chip_counts=(4, 16), batch=(1, 64), targets=Targets(**targets))  # type: ignore[arg-type]
    return str(caught.value)


def test_a_target_that_nothing_meets_is_named_with_the_nearest() -> None:
    """Alone, or which two together."""
    assert why(max_step_s=1e-3).startswith("no plan meets a step of at most 1 ms; the nearest has ")
    assert why(min_tokens_per_s=1e6).startswith("no plan meets at least 1e+06 tokens/s; the nearest has ")
    both = why(max_step_s=5e-3, min_tokens_per_s=1000.0)
    assert both.startswith(
        "no plan meets a step of at most 5 ms and at least 1000 tokens/s together; with a step of at most 5 ms "
    )
    assert both.endswith("(v5e:4x4, batch 1)")


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (
            {"targets": Targets(max_chips=2)},
            "max_chips 2 leaves none of the slices: the smallest, v5e:2x2, has 4 chips",
        ),
        ({"objective": "cost"}, "objective 'cost' needs prices per chip and hour"),
        ({"prices": {"v6e": 1.0}}, "prices: no price for v5e"),
        ({"cuts": "three"}, "cuts 'three': expected two, all, none"),
        ({"workers": 0}, "workers 0: expected a whole number from 1"),
    ],
)
def test_contradictory_options_are_bad_input(options: dict[str, object], says: str) -> None:
    """Before anything is searched."""
    with pytest.raises(InputError) as caught:
        request(**options).check_targets()
    assert str(caught.value).startswith(says)


def test_the_first_token_is_no_target_of_a_decode_step() -> None:
    """It is one of prefill."""
    with pytest.raises(InputError, match="a decode step has no first token"):
        plan(MODEL, "v5e:2x4", targets=Targets(max_ttft_s=1.0))


def test_the_cheapest_tokens_come_first() -> None:
    """With prices that turn the order by throughput round."""
    prices = {"v5e": 1.0, "v6e": 100.0}
    cost, speed = (
        plan(MODEL, ["v5e:2x4", "v6e:2x4"], batch=(16,), top=1, objective=objective, prices=prices)
        for objective in ("cost", "throughput")
    )
    assert [p.slice for p in cost.plans] == ["v5e:2x4", "v6e:2x4"]
    assert [p.slice for p in speed.plans] == ["v6e:2x4", "v5e:2x4"]


def interrupted(monkeypatch: pytest.MonkeyPatch, after: int) -> PlanFile:
    """What a plan says that is interrupted after so many slices."""
    counted = iter(range(100))

    def once(problem: Problem) -> SearchResult:
        if next(counted) >= after:
            raise KeyboardInterrupt
        return search(problem, 1)

    monkeypatch.setattr(planner.best.sweep, "search_best", once)
    return plan(MODEL, ["v5e:2x4", "v5e:4x4", "v5e:4x8"], batch=(1,), top=3)


def test_an_interrupt_leaves_the_best_so_far(monkeypatch: pytest.MonkeyPatch) -> None:
    """Plans of the slices that were searched, and no claim of a proof; nothing where there is none."""
    found = interrupted(monkeypatch, 2)
    assert [p.slice for p in found.plans] == ["v5e:2x4", "v5e:4x4"]
    assert found.search.proved_optimal == INTERRUPTED
    with pytest.raises(KeyboardInterrupt):
        interrupted(monkeypatch, 0)


def test_an_interrupt_within_a_slice_leaves_its_best_so_far(monkeypatch: pytest.MonkeyPatch) -> None:
    """A search that ends after one mesh has that mesh's best, and says that it was interrupted."""
    problem = make_problem(request(), parse_slice("v5e:4x4"))
    whole = search(problem, 1)
    one_mesh, counted = planner.search.search._search_mesh, iter(range(100))

    def once(*arguments: object) -> None:
        if next(counted) >= 1:
            raise KeyboardInterrupt
        one_mesh(*arguments)  # type: ignore[arg-type]

    wide = make_problem(request(counts=(32, 32)), parse_slice("v5e:4x8"))
    monkeypatch.setattr(planner.search.search, "_search_mesh", once)
    found = search(wide, 1)
    assert found.interrupted
    assert not whole.interrupted
    assert found.choices[1]


@pytest.mark.parametrize(
    "name",
    [pytest.param("v5e:4x8", marks=pytest.mark.slow), pytest.param("v5p:4x4x8", marks=pytest.mark.slow), "tpu7x:2x2x2"],
)
def test_whole_axes_are_the_meshes_of_make_mesh(name: str) -> None:
    """No piece of a torus axis is smaller than the axis, and the best such plan is no better than the best of all."""
    slice_: Slice = parse_slice(name)
    whole, cut = (plan(MODEL, slice_, batch=(16,), top=1, cuts=cuts).plans[0] for cuts in ("none", "two"))
    sizes = {axis.name: axis.size for axis in slice_.axes}
    assert all(piece.size == sizes[piece.axis] for pieces in whole.mesh.pieces for piece in pieces)
    assert whole.cost.step_s >= cut.cost.step_s
