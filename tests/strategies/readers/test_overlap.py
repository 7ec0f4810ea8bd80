"""The overlap rule, checked by hand and as the search takes it apart."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from strategies.readers.overlap import collective_s, overlapped_s, room_s

SECONDS = st.floats(0.0, 10.0)


def test_gathers_hide_first_and_latency_in_what_is_left() -> None:
    """Of 10 s of operations 7 hide gathers, so that 3 are left, in which 2 of 5 s of hops can be read ahead, or 3."""
    numbers = {"roofline_s": 10.0, "gathers_s": 7.0, "latency_s": 5.0}
    assert overlapped_s(**numbers, spare_s=2.0, prefetch_s=4.0) == 9.0
    assert overlapped_s(**numbers, spare_s=4.0, prefetch_s=4.0) == 10.0
    assert overlapped_s(**numbers, spare_s=4.0, prefetch_s=0.0) == 7.0
    assert overlapped_s(**numbers | {"gathers_s": 12.0}, spare_s=4.0, prefetch_s=4.0) == 10.0


@given(st.lists(st.tuples(*[SECONDS] * 5), min_size=1, max_size=8))
def test_arrays_are_their_numbers_one_by_one(rows: list[tuple[float, float, float, float, float]]) -> None:
    """A row of an array is what its numbers give alone, and no more than the operations and collectives take."""
    together = overlapped_s(*np.array(rows).T)
    assert together.tolist() == [float(overlapped_s(*row)) for row in rows]
    for hidden, (roofline, gathers, latency, *_) in zip(together, rows, strict=True):
        assert hidden <= min(roofline, gathers + latency) * (1 + 1e-12)


@given(*[SECONDS] * 6)
def test_body_and_reshard_apart_give_the_larger_of_two_sums(
    roofline_s: float, gathers_s: float, spare_s: float, prefetch_s: float, latency_s: float, more_s: float
) -> None:
    """What the search's rows add: seconds less latency, and seconds less room, of a body and `more_s` of a reshard."""
    room = float(room_s(roofline_s, gathers_s, spare_s, prefetch_s))
    body_s, reshard_s = roofline_s + gathers_s + latency_s - min(roofline_s, gathers_s), more_s
    both = roofline_s + gathers_s + latency_s + more_s
    both -= float(overlapped_s(roofline_s, gathers_s, latency_s + more_s, spare_s, prefetch_s))
    early, late = (body_s - latency_s) + (reshard_s - more_s), (body_s - room) + reshard_s
    assert np.isclose(both, max(early, late), rtol=1e-12, atol=1e-12)


def test_a_collective_takes_both_terms_or_the_longer() -> None:
    """Measured ones add up; the data sheet's bound is the longer."""
    assert (collective_s(3.0, 1.0, True), collective_s(3.0, 1.0, False)) == (4.0, 3.0)
