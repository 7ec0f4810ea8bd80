"""The commands without a search: models, chips, roofline, price, explain, schema. Heavy modules load in functions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from meshwright.commandline import Argument, command, option, whole
from meshwright.options import (
    BATCHES,
    CACHE,
    CHIP_FILE,
    CONSTANTS,
    CONTEXT,
    DTYPES,
    FILES,
    MODEL,
    OUTPUT,
    PHASE,
    PICK,
    PLAN_FILE,
    SLICE,
    WEIGHTS,
    format_of,
)
from meshwright.output import ended, finish, show


@command(Argument("name", "[NAME|FILE|FOLDER]", "Show this one in full.", required=False), *format_of())
def models(*, name: str | None, style: str) -> None:
    """List the built-in models, or show one in full.

    \b
    meshwright models llama-3.1-70b --format json
    """
    from meshwright.reports import models as report_models
    from strategies.models.configs import builtin_names, load_model

    if name is None:
        every = [load_model(builtin) for builtin in builtin_names()]
        show(
            [report_models.as_value(model) for model in every],
            lambda: report_models.models(every),
            style,
        )
    else:
        model = load_model(name)
        show(report_models.as_value(model), lambda: report_models.model(model), style)


@command(Argument("name", "[NAME]", "Show this one in full.", required=False), *format_of())
def chips(*, name: str | None, style: str) -> None:
    """List the chips, or show one in full with its sources and its slices.

    \b
    meshwright chips v5e
    """
    from mesh.chips import chip_names, load_chip
    from meshwright.reports import chips as report_chips

    if name is None:
        every = [load_chip(builtin) for builtin in chip_names()]
        show(every, lambda: report_chips.chips(every), style)
    else:
        chip = load_chip(name)
        show(chip, lambda: report_chips.chip(chip), style)


@command(
    MODEL,
    SLICE,
    BATCHES,
    CONTEXT,
    WEIGHTS,
    CACHE,
    option("--compute", "DTYPE", "Dtype of the matmuls.", default="bf16"),
    option("--kv-heads", "K", "KV heads in the cache; the weights stay.", read=whole),
    CHIP_FILE,
    *format_of(),
)
def roofline(*, model: str, slice_: str, style: str, **given: Any) -> None:
    """Print each batch's step time if all were cut evenly and ICI were free, and where HBM ends.

    \b
    meshwright roofline llama-2-13b --slice v5e:4x4 --batch 1,32,240 --weights int8
    """
    from meshwright.reports import book
    from planner import api

    table = api.roofline(model, slice_, **given)
    show(table, lambda: book.roofline(table), style)


@command(
    MODEL,
    SLICE,
    option("--layout", "FILE", "A layout file, or a plan file (see --pick).", required=True),
    PICK,
    PHASE,
    BATCHES,
    CONTEXT,
    *DTYPES,
    *FILES,
    CONSTANTS,
    OUTPUT,
    *format_of(),
)
def price(*, model: str, slice_: str, layout: str, output: str | None, style: str, **given: Any) -> int:
    """Price one given layout, without a search.

    \b
    meshwright price llama-3.1-8b --slice v5e:2x2 --layout plan.json --batch 32
    """
    from meshwright.reports.plan import report
    from planner import api

    plans = api.price(model, slice_, layout, **given)
    finish(plans, lambda: report(plans), style, output)
    return ended(plans)


@command(PLAN_FILE, PICK, *format_of())
def explain(*, file: str, pick: int, style: str) -> None:
    """Print every step of a plan in the book's notation with sizes, bytes, time and bound; and its memory.

    \b
    meshwright explain plan.json --pick 2
    """
    from meshwright.reports.explain import explanation
    from planner.plan.planfile import pick_plan, read_plan

    path = Path(file)
    chosen = pick_plan(read_plan(path), path, pick)
    show(chosen, lambda: explanation(chosen), style)


@command(
    Argument("name", "[plan|fits|sensitivity|report|validation]", "Of which file.", required=False, default="plan"),
    *format_of(default="json"),
)
def schema(*, name: str, style: str) -> None:
    """Print the JSON Schema of a plan file, or of what `verify` or `validate` reports.

    \b
    meshwright schema plan
    """
    from meshwright import schemas

    schema_ = schemas.schema_of(name)
    show(schema_, lambda: schemas.fields(schema_), style)
