"""The book's closed forms of the cost of generation: sizes, step time, throughput, serving.

"Book" is *How to Scale Your Model* (the Scaling Book); ch. 7 is the chapter meshwright implements. Symbols:
B batch, L layers, D d_model, F d_ff, V vocab, N query heads, K KV heads, H head dim, E experts, k experts per
token. Arguments are keyword-only and SI: bytes, seconds, FLOP/s. Rooflines of single operations and the
critical batch are in `strategies.book.intensity`, the forms with ICI in `strategies.book.crossover`.
"""

import math
from dataclasses import dataclass, fields

from mesh.errors import InputError
from strategies.book.intensity import checked, roofline_s

# Sizes.


@dataclass(frozen=True, slots=True, kw_only=True)
class Transformer:
    """Layers of one shape, as the book writes them: L, D, F, N, K, H and V.

    `mlp_matrices` is 2 for an MLP that is not gated; `vocab_matrices` is 1 where the embedding is tied. Raises
    `InputError` on a negative size.
    """

    layers: int
    d: int
    f: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int
    mlp_matrices: int = 3
    vocab_matrices: int = 2

    def __post_init__(self) -> None:
        for field in fields(self):
            if not 0 <= getattr(self, field.name) < math.inf:
                value = getattr(self, field.name)
                raise InputError(f"{field.name} must be finite and not negative. Got {field.name}={value}")


@checked
def transformer_params(shape: Transformer, *, experts: int = 1) -> int:
    """Parameters as the book counts them (no norms, biases or router): L*D*(3EF + 2H(N + K)) + 2DV.

    `experts=E` counts all of them, `experts=k` the active ones. Ch. 7.

    >>> small = Transformer(layers=2, d=10, f=40, heads=2, kv_heads=1, head_dim=5, vocab=100)
    >>> transformer_params(small)  # 20*150 + 2000
    5000
    """
    heads = 2 * shape.head_dim * (shape.heads + shape.kv_heads)
    per_layer = shape.d * (shape.mlp_matrices * experts * shape.f + heads)
    return shape.layers * per_layer + shape.vocab_matrices * shape.d * shape.vocab


@checked
def kv_bytes_per_token(*, layers: int, kv_heads: int, head_dim: int, value_bytes: float = 2.0) -> float:
    """Bytes of K and V that one token leaves in the cache: 2 * bytes * H * K * L. Book ch. 7.

    >>> kv_bytes_per_token(layers=40, kv_heads=40, head_dim=128)
    819200.0
    """
    return 2 * value_bytes * head_dim * kv_heads * layers


@checked
def largest_batch(*, total_hbm_bytes: float, param_bytes: float, kv_bytes_per_seq: float) -> int:
    """Sequences whose caches fit beside one copy of the parameters; 0 if not one does. Book ch. 7.

    >>> largest_batch(total_hbm_bytes=100e9, param_bytes=30e9, kv_bytes_per_seq=20e9)
    3
    """
    return max(0, math.floor((total_hbm_bytes - param_bytes) / kv_bytes_per_seq))


@checked
def chips_to_hold(*, total_bytes: float, hbm_bytes: float) -> float:
    """Chips whose HBM together holds `total_bytes`, unrounded. Book ch. 8.

    >>> chips_to_hold(total_bytes=140e9, hbm_bytes=16e9)
    8.75
    """
    return total_bytes / hbm_bytes


@checked
def replicas(*, chips: int, ways: int) -> int:
    """Chips that hold the same piece of an array that is cut `ways` ways, and repeat its FLOPs. Book ch. 3.

    >>> replicas(chips=64, ways=4)
    16
    """
    if chips % ways:
        raise InputError(f"chips={chips} cannot be split evenly into ways={ways} pieces")
    return chips // ways


# Step time and throughput of generation.


@checked
def min_step_s(*, batch: float, kv_bytes_per_seq: float, param_bytes: float, total_hbm_bytes_per_s: float) -> float:
    """Theoretical min step time: (B * KV cache size + parameter size) / total HBM bandwidth. Book ch. 7.

    >>> min_step_s(batch=4, kv_bytes_per_seq=1e9, param_bytes=26e9, total_hbm_bytes_per_s=10e12)
    0.003
    """
    return (batch * kv_bytes_per_seq + param_bytes) / total_hbm_bytes_per_s


@checked
def max_tokens_per_s(
    *, batch: float, kv_bytes_per_seq: float, param_bytes: float, total_hbm_bytes_per_s: float
) -> float:
    """Theoretical max tokens/s: B / min step time. Book ch. 7.

    >>> max_tokens_per_s(batch=4, kv_bytes_per_seq=1e9, param_bytes=28e9, total_hbm_bytes_per_s=16e12)
    2000.0
    """
    return batch * total_hbm_bytes_per_s / (batch * kv_bytes_per_seq + param_bytes)


@checked
def general_step_s(
    *,
    batch: float,
    kv_bytes_per_seq: float,
    params: float,
    param_bytes: float,
    total_flops_per_s: float,
    total_hbm_bytes_per_s: float,
) -> float:
    """Theoretical step time (general): attention, bandwidth-bound, plus the roofline of the rest. Book ch. 7.

    B * KV / W + max(2 * B * P / C, parameter size / W); `params` are those a token uses (MoE: the active).

    >>> general_step_s(batch=1000, kv_bytes_per_seq=1e6, params=1e9, param_bytes=2e9,
    ...                total_flops_per_s=1e15, total_hbm_bytes_per_s=1e12)  # 1 ms + max(2 ms, 2 ms)
    0.003
    """
    attention_s = batch * kv_bytes_per_seq / total_hbm_bytes_per_s
    return attention_s + roofline_s(
        flops=2 * batch * params,
        moved_bytes=param_bytes,
        flops_per_s=total_flops_per_s,
        bytes_per_s=total_hbm_bytes_per_s,
    )


@checked
def queries_per_s_per_chip(*, batch: float, step_s: float, tokens_per_query: float, chips: float) -> float:
    """Queries each chip finishes per second, prefill elsewhere: B / (step * tokens * chips). Book ch. 8.

    >>> queries_per_s_per_chip(batch=40, step_s=0.02, tokens_per_query=500, chips=8)
    0.5
    """
    return batch / (step_s * tokens_per_query * chips)


@checked
def prefill_servers_per_decode_server(
    *, prefill_s: float, batch: float, step_s: float, tokens_per_query: float
) -> float:
    """Prefill servers (one prompt at a time) that keep one decode server of batch B full. Book ch. 8.

    The decode server finishes B / (step * tokens) queries per second, a prefill server 1 / prefill_s.

    >>> prefill_servers_per_decode_server(prefill_s=0.5, batch=40, step_s=0.02, tokens_per_query=500)
    2.0
    """
    return prefill_s * queries_per_s_per_chip(batch=batch, step_s=step_s, tokens_per_query=tokens_per_query, chips=1)


@checked
def model_flops_utilisation(*, flops: float, elapsed_s: float, total_flops_per_s: float) -> float:
    """MFU: useful FLOPs over those the chips could have done meanwhile. Book ch. 4, problem 7.

    >>> model_flops_utilisation(flops=3e15, elapsed_s=10, total_flops_per_s=1e15)
    0.3
    """
    return flops / (elapsed_s * total_flops_per_s)
