"""The built-in models in a table, and one model in full."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from msgspec import to_builtins

from meshwright.reports.text import Block, Lines, TextTable
from strategies.models.models import LayerGroup, Model

_COUNTS = ("layers", "N", "K", "H", "F", "E", "k")


def models(every: Iterable[Model]) -> Sequence[Block]:
    """Return one row per model."""
    headers = ("model", "params 1e9", "active", "D", "V", *_COUNTS, "attention", "max context")
    legend = (
        "D model width, V vocabulary, N query heads, K KV heads, H head dim, F MLP width, E experts, "
        "k experts per token; --wide: attention and context, too; `meshwright models NAME` shows one in full"
    )
    return [TextTable("", headers, [_row(model) for model in every], wide=frozenset({12, 13})), Lines("", [legend])]


def _row(model: Model) -> list[str]:
    counts = [_merged(column) for column in zip(*map(_counts, model.groups), strict=True)]
    kinds = _merged([_attention(group) for group in model.groups])
    sizes = [_billions(model.params), _billions(model.active_params), str(model.D), str(model.V)]
    return [model.name, *sizes, str(model.L), *counts[1:], kinds, str(model.max_context or "-")]


def _merged(values: Sequence[str]) -> str:
    return " / ".join(dict.fromkeys(values))


def _counts(group: LayerGroup) -> list[str]:
    a, mlp = group.attention, group.mlp
    experts = [str(mlp.E), str(mlp.k)] if mlp.moe else ["-", "-"]
    return [*map(str, (group.count, a.N, a.K, a.H, mlp.F)), *experts]


def _attention(group: LayerGroup) -> str:
    window = group.attention.window
    return ("full" if window is None else f"window {window}") + (", parallel block" if group.parallel else "")


def _billions(count: int) -> str:
    return f"{count / 1e9:,.3f}"


def model(one: Model) -> Sequence[Block]:
    """Return one model in full."""
    headers = ("group", *_COUNTS, "MLP", "attention", "also", "parameters per layer, 1e6")
    rows = [_group_row(number, group, one.D) for number, group in enumerate(one.groups)]
    return [Lines(one.name, _facts(one)), TextTable("Layer groups", headers, rows)]


def as_value(one: Model) -> dict[str, Any]:
    """Return a model as JSON has it: its shape, and the counts that follow from it, as the tables give them."""
    return {
        **to_builtins(one),
        "layers": one.L,
        "params": one.params,
        "active_params": one.active_params,
        "matmul_params": one.matmul_params,
        "embedding_params": one.embedding_params,
        "kv_elements_per_token": one.kv_elements_per_token,
        "kv_bytes_per_token_bf16": 2 * one.kv_elements_per_token,
        "hash": one.digest,
    }


def _group_row(number: int, group: LayerGroup, D: int) -> list[str]:
    attention, mlp = group.attention, group.mlp
    also = [name for name in ("qk_norm", "qkv_bias", "o_bias", "sinks") if getattr(attention, name)]
    also += ["MLP bias"] if mlp.bias else []
    kind = "gated" if mlp.gated else "plain"
    params = f"{group.layer_params(D) / 1e6:,.2f}"
    return [str(number), *_counts(group), kind, _attention(group), ", ".join(also) or "-", params]


def _facts(one: Model) -> list[str]:
    tied = "one matrix for both" if one.tied else "two matrices"
    return [
        f"parameters: {one.params:,}; active per token {one.active_params:,}, in matmuls {one.matmul_params:,}",
        f"D {one.D}, V {one.V}, {one.L} layers; embedding and unembedding: {tied}, {one.embedding_params:,} parameters",
        f"KV cache: {one.kv_elements_per_token:,} elements per token while inside every window "
        f"({2 * one.kv_elements_per_token:,} bytes in bf16)",
        f"norm: {one.norm}; max context: {one.max_context or 'not said'}",
        f"source: {one.source or 'not said'}",
        f"hash: {one.digest}",
    ]
