"""Why there is no fleet: nothing fits, nothing meets a target, or the quota is short, of what and by how much."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from typing import TYPE_CHECKING

from mesh.slices import Slice, slices_of
from planner.fleet.problem import ROLES, FleetProblem, IntegerProblem, whole_numbers
from planner.fleet.query import FleetQuery
from planner.fleet.servers import ServerOptions, ttft_s
from planner.fleet.solver import add_demand, add_excluded, chips_used, run_sums
from planner.numbers import digits
from planner.search.footprint import Footprints
from planner.search.problem import make_problem
from planner.search.search import columns

if TYPE_CHECKING:
    from ortools.sat.python import cp_model

_EFFORT = 10.0
"""Deterministic seconds of the solver for each question."""


def why_not(asked: FleetQuery, offers: ServerOptions, problem: FleetProblem) -> str | None:
    """Why there can be no fleet whatever the quota: nothing fits a role, or nothing meets a target."""
    for role in ROLES:
        if role not in offers.shortest:
            return _fits_nowhere(asked, offers, role)
    targets = {target.field: target.says(limit) for target, limit in asked.query.targets.given()}
    for role, field in (("prefill", "max_ttft_s"), ("decode", "max_step_s")):
        if field in targets and not offers.of(role):
            step_s, name = offers.shortest[role]
            return f"no slice of the quota meets {targets[field]}: the shortest {role} step is {_ms(step_s)}, {name}"
    pairs = [(prefill, decode) for prefill in offers.of("prefill") for decode in offers.of("decode")]
    if "max_ttft_s" in targets and len(problem.barred) == len(pairs):
        per_s = asked.traffic.requests_per_s
        least_s, *names = min((ttft_s(p, d, per_s), p.name, d.name) for p, d in pairs)
        return (
            f"no two slices of the quota meet {targets['max_ttft_s']}: the least time to the first token is "
            f"{_ms(least_s)}, from {names[0]} to {names[1]}"
        )
    return None


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.4g} ms"


def _fits_nowhere(asked: FleetQuery, offers: ServerOptions, role: str) -> str:
    """Return the slice that came closest to hold one batch of the role, and by how much it failed."""
    closest = []
    for slice_ in asked.query.slices:
        least = offers.found[f"{slice_.name} {role}"].least_bytes
        usable = slice_.chip.usable_hbm_bytes_per_device
        closest += [(nbytes / usable, slice_.name, batch, nbytes, usable) for batch, nbytes in least.items()]
    held = ", ".join(f"{chip}={n}" for chip, n in sorted(asked.quota.items()))
    text = f"no layout of {asked.query.model.name} fits any slice of the quota {held} as a {role} server"
    if not closest:
        return f"{text}: its dims divide over none of them"
    _, name, batch, nbytes, usable = min(closest)
    return (
        f"{text}: the closest, {name} at batch {batch}, needs {nbytes / 1e9:.2f} GB per device at the least, and "
        f"{usable / 1e9:.2f} GB are usable; {_larger(asked, role)}"
    )


def _larger(asked: FleetQuery, role: str) -> str:
    """The smallest slice beyond the quota, of each of its chips, on which one batch of the role fits."""
    batch = min(asked.prefill_batches if role == "prefill" else asked.decode_batches or (1,))
    larger = []
    for chip in dict.fromkeys(slice_.chip for slice_ in asked.query.slices):
        beyond = (slice_ for slice_ in slices_of(chip) if slice_.chips > asked.quota[chip.name.lower()])
        first = next((slice_ for slice_ in beyond if _fits(asked, role, slice_, batch)), None)
        if first is not None:
            larger.append(f"{chip.name}={first.chips} ({first.name})")
    return f"it fits from {' or '.join(larger)} on" if larger else "no larger slice of these chips holds it either"


def _fits(asked: FleetQuery, role: str, slice_: Slice, batch: int) -> bool:
    problem = make_problem(asked.of(role, slice_).at(batch), slice_)
    return Footprints(slice_).need(problem, columns((batch,), slice_.devices), batch).fits


def quota_reason(problem: FleetProblem) -> str:
    """Why the quota does not serve the demand, in one line, and what would do: for a problem without an answer."""
    quota = ", ".join(f"{chip}={chips}" for chip, chips in sorted(problem.quota.items()))
    most = {role: most_requests_per_s(problem, role) for role in ROLES}
    short = {role: problem.demand_per_s - rate for role, rate in most.items() if rate < problem.demand_per_s}
    parts = [
        f"the quota {quota} is too small for {digits(problem.demand_per_s)} requests/s",
        " and ".join(f"as {role} servers alone it serves at most {_rate(rate)}" for role, rate in most.items())
        + ("" if short else ", but not both at once"),
    ]
    parts += [f"{role} is {_rate(missing)} short" for role, missing in short.items()]
    more = missing_chips(problem)
    if more:
        needed = " and ".join(f"{n} more {chip} ({chip}={problem.quota[chip] + n})" for chip, n in more.items() if n)
        parts.append(f"{needed} would do, in slices of sizes that the quota holds now")
    return "; ".join(parts)


def _rate(requests_per_s: float) -> str:
    return f"{digits(requests_per_s)}/s" if requests_per_s else "none"


def most_requests_per_s(problem: FleetProblem, role: str) -> float:
    """The most requests/s of one role that the whole quota gives; at most a little less than it would, never more."""
    from ortools.sat.python import cp_model

    servers = [s for s in problem.servers if s.role == role]
    if not servers:
        return 0.0
    model = cp_model.CpModel()
    counts = [model.new_int_var(0, problem.quota.get(s.chip, 0) // s.chips, s.name) for s in servers]
    alone = FleetProblem(servers, problem.demand_per_s, problem.quota)
    for chip in sorted({s.chip for s in servers}):
        model.add(chips_used(alone, counts, chip) <= problem.quota.get(chip, 0))
    fastest = max(s.requests_per_s for s in servers)
    model.maximize(sum(int(s.requests_per_s / fastest * (1 << 30)) * n for s, n in zip(servers, counts, strict=True)))
    values = _best_values(model, counts)
    return float(alone.rate(values, role)) if values else 0.0


def missing_chips(problem: FleetProblem) -> dict[str, int] | None:
    """The fewest chips, by kind, that the quota would need besides; None where no quota of these servers would do."""
    from ortools.sat.python import cp_model

    whole = _without_quota(problem)
    model = cp_model.CpModel()
    counts = [model.new_int_var(0, n, f"n{i}") for i, n in enumerate(whole.most)]
    chips = sorted({s.chip for s in problem.servers})
    largest = sum(n * s.chips for n, s in zip(whole.most, problem.servers, strict=True))
    extra = [model.new_int_var(0, largest, chip) for chip in chips]
    add_demand(model, problem, whole, counts)
    add_excluded(model, problem, counts)
    for chip, more in zip(chips, extra, strict=True):
        model.add(chips_used(problem, counts, chip) <= problem.quota.get(chip, 0) + more)
    model.minimize(sum(extra))
    values = _best_values(model, extra)
    return dict(zip(chips, values, strict=True)) if values else None


def _best_values(model: cp_model.CpModel, variables: Sequence[cp_model.IntVar]) -> tuple[int, ...] | None:
    """The best values that the solver finds; None where there are none."""
    ended = run_sums(model, effort=_EFFORT)
    if ended.interrupted:
        raise KeyboardInterrupt
    return ended.values(variables)


def _without_quota(problem: FleetProblem) -> IntegerProblem:
    """The integers of the problem with as many chips as every server could be of use for."""
    demand = Fraction(problem.demand_per_s)
    needed = [s.chips * (int(demand / Fraction(s.requests_per_s)) + 2) for s in problem.servers if s.requests_per_s > 0]
    endless = dict.fromkeys({s.chip for s in problem.servers}, max(needed, default=0))
    return whole_numbers(FleetProblem(problem.servers, problem.demand_per_s, endless, problem.barred))
