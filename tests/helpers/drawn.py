"""Layouts drawn at random: models of every kind, meshes, programs and roles, priced without a search."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from itertools import accumulate
from math import prod

import numpy as np
from msgspec.structs import replace as changed

from executor.levels.shrink import F32
from mesh.errors import InputError
from mesh.pieces import Piece
from mesh.slices import parse_slice
from planner.plan.plan import Plan
from planner.plan.pricing import price_layout
from strategies.components import IDLE, Component, components
from strategies.layout import Assigned, lay_out, mesh_of
from strategies.models.models import Attention, LayerGroup, Mlp, Model
from strategies.models.workload import Dtypes, Workload
from strategies.readers.cost import speeds

GATED, PLAIN, MOE = Mlp(F=32, gated=True), Mlp(F=32, gated=False), Mlp(F=16, gated=True, E=8, k=2)
GQA, MHA, MQA = Attention(N=16, K=8, H=4), Attention(N=8, K=8, H=4), Attention(N=8, K=1, H=4)
FEW = Attention(N=8, K=2, H=4, qk_norm=True, qkv_bias=True)
WINDOWED = Attention(N=8, K=2, H=4, window=8)


def model_of(*layers: tuple[Attention, Mlp], parallel: bool = False, norm: str = "rms", tied: bool = False) -> Model:
    """A model of one layer of each of these kinds."""
    groups = tuple(LayerGroup(count=1, attention=a, mlp=m, parallel=parallel) for a, m in layers)
    return Model(name="m", D=32, V=40, tied=tied, groups=groups, norm="layer" if norm == "layer" else "rms")


MODELS = {
    "mha": model_of((MHA, PLAIN)),
    "gqa": model_of((GQA, GATED)),
    "few": model_of((FEW, GATED), tied=True),
    "mqa": model_of((MQA, GATED)),
    "moe": model_of((FEW, MOE)),
    "parallel": model_of((MQA, GATED), parallel=True, norm="layer"),
    "parallel-gqa": model_of((FEW2 := Attention(N=8, K=2, H=4), PLAIN), parallel=True),
    "mixed": model_of((WINDOWED, MOE), (FEW2, GATED)),
}
MESHES = ((2, 2), (2, 4), (8, 1), (2, 2, 2), (4, 2), (8,), (4, 1, 2))


def slice_of(sizes: Sequence[int]) -> tuple[str, tuple[tuple[Piece, ...], ...]]:
    """A slice and pieces on which a mesh of these sizes lies row by row."""
    if tuple(sizes) == (2, 2, 2):
        return "v5p:2x2x2", tuple((Piece(n, 1, 2),) for n in range(3))
    strides = list(accumulate(reversed(sizes), lambda a, b: a * b, initial=1))[-2::-1]
    pieces = tuple((Piece(0, s, m),) if m > 1 else () for s, m in zip(strides, sizes, strict=True))
    return f"h100:{prod(sizes)}", pieces


def priced(
    model: Model,
    phase: str,
    sizes: Sequence[int],
    residual: Sequence[str],
    roles: dict[str, tuple[str, Sequence[str]]],
    dtypes: Dtypes = F32,
) -> Plan:
    """The plan of a layout: by component the program and a role for each mesh axis. Raises `InputError`."""
    name, pieces = slice_of(sizes)
    batch = 32 if phase == "decode" and any(g.mlp.moe for g in model.groups) else 16  # whole slots of experts
    work = Workload(
        phase=phase, batches=(batch,), context=32 if phase == "decode" else 16, dtypes=changed(dtypes, compute="bf16")
    )
    assigned = []
    for c in components(model, work):
        program, played = roles[c.name]
        body = c.body(program)
        assigned.append(Assigned(c, body, tuple(body.axis_of(role) for role in played)))
    slice_ = parse_slice(name)
    layout = lay_out(mesh_of(slice_, pieces), residual, assigned)
    plan = price_layout(layout, slice_, model, work, batch, batch, speeds(slice_.chip, work.dtypes))
    return changed(plan, dtypes=dtypes)


@cache
def draw(seed: int, kind: str, phase: str, sizes: tuple[int, ...]) -> Plan:
    """A legal layout in which most mesh axes play a role."""
    rng = np.random.default_rng(seed)
    work = Workload(phase=phase, batches=(16,), context=16, dtypes=F32)
    parts = components(MODELS[kind], work)
    for _ in range(10_000):
        residual = [str(rng.choice(["D", "B", IDLE] if phase == "decode" else ["D", "B", "T", IDLE])) for _ in sizes]
        try:
            return priced(MODELS[kind], phase, sizes, residual, {c.name: _roles(c, sizes, rng) for c in parts})
        except (InputError, ValueError):
            continue
    raise AssertionError(f"no legal layout for {kind} {phase} {sizes}")


def _roles(c: Component, sizes: Sequence[int], rng: np.random.Generator) -> tuple[str, list[str]]:
    while True:
        body = c.bodies[rng.integers(len(c.bodies))]
        played = [body.role_name(str(rng.choice([*body.axes, IDLE]))) for _ in sizes]
        needed = {body.role_name(axis) for part in body.parts for axis in part.program.requires}
        if not needed or needed & {r for r, s in zip(played, sizes, strict=True) if s > 1}:
            return body.name, played


def covered(plan: Plan) -> set[tuple[str, str, str]]:
    """(phase, program, role) of every mesh axis longer than 1."""
    long = {n for n, s in plan.mesh.sizes.items() if s > 1}
    return {(plan.phase, one.program, role) for one in plan.layouts for n, role in one.assignment.items() if n in long}
