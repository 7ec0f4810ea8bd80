"""A solved fleet as the plan file states it."""

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
    asked: FleetQuery,
    problem: FleetProblem,
    solved: FleetSolution,
    used: Sequence[tuple[ServerOption, int]],
    interrupted: bool,
) -> Fleet:
    """The fleet of the servers that are used, in the order of their plans. Raises `RuntimeError` without a proof."""
    if solved.counts is None or solved.proof is None:
        raise RuntimeError("a fleet without counts or proof")
    pairs = [(p, d) for p, _ in used if p.role == "prefill" for d, _ in used if d.role == "decode"]
    hourly = float(problem.cost(solved.counts)) if asked.query.prices else None
    output_per_s = asked.traffic.requests_per_s * asked.traffic.output
    proof = msgspec.structs.replace(solved.proof, interrupted=interrupted or solved.proof.interrupted)
    return Fleet(
        traffic=asked.traffic,
        utilisation=asked.utilisation,
        max_step_s=asked.query.targets.max_step_s,
        max_ttft_s=asked.query.targets.max_ttft_s,
        objective="dollars per hour" if asked.query.prices else "chips",
        members=tuple(_member(asked, number, one, n) for number, (one, n) in enumerate(used, 1)),
        quota=tuple(
            FleetQuota(chip=chip, chips=chips, used=_used(used, chip)) for chip, chips in sorted(asked.quota.items())
        ),
        prefill_requests_per_s=float(problem.rate(solved.counts, "prefill")),
        decode_requests_per_s=float(problem.rate(solved.counts, "decode")),
        request_cache_bytes=request_cache_bytes(asked.query.model, asked.query.work.dtypes.kv, asked.traffic.input),
        transfer_s=max(transfer_s(p, d) for p, d in pairs),
        ttft_s=max(ttft_s(p, d, asked.traffic.requests_per_s) for p, d in pairs),
        step_s=max(d.step_s for _, d in pairs),
        cost_per_hour=hourly,
        cost_per_million_output_tokens=None if hourly is None else dollars_per_million_tokens(hourly, output_per_s),
        proof=proof,
    )


def _used(used: Sequence[tuple[ServerOption, int]], chip: str) -> int:
    """Chips of a kind, whose name in the quota is in small letters."""
    return sum(n * one.slice_.chips for one, n in used if one.slice_.chip.name.lower() == chip)


def _member(asked: FleetQuery, number: int, one: ServerOption, count: int) -> FleetMember:
    slice_ = one.slice_
    cost = asked.cost(slice_.chip.name, slice_.chips)
    return FleetMember(
        plan=number,
        role=one.role,
        chip=slice_.chip.name,
        slice=slice_.name,
        chips=slice_.chips,
        batch=one.plan.batch,
        count=count,
        step_s=one.step_s,
        requests_per_s=one.requests_per_s,
        limited_by=one.limited_by,
        dcn_bytes_per_s=slice_.chips * chip_dcn_bytes_per_s(slice_),
        cost_per_hour=float(cost) if asked.query.prices else None,
    )
