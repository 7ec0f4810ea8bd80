"""A plan's layouts on a shrunken copy of its model and mesh, small enough to run on the devices of a host.

Every mesh axis longer than 1 becomes 2, and a dim that the layouts cut into single elements stays cut into single
elements, one that they cut into larger parts into parts of at least two; what was padded is padded
again where 25% allow it. The batch of a mixture of experts may grow, so that each has a whole number of slots.
Features stay: MHA, GQA or MQA, gates, biases, windows, parallel blocks, experts, tied embeddings.
The shrunken plan is a plan: it lies on a stand-in slice that has as many devices, so its seconds mean nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import gcd, lcm
from typing import Any

import numpy as np
from msgspec.structs import replace as changed

from executor.devices import Unavailable
from executor.loaded import Loaded, load
from mesh.pieces import Piece
from mesh.slices import Slice, parse_slice
from planner.plan.pricing import price_layout
from strategies.components import Component, components
from strategies.layout import BoundLayout, MeshAxes, bind_layout, mesh_of
from strategies.models.models import Attention, LayerGroup, Mlp, Model
from strategies.models.workload import Dtypes, Workload
from strategies.readers.bound import Bound, programs
from strategies.readers.cost import speeds
from strategies.readers.fit import fit_part
from strategies.readers.rates import Rates

F32 = Dtypes(weights="f32", kv="f32", activations="f32", compute="f32")
STAND_INS = ("v5e:1x1", "h100:2", "v5e:2x2", "v5p:2x2x2", "v5p:2x2x4")  # by the number of axes longer than 1
LAYERS, HEAD_DIM, STEPS = 2, 8, 16
LEAST = {"D": 32, "F": 16, "V": 40, "E": 4, "B": 4, "T": 16, "S": 32, "window": 8}


def shrink(loaded: Loaded, dtypes: Dtypes | None = None) -> Loaded:
    """The plan's layouts on a shrunken model and mesh, priced anew; `dtypes` instead of the plan's, where given.

    The shrunken plan lies on a slice of a built-in chip, whatever the plan's. Raises `InputError` where nothing of the
    layout can be shrunk, `Unavailable` where the mesh has too many axes.
    """
    plan, layout, work = loaded.plan, loaded.layout, loaded.workload
    slice_, mesh = _stand_in(layout.mesh)
    cuts = Cuts(layout, plan.padded_batch)
    model, context = cuts.model(plan.model, work), cuts.context(work)
    batch = cuts.batch(model, context if plan.phase == "prefill" else 1)
    dtypes = dtypes or plan.dtypes
    priced = changed(dtypes, compute="bf16")  # every chip has it
    small = Workload(phase=work.phase, batches=(batch,), context=context, dtypes=priced)
    bound = bind_layout(changed(layout.layout, mesh=mesh), components(model, small, loaded.programs))
    made = price_layout(bound, slice_, model, small, batch, batch, speeds(slice_.chip, priced))
    orders = {one.component: one.sequence_order for one in plan.layouts}
    layouts = tuple(changed(one, sequence_order=orders[one.component]) for one in made.layouts)
    return load(changed(made, dtypes=dtypes, layouts=layouts), loaded.programs)


def _stand_in(mesh: MeshAxes) -> tuple[Slice, MeshAxes]:
    """A slice with as many devices, on which the mesh lies row by row."""
    long = [size > 1 for size in mesh.axis_sizes]
    if sum(long) >= len(STAND_INS):
        raise Unavailable(f"the mesh has {sum(long)} axes longer than 1; at most {len(STAND_INS) - 1} can be shrunk")
    slice_ = parse_slice(STAND_INS[sum(long)])
    free = [Piece(n, s, 2) for n, axis in enumerate(slice_.axes) for s in (2, 1) if axis.size > s]
    return slice_, mesh_of(slice_, [(free.pop(0),) if is_long else () for is_long in long], mesh.axis_names)


@dataclass(frozen=True)
class Cut:
    """A dim's cut: the least common multiple of its parts before and after, and its padded size before."""

    before: int = 1
    after: int = 1
    padded: int = 1

    def size(self, least: int) -> int:
        """A size of at least `least` that all its cuts divide, or, where it was cut into single elements, just that."""
        if self.padded == self.before:
            return self.after
        return self.after * max(2, -(-least // self.after))


@dataclass(frozen=True)
class Cuts:
    """The cuts of every dim of every component of a layout at a batch."""

    layout: BoundLayout
    padded_batch: int

    @cached_property
    def _bound(self) -> tuple[Bound, ...]:
        return programs(self.layout)

    def of(self, dim: str, component: str | None = None) -> Cut:
        """The cuts of a dim in one component, or in all."""
        cut = Cut()
        for b in self._bound:
            if component in (None, b.component.name) and dim in {name for name, _ in b.source.needs.divides}:
                cut = self._joined(cut, b, dim)
        return cut if cut.padded > 1 or cut.before > 1 else replace(cut, padded=self._uncut(dim, component))

    def _joined(self, cut: Cut, b: Bound, dim: str) -> Cut:
        before, after = cut.before, cut.after
        for name, letters in b.source.needs.divides:
            if name == dim:
                mask = sum((int(b.masks[axis][0, 0]) for axis in letters), 0)
                before, after = lcm(before, self._ways(mask, False)), lcm(after, self._ways(mask, True))
        return Cut(before, after, max(cut.padded, self._padded(b).get(dim, 1)))

    def _ways(self, mask: int, small: bool) -> int:
        sizes = self.layout.mesh.axis_sizes
        return int(np.prod([min(s, 2) if small else s for i, s in enumerate(sizes) if mask >> i & 1], dtype=int))

    def _padded(self, b: Bound) -> dict[str, int]:
        n = np.array([self._ways(mask, False) for mask in range(1 << len(self.layout.names))])
        sizes = fit_part(b.source, b.component, Rates(n, n < 0, {}, {}), b.masks, np.array([[self.padded_batch]])).sizes
        return {name: int(np.max(size)) for name, size in sizes.items()}

    def _uncut(self, dim: str, component: str | None) -> int:
        """The size of a dim that nothing cuts."""
        sizes = [self._padded(b).get(dim, 1) for b in self._bound if component in (None, b.component.name)]
        return max(sizes, default=1)

    def batch(self, model: Model, tokens: int) -> int:
        """The batch, which is not padded; every expert has a whole number of slots on each shard of the tokens."""
        size = self.of("B").size(LEAST["B"])
        for name, mlp in {a.component.name: _mlp_of(model, a.component) for a in self.layout.assigned}.items():
            if mlp and mlp.moe:
                slots = self.of("C", name).after * mlp.E
                size = lcm(size, slots // gcd(slots, tokens * mlp.k))
        return size

    def context(self, work: Workload) -> int:
        """The context: prompts, or room for them and for the steps to decode; twice as long as every window."""
        names = ("S",) if work.phase == "decode" else ("T", "S")
        cuts = [self.of(name, a.component.name) for a in self.layout.assigned for name in names]
        after = lcm(*(cut.after for cut in cuts)) * (2 if work.phase == "prefill" else 1)  # zigzag: two chunks each
        least = max(LEAST[names[0]], 2 * LEAST["window"], 2 * after)
        return after * -(-least // after)

    def model(self, model: Model, work: Workload) -> Model:
        """The shrunken model; components that were different stay different."""
        context, seen = self.context(work), dict[object, Any]()
        groups = tuple(self._group(g, n, work.context, context, seen) for n, g in enumerate(model.groups))
        V = _again_padded(self.of("V"), model.V, LEAST["V"])
        return changed(model, D=self.of("D").size(LEAST["D"]), V=V, groups=groups, max_context=None)

    def _group(self, group: LayerGroup, number: int, before: int, after: int, seen: dict[object, Any]) -> LayerGroup:
        names = {a.component.kind: a.component.name for a in self.layout.assigned if number in a.component.groups}
        of_attention = names.get("attention") or names["block"]
        of_mlp = names.get("mlp") or names.get("moe") or names["block"]
        if of_attention not in seen:
            seen[of_attention] = self._attention(group.attention, of_attention, before, after, seen)
        mlp = ("mlp", of_mlp)
        if mlp not in seen:
            seen[mlp] = self._mlp(group.mlp, of_mlp, [v for k, v in seen.items() if isinstance(k, tuple)])
        return changed(group, count=min(group.count, LAYERS), attention=seen[of_attention], mlp=seen[mlp])

    def _attention(self, a: Attention, name: str, before: int, after: int, seen: Mapping[object, Any]) -> Attention:
        K, M = self._heads(a, name)
        window = a.window
        if window is not None:
            held = self.of("S", name).after
            window = held * -(-LEAST["window"] // held) if window < before else after
        smaller = changed(a, N=K * M, K=K, H=HEAD_DIM, window=window)
        while smaller in seen.values():
            smaller = changed(smaller, H=smaller.H + 2)
        return smaller

    def _heads(self, a: Attention, name: str) -> tuple[int, int]:
        n, k, m = (self.of(dim, name) for dim in "NKM")
        if a.M == 1:
            k = Cut(lcm(k.before, n.before), lcm(k.after, n.after), a.K)
        K = 1 if a.K == 1 else max(k.size(2), 1)
        if a.M == 1:
            return K, 1
        padded, needed = max(n.padded // a.K, m.padded, a.M), max(n.before // a.K, m.before, 1)
        step = lcm(n.after // np.gcd(K, n.after), m.after)
        return K, _again_padded(Cut(needed, max(int(step), 1), padded), a.M, 2)

    def _mlp(self, m: Mlp, name: str, seen: Sequence[Mlp]) -> Mlp:
        F = _again_padded(self.of("F", name), m.F, LEAST["F"])
        E = _again_padded(self.of("E", name), m.E, LEAST["E"]) if m.moe else 1
        smaller = changed(m, F=F, E=E, k=1 if m.k == 1 or E == 1 else max(1, min(2, E - 1)))
        while smaller in seen:
            smaller = changed(smaller, F=smaller.F + F)
        return smaller


def _mlp_of(model: Model, component: Component) -> Mlp | None:
    return model.groups[component.groups[0]].mlp if component.kind == "moe" else None


def _again_padded(cut: Cut, real: int, least: int) -> int:
    """A size that is padded again (by less than 25%) where the real one was and that can be; at least 2 if it was."""
    size = cut.size(least)
    if real != cut.padded and cut.after > 1 and size >= 5:
        return size - 1
    return max(size, min(real, 2))
