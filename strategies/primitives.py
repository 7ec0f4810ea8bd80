"""The primitives of the notation: each is defined once, with its sharding rule and its price.

`executor` runs each under the same name. A collective is a step of its own, never hidden in another.
"""

from __future__ import annotations

from dataclasses import dataclass

from strategies.readers import prices
from strategies.readers.prices import Price
from strategies.rules import attention, collectives
from strategies.rules.common import Rule


@dataclass(frozen=True, slots=True)
class Primitive:
    """How a step is checked and priced."""

    rule: Rule
    price: Price


_FUSED = Primitive(collectives.elementwise, prices.fused)

PRIMITIVES: dict[str, Primitive] = {
    "Einsum": Primitive(collectives.einsum, prices.einsum),
    "AllGather": Primitive(collectives.all_gather, prices.all_gather),
    "ReduceScatter": Primitive(collectives.reduce_scatter, prices.reduce_scatter),
    "AllReduce": Primitive(collectives.all_reduce, prices.all_reduce),
    "AllToAll": Primitive(collectives.all_to_all, prices.all_to_all),
    "Slice": Primitive(collectives.slice_, prices.free),
    "Split": Primitive(collectives.split, prices.free),
    "Merge": Primitive(collectives.merge, prices.free),
    "Rename": Primitive(collectives.rename, prices.free),
    "Gelu": _FUSED,
    "Silu": _FUSED,
    "SwiGLU": _FUSED,
    "Add": Primitive(collectives.add, prices.fused),
    "Bias": Primitive(collectives.bias, prices.fused),
    "SumSq": Primitive(collectives.sum_over_d, prices.fused),
    "Sum": Primitive(collectives.sum_over_d, prices.fused),
    "Norm": Primitive(collectives.norm, prices.fused),
    "HeadNorm": Primitive(collectives.head_norm, prices.fused),
    "Rope": Primitive(collectives.rope, prices.fused),
    "Append": Primitive(attention.append, prices.append),
    "Attend": Primitive(attention.attend, prices.attend),
    "RingAttend": Primitive(attention.ring_attend, prices.ring_attend),
    "AttendReduce": Primitive(attention.attend_reduce, prices.attend_reduce),
    "AttendScatter": Primitive(attention.attend_scatter, prices.attend_scatter),
    "TopK": Primitive(attention.top_k, prices.fused),
    "Dispatch": Primitive(attention.dispatch, prices.moved),
    "Combine": Primitive(attention.combine, prices.moved),
    "Lookup": Primitive(attention.lookup, prices.lookup),
    "ArgMax": Primitive(attention.arg_max, prices.arg_max),
    "Last": Primitive(attention.last, prices.free),
}
