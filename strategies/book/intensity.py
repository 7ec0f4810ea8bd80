"""Arithmetic intensity and rooflines of single operations: the book's closed forms, one equation each.

"Book" is *How to Scale Your Model* (the Scaling Book); ch. 7 is the chapter meshwright implements. Symbols:
B batch, T/S sequence, D d_model, F d_ff, N query heads, K KV heads, E experts, k experts per token. Arguments
are keyword-only and SI: bytes, seconds, FLOP/s. A negative or infinite one or a zero divisor: `InputError`.
"""

import functools
import math
from collections.abc import Callable
from typing import ParamSpec, TypeVar

from mesh.errors import InputError

P = ParamSpec("P")
R = TypeVar("R")


def checked(formula: Callable[P, R]) -> Callable[P, R]:
    """Make a negative, infinite or zero-divisor argument of a closed form an `InputError` that names it."""

    @functools.wraps(formula)
    def wrapper(*args: P.args, **kwargs: P.kwargs) -> R:
        for name, value in kwargs.items():
            if isinstance(value, int | float) and not 0 <= value < math.inf:
                raise InputError(f"{name} must be finite and not negative. Got {name}={value}")
            if value == 0 and name.endswith("_per_s"):
                raise InputError(f"{name} must be positive. Got {name}={value}")
        try:
            return formula(*args, **kwargs)
        except ZeroDivisionError:
            zeros = ", ".join(f"{name}={value}" for name, value in kwargs.items() if value == 0)
            raise InputError(f"{formula.__name__}: divisors must be positive. Got {zeros}") from None

    return wrapper


# Rooflines: FLOPs time against the time to move bytes.


@checked
def roofline_s(*, flops: float, moved_bytes: float, flops_per_s: float, bytes_per_s: float) -> float:
    """Seconds of work whose FLOPs and bytes overlap: max(FLOPs / C, bytes / W). Book ch. 1.

    >>> roofline_s(flops=6e12, moved_bytes=8e9, flops_per_s=2e12, bytes_per_s=4e9)
    3.0
    """
    return max(flops / flops_per_s, moved_bytes / bytes_per_s)


@checked
def break_even_uses(*, flops_per_s: float, bytes_per_s: float, value_bytes: float = 2.0) -> float:
    """Multiply-adds each moved value must serve for FLOPs to take as long as moving it.

    A value used u times costs 2u FLOPs and `value_bytes` moved bytes: 2u/C = value_bytes/W. Over HBM u is the
    critical batch; over ICI it is the least slice of a contracted or hidden dim per chip. Book ch. 1.

    >>> break_even_uses(flops_per_s=200e12, bytes_per_s=50e9)  # bf16: just C/W
    4000.0
    """
    return value_bytes * flops_per_s / (2 * bytes_per_s)


@checked
def critical_batch_tokens(
    *,
    flops_per_s: float,
    hbm_bytes_per_s: float,
    weight_bytes: float = 2.0,
    experts: int = 1,
    experts_per_token: int = 1,
) -> float:
    """B_crit: tokens per replica above which matmuls with D, F >> B are compute-bound. Book ch. 7 and ch. 4.

    B_crit = (weight_bytes / 2) * (C / W) * (E / k), C being the FLOP/s of the dtype that is multiplied. The
    book's form beta * alpha, beta = bits per param / bits per activation, is the same thing with alpha taken
    at the bf16 FLOP/s, for chips that double FLOP/s as they halve the bits.

    >>> critical_batch_tokens(flops_per_s=200e12, hbm_bytes_per_s=0.8e12)  # bf16
    250.0
    >>> critical_batch_tokens(flops_per_s=200e12, hbm_bytes_per_s=0.8e12, weight_bytes=1)  # int8 weights
    125.0
    >>> critical_batch_tokens(flops_per_s=200e12, hbm_bytes_per_s=0.8e12, experts=16, experts_per_token=2)
    2000.0
    """
    uses = break_even_uses(flops_per_s=flops_per_s, bytes_per_s=hbm_bytes_per_s, value_bytes=weight_bytes)
    return uses * experts / experts_per_token


@checked
def matmul_flops(*, batch: float, d: float, f: float) -> float:
    """FLOPs of [B, D] * [D, F] -> [B, F]: 2BDF.

    >>> matmul_flops(batch=2, d=3, f=5)
    60
    """
    return 2 * batch * d * f


@checked
def matmul_bytes(
    *,
    batch: float,
    d: float,
    f: float,
    weight_bytes: float = 2.0,
    act_bytes: float = 2.0,
    out_bytes: float = 2.0,
) -> float:
    """Bytes that [B, D] * [D, F] -> [B, F] reads and writes: a*BD + w*DF + o*BF. Book ch. 1.

    >>> matmul_bytes(batch=2, d=3, f=5, weight_bytes=1)  # int8 weights: 12 + 15 + 20
    47.0
    """
    return act_bytes * batch * d + weight_bytes * d * f + out_bytes * batch * f


@checked
def matmul_s(
    *,
    batch: float,
    d: float,
    f: float,
    flops_per_s: float,
    hbm_bytes_per_s: float,
    weight_bytes: float = 2.0,
    act_bytes: float = 2.0,
    out_bytes: float = 2.0,
) -> float:
    """Seconds of [B, D] * [D, F] -> [B, F] on one chip: its roofline with every byte counted. Book ch. 1.

    >>> matmul_s(batch=1, d=1000, f=1000, flops_per_s=1e12, hbm_bytes_per_s=1e9)  # 2.004e6 bytes
    0.002004
    """
    moved_bytes = matmul_bytes(
        batch=batch, d=d, f=f, weight_bytes=weight_bytes, act_bytes=act_bytes, out_bytes=out_bytes
    )
    return roofline_s(
        flops=matmul_flops(batch=batch, d=d, f=f),
        moved_bytes=moved_bytes,
        flops_per_s=flops_per_s,
        bytes_per_s=hbm_bytes_per_s,
    )


@checked
def exact_critical_batch_tokens(
    *,
    d: float,
    f: float,
    flops_per_s: float,
    hbm_bytes_per_s: float,
    weight_bytes: float = 2.0,
    act_bytes: float = 2.0,
    out_bytes: float = 2.0,
) -> float:
    """B at which the FLOPs of one matmul take as long as all its bytes; infinite where they never do.

    Solves 2BDF/C = (a*BD + w*DF + o*BF)/W for B: wDF / (2DF*W/C - aD - oF). Book ch. 1, problem 3.

    >>> exact_critical_batch_tokens(d=1000, f=1000, flops_per_s=200e12, hbm_bytes_per_s=1e12)  # 2e6/6e3
    333.3333333333333
    >>> exact_critical_batch_tokens(d=100, f=100, flops_per_s=200e12, hbm_bytes_per_s=1e12)
    inf
    """
    spare_bytes = 2 * d * f * hbm_bytes_per_s / flops_per_s - act_bytes * d - out_bytes * f  # per token
    return weight_bytes * d * f / spare_bytes if spare_bytes > 0 else math.inf


@checked
def expected_distinct_experts(*, experts: int, experts_per_token: int, tokens: float) -> float:
    """Experts that B tokens touch when each picks k of E evenly at random: E * (1 - (1 - k/E)^B).

    These are the experts whose weights a decode step reads; all of them once B is a few times E/k.

    >>> expected_distinct_experts(experts=4, experts_per_token=2, tokens=2)  # 2, 3 or 4 of 4
    3.0
    """
    return experts * (1 - math.pow(1 - experts_per_token / experts, tokens))


@checked
def attention_intensity_flops_per_byte(
    *, tokens: float, context: float, group: float = 1, act_bytes: float = 2.0, kv_value_bytes: float = 2.0
) -> float:
    """Arithmetic intensity of attention: T query tokens on S cached ones, G = N/K query heads per KV head.

    4TSG FLOPs per KV head and head dim over 2a*TG (q in, o out) + 2v*S (K and V) bytes; in bf16 TSG/(TG + S),
    so prefill (S = T) gives TG/(G + 1), MHA T/2, and decode goes to G. Book ch. 7; ch. 4, problem 4.

    >>> attention_intensity_flops_per_byte(tokens=512, context=512)
    256.0
    >>> round(attention_intensity_flops_per_byte(tokens=1, context=8192, group=8), 2)
    7.99
    """
    return 2 * tokens * context * group / (act_bytes * tokens * group + kv_value_bytes * context)
