"""The answer of `serve` as typed values: ways to serve, best first, with the plans that each runs.

Everything is SI; seconds are estimates of the plans' steps. What queues form where requests come unevenly is left out.
"""

from __future__ import annotations

from planner.plan.file_proof import Proof
from planner.plan.plan import Value
from planner.plan.transfer import Transfer

MODES = ("batched", "interleaved", "disaggregated")


class Latencies(Value, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The latencies that one user sees, and the rate of requests; the formulas are in `planner.serve.rates`.

    `ttft_s`, `per_token_s`: means over requests that come at any time; `worst_*`: the longest of them.
    `requests_per_s`: of all slices together, as many begun as ended. `prefill_busy`, `decode_busy`: shares of the
    time in which the slices that do it prefill and decode.
    """

    ttft_s: float
    worst_ttft_s: float
    per_token_s: float
    worst_per_token_s: float
    requests_per_s: float
    prefill_busy: float
    decode_busy: float

    def request_s(self, output: int) -> float:
        """Mean seconds from a request to its last token: the first token, then the others."""
        return self.ttft_s + (output - 1) * self.per_token_s


class Reshard(Value, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Tensors that go from one layout to another on a slice: bytes that the busiest device receives, and seconds.

    `gathered_s` of the seconds are AllGathers, `swapped_s` AllToAlls over ICI, `hbm_s` the copy within HBM.
    """

    received_bytes: float = 0.0
    gathered_s: float = 0.0
    swapped_s: float = 0.0
    hbm_s: float = 0.0
    seconds: float = 0.0


class SharedHbm(Value, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Both plans in the HBM of one slice, per device. `weights`: how those of the two plans are kept.

    `shared`: one copy, as both plans cut every weight the same way. `copies`: of those that they do not, two, the
    prefill's of `copied_bytes`. `resharded`: one, of which those are moved into the other layout before each prefill
    and back after it (`switch`: both ways). `insert`: one prefill step's caches into the decode layout. `kv_bytes`: of
    the decode. `total_bytes`: at the fullest moment, which is named (`planner.serve.memory`).
    `proof`: what CP-SAT proved of a pair that shares its weights, in seconds of the slice per request, insertion left
    out.
    """

    weights: str
    weights_bytes: float
    copied_bytes: float
    kv_bytes: float
    total_bytes: float
    usable_bytes: float
    fullest: str
    switch: Reshard
    insert: Reshard
    proof: Proof | None = None


class ServingEntry(Value, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One way to serve. `prefill`, `decode`: plan numbers from 1. On one slice both plans run on it.

    `replicas`: how often the arrangement of `prefill_slices` and `decode_slices` stands, to reach a throughput that
    was asked for. `ratio`: prefill slices per decode slice at which neither waits for the other, exactly.
    `chips`, `requests_per_s` and `tokens_per_s` (of output) are of all replicas.
    """

    mode: str
    prefill: int
    decode: int
    prefill_slices: int
    decode_slices: int
    ratio: float | None
    replicas: int
    chips: int
    pace: Latencies
    tokens_per_s: float
    tokens_per_s_per_chip: float
    dollars_per_million_tokens: float | None
    transfer: Transfer | None
    together: SharedHbm | None


class Serving(Value, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Ways to serve requests of `input` and `output` tokens, best first. `decode_context`: what a cache must hold."""

    input: int
    output: int
    decode_context: int
    entries: tuple[ServingEntry, ...]
