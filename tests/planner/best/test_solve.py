"""Plans of slices: ranking, fixed roles, and what is said where nothing fits."""

from __future__ import annotations

import itertools

import pytest

from mesh.errors import InputError
from mesh.slices import parse_slice
from planner.best.nothing import NothingFits
from planner.best.solve import make_plan
from planner.plan.planfile import PlanFile
from planner.query.query import Query
from strategies.models.configs import load_model
from strategies.models.workload import Dtypes, Workload

BATCHES = (1, 4, 16)


def _request(
    slices: tuple[str, ...] = ("v5e:2x2", "v5e:2x4"),
    batches: tuple[int, ...] = BATCHES,
    model: str = "llama-3.1-8b",
    **options: object,
) -> Query:
    work = Workload(phase="decode", batches=batches, context=4096, dtypes=Dtypes(weights="int8", kv="int8"))
    return Query(model=load_model(model), slices=[parse_slice(s) for s in slices], work=work, **options)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def file() -> PlanFile:
    """Plans of two slices and three batches."""
    return make_plan(_request(top=4))


def test_every_slice_and_batch_has_its_best_plan(file: PlanFile) -> None:
    """Besides the runners-up of the best there is one plan for each slice and batch."""
    pairs = [(p.slice, p.batch) for p in file.plans]
    assert len(pairs) == 6 + 3
    assert set(pairs) == {(s, b) for s in ("v5e:2x2", "v5e:2x4") for b in BATCHES}
    assert pairs.count(pairs[0]) == 4


def test_plans_are_ranked_by_throughput_per_chip(file: PlanFile) -> None:
    """The default objective is tokens per second and chip, best first."""
    speeds = [p.throughput.tokens_per_s_per_chip for p in file.plans]
    assert all(a >= b * (1 - 1e-9) for a, b in itertools.pairwise(speeds))


def test_latency_ranks_by_the_step() -> None:
    """The latency objective ranks by seconds of a step, whatever the batch or slice."""
    steps = [p.cost.step_s for p in make_plan(_request(objective="latency", top=3)).plans]
    assert steps == sorted(steps)


def test_runners_up_are_other_layouts(file: PlanFile) -> None:
    """No two plans of one slice and batch have the same programs and roles on the same mesh."""
    seen = [
        (p.slice, p.batch, p.mesh.pieces, tuple((a.program, *a.assignment.values()) for a in p.layouts))
        for p in file.plans
    ]
    assert len({str(s) for s in seen}) == len(seen)


def test_runners_up_do_not_change_the_best(file: PlanFile) -> None:
    """Asking for more runners-up leaves the best plan as it is."""
    assert make_plan(_request(top=1)).plans[0] == file.plans[0]


def test_counts_cover_more_layouts_than_were_priced(file: PlanFile) -> None:
    """Tables per component cover products: far more candidates than evaluations."""
    assert file.search.proved_optimal == "exhaustive"
    assert file.search.candidates > 100 * file.search.evaluations > 0


def test_every_plan_fits(file: PlanFile) -> None:
    """No plan needs more than the usable HBM of a device."""
    assert all(p.memory.total_bytes <= p.memory.usable_bytes for p in file.plans)


def test_fixed_roles_hold_and_cost() -> None:
    """`fixed` keeps a torus axis to a role, and no fixed plan is faster than the free one."""
    free = make_plan(_request(("v5e:2x4",), (16,), top=1)).plans[0]
    request = _request(("v5e:2x4",), (16,), top=1, fixed={"attention": {"Y": frozenset({"S"})}})
    fixed = make_plan(request).plans[0]
    assert fixed.cost.step_s >= free.cost.step_s
    attention = fixed.layouts[0]
    for name, pieces in zip(fixed.mesh.axis_names, fixed.mesh.pieces, strict=True):
        if any(piece.axis == "Y" for piece in pieces):
            assert attention.assignment[name].endswith("S")


@pytest.mark.parametrize(
    ("fixed", "message"),
    [
        ({"attn": {"X": frozenset({"B"})}}, "fix attn: no such component; this model has attention, mlp, vocab"),
        ({"mlp": {"Q": frozenset({"F"})}}, "fix mlp=Q: v5e:2x4 has no torus axis 'Q'; it has X, Y"),
        ({"mlp": {"X": frozenset({"K"})}}, "fix mlp=X:K: no role 'K'; expected one of"),
    ],
)
def test_fixes_that_mean_nothing_are_refused(fixed: dict[str, dict[str, frozenset[str]]], message: str) -> None:
    """An unknown component, axis or role is named together with what there is."""
    with pytest.raises(InputError) as error:
        make_plan(_request(("v5e:2x4",), (16,), fixed=fixed))
    assert str(error.value).startswith(message)


def test_where_nothing_fits_the_smallest_slice_that_would_is_named() -> None:
    """Llama-3.1-70B int8 does not fit on four v5e chips; the answer says why and where it would."""
    with pytest.raises(NothingFits) as error:
        make_plan(_request(("v5e:2x2",), (1,), "llama-3.1-70b"))
    assert "llama-3.1-70b" in str(error.value).lower()
    assert error.value.smallest == "v5e:2x4"
    assert any("usable HBM" in r.reason for r in error.value.rejected)


@pytest.mark.parametrize("options", [{"objective": "speed"}, {"top": 0}, {"top": 1001}])
def test_requests_are_checked_when_made(options: dict[str, object]) -> None:
    """An unknown objective or a `top` out of range is bad input."""
    with pytest.raises(InputError):
        _request(**options)
