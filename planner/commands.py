"""The `meshwright` command: what each subcommand takes and prints. Heavy modules load inside the functions."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

from planner.options import (
    Activations,
    Batches,
    Cache,
    ChipFile,
    Compute,
    Constants,
    Context,
    Format,
    ModelName,
    Output,
    Phase,
    Pick,
    Programs,
    Slices,
    Weights,
    one_slice,
    whole,
    wholes,
)
from planner.output import show, show_plans, write

app = typer.Typer(
    help="Choose how a Transformer is sharded for inference on a TPU mesh, and say why.",
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(wanted: bool) -> None:
    if wanted:
        from planner.version import VERSION

        write(f"meshwright {VERSION}\n".encode())
        raise typer.Exit


Version = Annotated[bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")]


@app.callback()
def options(version: Version = False) -> None:
    """Choose how a Transformer is sharded for inference on a TPU mesh, and say why."""


@app.command()
def models(
    name: Annotated[str | None, typer.Argument(metavar="[NAME|FILE|FOLDER]", help="Show this one in full.")] = None,
    style: Format = "table",
) -> None:
    """List the built-in models, or show one in full."""
    from planner import report_models
    from strategies.configs import builtin_names, load_model

    if name is None:
        every = [load_model(builtin) for builtin in builtin_names()]
        show(every, lambda: report_models.models(every), style)
    else:
        model = load_model(name)
        show(model, lambda: report_models.model(model), style)


@app.command()
def chips(
    name: Annotated[str | None, typer.Argument(metavar="[NAME]", help="Show this one in full.")] = None,
    style: Format = "table",
) -> None:
    """List the chips, or show one in full with its sources and its slices."""
    from mesh.chips import chip_names, load_chip
    from planner import report_chips

    if name is None:
        every = [load_chip(builtin) for builtin in chip_names()]
        show(every, lambda: report_chips.chips(every), style)
    else:
        chip = load_chip(name)
        show(chip, lambda: report_chips.chip(chip), style)


def _plan_type() -> type:
    from planner.planfile import PlanFile

    return PlanFile


SCHEMAS: dict[str, Callable[[], type]] = {"plan": _plan_type}
"""The type of each file that has a schema, loaded when asked for; the other commands add theirs."""


@app.command()
def schema(
    name: Annotated[
        str, typer.Argument(metavar="[plan|fits|sensitivity|report|validation]", help="Of which file.")
    ] = "plan",
    style: Format = "json",
) -> None:
    """Print the JSON Schema of a plan file, or of what `verify` or `validate` reports."""
    from planner import report_schema

    found = report_schema.schema_of(name, SCHEMAS)
    show(found, lambda: report_schema.fields(found), style)


@app.command()
def roofline(
    model: ModelName,
    slices: Slices,
    batches: Batches = None,
    context: Context = "8192",
    weights: Weights = "bf16",
    kv: Cache = "bf16",
    compute: Annotated[str, typer.Option(metavar="DTYPE", help="Dtype of the matmuls.")] = "bf16",
    kv_heads: Annotated[str | None, typer.Option(metavar="K", help="KV heads in the cache; the weights stay.")] = None,
    chip_file: ChipFile = None,
    style: Format = "table",
) -> None:
    """Print each batch's step time if all were cut evenly and ICI were free, and where HBM ends."""
    from planner import api, report_roofline

    table = api.roofline(
        model,
        one_slice(slices),
        batches=wholes("--batch", batches) if batches else api.BATCHES["decode"],
        context=whole("--context", context),
        weights=weights,
        kv=kv,
        compute=compute,
        kv_heads=None if kv_heads is None else whole("--kv-heads", kv_heads),
        chip_file=chip_file,
    )
    show(table, lambda: report_roofline.report(table), style)


@app.command()
def price(
    model: ModelName,
    slices: Slices,
    layout: Annotated[str, typer.Option(metavar="FILE", help="A layout file, or a plan file (see --pick).")],
    pick: Pick = "1",
    phase: Phase = "decode",
    batches: Batches = None,
    context: Context = "8192",
    weights: Weights = "bf16",
    kv: Cache = "bf16",
    activations: Activations = "bf16",
    compute: Compute = None,
    program: Programs = None,
    chip_file: ChipFile = None,
    constants: Constants = "chip",
    output: Output = None,
    style: Format = "table",
) -> int:
    """Price one given layout, without a search."""
    from planner import api

    found = api.price(
        model,
        one_slice(slices),
        layout,
        pick=whole("--pick", pick),
        phase=phase,
        batches=wholes("--batch", batches) if batches else None,
        context=whole("--context", context),
        weights=weights,
        kv=kv,
        activations=activations,
        compute=compute,
        programs=program or (),
        chip_file=chip_file,
        constants=constants,
    )
    return show_plans(found, style, output)


@app.command()
def explain(
    file: Annotated[str, typer.Argument(metavar="PLAN.JSON", help="A file that `meshwright plan -o` wrote.")],
    pick: Pick = "1",
    style: Format = "table",
) -> None:
    """Print every step of a plan in the book's notation with sizes, bytes, time and bound; and its memory."""
    from planner.explain import explanation
    from planner.planfile import pick_plan, read_plan

    path = Path(file)
    chosen = pick_plan(read_plan(path), path, whole("--pick", pick))
    show(chosen, lambda: explanation(chosen), style)
