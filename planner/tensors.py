"""The specs reader of a layout: mesh axes per dim of every weight, cache and constrained activation."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from planner.plan import TensorSpec
from planner.priced import Priced
from strategies.notation import Program, Tensor
from strategies.prices import Number
from strategies.workload import Workload


def cache_types(program: Program) -> list[Tensor]:
    """The types of the program's caches, as they are first read or written."""
    tensors = [t for s in program.steps for t in (*s.inputs, *s.outputs)]
    return [next(t for t in tensors if t.name == name) for name in program.cache]


def specs(priced: Sequence[Priced], work: Workload) -> dict[str, TensorSpec]:
    """Of every weight and cache: dims, padded shape, mesh axes per dim, dtype."""
    found: dict[str, TensorSpec] = {}
    for p in priced:
        program = p.bound.program
        for t in program.arguments:
            if t.name in program.weights or t.name in program.cache:
                dtype = work.dtypes.weights if t.name in program.weights else work.dtypes.kv
                found[_tensor_name(p, t.name)] = _spec(t, p.sizes, dtype)
        for name in program.cache:
            written = next(t for s in program.steps for t in (*s.inputs, *s.outputs) if t.name == name)
            found.setdefault(_tensor_name(p, name), _spec(written, p.sizes, work.dtypes.kv))
    return found


def _tensor_name(p: Priced, name: str) -> str:
    owner = p.bound.component.name
    if name == "g" and p.bound.part != "body":
        return f"{owner}/norm"
    return f"{owner}/{name}"


def _spec(t: Tensor, sizes: dict[str, Number], dtype: str) -> TensorSpec:
    shape = tuple(int(np.max(sizes[d.name])) for d in t.dims)
    return TensorSpec(dims=t.names, shape=shape, axes=tuple(d.axes for d in t.dims), dtype=dtype)


def activation_specs(priced: Sequence[Priced], work: Workload) -> dict[str, TensorSpec]:
    """For every constraint its last type that is no partial sum: what an exported plan asks of the compiler."""
    found: dict[str, TensorSpec] = {}
    for p in priced:
        wanted = p.bound.program.constraints if p.bound.part == "body" else (p.bound.program.output.name,)
        group = ",".join(map(str, p.bound.component.groups)) or "model"
        for s in p.bound.program.steps:
            for t in s.outputs:
                if t.name in wanted and not t.partial and not t.triple and t.dims:
                    name = "residual" if t.name == "R" else t.name
                    found[f"{group}/{p.bound.component.name}/{name}"] = _spec(t, p.sizes, work.dtypes.activations)
    return found


def padded_dims(priced: Sequence[Priced]) -> dict[str, tuple[int, int]]:
    """Dims that were padded: (before, after)."""
    found: dict[str, tuple[int, int]] = {}
    for p in priced:
        for dim in p.bound.source.program.pad if p.bound.part == "body" else ():
            for name in ("N", "M") if dim == "M" else (dim,):
                before, after = p.bound.component.dims.get(name), p.sizes.get(name)
                if before is not None and after is not None and int(np.max(after)) != int(before):
                    found[f"{p.bound.component.name}/{name}"] = (int(before), int(np.max(after)))
    return found
