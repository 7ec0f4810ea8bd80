"""Do the dims divide: what a program asks of sizes, held against arrays of assignments at once.

Dims that a program may pad grow to the next multiple, by at most 25%; D never. N is padded through M = N/K,
since every KV head keeps the same number of query heads.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from strategies.checker import Requirements
from strategies.notation import Axes
from strategies.prices import Number
from strategies.rates import Ints

LARGEST_PADDING = 1.25


@dataclass
class Fit:
    """Sizes after padding (of dims that may not be padded, as they are), and which rows and batches are possible."""

    sizes: dict[str, Number]
    ok: NDArray[np.bool_]
    failures: list[tuple[str, str, NDArray[np.bool_], Ints]] = field(default_factory=list)

    def need(self, dim: str, reason: str, ok: NDArray[np.bool_], ways: Ints) -> None:
        """Rule out the rows that break a need, and remember how many that were otherwise possible it broke."""
        bad = self.ok & ~ok
        if bad.any():
            self.failures.append((dim, reason, bad, np.broadcast_to(ways, bad.shape)))
        self.ok = self.ok & ok


def fit(
    needs: Requirements,
    dims: Mapping[str, float],
    pad: Sequence[str],
    batches: Ints,
    ways: Callable[[Axes], Ints],
    rows: int,
) -> Fit:
    """Sizes and possibility of every row: `ways` gives columns [rows, 1]; `batches` is a row [1, columns]."""
    parts = _parts(needs, ways)
    found = Fit(dict(dims), np.ones((rows, batches.shape[1]), dtype=bool))
    _fit_heads(found, needs, dims, pad, parts, ways)
    for name, cut in sorted(parts.items()):
        if name in ("N", "M", "K", "B") or name not in dims:
            continue
        _fit_dim(found, name, np.int64(dims[name]), cut, name in pad)
    cut = parts.get("B", np.ones((rows, 1), dtype=np.int64))
    found.sizes["B"] = _fit_dim(found, "B", batches, cut, "B" in pad)
    return found


def _parts(needs: Requirements, ways: Callable[[Axes], Ints]) -> dict[str, Ints]:
    """How many ways each dim must divide: the least common multiple over all its cuts."""
    parts: dict[str, Ints] = {}
    for name, axes in needs.divides:
        cut = ways(axes)
        parts[name] = np.lcm(parts[name], cut) if name in parts else cut
    return parts


def _fit_dim(found: Fit, name: str, size: Number, cut: Ints, may_pad: bool) -> Number:
    values, row = np.unique(cut, return_inverse=True)  # few ways: cheaper than dividing every row
    ways = values[:, None]
    padded = -(-size // ways) * ways
    if may_pad:
        reason = f"{name} does not divide, and padding it would add more than 25%"
        found.need(name, reason, (padded <= LARGEST_PADDING * size)[row.reshape(-1)], cut)
        size = padded[row.reshape(-1)]
    else:
        found.need(name, f"{name} does not divide", (padded == size)[row.reshape(-1)], cut)
    found.sizes[name] = size
    return size


def _fit_heads(
    found: Fit,
    needs: Requirements,
    dims: Mapping[str, float],
    pad: Sequence[str],
    parts: Mapping[str, Ints],
    ways: Callable[[Axes], Ints],
) -> None:
    if "K" not in dims or not {"N", "K", "M"} & set(parts):
        return
    K, M = int(dims["K"]), int(dims["M"])
    whole = np.ones((1, 1), dtype=np.int64)
    heads = parts.get("N", whole)
    cut = parts.get("K", whole)
    found.need("K", "KV heads do not divide", K % cut == 0, cut)
    for need in needs.whole:
        reason = "query heads of a group may be cut only where the KV heads are cut fully"
        found.need("M", reason, (ways(need.by) == 1) | (ways(need.axes) == K), ways(need.by))
    step = np.lcm(heads // np.gcd(K, heads), parts.get("M", whole))
    padded = -(-M // step) * step
    if "M" in pad:
        reason = "query heads do not divide, and padding them would add more than 25%"
        found.need("N", reason, padded <= LARGEST_PADDING * M, heads)
        found.sizes["M"], found.sizes["N"] = padded, padded * K
    else:
        found.need("N", "query heads do not divide", padded == M, heads)
