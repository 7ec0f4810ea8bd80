"""The primitives of the notation: each is defined once, with its sharding rule and its price.

`executor` runs each under the same name. A collective is a step of its own, never hidden in another.
"""

from __future__ import annotations

from dataclasses import dataclass

from strategies import prices, rules, rules_attention
from strategies.prices import Price
from strategies.rules_common import Rule


@dataclass(frozen=True, slots=True)
class Primitive:
    """How a step is checked and priced."""

    rule: Rule
    price: Price


_FUSED = Primitive(rules.elementwise, prices.fused)

PRIMITIVES: dict[str, Primitive] = {
    "Einsum": Primitive(rules.einsum, prices.einsum),
    "AllGather": Primitive(rules.all_gather, prices.all_gather),
    "ReduceScatter": Primitive(rules.reduce_scatter, prices.reduce_scatter),
    "AllReduce": Primitive(rules.all_reduce, prices.all_reduce),
    "AllToAll": Primitive(rules.all_to_all, prices.all_to_all),
    "Slice": Primitive(rules.slice_, prices.free),
    "Split": Primitive(rules.split, prices.free),
    "Merge": Primitive(rules.merge, prices.free),
    "Rename": Primitive(rules.rename, prices.free),
    "Gelu": _FUSED,
    "Silu": _FUSED,
    "SwiGLU": _FUSED,
    "Add": Primitive(rules.add, prices.fused),
    "Bias": Primitive(rules.bias, prices.fused),
    "SumSq": Primitive(rules.sum_over_d, prices.fused),
    "Sum": Primitive(rules.sum_over_d, prices.fused),
    "Norm": Primitive(rules.norm, prices.fused),
    "HeadNorm": Primitive(rules.head_norm, prices.fused),
    "Rope": Primitive(rules.rope, prices.fused),
    "Append": Primitive(rules_attention.append, prices.append),
    "Attend": Primitive(rules_attention.attend, prices.attend),
    "RingAttend": Primitive(rules_attention.ring_attend, prices.ring_attend),
    "AttendReduce": Primitive(rules_attention.attend_reduce, prices.attend_reduce),
    "AttendScatter": Primitive(rules_attention.attend_scatter, prices.attend_scatter),
    "TopK": Primitive(rules_attention.top_k, prices.fused),
    "Dispatch": Primitive(rules_attention.dispatch, prices.moved),
    "Combine": Primitive(rules_attention.combine, prices.moved),
    "Lookup": Primitive(rules_attention.lookup, prices.lookup),
    "ArgMax": Primitive(rules_attention.arg_max, prices.arg_max),
    "Last": Primitive(rules_attention.last, prices.free),
}
