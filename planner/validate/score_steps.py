"""Score measured steps: three predictions of each, fits scored on the points that they left out, and rankings."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations

import numpy as np

from mesh.chips import Reached
from mesh.slices import parse_slice
from planner.best.solve import make_plan
from planner.query.query import Query
from planner.validate.fitting import ConstantsFit, fit, left_out
from planner.validate.measured import ErrorTarget, Race, StepPoint, StepSet
from planner.validate.points import (
    data_sheet_of_steps,
    default_of,
    model_of,
    price_one,
    terms_of_steps,
    workload,
)
from planner.validate.scores import (
    BOUND,
    CALIBRATED,
    CHIP,
    SHEET,
    FittedConstants,
    Judged,
    Ranked,
    Scored,
    SetScore,
    all_errors,
    described,
    errors_of,
)
from strategies.models.workload import dtype_bytes


def score_steps(name: str, data: StepSet) -> SetScore:
    """Price every point, fit the constants, leave each configuration out once, and rank the layouts."""
    terms = terms_of_steps(data)
    start = default_of(parse_slice(data.slice))
    measured = np.array([point.seconds for point in data.points])
    configurations = [tuple(getattr(point, field) for field in data.leave_out) for point in data.points]
    constants_fit = fit(terms, measured, start)
    lower, sheet = data_sheet_of_steps(data)
    left_out_s = left_out(terms, measured, start, configurations)
    predictions = zip(lower, sheet, terms.seconds(start).tolist(), left_out_s.tolist(), strict=True)
    points = tuple(
        Scored(
            name=label(point),
            measured=point.seconds,
            predicted=dict(zip((BOUND, SHEET, CHIP, CALIBRATED), values, strict=True)),
            group=point.table or (point.phase or data.phase),
        )
        for point, values in zip(data.points, predictions, strict=True)
    )
    races = [_race(data, race, constants_fit.reached) for race in data.races]
    ratios = dict(_best_found(data, constants_fit.reached, points))
    return SetScore(
        **described(name, data),
        unit="s",
        chip_constants={parse_slice(data.slice).chip.name: start},
        calibrations=(_calibration(constants_fit, len(points), len(set(configurations))),),
        points=points,
        errors=all_errors(points),
        rankings=(*_winners(data, points), *races),
        notes=tuple(_notes(data, constants_fit.reached, points, ratios)),
        targets=tuple(_judged(target, data, constants_fit.reached, points, races, ratios) for target in data.targets),
    )


def label(point: StepPoint) -> str:
    """Return the label of a point."""
    capacity = f", capacity {point.capacity}" if point.capacity else ""
    return point.name or f"{point.layout}, batch {point.batch}{capacity}"


def _calibration(constants_fit: ConstantsFit, points: int, configurations: int) -> FittedConstants:
    """Return the constants fitted to all points."""
    return FittedConstants(
        of="",
        reached=constants_fit.reached,
        intervals=constants_fit.intervals,
        points=points,
        configurations=configurations,
        note="predictions called calibrated are of fits that left the point's configuration out",
    )


def _rivals(data: StepSet, points: Sequence[Scored]) -> Iterator[tuple[Scored, Scored]]:
    """Yield pairs of points that differ in the layout only and are measured further apart than `ranked_apart`."""
    for (a, first), (b, second) in combinations(zip(data.points, points, strict=True), 2):
        same_workload = (a.batch, a.capacity, workload(data, a)) == (b.batch, b.capacity, workload(data, b))
        difference = max(first.measured, second.measured) / min(first.measured, second.measured) - 1
        if same_workload and a.layout != b.layout and difference > data.ranked_apart:
            yield first, second


def wrong_pairs(data: StepSet, points: Sequence[Scored], constants: str = CALIBRATED) -> list[tuple[Scored, Scored]]:
    """Return the pairs that are ranked wrong."""
    return [
        (a, b)
        for a, b in _rivals(data, points)
        if (a.measured < b.measured) != (a.predicted[constants] < b.predicted[constants])
    ]


def _winners(data: StepSet, points: Sequence[Scored]) -> list[Ranked]:
    """Return per batch the fastest measured layout and the fastest predicted one, by the mean over its points."""
    result = []
    by_batch: dict[int, dict[str, list[Scored]]] = {}
    for point, scored in zip(data.points, points, strict=True):
        by_batch.setdefault(point.batch, {}).setdefault(point.layout, []).append(scored)
    for batch, layouts in by_batch.items():
        shared_capacities = set.intersection(
            *({_capacity(scored.name) for scored in points_of_layout} for points_of_layout in layouts.values())
        )
        shared_points = {
            n: [scored for scored in points_of_layout if _capacity(scored.name) in shared_capacities]
            for n, points_of_layout in layouts.items()
        }
        if len(shared_points) > 1 and shared_capacities and not data.points[0].name:
            measured = {
                n: _mean([scored.measured for scored in points_of_layout])
                for n, points_of_layout in shared_points.items()
            }
            predicted, at_chip = (
                {
                    n: _mean([scored.predicted[constants] for scored in points_of_layout])
                    for n, points_of_layout in shared_points.items()
                }
                for constants in (CALIBRATED, CHIP)
            )
            result.append(_ranked(f"batch {batch}", _first(measured), predicted, at_chip))
    return result


def _first(seconds: Mapping[str, float]) -> str:
    """Return the name with the least seconds."""
    return min(seconds, key=lambda name: seconds[name])


def _ranked(situation: str, measured: str, seconds: dict[str, float], at_chip: Mapping[str, float]) -> Ranked:
    """Return a ranking with its first layouts."""
    return Ranked(
        situation=situation,
        measured=measured,
        predicted=_first(seconds),
        at_chip=_first(at_chip),
        seconds=seconds,
    )


def _capacity(name: str) -> str:
    """Return the capacity in a point's label."""
    return name.rpartition("capacity ")[2]


def _mean(values: Sequence[float]) -> float:
    """Return the mean."""
    return sum(values) / len(values)


def _race(data: StepSet, race: Race, reached: Reached) -> Ranked:
    """Price published layouts side by side, at fitted and at the chip's constants."""
    point = StepPoint(
        layout=race.first, batch=race.batch, step_s=1, phase=race.phase, context=race.context, weights=race.weights
    )
    slice_, model, work = parse_slice(data.slice), model_of(data.model, data.heads), workload(data, point)
    fitted, at_chip = (
        {n: price_one(data.layouts[n], slice_at_constants, model, work, n).cost.step_s for n in race.layouts}
        for slice_at_constants in (slice_.reaching(reached), slice_)
    )
    return _ranked(f"{race.phase} at batch {race.batch}", race.first, fitted, at_chip)


def _best_found(data: StepSet, reached: Reached, points: Sequence[Scored]) -> Iterator[tuple[str, float]]:
    """Yield, for layouts chosen as the best, their seconds over those of the best layout of a search."""
    slice_, model = parse_slice(data.slice).reaching(reached), model_of(data.model, data.heads)
    for point, scored in zip(data.points, points, strict=True):
        if point.table in data.best_of:
            work = workload(data, point)
            published_s = price_one(data.layouts[point.layout], slice_, model, work, point.layout).cost.step_s
            best_s = make_plan(Query(model=model, slices=(slice_,), work=work, top=1)).plans[0].cost.step_s
            yield scored.name, published_s / best_s


def knee(data: StepSet, reached: Reached) -> float:
    """Return the batch at which FLOPs take as long as reading the weights: the chapter's critical batch.

    It is (reached FLOP/s) / (reached HBM bytes/s) x bytes per weight / 2: a weight costs 2 FLOPs per sequence and is
    read once.
    """
    chip = parse_slice(data.slice).chip
    flops_per_s = reached.matmul * chip.device_flops_per_s(data.dtypes.compute)
    return flops_per_s / (reached.hbm * chip.device_hbm_bytes_per_s) * dtype_bytes(data.dtypes.weights) / 2


def crossing(batches: Sequence[int], seconds: Sequence[float]) -> float:
    """Return the batch at which the lines through small and through large batches cross.

    >>> crossing([16, 32, 64, 128, 256, 512, 1024], [1, 1, 1, 1, 2, 4, 8])
    128.0
    """
    middle = len(batches) // 2
    low = (seconds[middle] - seconds[0]) / (batches[middle] - batches[0])
    high = (seconds[-1] - seconds[-2]) / (batches[-1] - batches[-2])
    return (seconds[0] - low * batches[0] - seconds[-1] + high * batches[-1]) / (high - low)


def _judged(
    target: ErrorTarget,
    data: StepSet,
    reached: Reached,
    points: Sequence[Scored],
    races: Sequence[Ranked],
    ratios: Mapping[str, float],
) -> Judged:
    """Return a target with the error that it limits."""
    chosen = [p for p in points if target.of in ("", p.group)]
    match target.what:
        case "median":
            error = errors_of(chosen, CALIBRATED).median
        case "worst":
            error = errors_of(chosen, CALIBRATED).worst
        case "ranked wrong":
            error = float(len(wrong_pairs(data, points)))
        case "winners missed":
            error = float(sum(r.measured != r.predicted for r in _winners(data, points)))
        case "published first":
            error = float(sum(r.measured != r.predicted for r in races))
        case "within of best":
            error = max(ratios.values()) - 1
        case "knee":
            error = abs(knee(data, reached) / (data.knee or 1) - 1)
    return Judged(what=target.what, of=target.of, found=error, at_most=target.at_most)


def _notes(data: StepSet, reached: Reached, points: Sequence[Scored], ratios: Mapping[str, float]) -> Iterator[str]:
    """Yield notes on rankings, the knee, and layouts chosen as the best."""
    rivals = list(_rivals(data, points))
    if rivals:
        wrong = "; ".join(f"{a.name} and {b.name}" for a, b in wrong_pairs(data, points))
        at_chip = len(wrong_pairs(data, points, CHIP))
        yield (
            f"{len(rivals)} pairs of layouts are measured more than {data.ranked_apart:.0%} apart; ranked wrong: "
            f"{wrong or 'none'} when calibrated, {at_chip} at the chip's constants"
        )
    if data.knee:
        batches = [point.batch for point in data.points]
        measured = crossing(batches, [p.measured for p in points])
        predicted = crossing(batches, [p.predicted[CALIBRATED] for p in points])
        yield (
            f"knee: at batch {data.knee:.0f} by its source; FLOPs take as long as reading the weights at batch "
            f"{knee(data, reached):.0f} with the fitted constants; lines through small and through large batches cross "
            f"at {measured:.0f} as measured, at {predicted:.0f} as predicted"
        )
    for name, ratio in ratios.items():
        yield f"{name}: the published layout takes {ratio:.3f} times as long as the best that `plan` finds (unmeasured)"
