"""The report of `fits`: what is largest on each slice, what devices then hold, what runs out, the smallest slice."""

from __future__ import annotations

from collections.abc import Sequence

from meshwright.reports.text import Block, Lines, TextTable
from planner.fits.fits import DIVISION, NOTHING, Fits, Largest, SliceFits
from planner.numbers import gb
from strategies.role_words import layout_words


def report(fits: Fits) -> list[Block]:
    """Return both questions as tables, then the smallest slice for the batch at the context."""
    return [
        Lines("", [_title(fits)]),
        _table(f"Largest batch at context {fits.context}", "batch", [(s, s.batch) for s in fits.slices]),
        _table(f"Largest context at batch {fits.batch}", "context", [(s, s.context) for s in fits.slices]),
        Lines("Smallest slice", [smallest_text(fits)]),
    ]


def _title(fits: Fits) -> str:
    d = fits.dtypes
    return (
        f"{fits.model}, {fits.phase}; weights {d.weights}, KV cache {d.kv}, activations {d.activations}; exact, over "
        "every layout that `plan` searches; bytes of one that fits"
    )


def _table(heading: str, name: str, rows: Sequence[tuple[SliceFits, Largest]]) -> TextTable:
    headers = (
        "slice", "chips", name, "GB: weights", "cache", "activations", "used/usable", "runs out", "attention",
    )  # fmt: skip
    return TextTable(
        heading,
        headers,
        [_row(slice_, of) for slice_, of in rows],
        notes=[_attention_lines(of) for _, of in rows],
        wide=frozenset({len(headers) - 1}),
    )


def _row(slice_: SliceFits, of: Largest) -> list[str]:
    memory = of.memory
    held = (memory.weights_bytes, memory.kv_bytes, memory.activation_bytes) if memory else ()
    return [
        slice_.slice,
        str(slice_.chips),
        "none" if of.largest is None else f"{of.largest:,}",
        *([gb(nbytes) for nbytes in held] or ["", "", ""]),
        f"{gb(memory.total_bytes)}/{gb(memory.usable_bytes)}" if memory else "",
        runs_out_text(of),
        _attention(of),
    ]


def _attention(of: Largest) -> str:
    """Return the roles of attention, or of parallel blocks, in letters."""
    if of.mesh is None:
        return ""
    return "; ".join(dict.fromkeys(layout.roles_over(of.mesh) for layout in of.layouts if layout.cached))


def _attention_lines(of: Largest) -> list[str]:
    """Return how attention, or a parallel block, is cut: in words, by its program."""
    if of.mesh is None:
        return []
    mesh, cached = of.mesh, [layout for layout in of.layouts if layout.cached]
    return list(dict.fromkeys(f"{layout.program}: {layout_words(layout, mesh)}" for layout in cached))


def runs_out_text(of: Largest) -> str:
    """Return the reason that ends the largest number: HBM, and what fills it, or divisibility."""
    if of.runs_out in (DIVISION, NOTHING):
        return "no layout divides" if of.runs_out == DIVISION else "nothing"
    gap = of.next is not None and of.next > (of.largest or 0) + 1
    return f"HBM: {of.runs_out}" + (f" (next that runs: {of.next:,})" if gap else "")


def smallest_text(fits: Fits) -> str:
    """Return the smallest of the slices on which the batch fits at the context, in words."""
    asked = f"batch {fits.batch} at context {fits.context}"
    late = "; interrupted: others were not filled, of which a smaller one may do" if fits.interrupted else ""
    if fits.smallest is None:
        return f"{asked} fits on none of these slices{late}"
    chips = next(s.chips for s in fits.slices if s.slice == fits.smallest)
    return f"{asked} fits on {fits.smallest} ({chips} chips){late}"
