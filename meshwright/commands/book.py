"""The command that prints the chapter's closed forms."""

from __future__ import annotations

from meshwright.commandline import command, option, whole
from meshwright.options import CHIP_FILE, CONTEXT, DTYPES, MODEL, SLICE, format_of
from meshwright.output import show


@command(
    MODEL,
    SLICE,
    option("--batch", "N", "Sequences of a decode step.", default="32", read=whole),
    CONTEXT,
    *DTYPES,
    CHIP_FILE,
    *format_of(),
)
def book(
    *, model: str, slice_: str, batch: int, context: int, chip_file: str | None, style: str, **dtypes: str | None
) -> None:
    """Print the book's closed forms for a model and a slice: where FLOPs, ICI and latency become the bound.

    \b
    meshwright book llama-2-13b --slice v5e:4x4 --batch 32
    """
    from meshwright.reports import book as reports
    from planner.query.query import model_of
    from planner.query.slices import named_slice
    from strategies.book.closed_forms import closed_forms
    from strategies.models.workload import Dtypes

    compute = dtypes.pop("compute") or dtypes["activations"]
    chosen = Dtypes(compute=str(compute), **{name: str(dtype) for name, dtype in dtypes.items()})
    forms = closed_forms(model_of(model), named_slice(slice_, chip_file), batch=batch, context=context, dtypes=chosen)
    show(forms, lambda: reports.closed_forms(forms), style)
