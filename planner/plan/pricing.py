"""Price one layout in full, without a search: every step with text, bytes, time and bound; memory; specs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import prod

import msgspec
import numpy as np

from mesh.slices import Slice
from planner.plan.accuracy import CALIBRATED_FROM, accuracy_of
from planner.plan.compare import hidden_s as hidden_by
from planner.plan.plan import CommPlan, Constant, Cost, Memory, Plan, StepPlan, Throughput
from strategies.components import IDLE
from strategies.kinds import KINDS
from strategies.layout import Assigned, BoundLayout, ComponentLayout
from strategies.models.models import Model
from strategies.models.workload import Workload
from strategies.notation import SEQUENCE
from strategies.prices import Number
from strategies.readers.bound import Bound, SizedProgram, programs, size_program
from strategies.readers.cost import CommCost, Speeds, StepCost, Totals, data_sheet_speeds, price_steps
from strategies.readers.memory import cache_bytes, norm_bytes, peak_activation_bytes, weight_bytes
from strategies.readers.rates import tabulate_rates
from strategies.readers.specs import activation_specs, padded_dims, specs

BOUNDS = ("flops", "hbm", "ici", "latency")


def price_layout(
    layout: BoundLayout,
    slice_: Slice,
    model: Model,
    work: Workload,
    batch: int,
    padded: int,
    fast: Speeds,
) -> Plan:
    """Return the plan of a layout at one batch, which runs padded to `padded` sequences.

    Raises `LayoutError` where a dim does not divide or parts do not fit.

    `work` has the phase, context and dtypes, `fast` the speeds of the chip at these dtypes. Every step of every bound
    program is priced by the roofline of FLOPs and HBM plus its collectives, see `StepPlan`; memory is summed over the
    components' weights and caches, plus the largest working set. No search takes part.
    """
    rates = tabulate_rates(slice_, layout.mesh.on(slice_))
    bound = programs(layout)
    priced = [size_program(layout, program, rates, fast, padded) for program in bound]
    steps = tuple(step for p in priced for step in _steps(p, fast))
    lower_s = lower_bound_s(layout, bound, slice_, fast, padded)
    cost = total_cost(steps, lower_s, hidden_by(steps, slice_.chip.reached, fast.prefetch_s))
    tokens = batch * work.tokens_per_sequence
    return Plan(
        model=model,
        model_hash=model.digest,
        slice=slice_.name,
        reached=slice_.chip.reached,
        prefetch_s=fast.prefetch_s,
        accuracy=accuracy_of(slice_.chip, work.phase),
        chips=slice_.chips,
        devices=slice_.devices,
        phase=work.phase,
        batch=batch,
        padded_batch=padded,
        context=work.context,
        dtypes=work.dtypes,
        mesh=layout.mesh,
        residual=_residual(layout, work.phase),
        layouts=tuple(_component_layout(a, layout.names, priced) for a in layout.assigned),
        specs=specs(priced, work),
        activation_specs=activation_specs(priced, work),
        padded=padded_dims(priced),
        cost=cost,
        memory=_memory(priced, layout, slice_, work, padded, fast),
        throughput=Throughput(
            tokens_per_s=tokens / cost.step_s, tokens_per_s_per_chip=tokens / cost.step_s / slice_.chips
        ),
        constants=_constants(slice_, work),
    )


def estimate_s(layout: BoundLayout, slice_: Slice, padded: int, fast: Speeds) -> float:
    """Return `cost.step_s` of the layout's plan alone, in seconds.

    Raises `LayoutError` as `price_layout` does.

    It is the sum over steps of layers x seconds, minus the seconds that overlap (`planner.plan.compare.hidden_s`).
    """
    rates = tabulate_rates(slice_, layout.mesh.on(slice_))
    steps = [
        s for program in programs(layout) for s in _steps(size_program(layout, program, rates, fast, padded), fast)
    ]
    return sum(s.layers * s.seconds for s in steps) - hidden_by(steps, slice_.chip.reached, fast.prefetch_s)


def _steps(p: SizedProgram, fast: Speeds) -> Iterator[StepPlan]:
    """Yield the priced steps of a program."""
    for cost in price_steps(p.scope, fast):
        comms = [c for c in cost.comms if _scalar(p.scope.ways(c.comm.axes)) > 1]
        yield _step_plan(p, cost, comms)


def _step_plan(p: SizedProgram, cost: StepCost, comms: Sequence[CommCost]) -> StepPlan:
    """Return the plan of one step, with the resource that bounds it."""
    flops_s, hbm_s = _scalar(cost.flops_s), _scalar(cost.hbm_s)
    ici_s = sum(_scalar(c.bandwidth_s) for c in comms)
    comm_s = sum(_scalar(c.seconds) for c in comms)
    terms = {"flops": flops_s if flops_s >= hbm_s else 0.0, "hbm": hbm_s if hbm_s > flops_s else 0.0}
    terms["ici" if 2 * ici_s > comm_s else "latency"] = comm_s
    seconds = max(flops_s, hbm_s) + comm_s
    return StepPlan(
        component=p.bound.component.name,
        part=p.bound.part,
        layers=p.bound.component.times,
        text=str(cost.step),
        op=cost.step.op,
        flops=_scalar(cost.work.flops),
        hbm_bytes=_scalar(cost.work.hbm_bytes),
        comms=tuple(_comm_plan(p, c) for c in comms),
        flops_s=flops_s,
        hbm_s=hbm_s,
        ici_s=ici_s,
        latency_s=comm_s - ici_s,
        seconds=seconds,
        bound_by=max(terms, key=lambda name: (terms[name], -BOUNDS.index(name))) if seconds else "free",
        behind=cost.behind,
    )


def _comm_plan(p: SizedProgram, c: CommCost) -> CommPlan:
    """Return the plan of one collective."""
    rates, times = p.scope.rates, int(_scalar(c.comm.times))
    launches = times * int(rates.launches[c.comm.kind][p.scope.mask(c.comm.axes)].item())
    return CommPlan(
        kind=c.comm.kind,
        axes=c.comm.axes,
        bytes=_scalar(c.comm.nbytes),
        times=times,
        bandwidth_s=_scalar(c.bandwidth_s),
        hops_s=_scalar(c.latency_s) - launches * rates.launch_s,
        launches=launches,
        runs_as=KINDS[c.comm.kind].whole_as if np.any(c.reduced) else None,
    )


def _scalar(value: Number) -> float:
    """Return the one value of a number or array."""
    return float(np.asarray(value, dtype=float).reshape(-1)[0])


def lower_bound_s(layout: BoundLayout, bound: Sequence[Bound], slice_: Slice, fast: Speeds, padded: int) -> float:
    """Return the lower bound in seconds, with the slice at its data sheet.

    It is the longer of the FLOPs or HBM time of all steps and the time of all collectives. `fast` has the speeds that
    the devices reach.
    """
    rates, sheet = tabulate_rates(slice_.at_data_sheet, layout.mesh.on(slice_)), data_sheet_speeds(fast, slice_.chip)
    total = Totals()
    for p in (size_program(layout, program, rates, sheet, padded) for program in bound):
        for cost in price_steps(p.scope, sheet):
            total.add(cost, p.bound.component.times)
    return _scalar(total.lower_bound_s)


def total_cost(steps: Sequence[StepPlan], lower_bound_s: float, hidden_s: float) -> Cost:
    """Return the sums over the steps; `bound_by` is the bound under which most of the seconds fall.

    The lower bound and the hidden seconds are passed in; `step_s` is the sum of the larger of FLOPs and HBM time of
    each step and of all collectives, minus `hidden_s`, and `upper_bound_s` is the plain sum of all terms.
    """
    flops_s = sum(s.layers * s.flops_s for s in steps)
    hbm_s = sum(s.layers * s.hbm_s for s in steps)
    ici_s = sum(s.layers * s.ici_s for s in steps)
    latency_s = sum(s.layers * s.latency_s for s in steps)
    roof_s = sum(s.layers * max(s.flops_s, s.hbm_s) for s in steps)
    by = dict.fromkeys(BOUNDS, 0.0)
    for s in steps:
        by["flops" if s.flops_s >= s.hbm_s else "hbm"] += s.layers * max(s.flops_s, s.hbm_s)
        by["ici" if s.ici_s > s.latency_s else "latency"] += s.layers * (s.ici_s + s.latency_s)
    return Cost(
        lower_bound_s=lower_bound_s,
        step_s=roof_s + ici_s + latency_s - hidden_s,
        upper_bound_s=flops_s + hbm_s + ici_s + latency_s,
        flops_s=flops_s,
        hbm_s=hbm_s,
        ici_s=ici_s,
        latency_s=latency_s,
        hidden_s=hidden_s,
        bound_by=max(by, key=lambda name: (by[name], -BOUNDS.index(name))),
        steps=tuple(steps),
    )


def _memory(
    priced: Sequence[SizedProgram], layout: BoundLayout, slice_: Slice, work: Workload, padded: int, fast: Speeds
) -> Memory:
    """Return the bytes per device of weights, KV cache and activations."""
    weights = kv = peak = 0.0
    seen: set[str] = set()
    for p in priced:
        component = p.bound.component
        if p.bound.part == "body":
            shared = component.tied and component.name in seen  # the unembedding's table is the embedding's
            seen.add(component.name)
            weights += 0.0 if shared else component.times * _scalar(weight_bytes(p.scope))
            kv += component.times * _scalar(cache_bytes(p.scope))
            peak = max(peak, _scalar(peak_activation_bytes(p.scope)))
    weights += norm_bytes([a.component for a in layout.assigned], work, fast)
    activation = peak + residual_bytes(layout, priced, work, padded, fast)
    return Memory(
        weights_bytes=weights,
        kv_bytes=kv,
        activation_bytes=activation,
        total_bytes=weights + kv + activation,
        usable_bytes=slice_.chip.usable_hbm_bytes_per_device,
    )


def residual_bytes(
    layout: BoundLayout, priced: Sequence[SizedProgram], work: Workload, padded: int, fast: Speeds
) -> float:
    """Return the bytes on one device of the residual stream and the update added to it.

    It is 2 x tokens x D x bytes per activation, divided by the number of devices that cut the residual.
    """
    ways = prod(size for size, cut in zip(layout.mesh.axis_sizes, layout.cuts, strict=True) if cut != IDLE)
    tokens = padded * work.tokens_per_sequence
    D = priced[0].bound.component.dims["D"]
    return 2 * tokens * D * fast.widths["activation"] / ways


def _residual(layout: BoundLayout, phase: str) -> dict[str, tuple[str, ...]]:
    """Return the mesh axes that cut each dim of the residual stream, major first."""
    dims = "BD" if phase == "decode" else "BTD"
    return {dim: tuple(n for n in layout.order if layout.cuts[layout.names.index(n)] == dim) for dim in dims}


def _component_layout(a: Assigned, names: Sequence[str], priced: Sequence[SizedProgram]) -> ComponentLayout:
    """Return the layout of one component, as the plan file states it."""
    component = a.component
    caches = a.body.caches
    sequence = {s.option("order") for part in a.body.parts for s in part.program.steps} - {None}
    cut = {axis for t in caches for axis in t.axes(SEQUENCE)} & set(a.axes)
    order = next(iter(sequence)) if sequence else "striped"
    slots = [p.sizes["C"] for p in priced if p.bound.component is component and "C" in p.sizes]
    return ComponentLayout(
        component=component.name,
        groups=component.groups,
        layers=component.times,
        program=a.body.name,
        assignment={n: a.body.role_name(axis) for n, axis in zip(names, a.axes, strict=True)},
        cache_order="".join(caches[0].names) if caches else None,
        sequence_order=order if cut else None,
        capacity=int(_scalar(slots[0])) if slots else None,
    )


def _constants(slice_: Slice, work: Workload) -> tuple[Constant, ...]:
    """Return the hardware numbers that the cost used, with their units and sources."""
    chip = slice_.chip
    sources = chip.sources
    numbers = [
        (f"flops_per_s.{work.dtypes.compute}", chip.flops_per_s[work.dtypes.compute], "FLOP/s", "flops_per_s"),
        ("hbm_bytes_per_s", chip.hbm_bytes_per_s, "bytes/s", "hbm_bytes_per_s"),
        ("usable_hbm_bytes_per_device", chip.usable_hbm_bytes_per_device, "bytes", "usable_hbm_bytes_per_device"),
        ("link_bytes_per_s", chip.link_bytes_per_s, "bytes/s", "link_bytes_per_s"),
        ("hop_latency_s", chip.hop_latency_s, "s", "hop_latency_s"),
    ]
    if chip.core_link_bytes_per_s is not None:
        numbers.append(("core_link_bytes_per_s", chip.core_link_bytes_per_s, "bytes/s", "core_link_bytes_per_s"))
    if chip.reached is not None:
        units = {"hop": "of hop_latency_s", "launch_s": "s"}
        values = msgspec.structs.asdict(chip.reached)
        numbers += [(f"reached.{name}", v, units.get(name, "share"), "reached") for name, v in values.items()]
    return tuple(_constant(name, value, unit, sources.get(key, "")) for name, value, unit, key in numbers)


def _constant(name: str, value: float, unit: str, source: str) -> Constant:
    """Return one constant, calibrated where its source says so."""
    return Constant(name=name, value=value, unit=unit, source=source, calibrated=source.startswith(CALIBRATED_FROM))
