"""The overlap rule: how a step's seconds add up where some run at the same time, on numbers or on arrays.

    estimate = roofline + collectives - overlapped
    overlapped = min(roofline, gathers) + min(latency, room)
    room = min(spare, prefetch, roofline - min(roofline, gathers))

`roofline`: of each operation the longer of its FLOPs and HBM time, summed. A matmul waits for the collective before it,
which moves its operands, so the two add up. Two kinds of collective do not wait for activations. `gathers` of weights
run behind the component's operations, for as long as these take. `latency`, the hops and launches of all other
collectives, leaves HBM idle: the next weights are read into VMEM meanwhile. That saves what the matmuls wait for HBM
beyond their FLOPs (`spare`), at most what VMEM holds (`prefetch`), and nothing where gathers fill the time already.
"""

from __future__ import annotations

import numpy as np

from strategies.prices import Number


def collective_s(bandwidth_s: Number, latency_s: Number, additive: bool) -> Number:
    """Seconds of one collective: both terms as measured ones take them, or (`additive` false) the longer, a bound.

    >>> float(collective_s(3.0, 1.0, True)), float(collective_s(3.0, 1.0, False))
    (4.0, 3.0)
    """
    return bandwidth_s + latency_s if additive else np.maximum(bandwidth_s, latency_s)


def behind_s(roofline_s: Number, gathers_s: Number) -> Number:
    """Seconds of gathers of weights that run behind the component's operations."""
    return np.minimum(roofline_s, gathers_s)


def room_s(roofline_s: Number, gathers_s: Number, spare_s: Number, prefetch_s: Number) -> Number:
    """Seconds for which weights can be read ahead."""
    return np.minimum(np.minimum(spare_s, prefetch_s), roofline_s - behind_s(roofline_s, gathers_s))


def overlapped_s(
    roofline_s: Number, gathers_s: Number, latency_s: Number, spare_s: Number, prefetch_s: Number
) -> Number:
    """Seconds that a component does not wait, of those that its operations and collectives have.

    >>> float(overlapped_s(roofline_s=10.0, gathers_s=4.0, latency_s=3.0, spare_s=2.0, prefetch_s=5.0))  # 4 + 2
    6.0
    """
    hidden_s = np.minimum(latency_s, room_s(roofline_s, gathers_s, spare_s, prefetch_s))
    return behind_s(roofline_s, gathers_s) + hidden_s
