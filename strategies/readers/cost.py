"""The cost reader: what a program's steps take on a mesh, on numbers or on arrays of assignments at once.

    step_s        = sum over steps of max(FLOPs time, HBM time) + sum of collectives      (the estimate)
                    less what overlaps: the rule and its reason are in `strategies.readers.overlap`
    lower_bound_s = max(the first sum, the second)             everything overlaps
    upper_bound_s = FLOPs + HBM + collectives                  nothing overlaps

At what programs reach (`Chip.reached`) a collective takes launches + hops x hop latency + bytes / bandwidth, one torus
axis after the other; at the data sheet max(bytes / bandwidth, hops x hop latency), all axes at once.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache

import numpy as np

from mesh.chips import Chip
from mesh.errors import InputError
from strategies.kinds import KINDS
from strategies.models.workload import Dtypes, dtype_bytes
from strategies.notation import Axes, Program, Step, Tensor
from strategies.prices import Comm, Number, Work
from strategies.primitives import PRIMITIVES
from strategies.readers.axis_sets import Masks
from strategies.readers.overlap import behind_s, collective_s, room_s
from strategies.readers.rates import Flags, Ints, Rates

INDEX_BYTES, STATISTIC_BYTES = 4.0, 4.0


@dataclass(frozen=True, slots=True)
class Speeds:
    """The speeds of one device: FLOP/s in the compute dtype, HBM bytes/s, and bytes per element by tensor class.

    `prefetch_s`: how long HBM can be read ahead in a layer, into half of VMEM; 0 where VMEM's size is not known.
    """

    flops_per_s: float
    hbm_bytes_per_s: float
    widths: Mapping[str, float]
    prefetch_s: float = 0.0


def speeds(chip: Chip, dtypes: Dtypes) -> Speeds:
    """The speeds that a chip's device reaches for these dtypes: the data sheet's where the chip does not say.

    Raises `InputError` on a dtype the chip cannot compute in.
    """
    widths = {
        "weight": dtype_bytes(dtypes.weights),
        "cache": dtype_bytes(dtypes.kv),
        "activation": dtype_bytes(dtypes.activations),
        "index": INDEX_BYTES,
        "statistic": STATISTIC_BYTES,
    }
    matmul, hbm = (chip.reached.matmul, chip.reached.hbm) if chip.reached else (1.0, 1.0)
    ahead_s = (chip.vmem_bytes or 0) / 2 / (hbm * chip.hbm_bytes_per_s) if chip.reached else 0.0
    flops_per_s, bytes_per_s = chip.device_flops_per_s(dtypes.compute), chip.device_hbm_bytes_per_s
    return Speeds(matmul * flops_per_s, hbm * bytes_per_s, widths, ahead_s)


def data_sheet_speeds(fast: Speeds, chip: Chip) -> Speeds:
    """The data sheet's speeds of a chip whose devices reach `fast`."""
    if chip.reached is None:
        return fast
    return Speeds(fast.flops_per_s / chip.reached.matmul, fast.hbm_bytes_per_s / chip.reached.hbm, fast.widths)


@cache
def classes(program: Program) -> dict[str, str]:
    """The class of each tensor name: weight, cache, index, statistic or activation.

    What a collective or Slice makes of a weight or cache (a gathered weight, say) stays of that class.
    """
    known = dict.fromkeys(program.weights, "weight") | dict.fromkeys(program.cache, "cache")
    known |= dict.fromkeys((name for name in program.index if name in ("pos", "tok")), "index")
    for step in program.steps:
        made = PRIMITIVES[step.op].made
        for number, target in enumerate(step.outputs):
            kept = known.get(step.inputs[number].name, "activation") if made == "operand" else made
            known.setdefault(target.name, kept)
    return known


class ArrayScope:
    """A `prices.Scope` over many assignments, or over one: masks of mesh axes per program axis, [rows, 1]."""

    def __init__(
        self,
        program: Program,
        masks: Masks,
        sizes: Mapping[str, Number],
        rates: Rates,
        widths: Mapping[str, float],
    ) -> None:
        self.program, self.masks, self.sizes, self.rates, self.widths = program, masks, sizes, rates, widths
        self.classes = classes(program)
        self._elements: dict[object, Number] = {}

    def take(self, rows: Ints, columns: Ints | None = None) -> ArrayScope:
        """A scope over these rows only, and these columns (None: all)."""
        sizes = {name: _part(size, rows, columns) for name, size in self.sizes.items()}
        return ArrayScope(self.program, self.masks.take(rows), sizes, self.rates, self.widths)

    def mask(self, axes: Axes) -> Ints:
        """The set of mesh axes bound to these program axes, as bits."""
        return self.masks.union(axes)

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
        """Return whether the tensor is a weight or made of weights only."""
        return self.classes.get(tensor.name) == "weight"


def _part(size: Number, rows: Ints, columns: Ints | None) -> Number:
    if not isinstance(size, np.ndarray) or size.ndim < 2:
        return size
    size = size[rows] if len(size) > 1 else size
    return size[:, columns] if columns is not None and size.shape[1] > 1 else size


@dataclass(frozen=True, slots=True)
class CommCost:
    """One collective of a step, priced as what runs: `reduced` is where a ReduceScatter runs as an AllReduce."""

    comm: Comm
    bandwidth_s: Number
    latency_s: Number
    reduced: Flags
    additive: bool

    @property
    def seconds(self) -> Number:
        """Both terms, or the longer of the two: see `Rates.additive`."""
        return collective_s(self.bandwidth_s, self.latency_s, self.additive)


@dataclass(frozen=True, slots=True)
class StepCost:
    """One step, priced on one device; `behind`: a gather of weights, which waits for no activation.

    `reads_ahead`: a matmul, whose weights can be read while collectives' hops pass.
    """

    step: Step
    work: Work
    flops_s: Number
    hbm_s: Number
    comms: tuple[CommCost, ...]
    behind: bool
    reads_ahead: bool

    @property
    def spare_s(self) -> Number:
        """HBM time beyond the FLOPs' of a matmul: what its weights, read ahead, would not take when it runs."""
        return np.maximum(self.hbm_s - self.flops_s, 0.0) if self.reads_ahead else 0.0


def price_steps(scope: ArrayScope, fast: Speeds) -> Iterator[StepCost]:
    """Every step of the scope's program, priced in order.

    Each `StepCost` has FLOPs, HBM bytes and seconds on one device, [rows, columns] where the scope is of many
    assignments and batches, and the collectives of the step with their V in bytes.
    """
    return (price_step(step, scope, fast) for step in scope.program.steps)


def price_step(step: Step, scope: ArrayScope, fast: Speeds) -> StepCost:
    """One step of the scope's program, priced.

    Raises `ValueError` where its price asks for a kind of collective that its primitive does not name.
    """
    primitive = PRIMITIVES[step.op]
    work = primitive.price(step, scope)
    for comm in work.comms:
        if comm.kind not in primitive.collectives:
            raise ValueError(f"the price of {step.op} asks for a collective that its primitive lacks: {comm.kind}")
    comms = tuple(_price_comm(comm, scope) for comm in work.comms)
    behind = primitive.hides and scope.rates.additive and all(map(scope.is_weight, step.inputs))
    flops_s, hbm_s = work.flops / fast.flops_per_s, work.hbm_bytes / fast.hbm_bytes_per_s
    return StepCost(step, work, flops_s, hbm_s, comms, behind, primitive.reads_ahead)


def _price_comm(comm: Comm, scope: ArrayScope) -> CommCost:
    mask = scope.mask(comm.axes)
    rates = scope.rates
    reduced = rates.reduced[mask] & (KINDS[comm.kind].whole_as is not None)
    bandwidth_s = comm.nbytes * rates.s_per_byte[comm.kind][mask] * comm.times
    return CommCost(comm, bandwidth_s, rates.latency_s[comm.kind][mask] * comm.times, reduced, rates.additive)


@dataclass
class Totals:
    """Sums over a program's steps, in seconds, each [rows, columns]: of FLOPs or HBM time, and of collectives.

    Of `comm_s`, `behind_s` are gathers of weights, and `wait_s` the other collectives' hops and launches, which may
    hide behind reading weights ahead, for as long as `spare_s`.
    """

    roof_s: Number = 0.0
    comm_s: Number = 0.0
    behind_s: Number = 0.0
    wait_s: Number = 0.0
    spare_s: Number = 0.0

    def add(self, cost: StepCost, times: int = 1) -> None:
        """Add a step that runs `times` times."""
        self.roof_s = self.roof_s + times * np.maximum(cost.flops_s, cost.hbm_s)
        if cost.reads_ahead:
            self.spare_s = self.spare_s + times * cost.spare_s
        for comm in cost.comms:
            self.comm_s = self.comm_s + times * comm.seconds
            if cost.behind:
                self.behind_s = self.behind_s + times * comm.seconds
            elif comm.additive:
                self.wait_s = self.wait_s + times * comm.latency_s

    def add_rows(self, other: Totals, row: Ints) -> None:
        """Add other totals, of which row `row[i]` is for row i."""
        for name in ("roof_s", "comm_s", "behind_s", "wait_s", "spare_s"):
            own, more = getattr(self, name), getattr(other, name)
            if isinstance(more, np.ndarray) and len(more) > 1:
                more = more.take(row, axis=0)
                if isinstance(own, np.ndarray) and own.shape == more.shape:
                    more += own
                    own = 0.0
            elif not np.any(more):
                continue
            setattr(self, name, more if isinstance(own, float) and not own else own + more)

    @property
    def step_s(self) -> Number:
        """The estimate, before anything is read ahead."""
        return self.roof_s + self.comm_s - behind_s(self.roof_s, self.behind_s)

    def room_s(self, prefetch_s: float) -> Number:
        """Return how long weights can be read ahead: while VMEM has room, and not in time that gathers fill already."""
        return room_s(self.roof_s, self.behind_s, self.spare_s, prefetch_s)

    @property
    def lower_bound_s(self) -> Number:
        """Everything overlaps."""
        return np.maximum(self.roof_s, self.comm_s)


def check_compute(chip: Chip, compute: str) -> None:
    """Raise `InputError` unless the chip has FLOP/s for the compute dtype."""
    if compute not in chip.flops_per_s:
        raise InputError(
            f"{chip.name} has no FLOP/s for the compute dtype '{compute}'; it has {', '.join(chip.flops_per_s)}"
        )
