"""Define one plan as typed values that are read and written as JSON.

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
    """Base of the plan's parts: frozen, by keyword, without unknown fields."""


class CommPlan(Value, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A collective: kind, mesh axes, bytes, how often it runs, and its terms in seconds for all runs.

    `bytes` is the V of the kind's cost formula for one run. `launches` counts its phases. `runs_as` is the kind that
    the slice's compiler makes of it, if that is another one, which is then priced.
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
        """Return the collective's seconds: all terms at reached constants, or the longer one at the data sheet.

        `ici` is a factor by which the ICI bandwidth is multiplied.
        """
        latency_s = self.hops_s if reached is None else self.hops_s + self.launches * reached.launch_s
        return float(collective_s(self.bandwidth_s / ici, latency_s, reached is not None))


class StepPlan(Value, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One line of a bound program on one device.

    Seconds, FLOPs and bytes are of one layer, which runs `layers` times. `behind` is true for a gather of weights,
    which waits for no activation and runs behind its component's matmuls.

    `text` is the line in the book's notation and `op` its operation. `flops_s` and `hbm_s` are the two terms of the
    roofline, `ici_s` and `latency_s` the bandwidth term and the hops and launches of the collectives. `seconds` =
    max(flops_s, hbm_s) + ici_s + latency_s. `bound_by` names the larger of roofline and collectives: `flops` or `hbm`,
    or whichever of `ici` and `latency` is more of the collectives' seconds (`free` where the step takes no time).
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
    """The seconds of one step: lower bound, estimate (`step_s`) and upper bound, and their terms.

    The lower bound is the data sheet's: everything overlaps and every collective uses all links at once. The estimate
    and the upper bound, where nothing overlaps, use the constants that programs reach. `flops_s`, `hbm_s` and `ici_s`
    are sums of bandwidth terms; `latency_s` is the share of hops and launches in the collectives. `hidden_s` is not
    waited for: gathers of weights behind matmuls, and hops and launches while weights are read ahead.
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
    """Bytes per device: weights, KV cache, activations, their total, and the usable HBM.

    `total_bytes` = weights_bytes + kv_bytes + activation_bytes. Activations are the largest temporaries of any
    component, the residual stream and the update added to it; weights include the norms' vectors.
    """

    weights_bytes: float
    kv_bytes: float
    activation_bytes: float
    total_bytes: float
    usable_bytes: float


class Throughput(Value, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Tokens (decoded, or of the prompts) per second.

    `tokens_per_s` = batch x tokens per sequence / step seconds: a decode step gives one token per sequence, a prefill
    step takes the whole prompt.
    """

    tokens_per_s: float
    tokens_per_s_per_chip: float


class Constant(Value, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A hardware number that the plan's cost used, with its source.

    `calibrated` is true where it was fitted to measurements.

    `source` is the text of the chip file about the number, `unit` its unit: FLOP/s, bytes/s, bytes, s or a share.
    """

    name: str
    value: float
    unit: str
    source: str
    calibrated: bool = False


class Accuracy(Value, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The errors of estimates of this chip and phase, at the plan's constants, against measured steps.

    `set` names the data set. `constants` is `chip`, `data-sheet`, or the set itself: fitted to it, and scored on the
    points that each fit left out. `median` and `worst` are relative errors.
    """

    set: str
    constants: str
    points: int
    median: float
    worst: float


class Plan(Value, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One layout of one model on one slice, with its cost, memory and specs.

    `reached` has the constants that the estimate takes programs to reach; None means the data sheet. `prefetch_s` is
    the time by which weights can be read ahead in a layer. `accuracy` is the estimate's error bar; None means
    uncalibrated. `num_slices` such slices, connected by DCN, run the plan, each on a batch of its own; throughput is of
    all of them, everything else (chips, batch, memory) of one. `activation_specs` are for
    `jax.lax.with_sharding_constraint`, in program order: `group/component/Q` is the first type of Q, `Q@2` the next one
    of the same tensor. A first dim U has the partial sums of a sum that is taken later.
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
        """True where the plan's bytes are within the usable HBM."""
        return self.memory.total_bytes <= self.memory.usable_bytes

    @property
    def layout(self) -> Layout:
        """Layout of the plan, from which all else follows with the model, the slice and the batch."""
        return Layout(mesh=self.mesh, residual=self.residual, layouts=self.layouts)

    @property
    def chip_name(self) -> str:
        """Name of the slice's chip."""
        return self.slice.partition(":")[0]

    @property
    def tokens_per_sequence(self) -> int:
        """Tokens of each sequence in a step: the whole prompt in prefill, one in decode."""
        return self.context if self.phase == "prefill" else 1

    def caches(self, component: str) -> dict[str, TensorSpec]:
        """Return the specs of a component's caches, by their names in `specs`."""
        return {n: spec for n, spec in self.specs.items() if spec.is_cache and n.partition("/")[0] == component}
