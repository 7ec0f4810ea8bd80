"""The report of a frontier: one line per point, what was dominated, how the estimates were made; and as CSV."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Sequence

from meshwright.reports.plan import (
    accuracy_text,
    bound_text,
    constants_of,
    layout_lines,
    layout_text,
    legend_of,
    mesh_text,
    targets_text,
    title,
)
from meshwright.reports.text import Block, Lines, TextTable
from planner.numbers import digits, gb, ms
from planner.plan.plan import Plan
from planner.plan.planfile import COST, Frontier, PlanFile, Point

CSV_COLUMNS = (
    "plan", "slice", "chips", "batch", "step_s", "tokens_per_s", "tokens_per_s_per_chip",
    "dollars_per_million_tokens", "best_of",
)  # fmt: skip


def report(file: PlanFile, frontier: Frontier) -> list[Block]:
    """Return the whole report of a frontier."""
    return [
        Lines("", [f"{title(file.plans[0], '')}; frontier of {_axes(frontier)}", *targets_text(file.targets)]),
        _table(file.plans, frontier),
        legend_of(file.plans),
        Lines("Frontier", _lines(file, frontier)),
        Lines("Notes", file.notes),
        Lines("Estimates", list(dict.fromkeys(_estimates(file.plans)))),
    ]


def _axes(frontier: Frontier) -> str:
    names = {COST: "cost", "throughput": "tokens/s per chip", "latency": "latency"}
    return ", ".join(names[axis] for axis in frontier.axes)


def _table(plans: Sequence[Plan], frontier: Frontier) -> TextTable:
    step = "step ms" if plans[0].phase == "decode" else "batch ms"
    costs = ["$/Mtoken"] if COST in frontier.axes else []
    headers = (
        "plan", "slice", "chips", "batch", step, "tokens/s", "per chip", *costs, "HBM GB", "bound by", "best of",
        "mesh", "attention", "MLP",
    )  # fmt: skip
    rows = list(zip(plans, frontier.points, strict=True))
    return TextTable(
        "",
        headers,
        [_row(n, plan, point, bool(costs)) for n, (plan, point) in enumerate(rows, 1)],
        notes=[[*_best_of(point), *layout_lines(plan)] for plan, point in rows],
        wide=frozenset(range(len(headers) - 4, len(headers))),
    )


def _best_of(point: Point) -> list[str]:
    return [f"best {', '.join(point.best_of)} of all"] if point.best_of else []


def _row(number: int, plan: Plan, point: Point, costs: bool) -> list[str]:
    dollars = point.dollars_per_million_tokens
    return [
        str(number),
        point.slice,
        str(point.chips),
        str(point.batch),
        ms(point.step_s),
        digits(point.tokens_per_s),
        digits(point.tokens_per_s_per_chip),
        *(["" if dollars is None else digits(dollars)] if costs else []),
        f"{gb(plan.memory.total_bytes)}/{gb(plan.memory.usable_bytes)}",
        bound_text(plan.cost.bound_by),
        ", ".join(point.best_of),
        mesh_text(plan),
        layout_text(plan, "attention"),
        layout_text(plan, "MLP"),
    ]


def _lines(file: PlanFile, frontier: Frontier) -> list[str]:
    points, dominated, search = len(frontier.points), len(frontier.dominated), file.search
    missed = f", {frontier.missed} more miss a target" if frontier.missed else ""
    return [
        f"{points + dominated + frontier.missed} choices of slice and batch, each with its best layout: {points} on "
        f"the frontier, {dominated} dominated{missed}",
        f"{search.candidates:,} layouts covered, {search.evaluations:,} programs priced, in {search.wall_s:.2f} s; "
        f"proved best: {search.proved_optimal}",
    ]


def _estimates(plans: Sequence[Plan]) -> Iterator[str]:
    """Yield, for each chip, how its estimates were made."""
    for plan in {plan.chip_name: plan for plan in reversed(plans)}.values():
        for line in (accuracy_text(plan), *constants_of(plan)):
            yield f"{plan.slice.partition(':')[0]}: {line}"


def as_csv(frontier: Frontier) -> str:
    """Return every candidate that meets the targets as CSV; the frontier comes first, with plan numbers."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(CSV_COLUMNS)
    numbered = [*enumerate(frontier.points, 1), *(("", point) for point in frontier.dominated)]
    for number, point in numbered:
        dollars = point.dollars_per_million_tokens
        writer.writerow(
            [
                number,
                point.slice,
                point.chips,
                point.batch,
                repr(point.step_s),
                repr(point.tokens_per_s),
                repr(point.tokens_per_s_per_chip),
                "" if dollars is None else repr(dollars),
                " ".join(point.best_of),
            ]
        )
    return out.getvalue()
