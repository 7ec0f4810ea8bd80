"""The plain way to find the best layout: list the undecomposed product and price every member.

Nothing of the search's decomposition is used: no tables over rows, no boundaries, no prefix states, no bound. A layout
is a mesh, a residual with an order of its axes, and a body with roles per component. Each component's share of a
layout is made as any single layout is (`strategies.readers.bound` binds and re-checks it, `planner.plan.pricing`
prices it with numbers) and kept per (component, body, roles, residual, order); a layout's shares are then summed. They
fit together where all write and read one type of residual stream, which is compared as text.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import permutations, product
from math import isfinite, prod
from random import Random

import msgspec
import numpy as np
from numpy.typing import NDArray

from mesh.chips import load_chip
from mesh.slices import Slice, parse_slice
from planner.plan.plan import Plan
from planner.plan.pricing import price_layout
from planner.search.meshes import Mesh, meshes
from planner.search.problem import Choice, Pick, Problem, layout_key
from planner.search.search import columns
from strategies.components import IDLE, Body, Component, components
from strategies.layout import Assigned, BoundLayout, lay_out, mesh_of
from strategies.models.models import Attention, LayerGroup, Mlp, Model
from strategies.models.workload import Dtypes, Workload
from strategies.notation import Axes, LayoutError
from strategies.readers.axis_sets import masks_of_one
from strategies.readers.bound import Bound, programs, size_program
from strategies.readers.cost import price_steps, speeds
from strategies.readers.fit import fit_part
from strategies.readers.memory import cache_bytes, peak_activation_bytes, weight_bytes
from strategies.readers.rates import Rates, tabulate_rates

MOST_KEPT = 64  # of a state: more than 5 distinct layouts in each of the 6 ways to swap three equal axes


@dataclass(frozen=True)
class Share:
    """What one component adds to a layout: seconds of its layers, bytes per device, and the residual it meets."""

    seconds: float
    stored: float
    peak: float
    residual: frozenset[str]


@dataclass
class Oracle:
    """Every layout of a problem, priced one by one. `orders`: "all", or one per order of a residual dim's axes."""

    problem: Problem
    orders: str = "all"
    shares: dict[object, Share | None] = field(default_factory=dict)
    divides: dict[object, bool] = field(default_factory=dict)
    layouts: int = 0

    def best(self, batch: int, usable_bytes: float, top: int) -> list[Choice]:
        """The best `top` distinct layouts of a batch that fit, best first."""
        found: list[Choice] = []
        for mesh in meshes(self.problem.slice_, self.problem.cuts):
            rates = tabulate_rates(self.problem.slice_, [[piece] for piece in mesh])
            for _, padded in (pair for pair in columns([batch], self.problem.slice_.devices) if pair[0] == batch):
                for residual, order in states(len(mesh), self.problem.work.phase, self.orders):
                    found += self._state(mesh, rates, residual, order, batch, padded, usable_bytes)
        best: dict[object, Choice] = {}
        for choice in sorted(found, key=lambda c: (c.step_s, c.total_bytes)):
            best.setdefault(layout_key(choice, self.problem), choice)
        return list(best.values())[:top]

    def _state(
        self,
        mesh: Mesh,
        rates: Rates,
        residual: tuple[str, ...],
        order: tuple[int, ...],
        batch: int,
        padded: int,
        usable_bytes: float,
    ) -> Iterator[Choice]:
        """The best few of one mesh, residual and order: all combinations of the components' shares."""
        options = [self._options(c, mesh, rates, residual, order, padded) for c in self.problem.components]
        held = held_bytes(self.problem, mesh, residual, padded)
        kinds = [sorted({share.residual for _, share in component}, key=sorted) for component in options]
        for streams in product(*kinds):
            if not _agree(streams):
                continue
            met = [[o for o in c if o[1].residual == s] for c, s in zip(options, streams, strict=True)]
            self.layouts += prod(len(m) for m in met)
            seconds, total = _sums([[share for _, share in m] for m in met])
            total = total + held
            seconds = np.where(total <= usable_bytes, seconds, np.inf)
            yield from self._kept(
                met, seconds, total, lambda picks, s, b: Choice(mesh, residual, picks, batch, padded, s, b)
            )

    def _kept(
        self,
        met: Sequence[Sequence[tuple[Pick, Share]]],
        seconds: NDArray[np.float64],
        total: NDArray[np.float64],
        choice: Callable[[tuple[Pick, ...], float, float], Choice],
    ) -> Iterator[Choice]:
        """Of a state's layouts the few best: one for each combination of all components but the vocabulary."""
        vocab = seconds.argmin(axis=-1)
        least = np.take_along_axis(seconds, vocab[..., None], -1)[..., 0]
        for flat in np.argsort(least, axis=None, kind="stable")[:MOST_KEPT]:
            at = np.unravel_index(int(flat), least.shape)
            full = (*map(int, at), int(vocab[at]))
            if isfinite(seconds[full]):
                picks = tuple(m[i][0] for m, i in zip(met, full, strict=True))
                yield choice(picks, float(seconds[full]), float(total[full]))

    def _options(
        self,
        component: Component,
        mesh: Mesh,
        rates: Rates,
        residual: tuple[str, ...],
        order: tuple[int, ...],
        padded: int,
    ) -> list[tuple[Pick, Share]]:
        found = []
        for body in component.bodies:
            for axes in product((*body.axes, IDLE), repeat=len(mesh)):
                if not self._allowed(component, body, mesh, axes) or not self._divides(
                    component, body, axes, rates, padded
                ):
                    continue
                key = (component.name, body.name, axes, mesh, residual, order, padded)
                if key not in self.shares:
                    layout = make_layout(self.problem.slice_, mesh, residual, order, (Assigned(component, body, axes),))
                    self.shares[key] = price_share(layout, rates, self.problem, padded)
                share = self.shares[key]
                if share is not None:
                    found.append((Pick(component.name, body.name, axes), share))
        return found

    def _divides(self, component: Component, body: Body, axes: tuple[str, ...], rates: Rates, padded: int) -> bool:
        """Whether the body's own dims divide; if not, no residual and no order makes the layout legal."""
        key = (component.name, body.name, axes, tuple(map(int, rates.n)), padded)
        if key not in self.divides:
            masks = masks_of_one({a: [i for i, b in enumerate(axes) if a == b] for a in body.axes}, len(axes))
            fits = [fit_part(part, component, rates, masks, np.array([[padded]])) for part in body.parts]
            self.divides[key] = all(bool(f.ok.all()) for f in fits)
        return self.divides[key]

    def _allowed(self, component: Component, body: Body, mesh: Mesh, axes: tuple[str, ...]) -> bool:
        fixed = self.problem.fixed.get(component.name, {})
        named = [(piece.axis, body.role_name(axis)) for piece, axis in zip(mesh, axes, strict=True)]
        if any(axis in fixed and role not in fixed[axis] for axis, role in named):
            return False
        required = {axis for part in body.parts for axis in part.program.requires}
        return not required or bool(required & set(axes))


def states(axes: int, phase: str, orders: str) -> Iterator[tuple[tuple[str, ...], tuple[int, ...]]]:
    """Every residual, with every order of the mesh axes (or one for each order that a residual dim can tell apart)."""
    for residual in product("DB-" if phase == "decode" else "DBT-", repeat=axes):
        seen = set()
        for order in permutations(range(axes)):
            told = tuple(tuple(i for i in order if residual[i] == dim) for dim in "DBT")
            if orders == "all" or told not in seen:
                seen.add(told)
                yield residual, order


@dataclass(frozen=True)
class Ordered(BoundLayout):
    """A layout with any order of all mesh axes, also of those that no file says: which cut nothing, or not one dim."""

    major: Axes

    @property
    def order(self) -> Axes:
        """The mesh axes, major first."""
        return self.major


def make_layout(
    slice_: Slice, mesh: Mesh, residual: Sequence[str], order: Sequence[int], assigned: tuple[Assigned, ...]
) -> Ordered:
    """A layout whose mesh axes are the pieces of a mesh."""
    axes = mesh_of(slice_, [(piece,) for piece in mesh])
    major = tuple(axes.axis_names[i] for i in order)
    return Ordered(lay_out(axes, residual, assigned, major).layout, assigned, major)


def price_share(layout: BoundLayout, rates: Rates, problem: Problem, padded: int) -> Share | None:
    """One component's share of a layout, priced with numbers; None where it breaks a rule or does not divide."""
    try:
        bound = programs(layout)
        priced = [size_program(layout, b, rates, problem.fast, padded) for b in bound]
    except LayoutError:
        return None
    component = layout.assigned[0].component
    seconds = stored = peak = roof = gathers = waits = spare = 0.0
    bodies = 0
    for p in priced:
        for cost in price_steps(p.scope, problem.fast):
            comms = sum(float(np.max(c.seconds)) for c in cost.comms)
            here = max(float(np.max(cost.flops_s)), float(np.max(cost.hbm_s)))
            seconds += here + comms
            if p.bound.part == "body":  # its gathers of weights run behind its matmuls
                roof += here
            weights = all(t.name in p.bound.program.weights for t in cost.step.inputs)
            if cost.step.op == "AllGather" and weights and rates.additive:
                gathers += comms
            elif rates.additive:  # hops and launches pass while weights are read ahead
                waits += sum(float(np.max(c.latency_s)) for c in cost.comms)
            if cost.step.op == "Einsum":
                spare += max(0.0, float(np.max(cost.hbm_s)) - float(np.max(cost.flops_s)))
        if p.bound.part == "body":
            held_twice = component.tied and bodies > 0
            stored += 0.0 if held_twice else float(np.max(weight_bytes(p.scope)))
            stored += float(np.max(cache_bytes(p.scope)))
            peak = max(peak, float(np.max(peak_activation_bytes(p.scope))))
            bodies += 1
    if not isfinite(seconds):
        return None
    hidden = min(roof, gathers)
    seconds -= hidden + min(waits, spare, problem.fast.prefetch_s, roof - hidden)
    return Share(component.times * seconds, component.times * stored, peak, _streams(bound))


def _streams(bound: Sequence[Bound]) -> frozenset[str]:
    """The types in which reshards read and write the residual stream, the last position's apart from all tokens'."""
    found = set()
    for b in bound:
        if b.part == "entry":
            found.add(str(b.program.input.renamed("R")))
        if b.part == "exit" or b.program.name == "last":
            found.add(str(b.program.output.renamed("R")))
    return frozenset(found)


def _agree(streams: Sequence[frozenset[str]]) -> bool:
    """Whether all components mean one residual stream: one type with all its dims, one of the last position."""
    types = frozenset().union(*streams)
    return len({t.count(",") for t in types}) == len(types)


def held_bytes(problem: Problem, mesh: Mesh, residual: Sequence[str], padded: int) -> float:
    """The residual stream, the update that is added to it, and the norms' vectors, on one device."""
    ways = prod(piece.size for piece, cut in zip(mesh, residual, strict=True) if cut != IDLE)
    tokens = padded * (problem.work.context if problem.work.phase == "prefill" else 1)
    D = problem.components[0].dims["D"]
    norms = sum(c.times for c in problem.components)  # a vector before each component
    return 2 * tokens * D * problem.fast.widths["activation"] / ways + norms * D * problem.fast.widths["weight"]


def _sums(shares: Sequence[Sequence[Share]]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Seconds and bytes of every combination, one dim per component."""
    seconds, stored, peak = np.zeros(()), np.zeros(()), np.zeros(())
    for component in shares:
        seconds = seconds[..., None] + np.array([s.seconds for s in component])
        stored = stored[..., None] + np.array([s.stored for s in component])
        peak = np.maximum(peak[..., None], np.array([s.peak for s in component]))
    return seconds, stored + peak


def toy_case(seed: int, names: Sequence[str], groups: int = 1) -> tuple[Problem, Model]:
    """A toy problem drawn from a seed: model, slice, phase, batch (the only one), context and dtypes."""
    random = Random(seed)
    model, slice_ = toy_model(random, groups), toy_slice(random, names)
    phase, batch = random.choice(("decode", "prefill")), random.choice((1, 2, 3, 4, 8))
    return toy_problem(random, slice_, model, phase, batch), model


def toy_model(random: Random, groups: int = 1) -> Model:
    """A model of tiny layer groups: MHA, GQA or MQA, gated or not, experts, a parallel block, tied or not."""
    D = random.choice((16, 32, 64))
    found = tuple(_toy_group(random) for _ in range(groups))
    return Model(name="toy", D=D, V=random.choice((30, 48, 64, 96)), tied=random.random() < 0.5, groups=found)


def _toy_group(random: Random) -> LayerGroup:
    K = random.choice((1, 2, 4))
    attention = Attention(
        N=K * random.choice((1, 2, 3, 4)),
        K=K,
        H=random.choice((4, 8)),
        window=random.choice((None, None, 24)),
        qk_norm=random.random() < 0.3,
        qkv_bias=random.random() < 0.3,
    )
    kind = random.choice(("mlp", "mlp", "moe", "block"))
    E = random.choice((4, 6)) if kind == "moe" else 1
    mlp = Mlp(F=random.choice((12, 32, 64, 128)), gated=random.random() < 0.5, E=E, k=min(E, 2))
    return LayerGroup(count=random.choice((1, 2, 3)), attention=attention, mlp=mlp, parallel=kind == "block")


def toy_slice(random: Random, names: Sequence[str]) -> Slice:
    """A slice of a chip whose speeds are drawn, so that FLOPs, HBM, links and hops all bind somewhere."""
    name = random.choice(tuple(names))
    chip = load_chip(name.split(":")[0])
    chip = msgspec.structs.replace(
        chip,
        flops_per_s={"bf16": 10 ** random.uniform(9, 12)},
        hbm_bytes_per_s=10 ** random.uniform(7, 9),
        link_bytes_per_s=10 ** random.uniform(5.5, 8.5),
        hop_latency_s=10 ** random.uniform(-8, -4),
    )
    return parse_slice(name, chip)


def toy_problem(random: Random, slice_: Slice, model: Model, phase: str, batch: int) -> Problem:
    """The problem of laying a toy model out; its HBM is far larger than it needs."""
    context = random.choice((16, 32, 64)) if phase == "decode" else random.choice((8, 16, 32))
    dtypes = Dtypes(weights=random.choice(("bf16", "int8")), kv=random.choice(("bf16", "int8")))
    work = Workload(phase=phase, batches=(batch,), context=context, dtypes=dtypes)
    return Problem(slice_, work, components(model, work), speeds(slice_.chip, dtypes), 1e15)


def picks(component: Component, axes: int) -> Iterator[Pick]:
    """Every body of a component with every assignment of its roles."""
    for body in component.bodies:
        for roles in product((*body.axes, IDLE), repeat=axes):
            yield Pick(component.name, body.name, roles)


def price_or_none(choice: Choice, problem: Problem, model: Model) -> Plan | None:
    """A choice priced as one whole layout, or None where it is illegal."""
    try:
        return price_choice(choice, problem, model, range(len(choice.mesh)))
    except LayoutError:
        return None


def price_choice(choice: Choice, problem: Problem, model: Model, order: Sequence[int]) -> Plan:
    """A choice priced as one whole layout, on its unmerged pieces."""
    parts = problem.components
    assigned = tuple(Assigned(c, c.body(p.body), p.axes) for c, p in zip(parts, choice.picks, strict=True))
    layout = make_layout(problem.slice_, choice.mesh, choice.residual, order, assigned)
    return price_layout(layout, problem.slice_, model, problem.work, choice.batch, choice.padded_batch, problem.fast)


def legal_order(choice: Choice, problem: Problem) -> tuple[int, ...]:
    """An order of the mesh's pieces in which a choice is a legal layout."""
    parts = problem.components
    assigned = tuple(Assigned(c, c.body(p.body), p.axes) for c, p in zip(parts, choice.picks, strict=True))
    for order in permutations(range(len(choice.mesh))):
        try:
            programs(make_layout(problem.slice_, choice.mesh, choice.residual, order, assigned))
        except LayoutError:
            continue
        return order
    raise LayoutError(f"no order of the mesh axes makes this a layout: {choice}")


def two_pieces() -> Mesh:
    """The mesh of a 2x2 slice."""
    return meshes(parse_slice("v5e:2x2"))[0]
