"""The third reader of a layout program: it runs. What runs is the text that was priced, step by step.

`interpret` runs a bound program on the local arrays of one device, inside `jax.shard_map` or, where no mesh axis
plays a role, on whole arrays without it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
from jax.sharding import PartitionSpec as _PartitionSpec

from executor.run.context import Context, Value
from executor.run.steps import STEPS
from strategies.notation import Program, Step, Tensor

PartitionSpec: Any = _PartitionSpec  # its constructor has no types


def interpret(program: Program, values: Mapping[str, Value], context: Context) -> dict[str, Value]:
    """Every tensor that the program reads or writes, on this device, by name; of a rebound name the last.

    `values`: the program's arguments. What `context.whole` has (positions) is cut as each step's type says.
    Each step's operations have the scope `name.number.op` in the compiled program's metadata.
    """
    held = dict(values)
    for number, step in enumerate(program.steps):
        with jax.named_scope(f"{program.name}.{number}.{step.op}"):
            outputs = _run(step, held, context)
        held.update((t.name, value) for t, value in zip(step.outputs, outputs, strict=True))
    return held


def _run(step: Step, held: Mapping[str, Value], context: Context) -> tuple[Value, ...]:
    try:
        return STEPS[step.op](step, context, tuple(_read(t, held, context) for t in step.inputs))
    except Exception as error:
        error.add_note(f"{_IN_STEP}{step}")
        raise


_IN_STEP = "in step: "


def failed_step(error: BaseException) -> str | None:
    """Return which step an error of `interpret` arose in, as its note says; None where it arose in none."""
    return next((note for note in getattr(error, "__notes__", ()) if note.startswith(_IN_STEP)), None)


def _read(tensor: Tensor, held: Mapping[str, Value], context: Context) -> Value:
    if tensor.name in context.whole:
        return context.shard(context.whole[tensor.name], tensor)
    return held[tensor.name]


def spec(tensor: Tensor, *lead: None) -> Any:
    """The PartitionSpec of a tensor's type, after leading dims that are whole."""
    return PartitionSpec(*lead, *(dim.axes or None for dim in tensor.dims))


def results(program: Program) -> dict[str, Tensor]:
    """Return a program's results: its output and the caches that it writes, with their types."""
    written = {t.name: t for step in program.steps for t in step.outputs}
    return {program.output.name: program.output} | {c: written[c] for c in program.cache if c in written}
