"""The cost reader: what a program's steps take on a mesh, on numbers or on arrays of assignments at once.

    step_s        = sum over steps of max(FLOPs time, HBM time) + sum of collectives      (the estimate)
    lower_bound_s = max(the first sum, the second)             everything overlaps
    upper_bound_s = FLOPs + HBM + collectives                  nothing overlaps

A collective takes max(bytes / bandwidth, hops x hop latency).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache

import numpy as np

from mesh.chips import Chip
from mesh.errors import InputError
from strategies.dtypes import dtype_bytes
from strategies.notation import Axes, Program, Step, Tensor
from strategies.prices import Comm, Number, Work
from strategies.primitives import PRIMITIVES
from strategies.rates import Flags, Ints, Rates
from strategies.workload import Dtypes

INDEX_BYTES, STATISTIC_BYTES = 4.0, 4.0
_GATHERS = ("AllGather", "ReduceScatter", "AllToAll", "RingAttend", "AttendScatter")
_READS = ("Einsum", "Attend", "Dispatch", "Combine", "Lookup", "ArgMax")


@dataclass(frozen=True, slots=True)
class Speeds:
    """Of one device: FLOP/s in the compute dtype, HBM bytes/s, and bytes per element of each tensor class."""

    flops_per_s: float
    hbm_bytes_per_s: float
    widths: Mapping[str, float]


def speeds(chip: Chip, dtypes: Dtypes) -> Speeds:
    """The speeds of a chip's device for these dtypes; raises `InputError` on a dtype the chip cannot compute in."""
    widths = {
        "weight": dtype_bytes(dtypes.weights),
        "cache": dtype_bytes(dtypes.kv),
        "activation": dtype_bytes(dtypes.activations),
        "index": INDEX_BYTES,
        "statistic": STATISTIC_BYTES,
    }
    return Speeds(chip.device_flops_per_s(dtypes.compute), chip.device_hbm_bytes_per_s, widths)


@cache
def classes(program: Program) -> dict[str, str]:
    """The class of each tensor name: weight, cache, index, statistic or activation.

    What a collective or Slice makes of a weight or cache (a gathered weight, say) stays of that class.
    """
    found = dict.fromkeys(program.weights, "weight") | dict.fromkeys(program.cache, "cache")
    found |= dict.fromkeys((name for name in program.index if name in ("pos", "tok")), "index")
    for step in program.steps:
        for number, target in enumerate(step.outputs):
            moves = step.op in ("AllGather", "Slice", "AllToAll")
            source = step.inputs[number].name if moves else ""
            made = "statistic" if step.op in ("SumSq", "Sum") else found.get(source, "activation")
            found.setdefault(target.name, made)
    return found


class ArrayScope:
    """A `prices.Scope` over many assignments: masks of mesh axes per program axis, [rows, 1]."""

    def __init__(
        self,
        program: Program,
        masks: Mapping[str, Ints],
        sizes: Mapping[str, Number],
        rates: Rates,
        widths: Mapping[str, float],
    ) -> None:
        self.program, self.masks, self.sizes, self.rates, self.widths = program, masks, sizes, rates, widths
        self.classes = classes(program)
        self._masks: dict[Axes, Ints] = {}
        self._elements: dict[object, Number] = {}

    def mask(self, axes: Axes) -> Ints:
        """The set of mesh axes that play these program axes, as bits."""
        if axes not in self._masks:
            total: Ints = np.zeros((1, 1), dtype=np.int64)
            for axis in axes:
                total = total | self.masks[axis]
            self._masks[axes] = total
        return self._masks[axes]

    def ways(self, axes: Axes) -> Number:
        """Devices over which these program axes cut."""
        return self.rates.n[self.mask(axes)]

    def size(self, name: str) -> Number:
        """Size of a dim (after padding) or workload quantity."""
        return self.sizes[name]

    def touched(self, slots: Axes) -> Number:
        """Expected share of experts that at least one token chose, of the tokens that meet there (cut by `slots`).

        Tokens choose k of E experts evenly: 1 - (1 - k/E)^tokens.
        """
        experts, k = self.sizes["experts"], self.sizes["k"]
        return 1.0 - (1.0 - k / experts) ** (self.sizes["tokens"] / self.ways(slots))

    def elements(self, tensor: Tensor) -> Number:
        """Elements of the tensor on one device."""
        if tensor.dims not in self._elements:
            still: Number = 1.0
            moving: Number = 1.0
            for dim in tensor.dims:
                size = self.sizes[dim.name] / self.ways(dim.axes) if dim.axes else self.sizes[dim.name]
                if dim.name in ("B", "C"):
                    moving = moving * size
                else:
                    still = still * size
            self._elements[tensor.dims] = still * moving
        return self._elements[tensor.dims]

    def nbytes(self, tensor: Tensor) -> Number:
        """Bytes of the tensor on one device; a softmax triple adds nothing here (see prices.STATISTICS_BYTES)."""
        return self.elements(tensor) * self.widths[self.classes.get(tensor.name, "activation")]

    def is_weight(self, tensor: Tensor) -> bool:
        """Whether the tensor is a weight or made of weights only."""
        return self.classes.get(tensor.name) == "weight"


@dataclass(frozen=True, slots=True)
class CommCost:
    """One collective of a step, priced as what runs: `reduced` is where a ReduceScatter runs as an AllReduce."""

    comm: Comm
    bandwidth_s: Number
    hops_s: Number
    reduced: Flags

    @property
    def seconds(self) -> Number:
        """The longer of the bandwidth and the latency term."""
        return np.maximum(self.bandwidth_s, self.hops_s)


@dataclass(frozen=True, slots=True)
class StepCost:
    """One step, priced on one device."""

    step: Step
    work: Work
    flops_s: Number
    hbm_s: Number
    comms: tuple[CommCost, ...]


def price_steps(scope: ArrayScope, fast: Speeds) -> Iterator[StepCost]:
    """Every step of the scope's program, priced in order."""
    for step in scope.program.steps:
        work = PRIMITIVES[step.op].price(step, scope)
        comms = tuple(_price_comm(comm, scope) for comm in work.comms)
        yield StepCost(step, work, work.flops / fast.flops_per_s, work.hbm_bytes / fast.hbm_bytes_per_s, comms)


def _price_comm(comm: Comm, scope: ArrayScope) -> CommCost:
    mask = scope.mask(comm.axes)
    rate, hops = scope.rates.s_per_byte[comm.kind][mask], scope.rates.hops_s[comm.kind][mask]
    reduced = scope.rates.reduced[mask] & (comm.kind == "ReduceScatter")
    return CommCost(comm, comm.nbytes * rate * comm.times, hops * comm.times, reduced)


@dataclass
class Totals:
    """Sums over a program's steps, in seconds, each [rows, columns]."""

    roof_s: Number = 0.0
    flops_s: Number = 0.0
    hbm_s: Number = 0.0
    ici_s: Number = 0.0
    comm_s: Number = 0.0

    def add(self, cost: StepCost, times: int = 1) -> None:
        """Add a step that runs `times` times."""
        self.roof_s = self.roof_s + times * np.maximum(cost.flops_s, cost.hbm_s)
        self.flops_s = self.flops_s + times * cost.flops_s
        self.hbm_s = self.hbm_s + times * cost.hbm_s
        for comm in cost.comms:
            self.ici_s = self.ici_s + times * comm.bandwidth_s
            self.comm_s = self.comm_s + times * comm.seconds

    @property
    def step_s(self) -> Number:
        """The estimate."""
        return self.roof_s + self.comm_s

    @property
    def lower_bound_s(self) -> Number:
        """Everything overlaps."""
        return np.maximum(self.roof_s, self.comm_s)

    @property
    def upper_bound_s(self) -> Number:
        """Nothing overlaps."""
        return self.flops_s + self.hbm_s + self.comm_s

    @property
    def latency_s(self) -> Number:
        """What hops add to the collectives' bandwidth time."""
        return self.comm_s - self.ici_s


def weight_bytes(scope: ArrayScope) -> Number:
    """Bytes of the program's weights on one device."""
    return sum((scope.nbytes(t) for t in scope.program.arguments if t.name in scope.program.weights), 0.0)


def cache_bytes(scope: ArrayScope) -> Number:
    """Bytes of the program's KV caches on one device: a share `kept` of the entries stays after the step."""
    program = scope.program
    tensors = {t.name: t for s in reversed(program.steps) for t in (*s.outputs, *s.inputs) if t.name in program.cache}
    if not tensors:
        return 0.0
    return sum(scope.nbytes(t) for t in tensors.values()) * scope.size("kept")


def peak_activation_bytes(scope: ArrayScope) -> Number:
    """The most bytes of activations (gathered weights included) that live at once, over the program's steps.

    A step's operands live until their last use; moves and matmuls need source and result at once, everything
    else works in place. A gather of two dims in one collective needs its result twice, once to reorder it.
    """
    program, peak = scope.program, np.zeros((1, 1))
    last = {t.name: i for i, s in enumerate(program.steps) for t in s.inputs} | {
        program.output.name: len(program.steps)
    }
    live: dict[str, Number] = {program.input.name: scope.nbytes(program.input)}
    for number, step in enumerate(program.steps):
        made = {t.name: _made(step, t, scope) for t in step.outputs if t.name not in (*program.weights, *program.cache)}
        sources = {t.name for t in step.inputs}
        others = {name: size for name, size in live.items() if name not in made and name not in sources}
        kept = [
            _beside(step, name, size, scope, last[name] > number and name not in made)
            for name, size in live.items()
            if name in sources
        ]
        peak = np.maximum(peak, sum(made.values()) + sum(others.values()) + sum(kept) + _reordered(step, scope))
        live = {name: size for name, size in {**live, **made}.items() if last.get(name, -1) > number}
    return peak


def _made(step: Step, target: Tensor, scope: ArrayScope) -> Number:
    """Bytes that a step's result adds: none where it only names a stored weight or cache (a gather over nothing)."""
    stored = scope.classes[target.name] in ("weight", "cache")
    return scope.nbytes(target) * ((scope.ways(step.axes) > 1) if stored else 1.0)


def _beside(step: Step, name: str, size: Number, scope: ArrayScope, needed: bool) -> Number:
    """Bytes of a step's operand that live beside its result."""
    if needed or step.op in _READS:
        return size
    return size * (scope.ways(step.axes) > 1) if step.op in _GATHERS else 0.0


def _reordered(step: Step, scope: ArrayScope) -> Number:
    if step.op != "AllGather":
        return 0.0
    total: Number = 0.0
    for source, target in zip(step.inputs, step.outputs, strict=True):
        cut = [scope.ways(d.axes[len(target.axes(d.name)) :]) > 1 for d in source.dims if d.axes != target.axes(d.name)]
        if len(cut) > 1:
            total = total + scope.nbytes(target) * (sum(np.asarray(c, dtype=np.int64) for c in cut) > 1)
    return total


def check_compute(chip: Chip, compute: str) -> None:
    """Raise `InputError` unless the chip has FLOP/s for the compute dtype."""
    if compute not in chip.flops_per_s:
        raise InputError(
            f"{chip.name} has no FLOP/s for the compute dtype '{compute}'; it has {', '.join(chip.flops_per_s)}"
        )
