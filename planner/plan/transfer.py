"""Price the KV transfer of disaggregated serving: a prompt's cache goes from a prefill slice to a decode slice.

Chapter, "Designing an effective inference engine": prefill servers send the cache over the network to generate
servers. ICI connects the chips of one slice only, so between two slices, also of one kind, the cache goes over the
data-centre network (DCN): each chip sends its part through its share of its host's network cards, the other
end receives the same way, both at once, and where the decode layout has copies of an entry these are gathered
over the ICI of the receiving slice. The DCN switches between the hosts are not modelled.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, prod

import numpy as np

from mesh.errors import InputError
from mesh.pieces import Piece
from mesh.slices import Slice
from planner.plan.plan import Plan, Value
from strategies.models.models import Model
from strategies.models.workload import dtype_bytes
from strategies.readers.rates import tabulate_rates

DCN_LATENCY_S = 1e-4
"""Seconds before the first byte arrives: an assumption (no data sheet states it); 0.1 ms against tens of ms."""


class Transfer(Value, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The cost of moving the caches of `requests` prompts, in bytes and seconds.

    `bytes` counts all requests' caches once each. `send_s` and `receive_s` run at once, on the busiest chips.
    `dcn_bytes_per_s` is the effective rate, `bytes` over the longer of the two. `copies_s` gathers copies over the
    receiver's ICI. `seconds` = latency_s + max(send_s, receive_s) + copies_s. `send_load_s` and `receive_load_s` are
    `bytes` through the cards of all chips of an end: the interval at which such transfers can follow each other.
    """

    requests: int
    bytes: float
    send_s: float
    receive_s: float
    send_load_s: float
    receive_load_s: float
    copies_s: float
    latency_s: float
    dcn_bytes_per_s: float
    seconds: float


@dataclass(frozen=True, kw_only=True)
class Share:
    """One component's caches of one request on a slice: bytes, each entry once, and how they are spread.

    `batch_ways` is the number of parts into which B is cut; a request lies in one. `copied` has the pieces of the torus
    along which each entry is stored again.
    """

    nbytes: float
    batch_ways: int = 1
    copied: tuple[Piece, ...] = ()

    @property
    def copies(self) -> int:
        """Number of devices that store each entry."""
        return prod(piece.size for piece in self.copied)


@dataclass(frozen=True)
class TransferEnd:
    """One end of a transfer: a slice and the caches of one request on it."""

    slice_: Slice
    shares: tuple[Share, ...]

    @property
    def nbytes(self) -> float:
        """Bytes of one request's caches, each entry once."""
        return sum(share.nbytes for share in self.shares)


def request_cache_bytes(model: Model, kv: str, tokens: int) -> float:
    """Return the bytes of one request's K and V of `tokens` tokens in dtype `kv`; a window keeps its last tokens.

    >>> from strategies.models.configs import load_model
    >>> request_cache_bytes(load_model("llama-3.1-70b"), "int8", 2000)  # 2 * 8 * 128 * 80 * 2000
    327680000.0
    """
    return float(model.kv_elements(tokens) * dtype_bytes(kv))


def chip_dcn_bytes_per_s(slice_: Slice) -> float:
    """Return one chip's share of its host's network cards, in bytes/s each way, or its PCIe rate if that is slower.

    Source: `dcn_bytes_per_s` of the chip's file; for v5e the book's 3.125e9 equals the Cloud TPU documentation's number
    per host, 2 cards of 100 Gbit/s for 8 chips. Raises `InputError` where the chip's file does not state it.

    >>> from mesh.slices import parse_slice
    >>> chip_dcn_bytes_per_s(parse_slice("v5e:4x4"))
    3125000000.0
    """
    chip = slice_.chip
    if chip.dcn_bytes_per_s is None:
        raise InputError(
            f"{slice_.name}: chip {chip.name} has no dcn_bytes_per_s; expected it in the chip file, such as 3.125e9"
        )
    return min(chip.dcn_bytes_per_s, chip.pcie_bytes_per_s or chip.dcn_bytes_per_s)


def transfer_end_of(plan: Plan, slice_: Slice, tokens: int) -> TransferEnd:
    """Return the end of a transfer that a plan's own cache specs give, for requests of `tokens` tokens."""
    sizes, pieces = plan.mesh.sizes, dict(zip(plan.mesh.axis_names, plan.mesh.on(slice_), strict=True))
    shares = []
    for layout in plan.layouts:
        caches = plan.caches(layout.component)
        for spec in dict.fromkeys(caches.values()):  # caches of one shape and cut move as one
            cut_axes = {axis for axes in spec.axes for axis in axes}
            groups = [plan.model.groups[number] for number in layout.groups]
            elements = sum(group.count * group.attention.kv_elements(tokens) for group in groups)
            share = list(caches.values()).count(spec) / len(caches)
            shares.append(
                Share(
                    nbytes=float(elements * share * dtype_bytes(spec.dtype)),
                    batch_ways=prod(sizes[axis] for axis in spec.cut_by("B")),
                    copied=tuple(p for name in sizes if name not in cut_axes for p in pieces[name]),
                )
            )
    return TransferEnd(slice_, tuple(shares))


def transfer(source: TransferEnd, target: TransferEnd, requests: int = 1) -> Transfer:
    """Price moving the caches of `requests` prompts, which are prefilled in one step, from `source` to `target`.

    At each end a chip moves, per component, ceil(requests / batch_ways) requests' bytes over the chips that store one
    of them: where B is cut, requests (and their slots) are assumed to lie evenly over its parts. Raises `InputError` on
    fewer than one request, or a chip without a DCN rate.
    """
    if requests < 1:
        raise InputError(f"requests {requests}: expected a whole number of at least 1")
    send_s, receive_s = _dcn_s(source, requests), _dcn_s(target, requests)
    copies_s = sum(_copies_s(target.slice_, share, requests) for share in target.shares)
    nbytes = source.nbytes * requests
    return Transfer(
        requests=requests,
        bytes=nbytes,
        send_s=send_s,
        receive_s=receive_s,
        send_load_s=nbytes / (source.slice_.chips * chip_dcn_bytes_per_s(source.slice_)),
        receive_load_s=nbytes / (target.slice_.chips * chip_dcn_bytes_per_s(target.slice_)),
        copies_s=copies_s,
        latency_s=DCN_LATENCY_S,
        dcn_bytes_per_s=nbytes / max(send_s, receive_s),
        seconds=DCN_LATENCY_S + max(send_s, receive_s) + copies_s,
    )


def _dcn_s(end: TransferEnd, requests: int) -> float:
    """Return the seconds of the busiest chip: its bytes of each component, each entry once, over its DCN share."""
    per_chip = chip_dcn_bytes_per_s(end.slice_)
    chips = end.slice_.chips
    return sum(
        ceil(requests / s.batch_ways) * s.nbytes / (max(1.0, chips / s.batch_ways) * per_chip) for s in end.shares
    )


def _copies_s(slice_: Slice, share: Share, requests: int) -> float:
    """Return the seconds of the AllGather over copies: ceil(requests / batch_ways) requests over distinct parts."""
    parts = slice_.devices / (share.batch_ways * share.copies)
    return gather_s(slice_, share.copied, ceil(requests / share.batch_ways) * share.nbytes / parts)


def gather_s(slice_: Slice, pieces: Sequence[Piece], gathered_bytes: float) -> float:
    """Return the seconds of an AllGather over these pieces of the torus.

    Where they do not form a group, it runs over one piece after the other.

    `gathered_bytes` is the size of the gathered array on each device. The result is 0 without pieces or bytes.
    """
    if not pieces or gathered_bytes == 0:
        return 0.0
    rates = tabulate_rates(slice_, [pieces])
    if np.isfinite(rates.s_per_byte["AllGather"][1]):
        return rates.seconds("AllGather", gathered_bytes)
    first, rest = pieces[:1], pieces[1:]
    return gather_s(slice_, rest, gathered_bytes / first[0].size) + gather_s(slice_, first, gathered_bytes)


def swap_s(slice_: Slice, pieces: Sequence[Piece], received_bytes: float) -> float:
    """Return the seconds of an AllToAll over whole axes in which each device receives `received_bytes`.

    A device receives V (n-1)/n^2 of its V bytes.

    The result is 0 on one device or without bytes.
    """
    n = prod(piece.size for piece in pieces)
    if n == 1 or received_bytes == 0:
        return 0.0
    return tabulate_rates(slice_, [pieces]).seconds("AllToAll", received_bytes * n * n / (n - 1))
