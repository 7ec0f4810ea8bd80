"""Turn a solved fleet into its part of the plan file."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from planner.fleet.problem import FleetProblem
from planner.fleet.query import FleetQuery
from planner.fleet.servers import ServerOption, transfer_s, ttft_s
from planner.fleet.solver import FleetSolution
from planner.plan.file_fleet import Fleet, FleetMember, FleetQuota
from planner.plan.transfer import chip_dcn_bytes_per_s, request_cache_bytes
from planner.query.targets import dollars_per_million_tokens


def fleet_of(
    fleet_query: FleetQuery,
    problem: FleetProblem,
    solved: FleetSolution,
    used: Sequence[tuple[ServerOption, int]],
    interrupted: bool,
) -> Fleet:
    """Return the fleet of the used servers, in the order of their plans.

    Raises `RuntimeError` where the solution has no counts or proof.
    """
    if solved.counts is None or solved.proof is None:
        raise RuntimeError("a fleet without counts or proof")
    pairs = [(p, d) for p, _ in used if p.role == "prefill" for d, _ in used if d.role == "decode"]
    hourly = float(problem.cost(solved.counts)) if fleet_query.query.prices else None
    output_per_s = fleet_query.traffic.requests_per_s * fleet_query.traffic.output
    proof = msgspec.structs.replace(solved.proof, interrupted=interrupted or solved.proof.interrupted)
    return Fleet(
        traffic=fleet_query.traffic,
        utilisation=fleet_query.utilisation,
        max_step_s=fleet_query.query.targets.max_step_s,
        max_ttft_s=fleet_query.query.targets.max_ttft_s,
        objective="dollars per hour" if fleet_query.query.prices else "chips",
        members=tuple(_member(fleet_query, number, option, n) for number, (option, n) in enumerate(used, 1)),
        quota=tuple(
            FleetQuota(chip=chip, chips=chips, used=_used(used, chip))
            for chip, chips in sorted(fleet_query.quota.items())
        ),
        prefill_requests_per_s=float(problem.rate(solved.counts, "prefill")),
        decode_requests_per_s=float(problem.rate(solved.counts, "decode")),
        request_cache_bytes=request_cache_bytes(
            fleet_query.query.model, fleet_query.query.work.dtypes.kv, fleet_query.traffic.input
        ),
        transfer_s=max(transfer_s(p, d) for p, d in pairs),
        ttft_s=max(ttft_s(p, d, fleet_query.traffic.requests_per_s) for p, d in pairs),
        step_s=max(d.step_s for _, d in pairs),
        cost_per_hour=hourly,
        cost_per_million_output_tokens=None if hourly is None else dollars_per_million_tokens(hourly, output_per_s),
        proof=proof,
    )


def _used(used: Sequence[tuple[ServerOption, int]], chip: str) -> int:
    """Return the chips of a kind; `chip` is its name in lower case, as in the quota."""
    return sum(n * option.slice_.chips for option, n in used if option.slice_.chip.name.lower() == chip)


def _member(fleet_query: FleetQuery, number: int, option: ServerOption, count: int) -> FleetMember:
    """Return one kind of server with its count."""
    slice_ = option.slice_
    cost = fleet_query.cost(slice_.chip.name, slice_.chips)
    return FleetMember(
        plan=number,
        role=option.role,
        chip=slice_.chip.name,
        slice=slice_.name,
        chips=slice_.chips,
        batch=option.plan.batch,
        count=count,
        step_s=option.step_s,
        requests_per_s=option.requests_per_s,
        limited_by=option.limited_by,
        dcn_bytes_per_s=slice_.chips * chip_dcn_bytes_per_s(slice_),
        cost_per_hour=float(cost) if fleet_query.query.prices else None,
    )
