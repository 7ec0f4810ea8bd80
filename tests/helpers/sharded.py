"""One program of a layout, run on whole arrays over a mesh."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import jax
from jax.sharding import Mesh

from executor.run.context import Array, Context, array_of
from executor.run.interpret import PartitionSpec, interpret, results, spec
from strategies.notation import Program, Step


def completed(program: Program) -> Program:
    """The program with its output's partial sum reduced by one more step, so that it can be looked at whole."""
    output = program.output
    if not output.partial:
        return program
    whole = replace(output, partial=())
    step = Step("AllReduce", output.partial, (output,), (whole,))
    return replace(program, steps=(*program.steps, step), output=whole)


def run_sharded(program: Program, mesh: Mesh, context: Context, values: Mapping[str, Array]) -> dict[str, Array]:
    """Run a program whose output is no partial sum on whole arrays, and give its `results`, whole."""
    context = replace(context, axes=dict(mesh.shape))
    found = results(program)

    def local(values: Mapping[str, Array], whole: Mapping[str, Array]) -> dict[str, Array]:
        held = interpret(program, values, replace(context, replicated=whole))
        return {name: array_of(held[name]) for name in found}

    needed = {t.name: t for t in (program.input, *program.arguments) if t.name not in context.replicated}
    run = jax.shard_map(
        local,
        mesh=mesh,
        in_specs=({name: spec(needed[name]) for name in values}, PartitionSpec()),
        out_specs={name: spec(t) for name, t in found.items()},
        check_vma=False,
    )
    return dict(jax.jit(run)(dict(values), dict(context.replicated)))
