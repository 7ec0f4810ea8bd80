"""The prices of the primitives: local FLOPs, HBM bytes, and collectives with their bytes.

A price is arithmetic on a `Scope`, which answers with numbers for one layout or with numpy arrays for many.
Activations between fused element-wise operations stay on chip; a matmul reads its operands and writes its
result (Scaling Book ch. 1: 2BD + 2DF + 2BF bytes); everything else is as the docstrings say.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from strategies.notation import Axes, Step, Tensor

Number = float | NDArray[np.floating[Any]] | NDArray[np.int64]
"""A number for one layout, or an array of one per layout (and batch)."""

STATISTICS_BYTES = 8  # the max and the sum of a softmax, float32 each
PAIR_BYTES = 8  # a float32 value and an int32 index


class Scope(Protocol):
    """The sizes that a price depends on: of axes, dims and tensors, per device."""

    def ways(self, axes: Axes) -> Number:
        """Product of the axes' sizes."""

    def size(self, name: str) -> Number:
        """A dim's size or a workload quantity: `attended` (mean keys per query)."""

    def touched(self, slots: Axes) -> Number:
        """Expected share of experts that are read, where tokens are cut by `slots`."""

    def elements(self, tensor: Tensor) -> Number:
        """Elements of the tensor on one device."""

    def nbytes(self, tensor: Tensor) -> Number:
        """Bytes of the tensor on one device, in the dtype of its class."""

    def is_weight(self, tensor: Tensor) -> bool:
        """Return whether the tensor is a weight or made of weights only."""


@dataclass(frozen=True, slots=True)
class Comm:
    """A collective: kind, axes, V = bytes of the array that its formula is written for, and how often it runs.

    V is the gathered array for AllGather and ReduceScatter, the local array for AllReduce, the local array times
    the group size for AllToAll, and the local shard for CollectivePermute.
    """

    kind: str
    axes: Axes
    nbytes: Number
    times: Number = 1


@dataclass(frozen=True, slots=True)
class Work:
    """The work of one step on one device: FLOPs, HBM bytes and collectives."""

    flops: Number = 0.0
    hbm_bytes: Number = 0.0
    comms: tuple[Comm, ...] = ()


Price = Callable[[Step, Scope], Work]


def _total(tensors: tuple[Tensor, ...], scope: Scope) -> Number:
    return sum(scope.nbytes(tensor) for tensor in tensors)


def free(step: Step, scope: Scope) -> Work:
    """Nothing moves: Slice, Split, Merge, Rename."""
    return Work()


def fused(step: Step, scope: Scope) -> Work:
    """Element-wise work that fuses with its neighbours; only its weights are read."""
    return Work(hbm_bytes=sum(scope.nbytes(t) for t in step.inputs if scope.is_weight(t)))


def all_gather(step: Step, scope: Scope) -> Work:
    """V = bytes of the results: what a device holds of all shards together afterwards.

    Its seconds follow from V, the number of shards and the slice's links: see `mesh.collectives`.
    """
    return Work(comms=(Comm("AllGather", step.axes, _total(step.outputs, scope)),))


def reduce_scatter(step: Step, scope: Scope) -> Work:
    """V = bytes of the partial sums: what a device holds before, of which it keeps one shard."""
    return Work(comms=(Comm("ReduceScatter", step.axes, _total(step.inputs, scope)),))


def all_reduce(step: Step, scope: Scope) -> Work:
    """V = bytes of the partial sums, which is also the size of the result; priced as ReduceScatter and AllGather."""
    return Work(comms=(Comm("AllReduce", step.axes, _total(step.inputs, scope)),))


def all_to_all(step: Step, scope: Scope) -> Work:
    """V = bytes over the whole group: one device's part times the number of devices."""
    return Work(comms=(Comm("AllToAll", step.axes, _total(step.inputs, scope) * scope.ways(step.axes)),))


def einsum(step: Step, scope: Scope) -> Work:
    """2 FLOPs per multiply-add over all dims; reads both operands and writes the result.

    Of a weight with an expert dim only the experts that the batch chose are read (`touched`).
    """
    union = {dim.name: dim for tensor in step.inputs for dim in tensor.dims}
    flops = 2.0 * scope.elements(Tensor("", tuple(union.values())))
    a, b = step.inputs
    return Work(flops, _read(a, b, scope) + _read(b, a, scope) + _total(step.outputs, scope))


def _read(tensor: Tensor, other: Tensor, scope: Scope) -> Number:
    expert = scope.is_weight(tensor) and "C" in other.names
    return scope.nbytes(tensor) * (scope.touched(other.axes("C")) if expert else 1.0)


def append(step: Step, scope: Scope) -> Work:
    """Writes one entry per sequence, in the cache's dtype."""
    cache, new = step.inputs[:2]
    return Work(hbm_bytes=scope.nbytes(new.renamed(cache.name)))


def attend(step: Step, scope: Scope) -> Work:
    """4 FLOPs per query element and key (two matmuls); reads queries, keys and values once, writes the output.

    Queries cut along T in contiguous order are imbalanced under a causal mask: the last of W shards has
    (2 - 1/W) times the mean work. Zigzag order has the mean.
    """
    q, k, v = step.inputs[:3]
    keys = scope.size("attended") / scope.ways(k.axes("S")) * _imbalance(step, q, scope)
    return Work(4.0 * scope.elements(q) * keys, _total((q, k, v, *step.outputs), scope))


def _imbalance(step: Step, q: Tensor, scope: Scope) -> Number:
    if not q.axes("T") or step.option("order") == "zigzag":
        return 1.0
    return 2.0 - 1.0 / scope.ways(q.axes("T"))


def ring_attend(step: Step, scope: Scope) -> Work:
    """Attend over all shards in turn; the KV shards rotate, the ring's size minus one times."""
    q, k, v = step.inputs[:3]
    n = scope.ways(step.axes)
    shard = _total((k, v), scope)
    flops = 4.0 * scope.elements(q) * scope.size("attended") * _imbalance(step, q, scope)
    comms = (Comm("CollectivePermute", step.axes, shard, n - 1),)
    return Work(flops, _total((q, *step.outputs), scope) + shard * n, comms)


def _statistics(step: Step, scope: Scope) -> Comm:
    o = step.inputs[0]
    rows = scope.elements(Tensor("", tuple(d for d in o.dims if d.name != "H")))
    return Comm("AllGather", step.axes, rows * STATISTICS_BYTES * scope.ways(step.axes))


def attend_reduce(step: Step, scope: Scope) -> Work:
    """Gathers every shard's max and sum, rescales, and all-reduces the outputs."""
    return Work(comms=(_statistics(step, scope), Comm("AllReduce", step.axes, _total(step.inputs, scope))))


def attend_scatter(step: Step, scope: Scope) -> Work:
    """Gathers every shard's max and sum, rescales, and reduce-scatters the outputs."""
    return Work(comms=(_statistics(step, scope), Comm("ReduceScatter", step.axes, _total(step.inputs, scope))))


def moved(step: Step, scope: Scope) -> Work:
    """Dispatch and Combine: rows are read and written once."""
    return Work(hbm_bytes=_total((*step.inputs, *step.outputs), scope))


def lookup(step: Step, scope: Scope) -> Work:
    """Reads one row of the table per token."""
    return Work(hbm_bytes=_total(step.outputs, scope))


def arg_max(step: Step, scope: Scope) -> Work:
    """Reads the logits; shards of V gather one (value, index) pair per token."""
    (logits,) = step.inputs
    axes = logits.axes("V")
    pairs = scope.elements(step.outputs[0]) * PAIR_BYTES * scope.ways(axes)
    return Work(hbm_bytes=scope.nbytes(logits), comms=(Comm("AllGather", axes, pairs),) if axes else ())
