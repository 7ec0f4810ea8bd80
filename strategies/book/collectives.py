"""The scaling book's own limits (chapter 3): n -> inf, so without the exact (n-1)/n of collectives.py."""

import math
from collections.abc import Sequence


def book_all_gather_s(
    gathered_bytes: float,
    *,
    bidirectional_link_bytes_per_s: float,
    axis_sizes: Sequence[int],
    hop_latency_s: float = 0.0,
) -> float:
    """AllGather over whole rings: max(T_min sum_i X_i / 2, V / (W_bidi x axes)).

    >>> f"{book_all_gather_s(2 * 2048 * 8192, bidirectional_link_bytes_per_s=9e10, axis_sizes=[4]):.6f}"
    '0.000373'
    >>> book_all_gather_s(256, bidirectional_link_bytes_per_s=9e10, axis_sizes=[4], hop_latency_s=1e-6)
    2e-06
    """
    bandwidth_s = gathered_bytes / (bidirectional_link_bytes_per_s * len(axis_sizes))
    return max(hop_latency_s * sum(axis_sizes) / 2, bandwidth_s)


def book_all_reduce_s(
    array_bytes: float,
    *,
    bidirectional_link_bytes_per_s: float,
    axis_sizes: Sequence[int],
    hop_latency_s: float = 0.0,
) -> float:
    """AllReduce over whole rings: twice the AllGather.

    >>> f"{book_all_reduce_s(9e7, bidirectional_link_bytes_per_s=9e10, axis_sizes=[4]):.3f}"
    '0.002'
    """
    return 2 * book_all_gather_s(
        array_bytes,
        bidirectional_link_bytes_per_s=bidirectional_link_bytes_per_s,
        axis_sizes=axis_sizes,
        hop_latency_s=hop_latency_s,
    )


def book_all_to_all_s(
    gathered_bytes: float, *, bidirectional_link_bytes_per_s: float, axis_sizes: Sequence[int]
) -> float:
    """AllToAll over whole rings: V max_i X_i / (4 N W_bidi), on one ring a quarter of the AllGather.

    >>> f"{book_all_to_all_s(3.6e8, bidirectional_link_bytes_per_s=9e10, axis_sizes=[16]):.4f}"
    '0.0010'
    """
    chips = math.prod(axis_sizes)
    return gathered_bytes * max(axis_sizes) / (4 * chips * bidirectional_link_bytes_per_s)
