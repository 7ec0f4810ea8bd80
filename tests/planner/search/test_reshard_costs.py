"""Reshards as the search prices it: played as one layout plays it, and at two batches what it is at every one."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from mesh.slices import Slice, parse_slice
from planner.query.query import Query
from planner.search.component_rows import GIVE, READ, ComponentRows
from planner.search.meshes import meshes
from planner.search.problem import Problem, SearchResult, make_problem
from planner.search.reshard_costs import ReshardCosts, price_reshards, reshard_role_sets
from planner.search.residuals import CODES, states
from planner.search.search import price_tables
from strategies.components import entry_parts, exit_parts
from strategies.models.configs import load_model
from strategies.models.workload import Dtypes, Workload
from strategies.readers.rates import Floats, Ints, Rates, tabulate_rates
from strategies.residual_program import GIVEN, axes_of_pairs

BATCHES = (3, 8, 64, 520)


def problem_of(slice_: Slice, model: str, phase: str) -> Problem:
    """A model's components on a slice."""
    work = Workload(phase=phase, batches=BATCHES, context=1024, dtypes=Dtypes())
    return make_problem(Query(model=load_model(model), slices=[slice_], work=work), slice_)


def tables_of(problem: Problem, rates: Rates, batches: Ints) -> list[ComponentRows]:
    """The components' assignments on the slice's first mesh."""
    found = price_tables(problem, meshes(problem.slice_)[0], rates, batches, SearchResult())
    assert found
    return found


def seconds(reshards: ReshardCosts, column: int, residuals: int) -> Floats:
    """[2, residuals, faces] of one batch."""
    return np.array([reshards.seconds(r, column) for r in range(residuals)]).swapaxes(0, 1)


@pytest.mark.parametrize("phase", ["decode", "prefill"])
@pytest.mark.parametrize("side", ["entry", "exit"])
def test_the_search_has_each_pair_played_by_the_axes_that_play_it_in_a_layout(side: str, phase: str) -> None:
    """For all that two mesh axes do to a body and to the residual: masks of many rows, and names of one layout."""
    problem = problem_of(parse_slice("v5e:2x2"), "llama-3.1-8b", phase)
    codes, numbers = (CODES, READ) if side == "entry" else (GIVEN, GIVE)
    cuts = list(product((c for c in CODES if c != "T" or phase == "prefill"), repeat=2))
    ends = list(product(codes, repeat=2))
    for component in problem.components:
        for part in entry_parts(component, phase) if side == "entry" else exit_parts(component, phase):
            rows = np.array([[numbers[e] for e in end] for end in ends])
            role_sets = reshard_role_sets(part, rows, np.array([[READ[c] for c in cut] for cut in cuts]), side)
            for row, (end, cut) in enumerate(product(ends, cuts)):
                alone = axes_of_pairs(part.program, end, cut, "XY")
                masks = {axis: int(mask[row, 0]) for axis, mask in role_sets.masks.items()}
                assert masks == {axis: sum(1 << "XY".index(name) for name in names) for axis, names in alone.items()}


@pytest.mark.parametrize("phase", ["decode", "prefill"])
@pytest.mark.parametrize(
    ("model", "at"),
    [
        ("mixtral-8x7b", "chip"),
        *(pytest.param(model, "chip", marks=pytest.mark.slow) for model in ("llama-3.1-8b", "palm-540b")),
        *(
            pytest.param(model, "data-sheet", marks=pytest.mark.slow)
            for model in ("llama-3.1-8b", "mixtral-8x7b", "palm-540b")
        ),
    ],
)
def test_glue_costs_at_each_batch_what_it_costs_when_priced_for_it_alone(model: str, phase: str, at: str) -> None:
    """At what programs reach and at the data sheet's speeds; batches that do not divide have none."""
    slice_ = parse_slice("v5e:4x4")
    if at == "data-sheet":
        slice_ = slice_.at_data_sheet
    problem = problem_of(slice_, model, phase)
    rates = tabulate_rates(slice_, [[piece] for piece in meshes(slice_)[0]])
    assert rates.additive == (at == "chip")
    batches, state = np.array([BATCHES], dtype=np.int64), states(len(meshes(slice_)[0]), phase)
    components = tables_of(problem, rates, batches)
    priced, _ = price_reshards(components, state, phase, rates, problem.fast, batches)
    ruled_out = 0
    for column in range(len(BATCHES)):
        alone, _ = price_reshards(components, state, phase, rates, problem.fast, batches[:, column : column + 1])
        for ours, theirs in zip(priced, alone, strict=True):
            mine, its = seconds(ours, column, len(state.cuts)), seconds(theirs, 0, len(state.cuts))
            np.testing.assert_allclose(mine, its, rtol=1e-12)
            ruled_out += int(np.isinf(its).sum())
    assert ruled_out


@pytest.mark.parametrize("phase", ["decode", "prefill"])
def test_the_least_of_a_residual_is_that_of_its_best_face(phase: str) -> None:
    """Body and glue together, at every batch; what is taken of the residuals stays what it was."""
    slice_ = parse_slice("v5e:2x4")
    problem = problem_of(slice_, "llama-3.1-8b", phase)
    mesh = meshes(slice_)[0]
    rates, state = tabulate_rates(slice_, [[piece] for piece in mesh]), states(len(mesh), phase)
    batches = np.array([BATCHES], dtype=np.int64)
    components = tables_of(problem, rates, batches)
    all_reshards, _ = price_reshards(components, state, phase, rates, problem.fast, batches)
    some = np.arange(len(state.cuts))[::3]
    for one, reshards in zip(components, all_reshards, strict=True):
        early, late = one.least_seconds
        least, taken = reshards.least_seconds(one), reshards.take(some)
        np.testing.assert_array_equal(taken.least_seconds(one), least[some])
        for column in range(len(BATCHES)):
            before, after = seconds(reshards, column, len(state.cuts))
            best = np.maximum(early[:, column] + before, late[:, column] + after).min(axis=1)
            np.testing.assert_allclose(least[:, column], best, rtol=1e-12)


def test_glue_of_a_single_device_waits_for_nothing() -> None:
    """Its mesh has no axes, and one residual; without hops and launches it takes as long as with them."""
    slice_ = parse_slice("v5e:1x1")
    problem = problem_of(slice_, "llama-3.1-8b", "decode")
    mesh = meshes(slice_)[0]
    rates, state = tabulate_rates(slice_, [[piece] for piece in mesh]), states(len(mesh), "decode")
    components = tables_of(problem, rates, np.array([BATCHES]))
    all_reshards, _ = price_reshards(components, state, "decode", rates, problem.fast, np.array([BATCHES]))
    assert len(state.cuts) == 1
    for reshards in all_reshards:
        early, late = seconds(reshards, 0, 1)
        assert np.isfinite(late).all()
        np.testing.assert_array_equal(early, late)
