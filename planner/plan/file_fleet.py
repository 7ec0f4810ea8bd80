"""Define a fleet in a plan file: its servers by plan number, their rates and cost, and the proof."""

from __future__ import annotations

from math import isfinite

from mesh.errors import InputError
from planner.plan.file_proof import FleetProof
from planner.plan.plan import Value
from strategies.models.workload import LARGEST_CONTEXT, check_count

MOST_REQUESTS_PER_S = 1e9
MOST_CHIPS = 1_000_000


class Traffic(Value, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The traffic: requests per second, each of `input` prompt tokens and `output` tokens to decode.

    Raises `InputError` on a number out of range.
    """

    requests_per_s: float
    input: int
    output: int

    def __post_init__(self) -> None:
        if not (isfinite(self.requests_per_s) and 0 < self.requests_per_s <= MOST_REQUESTS_PER_S):
            raise InputError(
                f"traffic requests_per_s={self.requests_per_s:g}: expected a number above 0 and at most "
                f"{MOST_REQUESTS_PER_S:g}"
            )
        check_count("traffic input", self.input, LARGEST_CONTEXT)
        check_count("traffic output", self.output, LARGEST_CONTEXT)
        check_count("traffic input and output", self.input + self.output, LARGEST_CONTEXT)


class FleetMember(Value, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`count` equal servers, each a slice that runs plan number `plan` (from 1) in its role.

    `role` is prefill or decode. `step_s` is for decode the worst step, which stops to gather copies of new requests'
    caches. `requests_per_s` of one server is limited by its `step` or its `network` (`limited_by`). `dcn_bytes_per_s`
    is of all chips of the slice. `cost_per_hour` is in dollars for one server; None without prices.
    """

    plan: int
    role: str
    chip: str
    slice: str
    chips: int
    batch: int
    count: int
    step_s: float
    requests_per_s: float
    limited_by: str
    dcn_bytes_per_s: float
    cost_per_hour: float | None


class FleetQuota(Value, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The chips of a kind that may be used (`chips`) and that are (`used`)."""

    chip: str
    chips: int
    used: int


class Fleet(Value, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The servers of a fleet, prefill first, with their total rates and cost.

    `objective` is `chips`, or `dollars per hour` where chips have prices. `utilisation` is the share of each role's
    rate that the traffic may take. `request_cache_bytes` is the KV cache of one prompt. `transfer_s` and `ttft_s` are
    the worst of all pairs of a prefill and a decode server (`planner.fleet.servers`); `step_s` is the worst decode
    step. `max_ttft_s` and `max_step_s` are the targets; None means that there is none.
    """

    traffic: Traffic
    utilisation: float
    max_step_s: float | None
    max_ttft_s: float | None
    objective: str
    members: tuple[FleetMember, ...]
    quota: tuple[FleetQuota, ...]
    prefill_requests_per_s: float
    decode_requests_per_s: float
    request_cache_bytes: float
    transfer_s: float
    ttft_s: float
    step_s: float
    cost_per_hour: float | None
    cost_per_million_output_tokens: float | None
    proof: FleetProof
