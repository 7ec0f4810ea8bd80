"""The chapter's step-time table, and where HBM ends."""

from __future__ import annotations

from collections.abc import Sequence

from meshwright.reports.text import Block, Lines, Table
from planner.numbers import digits, gb, ms
from strategies.book.rooftable import RooflineRow, RooflineTable

_HEADERS = (
    "batch", "KV GB", "total GB", "step ms", "tokens/s", "per chip", "KV ms", "weights ms", "FLOPs ms",
    "general step ms", "bound by", "fits",
)  # fmt: skip


def report(table: RooflineTable) -> Sequence[Block]:
    """One line per batch, and every number that the lines follow from."""
    return [
        Lines("", [_title(table)]),
        Table("", _HEADERS, [_row(row) for row in table.rows]),
        Lines("Where HBM ends", [_end(table)]),
        Lines("From", _from(table)),
    ]


def _title(table: RooflineTable) -> str:
    heads = "" if table.kv_heads is None else f", {table.kv_heads} KV heads in the cache"
    return (
        f"{table.model} on {table.slice}: decode, {table.context} tokens in each cache; weights {table.weights}, KV "
        f"cache {table.kv}{heads}, compute {table.compute}; all cut evenly, ICI free"
    )


def _row(row: RooflineRow) -> list[str]:
    return [
        str(row.batch),
        gb(row.kv_bytes),
        gb(row.total_bytes),
        ms(row.step_s),
        digits(row.tokens_per_s),
        digits(row.tokens_per_s_per_chip),
        ms(row.kv_s),
        ms(row.weights_s),
        ms(row.flops_s),
        ms(row.general_step_s),
        {"hbm": "HBM", "flops": "FLOPs"}[row.bound_by],
        "yes" if row.fits else "NO: beyond HBM",
    ]


def _end(table: RooflineTable) -> str:
    usable = f"{gb(table.usable_hbm_bytes)} GB are usable on {table.slice}"
    if table.largest_batch < 1:
        return f"{usable}: not even one sequence fits beside {gb(table.param_bytes)} GB of parameters"
    return f"{usable}: the largest batch that fits is {table.largest_batch:,}, before activations"


def _from(table: RooflineTable) -> list[str]:
    hbm, flops = table.total_hbm_bytes_per_s / 1e12, table.total_flops_per_s / 1e12
    return [
        f"parameters: {table.params:,} ({gb(table.param_bytes)} GB), active per token {table.active_params:,}",
        f"KV cache: {gb(table.kv_bytes_per_seq)} GB per sequence",
        f"{table.chips} chips: {digits(hbm)} TB/s of HBM bandwidth, {digits(flops)} TFLOP/s",
        f"critical batch: {digits(table.critical_batch_tokens)} tokens, from where on FLOPs take longer than weights",
        "step = (KV + weights read) / HBM bandwidth; general step = KV / HBM bandwidth + max(weights, FLOPs)",
    ]
