"""The workload: phase, batch, context and dtypes, and the sizes of a layer's dims that follow from them."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

import msgspec

from mesh.errors import InputError
from strategies.models.models import LayerGroup, Model

LARGEST_CONTEXT = 100_000_000
LARGEST_BATCH = 10_000_000
CACHE_STEP = 256
"""Slots of a cache come in whole steps of so many: see `cache_slots`."""
DTYPE_BYTES: Mapping[str, float] = MappingProxyType({"f32": 4, "bf16": 2, "f16": 2, "fp8": 1, "int8": 1, "int4": 0.5})
"""Bytes of a value of each dtype that weights, caches and activations may have."""


def dtype_bytes(name: str) -> float:
    """Bytes of one value of dtype `name`.

    >>> dtype_bytes("bf16"), dtype_bytes("int4")
    (2, 0.5)
    """
    try:
        return DTYPE_BYTES[name]
    except KeyError:
        known = ", ".join(DTYPE_BYTES)
        raise InputError(f"dtype {name!r} is not known; expected one of: {known}") from None


class Dtypes(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Names of the dtypes of weights, KV cache and activations, and of the matmuls' inputs (`compute`)."""

    weights: str = "bf16"
    kv: str = "bf16"
    activations: str = "bf16"
    compute: str = "bf16"

    def __post_init__(self) -> None:
        for name in (self.weights, self.kv, self.activations):
            dtype_bytes(name)


class Workload(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One phase at given batches. Context: tokens in the filled cache (decode), or the prompt (prefill)."""

    phase: str
    batches: tuple[int, ...]
    context: int
    dtypes: Dtypes

    def __post_init__(self) -> None:
        if self.phase not in ("decode", "prefill"):
            raise InputError(f"phase '{self.phase}' is not known; expected decode or prefill")
        check_count("context", self.context, LARGEST_CONTEXT)
        if not self.batches:
            raise InputError("no batch given; expected at least one, such as 64 or 1,8,64")
        for batch in self.batches:
            check_count("batch", batch, LARGEST_BATCH)

    @property
    def tokens_per_sequence(self) -> int:
        """Tokens of each sequence that a step takes: the whole prompt in prefill, one in decode."""
        return self.context if self.phase == "prefill" else 1


def check_count(name: str, value: int, largest: int) -> None:
    """Raise `InputError` unless 1 <= value <= largest."""
    if not 1 <= value <= largest:
        raise InputError(f"{name} {value}: expected a whole number from 1 to {largest}")


def cache_slots(tokens: int) -> int:
    """Slots of a cache that serves requests of so many tokens: whole steps of `CACHE_STEP`.

    The TPU compiler copies an int8 cache of 2300 slots (2.4 GB of temporaries), and one of 2304 not (libtpu 0.0.42).

    >>> cache_slots(2300)
    2304
    """
    return -(-tokens // CACHE_STEP) * CACHE_STEP


def layer_dims(model: Model, group: LayerGroup, work: Workload) -> dict[str, float]:
    """Sizes of a layer's dims, without the batch: `S` = keys held in the step, `kept` = their share
    that stays cached after it, `attended` = mean keys that a query sees.

    A sliding window of w tokens holds and attends at most w. Under a causal mask the mean over a prompt of T
    tokens is (T + 1)/2, or w - w(w - 1)/(2T) with a window w < T.
    """
    attention, mlp, context = group.attention, group.mlp, work.context
    held = min(context, attention.window or context)
    dims: dict[str, float] = {
        "D": model.D,
        "N": attention.N,
        "K": attention.K,
        "M": attention.N // attention.K,
        "H": attention.H,
        "F": mlp.F,
        "E": mlp.E,
        "experts": mlp.E,
        "k": mlp.k,
    }
    if work.phase == "decode":
        return dims | {"S": held, "kept": 1.0, "attended": held}
    attended = held - held * (held - 1) / (2 * context)
    return dims | {"T": context, "S": context, "kept": held / context, "attended": attended}


def vocab_dims(model: Model, work: Workload) -> dict[str, float]:
    """Sizes of the dims of embedding and unembedding, without the batch."""
    dims: dict[str, float] = {"D": model.D, "V": model.V}
    return dims if work.phase == "decode" else dims | {"T": work.context}


def features(group: LayerGroup) -> frozenset[str]:
    """The `when` conditions of programs that this layer meets."""
    names = {"gated" if group.mlp.gated else "plain"}
    names |= {name for name in ("qk_norm", "qkv_bias", "o_bias") if getattr(group.attention, name)}
    return frozenset(names)
