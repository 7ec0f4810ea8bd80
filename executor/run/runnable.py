"""The components of a layout made ready to run: bound programs, padded sizes, and the weights and caches they store.

A `RunnableComponent` is a component with the programs that move the residual to its input and back.
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
    """The options of a run that a plan does not fix.

    `rope_theta`: base of the rotary embedding. `eps`: epsilon of the norms. `capacity_factor`: slots per expert over
    the mean number; None gives as many slots as tokens, so no token is dropped. `block`: queries and keys per block of
    attention.
    """

    rope_theta: float = 10000.0
    eps: float = 1e-5
    capacity_factor: float | None = None
    block: int = 512


@dataclass(frozen=True)
class Stored:
    """A weight or a cache as it is stored.

    `type`: its tensor type in the layout program. `real_shape`, `shape`: the global shape before and after padding,
    with the layers L first if it is stacked. `dtype`: its dtype.
    """

    type: Tensor
    real_shape: tuple[int, ...]
    shape: tuple[int, ...]
    dtype: jnp.dtype

    @property
    def spec(self) -> Any:
        """The PartitionSpec of the stored array; no mesh axis shards the layers."""
        return spec(self.type, *(None,) * (len(self.shape) - len(self.type.dims)))

    def padded(self, x: Array, heads: int) -> Array:
        """Pad a value of the real shape with zeros to `shape` and cast it to `dtype`.

        The query heads N are padded per KV head (`heads` of them), so that query head k * M + m keeps KV head k.
        """
        for dim in self.type.dims:
            axis = self.type.names.index(dim.name) + len(self.shape) - len(self.type.dims)
            x = _grown(x, axis, self.shape[axis], heads if dim.name == "N" else 1)
        return x.astype(self.dtype)


def _grown(x: Array, axis: int, size: int, groups: int) -> Array:
    """Pad dim `axis`, which consists of equal groups, to `size` with zeros at the end of each group."""
    if x.shape[axis] == size:
        return x
    parts = x.reshape(*x.shape[:axis], groups, -1, *x.shape[axis + 1 :])
    widths = [(0, 0)] * parts.ndim
    widths[axis + 1] = (0, (size - x.shape[axis]) // groups)
    return jnp.pad(parts, widths).reshape(*x.shape[:axis], size, *x.shape[axis + 1 :])


@dataclass(frozen=True)
class RunnableComponent:
    """A component that can run: its bound programs, their context, and its weights and caches by name.

    `entry`: the programs from the residual to the body's input. `bodies`: the component's own programs; the vocabulary
    has two, embedding and unembedding, every other component one. `leave`: the programs from the body's output back to
    the residual.
    """

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
    """Return the jax dtype of a plan's dtype name.

    >>> dtype_of("bf16").name
    'bfloat16'
    """
    return jnp.dtype(DTYPES[name])


def runnable_components(
    layout: BoundLayout,
    model: Model,
    work: Workload,
    axes: Mapping[str, int],
    options: RunOptions,
    sequence: Mapping[str, str],
) -> tuple[RunnableComponent, ...]:
    """Return every component of a layout, ready to run for the workload's only batch.

    `axes`: `mesh.shape`, axis name -> size. `sequence`: component name -> `striped` or `contiguous`, the order of its
    KV cache; without an entry the program's own option decides. Raises `InputError` if the mesh lacks an axis of the
    layout, `LayoutError` if parts do not fit together or a dim does not divide.
    """
    if any(name not in axes for name in layout.names):
        raise InputError(f"the mesh has the axes {', '.join(axes)}; the layout needs {', '.join(layout.names)}")
    bound = programs(layout)
    make = _Maker(layout, model, work, axes, options)
    return tuple(
        make.runnable_component(
            a.component, [b for b in bound if b.component is a.component], sequence.get(a.component.name)
        )
        for a in layout.assigned
    )


@dataclass(frozen=True)
class _Maker:
    """The arguments of `runnable_components`, and the steps that build one component."""

    layout: BoundLayout
    model: Model
    work: Workload
    axes: Mapping[str, int]
    options: RunOptions

    def runnable_component(
        self, component: Component, bound: Sequence[Bound], sequence: str | None
    ) -> RunnableComponent:
        parts = {side: tuple(b.program for b in bound if b.part == side) for side in ("entry", "body", "exit")}
        sizes: dict[str, int] = {}
        for b in bound:
            fitted = self._fit(b)
            sizes |= {k: int(np.max(v)) for k, v in fitted.sizes.items() if k != "attended" and b.part == "body"}
        context = self._context(component, sizes, sequence or _order(parts["body"]))
        caches = dict.fromkeys((name for p in parts["body"] for name in p.cache), dtype_of(self.work.dtypes.kv))
        context = replace(context, caches=caches)
        runnable = RunnableComponent(component, parts["entry"], parts["body"], parts["exit"], context, {}, {})
        return replace(runnable, weights=self._weights(runnable), caches=self._caches(runnable))

    def _fit(self, bound: Bound) -> PaddedSizes:
        def shards(letters: Axes) -> Any:
            names = [n for i, n in enumerate(self.layout.names) for m in letters if int(bound.masks[m][0, 0]) >> i & 1]
            return np.array([[prod(self.axes[name] for name in names)]])

        part, batch = bound.source, np.array([self.work.batches])
        fitted = fit(part.needs, bound.component.dims, part.program.pad, batch, shards, 1)
        if not fitted.ok.all():
            dim, reason, _, cut = fitted.failures[0]
            raise LayoutError(f"{bound.component.name}: {reason}: {dim}, cut {int(cut.flat[0])} ways")
        return fitted

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

    def _weights(self, component: RunnableComponent) -> dict[str, Stored]:
        stored = {}
        for program in (*component.entry, *component.bodies):
            for t in program.arguments:
                if t.name in program.weights:
                    stored["norm" if program in component.entry else t.name] = self._stored(
                        component, t, self.work.dtypes.weights
                    )
        if component.component.tied and not stored.pop("Um").type.same_type(stored["Em"].type.renamed("Um")):
            raise LayoutError("a tied embedding must be cut alike where it embeds and where it unembeds")
        return stored

    def _caches(self, component: RunnableComponent) -> dict[str, Stored]:
        types = {name: t for p in component.bodies for name, t in results(p).items() if name in p.cache}
        return {name: self._stored(component, t, self.work.dtypes.kv) for name, t in types.items()}

    def _stored(self, component: RunnableComponent, t: Tensor, dtype: str) -> Stored:
        sizes, dims = component.context.sizes, component.component.dims
        lead = (component.component.times,) if component.component.groups else ()
        real = tuple(int(dims.get(d, sizes[d])) for d in t.names)
        return Stored(t, (*lead, *real), (*lead, *(sizes[d] for d in t.names)), dtype_of(dtype))


def _order(bodies: Sequence[Program]) -> str:
    """Return the order of positions over the shards of a cache that the programs ask for; striped by default."""
    orders = {step.option("order") for p in bodies for step in p.steps} - {None}
    return str(next(iter(orders), "striped"))


def random_weight(stored: Stored, key: Array, name: str) -> Array:
    """Return a random float32 weight of the real shape: norms near 1, biases near 0, matrices of unit gain.

    A matrix has the standard deviation 1 / sqrt(summed dims), so that its product has the size of its input.
    """
    noise = jax.random.normal(key, stored.real_shape, jnp.float32)
    if name in ("norm", "gq", "gk"):
        return 1.0 + 0.1 * noise
    sizes = dict(zip(reversed(stored.type.names), reversed(stored.real_shape), strict=False))
    summed = {"WO": ("N", "H"), "Wo": ("F",), "Em": ()}.get(name, ("D",))
    return noise * 0.1 if name[0] == "b" else noise * prod(sizes[d] for d in summed) ** -0.5
