"""What a mesh's groups of axes cost, as tables that pricing indexes by a set of mesh axes (a bit mask)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from mesh.collectives import Group, group
from mesh.errors import InputError
from mesh.pieces import Piece
from mesh.slices import Slice
from strategies.readers.overlap import collective_s

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Flags = NDArray[np.bool_]

KINDS = ("AllGather", "ReduceScatter", "AllReduce", "AllToAll", "CollectivePermute")


@dataclass(frozen=True)
class Rates:
    """Tables over the 2^k sets of mesh axes: devices, and per kind seconds per byte and seconds of hops and launches.

    `reduced`: where a ReduceScatter runs, and is priced, as an AllReduce (`Slice.reduces_whole`). `launches` are the
    phases of each kind, in `latency_s` with `launch_s` each. `additive`: both terms of a collective count, as
    measured ones do; else the longer one, as in the book's bounds.
    """

    n: Ints
    reduced: Flags
    s_per_byte: dict[str, Floats]
    latency_s: dict[str, Floats]
    launches: dict[str, Ints] = field(default_factory=dict)
    launch_s: float = 0.0
    additive: bool = False

    def seconds(self, kind: str, nbytes: float, mask: int = 1) -> float:
        """Seconds of one collective over a set of mesh axes (the first) that ends with so many bytes."""
        return float(collective_s(self.s_per_byte[kind][mask] * nbytes, self.latency_s[kind][mask], self.additive))


def tabulate_rates(slice_: Slice, axes: Sequence[Sequence[Piece]]) -> Rates:
    """The tables of a mesh whose axes are made of these pieces, at what the chip's programs reach, if it says that.

    A set whose pieces are not adjacent on a physical axis has infinite rates: it is not a group to plan with.
    """
    groups = [
        _group(slice_, [p for i, pieces in enumerate(axes) if mask >> i & 1 for p in pieces])
        for mask in range(1 << len(axes))
    ]
    n = np.array(
        [
            np.prod([p.size for i, ps in enumerate(axes) if m >> i & 1 for p in ps], dtype=np.int64)
            for m in range(1 << len(axes))
        ]
    )
    reached = slice_.chip.reached
    share, slower, launch_s = (reached.link, reached.hop, reached.launch_s) if reached else (1.0, 1.0, 0.0)
    gather = _of(groups, lambda g: (g.all_gather_in_turn_s_per_byte if reached else g.all_gather_s_per_byte) / share)
    swap = _of(groups, lambda g: g.all_to_all_s_per_byte / share)
    shift = _of(groups, lambda g: g.permute_s_per_byte / share)
    hop = _of(groups, lambda g: g.hops * g.hop_latency_s * slower)
    shift_hop = _of(groups, lambda g: g.permute_hops * g.hop_latency_s * slower)
    phases = np.array([g.phases if g else 0 for g in groups])
    single = np.minimum(phases, 1)
    reduced = (n == slice_.devices) & slice_.reduces_whole & (n > 1)
    once = np.where(reduced, 2, 1)
    launches = dict(zip(KINDS, (phases, once * phases, 2 * phases, single, single), strict=True))
    hops = dict(zip(KINDS, (hop, once * hop, 2 * hop, hop, shift_hop), strict=True))
    return Rates(
        n,
        reduced,
        dict(zip(KINDS, (gather, once * gather, 2 * gather, swap, shift), strict=True)),
        {kind: hops[kind] + launch_s * launches[kind] for kind in KINDS},
        launches,
        launch_s,
        additive=reached is not None,
    )


def _of(groups: Sequence[Group | None], rate: Callable[[Group], float]) -> Floats:
    return np.array([rate(g) if g else np.inf for g in groups])


def _group(slice_: Slice, pieces: list[Piece]) -> Group | None:
    try:
        return group(slice_, pieces)
    except InputError:
        return None
