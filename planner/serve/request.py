"""What `plan --phase serve` is asked for, its two searches, and the ways to serve that come of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import msgspec

from mesh.errors import InputError
from mesh.slices import Slice
from planner.plan.file_serving import MODES, Pace, Together
from planner.plan.plan import Plan
from planner.plan.transfer import Transfer, chip_dcn_bytes_per_s
from planner.query.request import EXHAUSTIVE, TWO, Request, check_solver
from planner.query.targets import Prices, Targets, check_prices, dollars_per_million_tokens, price_of
from strategies.models.models import Model
from strategies.models.workload import LARGEST_CONTEXT, Dtypes, Workload, cache_slots, check_count
from strategies.notation import Program

OBJECTIVES = ("throughput", "latency", "cost")
"""Caches are this many tokens long, or twice, ...: of an int8 cache of 2300 tokens, which fill no tile of 32 rows, the
TPU compiler (libtpu 0.0.42) makes copies; 256 also fills the tiles of sequences that are cut 8 ways."""


@dataclass(frozen=True, kw_only=True)
class ServeRequest:
    """Requests of `input` and `output` tokens, on these slices. `batches`: of decode; `prefill_batches`: prompts.

    `auto`: instead of `batches`, powers of two and the largest that fits each slice; `cuts`, `workers`: as in
    `planner.query.request`. `modes`: ways to serve, of `serving.MODES`. Targets hold for the worst time per token,
    and the worst to the first token. `solver` "cp-sat": also pairs that share their weights, each within
    `solver_seconds`. Raises `InputError` on what contradicts itself.
    """

    model: Model
    slices: Sequence[Slice]
    input: int
    output: int
    dtypes: Dtypes
    batches: tuple[int, ...]
    prefill_batches: tuple[int, ...]
    modes: tuple[str, ...] = MODES
    objective: str = "throughput"
    top: int = 5
    targets: Targets = field(default_factory=Targets)
    prices: Prices = field(default_factory=dict)
    programs: Sequence[Program] = ()
    cuts: str = TWO
    auto: bool = False
    workers: int | None = None
    solver: str = EXHAUSTIVE
    solver_seconds: float | None = None

    def __post_init__(self) -> None:
        check_count("input", self.input, LARGEST_CONTEXT)
        check_count("output", self.output, LARGEST_CONTEXT)
        for mode in self.modes:
            if mode not in MODES:
                raise InputError(f"serving '{mode}' is not known; expected {', '.join(MODES)} or all")
        if not self.modes:
            raise InputError(f"no way to serve given; expected {', '.join(MODES)} or all")
        if self.objective not in OBJECTIVES:
            raise InputError(f"objective '{self.objective}' is not known; expected {', '.join(OBJECTIVES)}")
        if self.objective == "cost" and not self.prices:
            raise InputError("objective 'cost' needs prices; add --price-per-chip-hour, such as v5e=1.2")
        check_solver(self.solver, self.solver_seconds)
        check_prices(self.prices, (slice_.chip.name for slice_ in self.slices))
        if "disaggregated" in self.modes:
            for slice_ in self.slices:
                chip_dcn_bytes_per_s(slice_)

    @property
    def context(self) -> int:
        """A cache's length: what it holds at a request's end, in whole steps; decode steps are priced with all."""
        return cache_slots(self.input + self.output)

    def of(self, phase: str) -> Request:
        """The search of one phase."""
        batches, context = (self.batches, self.context) if phase == "decode" else (self.prefill_batches, self.input)
        return Request(
            model=self.model,
            slices=self.slices,
            work=Workload(phase=phase, batches=batches, context=context, dtypes=self.dtypes),
            top=self.top,
            programs=self.programs,
            cuts=self.cuts,
            auto=self.auto and phase == "decode",
            workers=self.workers,
        )


@dataclass(frozen=True, kw_only=True)
class Way:
    """A way to serve, with its plans; as `serving.ServingEntry`."""

    mode: str
    prefill: Plan
    decode: Plan
    prefill_slices: int
    decode_slices: int
    ratio: float | None
    replicas: int
    pace: Pace
    transfer: Transfer | None = None
    together: Together | None = None

    @property
    def chips(self) -> int:
        """Of all replicas."""
        if self.transfer is None:
            return self.replicas * self.decode.chips
        return self.replicas * (self.prefill_slices * self.prefill.chips + self.decode_slices * self.decode.chips)

    def tokens_per_s(self, request: ServeRequest) -> float:
        """Output tokens per second of all replicas."""
        return self.pace.requests_per_s * request.output

    def dollars(self, request: ServeRequest) -> float | None:
        """Dollars per million output tokens, of all chips for all the time; None without prices."""
        prices = [price_of(request.prices, plan.slice.partition(":")[0]) for plan in (self.prefill, self.decode)]
        if prices[0] is None or prices[1] is None:
            return None
        if self.transfer is None:
            hourly = self.replicas * self.decode.chips * prices[1]
        else:
            hourly = self.replicas * (
                self.prefill_slices * self.prefill.chips * prices[0]
                + self.decode_slices * self.decode.chips * prices[1]
            )
        return dollars_per_million_tokens(hourly, self.tokens_per_s(request))

    def missed(self, request: ServeRequest) -> tuple[str, ...]:
        """The targets that it misses."""
        tokens, chips = self.tokens_per_s(request) * (1 + 1e-12), self.chips
        of_token, of_first = replace(request.targets, max_ttft_s=None), replace(request.targets, max_step_s=None)
        steps = of_token.missed("decode", self.pace.worst_per_token_s, tokens, chips)
        first = of_first.missed("prefill", self.pace.worst_ttft_s, tokens, chips)
        return tuple(dict.fromkeys((*steps, *first)))

    def rank(self, request: ServeRequest) -> tuple[object, ...]:
        """Best first, by the objective; ties by the other figures, then by names."""
        speed = -self.tokens_per_s(request) / self.chips
        request_s = self.pace.request_s(request.output)
        dollars = self.dollars(request)
        keys = {"throughput": (speed, request_s), "latency": (request_s, speed), "cost": (dollars or 0.0, request_s)}
        first, second = (float(f"{key:.12g}") for key in keys[request.objective])
        place = (self.chips, MODES.index(self.mode), self.prefill.slice, self.decode.slice)
        return (
            first,
            second,
            *place,
            self.prefill.batch,
            self.decode.batch,
            self.prefill.cost.step_s,
            self.decode.cost.step_s,
        )

    def with_replicas(self, replicas: int) -> Way:
        """The same arrangement so many times."""
        pace = msgspec.structs.replace(self.pace, requests_per_s=self.pace.requests_per_s / self.replicas * replicas)
        return replace(self, replicas=replicas, pace=pace)
