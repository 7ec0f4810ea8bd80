"""Compute latencies and rates of serving from the seconds of a prefill and a decode step: TTFT, TPOT, requests/s.

Arithmetic on seconds only. Symbols: P seconds of a prefill step of p prompts, D of a decode step of b slots, O output
tokens, I seconds to insert a prefill step's caches into the decode layout (and, where weights are resharded, to
switch there and back). The first token comes out of the first decode step, which samples from the prefill's logits
(chapter, "The basics of Transformer inference"). All servers are full: a new request is there whenever a slot is
free, and all outputs have O tokens. Left out: queues of requests that come unevenly, outputs of unequal length
(short ones blocked by long ones in a batch, prompts padded to the longest), and the host's own time.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import ceil, floor

from mesh.errors import InputError
from planner.plan.file_serving import Latencies
from planner.plan.transfer import Transfer

LEAST_EFFICIENCY = 0.95
"""Numbers of slices are the smallest with this share of the throughput per chip at the exact ratio."""


@dataclass(frozen=True, kw_only=True)
class PhaseTimes:
    """The seconds of the two steps and between them; `insert_s` and `switch_s` are per prefill step.

    The batches are prompts of a prefill step and slots of a decode step; `output` is tokens of a request.

    >>> steps = PhaseTimes(prefill_s=0.1, prefill_batch=2, decode_s=0.01, decode_batch=10, output=100)
    >>> steps.prefills_per_step
    0.05
    """

    prefill_s: float
    prefill_batch: int
    decode_s: float
    decode_batch: int
    output: int
    insert_s: float = 0.0
    switch_s: float = 0.0

    @property
    def prefills_per_step(self) -> float:
        """Prefill steps per decode step, b / (p O), that keep b slots full.

        Each decode step ends b/O requests, each prefill step starts p.
        """
        return self.decode_batch / (self.prefill_batch * self.output)


def batched(steps: PhaseTimes) -> Latencies:
    """Return the latencies where whole batches are prefilled, then decoded to the end.

    It is the simplest way of the chapter, "inference engine". With g = ceil(b/p) prefill steps, ahead = g (P + I) +
    switch and cycle = ahead + O D, b requests are served per cycle. A request waits for the next batch (half a cycle in
    the mean, at worst a whole one), for all prefills, and for one step.

    >>> batched(PhaseTimes(prefill_s=0.5, prefill_batch=2, decode_s=0.01, decode_batch=4, output=100)).requests_per_s
    2.0
    """
    groups = ceil(steps.decode_batch / steps.prefill_batch)
    ahead_s = groups * (steps.prefill_s + steps.insert_s) + steps.switch_s
    cycle_s = ahead_s + steps.output * steps.decode_s
    first_s = ahead_s + steps.decode_s
    return Latencies(
        ttft_s=cycle_s / 2 + first_s,
        worst_ttft_s=cycle_s + first_s,
        per_token_s=steps.decode_s,
        worst_per_token_s=steps.decode_s,
        requests_per_s=steps.decode_batch / cycle_s,
        prefill_busy=groups * steps.prefill_s / cycle_s,
        decode_busy=steps.output * steps.decode_s / cycle_s,
    )


def interleaved(steps: PhaseTimes) -> Latencies:
    """Return the latencies of continuous batching on one slice: each prefill stops all running decodes.

    A prompt is prefilled when a slot is free (chapter, "inference engine", the interleaved configuration). With Q = P +
    I + switch and f = b/(p O) prefill steps per decode step, the time per token is D + f Q in the mean; requests end
    evenly, so at worst it is D + ceil(f) Q. b requests take O such tokens. A request comes at any time: it waits for
    the running decode step or prefill (E[gap^2] / 2 E[gap], at worst the longest gap), for the ceil(f) prefills that
    are then done at once, and for one step; with p > 1 also until p prompts are there.

    >>> steps = PhaseTimes(prefill_s=0.1, prefill_batch=1, decode_s=0.01, decode_batch=10, output=100)
    >>> latencies = interleaved(steps)  # a prefill in every tenth gap: 0.01 + 0.1 / 10
    >>> round(latencies.per_token_s, 6), round(latencies.worst_per_token_s, 6), round(latencies.requests_per_s, 6)
    (0.02, 0.11, 5.0)
    """
    stop_s = steps.prefill_s + steps.insert_s + steps.switch_s
    return _continuous(steps, stop_s, stop_s, steps.prefill_s)


def _continuous(steps: PhaseTimes, stop_s: float, first_s: float, prefill_s: float) -> Latencies:
    """Return the latencies of b slots whose steps stop for `stop_s` per prefill step.

    `first_s` is the time of a prefill step, from its start to its slot.
    """
    prefills, most_prefills = steps.prefills_per_step, ceil(steps.prefills_per_step)
    gap_s, longest_s = steps.decode_s + prefills * stop_s, steps.decode_s + most_prefills * stop_s
    requests_per_s = steps.decode_batch / (steps.output * gap_s)
    gather_s = (steps.prefill_batch - 1) / requests_per_s
    wait_s = _mean_square(steps.decode_s, prefills, stop_s) / (2 * gap_s)
    ahead_s = first_s + (most_prefills - 1) * stop_s
    return Latencies(
        ttft_s=gather_s / 2 + wait_s + ahead_s + steps.decode_s,
        worst_ttft_s=gather_s + longest_s + ahead_s + steps.decode_s,
        per_token_s=gap_s,
        worst_per_token_s=longest_s,
        requests_per_s=requests_per_s,
        prefill_busy=prefills * prefill_s / gap_s,
        decode_busy=steps.decode_s / gap_s,
    )


def _mean_square(decode_s: float, prefills: float, stop_s: float) -> float:
    """Return E[gap^2] where a gap has floor(f) or floor(f) + 1 stops, f in the mean."""
    whole_prefills, share = floor(prefills), prefills - floor(prefills)
    return (1 - share) * (decode_s + whole_prefills * stop_s) ** 2 + share * (
        decode_s + (whole_prefills + 1) * stop_s
    ) ** 2


def disaggregated(steps: PhaseTimes, moved: Transfer, prefill_slices: int, decode_slices: int) -> Latencies:
    """Return the latencies of prefill and decode on slices of their own: no request waits for another's prefill.

    Chapter, "inference engine". A request waits for its prefill and the transfer, then for the running decode step (D/2
    in the mean, D at worst) and for its own; with p > 1 also until p prompts are there. Decode steps stop to gather
    copies of a cache instead of for prefills. Requests per second are those of the slower phase, see `prefill_rate` and
    `decode_rate`. Transfers go on behind the next prefill and behind decode steps.

    `moved` is the transfer of one prefill batch, see `planner.plan.transfer`. `prefill_busy` and `decode_busy` are the
    request rate as a share of each phase's own.
    """
    decoding = _continuous(steps, moved.copies_s, moved.copies_s, 0.0)
    rates = prefill_slices * prefill_rate(steps, moved), decode_slices * decode_rate(steps, moved)
    requests_per_s = min(rates)
    own_gather_s = (steps.prefill_batch - 1) / decoding.requests_per_s
    gather_s = (steps.prefill_batch - 1) / requests_per_s
    ahead_s = steps.prefill_s + moved.seconds - moved.copies_s  # the copies are in `decoding`
    return Latencies(
        ttft_s=decoding.ttft_s - own_gather_s / 2 + gather_s / 2 + ahead_s,
        worst_ttft_s=decoding.worst_ttft_s - own_gather_s + gather_s + ahead_s,
        per_token_s=decoding.per_token_s,
        worst_per_token_s=decoding.worst_per_token_s,
        requests_per_s=requests_per_s,
        prefill_busy=requests_per_s / rates[0],
        decode_busy=requests_per_s / rates[1],
    )


def prefill_rate(steps: PhaseTimes, moved: Transfer) -> float:
    """Return the requests/s of one prefill slice: p / P, or fewer where it cannot send them."""
    return steps.prefill_batch / max(steps.prefill_s, moved.send_load_s)


def decode_rate(steps: PhaseTimes, moved: Transfer) -> float:
    """Return the requests/s of one decode slice: b / (O x time per token), or fewer where it cannot receive them."""
    gap_s = steps.decode_s + steps.prefills_per_step * moved.copies_s
    decoded = steps.decode_batch / (steps.output * gap_s)
    return min(decoded, moved.requests / moved.receive_load_s)


@dataclass(frozen=True)
class Counts:
    """Numbers of prefill and decode slices, their exact ratio, and the number of replicas."""

    prefill: int
    decode: int
    ratio: float
    replicas: int = 1


def slice_counts(
    prefill_per_s: float,
    decode_per_s: float,
    chips: tuple[int, int] = (1, 1),
    most_chips: int | None = None,
    least_per_s: float = 0.0,
) -> Counts | None:
    """Return the fewest chips whose throughput per chip is at least 95% of that at the exact ratio.

    `prefill_per_s` and `decode_per_s` are requests/s of one slice each, so the exact ratio of prefill to decode slices
    is decode_per_s / prefill_per_s. The replicas serve at least `least_per_s`. Where `most_chips` allows no such
    numbers, the best per chip within it are returned; None means that it allows none. Raises `InputError` on rates that
    are not above 0. The chapter-8 example, 0.91 s of prefill, 32 slots, 0.019 s a step, 512 tokens:

    >>> counts = slice_counts(1 / 0.91, 32 / (512 * 0.019))
    >>> counts.prefill, counts.decode, round(counts.ratio, 4)
    (3, 1, 2.9934)
    """
    if not (prefill_per_s > 0 and decode_per_s > 0):
        raise InputError(f"rates {prefill_per_s:g} and {decode_per_s:g} requests/s: expected numbers above 0")
    ratio = decode_per_s / prefill_per_s
    ideal = decode_per_s / (chips[0] * ratio + chips[1])

    def priced_counts(pair: tuple[int, int]) -> _PricedCounts:
        """Return the counts of a pair of numbers, with their chips."""
        rate = min(pair[0] * prefill_per_s, pair[1] * decode_per_s)
        once = pair[0] * chips[0] + pair[1] * chips[1]
        return _PricedCounts(Counts(*pair, ratio, replicas_for(least_per_s, rate)), once, rate / once)

    fewest = _fewest_chips(
        ratio, chips, lambda pair: priced_counts(pair).per_chip >= LEAST_EFFICIENCY * ideal, priced_counts
    )
    if most_chips is None or fewest.all_chips <= most_chips:
        return fewest.counts
    allowed = [m for m in map(priced_counts, _pairs_within(ratio, chips, most_chips)) if m.all_chips <= most_chips]
    no_better = [m for m in allowed if m.per_chip <= fewest.per_chip] or allowed  # otherwise more chips could do worse
    return max(no_better, key=lambda m: (m.per_chip, -m.all_chips)).counts if no_better else None


@dataclass(frozen=True)
class _PricedCounts:
    """Counts with the chips of one replica, and requests/s per chip."""

    counts: Counts
    chips: int
    per_chip: float

    @property
    def all_chips(self) -> int:
        """Chips of all replicas."""
        return self.counts.replicas * self.chips


def replicas_for(least_per_s: float, per_s: float) -> int:
    """Return the number of replicas, at least 1, of `per_s` requests/s each that serve `least_per_s`.

    >>> replicas_for(10.0, 4.0)
    3
    """
    return max(1, ceil(least_per_s / per_s * (1 - 1e-12)))


_MOST_OF_FEWER = 20  # slices of the rarer kind: with 20, rounding the other's number loses at most 1/20


def _fewest_chips(
    ratio: float,
    chips: tuple[int, int],
    is_good: Callable[[tuple[int, int]], bool],
    priced_counts: Callable[[tuple[int, int]], _PricedCounts],
) -> _PricedCounts:
    """Return the good pair of fewest chips, then of fewest prefill slices.

    A pair with at most 20 of the rarer kind is good.
    """
    best: _PricedCounts | None = None
    few_chips, many_chips = chips if ratio < 1 else chips[::-1]
    for few in range(1, _MOST_OF_FEWER + 1):
        if best is not None and few * few_chips + many_chips > best.chips:
            break
        for many in range(1, ceil(few * max(ratio, 1 / ratio)) + 1):
            pair = _in_order(few, many, ratio)
            if is_good(pair):
                best = min((b for b in (best, priced_counts(pair)) if b), key=lambda m: (m.chips, m.counts.prefill))
                break  # more of the other kind only adds chips
    assert best is not None
    return best


def _pairs_within(ratio: float, chips: tuple[int, int], most_chips: int) -> list[tuple[int, int]]:
    """Return, for up to 20 of the rarer kind, the numbers of the other next to the exact ratio or as many as fit."""
    pairs = []
    few_chips, many_chips = chips if ratio < 1 else chips[::-1]
    for few in range(1, _MOST_OF_FEWER + 1):
        exact, most_many = few * max(ratio, 1 / ratio), (most_chips - few * few_chips) // many_chips
        pairs += [
            _in_order(few, many, ratio)
            for many in {min(floor(exact), most_many), min(ceil(exact), most_many)}
            if many > 0
        ]
    return sorted(pairs)


def _in_order(few: int, many: int, ratio: float) -> tuple[int, int]:
    """Return (prefill, decode), where `many` are of the kind of which the ratio needs more."""
    return (few, many) if ratio < 1 else (many, few)
