"""Pricing many assignments at once: every row is a choice of roles for the mesh axes, every column a batch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from strategies.components import IDLE, Body, Component, Part
from strategies.cost import ArrayScope, Speeds, Totals
from strategies.memory import cache_bytes, peak_activation_bytes, weight_bytes
from strategies.prices import Number
from strategies.rates import Floats, Ints, Rates
from strategies.shared import Plays, price_shared
from strategies.sizes import Fit, fit

Rows = NDArray[np.int8]


@dataclass(frozen=True)
class Table:
    """Priced assignments of one body: `rows` [rows, mesh axes] of indices into `choices`; the rest [rows, columns].

    Seconds are of one layer, `wait_s` and `spare_s` as in `Totals`, the latter as far as VMEM has room;
    `stored_bytes` (weights and cache) are of all the component's layers, per device.
    """

    body: Body
    choices: tuple[str, ...]
    rows: Rows
    ok: NDArray[np.bool_]
    step_s: Floats
    wait_s: Floats
    spare_s: Floats
    stored_bytes: Floats
    peak_bytes: Floats
    rejected: tuple[tuple[str, str, int, dict[str, float]], ...]
    evaluations: int


def enumerate_rows(choices: int, axes: int) -> Rows:
    """Every assignment of `choices` roles to `axes` mesh axes."""
    return np.indices((choices,) * axes, dtype=np.int8).reshape(axes, choices**axes).T


def masks_of(rows: Rows, choices: Sequence[str]) -> dict[str, Ints]:
    """For each program axis, the set of mesh axes that play it, as bits: [rows, 1]."""
    bits = 1 << np.arange(rows.shape[1], dtype=np.int64)
    return {
        axis: ((rows == i) * bits).sum(axis=1, dtype=np.int64)[:, None]
        for i, axis in enumerate(choices)
        if axis != IDLE
    }


def price_body(
    component: Component, body: Body, rates: Rates, fast: Speeds, batches: Ints, allowed: Sequence[frozenset[str]]
) -> Table:
    """Price every assignment of a body; `allowed[i]` are the program axes that mesh axis i may play."""
    choices = (*body.axes, IDLE)
    rows, plays = _assignments(body, tuple(allowed))
    fits = [fit_part(part, component, rates, plays.masks, batches) for part in body.parts]
    ok = np.logical_and.reduce([f.ok for f in fits])
    rejected = tuple(r for f in fits for r in _rejections(f, component, batches))
    alive = np.flatnonzero(ok.any(axis=1))
    total, stored, peak = Totals(), 0.0, 0.0
    for number, (part, found) in enumerate(zip(body.parts, fits, strict=True)):
        every = scope_of(part, found.sizes, plays.masks, rates, fast)
        price_shared(every, part.needs, plays, fast, total, alive)
        scope = every.take(alive)
        weights = 0.0 if component.tied and number else weight_bytes(scope)
        stored = stored + component.times * (weights + cache_bytes(scope))
        peak = np.maximum(peak, peak_activation_bytes(scope))
    shape = (len(alive), batches.shape[1])
    return Table(
        body,
        choices,
        rows[alive],
        ok[alive],
        np.broadcast_to(total.step_s, shape),
        np.broadcast_to(total.wait_s, shape),
        np.broadcast_to(np.minimum(total.spare_s, fast.prefetch_s), shape),
        np.broadcast_to(stored, shape),
        np.broadcast_to(peak, shape),
        rejected,
        int(ok.sum()),
    )


@lru_cache(maxsize=256)
def _assignments(body: Body, allowed: tuple[frozenset[str], ...]) -> tuple[Rows, Plays]:
    """Every assignment of a body's roles to mesh axes: slices and meshes of equally many axes share them."""
    choices = (*body.axes, IDLE)
    rows = enumerate_rows(len(choices), len(allowed))
    for i, names in enumerate(allowed):
        rows = rows[np.isin(rows[:, i], [n for n, c in enumerate(choices) if c in names])]
    rows = _required_rows(rows, body, choices)
    return rows, Plays(masks_of(rows, choices), len(rows))


def _required_rows(rows: Rows, body: Body, choices: Sequence[str]) -> Rows:
    """Rows in which some mesh axis plays a role that the program requires; without it the program is another's."""
    required = {axis for part in body.parts for axis in part.program.requires}
    if not required:
        return rows
    return rows[np.isin(rows, [i for i, axis in enumerate(choices) if axis in required]).any(axis=1)]


def fit_part(part: Part, component: Component, rates: Rates, masks: Mapping[str, Ints], batches: Ints) -> Fit:
    """Sizes of a part's dims for every row, and which rows are possible."""
    rows = len(next(iter(masks.values()))) if masks else 1
    return fit(part.needs, component.dims, part.program.pad, batches, lambda axes: _ways(axes, masks, rates), rows)


def _ways(axes: Sequence[str], masks: Mapping[str, Ints], rates: Rates) -> Ints:
    return rates.n[sum((masks[axis] for axis in axes), np.zeros((1, 1), dtype=np.int64))]


def _rejections(found: Fit, component: Component, batches: Ints) -> list[tuple[str, str, int, dict[str, float]]]:
    result = []
    for dim, reason, bad, ways in found.failures:
        row, column = np.unravel_index(int(bad.argmax()), bad.shape)
        size = float(batches[0, column]) if dim == "B" else component.dims[dim]
        example = {"ways": float(ways[row, column]), dim: size}
        result.append((component.name, reason, int(bad.any(axis=1).sum()), example))
    return result


def _slot_axes(part: Part) -> Sequence[str]:
    """The program axes that cut the slots of experts where tokens are dispatched."""
    return next((s.outputs[0].axes("C") for s in part.program.steps if s.op == "Dispatch"), ())


def scope_of(
    part: Part, sizes: Mapping[str, Number], masks: Mapping[str, Ints], rates: Rates, fast: Speeds
) -> ArrayScope:
    """A scope over rows, with the quantities that depend on the batch.

    `C` slots per expert are whole on every shard of the tokens: n ceil(tokens k / (E n)), cut n ways.
    """
    tokens = sizes["B"] * sizes.get("T", 1)
    extra: dict[str, Number] = {"tokens": tokens}
    if "experts" in sizes:
        shards = _ways(_slot_axes(part), masks, rates)
        extra["C"] = shards * np.ceil(tokens * sizes["k"] / (sizes["experts"] * shards))
    return ArrayScope(part.program, masks, {**sizes, **extra}, rates, fast.widths)
