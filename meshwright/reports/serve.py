"""The report of `plan --phase serve`: one line per way to serve, what lies between the phases, and the plans."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from meshwright.reports.plan import constants_of, legend_of, plan_table
from meshwright.reports.text import Block, Lines, TextTable
from planner.numbers import digits, gb, ms
from planner.plan.file_proof import Proof
from planner.plan.file_serving import Reshard, Serving, ServingEntry, SharedHbm
from planner.plan.plan import Plan
from planner.plan.planfile import PlanFile
from planner.plan.transfer import Transfer
from planner.query.targets import OBJECTIVES
from planner.serve.rates import LEAST_EFFICIENCY
from strategies.models.workload import CACHE_STEP

_ASSUMED = (
    "time to the first token ends with the first decode step; all outputs are equally long; worst: of requests that "
    "find a slot, for queues of uneven arrivals are left out",
    "batched: whole batches are prefilled, then decoded to the end; a request waits for the next batch, half a cycle "
    "in the mean",
    "interleaved: a prompt is prefilled when slots are free, and all others wait for it",
    "disaggregated: caches go over DCN, also between slices of one kind, which no ICI joins; each chip uses its share "
    "of its host's network cards",
    "on one slice: pairs of both phases' best layouts, and prefill layouts that cut weights as a decode does; --solver "
    "cp-sat proves the best pair that shares them",
    f"numbers of slices: the fewest chips with {LEAST_EFFICIENCY:.0%} of the throughput per chip at the exact ratio",
)


_LEGEND = (
    "prompts: of a prefill batch; slots: sequences decoded together; TTFT: time to the first token, TPOT: time "
    "per output token, each in the mean and at worst; req/s: requests per second of all chips"
)


def report(file: PlanFile) -> list[Block]:
    """Return the whole report of ways to serve; nothing for a file that has none."""
    serving = file.serving
    if serving is None:
        return []
    return [
        Lines("", [_title(file, serving)]),
        _table(file, serving.entries),
        Lines("", [_LEGEND]),
        Lines(
            "Between prefill and decode", [line for n, e in enumerate(serving.entries, 1) for line in _between(n, e)]
        ),
        *_plan_tables(file.plans),
        legend_of(file.plans),
        Lines("Notes", list(file.notes)),
        Lines("How it is counted", _counted(serving)),
        Lines("Search and constants", _searched(file)),
    ]


def _title(file: PlanFile, serving: Serving) -> str:
    plan = file.plans[0]
    d = plan.dtypes
    return (
        f"{plan.model.name}, serving {serving.input} tokens in and {serving.output} out; weights {d.weights}, KV cache "
        f"{d.kv}, activations {d.activations}, compute {d.compute}; {OBJECTIVES[file.objective].serving_title}"
    )


_WIDE = ("serving", "prefill plan", "decode plan", "slices")
"""The last columns, which the note beneath a row says in words."""


def _table(file: PlanFile, entries: Sequence[ServingEntry]) -> TextTable:
    priced = any(entry.dollars_per_million_tokens is not None for entry in entries)
    headers = (
        "way", "prompts", "slots", "chips", "TTFT ms", "worst", "TPOT ms", "worst", "req/s", "tokens/s", "per chip",
        *(["$/Mtoken"] if priced else []), *_WIDE,
    )  # fmt: skip
    rows = [_row(number, entry, file.plans, priced) for number, entry in enumerate(entries, 1)]
    return TextTable(
        "",
        headers,
        rows,
        notes=[[_way_text(*row[-len(_WIDE) :])] for row in rows],
        wide=frozenset(range(len(headers) - len(_WIDE), len(headers))),
    )


def _way_text(mode: str, prefill: str, decode: str, where: str) -> str:
    """Return how and where a way serves: `interleaved on v5e:2x4: plan 3 prefills, plan 2 decodes`."""
    return f"{mode} on {where}: plan {prefill} prefills, plan {decode} decodes"


def _row(number: int, entry: ServingEntry, plans: Sequence[Plan], priced: bool) -> list[str]:
    pace, prefill, decode = entry.pace, plans[entry.prefill - 1], plans[entry.decode - 1]
    dollars = entry.dollars_per_million_tokens
    return [
        str(number),
        str(prefill.batch),
        str(decode.batch),
        str(entry.chips),
        *map(ms, (pace.ttft_s, pace.worst_ttft_s, pace.per_token_s, pace.worst_per_token_s)),
        *map(digits, (pace.requests_per_s, entry.tokens_per_s, entry.tokens_per_s_per_chip)),
        *([digits(dollars or 0.0)] if priced else []),
        entry.mode,
        str(entry.prefill),
        str(entry.decode),
        slices_text(entry, prefill, decode),
    ]


def slices_text(entry: ServingEntry, prefill: Plan, decode: Plan) -> str:
    """Return the numbers of slices by kind and phase: `3 x v5e:4x4 prefill + 1 x v5e:2x4 decode`."""
    if entry.transfer is None:
        return f"{entry.replicas} x {decode.slice}" if entry.replicas > 1 else decode.slice
    once = f"{entry.prefill_slices} x {prefill.slice} prefill + {entry.decode_slices} x {decode.slice} decode"
    return f"{entry.replicas} x ({once})" if entry.replicas > 1 else once


def _between(number: int, entry: ServingEntry) -> Iterator[str]:
    pace = entry.pace
    busy = f"way {number}: busy: prefill {pace.prefill_busy:.0%}, decode {pace.decode_busy:.0%} of the time"
    if entry.ratio is not None:
        busy += f"; exact ratio: {digits(entry.ratio)} prefill slices per decode slice"
    yield busy
    if entry.transfer is not None:
        yield f"way {number}: {transfer_text(entry.transfer)}"
    if entry.together is not None:
        yield f"way {number}: {memory_text(entry.together)}"
        if entry.together.proof is not None:
            yield f"way {number}: {proof_text(entry.together.proof)}"
        yield f"way {number}: a prefill step's caches into the decode layout: {_move_text(entry.together.insert)}"


def transfer_text(moved: Transfer) -> str:
    """Return the KV transfer in one line."""
    what = "a cache" if moved.requests == 1 else f"{moved.requests} caches"
    return (
        f"KV transfer of {what}, {digits(moved.bytes / 1e6)} MB, over DCN: {ms(moved.seconds)} ms (sending "
        f"{ms(moved.send_s)}, receiving {ms(moved.receive_s)} at the same time, gathering copies over ICI "
        f"{ms(moved.copies_s)}, latency {ms(moved.latency_s)})"
    )


def memory_text(held: SharedHbm) -> str:
    """Return how both plans share the HBM of one slice, in one line."""
    how = {
        "shared": "weights are shared: both plans cut all of them alike",
        "copies": f"weights that the plans cut differently are kept twice: {gb(held.copied_bytes)} GB more per device",
        "resharded": "weights that the plans cut differently are moved before and after each prefill: "
        + _move_text(held.switch),
    }
    return (
        f"{how[held.weights]}; HBM {gb(held.total_bytes)} GB of {gb(held.usable_bytes)} per device at its fullest "
        f"({held.fullest})"
    )


def proof_text(proof: Proof) -> str:
    """Return the proof of a pair that shares its weights, in one line."""
    if proof.gap:
        return f"best pair found that shares the weights at these batches: by cp-sat, gap {proof.gap:.2%} when ended"
    return "proved the best pair that shares the weights at these batches: by cp-sat"


def _move_text(move: Reshard) -> str:
    if move.received_bytes == 0:
        return f"{ms(move.seconds)} ms, within HBM"
    kinds = {"AllGather": move.gathered_s, "AllToAll": move.swapped_s}
    over = " and ".join(f"{kind} {ms(seconds)} ms" for kind, seconds in kinds.items() if seconds)
    return f"{ms(move.seconds)} ms; each device receives {digits(move.received_bytes / 1e6)} MB over ICI ({over})"


def _plan_tables(plans: Sequence[Plan]) -> Iterator[TextTable]:
    """Yield the plans of each phase, with their numbers in the file."""
    for phase in ("prefill", "decode"):
        numbers = [number for number, plan in enumerate(plans, 1) if plan.phase == phase]
        table = plan_table([plans[number - 1] for number in numbers])
        rows = [[str(number), *row[1:]] for number, row in zip(numbers, table.rows, strict=True)]
        yield replace(table, heading=f"Plans: {phase}", rows=rows)


def _counted(serving: Serving) -> list[str]:
    held = (
        f"decode steps read {serving.decode_context} tokens of every cache: what it holds at a request's end, in whole "
        f"steps of {CACHE_STEP}"
    )
    return [held, *_ASSUMED]


def _searched(file: PlanFile) -> list[str]:
    search = file.search
    covered = (
        f"{search.candidates:,} layouts covered, {search.evaluations:,} programs priced, in {search.wall_s:.2f} s; "
        f"proved best: {search.proved_optimal}"
    )
    return [covered, *constants_of(file.plans[0])]
