"""Terms: seconds at other constants are what pricing gives with these constants."""

import numpy as np
import pytest

from mesh.chips import Reached
from mesh.slices import parse_slice
from planner.plan.accuracy import slice_at
from planner.plan.compare import step_seconds
from planner.validate.measured import CurveSet, StepSet, read_set
from planner.validate.points import (
    collective_s,
    data_sheet_of_steps,
    default_of,
    plans_of,
    terms_of_curve,
    terms_of_steps,
)
from planner.validate.terms import terms_of

OTHERS = [
    Reached(hbm=0.7, matmul=0.6, link=0.5, hop=2.5, launch_s=7e-6),
    Reached(hbm=0.99, matmul=0.3, link=0.9, hop=0.0, launch_s=0.0),
    Reached(hbm=0.3, matmul=1.0, link=0.2, hop=0.1, launch_s=1e-4),
]


@pytest.mark.parametrize(
    "reached", [OTHERS[0], *(pytest.param(reached, marks=pytest.mark.slow) for reached in OTHERS[1:])]
)
@pytest.mark.parametrize("name", ["llama3-70b-v5e16", "palm-540b-v4-64"])
def test_terms_are_what_pricing_gives(name: str, reached: Reached) -> None:
    """Priced once at shares of 1 and evaluated at other constants, every point is as pricing has it there."""
    data = read_set(name)
    assert isinstance(data, StepSet)
    plans = plans_of(data, parse_slice(data.slice).reaching(reached))
    priced = [plan.cost.step_s for plan in plans]
    assert terms_of_steps(data).seconds(reached) == pytest.approx(priced, rel=1e-9)
    assert [step_seconds(plan) for plan in plans] == pytest.approx(priced, rel=1e-9)


def test_some_terms_hide_gathers_behind_matmuls() -> None:
    """The data has a layout that gathers weights, so what hides is tested above."""
    data = read_set("palm-540b-v4-64")
    assert isinstance(data, StepSet)
    terms = terms_of_steps(data)
    assert terms.behind.any()
    assert (terms.body[terms.behind] > 0).all()


def test_terms_of_chosen_points_are_those_points() -> None:
    """A part of the points has the seconds that they have in the whole."""
    data = read_set("palm-540b-v4-64")
    assert isinstance(data, StepSet)
    terms, chosen = terms_of_steps(data), [0, 2, 3, 7, 11]
    assert np.array_equal(terms.of(chosen).seconds(OTHERS[0]), terms.seconds(OTHERS[0])[chosen])


def test_terms_need_plans_at_shares_of_one() -> None:
    """Plans priced at a chip's constants are refused: their terms would count these twice."""
    data = read_set("v5e-layer-appendix-a")
    assert isinstance(data, StepSet)
    with pytest.raises(ValueError, match="expected plans priced at"):
        terms_of(plans_of(data, parse_slice(data.slice)))


def test_data_sheet_estimates_are_those_of_plans() -> None:
    """The data sheet's bound and estimate of a point are its plan's."""
    data = read_set("llama3-70b-v5e16")
    assert isinstance(data, StepSet)
    plans = plans_of(data, slice_at(parse_slice(data.slice), "data-sheet"))
    lower, estimate = data_sheet_of_steps(data)
    assert lower == pytest.approx([plan.cost.lower_bound_s for plan in plans], rel=1e-9)
    assert estimate == pytest.approx([plan.cost.step_s for plan in plans], rel=1e-9)


def test_curves_are_priced_as_a_programs_collectives_are() -> None:
    """Terms of a collective give the seconds that its rates give."""
    data = read_set("collectives")
    assert isinstance(data, CurveSet)
    for curve in data.curves:
        slice_, sizes = parse_slice(curve.slice).reaching(OTHERS[0]), [point.bytes for point in curve.points]
        seconds = collective_s(slice_, curve.collective, curve.group, sizes)
        assert terms_of_curve(curve, sizes).seconds(OTHERS[0]) == pytest.approx(seconds, rel=1e-9)
        assert default_of(parse_slice(curve.slice)).link <= 1
