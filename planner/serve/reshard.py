"""Price moving tensors of one plan into the layout of another, on the same slice: bytes over ICI, and seconds.

Every device has its box of a tensor in both layouts. A move is the cheaper of two ways:
[1] an AllToAll in which each device receives the missing parts of its new box;
[2] where the new layout has c copies of an entry: an AllToAll of 1/c of the box each (nothing, where the new box
    is a union of old ones), then an AllGather of the box over the copies.
AllToAlls are priced over the whole physical axes whose cuts differ, with the traffic spread evenly over them; with
all tensors of a move in one. Bytes that stay on a device are read and written once in HBM.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil, prod

import numpy as np

from mesh.pieces import Piece
from mesh.slices import Slice
from planner.plan.file_serving import Reshard
from planner.plan.plan import Plan
from planner.plan.transfer import gather_s, swap_s
from strategies.models.workload import dtype_bytes
from strategies.readers.rates import Floats, Ints
from strategies.readers.specs import TensorSpec

Cut = tuple[Piece, ...]
NORM = "/norm"


@dataclass(frozen=True)
class Box:
    """The cut of a tensor by a layout: per dim its pieces of the torus, major first."""

    dims: Mapping[str, Cut]

    @property
    def ways(self) -> int:
        """Number of different parts."""
        return prod(piece.size for cut in self.dims.values() for piece in cut)


def weight_names(plan: Plan) -> tuple[str, ...]:
    """Return the names of the plan's weights: its specs without the caches."""
    return tuple(name for name, spec in plan.specs.items() if not spec.is_cache)


def box(spec: TensorSpec, plan: Plan, slice_: Slice) -> Box:
    """Return how a plan cuts a tensor, in pieces of the torus that are merged where they are adjacent."""
    pieces = dict(zip(plan.mesh.axis_names, plan.mesh.on(slice_), strict=True))
    cuts = {
        dim: _merged([p for axis in axes for p in pieces[axis]]) for dim, axes in zip(spec.dims, spec.axes, strict=True)
    }
    return Box(cuts)


def _merged(pieces: Sequence[Piece]) -> Cut:
    """Return the pieces, major first, as few as possible: adjacent parts of a run are merged."""
    result: list[Piece] = []
    for piece in pieces:
        last = result[-1] if result else None
        if last and last.axis == piece.axis and last.stride == piece.stride * piece.size:
            result[-1] = Piece(piece.axis, piece.stride, last.size * piece.size)
        elif piece.size > 1:
            result.append(piece)
    return tuple(result)


def differing(first: Plan, second: Plan, slice_: Slice) -> tuple[str, ...]:
    """Return the weights that the plans do not store alike: shape, dtype, and the devices that store each part.

    The norms' vectors are left out: every device is counted to store them in full (`norms.norm_bytes`).
    """
    names = dict.fromkeys((*weight_names(first), *weight_names(second)))
    return tuple(n for n in names if not n.endswith(NORM) and not _alike(n, first, second, slice_))


def _alike(name: str, first: Plan, second: Plan, slice_: Slice) -> bool:
    """Return whether both plans store a weight alike."""
    a, b = first.specs.get(name), second.specs.get(name)
    if a is None or b is None or (a.shape, a.dtype) != (b.shape, b.dtype):
        return False
    return box(a, first, slice_) == box(b, second, slice_)


def weights_move(source: Plan, target: Plan, slice_: Slice) -> Reshard:
    """Return the move of the differing weights from the layout of one plan to that of the other."""
    return sum_of_moves([_weight_move(name, source, target, slice_) for name in differing(source, target, slice_)])


def _weight_move(name: str, source: Plan, target: Plan, slice_: Slice) -> Reshard:
    """Return the move of one weight, of all its layers."""
    spec = target.specs[name]
    before, after = (box(plan.specs[name], plan, slice_) for plan in (source, target))
    nbytes = layers_of(target, name) * prod(spec.shape) * dtype_bytes(spec.dtype)
    return box_move(before, after, nbytes, slice_)


def layers_of(plan: Plan, name: str) -> int:
    """Return the number of layers that have the tensor of this name."""
    component = name.partition("/")[0]
    return next(layout.layers for layout in plan.layouts if layout.component == component)


def insert_move(prefill: Plan, decode: Plan, slice_: Slice) -> Reshard:
    """Return the move of one prefill step's caches into the slots of the decode's batch.

    Where either cuts B a request's slot may lie anywhere, and all of it moves: to the busiest part of the batch go
    ceil(p / ways) requests. Where either cuts S, positions lie in another order (zigzag, striped, another length), so
    a device has 1/ways of those it needs.
    """
    names = [name for layout in decode.layouts for name in decode.caches(layout.component)]
    return sum_of_moves([_cache_move(name, prefill, decode, slice_) for name in names])


def _cache_move(name: str, prefill: Plan, decode: Plan, slice_: Slice) -> Reshard:
    """Return the move of one cache of a prefill step."""
    before, after = (box(plan.specs[name], plan, slice_) for plan in (prefill, decode))
    spec = decode.specs[name]
    layout = next(candidate for candidate in decode.layouts if candidate.component == name.partition("/")[0])
    groups = [decode.model.groups[number] for number in layout.groups]
    elements = sum(group.count * group.attention.kv_elements(prefill.context) for group in groups)
    ways = prod(piece.size for piece in after.dims["B"])
    requests = ceil(prefill.batch / ways) * ways
    nbytes = requests * elements / len(decode.caches(layout.component)) * dtype_bytes(spec.dtype)
    return box_move(before, after, nbytes, slice_, frozenset("BS"))


def box_move(before: Box, after: Box, nbytes: float, slice_: Slice, elsewhere: frozenset[str] = frozenset()) -> Reshard:
    """Return the move of a tensor of `nbytes` from one cut into another.

    `elsewhere` has the dims whose positions differ where they are cut.
    """
    new_bytes = nbytes / after.ways
    kept_bytes = new_bytes * float(np.min(_overlaps(before, after, slice_, elsewhere)))
    differing = [dim for dim in after.dims if before.dims.get(dim, ()) != after.dims[dim]]
    if kept_bytes >= new_bytes * (1 - 1e-12):
        return _move(slice_, new_bytes, 0.0, 0.0, 0.0)
    axes = _whole_axes(slice_, before, after, differing or list(elsewhere))
    all_to_all_s = swap_s(slice_, axes, new_bytes - kept_bytes)
    gathered_pieces = _gathered_pieces(before, after, elsewhere)
    copy_pieces = _copied(after, slice_) if gathered_pieces is None else gathered_pieces
    first_bytes = 0.0 if gathered_pieces else new_bytes / prod(p.size for p in copy_pieces)
    gathered_s, swapped_s = gather_s(slice_, copy_pieces, new_bytes), swap_s(slice_, axes, first_bytes)
    if copy_pieces and gathered_s + swapped_s < all_to_all_s:
        return _move(slice_, new_bytes, new_bytes - kept_bytes, gathered_s, swapped_s)
    return _move(slice_, new_bytes, new_bytes - kept_bytes, 0.0, all_to_all_s)


def _move(slice_: Slice, new_bytes: float, received_bytes: float, gathered_s: float, swapped_s: float) -> Reshard:
    """Return the move of these bytes and seconds, with the copy in HBM."""
    reached = slice_.chip.reached.hbm if slice_.chip.reached else 1.0
    hbm_s = 2 * new_bytes / (slice_.chip.device_hbm_bytes_per_s * reached)
    seconds = gathered_s + swapped_s + hbm_s
    return Reshard(
        received_bytes=received_bytes, gathered_s=gathered_s, swapped_s=swapped_s, hbm_s=hbm_s, seconds=seconds
    )


def sum_of_moves(moves: Sequence[Reshard]) -> Reshard:
    """Return the sum of moves that run one after the other."""
    names = Reshard.__struct_fields__
    return Reshard(**{name: sum(getattr(move, name) for move in moves) for name in names})


def _whole_axes(slice_: Slice, before: Box, after: Box, dims: Sequence[str]) -> Cut:
    """Return the physical axes, uncut, that cut one of these dims in either layout."""
    axes = {p.axis for box_ in (before, after) for dim in dims for p in box_.dims.get(dim, ())}
    return tuple(Piece(axis, 1, slice_.axes[axis].size) for axis in sorted(axes))


def _copied(after: Box, slice_: Slice) -> Cut:
    """Return the pieces of the torus that cut no dim of the new layout: along them lie its copies."""
    cut = [piece for pieces in after.dims.values() for piece in pieces]
    free: list[Piece] = []
    for number, axis in enumerate(slice_.axes):
        reach = 1
        for piece in sorted((p for p in cut if p.axis == number), key=lambda p: p.stride):
            free.append(Piece(number, reach, piece.stride // reach))
            reach = piece.stride * piece.size
        free.append(Piece(number, reach, axis.size // reach))
    return tuple(piece for piece in free if piece.size > 1)


def _gathered_pieces(before: Box, after: Box, elsewhere: frozenset[str]) -> Cut | None:
    """Return the pieces over which a gather unites old boxes into new ones; None if new boxes are no such unions."""
    gathered: list[Piece] = []
    for dim, cut in after.dims.items():
        old, new = _digits(before.dims.get(dim, ())), _digits(cut)
        if (dim in elsewhere and (old or new)) or old[: len(new)] != new:
            return None
        gathered += old[len(new) :]
    return tuple(gathered)


def _digits(cut: Cut) -> list[Piece]:
    """Return the cut as its prime pieces, major first."""
    primes = []
    for piece in cut:
        left = piece.size
        for prime in _primes(piece.size):
            left //= prime
            primes.append(Piece(piece.axis, piece.stride * left, prime))
    return primes


def _primes(number: int) -> list[int]:
    """Return the prime factors of a number."""
    factors, divisor = [], 2
    while number > 1:
        while number % divisor == 0:
            factors.append(divisor)
            number //= divisor
        divisor += 1
    return factors


def _overlaps(before: Box, after: Box, slice_: Slice, elsewhere: frozenset[str]) -> Floats:
    """Return per device the share of its new box that it has already."""
    coords = np.indices([axis.size for axis in slice_.axes]).reshape(len(slice_.axes), -1)
    share = np.ones(slice_.devices)
    for dim, cut in after.dims.items():
        old = before.dims.get(dim, ())
        if dim in elsewhere and (old or cut):
            share *= 0.0 if dim == "B" else 1 / prod(piece.size for piece in old)
            continue
        (a, old_ways), (b, new_ways) = _index(old, coords), _index(cut, coords)
        first, last = np.maximum(a / old_ways, b / new_ways), np.minimum((a + 1) / old_ways, (b + 1) / new_ways)
        share *= np.maximum(last - first, 0.0) * new_ways
    return share


def _index(cut: Cut, coords: Ints) -> tuple[Ints, int]:
    """Return the number of the part of a dim that each device has, and the number of parts."""
    index, ways = np.zeros(coords.shape[1], dtype=np.int64), 1
    for piece in cut:
        index = index * piece.size + coords[piece.axis] // piece.stride % piece.size
        ways *= piece.size
    return index, ways
