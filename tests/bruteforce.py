"""The plain way to find the best layout: list the undecomposed product and price every member.

Nothing of the search's decomposition is used: no tables over rows, no faces, no prefix states, no bound. A layout
is a mesh, a residual with an order of its axes, and a body with roles per component. Each component's share of a
layout is made as any single layout is (`planner.layout.programs` binds and re-checks it, `planner.pricing` prices
it with numbers) and kept per (component, body, roles, residual, order); a layout's shares are then summed. They
fit together where all write and read one type of residual stream, which is compared as text.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import permutations, product
from math import isfinite, prod
from random import Random

import msgspec
import numpy as np

from mesh.chips import load_chip
from mesh.slices import Slice, parse_slice
from planner import pricing
from planner.layout import NAMES, Assigned, Layout, programs
from planner.meshes import Mesh, meshes
from planner.plan import Plan
from planner.search import Choice, Pick, Problem, _key, columns
from strategies.components import IDLE, Component, components
from strategies.cost import cache_bytes, peak_activation_bytes, price_steps, speeds, weight_bytes
from strategies.models import Attention, LayerGroup, Mlp, Model
from strategies.notation import LayoutError
from strategies.rates import Rates, tabulate_rates
from strategies.workload import Dtypes, Workload

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
    layouts: int = 0

    def best(self, batch: int, usable_bytes: float, top: int) -> list[Choice]:
        """The best `top` distinct layouts of a batch that fit, best first."""
        found: list[Choice] = []
        for mesh in meshes(self.problem.slice_):
            rates = tabulate_rates(self.problem.slice_, [[piece] for piece in mesh])
            for _, padded in (pair for pair in columns([batch], self.problem.slice_.devices) if pair[0] == batch):
                for residual, order in states(len(mesh), self.problem.work.phase, self.orders):
                    found += self._state(mesh, rates, residual, order, batch, padded, usable_bytes)
        best: dict[object, Choice] = {}
        for choice in sorted(found, key=lambda c: (c.step_s, c.total_bytes)):
            best.setdefault(_key(choice, self.problem), choice)
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
        for stream in sorted({o[1].residual for o in options[0]}, key=sorted):
            met = [[o for o in component if o[1].residual == stream] for component in options]
            self.layouts += prod(len(m) for m in met)
            if all(met):
                seconds, total = _sums([[s for _, s in m] for m in met])
                total = total + held
                seconds = np.where(total <= usable_bytes, seconds, np.inf)
                vocab = seconds.argmin(axis=-1)
                least = np.take_along_axis(seconds, vocab[..., None], -1)[..., 0]
                for flat in np.argsort(least, axis=None, kind="stable")[:MOST_KEPT]:
                    at = np.unravel_index(int(flat), least.shape)
                    full = (*map(int, at), int(vocab[at]))
                    if isfinite(seconds[full]):
                        picks = tuple(m[i][0] for m, i in zip(met, full, strict=True))
                        yield Choice(mesh, residual, picks, batch, padded, float(seconds[full]), float(total[full]))

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
                if not self._allowed(component, body, mesh, axes):
                    continue
                key = (component.name, body.name, axes, mesh, residual, order, padded)
                if key not in self.shares:
                    layout = make_layout(mesh, residual, order, (Assigned(component, body, axes),))
                    self.shares[key] = price_share(layout, rates, self.problem, padded)
                share = self.shares[key]
                if share is not None:
                    found.append((Pick(component.name, body.name, axes), share))
        return found

    def _allowed(self, component: Component, body: object, mesh: Mesh, axes: tuple[str, ...]) -> bool:
        fixed = self.problem.fixed.get(component.name, {})
        named = [(piece.axis, body.role_name(axis)) for piece, axis in zip(mesh, axes, strict=True)]  # type: ignore[attr-defined]
        if any(axis in fixed and role not in fixed[axis] for axis, role in named):
            return False
        required = {axis for part in body.parts for axis in part.program.requires}  # type: ignore[attr-defined]
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


def make_layout(
    mesh: Mesh, residual: tuple[str, ...], order: Sequence[int], assigned: tuple[Assigned, ...]
) -> Layout:
    """A layout whose mesh axes are the pieces of a mesh."""
    names = tuple(NAMES[: len(mesh)])
    return Layout(names, tuple((piece,) for piece in mesh), residual, assigned, tuple(names[i] for i in order))


def price_share(layout: Layout, rates: Rates, problem: Problem, padded: int) -> Share | None:
    """One component's share of a layout, priced with numbers; None where it breaks a rule or does not divide."""
    try:
        bound = programs(layout)
        priced = [pricing._price(layout, b, rates, problem.fast, padded) for b in bound]
    except LayoutError:
        return None
    component = layout.assigned[0].component
    seconds = stored = peak = 0.0
    bodies = 0
    for p in priced:
        for cost in price_steps(p.scope, problem.fast):
            comms = sum(float(np.max(c.seconds)) for c in cost.comms)
            seconds += max(float(np.max(cost.flops_s)), float(np.max(cost.hbm_s))) + comms
        if p.bound.part == "body":
            held_twice = component.tied and bodies > 0
            stored += 0.0 if held_twice else float(np.max(weight_bytes(p.scope)))
            stored += float(np.max(cache_bytes(p.scope)))
            peak = max(peak, float(np.max(peak_activation_bytes(p.scope))))
            bodies += 1
    if not isfinite(seconds):
        return None
    return Share(component.times * seconds, component.times * stored, peak, _stream(bound))


def _stream(bound: Sequence[object]) -> frozenset[str]:
    """The types in which the glue reads and writes the residual stream."""
    found = set()
    for b in bound:
        program = b.program  # type: ignore[attr-defined]
        ends = {"entry": program.input, "exit": program.output}.get(b.part)  # type: ignore[attr-defined]
        if ends is not None and not (b.component.kind == "vocab" and b.part == "entry" and program.name != "last"):  # type: ignore[attr-defined]
            found.add(str(ends.renamed("R")))
    return frozenset(found)


def held_bytes(problem: Problem, mesh: Mesh, residual: Sequence[str], padded: int) -> float:
    """The residual stream and the update that is added to it, on one device."""
    ways = prod(piece.size for piece, cut in zip(mesh, residual, strict=True) if cut != IDLE)
    tokens = padded * (problem.work.context if problem.work.phase == "prefill" else 1)
    return 2 * tokens * problem.components[0].dims["D"] * problem.fast.widths["activation"] / ways


def _sums(shares: Sequence[Sequence[Share]]) -> tuple[np.ndarray, np.ndarray]:
    """Seconds and bytes of every combination, one dim per component."""
    seconds, stored, peak = np.zeros(()), np.zeros(()), np.zeros(())
    for component in shares:
        seconds = seconds[..., None] + np.array([s.seconds for s in component])
        stored = stored[..., None] + np.array([s.stored for s in component])
        peak = np.maximum(peak[..., None], np.array([s.peak for s in component]))
    return seconds, stored + peak
