"""The report of a plan file: one line per plan, why the runner-up lost, what was searched; and why nothing fits."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from math import nan
from typing import TYPE_CHECKING, Any

from mesh.version import VERSION
from meshwright.reports.text import Block, Lines, TextTable
from planner.numbers import digits, gb, ms
from planner.plan.accuracy import whose_constants
from planner.plan.compare import QUANTITIES, PlanComparison, compare
from planner.plan.plan import Plan
from planner.plan.planfile import SCHEMA, PlanFile, Rejected
from planner.query.targets import OBJECTIVES, Prices, dollars_per_million_tokens, price_of
from strategies.layout import ComponentLayout
from strategies.role_words import layout_words, legend

if TYPE_CHECKING:
    from planner.best.nothing import NothingFits

BOUNDS = {"flops": "FLOPs", "hbm": "HBM", "ici": "ICI bandwidth", "latency": "ICI latency", "free": "-"}
_COLUMNS = {"attention": ("attention", "block"), "MLP": ("mlp", "moe", "block")}
"""Columns of exact letters, and the kinds of components that each shows."""
_SHOWN = ("attention", "block", "mlp", "moe")
_TITLES = {name: f"; {objective.title}" for name, objective in OBJECTIVES.items()} | {
    "given": "; the layout that was given"
}


def report(file: PlanFile, rejected: bool = False) -> list[Block]:
    """Return the whole report of `plan` or `price`; `rejected`: with what was ruled out."""
    best = file.plans[0]
    return [
        Lines("", [title(best, file.objective), *targets_text(file.targets)]),
        plan_table(file.plans, file.prices),
        legend_of(file.plans),
        Lines("Details of plan 1", details(best)),
        Lines("Why the runner-up lost", _runner_up(file)),
        Lines("Notes", [*file.notes, *_over_memory(file)]),
        rejected_table(file.rejected if rejected else ()),
        Lines("Search and constants", [*_search(file), *constants_of(best)]),
    ]


def title(plan: Plan, objective: str) -> str:
    """Return the question in one line."""
    d = plan.dtypes
    held = "tokens in each cache" if plan.phase == "decode" else "tokens in each prompt"
    return (
        f"{plan.model.name}, {plan.phase}, {plan.context} {held}; weights {d.weights}, KV cache {d.kv}, activations "
        f"{d.activations}, compute {d.compute}{_TITLES.get(objective, '')}"
    )


def targets_text(targets: Sequence[str]) -> list[str]:
    """Return the targets that every plan meets, in one line; nothing where none was given."""
    return [f"every plan meets {', '.join(targets)}"] if targets else []


def plan_table(plans: Sequence[Plan], prices: Prices | None = None) -> TextTable:
    """Return one row of numbers per plan, with the layout in words beneath; with prices, the cost of a million tokens.

    The style `wide` has the mesh and the roles in exact letters, in columns of their own.
    """
    step = "step ms" if plans[0].phase == "decode" else "batch ms"
    headers = (
        "plan", "slice", "batch", step, "lower", "upper", "tokens/s", "per chip", *(["$/Mtoken"] if prices else []),
        "HBM GB", "bound by", "mesh", *_COLUMNS,
    )  # fmt: skip
    return TextTable(
        "",
        headers,
        [_plan_row(number, plan, prices or {}) for number, plan in enumerate(plans, 1)],
        notes=[layout_lines(plan) for plan in plans],
        wide=frozenset(range(len(headers) - 3, len(headers))),
    )


def _plan_row(number: int, plan: Plan, prices: Prices) -> list[str]:
    cost, memory, rate = plan.cost, plan.memory, plan.throughput
    return [
        str(number),
        several(plan, plan.slice),
        several(plan, str(plan.batch)),
        *map(ms, (cost.step_s, cost.lower_bound_s, cost.upper_bound_s)),
        digits(rate.tokens_per_s),
        digits(rate.tokens_per_s_per_chip),
        *([digits(dollars(plan, prices))] if prices else []),
        f"{gb(memory.total_bytes)}/{gb(memory.usable_bytes)}",
        bound_text(cost.bound_by),
        mesh_text(plan),
        *(layout_text(plan, column) for column in _COLUMNS),
    ]


def layout_lines(plan: Plan) -> list[str]:
    """Return the mesh, and per program of attention and MLP the layout in words: `mlp: ... d_ff 8 x d_model 2`."""
    texts: dict[tuple[str, str], list[str]] = {}
    for layout in plan.layouts:
        if layout.component.startswith(_SHOWN):
            texts.setdefault((layout.program, layout_words(layout, plan.mesh)), []).append(layout.component)
    ways = Counter(program for program, _ in texts)
    lines = []
    for (program, text), components in texts.items():
        of = f" ({', '.join(components)})" if ways[program] > 1 else ""
        lines.append(f"{program}{of}: {text}")
    return [f"mesh {mesh_text(plan)}", *lines]


def legend_of(plans: Sequence[Plan]) -> Lines:
    """Return how the layouts of these plans are to be read: every word that they use."""
    shown = [(plan, layout) for plan in plans for layout in plan.layouts if layout.component.startswith(_SHOWN)]
    words = [layout_words(layout, plan.mesh) for plan, layout in shown]
    lines = [
        "mesh a4 b2: mesh axes a and b, of 4 and 2 devices; heads 4 x batch 2: cut over 4 devices, each of which is "
        "cut over 2; KV: the cut of the cache over the same axes in the same order",
        "; ".join(legend(words)),
        "step ms: the estimate, with its lower and upper bound; HBM GB: used/usable per device; `meshwright glossary` "
        "has every word, `explain` every step, --wide the exact letters",
    ]
    return Lines("How to read it", [line for line in lines if line])


def dollars(plan: Plan, prices: Prices) -> float:
    """Return the dollars that a million tokens of the plan cost; NaN where its chip has no price."""
    price = price_of(prices, plan.chip_name)
    return nan if price is None else dollars_per_million_tokens(price, plan.throughput.tokens_per_s_per_chip)


def several(plan: Plan, text: str) -> str:
    """Return the text with the number of slices, where there are several: `2 x v5e:16x16`."""
    return f"{plan.num_slices} x {text}" if plan.num_slices > 1 else text


def bound_text(bound: str) -> str:
    """Return a bound as people write it: `ICI bandwidth`."""
    return BOUNDS.get(bound, bound)


def mesh_text(plan: Plan) -> str:
    """Return the mesh's axes with their sizes: `a4 b4`."""
    sizes = plan.mesh.sizes.items()
    return " ".join(f"{name}{size}" for name, size in sizes) or "one device"


def layout_text(plan: Plan, column: str) -> str:
    """Return the roles of the mesh axes in attention, or in the MLP, in letters; several kinds of it are each named."""
    layouts = [layout for layout in plan.layouts if layout.component.startswith(_COLUMNS[column])]
    texts = dict.fromkeys(roles_text(layout) for layout in layouts)
    if len(texts) == 1:
        return next(iter(texts))
    return "; ".join(f"{layout.component} {roles_text(layout)}" for layout in layouts)


def roles_text(layout: ComponentLayout) -> str:
    """Return each mesh axis's role, `a:N+K b:D+B`, after the program where that says more than the component."""
    plain = layout.component.startswith(layout.program)
    return assignment_text(layout) if plain else f"{layout.program} {assignment_text(layout)}"


def assignment_text(layout: ComponentLayout) -> str:
    """Return each mesh axis's role: `a:N+K b:D+B`."""
    roles = (f"{axis}:{'idle' if role == '-' else role}" for axis, role in layout.assignment.items())
    return " ".join(roles) or "whole"


def pieces_text(plan: Plan, number: int) -> str:
    """Return the pieces of the torus that make a mesh axis, major first: `torus X 2 (stride 2) x torus Y 4`."""
    merged: list[tuple[str, int, int]] = []
    for piece in plan.mesh.pieces[number]:
        axis, stride, size = merged[-1] if merged else ("", 0, 0)
        if axis == piece.axis and stride == piece.stride * piece.size:  # the next minor part of the same run
            merged[-1] = (axis, piece.stride, size * piece.size)
        else:
            merged.append((piece.axis, piece.stride, piece.size))
    return " x ".join(f"torus {a} {m}" + (f" (stride {s})" if s > 1 else "") for a, s, m in merged)


def details(plan: Plan) -> list[str]:
    """Return the mesh's place in the torus, the cut of the residual stream, the padding and the error bar."""
    axes = enumerate(plan.mesh.sizes.items())
    mesh = "; ".join(f"{name}{size} = {pieces_text(plan, number)}" for number, (name, size) in axes)
    cuts = ", ".join(f"{dim} over {''.join(axes)}" for dim, axes in plan.residual.items() if axes)
    lines = [f"mesh: {mesh or 'one device'}", f"residual stream: {cuts or 'whole on every device'}"]
    lines += [f"{name}: padded from {before} to {after}" for name, (before, after) in plan.padded.items()]
    if plan.padded_batch != plan.batch:
        lines.append(f"batch: padded from {plan.batch} to {plan.padded_batch}")
    return [*lines, accuracy_text(plan)]


def accuracy_text(plan: Plan) -> str:
    """Return the estimate's error bar, and the measurements that it is from."""
    bar = plan.accuracy
    if bar is None:
        return (
            f"estimate: uncalibrated; no {plan.phase} step of this chip has been measured against it at these constants"
        )
    how = "with constants fitted to the others" if bar.constants == bar.set else f"at {bar.constants} constants"
    return (
        f"estimate: within {bar.worst:.0%} of {bar.points} measured {plan.phase} steps of this chip (median "
        f"{bar.median:.1%}), {how}: {bar.set}"
    )


def runner_up(plans: Sequence[Plan]) -> int | None:
    """Return the number (from 1) of the next best plan of the first one's slice and batch; None where there is none."""
    best = (plans[0].slice, plans[0].batch)
    return next((n for n, plan in enumerate(plans[1:], 2) if (plan.slice, plan.batch) == best), None)


def _runner_up(file: PlanFile) -> list[str]:
    number = runner_up(file.plans)
    if file.objective == "given" or number is None:
        return []
    return why_lost(number, compare(file.plans[0], file.plans[number - 1]))


def why_lost(number: int, result: PlanComparison) -> list[str]:
    """Return by how much a plan lost, in which step most, and which change of hardware would turn it."""
    lines = [f"plan {number} is {result.margin:.2%} slower than plan 1 ({ms(result.margin_s)} ms)"]
    if result.margin_s == 0:
        lines = [f"plan {number} is as fast as plan 1; ties break on memory, then padding, then names"]
    if result.deciding_s > 0:
        lines.append(
            f"deciding step, in {result.deciding_component}: `{result.deciding_text}` takes {ms(result.deciding_s)} ms "
            "more than in plan 1"
        )
    return [*lines, _turns(number, result)]


def _turns(number: int, result: PlanComparison) -> str:
    if not result.turns:
        return f"no change of {', '.join(QUANTITIES[:-1])} or {QUANTITIES[-1]} by 20% would turn it"
    changes = " or ".join(f"{turn.factor - 1:+.0%} {turn.quantity}" for turn in result.turns)
    return f"{changes} would turn it: plan {number} would win; other changes by 20% would not"


def _over_memory(file: PlanFile) -> list[str]:
    return [
        f"batch {plan.batch} does not fit: it needs {gb(plan.memory.total_bytes)} GB per device, and "
        f"{gb(plan.memory.usable_bytes)} GB are usable"
        for plan in file.plans
        if not plan.fits
    ]


def rejected_table(rejected: Sequence[Rejected]) -> TextTable:
    """Return the reasons that ruled out assignments, with their counts and one worked example of each."""
    rows = [(r.reason, f"{r.count:,}", f"needs {r.example.need}, has {r.example.have}") for r in rejected]
    return TextTable("Rejected (assignments of roles to mesh axes)", ("reason", "count", "for example"), rows)


def _search(file: PlanFile) -> list[str]:
    search = file.search
    if file.objective == "given":
        return []
    return [
        f"{search.candidates:,} layouts covered, {search.evaluations:,} programs priced, in {search.wall_s:.2f} s; "
        f"proved best: {search.proved_optimal}"
    ]


def constants_of(best: Plan) -> list[str]:
    """Return the shares of the data sheet that the estimates assume, and whether they were measured."""
    reached = best.reached
    if reached is None:
        return [whose_constants(best.constants)]
    return [
        f"estimates take programs to reach {reached.hbm:.1%} of the data sheet's HBM bandwidth, {reached.matmul:.1%} "
        f"of its FLOP/s, {reached.link:.1%} of its ICI bandwidth, {reached.hop:.2f} of its hop latency, and "
        f"{reached.launch_s * 1e6:.2f} us per launch; `explain` lists the sources",
        *([whose_constants(best.constants)] if any(c.calibrated for c in best.constants) else []),
    ]


def nothing_line(nothing: NothingFits) -> str:
    """Return the reason and the smallest slice that would do; in serving, where no layout was ruled out, the reason."""
    if not nothing.rejected and nothing.smallest is None:
        return str(nothing)
    larger = f"the smallest slice of that chip on which it fits is {nothing.smallest}"
    return f"{nothing}; {larger if nothing.smallest else 'no larger slice of that chip does either'}"


def nothing_as_json(nothing: NothingFits) -> dict[str, Any]:
    """Return the reasons as JSON, in the form of a plan file without plans."""
    return {
        "schema": SCHEMA,
        "tool_version": VERSION,
        "plans": [],
        "rejected": nothing.rejected,
        "search": nothing.search,
        "nothing_fits": {"why": str(nothing), "smallest_slice": nothing.smallest},
    }
