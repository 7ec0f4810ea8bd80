"""Layouts: from a choice, bound to mesh axes, and the same under other names."""

from __future__ import annotations

from itertools import permutations

import pytest
from msgspec.structs import replace as changed
from oracles import bruteforce

from planner.plan.plan import Plan
from planner.plan.pricing import price_layout
from planner.search.chosen_layout import from_choice
from planner.search.problem import Choice, Problem
from planner.search.search import search
from strategies.layout import Assigned, Layout, MeshAxes, bind_layout, residual_order
from strategies.models.models import Model
from strategies.notation import LayoutError
from strategies.readers.bound import programs

SLICES = ("v5e:2x2", "v5e:2x4", "v5p:2x2x1", "tpu7x:2x2x1", "h100:8")
CASES = [*range(3), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(3, 7))]


def _case(seed: int) -> tuple[Problem, Model, list[Choice]]:
    problem, model = bruteforce.toy_case(seed, SLICES)
    return problem, model, search(problem, 4).choices[problem.work.batches[0]]


def _price(layout: Layout, problem: Problem, model: Model, choice: Choice) -> Plan:
    bound = bind_layout(layout, problem.components)
    return price_layout(bound, problem.slice_, model, problem.work, choice.batch, choice.padded_batch, problem.fast)


def _equal(a: Plan, b: Plan) -> None:
    for mine, theirs in (
        (a.cost.step_s, b.cost.step_s),
        (a.cost.lower_bound_s, b.cost.lower_bound_s),
        (a.cost.upper_bound_s, b.cost.upper_bound_s),
        (a.memory.total_bytes, b.memory.total_bytes),
    ):
        assert mine == pytest.approx(theirs, rel=1e-12)


def _permuted(layout: Layout, at: tuple[int, ...]) -> Layout:
    """The same layout with its mesh axes listed in another order."""
    names, pieces = (tuple(of[i] for i in at) for of in (layout.mesh.axis_names, layout.mesh.pieces))
    return changed(layout, mesh=MeshAxes(axis_names=names, pieces=pieces))


def _renamed(layout: Layout, names: dict[str, str]) -> Layout:
    return Layout(
        mesh=changed(layout.mesh, axis_names=tuple(names[n] for n in layout.mesh.axis_names)),
        residual={dim: tuple(names[n] for n in axes) for dim, axes in layout.residual.items()},
        layouts=tuple(
            changed(one, assignment={names[n]: role for n, role in one.assignment.items()}) for one in layout.layouts
        ),
    )


@pytest.mark.parametrize("seed", CASES)
def test_renaming_the_mesh_axes_changes_nothing(seed: int) -> None:
    """Names are names: seconds and bytes stay, and every step keeps its text up to the names."""
    problem, model, choices = _case(seed)
    for choice in choices:
        layout = from_choice(choice, problem).layout
        other = _renamed(layout, dict(zip(layout.mesh.axis_names, "QRSTUV", strict=False)))
        before, after = _price(layout, problem, model, choice), _price(other, problem, model, choice)
        _equal(before, after)
        assert [s.op for s in before.cost.steps] == [s.op for s in after.cost.steps]
        assert [len(s.text) for s in before.cost.steps] == [len(s.text) for s in after.cost.steps]


@pytest.mark.parametrize("seed", CASES)
def test_listing_the_mesh_axes_in_another_order_changes_nothing(seed: int) -> None:
    """Seconds and bytes do not depend on which mesh axis is listed first."""
    problem, model, choices = _case(seed)
    for choice in choices[:2]:
        layout = from_choice(choice, problem).layout
        before = _price(layout, problem, model, choice)
        for at in list(permutations(range(len(layout.mesh.axis_names))))[1:4]:
            _equal(before, _price(_permuted(layout, at), problem, model, choice))


@pytest.mark.parametrize("seed", CASES)
def test_swapping_equal_physical_axes_changes_nothing(seed: int) -> None:
    """Two physical axes of one length and kind are interchangeable."""
    problem, model = bruteforce.toy_case(seed, ("v5e:2x2", "v5p:2x2x2", "tpu7x:2x2x1"))
    for choice in search(problem, 2).choices[problem.work.batches[0]]:
        layout = from_choice(choice, problem).layout
        swap = {"X": "Y", "Y": "X"}
        pieces = tuple(tuple(changed(p, axis=swap.get(p.axis, p.axis)) for p in axis) for axis in layout.mesh.pieces)
        before = _price(layout, problem, model, choice)
        _equal(before, _price(changed(layout, mesh=changed(layout.mesh, pieces=pieces)), problem, model, choice))


@pytest.mark.parametrize("seed", CASES)
def test_pieces_with_equal_roles_are_one_mesh_axis(seed: int) -> None:
    """Merging pieces that play the same roles everywhere changes neither seconds nor bytes."""
    problem, model, choices = _case(seed)
    for choice in choices:
        layout = from_choice(choice, problem).layout
        played = [(choice.residual[i], *(p.axes[i] for p in choice.picks)) for i in range(len(choice.mesh))]
        assert len(layout.mesh.axis_names) == len(set(played))
        order = bruteforce.legal_order(choice, problem)
        _equal(_price(layout, problem, model, choice), bruteforce.price_choice(choice, problem, model, order))


def test_an_order_in_which_a_component_keeps_no_prefix_is_refused() -> None:
    """Where components would write the residual in two orders the layout is an error that shows both."""
    problem, model, choices = _case(0)
    (attention, other, vocab) = problem.components
    assert (attention.kind, vocab.kind) == ("attention", "vocab")
    mesh = bruteforce.two_pieces()
    assigned = (
        Assigned(attention, attention.bodies[0], ("X", "G")),
        Assigned(other, other.bodies[0], ("-", "-")),
        Assigned(vocab, vocab.bodies[0], ("X", "-")),
    )
    layout = bruteforce.make_layout(problem.slice_, mesh, ("D", "D"), (1, 0), assigned)
    with pytest.raises(LayoutError, match=r"needs the residual as R\[B, D_ba\], others as R\[B, D_ab\]|D_ab\], others"):
        programs(layout)
    assert choices
    assert model


def test_kept_axes_come_first_in_the_residual() -> None:
    """The order puts axes that every component keeps before those that some gather."""
    problem, _, _ = _case(0)
    attention, _, vocab = problem.components
    assigned = [
        Assigned(attention, attention.bodies[0], ("-", "X")),
        Assigned(vocab, vocab.bodies[0], ("-", "X")),
    ]
    assert residual_order(("X", "Y"), ("D", "D"), assigned) == ("Y", "X")
