"""CP-SAT on the coupled choice against the exhaustive search, brute force and the plain cost function."""

from __future__ import annotations

import _thread
import itertools
import threading
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import msgspec
import numpy as np
import pytest
from oracles import bruteforce
from oracles.answers import Answer, Best, computed, kept, two_axes
from oracles.coupled import solve_coupled
from ortools.sat.python import cp_model

import meshwright
from mesh.errors import InputError
from meshwright import main
from planner.best import cpsat_sweep as coupled_sweep
from planner.cpsat import single as coupled
from planner.cpsat.rows import Block, all_rows, mesh_searches
from planner.cpsat.solver import run, scale_of
from planner.plan.file_proof import FEASIBLE, INFEASIBLE, OPTIMAL, Proof, Solved, Solver, proved
from planner.plan.planfile import PlanFile
from planner.plan.pricing import price_layout
from planner.query.query import CP_SAT, check_solver
from planner.search.chosen_layout import from_choice
from planner.search.problem import Choice, Problem, SearchResult, order_key
from planner.search.search import search
from strategies.models.models import Model

TINY = ("v5e:2x2", "v5p:2x2x1", "h100:8")
SMALL = ("v5e:2x4", "v5p:2x2x2")
SIXTEEN = ("v5e:4x4", "v5p:2x2x4")
SHARES = (None, 0.1, 0.4, 0.8)  # of the HBM between the least that fits and what the fastest layout takes
QUICK = (4, 15, 60, 63, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (9, 11, 86)))
MANY = range(300)
HARD = 9
BRUTE_QUICK = [(1, 180), (1, 153)]  # (layer groups, seed): of the kept answers
BRUTE = [(1, seed) for seed in range(0, 46, 3)] + [(2, seed) for seed in (78, 69, 125)]


def _close(a: float, b: float) -> bool:
    return abs(a - b) <= 1e-9 * max(abs(a), abs(b))


def _case(seed: int) -> tuple[Problem, Model, float | None]:
    """A toy problem of 1 to 4 layer groups on at most 16 chips, and a share of memory, or None where it never binds."""
    groups = seed % 4 + 1
    names, groups = (TINY, groups)
    if seed % 10 == 8:
        names, groups = SMALL, (groups + 1) // 2
    if seed % 50 == 49:
        names, groups = SIXTEEN, 1
    problem, model = bruteforce.toy_case(seed, names, groups)
    return problem, model, Random(seed).choice(SHARES)


def _least_bytes(problem: Problem) -> float:
    """The least memory that any layout takes."""
    return search(replace(problem, usable_bytes=0.0), 1).least_bytes[problem.work.batches[0]]


def _limited(problem: Problem, share: float | None) -> Problem:
    """The problem with memory that binds: a share of the way from the least of every part to what the fastest takes."""
    found = search(problem, 1)
    (batch,) = problem.work.batches
    assert found.choices[batch], "a toy problem without any layout tests nothing"
    if share is None:
        return problem
    least, fastest = _least_bytes(problem), found.choices[batch][0].total_bytes
    return replace(problem, usable_bytes=least + (fastest - least) * share + 1)


def _check(problem: Problem, model: Model, want: Choice | Best | None, got: Choice | None, proof: Proof) -> None:
    """The same seconds; by the order of ties not behind; what the plain cost function says; and a proof."""
    if want is None or got is None:
        assert (got, want) == (None, None)
        assert proof.status == INFEASIBLE
        return
    assert proof.status == OPTIMAL
    assert proof.gap == 0
    assert _close(got.step_s, want.step_s)
    assert proof.objective_s is not None
    assert _close(proof.objective_s, want.step_s)
    assert _close(proof.bound_s, want.step_s)
    assert got.total_bytes <= problem.usable_bytes
    plan = price_layout(
        from_choice(got, problem), problem.slice_, model, problem.work, got.batch, got.padded_batch,
        problem.fast,
    )  # fmt: skip
    assert _close(plan.cost.step_s, got.step_s)
    assert _close(plan.memory.total_bytes, got.total_bytes)


def _agree(seed: int, cutoff: bool) -> Proof:
    problem, model, share = _case(seed)
    problem = _limited(problem, share)
    (batch,) = problem.work.batches
    want = (search(problem, 1).choices.get(batch) or [None])[0]
    got, proof = solve_coupled(problem, cutoff=cutoff)
    _check(problem, model, want, got, proof)
    if want is not None and got is not None:
        assert order_key(got) <= order_key(want)
    return proof


@pytest.mark.parametrize("seed", QUICK)
def test_cp_sat_agrees_with_exhaustion(seed: int) -> None:
    """Every state left to the solver, its best takes as long as the exhaustive search's; memory binds or not."""
    _agree(seed, cutoff=False)


@pytest.mark.slow
@pytest.mark.parametrize("seed", MANY)
def test_cp_sat_agrees_with_exhaustion_on_many_problems(seed: int) -> None:
    """The same on 300 problems; on 16 chips without the states that bounds exclude."""
    _agree(seed, cutoff=seed % 50 == 49)


def _oracle_agrees(problem: Problem, model: Model, answers: Sequence[Answer]) -> None:
    for number, answer in enumerate(answers):
        limited = replace(problem, usable_bytes=answer.usable_bytes)
        want = answer.best[0] if answer.best else None
        _check(limited, model, want, *solve_coupled(limited, cutoff=number == 1))


@pytest.mark.parametrize(("groups", "seed"), BRUTE_QUICK)
def test_cp_sat_agrees_with_brute_force(groups: int, seed: int) -> None:
    """CP-SAT's best is that of the undecomposed product, whether memory binds or not."""
    _oracle_agrees(*two_axes(groups, seed), kept(groups, seed))


@pytest.mark.slow
@pytest.mark.parametrize(("groups", "seed"), BRUTE)
def test_cp_sat_agrees_with_brute_force_on_many_problems(groups: int, seed: int) -> None:
    """The same on more problems; the exhaustive search has a test of its own, on more than fifty."""
    problem, model = two_axes(groups, seed)
    _oracle_agrees(problem, model, computed(problem, shares=SHARES))


def test_ties_go_to_the_first_by_the_order_of_ties() -> None:
    """Of equally fast layouts (equal axes can be swapped) the first by memory, mesh, residual and names is chosen."""
    problem, _, _ = _case(4)
    got, proof = solve_coupled(problem, cutoff=False)
    assert got is not None
    assert proof.status == OPTIMAL
    mesh_search = mesh_searches(problem, SearchResult())[0]
    ties = []
    for column in range(len(mesh_search.pairs)):
        for state in range(len(mesh_search.state.residual)):
            block = all_rows(mesh_search, column).block(state, got.step_s * (1 + 1e-12), ties=True)
            for rows in itertools.product(*(range(len(o.row)) for o in block.options)) if block else ():
                choice = block.choice(rows)
                if _close(choice.step_s, got.step_s):
                    ties.append(choice)
    assert len(ties) > 1, "a problem without ties tests nothing"
    assert order_key(min(ties, key=order_key)) == order_key(got)


def test_a_limit_that_ends_it_leaves_the_best_so_far_with_its_gap() -> None:
    """Ended after a microsecond, what is known before solving is returned, and the optimum lies within the gap."""
    problem = _limited(_case(HARD)[0], 0.4)
    best, _ = solve_coupled(problem)
    got, proof = solve_coupled(problem, seconds=1e-6)
    assert got is not None
    assert best is not None
    assert proof.status == FEASIBLE
    assert proof.gap is not None
    assert 0 < proof.gap < 1
    assert proof.bound_s <= best.step_s * (1 + 1e-9) <= got.step_s * (1 + 2e-9)
    assert _close(proof.bound_s, got.step_s * (1 - proof.gap))


@pytest.mark.usefixtures("interruptible")
def test_an_interrupt_ends_the_solver_with_the_best_so_far() -> None:
    """Ctrl-C stops a search that would take hours (a market split of 50 customers and 7 goods); its best is kept."""
    random, model = Random(1), cp_model.CpModel()
    items, off = [model.new_bool_var("") for _ in range(50)], []
    for _ in range(7):
        weights = [random.randrange(100) for _ in items]
        off += [model.new_int_var(0, sum(weights), "") for _ in range(2)]
        half = cp_model.LinearExpr.weighted_sum(items, weights)
        model.add(half + off[-1] - off[-2] == sum(weights) // 2)
    model.minimize(cp_model.LinearExpr.sum(off))
    timer = threading.Timer(1.0, _thread.interrupt_main)
    timer.start()
    try:
        ended = run(model, 30)
    finally:
        timer.cancel()
    assert ended.interrupted
    assert ended.status == FEASIBLE
    assert ended.wall_s < 20


def test_a_wrong_answer_of_the_solver_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the tables price CP-SAT's choice otherwise than CP-SAT did, nothing is returned."""
    problem, _, _ = _case(4)
    true = Block.choice
    monkeypatch.setattr(Block, "choice", lambda self, rows: replace(c := true(self, rows), step_s=c.step_s * 0.999))
    with pytest.raises(RuntimeError, match="the tables say"):
        solve_coupled(problem)


def test_a_denied_layout_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where CP-SAT says that nothing fits although a layout is known, nothing is returned."""
    problem, _, _ = _case(4)
    impossible = cp_model.CpModel()
    impossible.add_bool_or([])
    monkeypatch.setattr(coupled, "run", lambda model, seconds: run(impossible, seconds))
    with pytest.raises(RuntimeError, match="but this does"):
        solve_coupled(problem)


def test_coefficients_beyond_32_bits_lose_no_layout() -> None:
    """A problem on which a presolve rule of OR-Tools 9.15 overflows and calls the proved best infeasible."""
    problem, _ = bruteforce.toy_case(27, TINY, 4)
    got, proof = solve_coupled(_limited(problem, 0.8), cutoff=False)
    assert proof.status == OPTIMAL
    assert got is not None


def test_scales_round_seconds_by_less_than_they_are_told_apart_and_bytes_up() -> None:
    """Seconds keep 1e-11 of their least sum, whole bytes are exact, and fractions of them count in full."""
    scale = scale_of(0.0137, 5)
    assert abs(scale.nearest(np.array([0.0021]))[0] / scale.factor - 0.0021) < 1e-11 * 0.0137
    size = scale_of(16.9e9)
    assert size.up(np.array([123_456_789.0]))[0] == 123_456_789 * size.factor
    assert size.up(np.array([1 / 3]))[0] >= size.factor / 3
    assert size.down(1 / 3) <= size.factor / 3


@pytest.mark.parametrize("seconds", [0.0, -1.0, float("nan"), float("inf")])
def test_a_limit_that_is_no_time_is_bad_input(seconds: float) -> None:
    """A limit of zero, below it, or of no finite time is refused, and what would work is said."""
    with pytest.raises(InputError, match="expected a number of seconds above 0, such as 10"):
        check_solver(CP_SAT, seconds)


def test_what_is_proved_is_said_in_words() -> None:
    """The worst gap is named with its slice, batch and bound; without one, the solver alone."""
    done = Proof(status=OPTIMAL, objective_s=2.0, bound_s=2.0, gap=0.0, wall_s=1.0, variables=9)
    short = msgspec.structs.replace(done, status=FEASIBLE, bound_s=1.5, gap=0.25)
    solved = [Solved(slice="v5e:4x4", batch=b, proof=p) for b, p in ((1, done), (8, short))]
    text = proved(Solver(name="cp-sat", seconds=2.0, solved=tuple(solved)))
    assert text == "cp-sat, ended after 2 s: v5e:4x4 at batch 8: gap 25%, no layout takes less than 1500 ms"
    assert proved(Solver(name="cp-sat", seconds=2.0, solved=(solved[0],))) == "cp-sat"


PLAN = ["plan", "llama-3.1-8b", "--slice", "v5e:2x2", "--batch", "8,16", "--solver", "cp-sat", "--format", "json"]


def test_the_command_plans_as_the_exhaustive_search_does(capfdbinary: Any) -> None:
    """`--solver cp-sat` gives the search's best of each batch, says who proved it, and states each proof."""
    assert main(PLAN) == 0
    mine = msgspec.json.decode(capfdbinary.readouterr().out, type=PlanFile)
    theirs = meshwright.plan("llama-3.1-8b", "v5e:2x2", batch=(8, 16), top=1)
    assert [p.layouts for p in mine.plans] == [p.layouts for p in theirs.plans]
    assert [p.cost.step_s for p in mine.plans] == [p.cost.step_s for p in theirs.plans]
    assert mine.search.proved_optimal == "cp-sat"
    assert mine.search.candidates == theirs.search.candidates
    assert mine.rejected == theirs.rejected
    assert mine.solver is not None
    assert [(s.batch, s.proof.status, s.proof.gap) for s in mine.solver.solved] == [(8, OPTIMAL, 0), (16, OPTIMAL, 0)]


def test_an_interrupted_command_prints_the_best_so_far(capfdbinary: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is proved when Ctrl-C comes is printed, with exit code 130; where that is nothing, only the code."""
    solved: list[int] = []

    def solve_one(mesh_searches: Any, batch: int, seconds: float | None) -> Any:
        if len(solved) == most:
            raise KeyboardInterrupt
        solved.append(batch)
        return coupled.solve_batch(mesh_searches, batch, seconds)

    monkeypatch.setattr(coupled_sweep, "solve_batch", solve_one)
    most = 1
    assert main(PLAN) == 130
    printed = msgspec.json.decode(capfdbinary.readouterr().out, type=PlanFile)
    assert [plan.batch for plan in printed.plans] == [8]
    assert printed.search.proved_optimal.startswith("cp-sat, interrupted")
    solved.clear()
    most = 0
    assert main(PLAN) == 130
    assert capfdbinary.readouterr().out == b""


@pytest.mark.parametrize(
    ("extra", "said"),
    [
        (["--solver-seconds", "0"], "--solver-seconds 0: expected a number of seconds above 0, such as 10"),
        (["--solver", "magic"], "--solver 'magic': expected exhaustive or cp-sat"),
        (["--solver", "exhaustive", "--solver-seconds", "3"], "the exhaustive search has none"),
    ],
)
def test_bad_solver_options_are_one_line(extra: list[str], said: str, capfdbinary: Any) -> None:
    """A limit that is none, or of a search that has none, and an unknown solver are bad input."""
    assert main([*PLAN, *extra]) == 2
    assert said in capfdbinary.readouterr().err.decode()


def test_nothing_fits_is_proved_too(capfdbinary: Any) -> None:
    """Where no layout fits, CP-SAT says so, and what is missing is what the exhaustive search says."""
    command = ["plan", "llama-3.1-70b", "--slice", "v5e:2x2", "--batch", "1", "--solver"]
    said = []
    for solver in ("cp-sat", "exhaustive"):
        assert main([*command, solver]) == 1
        said.append(capfdbinary.readouterr().err)
    assert said[0] == said[1]


def test_the_moe_of_deepseek_v3s_size_is_read() -> None:
    """The benchmark's config is a MoE of DeepSeek-V3's parameters: 3 dense and 58 MoE layers of 256 experts."""
    model = meshwright.load_model(Path(__file__).parents[2] / "cases" / "moe-671b-without-mla.json")
    assert [(g.count, g.mlp.E, g.mlp.k, g.mlp.F) for g in model.groups] == [(3, 1, 1, 18432), (58, 256, 8, 2048)]
    assert 0.97 * 671e9 < model.params < 1.03 * 671e9


def test_the_order_of_slices_and_batches_changes_nothing() -> None:
    """The same plans, best first, and the same proofs, in whatever order slices and batches are named."""
    first = meshwright.plan("llama-3.1-8b", ["v5e:2x2", "v5e:2x4"], batch=(1, 8), solver="cp-sat")
    second = meshwright.plan("llama-3.1-8b", ["v5e:2x4", "v5e:2x2"], batch=(8, 1), solver="cp-sat")
    assert first.plans == second.plans
    solved = [
        sorted((s.slice, s.batch, s.proof.status, s.proof.objective_s) for s in file.solver.solved)
        for file in (first, second)
        if file.solver is not None
    ]
    assert solved[0] == solved[1]
    assert len(solved[0]) == 4
