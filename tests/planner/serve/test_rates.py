"""Serving as arithmetic: the three modes against a clock that is run by hand, numbers of slices against all numbers."""

from __future__ import annotations

from itertools import product
from random import Random

import pytest

from planner.plan.transfer import Transfer
from planner.serve.rates import (
    LEAST_EFFICIENCY,
    PhaseTimes,
    batched,
    decode_rate,
    disaggregated,
    interleaved,
    prefill_rate,
    replicas_for,
    slice_counts,
)
from strategies.book.roofline import prefill_servers_per_decode_server


def moved(requests: int = 1, seconds: float = 0.02, copies_s: float = 0.0, load_s: float = 0.005) -> Transfer:
    """A transfer that takes `seconds` in all."""
    return Transfer(
        requests=requests,
        bytes=1e9,
        send_s=seconds - copies_s,
        receive_s=seconds - copies_s,
        send_load_s=load_s,
        receive_load_s=load_s,
        copies_s=copies_s,
        latency_s=0.0,
        dcn_bytes_per_s=1e9,
        seconds=seconds,
    )


def some_steps(random: Random) -> PhaseTimes:
    """Steps whose prompts fill the slots evenly: p divides b."""
    prompts = random.choice((1, 2, 4))
    return PhaseTimes(
        prefill_s=random.uniform(0.01, 2.0),
        prefill_batch=prompts,
        decode_s=random.uniform(0.001, 0.1),
        decode_batch=prompts * random.choice((1, 3, 8, 32)),
        output=random.choice((4, 32, 96, 512)),
        insert_s=random.uniform(0, 0.01),
        switch_s=random.choice((0.0, 0.3)),
    )


def run_interleaved(steps: PhaseTimes) -> tuple[float, float, float]:
    """Requests/s, mean and longest gap of a server that is run step by step, its slots' ends spread evenly."""
    groups = steps.decode_batch // steps.prefill_batch
    left = [number * steps.output // groups for number in range(groups)]  # tokens that a group still makes
    done, gaps = 0, []
    for _ in range(2 * steps.output):
        gap_s = steps.decode_s
        for group, tokens in enumerate(left):
            if tokens == 0:  # its prompts have ended: prefill others into their slots
                gap_s += steps.prefill_s + steps.insert_s + steps.switch_s
                left[group], done = steps.output, done + steps.prefill_batch
        left = [tokens - 1 for tokens in left]
        gaps.append(gap_s)
    return done / sum(gaps), sum(gaps) / len(gaps), max(gaps)


@pytest.mark.parametrize("seed", range(25))
def test_interleaved_is_what_a_clock_shows(seed: int) -> None:
    """Requests per second, mean and longest time per token are those of a server run step by step."""
    steps = some_steps(Random(seed))
    pace, (rate, mean_s, longest_s) = interleaved(steps), run_interleaved(steps)
    assert pace.requests_per_s == pytest.approx(rate)
    assert pace.per_token_s == pytest.approx(mean_s)
    assert pace.worst_per_token_s == pytest.approx(longest_s)


@pytest.mark.parametrize("seed", range(10))
def test_wait_is_what_random_arrivals_find(seed: int) -> None:
    """The mean wait for what runs is that of arrivals at random times, between gaps with and without prefills."""
    random = Random(seed)
    steps = PhaseTimes(
        prefill_s=0.5, prefill_batch=1, decode_s=0.02, decode_batch=8, output=random.choice((16, 64, 128))
    )
    gaps = [0.52 if number % (steps.output // 8) == 0 else 0.02 for number in range(steps.output)]
    waits = []
    for _ in range(20000):
        at = random.uniform(0, sum(gaps))
        for gap in gaps:
            at -= gap
            if at < 0:
                waits.append(-at)
                break
    assert interleaved(steps).ttft_s - 0.5 - 0.02 == pytest.approx(sum(waits) / len(waits), rel=0.05)


@pytest.mark.parametrize("seed", range(20))
def test_as_many_requests_end_as_begin(seed: int) -> None:
    """Little's law: slots in use = requests/s x tokens x seconds per token; all slots of a slice that decodes only."""
    steps = some_steps(Random(seed))
    pace = interleaved(steps)
    assert pace.requests_per_s * steps.output * pace.per_token_s == pytest.approx(steps.decode_batch)
    apart = disaggregated(steps, moved(steps.prefill_batch, copies_s=0.001), 2, 3)
    in_use = apart.requests_per_s * steps.output * apart.per_token_s
    assert in_use <= 3 * steps.decode_batch * (1 + 1e-9)
    begun = 2 * apart.prefill_busy * prefill_rate(steps, moved(steps.prefill_batch, copies_s=0.001))
    assert begun == pytest.approx(apart.requests_per_s)


def test_batched_by_hand() -> None:
    """Two prefills of 0.5 s and 100 steps of 0.01 s: 4 requests in 2 s; TTFT is half of that, 1 s and a step."""
    pace = batched(PhaseTimes(prefill_s=0.5, prefill_batch=2, decode_s=0.01, decode_batch=4, output=100))
    assert pace.requests_per_s == pytest.approx(2.0)
    assert (pace.ttft_s, pace.worst_ttft_s) == (pytest.approx(2.01), pytest.approx(3.01))
    assert (pace.prefill_busy, pace.decode_busy) == (pytest.approx(0.5), pytest.approx(0.5))
    assert pace.request_s(100) == pytest.approx(2.01 + 0.99)


@pytest.mark.parametrize("seed", range(30))
def test_disaggregated_never_stops_for_a_prefill(seed: int) -> None:
    """On the same slices and batch, time per token is at most the interleaved one, in the mean and at worst."""
    steps = some_steps(Random(seed))
    copies_s = min(steps.insert_s, 0.001)
    apart, one = disaggregated(steps, moved(steps.prefill_batch, copies_s=copies_s), 1, 1), interleaved(steps)
    assert apart.per_token_s <= one.per_token_s
    assert apart.worst_per_token_s <= one.worst_per_token_s


def test_disaggregated_first_token_by_hand() -> None:
    """Prefill 0.3 s, transfer 0.02 s, half a step of 0.01 s and one step; at worst a whole step more."""
    steps = PhaseTimes(prefill_s=0.3, prefill_batch=1, decode_s=0.01, decode_batch=16, output=100)
    pace = disaggregated(steps, moved(), 1, 1)
    assert (pace.ttft_s, pace.worst_ttft_s) == (pytest.approx(0.335), pytest.approx(0.34))
    assert pace.requests_per_s == pytest.approx(1 / 0.3)
    assert pace.decode_busy == pytest.approx((1 / 0.3) / 16)


def test_slow_network_limits_both_sides() -> None:
    """A slice does no more requests than its network cards carry."""
    steps = PhaseTimes(prefill_s=0.1, prefill_batch=1, decode_s=0.001, decode_batch=64, output=10)
    slow = moved(load_s=0.5)
    assert (prefill_rate(steps, slow), decode_rate(steps, slow)) == (2.0, 2.0)


def test_chapter_8_needs_three_prefill_servers() -> None:
    """book_vectors.json, ch8.PG: 0.91 s of prefill, 32 slots, 0.019 s a step, 512 tokens: 3 prefill servers to 1."""
    steps = PhaseTimes(prefill_s=0.91, prefill_batch=1, decode_s=0.019, decode_batch=32, output=512)
    counts = slice_counts(prefill_rate(steps, moved()), decode_rate(steps, moved()))
    assert counts is not None
    assert (counts.prefill, counts.decode) == (3, 1)
    book = prefill_servers_per_decode_server(prefill_s=0.91, step_s=0.019, batch=32, tokens_per_query=512)
    assert counts.ratio == pytest.approx(book)


@pytest.mark.parametrize("seed", range(40))
def test_no_fewer_chips_do_as_well(seed: int) -> None:
    """Of all numbers up to 64, none with 95% of the best throughput per chip takes fewer chips."""
    random = Random(seed)
    rates = random.uniform(0.1, 10), random.uniform(0.1, 10)
    chips = random.choice((1, 4, 16)), random.choice((1, 4, 8))
    counts = slice_counts(*rates, chips)
    assert counts is not None
    ideal = rates[1] / (chips[0] * rates[1] / rates[0] + chips[1])

    def good(n: int, m: int) -> bool:
        return min(n * rates[0], m * rates[1]) >= LEAST_EFFICIENCY * ideal * (n * chips[0] + m * chips[1])

    assert good(counts.prefill, counts.decode)
    least = min(n * chips[0] + m * chips[1] for n, m in product(range(1, 65), repeat=2) if good(n, m))
    assert counts.prefill * chips[0] + counts.decode * chips[1] <= least


@pytest.mark.parametrize("seed", range(20))
def test_more_chips_never_do_worse(seed: int) -> None:
    """With a looser limit of chips the throughput per chip does not fall, and what is allowed keeps to the limit."""
    random = Random(seed)
    rates, chips = (random.uniform(0.1, 10), random.uniform(0.1, 10)), (random.choice((2, 8)), random.choice((1, 4)))
    before = 0.0
    for most in range(1, 200, 3):
        counts = slice_counts(*rates, chips, most)
        if counts is None:
            assert before == 0.0
            assert sum(chips) > most
            continue
        used = counts.prefill * chips[0] + counts.decode * chips[1]
        per_chip = min(counts.prefill * rates[0], counts.decode * rates[1]) / used
        assert used <= most
        assert per_chip >= before * (1 - 1e-12)
        before = per_chip


def test_replicas_reach_a_throughput() -> None:
    """The fewest that do as much as was asked for, exactly met included."""
    assert [replicas_for(least, 2.5) for least in (0.0, 2.5, 2.6, 10.0)] == [1, 1, 2, 4]
