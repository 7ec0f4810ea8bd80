"""The frontier: nothing on it is dominated, every objective's optimum is, and more choice never makes it worse."""

from __future__ import annotations

import csv
import io
import re
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import msgspec
import pytest
from helpers.levels import check_plan_file
from hypothesis import given
from hypothesis import strategies as st

import meshwright
from mesh.errors import InputError
from mesh.slices import parse_slice
from meshwright.reports import frontier_plot as plot_frontier
from meshwright.reports.frontier import CSV_COLUMNS, as_csv, report
from meshwright.reports.text import render
from planner.api import pareto
from planner.best.nothing import NothingFits
from planner.best.sweep import sweep
from planner.frontier import pareto as module
from planner.frontier.pareto import make_frontier, point_of, undominated, values_of
from planner.plan.planfile import Frontier, PlanFile, Point, encode, read_plan
from planner.query.query import Query
from planner.query.targets import Targets
from strategies.models.configs import load_model
from strategies.models.workload import Dtypes, Workload

SLICES = ("v5e:2x2", "v5e:2x4", "v6e:2x2", "v6e:2x4")
PRICES = {"v5e": 1.2, "v6e": 2.7}
BATCHES = (1, 4, 16, 64)


def request(names: Sequence[str] = SLICES, **options: object) -> Query:
    """Llama-3.1-8B, decode, on small slices of two chips."""
    work = Workload(phase="decode", batches=BATCHES, context=2048, dtypes=Dtypes(weights="int8"))
    plain = Query(
        model=load_model("llama-3.1-8b"), slices=[parse_slice(name) for name in names], work=work, prices=PRICES
    )
    return replace(plain, workers=1, **options)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def found() -> PlanFile:
    """The frontier of that request."""
    return make_frontier(request())


def frontier(file: PlanFile) -> Frontier:
    """The file's frontier, which must be there."""
    assert file.frontier is not None
    return file.frontier


def beats(one: Point, other: Point) -> bool:
    """Whether one point is no worse than another in anything and better in something, written apart."""
    costs = (one.dollars_per_million_tokens or 0.0, other.dollars_per_million_tokens or 0.0)
    no_worse = (
        one.step_s <= other.step_s * (1 + 1e-12)
        and one.tokens_per_s_per_chip >= other.tokens_per_s_per_chip * (1 - 1e-12)
        and costs[0] <= costs[1] * (1 + 1e-12)
    )
    better = (
        one.step_s < other.step_s * (1 - 1e-9)
        or one.tokens_per_s_per_chip > other.tokens_per_s_per_chip * (1 + 1e-9)
        or costs[0] < costs[1] * (1 - 1e-9)
    )
    return no_worse and better


def test_no_point_is_dominated_and_every_candidate_is_accounted_for(found: PlanFile) -> None:
    """Among all candidates none beats a point; each of the others is beaten, or equalled, by a point."""
    candidates = [point_of(c, PRICES) for c in sweep(request()).bests]
    points, dominated = frontier(found).points, frontier(found).dominated
    assert len(points) + len(dominated) == len(candidates)
    assert len(points) > 3
    assert not any(beats(c, p) for p in points for c in candidates)
    equal = {values_of(p) for p in points}
    assert all(any(beats(p, d) for p in points) or values_of(d) in equal for d in dominated)


def test_the_optimum_of_every_objective_is_on_the_frontier(found: PlanFile) -> None:
    """The shortest step, the most tokens per chip and the cheapest tokens are points, and marked."""
    candidates = [point_of(c, PRICES) for c in sweep(request()).bests]
    points = frontier(found).points
    assert points[0].step_s == min(c.step_s for c in candidates)
    assert "latency" in points[0].best_of
    throughput = [p for p in points if "throughput" in p.best_of]
    assert max(c.tokens_per_s_per_chip for c in candidates) == pytest.approx(throughput[0].tokens_per_s_per_chip)
    cost = [p for p in points if "cost" in p.best_of]
    dollars = [c.dollars_per_million_tokens for c in candidates if c.dollars_per_million_tokens is not None]
    assert min(dollars) == pytest.approx(cost[0].dollars_per_million_tokens)


def test_plans_are_the_points_by_latency_and_each_verifies(found: PlanFile, tmp_path: Path) -> None:
    """Plan n is point n; read from a file, each plan is what its own layout gives."""
    path = tmp_path / "frontier.json"
    path.write_bytes(encode(found))
    read = read_plan(path)
    assert read.frontier == found.frontier
    assert [p.step_s for p in frontier(read).points] == sorted(p.step_s for p in frontier(read).points)
    for plan, point in zip(read.plans, frontier(read).points, strict=True):
        assert (plan.slice, plan.batch, plan.chips) == (point.slice, point.batch, point.chips)
        assert plan.cost.step_s == pytest.approx(point.step_s, rel=1e-12)
        assert plan.throughput.tokens_per_s_per_chip == pytest.approx(point.tokens_per_s_per_chip, rel=1e-12)
        assert check_plan_file(plan).status == "passed"


def test_cost_follows_from_price_and_throughput(found: PlanFile) -> None:
    """Dollars per million tokens are the chip's price over its tokens in an hour."""
    for point in frontier(found).points:
        price = PRICES[point.slice.partition(":")[0]]
        tokens_per_hour = point.tokens_per_s_per_chip * 3600
        assert point.dollars_per_million_tokens == pytest.approx(price / tokens_per_hour * 1e6, rel=1e-12)


def test_the_order_of_slices_and_batches_does_not_matter(found: PlanFile) -> None:
    """Options in another order give the same frontier, whatever was found first."""
    work = msgspec.structs.replace(request().work, batches=BATCHES[::-1])
    other = make_frontier(request(SLICES[::-1], work=work))
    assert (other.plans, other.frontier) == (found.plans, found.frontier)


POINTS = st.lists(
    st.builds(
        Point,
        slice=st.sampled_from(("a", "b", "c")),
        chips=st.sampled_from((4, 8)),
        batch=st.integers(1, 3),
        step_s=st.integers(1, 9).map(float),
        tokens_per_s=st.just(1.0),
        tokens_per_s_per_chip=st.integers(1, 9).map(float),
        dollars_per_million_tokens=st.one_of(st.integers(1, 5).map(float)),
    ),
    min_size=1,
    max_size=25,
)


def worse(points: Sequence[Point], than: Sequence[Point]) -> bool:
    """Whether some point of `than` is matched by none of `points`."""

    def matched(point: Point) -> bool:
        return any(all(a <= b for a, b in zip(values_of(p), values_of(point), strict=True)) for p in points)

    return not all(map(matched, than))


@given(POINTS, POINTS)
def test_a_larger_set_never_makes_the_frontier_worse(some: list[Point], more: list[Point]) -> None:
    """With more candidates every point of the frontier is still there, or matched by a better one."""
    few, many = undominated(some), undominated([*some, *more])
    assert not worse([[*some, *more][n] for n in many], [some[n] for n in few])


@given(POINTS)
def test_the_frontier_is_what_no_point_beats_whatever_their_order(points: list[Point]) -> None:
    """Exactly the values that nothing beats are kept, once each, and in any order of the points the same."""
    kept = [points[n] for n in undominated(points)]
    assert {values_of(p) for p in kept} == {values_of(p) for p in points if not any(beats(o, p) for o in points)}
    assert len({values_of(p) for p in kept}) == len(kept)
    assert kept == [points[::-1][n] for n in undominated(points[::-1])]


@pytest.mark.slow
def test_more_slices_and_looser_targets_never_make_the_frontier_worse(found: PlanFile) -> None:
    """On real candidates: each subset of slices, and each tighter target, has no point that the whole lacks."""
    whole = frontier(found).points
    for names in (SLICES[:1], SLICES[1:], SLICES[::2]):
        assert not worse(whole, frontier(make_frontier(request(names))).points)
    last: Sequence[Point] = ()
    for limit_s in (0.002, 0.004, 0.05):
        file = make_frontier(request(targets=Targets(max_step_s=limit_s)))
        assert all(point.step_s <= limit_s for point in frontier(file).points)
        assert frontier(file).missed > 0 or limit_s == 0.05
        assert not worse(frontier(file).points, last)
        last = frontier(file).points
    assert not worse(whole, last)


def test_targets_that_none_meets_say_which(found: PlanFile) -> None:
    """An impossible target is an answer, with the nearest candidate."""
    with pytest.raises(NothingFits, match=r"a step of at most 0\.1 ms; the nearest has"):
        make_frontier(request(targets=Targets(max_step_s=1e-4)))
    with pytest.raises(NothingFits, match="does not fit on v5e:1x1"):
        pareto("llama-3.1-70b", "v5e:1x1", batch=[1])
    with pytest.raises(InputError, match="v5e has no slice of so many"):
        pareto("llama-3.1-8b", chips="v5e", chip_counts=(5, 6))


def test_an_interrupt_leaves_the_frontier_of_what_was_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the first slices gave is shown, with what was not searched."""
    whole = sweep(request())
    partial = replace(
        whole,
        results={name: whole.results[name] for name in SLICES[:2]},
        bests=tuple(c for c in whole.bests if c.slice_.name in SLICES[:2]),
        interrupted=True,
    )
    monkeypatch.setattr(module, "sweep", lambda *_: partial)
    file = make_frontier(request())
    assert file.search.proved_optimal == "interrupted"
    assert file.notes == ("interrupted: v6e:2x2, v6e:2x4 not searched",)
    assert {point.slice for point in frontier(file).points} <= set(SLICES[:2])


def test_the_report_has_a_line_for_each_point(found: PlanFile) -> None:
    """The table's lines are the points with their figures; below stand the counts and how estimates are made."""
    text = render(report(found, frontier(found)), "table")
    points = frontier(found).points
    for number, point in enumerate(points, 1):
        assert re.search(rf"^ *{number}  {re.escape(point.slice)} +{point.chips} +{point.batch} ", text, re.MULTILINE)
    assert f"16 choices of slice and batch, each with its best layout: {len(points)} on the frontier" in text
    assert "v6e: estimate: uncalibrated" in text
    assert "| plan |" in render(report(found, frontier(found)), "markdown").replace("  ", " ").replace("  ", " ")


def test_csv_has_every_candidate_with_full_digits(found: PlanFile) -> None:
    """Rows are the points with their plan's number, then what was dominated."""
    rows = list(csv.DictReader(io.StringIO(as_csv(frontier(found)))))
    assert tuple(rows[0]) == CSV_COLUMNS
    points, dominated = frontier(found).points, frontier(found).dominated
    assert [row["plan"] for row in rows] == [*map(str, range(1, len(points) + 1)), *[""] * len(dominated)]
    assert [float(row["step_s"]) for row in rows] == [p.step_s for p in (*points, *dominated)]
    assert [row["slice"] for row in rows] == [p.slice for p in (*points, *dominated)]


@pytest.fixture(scope="module")
def svg(found: PlanFile) -> bytes:
    """The plot."""
    pytest.importorskip("matplotlib")
    return plot_frontier.plot(found, frontier(found), "svg")


def test_the_svg_has_every_point_labelled_and_is_the_same_again(found: PlanFile, svg: bytes) -> None:
    """Each point has a tooltip with its figures and a label of slice and batch; drawn again, no byte differs."""
    assert svg == plot_frontier.plot(found, frontier(found), "svg")
    ElementTree.fromstring(svg)
    text = svg.decode()
    for number, point in enumerate(frontier(found).points, 1):
        assert f"<title>{plot_frontier.tooltip(number, point)}</title>" in text
        assert f"{point.slice}, batch {point.batch}" in text
    assert "$ per million tokens" in text
    assert "<dc:date>" not in text


def test_the_page_holds_the_svg_and_loads_nothing(found: PlanFile, svg: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    """One HTML file with the same drawing and tooltips, without links to anything outside it."""
    monkeypatch.setattr(plot_frontier, "_figure", lambda *_: svg)
    page = plot_frontier.plot(found, frontier(found), "html").decode()
    assert page.startswith("<!DOCTYPE html>")
    assert svg.decode().partition("<svg")[2] in page
    assert "<?xml" not in page
    assert not re.findall(r"(?:src|href)=\"(?!#)", page)


def test_a_png_says_nothing_of_when_or_with_what_it_was_drawn(found: PlanFile) -> None:
    """It has no version and no date, and drawn again no byte differs."""
    pytest.importorskip("matplotlib")
    png = plot_frontier.plot(found, frontier(found), "png")
    assert png.startswith(b"\x89PNG")
    assert b"Software" not in png
    assert b"tEXt" not in png
    assert png == plot_frontier.plot(found, frontier(found), "png")


def test_labels_cover_neither_points_nor_each_other() -> None:
    """Boxes that touch are not free, others are."""
    assert plot_frontier._free((0, 0, 1, 1), [(2, 0, 3, 1), (0, 2, 1, 3)])
    assert not plot_frontier._free((0, 0, 1, 1), [(0.5, 0.5, 3, 3)])


def test_without_matplotlib_the_message_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    """A plot without the extra is bad input that names it, before any search."""
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(InputError, match=r"-o 'a\.svg' needs matplotlib.*pip install 'meshwright\[plot\]'"):
        plot_frontier.check_plot("-o 'a.svg'")


def command(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    """Exit code, stdout and stderr of a `meshwright` command."""
    code = meshwright.main(list(arguments))
    out, err = capsys.readouterr()
    return code, out, err


def test_the_command_writes_what_the_suffix_says(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`-o x.csv` is the CSV that `--format csv` prints; `-o x.json` is a plan file that `explain` reads."""
    options = ("pareto", "llama-3.1-8b", "--slice", "v6e:2x2,v6e:1x1", "--batch", "1,8", "--context", "1024")
    code, out, _ = command(capsys, *options, "--format", "csv", "-o", str(tmp_path / "x.csv"))
    assert code == 0
    assert (tmp_path / "x.csv").read_text() == out
    assert command(capsys, *options, "-o", str(tmp_path / "x.json"))[0] == 0
    found = read_plan(tmp_path / "x.json")
    assert len(found.plans) == sum(line.partition(",")[0] != "" for line in out.splitlines()[1:])
    code, out, _ = command(capsys, "explain", str(tmp_path / "x.json"), "--pick", str(len(found.plans)))
    assert code == 0
    assert found.plans[-1].slice in out


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--slice", "v5e:2x2", "-o", "x.pdf"), r"-o 'x\.pdf': expected a file that ends in one of \.json, \.csv, "),
        (("--chip", "v5e", "--chips", "256..4"), "--chips '256..4': expected the smaller number first"),
        (("--chip", "v5e", "--chips", "5..6"), "v5e has no slice of so many"),
        (("--slice", "v5e:2x2", "--format", "pdf"), "--format 'pdf': expected table, json, markdown or csv"),
        (("--slice", "v5e:2x2", "--phase", "serve"), "--phase 'serve': expected decode or prefill"),
        (("--slice", "v5e:2x2", "-o", "/none/x.json"), r"cannot write '/none/x\.json'"),
        (("--slice", "v5e:2x2", "--price-per-chip-hour", "v6e=1"), "no price for v5e"),
        ((), "no slice given"),
    ],
)
def test_bad_input_is_one_line(
    options: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """Each mistake ends with exit code 2 and one line that names it."""
    code, out, err = command(capsys, "pareto", "llama-3.1-8b", *options)
    assert (code, out) == (2, "")
    assert re.search(message, err)
    assert err.count("\n") == 1


def test_nothing_that_fits_ends_with_one(capsys: pytest.CaptureFixture[str]) -> None:
    """Exit code 1 and the reason where nothing fits."""
    code, _, err = command(capsys, "pareto", "llama-3.1-70b", "--slice", "v5e:1x1", "--batch", "1", "--format", "csv")
    assert code == 1
    assert "llama-3.1-70b does not fit on v5e:1x1" in err
