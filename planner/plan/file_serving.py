"""Define the result of serving in a plan file: ways to serve, best first, with the plans that each runs.

Everything is SI; seconds are estimates of the plans' steps. Queues of requests that come unevenly are left out.
"""

from __future__ import annotations

from planner.plan.file_proof import Proof
from planner.plan.plan import Value
from planner.plan.transfer import Transfer

MODES = ("batched", "interleaved", "disaggregated")


class Latencies(Value, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The latencies of one user, and the request rate; the formulas are in `planner.serve.rates`.

    `ttft_s` (TTFT) and `per_token_s` (TPOT) are means over requests that come at any time; `worst_*` are the longest.
    `requests_per_s` is of all slices, with as many requests begun as ended. `prefill_busy` and `decode_busy` are shares
    of the time in which the slices of each phase work on it.
    """

    ttft_s: float
    worst_ttft_s: float
    per_token_s: float
    worst_per_token_s: float
    requests_per_s: float
    prefill_busy: float
    decode_busy: float

    def request_s(self, output: int) -> float:
        """Return the mean seconds from a request to its last token: the first token, then the others."""
        return self.ttft_s + (output - 1) * self.per_token_s


class Reshard(Value, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The move of tensors from one layout to another on a slice: bytes and seconds.

    `received_bytes` is of the busiest device. Of the seconds, `gathered_s` are AllGathers, `swapped_s` AllToAlls over
    ICI, and `hbm_s` the copy within HBM.
    """

    received_bytes: float = 0.0
    gathered_s: float = 0.0
    swapped_s: float = 0.0
    hbm_s: float = 0.0
    seconds: float = 0.0


class SharedHbm(Value, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Both plans in the HBM of one slice, per device; `weights` says how their weights are stored.

    `shared`: one copy, as both plans cut every weight the same way. `copies`: two of the weights that they cut
    differently, of which the prefill's take `copied_bytes`. `resharded`: one copy, whose differing weights are moved
    into the other layout before each prefill and back after it (`switch`: both ways). `insert` moves one prefill step's
    caches into the decode layout. `kv_bytes` is of the decode. `total_bytes` is at the fullest moment, which `fullest`
    names (`planner.serve.memory`). `proof` is CP-SAT's of a pair that shares its weights, in seconds of the slice per
    request without insertion.
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
    """One way to serve; `prefill` and `decode` are plan numbers from 1.

    On one slice both plans run on it. The arrangement of `prefill_slices` and `decode_slices` is repeated `replicas`
    times, to reach a required throughput. `ratio` is the exact number of prefill slices per decode slice at which
    neither waits for the other. `chips`, `requests_per_s` and `tokens_per_s` (of output) are of all replicas. `pace`
    has the latencies, `together` the HBM of both plans on one slice.
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
    """The ways to serve requests of `input` and `output` tokens, best first.

    `decode_context` is the number of tokens that a cache must store.
    """

    input: int
    output: int
    decode_context: int
    entries: tuple[ServingEntry, ...]
