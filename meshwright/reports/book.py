"""The chapter's tables: step times of batches with where HBM ends, and closed forms with what computes each."""

from __future__ import annotations

from collections.abc import Sequence

from meshwright.reports.text import Block, Lines, TextTable
from planner.numbers import digits, gb, ms
from strategies.book.closed_forms import ClosedForms
from strategies.book.rooftable import RooflineRow, RooflineTable

_HEADERS = (
    "batch", "total GB", "fits", "step ms", "tokens/s", "per chip", "ms: KV", "weights", "FLOPs", "general",
    "bound by", "KV GB",
)  # fmt: skip


def roofline(table: RooflineTable) -> Sequence[Block]:
    """Return one row per batch, and every number that the rows follow from."""
    return [
        Lines("", [_roofline_title(table)]),
        TextTable("", _HEADERS, [_row(row) for row in table.rows], wide=frozenset({11})),
        Lines("Where HBM ends", [_end(table)]),
        Lines("From", _roofline_from(table)),
    ]


def _roofline_title(table: RooflineTable) -> str:
    heads = "" if table.kv_heads is None else f", {table.kv_heads} KV heads in the cache"
    return (
        f"{table.model} on {table.slice}: decode, {table.context} tokens in each cache; weights {table.weights}, KV "
        f"cache {table.kv}{heads}, compute {table.compute}; all cut evenly, ICI free"
    )


def _row(row: RooflineRow) -> list[str]:
    return [
        str(row.batch),
        gb(row.total_bytes),
        "yes" if row.fits else "NO",
        ms(row.step_s),
        digits(row.tokens_per_s),
        digits(row.tokens_per_s_per_chip),
        ms(row.kv_s),
        ms(row.weights_s),
        ms(row.flops_s),
        ms(row.general_step_s),
        {"hbm": "HBM", "flops": "FLOPs"}[row.bound_by],
        gb(row.kv_bytes),
    ]


def _end(table: RooflineTable) -> str:
    usable = f"{gb(table.usable_hbm_bytes)} GB are usable on {table.slice}"
    if table.largest_batch < 1:
        return f"{usable}: not even one sequence fits beside {gb(table.param_bytes)} GB of parameters"
    return f"{usable}: the largest batch that fits is {table.largest_batch:,}, before activations"


def _roofline_from(table: RooflineTable) -> list[str]:
    hbm, flops = table.total_hbm_bytes_per_s / 1e12, table.total_flops_per_s / 1e12
    return [
        f"parameters: {table.params:,} ({gb(table.param_bytes)} GB), active per token {table.active_params:,}",
        f"KV cache: {gb(table.kv_bytes_per_seq)} GB per sequence",
        f"{table.chips} chips: {digits(hbm)} TB/s of HBM bandwidth, {digits(flops)} TFLOP/s",
        f"critical batch: {digits(table.critical_batch_tokens)} tokens, from where on FLOPs take longer than weights",
        "step = (KV + weights read) / HBM bandwidth; general = KV / HBM bandwidth + max(weights, FLOPs)",
    ]


def closed_forms(forms: ClosedForms) -> Sequence[Block]:
    """Return one row per form, and the numbers that all follow from."""
    rows = [[one.name, digits(one.value), one.unit, one.function] for one in forms.forms]
    return [
        Lines("", [_forms_title(forms)]),
        TextTable("", ("closed form", "value", "unit", "function"), rows, frozenset({3})),
        Lines("From", _forms_from(forms)),
    ]


def _forms_title(forms: ClosedForms) -> str:
    d = forms.dtypes
    return (
        f"{forms.model} on {forms.slice}: batch {forms.batch}, context {forms.context}; weights {d.weights}, KV cache "
        f"{d.kv}, activations {d.activations}, compute {d.compute}; the book's limits, at the data sheet"
    )


def _forms_from(forms: ClosedForms) -> list[str]:
    rates = f"{digits(forms.flops_per_s / 1e12)} TFLOP/s, {digits(forms.hbm_bytes_per_s / 1e9)} GB/s of HBM"
    ici = forms.ici_bytes_per_s
    links = "no links: one chip" if ici is None else f"{digits(ici / 1e9)} GB/s of ICI along the slowest mesh axis"
    return [f"per device {rates}, {links}", "functions are those of strategies.book, where each is derived and cited"]
