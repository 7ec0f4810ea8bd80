"""Do the dims divide: what a program asks of sizes, held against arrays of assignments at once.

Dims that a program may pad grow to the next multiple, by at most 25%; D never. N is padded through M = N/K,
since every KV head keeps the same number of query heads.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from strategies.checker import Requirements
from strategies.notation import Axes
from strategies.prices import Number
from strategies.readers.rates import Ints

LARGEST_PADDING = 1.25


Ways = Callable[[Axes], Ints]
"""In how many ways program axes cut: [rows, 1], or of the classes that `Classes` gives."""
Classes = Callable[[frozenset[Axes]], tuple[Ways, Ints | None]]
"""The ways of each class of rows that these axes cut alike, and the class of each row [rows]; None: all differ."""


@dataclass
class PaddedSizes:
    """Sizes after padding (of dims that may not be padded, as they are), and which rows and batches are possible."""

    sizes: dict[str, Number]
    ok: NDArray[np.bool_]
    failures: list[tuple[str, str, NDArray[np.bool_], Ints]] = field(default_factory=list)

    def need(self, dim: str, reason: str, ok: NDArray[np.bool_], ways: Ints, row: Ints | None) -> None:
        """Rule out the rows that break a need, and remember how many that were otherwise possible it broke."""
        if ok.all():
            return
        ok = _spread(ok, row)
        bad = self.ok & ~ok
        if bad.any():
            self.failures.append((dim, reason, bad, np.broadcast_to(_spread(ways, row), bad.shape)))
            self.ok = self.ok & ok


def _spread(by_class: NDArray[Any], row: Ints | None) -> NDArray[Any]:
    return by_class[row] if row is not None and len(by_class) > 1 else by_class


def fit(
    needs: Requirements,
    dims: Mapping[str, float],
    pad: Sequence[str],
    batches: Ints,
    ways: Ways,
    rows: int,
    classes: Classes | None = None,
) -> PaddedSizes:
    """Sizes and possibility of every row: `ways` gives columns [rows, 1]; `batches` is a row [1, columns].

    With `classes` each dim is looked at once for all rows that cut it alike.
    """
    cuts: dict[str, list[Axes]] = {}
    for name, axes in needs.divides:
        cuts.setdefault(name, []).append(axes)
    look = classes or (lambda _: (ways, None))
    sizes = PaddedSizes(dict(dims), np.ones((rows, 1), dtype=bool))
    _fit_heads(sizes, needs, dims, pad, cuts, look)
    for name in sorted(cuts):
        if name not in ("N", "M", "K", "B") and name in dims:
            sizes.sizes[name] = _fit_dim(sizes, name, int(dims[name]), cuts[name], look, name in pad)
    sizes.sizes["B"] = _fit_dim(sizes, "B", batches, cuts.get("B", []), look, "B" in pad)
    sizes.ok = np.broadcast_to(sizes.ok, (rows, batches.shape[1]))
    return sizes


def _lcm(ways: Ways, every: Sequence[Axes]) -> Ints:
    """Return the number of ways that a dim must divide: the least common multiple over all its cuts."""
    total: Ints = np.ones((1, 1), dtype=np.int64)
    for axes in every:
        total = np.lcm(total, ways(axes))
    return total


def _fit_dim(sizes: PaddedSizes, name: str, size: Number, cuts: Sequence[Axes], look: Classes, may_pad: bool) -> Number:
    ways, row = look(frozenset(cuts))
    cut = _lcm(ways, cuts)
    padded = -(-size // cut) * cut
    if may_pad:
        reason = f"{name} does not divide, and padding it would add more than 25%"
        sizes.need(name, reason, padded <= LARGEST_PADDING * size, cut, row)
        return _spread(padded, row)
    sizes.need(name, f"{name} does not divide", padded == size, cut, row)
    return size


def _fit_heads(
    sizes: PaddedSizes,
    needs: Requirements,
    dims: Mapping[str, float],
    pad: Sequence[str],
    cuts: Mapping[str, Sequence[Axes]],
    look: Classes,
) -> None:
    if "K" not in dims or not {"N", "K", "M"} & set(cuts):
        return
    K, M = int(dims["K"]), int(dims["M"])
    asked = {axes for name in ("N", "K", "M") for axes in cuts.get(name, ())}
    ways, row = look(frozenset(asked | {axes for need in needs.whole for axes in (need.by, need.axes)}))
    heads, cut = _lcm(ways, cuts.get("N", ())), _lcm(ways, cuts.get("K", ()))
    sizes.need("K", "KV heads do not divide", K % cut == 0, cut, row)
    for need in needs.whole:
        reason = "query heads of a group may be cut only where the KV heads are cut fully"
        sizes.need("M", reason, (ways(need.by) == 1) | (ways(need.axes) == K), ways(need.by), row)
    step = np.lcm(heads // np.gcd(K, heads), _lcm(ways, cuts.get("M", ())))
    padded = -(-M // step) * step
    if "M" in pad:
        reason = "query heads do not divide, and padding them would add more than 25%"
        sizes.need("N", reason, padded <= LARGEST_PADDING * M, heads, row)
        sizes.sizes["M"] = _spread(padded, row)
        sizes.sizes["N"] = sizes.sizes["M"] * K
    else:
        sizes.need("N", "query heads do not divide", padded == M, heads, row)
