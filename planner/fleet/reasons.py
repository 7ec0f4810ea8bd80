"""Explain why there is no fleet: nothing fits, nothing meets a target, or the quota is short, and by how much."""

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
"""Limit of each run of the solver, in its deterministic seconds."""


def why_not(fleet_query: FleetQuery, options: ServerOptions, problem: FleetProblem) -> str | None:
    """Return why there is no fleet with any quota: nothing fits a role, or nothing meets a target. None if neither."""
    for role in ROLES:
        if role not in options.shortest:
            return _fits_nowhere(fleet_query, options, role)
    targets = {target.field: target.says(limit) for target, limit in fleet_query.query.targets.given()}
    for role, field in (("prefill", "max_ttft_s"), ("decode", "max_step_s")):
        if field in targets and not options.in_role(role):
            step_s, name = options.shortest[role]
            return f"no slice of the quota meets {targets[field]}: the shortest {role} step is {_ms(step_s)}, {name}"
    pairs = [(prefill, decode) for prefill in options.in_role("prefill") for decode in options.in_role("decode")]
    if "max_ttft_s" in targets and len(problem.excluded) == len(pairs):
        per_s = fleet_query.traffic.requests_per_s
        least_s, *names = min((ttft_s(p, d, per_s), p.name, d.name) for p, d in pairs)
        return (
            f"no two slices of the quota meet {targets['max_ttft_s']}: the least time to the first token is "
            f"{_ms(least_s)}, from {names[0]} to {names[1]}"
        )
    return None


def _ms(seconds: float) -> str:
    """Return seconds as text in milliseconds."""
    return f"{seconds * 1e3:.4g} ms"


def _fits_nowhere(fleet_query: FleetQuery, options: ServerOptions, role: str) -> str:
    """Say which slice came closest to storing one batch of the role, and by how much it failed."""
    closest = []
    for slice_ in fleet_query.query.slices:
        least_bytes = options.results[f"{slice_.name} {role}"].least_bytes
        usable = slice_.chip.usable_hbm_bytes_per_device
        closest += [(nbytes / usable, slice_.name, batch, nbytes, usable) for batch, nbytes in least_bytes.items()]
    quota = ", ".join(f"{chip}={n}" for chip, n in sorted(fleet_query.quota.items()))
    text = f"no layout of {fleet_query.query.model.name} fits any slice of the quota {quota} as a {role} server"
    if not closest:
        return f"{text}: its dims divide over none of them"
    _, name, batch, nbytes, usable = min(closest)
    return (
        f"{text}: the closest, {name} at batch {batch}, needs {nbytes / 1e9:.2f} GB per device at the least, and "
        f"{usable / 1e9:.2f} GB are usable; {_larger(fleet_query, role)}"
    )


def _larger(fleet_query: FleetQuery, role: str) -> str:
    """Say on which smallest slice beyond the quota, of each of its chips, one batch of the role fits."""
    batch = min(fleet_query.prefill_batches if role == "prefill" else fleet_query.decode_batches or (1,))
    larger = []
    for chip in dict.fromkeys(slice_.chip for slice_ in fleet_query.query.slices):
        beyond = (slice_ for slice_ in slices_of(chip) if slice_.chips > fleet_query.quota[chip.name.lower()])
        first = next((slice_ for slice_ in beyond if _fits(fleet_query, role, slice_, batch)), None)
        if first is not None:
            larger.append(f"{chip.name}={first.chips} ({first.name})")
    return f"it fits from {' or '.join(larger)} on" if larger else "no larger slice of these chips holds it either"


def _fits(fleet_query: FleetQuery, role: str, slice_: Slice, batch: int) -> bool:
    """Return whether some layout of the batch fits on the slice."""
    problem = make_problem(fleet_query.role_query(role, slice_).at(batch), slice_)
    return Footprints(slice_).need(problem, columns((batch,), slice_.devices), batch).fits


def quota_reason(problem: FleetProblem) -> str:
    """Return in one line why the quota does not serve the demand, and what would suffice.

    The problem must have no solution.
    """
    quota = ", ".join(f"{chip}={chips}" for chip, chips in sorted(problem.quota.items()))
    most_per_s = {role: most_requests_per_s(problem, role) for role in ROLES}
    missing_per_s = {
        role: problem.demand_per_s - rate for role, rate in most_per_s.items() if rate < problem.demand_per_s
    }
    parts = [
        f"the quota {quota} is too small for {digits(problem.demand_per_s)} requests/s",
        " and ".join(f"as {role} servers alone it serves at most {_rate(rate)}" for role, rate in most_per_s.items())
        + ("" if missing_per_s else ", but not both at once"),
    ]
    parts += [f"{role} is {_rate(missing)} short" for role, missing in missing_per_s.items()]
    missing = missing_chips(problem)
    if missing:
        needed = " and ".join(f"{n} more {chip} ({chip}={problem.quota[chip] + n})" for chip, n in missing.items() if n)
        parts.append(f"{needed} would do, in slices of sizes that the quota holds now")
    return "; ".join(parts)


def _rate(requests_per_s: float) -> str:
    """Return a rate as text."""
    return f"{digits(requests_per_s)}/s" if requests_per_s else "none"


def most_requests_per_s(problem: FleetProblem, role: str) -> float:
    """Return the most requests/s of one role on the whole quota, rounded down slightly and never up."""
    from ortools.sat.python import cp_model

    servers = [s for s in problem.servers if s.role == role]
    if not servers:
        return 0.0
    model = cp_model.CpModel()
    counts = [model.new_int_var(0, problem.quota.get(s.chip, 0) // s.chips, s.name) for s in servers]
    role_problem = FleetProblem(servers, problem.demand_per_s, problem.quota)
    for chip in sorted({s.chip for s in servers}):
        model.add(chips_used(role_problem, counts, chip) <= problem.quota.get(chip, 0))
    fastest = max(s.requests_per_s for s in servers)
    model.maximize(sum(int(s.requests_per_s / fastest * (1 << 30)) * n for s, n in zip(servers, counts, strict=True)))
    values = _best_values(model, counts)
    return float(role_problem.rate(values, role)) if values else 0.0


def missing_chips(problem: FleetProblem) -> dict[str, int] | None:
    """Return the fewest additional chips by kind that the quota needs, or None where no quota suffices."""
    from ortools.sat.python import cp_model

    integers = _without_quota(problem)
    model = cp_model.CpModel()
    counts = [model.new_int_var(0, n, f"n{i}") for i, n in enumerate(integers.most)]
    chips = sorted({s.chip for s in problem.servers})
    largest = sum(n * s.chips for n, s in zip(integers.most, problem.servers, strict=True))
    extra = [model.new_int_var(0, largest, chip) for chip in chips]
    add_demand(model, problem, integers, counts)
    add_excluded(model, problem, counts)
    for chip, more in zip(chips, extra, strict=True):
        model.add(chips_used(problem, counts, chip) <= problem.quota.get(chip, 0) + more)
    model.minimize(sum(extra))
    values = _best_values(model, extra)
    return dict(zip(chips, values, strict=True)) if values else None


def _best_values(model: cp_model.CpModel, variables: Sequence[cp_model.IntVar]) -> tuple[int, ...] | None:
    """Return the best values that the solver finds, or None where there are none."""
    ended = run_sums(model, effort=_EFFORT)
    if ended.interrupted:
        raise KeyboardInterrupt
    return ended.values(variables)


def _without_quota(problem: FleetProblem) -> IntegerProblem:
    """Return the integers of the problem with a quota large enough for any useful number of servers."""
    demand = Fraction(problem.demand_per_s)
    needed = [s.chips * (int(demand / Fraction(s.requests_per_s)) + 2) for s in problem.servers if s.requests_per_s > 0]
    endless = dict.fromkeys({s.chip for s in problem.servers}, max(needed, default=0))
    return whole_numbers(FleetProblem(problem.servers, problem.demand_per_s, endless, problem.excluded))
