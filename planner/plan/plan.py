"""One plan: what it says, as typed values that are read and written as JSON.

Everything is SI (bytes, seconds, FLOP/s) and per device where not said otherwise.
"""

from __future__ import annotations

import msgspec

from mesh.chips import Reached
from strategies.layout import ComponentLayout, Layout, MeshAxes
from strategies.models.models import Model
from strategies.models.workload import Dtypes
from strategies.readers.overlap import collective_s
from strategies.readers.specs import TensorSpec


class Value(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base of the plan's parts: frozen, by keyword, no unknown fields."""


class CommPlan(Value, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A collective: kind, mesh axes, the bytes V of its formula, how often it runs, and its terms for all runs.

    `launches`: its phases. `runs_as`: the kind that the slice's compiler makes of it, if another; priced so.
    """

    kind: str
    axes: tuple[str, ...]
    bytes: float
    times: int
    bandwidth_s: float
    hops_s: float
    launches: int
    runs_as: str | None = None

    def seconds(self, reached: Reached | None, ici: float = 1.0) -> float:
        """All terms at what programs reach, or the longer one at the data sheet; `ici`: times the bandwidth."""
        latency_s = self.hops_s if reached is None else self.hops_s + self.launches * reached.launch_s
        return float(collective_s(self.bandwidth_s / ici, latency_s, reached is not None))


class StepPlan(Value, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One line of a bound program on one device; seconds are of one layer, which runs `layers` times.

    `behind`: a gather of weights, which waits for no activation and runs behind its component's matmuls.
    """

    component: str
    part: str
    layers: int
    text: str
    op: str
    flops: float
    hbm_bytes: float
    comms: tuple[CommPlan, ...]
    flops_s: float
    hbm_s: float
    ici_s: float
    latency_s: float
    seconds: float
    bound_by: str
    behind: bool = False


class Cost(Value, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Seconds of one step: lower bound, estimate, upper bound, and what they are made of.

    The lower bound is the data sheet's: everything overlaps and every collective uses all links at once. The estimate
    and the upper bound, where nothing overlaps, are at what programs reach. flops_s, hbm_s and ici_s are the
    estimate's sums of bandwidth terms; latency_s is what hops and launches add to the collectives. hidden_s of it all
    is not waited for: gathers of weights behind matmuls, hops and launches while weights are read ahead.
    """

    lower_bound_s: float
    step_s: float
    upper_bound_s: float
    flops_s: float
    hbm_s: float
    ici_s: float
    latency_s: float
    hidden_s: float
    bound_by: str
    steps: tuple[StepPlan, ...]


class Memory(Value, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Bytes per device."""

    weights_bytes: float
    kv_bytes: float
    activation_bytes: float
    total_bytes: float
    usable_bytes: float


class Throughput(Value, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Tokens (decoded, or of the prompts) per second."""

    tokens_per_s: float
    tokens_per_s_per_chip: float


class Constant(Value, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A hardware number that the plan's cost used, and where it is from."""

    name: str
    value: float
    unit: str
    source: str
    calibrated: bool = False


class Accuracy(Value, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Errors of estimates of this chip and phase at the plan's constants, against measured steps of a data set.

    `constants`: `chip`, `data-sheet`, or the set itself: fitted to it, and scored on what each fit left out.
    """

    set: str
    constants: str
    points: int
    median: float
    worst: float


class Plan(Value, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One layout of one model on one slice, with what it costs and why.

    `reached`: what the estimate takes programs to reach; None: the data sheet. `prefetch_s`: how long weights can be
    read ahead in a layer. `accuracy`: the estimate's error bar; None: it is uncalibrated.
    `num_slices`: so many such slices, joined by DCN, run the plan, each on a batch of its own; throughput is of all,
    everything else (chips, batch, memory) of one.
    `activation_specs` are for `jax.lax.with_sharding_constraint`, in program order: `group/component/Q` is the first
    type of Q, `Q@2` the next one of the same tensor. A first dim U holds the parts of a sum that is taken later.
    """

    model: Model
    model_hash: str
    slice: str
    reached: Reached | None
    prefetch_s: float
    accuracy: Accuracy | None
    chips: int
    devices: int
    phase: str
    batch: int
    padded_batch: int
    context: int
    dtypes: Dtypes
    mesh: MeshAxes
    residual: dict[str, tuple[str, ...]]
    layouts: tuple[ComponentLayout, ...]
    specs: dict[str, TensorSpec]
    activation_specs: dict[str, TensorSpec]
    padded: dict[str, tuple[int, int]]
    cost: Cost
    memory: Memory
    throughput: Throughput
    constants: tuple[Constant, ...]
    num_slices: int = 1

    @property
    def fits(self) -> bool:
        """Return whether the plan's bytes are within usable HBM."""
        return self.memory.total_bytes <= self.memory.usable_bytes

    @property
    def layout(self) -> Layout:
        """Its layout: what all else follows from, with the model, the slice and the batch."""
        return Layout(mesh=self.mesh, residual=self.residual, layouts=self.layouts)

    @property
    def chip_name(self) -> str:
        """The name of its slice's chip."""
        return self.slice.partition(":")[0]

    @property
    def tokens_per_sequence(self) -> int:
        """Tokens of each sequence that a step takes: the whole prompt in prefill, one in decode."""
        return self.context if self.phase == "prefill" else 1

    def caches(self, component: str) -> dict[str, TensorSpec]:
        """The specs of a component's caches, by their names in `specs`."""
        return {n: spec for n, spec in self.specs.items() if spec.is_cache and n.partition("/")[0] == component}
