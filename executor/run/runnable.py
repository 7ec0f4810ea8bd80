"""The components of a layout made ready to run: bound programs with padded sizes, and what they store.

A unit is a component with its reshard; it knows the types and shapes of its weights and caches.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from executor.run.context import Array, Context
from executor.run.interpret import results, spec
from mesh.errors import InputError
from strategies.components import Component
from strategies.layout import BoundLayout
from strategies.models.models import Model
from strategies.models.workload import Workload
from strategies.notation import Axes, LayoutError, Program, Tensor
from strategies.readers.bound import Bound, programs
from strategies.readers.sizes import PaddedSizes, fit

DTYPES = {
    "f32": "float32",
    "bf16": "bfloat16",
    "f16": "float16",
    "fp8": "float8_e4m3fn",
    "int8": "int8",
    "int4": "int4",
}


@dataclass(frozen=True)
class RunOptions:
    """Options that a plan does not state: rope base, norms' epsilon, MoE slots (None: dropless), blocks."""

    rope_theta: float = 10000.0
    eps: float = 1e-5
    capacity_factor: float | None = None
    block: int = 512


@dataclass(frozen=True)
class Stored:
    """A weight or cache: its type, its shape before and after padding (layers first, where stacked), its dtype."""

    type: Tensor
    real_shape: tuple[int, ...]
    shape: tuple[int, ...]
    dtype: jnp.dtype

    @property
    def spec(self) -> Any:
        """The PartitionSpec; layers are whole."""
        return spec(self.type, *(None,) * (len(self.shape) - len(self.type.dims)))

    def padded(self, x: Array, heads: int) -> Array:
        """A value of the real shape filled with zeros; `heads` KV heads keep their query heads together."""
        for dim in self.type.dims:
            axis = self.type.names.index(dim.name) + len(self.shape) - len(self.type.dims)
            x = _grown(x, axis, self.shape[axis], heads if dim.name == "N" else 1)
        return x.astype(self.dtype)


def _grown(x: Array, axis: int, size: int, groups: int) -> Array:
    """Dim `axis`, of equal groups, grown to `size` by zeros at each group's end."""
    if x.shape[axis] == size:
        return x
    parts = x.reshape(*x.shape[:axis], groups, -1, *x.shape[axis + 1 :])
    widths = [(0, 0)] * parts.ndim
    widths[axis + 1] = (0, (size - x.shape[axis]) // groups)
    return jnp.pad(parts, widths).reshape(*x.shape[:axis], size, *x.shape[axis + 1 :])


@dataclass(frozen=True)
class RunnableComponent:
    """A component: programs from the residual to its input, its bodies (the vocabulary has two), and back."""

    component: Component
    entry: tuple[Program, ...]
    bodies: tuple[Program, ...]
    leave: tuple[Program, ...]
    context: Context
    weights: Mapping[str, Stored]
    caches: Mapping[str, Stored]

    @property
    def name(self) -> str:
        """The component's name."""
        return self.component.name


def dtype_of(name: str) -> jnp.dtype:
    """The jax dtype of a plan's dtype name."""
    return jnp.dtype(DTYPES[name])


def units(
    layout: BoundLayout,
    model: Model,
    work: Workload,
    axes: Mapping[str, int],
    options: RunOptions,
    sequence: Mapping[str, str],
) -> tuple[RunnableComponent, ...]:
    """Every component of the layout on mesh axes of these sizes, for the workload's only batch.

    Raises `LayoutError` where parts do not fit together or a dim does not divide.
    """
    if any(name not in axes for name in layout.names):
        raise InputError(f"the mesh has the axes {', '.join(axes)}; the layout needs {', '.join(layout.names)}")
    bound = programs(layout)
    make = _Maker(layout, model, work, axes, options)
    return tuple(
        make.unit(a.component, [b for b in bound if b.component is a.component], sequence.get(a.component.name))
        for a in layout.assigned
    )


@dataclass(frozen=True)
class _Maker:
    layout: BoundLayout
    model: Model
    work: Workload
    axes: Mapping[str, int]
    options: RunOptions

    def unit(self, component: Component, bound: Sequence[Bound], sequence: str | None) -> RunnableComponent:
        parts = {side: tuple(b.program for b in bound if b.part == side) for side in ("entry", "body", "exit")}
        sizes: dict[str, int] = {}
        for b in bound:
            fitted = self._fit(b)
            sizes |= {k: int(np.max(v)) for k, v in fitted.sizes.items() if k != "attended" and b.part == "body"}
        context = self._context(component, sizes, sequence or _order(parts["body"]))
        caches = dict.fromkeys((name for p in parts["body"] for name in p.cache), dtype_of(self.work.dtypes.kv))
        context = replace(context, caches=caches)
        unit = RunnableComponent(component, parts["entry"], parts["body"], parts["exit"], context, {}, {})
        return replace(unit, weights=self._weights(unit), caches=self._caches(unit))

    def _fit(self, bound: Bound) -> PaddedSizes:
        def ways(letters: Axes) -> Any:
            names = [n for i, n in enumerate(self.layout.names) for m in letters if int(bound.masks[m][0, 0]) >> i & 1]
            return np.array([[prod(self.axes[name] for name in names)]])

        part, batch = bound.source, np.array([self.work.batches])
        sizes = fit(part.needs, bound.component.dims, part.program.pad, batch, ways, 1)
        if not sizes.ok.all():
            dim, reason, _, cut = sizes.failures[0]
            raise LayoutError(f"{bound.component.name}: {reason}: {dim}, cut {int(cut.flat[0])} ways")
        return sizes

    def _context(self, component: Component, sizes: Mapping[str, int], sequence: str) -> Context:
        dtypes, options = self.work.dtypes, self.options
        activations = dtype_of(dtypes.activations)
        attention = self.model.groups[component.groups[0]].attention if component.groups else None
        return Context(
            axes=self.axes,
            sizes=sizes,
            real={name: int(component.dims[name]) for name in ("V", "E") if name in component.dims},
            activations=activations,
            compute=dtype_of(dtypes.compute) if dtypes.compute in ("f32", "bf16", "f16") else activations,
            eps=options.eps,
            theta=options.rope_theta,
            window=attention.window if attention else None,
            capacity_factor=options.capacity_factor,
            sequence=sequence,
            block=options.block,
        )

    def _weights(self, unit: RunnableComponent) -> dict[str, Stored]:
        weights = {}
        for program in (*unit.entry, *unit.bodies):
            for t in program.arguments:
                if t.name in program.weights:
                    weights["norm" if program in unit.entry else t.name] = self._stored(
                        unit, t, self.work.dtypes.weights
                    )
        if unit.component.tied and not weights.pop("Um").type.same_type(weights["Em"].type.renamed("Um")):
            raise LayoutError("a tied embedding must be cut alike where it embeds and where it unembeds")
        return weights

    def _caches(self, unit: RunnableComponent) -> dict[str, Stored]:
        types = {name: t for p in unit.bodies for name, t in results(p).items() if name in p.cache}
        return {name: self._stored(unit, t, self.work.dtypes.kv) for name, t in types.items()}

    def _stored(self, unit: RunnableComponent, t: Tensor, dtype: str) -> Stored:
        sizes, dims = unit.context.sizes, unit.component.dims
        lead = (unit.component.times,) if unit.component.groups else ()
        real = tuple(int(dims.get(d, sizes[d])) for d in t.names)
        return Stored(t, (*lead, *real), (*lead, *(sizes[d] for d in t.names)), dtype_of(dtype))


def _order(bodies: Sequence[Program]) -> str:
    """The order of positions over the shards of a cache that the text asks for; else striped."""
    orders = {step.option("order") for p in bodies for step in p.steps} - {None}
    return str(next(iter(orders), "striped"))


def random_weight(stored: Stored, key: Array, name: str) -> Array:
    """A random weight of the real shape: norms near 1, small biases, matrices that keep what they multiply."""
    noise = jax.random.normal(key, stored.real_shape, jnp.float32)
    if name in ("norm", "gq", "gk"):
        return 1.0 + 0.1 * noise
    sizes = dict(zip(reversed(stored.type.names), reversed(stored.real_shape), strict=False))
    summed = {"WO": ("N", "H"), "Wo": ("F",), "Em": ()}.get(name, ("D",))
    return noise * 0.1 if name[0] == "b" else noise * prod(sizes[d] for d in summed) ** -0.5
