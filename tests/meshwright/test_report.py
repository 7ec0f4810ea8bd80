"""The report of a plan file, and its text."""

import msgspec
import pytest
from helpers.planned import planned

from meshwright.reports.plan import (
    layout_text,
    mesh_text,
    pieces_text,
    plan_table,
    report,
    roles_text,
    runner_up,
    why_lost,
)
from meshwright.reports.text import Lines, TextTable, render
from planner.numbers import digits
from planner.plan.accuracy import whose_constants
from planner.plan.compare import PlanComparison, Turn
from planner.plan.plan import Constant, Plan
from planner.plan.planfile import PlanFile
from strategies.layout import ComponentLayout, MeshPiece


@pytest.fixture(scope="module")
def found() -> PlanFile:
    """Llama-3.1-70B, the issue's example."""
    return planned("llama-3.1-70b", "v5e:4x4", batch=(32, 64), context=8192, weights="int8", kv="int8", top=3)


def test_one_line_per_plan_with_every_column(found: PlanFile) -> None:
    """A plan's line has its own numbers, in the units that the header names."""
    table, best = plan_table(found.plans), found.plans[0]
    row = dict(zip(table.headers, table.rows[0], strict=True))
    assert len(table.rows) == len(found.plans)
    assert row["slice"] == "v5e:4x4"
    assert row["batch"] == "64"
    assert float(row["step ms"]) == pytest.approx(best.cost.step_s * 1e3, rel=1e-3)
    assert float(row["tokens/s"].replace(",", "")) == pytest.approx(64 / best.cost.step_s, rel=1e-3)
    assert float(row["per chip"]) == pytest.approx(64 / best.cost.step_s / 16, rel=1e-3)
    assert row["HBM GB"] == f"{best.memory.total_bytes / 1e9:.2f}/16.91"
    assert row["bound by"] == "HBM"


def test_prefill_is_labelled_as_the_whole_batch(found: PlanFile) -> None:
    """A prefill's time is headed as that of the whole batch."""
    prefill = msgspec.structs.replace(found.plans[0], phase="prefill")
    assert "batch ms" in plan_table([prefill]).headers
    assert "step ms" in plan_table(found.plans).headers


def test_report_says_all_that_the_issue_asks_for(found: PlanFile) -> None:
    """The text has the runner-up's margin, the rejected groups, what was searched, the constants and the error bar."""
    text = render(report(found, rejected=True), "wide")
    assert "slower than plan 1" in text
    assert "Rejected (assignments of roles to mesh axes)" in text
    assert "Rejected" not in render(report(found), "wide")
    assert f"{found.search.candidates:,} layouts covered" in text
    assert "proved best: exhaustive" in text
    assert "estimates take programs to reach 86.0% of the data sheet's HBM bandwidth" in text
    assert "measured decode steps of this chip" in text
    assert all(note in text for note in found.notes)


def test_markdown_has_headings_and_pipes(found: PlanFile) -> None:
    """The same report as Markdown has headings, tables with pipes and lists."""
    text = render(report(found), "markdown")
    assert "\n## Why the runner-up lost\n\n- plan " in text
    assert "\n|-------:|" in text


def test_runner_up_is_of_the_same_slice_and_batch(found: PlanFile) -> None:
    """Plans of other batches in between are passed over; without another there is no runner-up."""
    best, second = found.plans[:2]
    other = msgspec.structs.replace(second, batch=32)
    assert runner_up([best, other, second]) == 3
    assert runner_up([best, other]) is None


def lost(**changes: object) -> list[str]:
    """What is said of a comparison."""
    values = {
        "margin_s": 0.001, "margin": 0.05, "deciding_text": "o[B] = AllReduce_X(o[B] {U_X})", "turns": (),
        "deciding_component": "mlp", "deciding_s": 0.002,
    }  # fmt: skip
    return why_lost(2, PlanComparison(**{**values, **changes}))  # type: ignore[arg-type]


def test_why_the_runner_up_lost() -> None:
    """Margin, deciding step, and which change of hardware would turn it."""
    assert lost() == [
        "plan 2 is 5.00% slower than plan 1 (1.000 ms)",
        "deciding step, in mlp: `o[B] = AllReduce_X(o[B] {U_X})` takes 2.000 ms more than in plan 1",
        "no change of HBM bandwidth, ICI bandwidth or FLOP/s by 20% would turn it",
    ]


def test_turns_name_the_change() -> None:
    """A change that would turn it is named with its sign."""
    turns = (Turn("ICI bandwidth", 0.8), Turn("FLOP/s", 1.2))
    assert lost(turns=turns)[-1].startswith("-20% ICI bandwidth or +20% FLOP/s would turn it: plan 2 would win")


def test_tie_is_called_one() -> None:
    """Two plans of equal time are not called slower by nothing."""
    assert lost(margin_s=0.0, margin=0.0)[0].startswith("plan 2 is as fast as plan 1; ties break on memory")


def layout(component: str, program: str, **assignment: str) -> ComponentLayout:
    """A component's layout."""
    return ComponentLayout(component=component, groups=(0,), layers=1, program=program, assignment=assignment)


def test_roles_are_short() -> None:
    """Roles per mesh axis; the program is named where it says more than the component; `-` is idle."""
    assert roles_text(layout("attention0", "attention", X="N+K", Y="-")) == "X:N+K Y:idle"
    assert roles_text(layout("moe", "moe-scatter", X="E+B")) == "moe-scatter X:E+B"
    assert roles_text(layout("mlp", "mlp")) == "whole"


def with_layouts(plan: Plan, *layouts: ComponentLayout) -> Plan:
    """The plan with other layouts."""
    return msgspec.structs.replace(plan, layouts=layouts)


def test_several_kinds_of_attention_are_each_named(found: PlanFile) -> None:
    """Equal layouts are said once, unequal ones with the component; a parallel block is in both columns."""
    best = found.plans[0]
    equal = with_layouts(best, layout("attention0", "attention", X="N+K"), layout("attention1", "attention", X="N+K"))
    unequal = with_layouts(best, layout("attention0", "attention", X="N+K"), layout("attention1", "attention", X="D+B"))
    block = with_layouts(best, layout("block", "parallel-block", X="N+K"))
    assert layout_text(equal, "attention") == "X:N+K"
    assert layout_text(unequal, "attention") == "attention0 X:N+K; attention1 X:D+B"
    assert layout_text(block, "attention") == layout_text(block, "MLP") == "parallel-block X:N+K"


def test_mesh_and_its_place_in_the_torus(found: PlanFile) -> None:
    """Sizes by axis name; adjacent pieces of one torus axis are said as one."""
    pieces = ((("X", 2, 2), ("Y", 2, 2), ("Y", 1, 2)), (("X", 1, 2),))
    made = tuple(tuple(MeshPiece(axis=a, stride=s, size=m) for a, s, m in axis) for axis in pieces)
    mesh = msgspec.structs.replace(found.plans[0].mesh, axis_names=("X", "Y"), axis_sizes=(8, 2), pieces=made)
    plan = msgspec.structs.replace(found.plans[0], mesh=mesh)
    assert mesh_text(plan) == "X8 Y2"
    assert pieces_text(plan, 0) == "torus X 2 (stride 2) x torus Y 4"
    assert pieces_text(plan, 1) == "torus X 2"


def test_padding_is_said(found: PlanFile) -> None:
    """Padded dims and a padded batch are in the details."""
    plan = msgspec.structs.replace(found.plans[0], padded={"mlp/F": (28672, 28800)}, padded_batch=72)
    text = render(report(msgspec.structs.replace(found, plans=(plan,))), "table")
    assert "mlp/F: padded from 28672 to 28800" in text
    assert "batch: padded from 64 to 72" in text


def test_it_says_whose_constants_times_are_of() -> None:
    """Measured, some measured, or of data sheets; usable HBM is in no time."""

    def lines(*measured: bool) -> str:
        names = ("hbm_bytes_per_s", "hop_latency_s")
        sources = {True: "calibrated from 8 x cpu, on 2026-11-30: the best", False: "a data sheet"}
        usable = Constant(name="usable_hbm_bytes_per_device", value=1.0, unit="bytes", source="assumption")
        made = [
            Constant(name=n, value=1.0, unit="", source=sources[m], calibrated=m)
            for n, m in zip(names, measured, strict=True)
        ]
        return whose_constants([usable, *made])

    assert lines(True, True).startswith("times are calibrated from 8 x cpu, on 2026-11-30; ")
    assert lines(True, False).startswith(
        "times are partly calibrated from 8 x cpu, on 2026-11-30; uncalibrated: hop_latency_s; "
    )
    assert lines(False, False).startswith("times are uncalibrated: ")


def test_tables_align_numbers_and_escape_pipes() -> None:
    """Numbers go right, words left; in Markdown a pipe does not end a cell, and code is in backticks."""
    table = TextTable("", ("word", "count"), [("a|b", "1,000"), ("c", "-")], code=frozenset({0}))
    assert render([table], "table").splitlines()[2:] == ["a|b   1,000", "c         -"]
    assert "| `a\\|b` |   1,000 |" in render([table], "markdown")


def test_empty_blocks_are_left_out() -> None:
    """A heading without rows or lines is not printed."""
    assert render([Lines("a", []), TextTable("b", ("c",), []), Lines("", ["d"])], "table") == "d\n"


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "-"), (15.96631, "15.97"), (0.0123456, "0.01235"), (5e-5, "5.000e-05"), (999.96, "1,000"), (-2.5, "-2.500"),
        (53121318912, "53,121,318,912"), (1e18, "1.000e+18"),
    ],
)  # fmt: skip
def test_digits(value: float, text: str) -> None:
    """Numbers have four significant digits and no needless exponents."""
    assert digits(value) == text
