"""Price measured points by the programs of their layouts."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec

from mesh.chips import Reached
from mesh.pieces import Piece
from mesh.slices import Slice, parse_slice
from planner.plan.accuracy import slice_at
from planner.plan.layout_file import bind_checked
from planner.plan.plan import Plan, StepPlan
from planner.plan.pricing import price_layout
from planner.validate.measured import Curve, StepPoint, StepSet
from planner.validate.terms import AT_ONE, Terms, terms_of, terms_of_collectives
from strategies.components import components
from strategies.layout import Layout
from strategies.models.configs import load_model
from strategies.models.models import Model
from strategies.models.workload import Workload
from strategies.readers.cost import speeds
from strategies.readers.rates import Rates, tabulate_rates


def model_of(name: str | Model, heads: int | None = None, **attention: int) -> Model:
    """Return a model with `heads` query heads (padded ones included) and other sizes of its attention."""
    model = load_model(name) if isinstance(name, str) else name
    sizes = attention | ({"N": heads} if heads else {})
    groups = tuple(
        msgspec.structs.replace(group, attention=msgspec.structs.replace(group.attention, **sizes))
        for group in model.groups
    )
    return msgspec.structs.replace(model, groups=groups)


def price_one(file_layout: Layout, slice_: Slice, model: Model, work: Workload, where: str) -> Plan:
    """Return the plan of a given layout at the workload's one batch."""
    layout = bind_checked(file_layout, slice_, components(model, work), Path(where))
    batch = work.batches[0]
    return price_layout(layout, slice_, model, work, batch, batch, speeds(slice_.chip, work.dtypes))


def workload(data: StepSet, point: StepPoint) -> Workload:
    """Return the workload of a point."""
    dtypes = data.dtypes if point.weights is None else msgspec.structs.replace(data.dtypes, weights=point.weights)
    context = point.context or data.context or 1
    return Workload(phase=point.phase or data.phase, batches=(point.batch,), context=context, dtypes=dtypes)


def plans_of(data: StepSet, slice_: Slice) -> list[Plan]:
    """Return the plan of every point of a set, on its slice at some constants."""
    model = model_of(data.model, data.heads)
    priced: dict[tuple[str, Workload], Plan] = {}
    for point in data.points:
        key = (point.layout, workload(data, point))
        if key not in priced:
            priced[key] = price_one(data.layouts[point.layout], slice_, model, key[1], point.layout)
    return [priced[point.layout, workload(data, point)] for point in data.points]


def counts(data: StepSet, step: StepPlan) -> bool:
    """Return whether a step was measured: all were, or the bodies of the set's components."""
    return not data.only or (step.part == "body" and step.component in data.only)


def terms_of_steps(data: StepSet) -> Terms:
    """Return the terms of every point of a set."""
    plans = plans_of(data, parse_slice(data.slice).reaching(AT_ONE))
    return terms_of(plans, lambda step: counts(data, step))


def data_sheet_of_steps(data: StepSet) -> tuple[list[float], list[float]]:
    """Return the lower bound and the estimate of every point in seconds, by the data sheet alone."""
    slice_ = parse_slice(data.slice)
    bounds = (_roof_and_comm_s(data, plan) for plan in plans_of(data, slice_.at_data_sheet))
    estimates = (_roof_and_comm_s(data, plan) for plan in plans_of(data, slice_at(slice_, "data-sheet")))
    return [max(terms) for terms in bounds], [sum(terms) for terms in estimates]


def _roof_and_comm_s(data: StepSet, plan: Plan) -> tuple[float, float]:
    """Return the seconds of FLOPs or HBM, and of collectives, of the measured steps."""
    steps = [s for s in plan.cost.steps if counts(data, s)]
    roof_s = sum(s.layers * max(s.flops_s, s.hbm_s) for s in steps)
    return roof_s, sum(s.layers * c.seconds(None) for s in steps for c in s.comms)


def rates_of(slice_: Slice, group: tuple[tuple[str, int, int], ...]) -> Rates:
    """Return the rates of one mesh axis made of these pieces (torus axis, stride, size)."""
    names = [axis.name for axis in slice_.axes]
    return tabulate_rates(slice_, [[Piece(names.index(axis), stride, size) for axis, stride, size in group]])


def terms_of_curve(curve: Curve, sizes: Sequence[float]) -> Terms:
    """Return the terms of one collective at several sizes of its gathered array, in bytes."""
    rates = rates_of(parse_slice(curve.slice).reaching(AT_ONE), curve.group)
    kind = curve.collective
    per_byte, hops_s, launches = (
        float(table[kind][1]) for table in (rates.s_per_byte, rates.latency_s, rates.launches)
    )
    return terms_of_collectives([(size * per_byte, hops_s, launches) for size in sizes])


def collective_s(
    slice_: Slice, kind: str, group: tuple[tuple[str, int, int], ...], sizes: Sequence[float]
) -> list[float]:
    """Return the seconds of one collective at several sizes of its gathered array, at the slice's constants."""
    rates = rates_of(slice_, group)
    return [rates.seconds(kind, size) for size in sizes]


def default_of(slice_: Slice) -> Reached:
    """Return the chip's own constants."""
    return slice_.chip.reached or AT_ONE
