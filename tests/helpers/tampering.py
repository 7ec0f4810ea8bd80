"""Mutations of plans and programs, each with the level that must catch it.

`PLANS` edit a plan file: level `plan`, which computes everything again, must fail. `PRICES` edit what a plan on host
devices promises to communicate: level `collectives`. `ENGINES` edit what runs, and say which levels that breaks. A
user's layout text may be `ILLEGAL`, which level `plan` says, or legal and `WRONG`: only `numerics` can tell.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from msgspec.structs import replace as changed

from executor.run.engine import Engine
from executor.run.runnable import RunnableComponent
from planner.plan.plan import CommPlan, Plan, StepPlan
from strategies.notation import Program, Step, Tensor
from strategies.readers.specs import TensorSpec

Edit = Callable[[Plan], Plan]


def _spec(plan: Plan, name: str, **edits: Any) -> Plan:
    return changed(plan, specs=plan.specs | {name: changed(plan.specs[name], **edits)})


def _axes(spec: TensorSpec, **cut: tuple[str, ...]) -> tuple[tuple[str, ...], ...]:
    return tuple(cut.get(dim, axes) for dim, axes in zip(spec.dims, spec.axes, strict=True))


def _layout(plan: Plan, component: str, **edits: Any) -> Plan:
    layouts = tuple(changed(one, **edits) if one.component == component else one for one in plan.layouts)
    return changed(plan, layouts=layouts)


def _role(plan: Plan, component: str, **roles: str) -> Plan:
    (one,) = [one for one in plan.layouts if one.component == component]
    return _layout(plan, component, assignment=one.assignment | roles)


def _mesh(plan: Plan, **edits: Any) -> Plan:
    return changed(plan, mesh=changed(plan.mesh, **edits))


def swapped_order(plan: Plan) -> Plan:
    """The pieces of torus axis Y, the near one made the far one: other devices are neighbours."""
    near, far = sorted((p for axis in plan.mesh.pieces for p in axis if p.axis == "Y"), key=lambda p: p.stride)
    new = {near: changed(near, stride=far.size), far: changed(far, stride=1)}
    return _mesh(plan, pieces=tuple(tuple(new.get(p, p) for p in axis) for axis in plan.mesh.pieces))


def _strided_pieces(plan: Plan) -> Plan:
    first, *rest = plan.mesh.pieces
    return _mesh(plan, pieces=((changed(first[0], stride=2 * first[0].stride), *first[1:]), *rest))


def _without(mapping: Mapping[str, Any], part: str) -> dict[str, Any]:
    key = next(key for key in mapping if part in key)
    return {k: v for k, v in mapping.items() if k != key}


def steps(plan: Plan, change: Callable[[StepPlan], StepPlan | None], wanted: Callable[[StepPlan], bool]) -> Plan:
    """The plan with its first wanted priced step changed, or without it."""
    found = list(plan.cost.steps)
    number = next(n for n, step in enumerate(found) if wanted(step))
    after = change(found[number])
    found[number : number + 1] = [] if after is None else [after]
    return changed(plan, cost=changed(plan.cost, steps=tuple(found)))


def comm(plan: Plan, kind: str, change: Callable[[CommPlan], CommPlan]) -> Plan:
    """The plan with the first priced collective of a kind changed."""
    return steps(
        plan,
        lambda step: changed(step, comms=(change(step.comms[0]), *step.comms[1:])),
        lambda step: any(c.kind == kind for c in step.comms[:1]),
    )


def _other(plan: Plan, axes: tuple[str, ...]) -> tuple[str, ...]:
    return (next(name for name in plan.mesh.axis_names if name not in axes or len(axes) > 1),)


PLANS: Mapping[str, Edit] = {
    "an axis dropped from a weight's spec": lambda p: _spec(p, "mlp/Wi", axes=_axes(p.specs["mlp/Wi"], F=())),
    "the axes of a weight's dims swapped": lambda p: _spec(p, "mlp/Wi", axes=p.specs["mlp/Wi"].axes[::-1]),
    "the order of two axes in a dim swapped": lambda p: _spec(
        p, "mlp/Wi", axes=tuple(a[::-1] for a in p.specs["mlp/Wi"].axes)
    ),
    "the cache cut otherwise": lambda p: _spec(p, "attention/Kc", axes=_axes(p.specs["attention/Kc"], B=(), S=("Y",))),
    "a cache dim grown": lambda p: _spec(p, "attention/Vc", shape=(1, *p.specs["attention/Vc"].shape[1:])),
    "a tensor's dtype changed": lambda p: _spec(p, "attention/WQ", dtype="f32"),
    "a weight's spec removed": lambda p: changed(p, specs=_without(p.specs, "attention/WO")),
    "a constraint removed": lambda p: changed(p, activation_specs=_without(p.activation_specs, "mlp/a")),
    "a constraint changed": lambda p: changed(
        p, activation_specs={k: changed(s, axes=((),) * len(s.axes)) for k, s in p.activation_specs.items()}
    ),
    "a priced byte count changed": lambda p: comm(p, "AllReduce", lambda c: changed(c, bytes=c.bytes / 2)),
    "a priced collective removed": lambda p: steps(p, lambda s: changed(s, comms=()), lambda s: bool(s.comms)),
    "a priced collective's axes changed": lambda p: comm(
        p, "ReduceScatter", lambda c: changed(c, axes=_other(p, c.axes))
    ),
    "a priced collective's kind changed": lambda p: comm(p, "AllReduce", lambda c: changed(c, kind="AllGather")),
    "a step removed": lambda p: steps(p, lambda s: None, lambda s: s.op == "AllReduce"),
    "a step's text changed": lambda p: steps(
        p, lambda s: changed(s, text=s.text.replace("B", "b")), lambda s: s.op == "Einsum"
    ),
    "a step's FLOPs changed": lambda p: steps(p, lambda s: changed(s, flops=s.flops * 1.01), lambda s: s.flops > 0),
    "the step's seconds changed": lambda p: changed(p, cost=changed(p.cost, step_s=p.cost.step_s / 2)),
    "the throughput changed": lambda p: changed(p, throughput=changed(p.throughput, tokens_per_s=1e9)),
    "a memory number changed": lambda p: changed(p, memory=changed(p.memory, kv_bytes=p.memory.kv_bytes * 0.9)),
    "the usable memory changed": lambda p: changed(p, memory=changed(p.memory, usable_bytes=1e12)),
    "a constant changed": lambda p: changed(p, constants=(changed(p.constants[0], value=1e15), *p.constants[1:])),
    "the residual changed": lambda p: changed(p, residual={"B": (), "D": p.mesh.axis_names}),
    "a role changed": lambda p: _role(p, "mlp", X="D"),
    "an axis made idle": lambda p: _role(p, "vocab", X="-"),
    "a role that does not exist": lambda p: _role(p, "attention", X="Q+Q"),
    "another program": lambda p: _layout(p, "mlp", program="mlp-of-mine"),
    "a component removed": lambda p: changed(p, layouts=p.layouts[1:]),
    "the layers of a component changed": lambda p: _layout(p, "mlp", layers=1),
    "the cache's order changed": lambda p: _layout(p, "attention", cache_order="SBKH"),
    "a piece's stride changed": _strided_pieces,
    "an axis's size changed": lambda p: _mesh(p, axis_sizes=(2 * p.mesh.axis_sizes[0], *p.mesh.axis_sizes[1:])),
    "mesh axes renamed": lambda p: _mesh(p, axis_names=p.mesh.axis_names[::-1]),
    "the batch changed": lambda p: changed(p, batch=2 * p.batch, padded_batch=2 * p.padded_batch),
    "the context changed": lambda p: changed(p, context=2 * p.context),
    "the cache's dtype changed": lambda p: changed(p, dtypes=changed(p.dtypes, kv="int8")),
    "another slice": lambda p: changed(p, slice="v6e:4x4"),
    "the number of chips changed": lambda p: changed(p, chips=8),
    "padding made up": lambda p: changed(p, padded={"mlp/F": (1, 2)}),
    "a model with fewer layers": lambda p: changed(
        p, model=changed(p.model, groups=(changed(p.model.groups[0], count=1),))
    ),
}

PRICES: Mapping[str, Edit] = {
    "a priced byte count changed": lambda p: comm(p, "AllReduce", lambda c: changed(c, bytes=c.bytes / 2)),
    "a priced collective removed": lambda p: steps(p, lambda s: changed(s, comms=()), lambda s: bool(s.comms)),
    "a priced collective's axes changed": lambda p: comm(
        p, "ReduceScatter", lambda c: changed(c, axes=_other(p, c.axes))
    ),
    "a priced collective's kind changed": lambda p: comm(p, "AllReduce", lambda c: changed(c, kind="AllGather")),
    "a priced collective run twice": lambda p: comm(p, "AllReduce", lambda c: changed(c, times=2)),
    "a step of one layer only": lambda p: steps(
        p, lambda s: changed(s, layers=1), lambda s: s.layers > 1 and bool(s.comms)
    ),
}


def with_steps(engine: Engine, component: str, change: Callable[[Program], Program]) -> Engine:
    """The engine with a component's programs changed, unchecked."""

    def unit(u: RunnableComponent) -> RunnableComponent:
        parts = {n: tuple(map(change, getattr(u, n))) for n in ("entry", "bodies", "leave")}
        return replace(u, **parts) if u.name == component else u

    return replace(engine, components=tuple(map(unit, engine.components)))


def dropped(op: str, text: str = "") -> Callable[[Program], Program]:
    """A program without its steps of an operation."""
    return lambda p: replace(p, steps=tuple(s for s in p.steps if s.op != op or text not in str(s)))


def altered(op: str, change: Callable[[Step], Step]) -> Callable[[Program], Program]:
    """A program whose steps of an operation are changed."""
    return lambda p: replace(p, steps=tuple(change(s) if s.op == op else s for s in p.steps))


def contexts(engine: Engine, component: str, **edits: Any) -> Engine:
    """The engine with constants of a component changed."""
    units = tuple(
        replace(u, context=replace(u.context, **edits)) if u.name == component else u for u in engine.components
    )
    return replace(engine, components=units)


def _twice(program: Program) -> Program:
    """Every AllReduce of one tensor is followed by another: a sum of sums."""
    found: list[Step] = []
    for step in program.steps:
        found += [step, replace(step, inputs=step.outputs)] if step.op == "AllReduce" else [step]
    return replace(program, steps=tuple(found))


def _lettered(step: Step) -> Step:
    """The step with mesh axis a for b and b for a in its operands and results."""
    other = {"a": "b", "b": "a"}

    def tensor(t: Tensor) -> Tensor:
        dims = tuple(replace(d, axes=tuple(other[a] for a in d.axes)) for d in t.dims)
        return replace(t, dims=dims, partial=tuple(other[a] for a in t.partial))

    return replace(step, inputs=tuple(map(tensor, step.inputs)), outputs=tuple(map(tensor, step.outputs)))


# What runs -> the levels that must catch it.
ENGINES: Mapping[str, tuple[tuple[str, ...], Callable[[Engine], Engine]]] = {
    "a collective deleted from a program": (
        ("numerics", "collectives"),
        lambda e: with_steps(e, "vocab", dropped("AllReduce", "q[")),
    ),
    "a collective's axes changed": (
        ("numerics", "collectives"),
        lambda e: with_steps(e, "attention", altered("AllReduce", lambda s: replace(s, axes=("X",)))),
    ),
    "a collective added": (("numerics", "collectives"), lambda e: with_steps(e, "mlp", _twice)),
    "a scatter's axes swapped": (
        ("numerics", "collectives"),
        lambda e: with_steps(e, "mlp", altered("ReduceScatter", _lettered)),
    ),
    "positions not turned": (("numerics",), lambda e: with_steps(e, "attention", dropped("Rope", "k["))),
    "the residual not added": (("numerics", "collectives"), lambda e: with_steps(e, "mlp", dropped("Add"))),
    "the cache not written": (  # so nobody needs the values, and their reduction is gone, too
        ("numerics", "collectives"),
        lambda e: with_steps(e, "attention", dropped("Append", "Vc")),
    ),
    "another window": (("numerics",), lambda e: contexts(e, "attention", window=4)),
    "another epsilon": (("numerics",), lambda e: contexts(e, "mlp", eps=1e-2)),
    "another rope base": (("numerics",), lambda e: contexts(e, "attention", theta=1000.0)),
}

# A user's layout text, edited: (program, from, to).
ILLEGAL: Mapping[str, tuple[str, str, str]] = {
    "a collective deleted": ("mlp", "a[B_G, F_Y] = AllGather_X(a[B_G, F_YX])\n", ""),
    "a collective over too few axes": ("attention", "AttendScatter_Ww(", "AttendScatter_W("),
    "a collective's axes swapped": ("attention", "= ReduceScatter_X(Q[", "= ReduceScatter_z(Q["),
    "a collective of another kind": ("mlp", "= AllGather_X(a[", "= Slice_X(a["),
}
WRONG: Mapping[str, tuple[str, str, str]] = {
    "gate and input swapped": ("mlp", "SwiGLU(u[B_G, F_YX], h[B_G, F_YX])", "SwiGLU(h[B_G, F_YX], u[B_G, F_YX])"),
    "keys appended as values": (
        "attention",
        "= Append(Vc[B_GXzZ, K_Y, S_RWw, H], v[",
        "= Append(Vc[B_GXzZ, K_Y, S_RWw, H], k[",
    ),
    "keys attended as values": (
        "attention",
        "Vc[B_GXzZ, K_Y, S_RWw, H], pos[B_GXzZ])\nO",
        "Kc[B_GXzZ, K_Y, S_RWw, H], pos[B_GXzZ])\nO",
    ),
    "keys not turned": ("attention", "k[B_GXzZ, K_Y, H] = Rope(k[B_GXzZ, K_Y, H], pos[B_GXzZ])\n", ""),
}
