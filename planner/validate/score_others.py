"""Score data that are not times: longest contexts, served throughput as a bound, and rates of one operation."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from mesh.chips import Chip, load_chip
from mesh.slices import parse_slice
from planner.plan.accuracy import slice_at
from planner.validate.measured import Limit, LimitSet, Measured, RateSet, ServedSet
from planner.validate.points import default_of, model_of, price_one
from planner.validate.scores import CHIP, COMPUTED, SHEET, Judged, Scored, SetScore, all_errors, described
from strategies.models.models import Model
from strategies.models.workload import Dtypes, Workload


def score_limits(name: str, data: LimitSet) -> SetScore:
    """Score the longest context whose cache fits in the budget, by the bytes that the programs store."""
    points = [
        Scored(
            name=f"{point.name}, batch {point.batch}",
            measured=point.max_context,
            predicted={COMPUTED: data.cache_budget_bytes / _bytes_per_token(data, point)},
        )
        for point in data.points
    ]
    worst = max(abs(point.error(COMPUTED)) for point in points)
    return _scored(name, data, "tokens", points, worst, ())


def _bytes_per_token(data: LimitSet, point: Limit) -> float:
    """Return the bytes of cache on one device per token of context, of all sequences."""
    model = model_of(data.model, data.heads, K=point.kv_heads, H=point.head_dim)
    kv_bytes = [_kv_bytes(data, point, model, context) for context in (1024, 2048)]
    return (kv_bytes[1] - kv_bytes[0]) / 1024


def _kv_bytes(data: LimitSet, point: Limit, model: Model, context: int) -> float:
    """Return the bytes of cache on one device at a context."""
    block, *others = data.layout.layouts
    layout = msgspec.structs.replace(
        data.layout, layouts=(msgspec.structs.replace(block, assignment=point.block), *others)
    )
    work = Workload(phase="decode", batches=(point.batch,), context=context, dtypes=Dtypes(kv=data.kv))
    return price_one(layout, parse_slice(data.slice), model, work, point.name).memory.kv_bytes


def score_serving(name: str, data: ServedSet) -> SetScore:
    """Check that decoding alone, at the chip's own constants and full caches, exceeds the served throughput."""
    slice_, points = parse_slice(data.slice), []
    for point in data.points:
        dtypes = Dtypes(weights=point.weights, kv=point.weights)
        work = Workload(phase="decode", batches=(point.batch,), context=point.max_length, dtypes=dtypes)
        rates = {
            constants: price_one(
                data.layout, slice_at_constants, model_of(point.model), work, name
            ).throughput.tokens_per_s
            for constants, slice_at_constants in ((SHEET, slice_at(slice_, "data-sheet")), (CHIP, slice_))
        }
        points.append(
            Scored(
                name=f"{point.model} {point.weights}, batch {point.batch}, {point.max_length} tokens",
                measured=point.tokens_per_s,
                predicted=rates,
            )
        )
    short = max(0.0, *(-point.error(CHIP) for point in points))
    notes = ("served throughput has prefill in it: decoding alone must be faster, and by how much is no error",)
    return _scored(name, data, "tokens/s", points, short, notes)


def score_microbenchmarks(name: str, data: RateSet) -> SetScore:
    """Compare the chip's own efficiencies with the rates that benchmarks of one operation reached."""
    points = []
    for point in data.points:
        chip = load_chip(point.chip)
        share = getattr(default_of(parse_slice(_any_slice(chip))), point.constant)
        points.append(
            Scored(
                name=f"{point.chip} {point.constant}: {point.benchmark}",
                measured=point.rate,
                predicted={SHEET: _data_sheet(chip, point.constant), CHIP: share * _data_sheet(chip, point.constant)},
            )
        )
    worst = max(abs(point.error(CHIP)) for point in points)
    return _scored(name, data, "per s", points, worst, ())


def _any_slice(chip: Chip) -> str:
    """Return the name of a slice of the chip."""
    return f"{chip.name}:{chip.machines[0].dims[0]}"


def _data_sheet(chip: Chip, constant: str) -> float:
    """Return the data sheet's bytes/s or FLOP/s of one device, or bytes/s of one link."""
    return {
        "hbm": chip.device_hbm_bytes_per_s,
        "matmul": chip.device_flops_per_s("bf16"),
        "link": chip.link_bytes_per_s,
    }[constant]


def _scored(
    name: str, data: Measured, unit: str, points: Sequence[Scored], worst: float, notes: tuple[str, ...]
) -> SetScore:
    """Return the score of a set whose targets all judge the worst error."""
    return SetScore(
        **described(name, data),
        unit=unit,
        points=tuple(points),
        errors=all_errors(points),
        notes=notes,
        targets=tuple(Judged(what=t.what, of=t.of, found=worst, at_most=t.at_most) for t in data.targets),
    )
