"""What a mesh's groups of axes cost, as tables that pricing indexes by a set of mesh axes (a bit mask)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from mesh.collectives import Group, group
from mesh.errors import InputError
from mesh.pieces import Piece
from mesh.slices import Slice

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Flags = NDArray[np.bool_]

KINDS = ("AllGather", "ReduceScatter", "AllReduce", "AllToAll", "CollectivePermute")


@dataclass(frozen=True)
class Rates:
    """Tables over the 2^k sets of mesh axes: devices, and per kind seconds per byte and seconds of hops.

    `reduced`: where a ReduceScatter runs, and is priced, as an AllReduce (`Slice.reduces_whole`).
    """

    n: Ints
    reduced: Flags
    s_per_byte: dict[str, Floats]
    hops_s: dict[str, Floats]


def tabulate_rates(slice_: Slice, axes: Sequence[Sequence[Piece]]) -> Rates:
    """The tables of a mesh whose axes are made of these pieces.

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
    gather = np.array([g.all_gather_s_per_byte if g else np.inf for g in groups])
    hop = np.array([g.hops * g.hop_latency_s if g else np.inf for g in groups])
    swap = np.array([g.all_to_all_s_per_byte if g else np.inf for g in groups])
    shift = np.array([g.permute_s_per_byte if g else np.inf for g in groups])
    shift_hop = np.array([g.permute_hops * g.hop_latency_s if g else np.inf for g in groups])
    reduced = (n == slice_.devices) & slice_.reduces_whole & (n > 1)
    once = np.where(reduced, 2.0, 1.0)
    return Rates(
        n,
        reduced,
        dict(zip(KINDS, (gather, once * gather, 2 * gather, swap, shift), strict=True)),
        dict(zip(KINDS, (hop, once * hop, 2 * hop, hop, shift_hop), strict=True)),
    )


def _group(slice_: Slice, pieces: list[Piece]) -> Group | None:
    try:
        return group(slice_, pieces)
    except InputError:
        return None
