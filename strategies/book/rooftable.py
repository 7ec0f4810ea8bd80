"""The chapter's step-time table for a model on a slice: what `meshwright roofline` prints.

Everything is cut evenly over the slice and ICI is free. Symbols: B batch, E experts, k experts per token.
Source: Scaling Book ch. 7, "Theoretical Min Step Time" and "Theoretical Step Time (General)".
"""

from collections.abc import Sequence
from typing import Literal

import msgspec

from mesh.errors import InputError
from mesh.slices import Slice
from strategies.book.intensity import critical_batch_tokens, expected_distinct_experts
from strategies.book.roofline import largest_batch, min_step_s
from strategies.models.models import LayerGroup, Model, with_kv_heads
from strategies.models.workload import dtype_bytes


class RooflineRow(msgspec.Struct, frozen=True, kw_only=True):
    """One decode step of `batch` sequences.

    `total_bytes`: caches and all parameters. `step_s`: `min_step_s`, with its throughput. `general_step_s` =
    kv_s + max(weights_s, flops_s). `bound_by`: whether HBM or FLOPs takes the larger part of that. `fits`:
    `total_bytes` against usable HBM (activations are not counted).
    """

    batch: int
    kv_bytes: float
    total_bytes: float
    step_s: float
    tokens_per_s: float
    tokens_per_s_per_chip: float
    kv_s: float
    weights_s: float
    flops_s: float
    general_step_s: float
    bound_by: Literal["hbm", "flops"]
    fits: bool


class RooflineTable(msgspec.Struct, frozen=True, kw_only=True):
    """The rows and every constant they follow from; FLOP/s and HBM are those of the whole slice.

    `kv_heads`: None for the model's own. `critical_batch_tokens`: that of its sparsest layer.
    """

    model: str
    slice: str
    chips: int
    context: int
    weights: str
    kv: str
    compute: str
    kv_heads: int | None
    params: int
    active_params: int
    param_bytes: float
    kv_bytes_per_seq: float
    total_flops_per_s: float
    total_hbm_bytes_per_s: float
    usable_hbm_bytes: float
    critical_batch_tokens: float
    largest_batch: int
    rows: tuple[RooflineRow, ...] = ()


def roofline_table(
    model: Model,
    slice_: Slice,
    *,
    context: int,
    batches: Sequence[int],
    weights: str = "bf16",
    kv: str = "bf16",
    compute: str = "bf16",
    kv_heads: int | None = None,
) -> RooflineTable:
    """The chapter's table; `context` is the tokens in each filled cache.

    As in the chapter, parameters are all of them (a plan prices an untied input embedding as a lookup, so it
    may be faster by that much) and `kv_heads` resizes the cache but not the weights. Unlike there, an MoE
    reads only the experts that the batch is expected to touch.
    """
    for name, value in [("context", context), *(("batch", batch) for batch in batches)]:
        if value < 1:
            raise InputError(f"{name} must be at least 1. Got {name}={value}")
    table = _constants(model, slice_, context, weights, kv, compute, kv_heads)
    return msgspec.structs.replace(table, rows=tuple(_row(table, model, batch) for batch in batches))


def params_read(model: Model, batch: float) -> float:
    """Parameters that a decode step of B tokens reads: of each MoE, the experts it is expected to touch.

    >>> from strategies.models.configs import load_model
    >>> model = load_model("mixtral-8x7b")  # 2 of 8 experts
    >>> params_read(model, 1) == model.active_params, params_read(model, 1000) == model.params
    (True, True)
    """
    return model.params - sum(_unread(group, model.D, batch) for group in model.groups)


def _unread(group: LayerGroup, d: int, batch: float) -> float:
    """Parameters of a layer group's experts that no token of the batch is expected to pick."""
    mlp = group.mlp
    touched = expected_distinct_experts(experts=mlp.E, experts_per_token=mlp.k, tokens=batch)
    expert_params = mlp.params(d, experts=1) - mlp.params(d, experts=0)
    return group.count * (mlp.E - touched) * expert_params


def _constants(
    model: Model, slice_: Slice, context: int, weights: str, kv: str, compute: str, kv_heads: int | None
) -> RooflineTable:
    chip = slice_.chip
    cached = model if kv_heads is None else with_kv_heads(model, kv_heads)
    param_bytes = model.params * dtype_bytes(weights)
    kv_bytes_per_seq = cached.kv_elements(context) * dtype_bytes(kv)
    usable_hbm_bytes = chip.usable_hbm_bytes_per_device * slice_.devices
    sparsest = max((group.mlp for group in model.groups), key=lambda mlp: mlp.E / mlp.k)
    return RooflineTable(
        model=model.name,
        slice=slice_.name,
        chips=slice_.chips,
        context=context,
        weights=weights,
        kv=kv,
        compute=compute,
        kv_heads=kv_heads,
        params=model.params,
        active_params=model.active_params,
        param_bytes=param_bytes,
        kv_bytes_per_seq=kv_bytes_per_seq,
        total_flops_per_s=chip.device_flops_per_s(compute) * slice_.devices,
        total_hbm_bytes_per_s=chip.hbm_bytes_per_s * slice_.chips,
        usable_hbm_bytes=usable_hbm_bytes,
        critical_batch_tokens=critical_batch_tokens(
            flops_per_s=chip.device_flops_per_s(compute),
            hbm_bytes_per_s=chip.device_hbm_bytes_per_s,
            weight_bytes=dtype_bytes(weights),
            experts=sparsest.E,
            experts_per_token=sparsest.k,
        ),
        largest_batch=largest_batch(
            total_hbm_bytes=usable_hbm_bytes, param_bytes=param_bytes, kv_bytes_per_seq=kv_bytes_per_seq
        ),
    )


def _row(table: RooflineTable, model: Model, batch: int) -> RooflineRow:
    kv_bytes = batch * table.kv_bytes_per_seq
    total_bytes = kv_bytes + table.param_bytes
    read_bytes = params_read(model, batch) * dtype_bytes(table.weights)
    kv_s, weights_s = kv_bytes / table.total_hbm_bytes_per_s, read_bytes / table.total_hbm_bytes_per_s
    flops_s = 2 * batch * table.active_params / table.total_flops_per_s
    step_s = min_step_s(
        batch=batch,
        kv_bytes_per_seq=table.kv_bytes_per_seq,
        param_bytes=read_bytes,
        total_hbm_bytes_per_s=table.total_hbm_bytes_per_s,
    )
    return RooflineRow(
        batch=batch,
        kv_bytes=kv_bytes,
        total_bytes=total_bytes,
        step_s=step_s,
        tokens_per_s=batch / step_s,
        tokens_per_s_per_chip=batch / step_s / table.chips,
        kv_s=kv_s,
        weights_s=weights_s,
        flops_s=flops_s,
        general_step_s=kv_s + max(weights_s, flops_s),
        bound_by="flops" if flops_s > max(weights_s, kv_s) else "hbm",
        fits=total_bytes <= table.usable_hbm_bytes,
    )
