"""The question of `serve`: requests of a length, searched in both phases; and the ways to serve that answer it."""

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

    `query`: model, slices, targets, prices and all else; its step is a decode step, whose context is set to what a
    cache must hold at a request's end. `prefill_batches`: prompts. `modes`: ways to serve, of `MODES`. Targets hold
    for the worst time per token, and the worst to the first token. The query's solver "cp-sat": also pairs that share
    their weights, each within its `solver_seconds`. Raises `InputError` on what contradicts itself.
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
        """A cache's length: what it holds at a request's end, in whole steps; decode steps are priced with all."""
        return cache_slots(self.input + self.output)

    def of(self, phase: str) -> Query:
        """The search of one phase: for the best of every slice and batch, whatever the targets."""
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
    """A way to serve, with its plans; as `serving.ServingEntry`."""

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
        """Return the chips of all replicas."""
        if self.transfer is None:
            return self.replicas * self.decode.chips
        return self.replicas * (self.prefill_slices * self.prefill.chips + self.decode_slices * self.decode.chips)

    def tokens_per_s(self, asked: ServeQuery) -> float:
        """Output tokens per second of all replicas."""
        return self.pace.requests_per_s * asked.output

    def dollars(self, asked: ServeQuery) -> float | None:
        """Dollars per million output tokens, of all chips for all the time; None without prices."""
        prices = [price_of(asked.query.prices, plan.chip_name) for plan in (self.prefill, self.decode)]
        if prices[0] is None or prices[1] is None:
            return None
        if self.transfer is None:
            hourly = self.replicas * self.decode.chips * prices[1]
        else:
            hourly = self.replicas * (
                self.prefill_slices * self.prefill.chips * prices[0]
                + self.decode_slices * self.decode.chips * prices[1]
            )
        return dollars_per_million_tokens(hourly, self.tokens_per_s(asked))

    def missed(self, asked: ServeQuery) -> tuple[Target, ...]:
        """The targets that it misses; a number of replicas is chosen to just meet the tokens per second."""
        return asked.query.targets.missed(_Served(self, asked))

    def merits(self, asked: ServeQuery) -> Merits:
        """Return the values that objectives rank by: seconds of a request, output tokens/s per chip, dollars."""
        dollars = self.dollars(asked)
        speed = self.tokens_per_s(asked) / self.chips
        return Merits(self.pace.request_s(asked.output), speed, inf if dollars is None else dollars)

    def rank(self, asked: ServeQuery) -> tuple[object, ...]:
        """Best first, by the objective; ties by the other figures, then by names."""
        first, second = OBJECTIVES[asked.query.objective].rank(self.merits(asked))
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
        """Return the way to serve with so many replicas."""
        pace = msgspec.structs.replace(self.pace, requests_per_s=self.pace.requests_per_s / self.replicas * replicas)
        return replace(self, replicas=replicas, pace=pace)


@dataclass(frozen=True)
class _Served:
    """The figures of a way to serve what was asked for."""

    way: Way
    asked: ServeQuery

    @property
    def step_s(self) -> float:
        return self.way.pace.worst_per_token_s

    @property
    def ttft_s(self) -> float:
        return self.way.pace.worst_ttft_s

    @property
    def tokens_per_s(self) -> float:
        return self.way.tokens_per_s(self.asked) * (1 + 1e-12)

    @property
    def chips(self) -> int:
        return self.way.chips
