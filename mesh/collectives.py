"""Collectives: the seconds that AllGather, ReduceScatter, AllReduce, AllToAll and CollectivePermute take.

All groups of a mesh axis run at once. V is the bytes of the gathered array, n the devices of a group. Along
physical axis i the group has m_i members s_i chips apart, and each of them can send at

    r_i = W c_i / s_i    W bytes/s of one link one way; c_i = 2 where the piece is a whole ring, else 1

    AllGather = ReduceScatter   max over sets T of axes of V (M_T - 1) / (n sum_T r_i), M_T = prod_T m_i   [1]
                                with T all axes: V (n-1)/n / sum_i r_i                                     [2]
    AllReduce                   2 x AllGather                                                              [2]
    AllToAll                    max_i V floor(m_i^2 / 4) / (m_i n r_i)                                     [1]
    CollectivePermute by one    shard bytes x max_i s_i / W                                                [1]
    hops                        sum_i s_i x (floor(m_i / 2) on a ring, m_i - 1 on a line)

[1] Derived in docs/concepts/collectives.md. [2] Scaling book, chapter 3, before its limit n -> inf.
Latency = hops x hop latency.
Where a chip shows two devices, each core has half of every ICI link (both cores' groups run at once, so s
doubles), and the link between the cores is one more axis, of m = 2. GPUs have a switch: see _switched.
"""

import itertools
import math
from collections.abc import Iterable

import msgspec

from mesh.pieces import Piece, check_fits, merge
from mesh.slices import Slice


class Seconds(msgspec.Struct, frozen=True, kw_only=True):
    """The seconds of one collective, by bandwidth and by hops; the two overlap, so the longer one counts."""

    bandwidth_s: float
    latency_s: float

    @property
    def s(self) -> float:
        """The longer of the two terms."""
        return max(self.bandwidth_s, self.latency_s)


class Group(msgspec.Struct, frozen=True, kw_only=True):
    """The devices of one mesh axis (or several) in a slice, as rates that a search can tabulate.

    all_gather and all_to_all are per byte of the gathered array, permute per byte of one device's shard.
    all_gather_in_turn: one torus axis after the other, in `phases`, as compilers do it; all_gather uses all at once.
    Where a chip shows two devices, one's groups take one axis while the other's take another: again all at once.
    """

    n: int = 1
    all_gather_s_per_byte: float = 0.0
    all_gather_in_turn_s_per_byte: float = 0.0
    phases: int = 0
    all_to_all_s_per_byte: float = 0.0
    permute_s_per_byte: float = 0.0
    hops: int = 0
    permute_hops: int = 0
    hop_latency_s: float = 0.0

    @property
    def all_reduce_s_per_byte(self) -> float:
        """Per byte of the array that every device holds: a ReduceScatter, then an AllGather."""
        return 2 * self.all_gather_s_per_byte


class _Lane(msgspec.Struct, frozen=True, kw_only=True):
    """A piece of the group: m members, and the bytes/s that each of them can send along it."""

    size: int
    bytes_per_s: float
    hops: int
    wrap_hops: int


def group(slice_: Slice, pieces: Iterable[Piece]) -> Group:
    """Price the group that these pieces of the slice form.

    >>> from mesh.slices import parse_slice
    >>> ring = group(parse_slice("v5e:16x16"), [Piece(axis=0, stride=1, size=16)])
    >>> ring.n, ring.hops, f"{ring.all_gather_s_per_byte * 9e10:.4f}"  # 15/16 of V / (2 x 4.5e10)
    (16, 8, '0.9375')
    """
    merged = merge(pieces)
    check_fits(slice_, merged)
    if not merged:
        return Group()
    return _switched(slice_, merged) if slice_.chip.wrap == "switch" else _torus(slice_, merged)


def all_gather(gathered_bytes: float, over: Group) -> Seconds:
    """V (n-1)/n / sum_i r_i, or the slowest set of axes if that is slower.

    >>> from mesh.slices import parse_slice
    >>> line = group(parse_slice("v5e:4x8"), [Piece(axis=0, stride=1, size=4)])
    >>> f"{all_gather(2 * 2048 * 8192, line).s:.6f}"  # 3/4 of 33.6 MB at 4.5e10: the book's 560 us
    '0.000559'
    >>> f"{all_gather(2 * 256 * 256, line).s:.1e}"  # 3 hops of 1 us
    '3.0e-06'
    >>> near, far = Piece(axis=0, stride=1, size=2), Piece(axis=1, stride=2, size=4)
    >>> both = group(parse_slice("v5e:4x8"), [near, far])  # T = {far}: 3/8 of V at half of 4.5e10
    >>> f"{all_gather(4.5e7, both).bandwidth_s:.6f}"
    '0.000750'
    """
    return Seconds(bandwidth_s=gathered_bytes * over.all_gather_s_per_byte, latency_s=over.hops * over.hop_latency_s)


def reduce_scatter(gathered_bytes: float, over: Group) -> Seconds:
    """The AllGather run backwards: the same links carry the same bytes the other way."""
    return all_gather(gathered_bytes, over)


def all_reduce(array_bytes: float, over: Group) -> Seconds:
    """2 x AllGather, hops included: a ReduceScatter, then an AllGather.

    >>> from mesh.slices import parse_slice
    >>> ring = group(parse_slice("v5p:4x4x4"), [Piece(axis=0, stride=1, size=4)])
    >>> f"{all_reduce(1.2e8, ring).s:.4f}"  # 2 x (90 MB / 1.8e11)
    '0.0010'
    """
    once = all_gather(array_bytes, over)
    return Seconds(bandwidth_s=2 * once.bandwidth_s, latency_s=2 * once.latency_s)


def all_to_all(gathered_bytes: float, over: Group) -> Seconds:
    """max_i V floor(m_i^2/4) / (m_i n r_i).

    >>> from mesh.slices import parse_slice
    >>> line = group(parse_slice("v5e:4x4"), [Piece(axis=0, stride=1, size=4)])
    >>> f"{all_to_all(4.5e8, line).s:.4f}"  # 4 pairs x 28.125 MB cross the middle link
    '0.0025'
    """
    return Seconds(bandwidth_s=gathered_bytes * over.all_to_all_s_per_byte, latency_s=over.hops * over.hop_latency_s)


def permute(shard_bytes: float, over: Group) -> Seconds:
    """One CollectivePermute by one, the last device sending to the first: shard bytes x max_i s_i / W.

    >>> from mesh.slices import parse_slice
    >>> line = group(parse_slice("v5e:4x4"), [Piece(axis=0, stride=1, size=4)])
    >>> permute(4.5e7, line)  # the wrap message runs 3 hops against the others, on links of its own
    Seconds(bandwidth_s=0.001, latency_s=3e-06)
    """
    return Seconds(bandwidth_s=shard_bytes * over.permute_s_per_byte, latency_s=over.permute_hops * over.hop_latency_s)


def _switched(slice_: Slice, pieces: tuple[Piece, ...]) -> Group:
    """A switch: each device sends and receives at W, in one hop.

    AllGather receives the n-1 other shards of V/n; AllToAll sends V/n^2 to each of n-1 others.
    """
    n = math.prod(piece.size for piece in pieces)
    link_bytes_per_s = slice_.chip.link_bytes_per_s
    return Group(
        n=n,
        all_gather_s_per_byte=(n - 1) / (n * link_bytes_per_s),
        all_gather_in_turn_s_per_byte=(n - 1) / (n * link_bytes_per_s),
        phases=1,
        all_to_all_s_per_byte=(n - 1) / (n * n * link_bytes_per_s),
        permute_s_per_byte=1 / link_bytes_per_s,
        hops=1,
        permute_hops=1,
        hop_latency_s=slice_.chip.hop_latency_s,
    )


def _torus(slice_: Slice, pieces: tuple[Piece, ...]) -> Group:
    lanes = [_lane(slice_, piece) for piece in pieces]
    in_turn = _gather_s_per_byte if slice_.chip.devices_per_chip == 2 else _gather_in_turn_s_per_byte
    return Group(
        n=math.prod(lane.size for lane in lanes),
        all_gather_s_per_byte=_gather_s_per_byte(lanes),
        all_gather_in_turn_s_per_byte=in_turn(lanes),
        phases=len(lanes),
        all_to_all_s_per_byte=_swap_s_per_byte(lanes),
        permute_s_per_byte=_shift_s_per_byte(slice_, pieces),
        hops=sum(lane.hops for lane in lanes),
        permute_hops=sum(lane.wrap_hops for lane in lanes),
        hop_latency_s=slice_.chip.hop_latency_s,
    )


def _lane(slice_: Slice, piece: Piece) -> _Lane:
    axis, ways = slice_.axes[piece.axis], 1
    if axis.ring and piece.stride * piece.size == axis.size:
        ways = 2
    return _Lane(
        size=piece.size,
        bytes_per_s=_device_link_bytes_per_s(slice_, core=axis.core) * ways / piece.stride,
        hops=piece.stride * (piece.size // 2 if ways == 2 else piece.size - 1),
        wrap_hops=piece.stride * (1 if ways == 2 else piece.size - 1),
    )


def _device_link_bytes_per_s(slice_: Slice, *, core: bool) -> float:
    """One device's part of a link: all of the core link, its share of an ICI link."""
    chip = slice_.chip
    return (core and chip.core_link_bytes_per_s) or chip.link_bytes_per_s / chip.devices_per_chip


def _gather_s_per_byte(lanes: list[_Lane]) -> float:
    """max over sets T of axes of (M_T - 1) / (n sum_T r_i).

    Cut out the devices with one member per group along T, whole along the rest: they hold 1/M_T of V.
    Pipelined one-axis-at-a-time gathers in a mix of axis orders meet the largest of these bounds.
    """
    n = math.prod(lane.size for lane in lanes)
    sets = itertools.chain.from_iterable(itertools.combinations(lanes, k + 1) for k in range(len(lanes)))
    return max(
        (math.prod(lane.size for lane in chosen) - 1) / (n * sum(lane.bytes_per_s for lane in chosen))
        for chosen in sets
    )


def _gather_in_turn_s_per_byte(lanes: list[_Lane]) -> float:
    """sum_j (m_1 ... m_{j-1}) (m_j - 1) / (n r_j), the slowest axis first, while there is least to carry.

    That order is best: with i before j instead of after it, the sum is less by (m_i - 1) (m_j - 1) (1/r_i - 1/r_j).
    """
    n, done, seconds = math.prod(lane.size for lane in lanes), 1, 0.0
    for lane in sorted(lanes, key=lambda lane: lane.bytes_per_s):
        seconds += done * (lane.size - 1) / (n * lane.bytes_per_s)
        done *= lane.size
    return seconds


def _swap_s_per_byte(lanes: list[_Lane]) -> float:
    """max_i floor(m_i^2/4) / (m_i n r_i): the traffic over the middle of each axis."""
    n = math.prod(lane.size for lane in lanes)
    return max((lane.size**2 // 4) / (lane.size * n * lane.bytes_per_s) for lane in lanes)


def _shift_s_per_byte(slice_: Slice, pieces: tuple[Piece, ...]) -> float:
    """max_i s_i / W; with both cores in the group, one of them sends off the chip, the other across it."""
    chip, axes = slice_.chip, slice_.axes
    both = any(axes[piece.axis].core for piece in pieces)
    senders = 1 if both else chip.devices_per_chip
    ici = [senders * p.stride / chip.link_bytes_per_s for p in pieces if not axes[p.axis].core]
    return max(*ici, 0.0, 1 / chip.core_link_bytes_per_s if both and chip.core_link_bytes_per_s else 0.0)
