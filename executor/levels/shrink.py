"""Shrink a plan's model and mesh until its layouts can run on the CPU devices of a host.

Every mesh axis longer than 1 becomes 2 long. A dim whose shards have one element each keeps shards of one element; a
dim with larger shards keeps shards of at least two. A dim that was padded is padded again if 25% of padding allow it.
The batch of a mixture of experts may grow, so that each expert has a whole number of slots. The model's features stay:
MHA, GQA or MQA, gates, biases, windows, parallel blocks, experts, tied embeddings.

The result is a full plan on a stand-in slice of a built-in chip with as many devices; its priced seconds say nothing
about the original plan.
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
STAND_INS = ("v5e:1x1", "h100:2", "v5e:2x2", "v5p:2x2x2", "v5p:2x2x4")  # index: number of mesh axes longer than 1
LAYERS, HEAD_DIM, STEPS = 2, 8, 16
MINIMUM_SIZES = {"D": 32, "F": 16, "V": 40, "E": 4, "B": 4, "T": 16, "S": 32, "window": 8}


def shrink(loaded: Loaded, dtypes: Dtypes | None = None) -> Loaded:
    """Return the plan's layouts on a shrunken model and mesh, priced again on a slice of a built-in chip.

    `dtypes`: the dtypes of the shrunken plan; None keeps the plan's own. Raises `InputError` if the layouts do not fit
    the shrunken model, `Unavailable` if the mesh has more axes longer than 1 than the stand-in slices allow.
    """
    plan, layout, work = loaded.plan, loaded.layout, loaded.workload
    slice_, mesh = _stand_in(layout.mesh)
    cuts = Cuts(layout, plan.padded_batch)
    model, context = cuts.model(plan.model, work), cuts.context(work)
    batch = cuts.batch(model, context if plan.phase == "prefill" else 1)
    dtypes = dtypes or plan.dtypes
    priced_dtypes = changed(dtypes, compute="bf16")  # every chip has it
    small = Workload(phase=work.phase, batches=(batch,), context=context, dtypes=priced_dtypes)
    bound = bind_layout(changed(layout.layout, mesh=mesh), components(model, small, loaded.programs))
    priced_plan = price_layout(bound, slice_, model, small, batch, batch, speeds(slice_.chip, priced_dtypes))
    sequence_orders = {plan_layout.component: plan_layout.sequence_order for plan_layout in plan.layouts}
    layouts = tuple(
        changed(plan_layout, sequence_order=sequence_orders[plan_layout.component])
        for plan_layout in priced_plan.layouts
    )
    return load(changed(priced_plan, dtypes=dtypes, layouts=layouts), loaded.programs)


def _stand_in(mesh: MeshAxes) -> tuple[Slice, MeshAxes]:
    """Return a slice with as many devices as the shrunken mesh, and the mesh laid on its physical axes."""
    long = [size > 1 for size in mesh.axis_sizes]
    if sum(long) >= len(STAND_INS):
        raise Unavailable(f"the mesh has {sum(long)} axes longer than 1; at most {len(STAND_INS) - 1} can be shrunk")
    slice_ = parse_slice(STAND_INS[sum(long)])
    free = [Piece(n, s, 2) for n, axis in enumerate(slice_.axes) for s in (2, 1) if axis.size > s]
    return slice_, mesh_of(slice_, [(free.pop(0),) if is_long else () for is_long in long], mesh.axis_names)


@dataclass(frozen=True)
class Cut:
    """The sharding of a dim, before and after its mesh is shrunken.

    `before`, `after`: the least common multiple of its numbers of shards. `padded`: its padded size before.
    """

    before: int = 1
    after: int = 1
    padded: int = 1

    def size(self, minimum: int) -> int:
        """Return a shrunken size that the number of shards divides.

        A dim whose shards have one element each gets exactly `after`; any other dim at least `minimum`, in shards of
        two elements or more.

        >>> Cut(before=8, after=2, padded=8).size(32), Cut(before=8, after=2, padded=64).size(33)
        (2, 34)
        """
        if self.padded == self.before:
            return self.after
        return self.after * max(2, -(-minimum // self.after))


@dataclass(frozen=True)
class Cuts:
    """The sharding of every dim of every component of a layout, at a padded batch."""

    layout: BoundLayout
    padded_batch: int

    @cached_property
    def _bound(self) -> tuple[Bound, ...]:
        return programs(self.layout)

    def cut(self, dim: str, component: str | None = None) -> Cut:
        """Return how a dim is sharded in one component, or in all components together."""
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

    def _ways(self, mask: int, shrunken: bool) -> int:
        """Return the number of devices along the mesh axes of a bit mask, on the full or the shrunken mesh."""
        sizes = self.layout.mesh.axis_sizes
        return int(np.prod([min(s, 2) if shrunken else s for i, s in enumerate(sizes) if mask >> i & 1], dtype=int))

    def _padded(self, b: Bound) -> dict[str, int]:
        n = np.array([self._ways(mask, False) for mask in range(1 << len(self.layout.names))])
        sizes = fit_part(b.source, b.component, Rates(n, n < 0, {}, {}), b.masks, np.array([[self.padded_batch]])).sizes
        return {name: int(np.max(size)) for name, size in sizes.items()}

    def _uncut(self, dim: str, component: str | None) -> int:
        """Return the padded size of a dim that no mesh axis shards."""
        sizes = [self._padded(b).get(dim, 1) for b in self._bound if component in (None, b.component.name)]
        return max(sizes, default=1)

    def batch(self, model: Model, tokens: int) -> int:
        """Return a batch that needs no padding and gives every expert a whole number of slots on each token shard.

        `tokens`: tokens of one sequence in a step, T in prefill and 1 in decode.
        """
        batch = self.cut("B").size(MINIMUM_SIZES["B"])
        for name, mlp in {a.component.name: _mlp_of(model, a.component) for a in self.layout.assigned}.items():
            if mlp and mlp.moe:
                slots = self.cut("C", name).after * mlp.E
                batch = lcm(batch, slots // gcd(slots, tokens * mlp.k))
        return batch

    def context(self, work: Workload) -> int:
        """The context: prompts, or room for them and for the steps to decode; twice as long as every window."""
        names = ("S",) if work.phase == "decode" else ("T", "S")
        cuts = [self.cut(name, a.component.name) for a in self.layout.assigned for name in names]
        after = lcm(*(cut.after for cut in cuts)) * (2 if work.phase == "prefill" else 1)  # zigzag: two chunks each
        minimum = max(MINIMUM_SIZES[names[0]], 2 * MINIMUM_SIZES["window"], 2 * after)
        return after * -(-minimum // after)

    def model(self, model: Model, work: Workload) -> Model:
        """The shrunken model; components that were different stay different."""
        context, seen = self.context(work), dict[object, Any]()
        groups = tuple(self._group(g, n, work.context, context, seen) for n, g in enumerate(model.groups))
        V = _padded_again(self.cut("V"), model.V, MINIMUM_SIZES["V"])
        return changed(model, D=self.cut("D").size(MINIMUM_SIZES["D"]), V=V, groups=groups, max_context=None)

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
            shards = self.cut("S", name).after
            window = shards * -(-MINIMUM_SIZES["window"] // shards) if window < before else after
        shrunken = changed(a, N=K * M, K=K, H=HEAD_DIM, window=window)
        while shrunken in seen.values():
            shrunken = changed(shrunken, H=shrunken.H + 2)
        return shrunken

    def _heads(self, a: Attention, name: str) -> tuple[int, int]:
        n, k, m = (self.cut(dim, name) for dim in "NKM")
        if a.M == 1:
            k = Cut(lcm(k.before, n.before), lcm(k.after, n.after), a.K)
        K = 1 if a.K == 1 else max(k.size(2), 1)
        if a.M == 1:
            return K, 1
        padded, needed = max(n.padded // a.K, m.padded, a.M), max(n.before // a.K, m.before, 1)
        step = lcm(n.after // np.gcd(K, n.after), m.after)
        return K, _padded_again(Cut(needed, max(int(step), 1), padded), a.M, 2)

    def _mlp(self, m: Mlp, name: str, seen: Sequence[Mlp]) -> Mlp:
        F = _padded_again(self.cut("F", name), m.F, MINIMUM_SIZES["F"])
        E = _padded_again(self.cut("E", name), m.E, MINIMUM_SIZES["E"]) if m.moe else 1
        shrunken = changed(m, F=F, E=E, k=1 if m.k == 1 or E == 1 else max(1, min(2, E - 1)))
        while shrunken in seen:
            shrunken = changed(shrunken, F=shrunken.F + F)
        return shrunken


def _mlp_of(model: Model, component: Component) -> Mlp | None:
    return model.groups[component.groups[0]].mlp if component.kind == "moe" else None


def _padded_again(cut: Cut, real: int, minimum: int) -> int:
    """Return a shrunken real size; one less than a multiple of the shards if the real dim was padded too.

    The padding stays below 25%, and a real dim of 2 or more stays at least 2.
    """
    size = cut.size(minimum)
    if real != cut.padded and cut.after > 1 and size >= 5:
        return size - 1
    return max(size, min(real, 2))
