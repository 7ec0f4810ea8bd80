"""Seconds per byte of collectives over a mesh's groups of axes, as tables indexed by a set of axes (a bit mask)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mesh.chips import Reached
from mesh.collectives import Group, group
from mesh.errors import InputError
from mesh.pieces import Piece
from mesh.slices import Slice
from strategies.kinds import KINDS, Kind
from strategies.readers.overlap import collective_s

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Flags = NDArray[np.bool_]


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
    reduced = (n == slice_.devices) & slice_.reduces_whole & (n > 1)
    tables = {name: _tables(kind, groups, reached) for name, kind in KINDS.items()}
    for name, kind in KINDS.items():
        if kind.whole_as is not None:
            own, whole = tables[name], tables[kind.whole_as]
            tables[name] = [np.where(reduced, w, o) for o, w in zip(own, whole, strict=True)]
    launch_s = reached.launch_s if reached else 0.0
    return Rates(
        n,
        reduced,
        {name: s_per_byte for name, (s_per_byte, _, _) in tables.items()},
        {name: hops_s + launch_s * launches for name, (_, hops_s, launches) in tables.items()},
        {name: launches for name, (_, _, launches) in tables.items()},
        launch_s,
        additive=reached is not None,
    )


def _tables(kind: Kind, groups: Sequence[Group | None], reached: Reached | None) -> list[NDArray[Any]]:
    """Return, for every group, seconds per byte, seconds of hops, and launches."""
    share, slower = (reached.link, reached.hop) if reached else (1.0, 1.0)
    s_per_byte = [kind.s_per_byte(g, reached is not None) / share if g else np.inf for g in groups]
    hops_s = [kind.hops(g) * g.hop_latency_s * slower if g else np.inf for g in groups]
    return [np.array(s_per_byte), np.array(hops_s), np.array([kind.phases(g) if g else 0 for g in groups])]


def _group(slice_: Slice, pieces: list[Piece]) -> Group | None:
    try:
        return group(slice_, pieces)
    except InputError:
        return None
