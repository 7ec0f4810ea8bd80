"""The report of `explain`: every step of a plan in the book's notation, with sizes, bytes and time; memory, specs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from math import prod

from mesh.errors import InputError
from meshwright.reports.plan import assignment_text, bound_text, details, plan_table, title
from meshwright.reports.text import Block, Lines, TextTable
from planner.numbers import GB, digits, ms, us
from planner.plan.compare import hidden_s
from planner.plan.plan import Memory, Plan, StepPlan
from strategies.layout import ComponentLayout
from strategies.models.workload import Workload, layer_dims, vocab_dims
from strategies.notation import Dim, Tensor, parse_step
from strategies.readers.specs import TensorSpec

_STEP_HEADERS = (
    "part", "step", "on one device", "GFLOP", "HBM MB", "collective MB", "us", "ICI us", "bound by"
)  # fmt: skip
_CODE = frozenset({1, 2})
_LEGEND = (
    "GFLOP and HBM MB: of one device; collective MB: bytes V of the whole gathered array that a group holds; "
    "us: max(FLOPs, HBM) + collectives; ICI us: of the collectives; "
    "as AllReduce: the slice's compiler does a ReduceScatter over all devices so; "
    "hidden: gathers of weights behind matmuls, hops and launches while weights are read ahead; "
    "MB = 1e6 and GB = 1e9 bytes"
)


def explanation(plan: Plan) -> Sequence[Block]:
    """Return everything that a plan says, ordered as a step runs."""
    check_plan(plan)
    return [
        Lines("", [title(plan, "")]),
        plan_table([plan]),
        Lines("Layout", details(plan)),
        *_steps(plan),
        Lines("", [_LEGEND]),
        _subtotals(plan),
        _memory(plan.memory),
        _specs("Weights and caches", plan.specs, plan),
        _specs("Activations", plan.activation_specs, plan),
        _constants(plan),
    ]


def check_plan(plan: Plan) -> None:
    """Raise `InputError` where parts of an edited plan do not fit together."""
    names, sizes = plan.mesh.axis_names, plan.mesh.axis_sizes
    if not len(names) == len(set(names)) == len(sizes) == len(plan.mesh.pieces):
        raise InputError("the plan is not valid: mesh.axis_names, axis_sizes and pieces must be equally many")
    if min(sizes, default=1) < 1 or prod(sizes) != plan.devices:
        raise InputError(f"the plan is not valid: its mesh has {prod(sizes)} devices, the plan says {plan.devices}")
    known = {layout.component: layout for layout in plan.layouts}
    for step in plan.cost.steps:
        if step.component not in known:
            raise InputError(f"the plan is not valid: a step is of {step.component!r}, which has no layout")
    for group in (group for layout in plan.layouts for group in layout.groups):
        if not 0 <= group < len(plan.model.groups):
            raise InputError(f"the plan is not valid: the model has no layer group {group}")


def dim_sizes(plan: Plan, layout: ComponentLayout) -> dict[str, float]:
    """Return the sizes of a component's dims in this plan, after padding."""
    work = Workload(phase=plan.phase, batches=(plan.padded_batch,), context=plan.context, dtypes=plan.dtypes)
    group = plan.model.groups[layout.groups[0]] if layout.groups else None
    sizes = layer_dims(plan.model, group, work) if group else vocab_dims(plan.model, work)
    owned = {name.partition("/")[::2]: after for name, (_, after) in plan.padded.items()}
    sizes |= {"B": plan.padded_batch} | {dim: after for (name, dim), after in owned.items() if name == layout.component}
    return sizes if layout.capacity is None else {**sizes, "C": layout.capacity}


def on_one_device(tensor: Tensor, sizes: Mapping[str, float], ways: Mapping[str, int]) -> str:
    """Return a tensor with its sizes on one device: `Q[16, 16, 128]`."""
    return f"{tensor.name}[{', '.join(_local(dim, sizes, ways) for dim in tensor.dims)}]"


def _local(dim: Dim, sizes: Mapping[str, float], ways: Mapping[str, int]) -> str:
    if dim.name not in sizes:
        return dim.name
    unknown = [axis for axis in dim.axes if axis not in ways]
    if unknown:
        raise InputError(f"the plan is not valid: a step cuts {dim.name} over {unknown[0]}, which is no mesh axis")
    return f"{sizes[dim.name] / prod(ways[axis] for axis in dim.axes):.10g}"


def _steps(plan: Plan) -> Iterator[Block]:
    layouts = {layout.component: layout for layout in plan.layouts}
    ways = plan.mesh.sizes
    for component, group in groupby(plan.cost.steps, key=lambda step: step.component):
        steps, layout = tuple(group), layouts[component]
        sizes = dim_sizes(plan, layout)
        yield TextTable(_heading(layout, steps), _STEP_HEADERS, _rows(steps, sizes, ways), code=_CODE, beneath=_CODE)


def _heading(layout: ComponentLayout, steps: Sequence[StepPlan]) -> str:
    order = [("cache", layout.cache_order), ("sequence shards", layout.sequence_order)]
    said = [f"{name} {value}" for name, value in order if value and layout.groups]
    about = ", ".join([f"program {layout.program}", assignment_text(layout), *said])
    layers, once = steps[0].layers, sum(step.seconds for step in steps)
    return f"{layout.component} ({about}): {us(once)} us x {layers} = {ms(layers * once)} ms"


def _rows(steps: Sequence[StepPlan], sizes: Mapping[str, float], ways: Mapping[str, int]) -> list[list[str]]:
    rows = [_row(step, sizes, ways) for step in steps]
    flops, hbm = sum(step.flops for step in steps), sum(step.hbm_bytes for step in steps)
    comms, seconds = sum(map(_comm_bytes, steps)), sum(step.seconds for step in steps)
    ici = sum(step.ici_s + step.latency_s for step in steps)
    return [*rows, ["all", "", "", *_numbers(flops, hbm, comms, seconds, ici), ""]]


def _row(step: StepPlan, sizes: Mapping[str, float], ways: Mapping[str, int]) -> list[str]:
    made = " ".join(on_one_device(tensor, sizes, ways) for tensor in parse_step(step.text, where="plan: ").outputs)
    numbers = _numbers(step.flops, step.hbm_bytes, _comm_bytes(step), step.seconds, step.ici_s + step.latency_s)
    runs_as = [f"as {comm.runs_as}" for comm in step.comms if comm.runs_as]
    return [step.part, step.text, made, *numbers, ", ".join([bound_text(step.bound_by), *runs_as])]


def _comm_bytes(step: StepPlan) -> float:
    return sum(comm.bytes * comm.times for comm in step.comms)


def _numbers(flops: float, hbm: float, comms: float, seconds: float, ici: float) -> list[str]:
    return [digits(flops / 1e9), digits(hbm / 1e6), digits(comms / 1e6), us(seconds), us(ici)]


def _subtotals(plan: Plan) -> TextTable:
    """Return the milliseconds of each component over all its layers, in the order of their first step."""
    rows = []
    for component in dict.fromkeys(step.component for step in plan.cost.steps):
        steps = [step for step in plan.cost.steps if step.component == component]
        rows.append([component, *_times(steps, plan)])
    headers = ("component", "layers", "FLOPs ms", "HBM ms", "ICI ms", "latency ms", "hidden ms", "estimate ms", "share")
    total = ["all", "", *_times(plan.cost.steps, plan)[1:]]
    cost = plan.cost
    bounds = f"lower {ms(cost.lower_bound_s)}, estimate {ms(cost.step_s)}, upper {ms(cost.upper_bound_s)} ms"
    return TextTable(f"Time of all layers ({bounds})", headers, [*rows, total])


def _times(steps: Sequence[StepPlan], plan: Plan) -> list[str]:
    kinds = ("flops_s", "hbm_s", "ici_s", "latency_s")
    sums = [sum(step.layers * float(getattr(step, kind)) for step in steps) for kind in kinds]
    hidden = hidden_s(steps, plan.reached, plan.prefetch_s)
    seconds = sum(step.layers * step.seconds for step in steps) - hidden
    share = seconds / plan.cost.step_s if plan.cost.step_s else 0.0
    return [str(steps[0].layers), *map(ms, (*sums, hidden, seconds)), f"{share:.1%}"]


def _memory(memory: Memory) -> TextTable:
    parts = {
        "weights": memory.weights_bytes,
        "KV cache": memory.kv_bytes,
        "activations and temporaries": memory.activation_bytes,
        "total": memory.total_bytes,
        "usable": memory.usable_bytes,
        "free": memory.usable_bytes - memory.total_bytes,
    }
    rows = [[name, digits(value / GB), f"{value / (memory.usable_bytes or 1):.1%}"] for name, value in parts.items()]
    return TextTable("Memory per device", ("what", "GB", "of usable"), rows)


def _specs(heading: str, specs: Mapping[str, TensorSpec], plan: Plan) -> TextTable:
    ways = plan.mesh.sizes
    rows = []
    for name, spec in specs.items():
        if not len(spec.dims) == len(spec.shape) == len(spec.axes):
            raise InputError(f"the plan is not valid: dims, shape and axes of {name} must be equally many")
        tensor = Tensor(name, tuple(map(Dim, spec.dims, spec.axes)))
        local = on_one_device(tensor, dict(zip(spec.dims, spec.shape, strict=True)), ways)
        cut = f"[{', '.join(map(str, tensor.dims))}]"
        rows.append([name, cut, str(list(spec.shape)), local.removeprefix(name), spec.dtype])
    return TextTable(heading, ("tensor", "cut", "shape", "on one device", "dtype"), rows, code=frozenset({1}))


def _constants(plan: Plan) -> TextTable:
    rows = [[c.name, f"{c.value:.6g}", c.unit, "yes" if c.calibrated else "no", c.source] for c in plan.constants]
    return TextTable("Constants", ("constant", "value", "unit", "calibrated", "source"), rows)
