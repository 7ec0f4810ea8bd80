"""The chapter's closed forms for a model on a slice, with the function that computes each."""

from __future__ import annotations

from collections.abc import Sequence

from meshwright.reports.text import Block, Lines, Table
from planner.numbers import digits
from strategies.book.closed_forms import ClosedForms


def report(found: ClosedForms) -> Sequence[Block]:
    """One line per form, and what they all follow from."""
    rows = [[one.name, digits(one.value), one.unit, one.function] for one in found.forms]
    return [
        Lines("", [_title(found)]),
        Table("", ("closed form", "value", "unit", "function"), rows, frozenset({3})),
        Lines("From", _from(found)),
    ]


def _title(found: ClosedForms) -> str:
    d = found.dtypes
    return (
        f"{found.model} on {found.slice}: batch {found.batch}, context {found.context}; weights {d.weights}, KV cache "
        f"{d.kv}, activations {d.activations}, compute {d.compute}; the book's limits, at the data sheet"
    )


def _from(found: ClosedForms) -> list[str]:
    rates = f"{digits(found.flops_per_s / 1e12)} TFLOP/s, {digits(found.hbm_bytes_per_s / 1e9)} GB/s of HBM"
    ici = found.ici_bytes_per_s
    links = "no links: one chip" if ici is None else f"{digits(ici / 1e9)} GB/s of ICI along the slowest mesh axis"
    return [f"per device {rates}, {links}", "functions are those of strategies.book, where each is derived and cited"]
