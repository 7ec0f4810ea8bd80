"""The book's closed forms of the crossovers: to the ICI bound, and between 1D and 2D weight-stationary MLPs.

"Book" is *How to Scale Your Model* (the Scaling Book), ch. 3, 5 and 7. Symbols: B batch, D d_model, F d_ff,
n chips = X * YZ (X cuts D, YZ cuts F). `ici_bytes_per_s` is the bandwidth of one mesh axis: both directions
of a ring (2W), one direction (W) of a line. The book drops the (n-1)/n of every collective: `limit=True` is
its value, the default the exact one. `mesh.collectives` prices real slices; these forms explain the prices.
"""

import math
from dataclasses import dataclass

from mesh.errors import InputError
from strategies.book.intensity import break_even_uses, checked


def moved_share(*, ways: float, limit: bool = False) -> float:
    """Share of a gathered array that each chip receives: (n-1)/n, or its limit 1 as the book has it.

    >>> moved_share(ways=4), moved_share(ways=4, limit=True)
    (0.75, 1.0)
    """
    return 1.0 if limit else (ways - 1) / ways


# Bounds on how far a model may be cut.


@checked
def tensor_parallel_bound_ways(
    *, f: float, flops_per_s: float, ici_bytes_per_s: float, axes: int = 1, value_bytes: float = 2.0
) -> float:
    """Ways of model parallelism beyond which ICI takes longer than FLOPs: Y = axes * F / (C / W). Book ch. 5.

    Per chip a slice F/Y of the hidden dim must serve each moved activation (`break_even_uses`).

    >>> tensor_parallel_bound_ways(f=20000, flops_per_s=200e12, ici_bytes_per_s=100e9)  # 20000/2000
    10.0
    """
    return f / break_even_uses(flops_per_s=flops_per_s, bytes_per_s=axes * ici_bytes_per_s, value_bytes=value_bytes)


@checked
def generation_ici_bound_ways(
    *,
    f: float,
    batch: float,
    hbm_bytes_per_s: float,
    ici_bytes_per_s: float,
    axes: int = 1,
    weight_bytes: float = 2.0,
    act_bytes: float = 2.0,
) -> float:
    """Ways beyond which ICI takes longer than loading the weights: Y = F / (B * beta). Book ch. 7.

    HBM w*DF/(Y*W_hbm) against ICI a*BD/(axes*W_ici); beta = W_hbm/W_ici.

    >>> generation_ici_bound_ways(f=16384, batch=32, hbm_bytes_per_s=800e9, ici_bytes_per_s=100e9)
    64.0
    """
    return f * weight_bytes * axes * ici_bytes_per_s / (batch * act_bytes * hbm_bytes_per_s)


@checked
def latency_bound_bytes(*, ways: float, link_bytes_per_s: float, hop_s: float = 1e-6) -> float:
    """Bytes of a whole array below which its ring collective is latency-bound: n * W * T_min. Appendix C.

    The rule is per shard, bytes/n < W * T_min, W one way; the chapter's takeaway leaves out the n.

    >>> round(latency_bound_bytes(ways=8, link_bytes_per_s=45e9))
    360000
    """
    return ways * link_bytes_per_s * hop_s


@checked
def latency_bound_ways(
    *, batch: float, d: float, link_bytes_per_s: float, act_bytes: float = 2.0, hop_s: float = 1e-6
) -> float:
    """Ways of model parallelism beyond which activations [B, D] are latency-bound: Y = aBD/(W*T_min). App. C.

    >>> round(latency_bound_ways(batch=45, d=8000, link_bytes_per_s=45e9, act_bytes=1), 6)  # 360000/45000
    8.0
    """
    return act_bytes * batch * d / (link_bytes_per_s * hop_s)


# 1D (Megatron) against 2D weight-stationary MLPs.


@checked
def ws1d_comms_s(
    *,
    batch: float,
    d: float,
    chips: float,
    ici_bytes_per_s: float,
    axes: int = 3,
    act_bytes: float = 2.0,
    limit: bool = False,
) -> float:
    """ICI time of a 1D weight-stationary MLP: AllGather [B, D], then ReduceScatter it, over all axes. Ch. 7.

    2a*BD * (n-1)/n / (axes * W); in bf16 over three axes the book's 4BD/(3W). Gating changes nothing here.

    >>> ws1d_comms_s(batch=10, d=6000, chips=64, ici_bytes_per_s=1e9, limit=True)  # 4*60000/3e9
    8e-05
    """
    share = moved_share(ways=chips, limit=limit)
    return 2 * act_bytes * batch * d * share / (axes * ici_bytes_per_s)


def hidden_passes(*, gated: bool) -> int:
    """Passes over [B, F] to sum it over X: an AllReduce is 2; gated, 2 ReduceScatters and 1 AllGather."""
    return 3 if gated else 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Grid:
    """n = x * yz chips: `x` of them cut D, over `x_axes` mesh axes, and `yz` cut F, over `yz_axes`.

    Raises `InputError` where a number is not positive and finite.
    """

    x: float
    yz: float
    x_axes: int = 1
    yz_axes: int = 2

    def __post_init__(self) -> None:
        for name in ("x", "yz", "x_axes", "yz_axes"):
            if not 0 < getattr(self, name) < math.inf:
                raise InputError(f"{name} must be finite and positive. Got {name}={getattr(self, name)}")


@checked
def ws2d_comms_s(
    *,
    batch: float,
    d: float,
    f: float,
    grid: Grid,
    ici_bytes_per_s: float,
    gated: bool = False,
    act_bytes: float = 2.0,
    limit: bool = False,
) -> float:
    """ICI time of a 2D weight-stationary MLP. Book ch. 7, problem 7 and appendix B.

    AllGather_YZ and ReduceScatter_YZ of [B, D_X], and the sum over X of [B, F_YZ] in `hidden_passes` p:
    2a*BD/(X * yz_axes * W) * (yz-1)/yz + p*a*BF/(YZ * x_axes * W) * (x-1)/x.

    >>> ws2d_comms_s(batch=10, d=6000, f=24000, grid=Grid(x=4, yz=32), ici_bytes_per_s=1e9, limit=True)  # 3e-5 + 3e-5
    6e-05
    """
    model_bytes = 2 * act_bytes * batch * d / grid.x * moved_share(ways=grid.yz, limit=limit)
    hidden_bytes = hidden_passes(gated=gated) * act_bytes * batch * f / grid.yz * moved_share(ways=grid.x, limit=limit)
    return (model_bytes / grid.yz_axes + hidden_bytes / grid.x_axes) / ici_bytes_per_s


@checked
def best_x_ways(*, chips: float, d: float, f: float, gated: bool = False, x_axes: int = 1, yz_axes: int = 2) -> float:
    """X that makes the 2D limit least on n chips: sqrt(2nD * x_axes / (p * F * yz_axes)). Ch. 7, problem 7.

    The two terms are then equal. For F = 4D, not gated, one axis against two: the book's sqrt(n/8).

    >>> best_x_ways(chips=128, d=1, f=4)
    4.0
    """
    return math.sqrt(2 * chips * d * x_axes / (hidden_passes(gated=gated) * f * yz_axes))


@checked
def crossover_chips(
    *, d: float, f: float, gated: bool = False, axes: int = 3, x_axes: int = 1, yz_axes: int = 2
) -> float:
    """Chips above which the 2D limit at its best X beats 1D: n = 2p * (F/D) * axes^2 / (x_axes * yz_axes).

    Both are limits of continuous X without (n-1)/n. For one axis against two it is p * 9 * F/D: not gated
    18 F/D, the book's 32 * (F/D) * (3/4)^2, 72 for F = 4D; gated 27 F/D, 108 for F = 4D. Ch. 7, problem 7.

    >>> crossover_chips(d=1, f=4), crossover_chips(d=1, f=4, gated=True)
    (72.0, 108.0)
    """
    return 2 * hidden_passes(gated=gated) * f / d * axes**2 / (x_axes * yz_axes)
