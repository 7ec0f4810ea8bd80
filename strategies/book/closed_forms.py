"""The chapter's closed forms for a model on a slice: what `meshwright book` prints, and the function of each.

They are the book's arithmetic, at the data sheet and in the limit of large n; a plan prices what really runs. Symbols:
B batch, D model width, F MLP width, N query heads, K KV heads, S context.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import msgspec

from mesh.slices import Slice, TorusAxis
from strategies.book.crossover import (
    best_x_ways,
    crossover_chips,
    generation_ici_bound_ways,
    latency_bound_bytes,
    latency_bound_ways,
    tensor_parallel_bound_ways,
)
from strategies.book.intensity import attention_intensity_flops_per_byte, break_even_uses, critical_batch_tokens
from strategies.book.roofline import Transformer, kv_bytes_per_token, transformer_params
from strategies.models.models import LayerGroup, Model
from strategies.models.workload import Dtypes, Workload, dtype_bytes


class ClosedForm(msgspec.Struct, frozen=True, kw_only=True):
    """One number: what it is, its unit, and the function of `strategies.book` that computes it."""

    name: str
    value: float
    unit: str
    function: str


class ClosedForms(msgspec.Struct, frozen=True, kw_only=True):
    """The forms of a model on a slice, and what they follow from.

    `ici_bytes_per_s`: of the slowest mesh axis, both ways round a ring, one way along a line; None without links.
    """

    model: str
    slice: str
    batch: int
    context: int
    dtypes: Dtypes
    flops_per_s: float
    hbm_bytes_per_s: float
    ici_bytes_per_s: float | None
    forms: tuple[ClosedForm, ...]


def closed_forms(model: Model, slice_: Slice, *, batch: int, context: int, dtypes: Dtypes) -> ClosedForms:
    """The chapter's closed forms, per device of the slice.

    Of a model whose layers differ, the layer that is the first to be bound counts: the sparsest for the critical
    batch, the narrowest MLP for ICI, the fewest query heads per KV head for attention.
    Raises `InputError` on a batch or context out of range, or a dtype that the chip cannot compute in.

    >>> from mesh.slices import parse_slice
    >>> from strategies.models.configs import load_model
    >>> found = closed_forms(load_model("llama-2-13b"), parse_slice("v5e:4x4"), batch=32, context=8192, dtypes=Dtypes())
    >>> [(form.function, round(form.value)) for form in found.forms][:3]  # 6.5e9 parameters in 2 bytes each
    [('transformer_params', 26030899200), ('kv_bytes_per_token', 819200), ('critical_batch_tokens', 240)]
    """
    Workload(phase="decode", batches=(batch,), context=context, dtypes=dtypes)  # says what is out of range
    chip, axis = slice_.chip, _slowest(slice_)
    table = ClosedForms(
        model=model.name,
        slice=slice_.name,
        batch=batch,
        context=context,
        dtypes=dtypes,
        flops_per_s=chip.device_flops_per_s(dtypes.compute),
        hbm_bytes_per_s=chip.device_hbm_bytes_per_s,
        ici_bytes_per_s=_ways(axis) * chip.link_bytes_per_s / chip.devices_per_chip if axis else None,
        forms=(),
    )
    forms = (*_sizes(model, table), *_intensities(model, table), *_links(model, slice_, table))
    return msgspec.structs.replace(table, forms=forms)


def _form(name: str, unit: str, function: Callable[..., float], value: float) -> ClosedForm:
    return ClosedForm(name=name, value=float(value), unit=unit, function=function.__name__)


def _long(slice_: Slice) -> list[TorusAxis]:
    """The physical axes that chips lie along; a switch is one."""
    return [axis for axis in slice_.axes if axis.size > 1 and not axis.core]


def _ways(axis: TorusAxis) -> int:
    return 2 if axis.ring else 1


def _axes(number: int) -> str:
    return "1 axis" if number == 1 else f"{number} axes"


def _slowest(slice_: Slice) -> TorusAxis | None:
    return min(_long(slice_), key=_ways, default=None)


def _shape(model: Model, group: LayerGroup) -> Transformer:
    a, mlp = group.attention, group.mlp
    return Transformer(
        layers=group.count,
        d=model.D,
        f=mlp.F,
        heads=a.N,
        kv_heads=a.K,
        head_dim=a.H,
        vocab=0,
        mlp_matrices=3 if mlp.gated else 2,
    )


def _sizes(model: Model, table: ClosedForms) -> Iterator[ClosedForm]:
    """Bytes of all parameters (no norms, biases or routers), and of what a token leaves in the cache."""
    layers = sum(transformer_params(_shape(model, g), experts=g.mlp.E) for g in model.groups)
    params = layers + (1 if model.tied else 2) * model.D * model.V
    kv = dtype_bytes(table.dtypes.kv)
    per_token = sum(
        kv_bytes_per_token(layers=g.count, kv_heads=g.attention.cached_K, head_dim=g.attention.H, value_bytes=kv)
        for g in model.groups
    )
    yield _form("parameters", "bytes", transformer_params, params * dtype_bytes(table.dtypes.weights))
    yield _form("KV cache of a token", "bytes", kv_bytes_per_token, per_token)


def _intensities(model: Model, table: ClosedForms) -> Iterator[ClosedForm]:
    """From where on FLOPs are the bound: of matmuls by the batch, of attention never in decode."""
    sparsest = max((g.mlp for g in model.groups), key=lambda mlp: mlp.E / mlp.k)
    fewest = min(g.attention.N / g.attention.cached_K for g in model.groups)
    rates = {"flops_per_s": table.flops_per_s, "hbm_bytes_per_s": table.hbm_bytes_per_s}
    acts, kv = dtype_bytes(table.dtypes.activations), dtype_bytes(table.dtypes.kv)
    critical = critical_batch_tokens(
        weight_bytes=dtype_bytes(table.dtypes.weights), experts=sparsest.E, experts_per_token=sparsest.k, **rates
    )
    yield _form("critical batch, FLOPs-bound above", "tokens", critical_batch_tokens, critical)
    for name, tokens in (("decode", 1), ("prefill", table.context)):
        intensity = attention_intensity_flops_per_byte(
            tokens=tokens, context=table.context, group=fewest, act_bytes=acts, kv_value_bytes=kv
        )
        yield _form(f"attention intensity, {name}", "FLOPs/byte", attention_intensity_flops_per_byte, intensity)
    needed = 2 * break_even_uses(flops_per_s=table.flops_per_s, bytes_per_s=table.hbm_bytes_per_s, value_bytes=1)
    yield _form("intensity of the chip, FLOPs-bound above", "FLOPs/byte", break_even_uses, needed)


def _links(model: Model, slice_: Slice, table: ClosedForms) -> Iterator[ClosedForm]:
    """From where on ICI or its latency is the bound; nothing on one chip."""
    axes, ici = len(_long(slice_)), table.ici_bytes_per_s
    if ici is None:
        return
    mlp = min((g.mlp for g in model.groups), key=lambda mlp: mlp.F)
    weights, acts = dtype_bytes(table.dtypes.weights), dtype_bytes(table.dtypes.activations)
    hop_s, link = slice_.chip.hop_latency_s, slice_.chip.link_bytes_per_s / slice_.chip.devices_per_chip
    for n in range(1, min(axes, 2) + 1):
        ways = tensor_parallel_bound_ways(
            f=mlp.F, flops_per_s=table.flops_per_s, ici_bytes_per_s=ici, axes=n, value_bytes=acts
        )
        yield _form(f"ICI bound of 1D over {_axes(n)}, large batches", "chips", tensor_parallel_bound_ways, ways)
    for n in range(1, min(axes, 2) + 1):
        ways = generation_ici_bound_ways(
            f=mlp.F,
            batch=table.batch,
            hbm_bytes_per_s=table.hbm_bytes_per_s,
            ici_bytes_per_s=ici,
            axes=n,
            weight_bytes=weights,
            act_bytes=acts,
        )
        yield _form(f"ICI bound of 1D over {_axes(n)}, decode", "chips", generation_ici_bound_ways, ways)
    if axes > 1:
        D, F, gated, rest = model.D, mlp.F, mlp.gated, axes - 1
        chips = crossover_chips(d=D, f=F, gated=gated, axes=axes, yz_axes=rest)
        yield _form("crossover from 1D to 2D", "chips", crossover_chips, chips)
        x = best_x_ways(chips=slice_.devices, d=D, f=F, gated=gated, yz_axes=rest)
        yield _form("best X of 2D on this slice", "ways", best_x_ways, x)
    longest = max(axis.size for axis in _long(slice_))
    threshold = latency_bound_bytes(ways=longest, link_bytes_per_s=link, hop_s=hop_s)
    yield _form(f"latency-bound below, over {longest}", "bytes", latency_bound_bytes, threshold)
    ways = latency_bound_ways(batch=table.batch, d=model.D, link_bytes_per_s=link, act_bytes=acts, hop_s=hop_s)
    yield _form("latency-bound activations [B, D] above", "ways", latency_bound_ways, ways)
