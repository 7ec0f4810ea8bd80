"""Define the question of serving: requests of a length, searched in both phases; and the ways to serve them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import inf

import msgspec

from mesh.errors import InputError
from planner.plan.file_serving import MODES, Latencies, SharedHbm
from planner.plan.plan import Plan
from planner.plan.transfer import Transfer, chip_dcn_bytes_per_s
from planner.query.query import EXHAUSTIVE, Query
from planner.query.targets import OBJECTIVES, Merits, Target, Targets, dollars_per_million_tokens, price_of
from strategies.models.workload import LARGEST_CONTEXT, Workload, cache_slots, check_count


@dataclass(frozen=True, kw_only=True)
class ServeQuery:
    """Requests of `input` and `output` tokens, served on the query's slices.

    `query` has the model, slices, targets, prices and all else; its step is a decode step, whose context is set to the
    tokens in a cache at a request's end. `prefill_batches` are numbers of prompts. `modes` are ways to serve, of
    `MODES`. Targets hold for the worst time per token (TPOT) and the worst time to the first (TTFT). With the query's
    solver "cp-sat", pairs that share their weights are added, each within its `solver_seconds`. Raises `InputError` on
    contradictions, and on a chip without a DCN rate where serving is disaggregated.
    """

    query: Query
    input: int
    output: int
    prefill_batches: tuple[int, ...]
    modes: tuple[str, ...] = MODES

    def __post_init__(self) -> None:
        check_count("input", self.input, LARGEST_CONTEXT)
        check_count("output", self.output, LARGEST_CONTEXT)
        for mode in self.modes:
            if mode not in MODES:
                raise InputError(f"serving '{mode}' is not known; expected {', '.join(MODES)} or all")
        if not self.modes:
            raise InputError(f"no way to serve given; expected {', '.join(MODES)} or all")
        if "disaggregated" in self.modes:
            for slice_ in self.query.slices:
                chip_dcn_bytes_per_s(slice_)

    @property
    def context(self) -> int:
        """Length of a cache in tokens at a request's end, in whole steps; decode steps are priced with all of it."""
        return cache_slots(self.input + self.output)

    def phase_query(self, phase: str) -> Query:
        """Return the search of one phase: for the best of every slice and batch, without targets."""
        query = replace(
            self.query, objective="throughput", targets=Targets(), prices={}, solver=EXHAUSTIVE, solver_seconds=None
        )
        if phase == "decode":
            return replace(query, work=msgspec.structs.replace(query.work, context=self.context))
        dtypes = query.work.dtypes
        work = Workload(phase=phase, batches=self.prefill_batches, context=self.input, dtypes=dtypes)
        return replace(query, work=work, auto=False)


@dataclass(frozen=True, kw_only=True)
class Way:
    """A way to serve, with its plans; the fields are those of `file_serving.ServingEntry`."""

    mode: str
    prefill: Plan
    decode: Plan
    prefill_slices: int
    decode_slices: int
    ratio: float | None
    replicas: int
    pace: Latencies
    transfer: Transfer | None = None
    together: SharedHbm | None = None

    @property
    def chips(self) -> int:
        """Number of chips of all replicas."""
        if self.transfer is None:
            return self.replicas * self.decode.chips
        return self.replicas * (self.prefill_slices * self.prefill.chips + self.decode_slices * self.decode.chips)

    def tokens_per_s(self, serve_query: ServeQuery) -> float:
        """Return the output tokens per second of all replicas."""
        return self.pace.requests_per_s * serve_query.output

    def dollars(self, serve_query: ServeQuery) -> float | None:
        """Return the dollars per million output tokens, for all chips all the time; None without prices."""
        prices = [price_of(serve_query.query.prices, plan.chip_name) for plan in (self.prefill, self.decode)]
        if prices[0] is None or prices[1] is None:
            return None
        if self.transfer is None:
            hourly = self.replicas * self.decode.chips * prices[1]
        else:
            hourly = self.replicas * (
                self.prefill_slices * self.prefill.chips * prices[0]
                + self.decode_slices * self.decode.chips * prices[1]
            )
        return dollars_per_million_tokens(hourly, self.tokens_per_s(serve_query))

    def missed(self, serve_query: ServeQuery) -> tuple[Target, ...]:
        """Return the targets that the way misses; replicas are chosen to just meet the tokens per second."""
        return serve_query.query.targets.missed(_Served(self, serve_query))

    def merits(self, serve_query: ServeQuery) -> Merits:
        """Return the numbers by which an objective ranks: seconds of a request, output tokens/s per chip, dollars."""
        dollars = self.dollars(serve_query)
        speed = self.tokens_per_s(serve_query) / self.chips
        return Merits(self.pace.request_s(serve_query.output), speed, inf if dollars is None else dollars)

    def rank(self, serve_query: ServeQuery) -> tuple[object, ...]:
        """Return the sort key, best first by the objective; ties break by the other figures, then by names."""
        first, second = OBJECTIVES[serve_query.query.objective].rank(self.merits(serve_query))
        return (
            first,
            float(f"{second:.12g}"),
            self.chips,
            MODES.index(self.mode),
            self.prefill.slice,
            self.decode.slice,
            self.prefill.batch,
            self.decode.batch,
            self.prefill.cost.step_s,
            self.decode.cost.step_s,
        )

    def with_replicas(self, replicas: int) -> Way:
        """Return the way with its arrangement repeated `replicas` times."""
        latencies = msgspec.structs.replace(
            self.pace, requests_per_s=self.pace.requests_per_s / self.replicas * replicas
        )
        return replace(self, replicas=replicas, pace=latencies)


@dataclass(frozen=True)
class _Served:
    """The figures of a way to serve, by which targets are judged."""

    way: Way
    serve_query: ServeQuery

    @property
    def step_s(self) -> float:
        """Worst time per output token (TPOT) in seconds."""
        return self.way.pace.worst_per_token_s

    @property
    def ttft_s(self) -> float:
        """Worst time to first token (TTFT) in seconds."""
        return self.way.pace.worst_ttft_s

    @property
    def tokens_per_s(self) -> float:
        """Output tokens per second, with a tolerance for rounding."""
        return self.way.tokens_per_s(self.serve_query) * (1 + 1e-12)

    @property
    def chips(self) -> int:
        """Number of chips of all replicas."""
        return self.way.chips
