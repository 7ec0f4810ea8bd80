"""CP-SAT on the coupled choice against the exhaustive search, brute force and the plain cost function."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from types import ModuleType

import pytest

from planner.choices import Choice, Problem, order_key
from planner.coupled import solve_coupled
from planner.coupled_proof import INFEASIBLE, OPTIMAL, Proof
from planner.layout import from_choice
from planner.pricing import price_layout
from planner.search import search
from strategies.models import Model

TINY = ("v5e:2x2", "v5p:2x2x1", "h100:8")
SMALL = ("v5e:2x4", "v5p:2x2x2")
SIXTEEN = ("v5e:4x4", "v5p:2x2x4")
SHARES = (None, 0.1, 0.4, 0.8)  # of the HBM between the least that fits and what the fastest layout takes
QUICK = (4, 9, 11, 15, 60, 63, 86)
MANY = range(300)
TWO_AXES = ("v5e:2x2", "v5p:2x2x1")
BRUTE_QUICK = [(1, 180), (1, 4), (2, 78)]  # (layer groups, seed)
BRUTE = [(1, seed) for seed in range(46) if seed != 4] + [(2, seed) for seed in (69, 94, 158, 177, 167, 125)]


def _close(a: float, b: float) -> bool:
    return abs(a - b) <= 1e-9 * max(abs(a), abs(b))


def _case(seed: int, bruteforce: ModuleType) -> tuple[Problem, Model, float | None]:
    """A toy problem of 1 to 4 layer groups on at most 16 chips, and a share of memory, or None where it never binds."""
    groups = seed % 4 + 1
    names, groups = (TINY, groups)
    if seed % 10 == 8:
        names, groups = SMALL, (groups + 1) // 2
    if seed % 50 == 49:
        names, groups = SIXTEEN, 1
    problem, model = bruteforce.toy_case(seed, names, groups)
    return problem, model, Random(seed).choice(SHARES)


def _limited(problem: Problem, share: float | None) -> Problem:
    """The problem with memory that binds: a share of the way from the least of every part to what the fastest takes."""
    found = search(problem, 1)
    (batch,) = problem.work.batches
    assert found.choices[batch], "a toy problem without any layout tests nothing"
    if share is None:
        return problem
    least, fastest = found.least_bytes[batch], found.choices[batch][0].total_bytes
    return replace(problem, usable_bytes=least + (fastest - least) * share + 1)


def _check(problem: Problem, model: Model, want: Choice | None, got: Choice | None, proof: Proof) -> None:
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
        from_choice(got, problem.components), problem.slice_, model, problem.work, got.batch, got.padded_batch,
        problem.fast,
    )  # fmt: skip
    assert _close(plan.cost.step_s, got.step_s)
    assert _close(plan.memory.total_bytes, got.total_bytes)


def _agree(seed: int, bruteforce: ModuleType, cutoff: bool) -> Proof:
    problem, model, share = _case(seed, bruteforce)
    problem = _limited(problem, share)
    (batch,) = problem.work.batches
    want = (search(problem, 1).choices.get(batch) or [None])[0]
    got, proof = solve_coupled(problem, cutoff=cutoff)
    _check(problem, model, want, got, proof)
    if want is not None and got is not None:
        assert order_key(got) <= order_key(want)
    return proof


@pytest.mark.parametrize("seed", QUICK)
def test_cp_sat_agrees_with_exhaustion(seed: int, bruteforce: ModuleType) -> None:
    """Every state left to the solver, its best takes as long as the exhaustive search's, whether memory binds or not."""
    _agree(seed, bruteforce, cutoff=False)


@pytest.mark.slow
@pytest.mark.parametrize("seed", MANY)
def test_cp_sat_agrees_with_exhaustion_on_many_problems(seed: int, bruteforce: ModuleType) -> None:
    """The same on 300 problems; on 16 chips without the states that bounds exclude."""
    _agree(seed, bruteforce, cutoff=seed % 50 == 49)
