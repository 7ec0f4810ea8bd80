"""The specs reader of a layout: mesh axes per dim of every weight, cache and constrained activation."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import takewhile

import msgspec
import numpy as np

from strategies.models.workload import Workload
from strategies.notation import SEQUENCE, Axes, Dim, Program, Tensor
from strategies.prices import Number
from strategies.primitives import PRIMITIVES
from strategies.readers.bound import SizedProgram


class TensorSpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A tensor: dims, padded shape, and per dim the mesh axes that cut it, major first (a PartitionSpec)."""

    dims: tuple[str, ...]
    shape: tuple[int, ...]
    axes: tuple[tuple[str, ...], ...]
    dtype: str

    @property
    def is_cache(self) -> bool:
        """Return whether it is a cache: of what is stored only caches have the dim of keys (`strategies.checker`)."""
        return SEQUENCE in self.dims

    def cut_by(self, dim: str) -> tuple[str, ...]:
        """The mesh axes that cut a dim, major first; none where the tensor lacks it."""
        return dict(zip(self.dims, self.axes, strict=True)).get(dim, ())


def specs(priced: Sequence[SizedProgram], work: Workload) -> dict[str, TensorSpec]:
    """Return the spec of every weight and cache: dims, padded shape, mesh axes per dim, dtype."""
    specs_: dict[str, TensorSpec] = {}
    for p in priced:
        program = p.bound.program
        for t in program.arguments:
            if t.name in program.weights or t.name in program.cache:
                dtype = work.dtypes.weights if t.name in program.weights else work.dtypes.kv
                specs_[_tensor_name(p, t.name)] = _spec(t, p.sizes, dtype)
        for t in program.caches:
            specs_.setdefault(_tensor_name(p, t.name), _spec(t, p.sizes, work.dtypes.kv))
    return specs_


def _tensor_name(p: SizedProgram, name: str) -> str:
    owner = p.bound.component.name
    if name == "g" and p.bound.part != "body":
        return f"{owner}/norm"
    return f"{owner}/{name}"


def _spec(t: Tensor, sizes: dict[str, Number], dtype: str) -> TensorSpec:
    shape = tuple(int(np.max(sizes[d.name])) for d in t.dims)
    return TensorSpec(dims=t.names, shape=shape, axes=tuple(d.axes for d in t.dims), dtype=dtype)


def activation_specs(priced: Sequence[SizedProgram], work: Workload) -> dict[str, TensorSpec]:
    """For every constraint each type that it has in turn, in program order: what an exported plan asks of a compiler.

    `group/component/Q` is the first type of Q that is no partial sum, `Q@2` the next: one more constraint on the same
    tensor, and between them the collective that was priced. `tok` and `pos` are a step's inputs, `last` the residual
    at the prompts' last positions.
    """
    specs_: dict[str, TensorSpec] = {}
    last: dict[str, tuple[int, TensorSpec]] = {}
    for p in priced:
        group = ",".join(map(str, p.bound.component.groups)) or "model"
        for name, spec in _asked(p, work):
            key = f"{group}/{p.bound.component.name}/{name}"
            number, before = last.get(key, (0, None))
            if before is None or (before.dims, before.axes) != (spec.dims, spec.axes):
                last[key] = number + 1, spec
                specs_[f"{key}@{number + 1}" if number else key] = spec
    return specs_


def _asked(p: SizedProgram, work: Workload) -> Iterator[tuple[str, TensorSpec]]:
    program, dtypes = p.bound.program, work.dtypes
    for t in program.arguments if p.bound.part == "body" else ():
        if t.name in program.index:
            yield t.name, _spec(_whole(t) if t.name == "pos" else t, p.sizes, "int32")
    for t in _constrained(p, {*program.constraints, *(program.cache if work.phase == "prefill" else ())}):
        name = ("last" if program.name == "last" else "residual") if t.name == "R" else t.name
        sizes = p.sizes | {"U": p.scope.ways(t.axes("U"))} if "U" in t.names else p.sizes
        yield name, _spec(t, sizes, dtypes.kv if SEQUENCE in t.names else dtypes.activations)


def _constrained(p: SizedProgram, names: set[str]) -> Iterator[Tensor]:
    """Yield the types under these names, and the result; of a partial sum, the part that a constraint can say.

    Not what is only sliced next: XLA would gather it.
    """
    program = p.bound.program
    names = names | {program.output.name}
    if p.bound.part == "exit":
        names.add(program.input.name)
        yield from _reduced_before_gathered(program.input, program.output)
        if p.bound.component.kind == "vocab" and program.input.partial:
            yield _reduced_rows(program.input, program.output)
    body = program.steps if p.bound.part == "body" else ()
    cuts = [s for s in body if PRIMITIVES[s.op].cuts]
    sliced = {t for s in cuts for t, o in zip(s.inputs, s.outputs, strict=True) if t.name == o.name}
    for s in program.steps:
        if PRIMITIVES[s.op].passes_partial and s in body:
            moved = (t for t in (*s.inputs, *s.outputs) if t.partial and t.name in names - {program.output.name})
            yield from (_in_parts(t, program) for t in moved)
        for t in s.outputs:
            if t.name in names and not t.partial and not t.triple and t.dims and t not in sliced:
                yield t
        if asks := PRIMITIVES[s.op].asks:
            yield from asks(s)


def _reduced_before_gathered(t: Tensor, after: Tensor) -> Iterator[Tensor]:
    """A partial sum that is gathered, then reduced: no constraint says so, but that it is reduced first can be said."""
    gone = [d for d in t.dims if after.axes(d.name)[: len(d.axes)] != d.axes]
    if t.partial and gone and not any(set(t.partial) & set(after.axes(d.name)) for d in gone):
        dims = (replace(d, axes=(*d.axes, *(a for a in after.axes(d.name) if a in t.partial))) for d in t.dims)
        yield Tensor(t.name, tuple(dims))


def _reduced_rows(t: Tensor, after: Tensor) -> Tensor:
    """Rows of the embedding when they are reduced, but not scattered: else XLA moves the tokens first."""
    held = {*t.partial, *(axis for d in t.dims for axis in d.axes)}
    return Tensor(t.name, tuple(Dim(d.name, _sliced(d, after.axes(d.name), held)) for d in t.dims))


def _sliced(dim: Dim, after: Axes, held: set[str]) -> Axes:
    """The dim's axes and those that are free to follow them."""
    more = takewhile(lambda axis: axis not in held, after[len(dim.axes) :])
    return (*dim.axes, *more) if after[: len(dim.axes)] == dim.axes else dim.axes


def _in_parts(t: Tensor, program: Program) -> Tensor:
    """A partial sum that is to stay one for a while: with its parts along a first dim U, which is summed later.

    Its axes have the order in which they cut what was summed.
    """
    made = next(s for s in program.steps if t.name in (o.name for o in s.outputs))
    order = [axis for d in made.inputs[0].dims for axis in d.axes if axis in t.partial]
    return Tensor(t.name, (Dim("U", tuple(order)), *t.dims))


def _whole(t: Tensor, *dims: str) -> Tensor:
    """The tensor without the cuts of these dims, or of all."""
    return replace(t, dims=tuple(replace(d, axes=()) if d.name in dims or not dims else d for d in t.dims))


def padded_dims(priced: Sequence[SizedProgram]) -> dict[str, tuple[int, int]]:
    """Dims that were padded: (before, after)."""
    padded: dict[str, tuple[int, int]] = {}
    for p in priced:
        for dim in p.bound.source.program.pad if p.bound.part == "body" else ():
            for name in ("N", "M") if dim == "M" else (dim,):
                before, after = p.bound.component.dims.get(name), p.sizes.get(name)
                if before is not None and after is not None and int(np.max(after)) != int(before):
                    padded[f"{p.bound.component.name}/{name}"] = (int(before), int(np.max(after)))
    return padded
