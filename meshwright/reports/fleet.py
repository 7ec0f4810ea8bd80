"""The report of a fleet: its servers, what they do together, and the proof."""

from __future__ import annotations

from collections.abc import Sequence

from meshwright.reports.plan import bound_text, layout_lines, layout_text, legend_of, mesh_text
from meshwright.reports.text import Block, Lines, TextTable
from planner.numbers import digits, gb, ms
from planner.plan.file_fleet import Fleet, FleetMember
from planner.plan.file_proof import OPTIMAL
from planner.plan.plan import Plan
from planner.plan.planfile import PlanFile


def report(file: PlanFile) -> list[Block]:
    """Return the whole report of a fleet. Raises `RuntimeError` where the file has no `fleet`."""
    if file.fleet is None:
        raise RuntimeError("a report of a fleet, of a plan file without one")
    fleet = file.fleet
    return [
        Lines("", [title(fleet, file.plans[0])]),
        servers(fleet),
        layouts(fleet, file.plans),
        legend_of([file.plans[member.plan - 1] for member in fleet.members]),
        Lines("Together", together(fleet)),
        Lines("Notes", file.notes),
        Lines("Search and proof", [*proof(fleet), searched(file)]),
    ]


def title(fleet: Fleet, plan: Plan) -> str:
    """Return the question in one line."""
    t, d = fleet.traffic, plan.dtypes
    return (
        f"{plan.model.name}, {digits(t.requests_per_s)} requests/s of {t.input} tokens in and {t.output} out; weights "
        f"{d.weights}, KV cache {d.kv}, activations {d.activations}, compute {d.compute}; {_least(fleet)}"
    )


def _least(fleet: Fleet) -> str:
    return "fewest chips" if fleet.cost_per_hour is None else "least dollars per hour"


def servers(fleet: Fleet) -> TextTable:
    """Return one row per kind of server."""
    headers = [
        "plan", "role", "slice", "servers", "chips", "batch", "step ms", "req/s each", "all", "limited by",
    ]  # fmt: skip
    if fleet.cost_per_hour is not None:
        headers.append("$/hour")
    return TextTable("", headers, [_server(one) for one in fleet.members])


def _server(one: FleetMember) -> list[str]:
    row = [
        str(one.plan),
        one.role,
        one.slice,
        str(one.count),
        str(one.count * one.chips),
        str(one.batch),
        ms(one.step_s),
        digits(one.requests_per_s),
        digits(one.count * one.requests_per_s),
        one.limited_by,
    ]
    return row if one.cost_per_hour is None else [*row, digits(one.count * one.cost_per_hour)]


def layouts(fleet: Fleet, plans: Sequence[Plan]) -> TextTable:
    """Return the layout that each kind of server runs."""
    rows, notes = [], []
    for one in fleet.members:
        plan = plans[one.plan - 1]
        used = f"{gb(plan.memory.total_bytes)}/{gb(plan.memory.usable_bytes)}"
        roles = (layout_text(plan, "attention"), layout_text(plan, "MLP"))
        rows.append((str(one.plan), str(plan.context), used, bound_text(plan.cost.bound_by), mesh_text(plan), *roles))
        notes.append(layout_lines(plan))
    headers = ("plan", "context", "HBM GB", "bound by", "mesh", "attention", "MLP")
    return TextTable("Layouts", headers, rows, notes=notes, wide=frozenset({4, 5, 6}))


def together(fleet: Fleet) -> list[str]:
    """Return the rates, chips, seconds and cost of all servers together."""
    rates = {"prefill": fleet.prefill_requests_per_s, "decode": fleet.decode_requests_per_s}
    used = ", ".join(f"{q.used} of {q.chips} {q.chip}" for q in fleet.quota)
    shares = "; ".join(
        f"{role} serves up to {digits(rate)} requests/s ({fleet.traffic.requests_per_s / rate:.1%} used)"
        for role, rate in rates.items()
    )
    lines = [
        f"chips: {sum(q.used for q in fleet.quota)} ({used})",
        f"{shares}; at most {fleet.utilisation:.0%} may be",
        f"KV cache of a prompt: {digits(fleet.request_cache_bytes / 1e6)} MB; the caches of a prefill batch reach a "
        f"decode server over DCN in {ms(fleet.transfer_s)} ms at worst",
        f"time to the first token: {ms(fleet.ttft_s)} ms at worst{_target(fleet.max_ttft_s)}; decode step: "
        f"{ms(fleet.step_s)} ms at worst{_target(fleet.max_step_s)}",
    ]
    if fleet.cost_per_hour is not None and fleet.cost_per_million_output_tokens is not None:
        lines.append(
            f"cost: {digits(fleet.cost_per_hour)} dollars per hour; {digits(fleet.cost_per_million_output_tokens)} "
            "dollars per million output tokens of this traffic"
        )
    return lines


def _target(most_s: float | None) -> str:
    return "" if most_s is None else f" (target: {ms(most_s)})"


def proof(fleet: Fleet) -> list[str]:
    """Return the objective, and the proof that nothing beats it or the gap that remains."""
    p = fleet.proof
    objective = f"{p.objective:,.6g} {fleet.objective}"
    if p.status == OPTIMAL:
        return [f"{objective}: proved least of all fleets of these servers ({p.solver}, in {p.solver_s:.2f} s)"]
    ended = "interrupted" if p.interrupted or p.seconds is None else f"ended by --solver-seconds {p.seconds:g}"
    return [
        f"{objective}: not proved least: {p.solver} was {ended}; no fleet of these servers takes less than "
        f"{p.bound:,.6g} (gap {p.gap:.2%})"
    ]


def searched(file: PlanFile) -> str:
    """Return how many layouts the searches covered."""
    s = file.search
    return (
        f"{s.candidates:,} layouts covered, {s.evaluations:,} programs priced, in {s.wall_s:.2f} s; layouts proved "
        f"best: {s.proved_optimal}"
    )
