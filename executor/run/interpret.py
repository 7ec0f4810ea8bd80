"""Run layout programs step by step; the steps that run are the steps that were priced.

`interpret` runs a bound program on the local arrays of one device, inside `jax.shard_map`. A program in which no mesh
axis has a role also runs on whole arrays, without `shard_map`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
from jax.sharding import PartitionSpec as _PartitionSpec

from executor.run.context import Context, Value
from executor.run.steps import STEPS
from strategies.notation import Program, Step, Tensor

PartitionSpec: Any = _PartitionSpec  # the constructor of PartitionSpec has no types


def interpret(program: Program, values: Mapping[str, Value], context: Context) -> dict[str, Value]:
    """Run a bound program and return this device's value of every tensor that it reads or writes, by name.

    `values`: the program's input and arguments. A name that several steps write has its last value. The arrays of
    `context.replicated` (positions) are cut for each step as the type of its input says. In the compiled program's
    metadata the operations of a step have the scope `name.number.op`. An error that a step raises has a note that
    names the step; `failed_step` reads it.
    """
    values_by_name = dict(values)
    for number, step in enumerate(program.steps):
        with jax.named_scope(f"{program.name}.{number}.{step.op}"):
            outputs = _run(step, values_by_name, context)
        values_by_name.update((t.name, value) for t, value in zip(step.outputs, outputs, strict=True))
    return values_by_name


def _run(step: Step, values: Mapping[str, Value], context: Context) -> tuple[Value, ...]:
    """Run one step; an error gets a note that names the step."""
    try:
        return STEPS[step.op](step, context, tuple(_read(t, values, context) for t in step.inputs))
    except Exception as error:
        error.add_note(f"{_IN_STEP}{step}")
        raise


_IN_STEP = "in step: "


def failed_step(error: BaseException) -> str | None:
    """Return the note of an error that names its step of `interpret`, None if it was raised in no step."""
    return next((note for note in getattr(error, "__notes__", ()) if note.startswith(_IN_STEP)), None)


def _read(tensor: Tensor, values: Mapping[str, Value], context: Context) -> Value:
    """Return a step's input: a value of the program, or this device's shard of a replicated array."""
    if tensor.name in context.replicated:
        return context.shard(context.replicated[tensor.name], tensor)
    return values[tensor.name]


def spec(tensor: Tensor, *lead: None) -> Any:
    """Return the PartitionSpec of a tensor's type; `lead` are Nones for leading dims that no axis shards, as L."""
    return PartitionSpec(*lead, *(dim.axes or None for dim in tensor.dims))


def results(program: Program) -> dict[str, Tensor]:
    """Return the types of a program's results by name: its output and the caches that it writes."""
    written = {t.name: t for step in program.steps for t in step.outputs}
    return {program.output.name: program.output} | {c: written[c] for c in program.cache if c in written}
