"""The primitives of the notation: each is one record of all that the readers need to know of it.

No other module compares the names of operations: what it must know of one is a field here. No field has a default, so
a record that leaves one out is an error where it is written, and never a price that is silently wrong. `executor` runs
each under the same name. A collective is a step of its own, never hidden in another.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Literal

from strategies import prices
from strategies.kinds import KINDS
from strategies.notation import Axes, Step, Tensor
from strategies.prices import Price
from strategies.rules import arrays, attention, collectives, moe, vocabulary
from strategies.rules.common import Rule

Made = Literal["activation", "statistic", "operand"]
"""The class of results: that of activations, float32 sums, or each that of its operand (a gathered weight's)."""
Operands = Literal["overwritten", "sent", "read"]
"""What operands that no later step needs hold beside the results: nothing; all where the step moves them; all."""
Moved = int | Literal["statistics"]
"""The number of the operand that a collective moves, or float32 values that the step itself makes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Primitive:
    """An operation.

    Checker:  `rule` is what it asks of its tensors; `options` the values that each of its options may have.
    Binding:  `vanishes` where its axes have no mesh axis: each result is its operand. `order`: its axes on a mesh, in
              the order in which its bound tensors have them; None where the order does not matter.
    Cost:     `price`; `collectives`: the kinds that the price may ask for, and what each moves. `made`: the class of
              its results. `reads_ahead`: its weights can be read while hops of collectives pass. `hides`: over weights
              alone it waits for no activation, and runs behind matmuls. `slots`: its result's C counts experts' slots.
    Memory:   `operands`; `reorders`: a result of which it gathers two dims at once is held twice.
    Specs:    `cuts`: it only cuts, so the operand's sharding is not stated. `passes_partial`: partial sums that it
              takes or gives are stated, with their parts along U. `asks`: further tensors that are stated.
    """

    rule: Rule
    options: Mapping[str, tuple[str, ...]]
    vanishes: bool
    order: Callable[[tuple[Tensor, ...], tuple[Tensor, ...]], Axes] | None
    price: Price
    collectives: Mapping[str, Moved]
    made: Made
    reads_ahead: bool
    hides: bool
    slots: bool
    operands: Operands
    reorders: bool
    cuts: bool
    passes_partial: bool
    asks: Callable[[Step], Iterator[Tensor]] | None

    def __post_init__(self) -> None:
        unknown = sorted(set(self.collectives) - set(KINDS))
        if unknown:
            raise ValueError(f"a primitive asks for {', '.join(unknown)}; kinds of collectives: {', '.join(KINDS)}")
        if not self.collectives and (self.hides or self.reorders or self.operands == "sent"):
            raise ValueError("a primitive without collectives hides nothing, reorders nothing and sends no operand")
        if self.cuts and self.collectives:
            raise ValueError(f"a primitive that only cuts moves nothing, got {', '.join(self.collectives)}")


def _suffix_moved(inputs: tuple[Tensor, ...], outputs: tuple[Tensor, ...]) -> Axes:
    """The suffix that an AllToAll takes from one dim, in that dim's order."""
    source, target = inputs[0], outputs[0]
    lost = next(d for d in source.dims if len(target.axes(d.name)) < len(d.axes))
    return lost.axes[len(target.axes(lost.name)) :]


def _ring(inputs: tuple[Tensor, ...], _: tuple[Tensor, ...]) -> Axes:
    """The axes that cut the keys' S, in that order."""
    return inputs[1].axes("S")


def _whole_keys(step: Step) -> Iterator[Tensor]:
    """Keys and values with S whole: no constraint makes a ring, and to gather them moves as many bytes."""
    for tensor, name in zip(step.inputs[1:3], ("Kg", "Vg"), strict=True):
        yield tensor.cut("S", ()).renamed(name)


_FUSED = Primitive(  # element-wise: in place, and fused with what is before and after it
    rule=arrays.elementwise(1),
    options={},
    vanishes=False,
    order=None,
    price=prices.fused,
    collectives={},
    made="activation",
    reads_ahead=False,
    hides=False,
    slots=False,
    operands="overwritten",
    reorders=False,
    cuts=False,
    passes_partial=False,
    asks=None,
)
_VIEW = replace(_FUSED, price=prices.free)  # nothing moves
_READS = replace(_FUSED, operands="read")  # reads operands while it writes results
_SUM = replace(_FUSED, rule=arrays.sum_over_d, made="statistic")
_ORDER = {"order": ("contiguous", "zigzag")}
_REDUCES = replace(
    _FUSED,
    rule=collectives.all_reduce,
    vanishes=True,
    price=prices.all_reduce,
    collectives={"AllReduce": 0},
)
_SCATTERS = replace(
    _REDUCES,
    rule=collectives.reduce_scatter,
    price=prices.reduce_scatter,
    collectives={"ReduceScatter": 0},
    operands="sent",
)

PRIMITIVES: dict[str, Primitive] = {
    "Einsum": replace(_READS, rule=arrays.einsum, price=prices.einsum, reads_ahead=True),
    "AllGather": replace(
        _FUSED,
        rule=collectives.all_gather,
        vanishes=True,
        price=prices.all_gather,
        collectives={"AllGather": 0},
        made="operand",
        hides=True,
        operands="sent",
        reorders=True,
    ),
    "ReduceScatter": _SCATTERS,
    "AllReduce": _REDUCES,
    "AllToAll": replace(
        _FUSED,
        rule=collectives.all_to_all,
        vanishes=True,
        order=_suffix_moved,
        price=prices.all_to_all,
        collectives={"AllToAll": 0},
        made="operand",
        operands="sent",
        passes_partial=True,
    ),
    "Slice": replace(_VIEW, rule=collectives.slice_, vanishes=True, made="operand", cuts=True),
    "Split": replace(_VIEW, rule=arrays.split),
    "Merge": replace(_VIEW, rule=arrays.merge),
    "Rename": replace(_VIEW, rule=arrays.rename),
    "Gelu": _FUSED,
    "Silu": _FUSED,
    "SwiGLU": replace(_FUSED, rule=arrays.elementwise(2)),
    "Add": replace(_FUSED, rule=arrays.add, passes_partial=True),
    "Bias": replace(_FUSED, rule=arrays.bias),
    "SumSq": _SUM,
    "Sum": _SUM,
    "Norm": replace(_FUSED, rule=arrays.norm),
    "HeadNorm": replace(_FUSED, rule=arrays.head_norm),
    "Rope": replace(_FUSED, rule=arrays.rope),
    "Append": replace(_FUSED, rule=attention.append, price=prices.append),
    "Attend": replace(_READS, rule=attention.attend, options=_ORDER, price=prices.attend),
    "RingAttend": replace(
        _FUSED,
        rule=attention.ring_attend,
        options=_ORDER,
        order=_ring,
        price=prices.ring_attend,
        collectives={"CollectivePermute": 1},
        operands="sent",
        asks=_whole_keys,
    ),
    "AttendReduce": replace(
        _REDUCES,
        rule=attention.attend_reduce,
        price=prices.attend_reduce,
        collectives={"AllGather": "statistics", "AllReduce": 0},
    ),
    "AttendScatter": replace(
        _SCATTERS,
        rule=attention.attend_scatter,
        price=prices.attend_scatter,
        collectives={"AllGather": "statistics", "ReduceScatter": 0},
    ),
    "TopK": replace(_FUSED, rule=moe.top_k),
    "Dispatch": replace(_READS, rule=moe.dispatch, price=prices.moved, slots=True),
    "Combine": replace(_READS, rule=moe.combine, price=prices.moved, passes_partial=True),
    "Lookup": replace(_READS, rule=vocabulary.lookup, price=prices.lookup),
    "ArgMax": replace(_READS, rule=vocabulary.arg_max, price=prices.arg_max, collectives={"AllGather": "statistics"}),
    "Last": replace(_VIEW, rule=vocabulary.last),
}


def known_primitive(op: str) -> Primitive | None:
    """The primitive of that name; None where a plan file names one that there is not."""
    return PRIMITIVES.get(op)


def reads_ahead(op: str) -> bool:
    """Return whether the weights of an operation can be read while hops of collectives pass; unknown ones read none."""
    primitive = known_primitive(op)
    return primitive is not None and primitive.reads_ahead
