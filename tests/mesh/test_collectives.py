"""Seconds of collectives: by hand, against the book, against measurements, and as relations."""

import doctest
import importlib
from pathlib import Path

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from oracles.torus import merged_groups, whole

from mesh.collectives import (
    Group,
    Seconds,
    all_gather,
    all_reduce,
    all_to_all,
    group,
    permute,
    reduce_scatter,
)
from mesh.errors import InputError
from mesh.pieces import Piece
from mesh.slices import parse_slice
from strategies.book.collectives import book_all_gather_s, book_all_reduce_s, book_all_to_all_s

X4, Y4, Z4 = (Piece(axis=axis, stride=1, size=4) for axis in range(3))
CORE = Piece(axis=3, stride=1, size=2)
SLICES = ["v5e:4x8", "v5e:8x16", "v5p:4x4x8", "tpu7x:2x2x4", "v3:4x4", "h100:8"]
DOCUMENTED = ["chips", "slices", "pieces", "collectives"]
PRICES = [all_gather, reduce_scatter, all_reduce, all_to_all, permute]


def test_a_group_of_one_device_costs_nothing() -> None:
    """An axis that is assigned nothing has no collectives."""
    alone = group(parse_slice("v5e:4x4"), [Piece(axis=0, stride=1, size=1)])
    assert alone == Group()
    assert [price(1e9, alone).s for price in PRICES] == [0.0] * 5


def test_the_longer_of_bandwidth_and_latency_counts() -> None:
    """Small arrays are bound by hops, large ones by links."""
    line = group(parse_slice("v5e:4x4"), [X4])
    assert all_gather(1e3, line).s == pytest.approx(3e-6)
    assert all_gather(4.5e7, line).s == pytest.approx(0.75e-3)


def test_the_book_s_gather_over_a_line_of_four_is_ours() -> None:
    """ch3.quiz_AG_v5e_8x4_line: 560 us for bf16[2048, 8192]; 3 us for bf16[256, 256]."""
    line = group(parse_slice("v5e:4x8"), [X4])
    assert all_gather(2 * 2048 * 8192, line).s == pytest.approx(560e-6, rel=0.01)
    assert all_gather(2 * 256 * 256, line).s == pytest.approx(3e-6)


def test_the_book_s_values_are_the_limit_of_ours() -> None:
    """ch3.q2a, q2c and q3 on v4 4x4x4; ours are smaller by (n-1)/n."""
    v4, array_bytes = parse_slice("v4:4x4x4"), 2 * 1024 * 4096
    ring = {"bidirectional_link_bytes_per_s": 9e10, "axis_sizes": [4]}
    assert book_all_gather_s(array_bytes / 4, **ring) == pytest.approx(2.3e-5, rel=0.02)  # type: ignore[arg-type]
    assert book_all_reduce_s(array_bytes / 16, **ring) == pytest.approx(1.16e-5, rel=0.01)  # type: ignore[arg-type]
    assert all_gather(array_bytes / 4, group(v4, [X4])).s == pytest.approx(0.75 * 2.33e-5, rel=0.01)
    assert all_gather(2 * 128, group(v4, [X4])).s == pytest.approx(2e-6)


def test_all_to_all_on_a_ring_tends_to_a_quarter_of_the_gather() -> None:
    """The book's AG/4 on v5e 16x16; without wraparound its torus formula is twice too low."""
    ring = group(parse_slice("v5e:16x16"), [Piece(axis=0, stride=1, size=16)])
    book_s = book_all_to_all_s(1e9, bidirectional_link_bytes_per_s=9e10, axis_sizes=[16])
    assert all_to_all(1e9, ring).s == pytest.approx(book_s)
    assert book_s == pytest.approx(1e9 / 9e10 / 4)
    line = group(parse_slice("v5e:8x8"), [Piece(axis=0, stride=1, size=8)])
    line_book_s = book_all_to_all_s(1e9, bidirectional_link_bytes_per_s=9e10, axis_sizes=[8])
    assert all_to_all(1e9, line).s == pytest.approx(2 * line_book_s)


def test_a_far_piece_holds_back_a_near_one() -> None:
    """Four far members of a line share links two by two; the near pair cannot make up for it."""
    near, far = Piece(axis=0, stride=1, size=2), Piece(axis=1, stride=2, size=4)
    both = group(parse_slice("v5e:8x8"), [near, far])
    assert both.all_gather_s_per_byte == pytest.approx(0.75 / 4.5e10)
    assert both.all_gather_s_per_byte > 7 / 8 / (1 + 1 / 2) / 4.5e10


def test_a_ring_needs_its_whole_axis() -> None:
    """Half a ring of 16 is a line; every second chip around it is a ring whose links two groups share."""
    v5e = parse_slice("v5e:16x16")
    half, every_second = Piece(axis=0, stride=1, size=8), Piece(axis=0, stride=2, size=8)
    assert group(v5e, [half]).all_gather_s_per_byte == pytest.approx(7 / 8 / 4.5e10)
    assert group(v5e, [every_second]).all_gather_s_per_byte == pytest.approx(7 / 8 / 4.5e10)
    assert (group(v5e, [half]).hops, group(v5e, [every_second]).hops) == (7, 8)


def test_one_core_s_gather_on_tpu7x_is_as_measured() -> None:
    """268 MB over the four chips of 2x2x1 took 2252 us: the two cores share the links."""
    chips = [Piece(axis=0, stride=1, size=2), Piece(axis=1, stride=1, size=2)]
    priced = all_gather(268435456, group(parse_slice("tpu7x:2x2x1"), chips))
    assert priced.s == pytest.approx(2252.34e-6, rel=0.01)


def test_both_cores_gather_at_the_full_rate_of_their_links() -> None:
    """With the core axis in the group the ICI links carry V once, not once per core."""
    tpu7x = parse_slice("tpu7x:4x4x4")
    one, both = group(tpu7x, [X4, Y4, Z4]), group(tpu7x, [X4, Y4, Z4, CORE])
    assert (one.n, both.n) == (64, 128)
    assert one.all_gather_s_per_byte == pytest.approx(63 / 64 / (3 * 9e10))
    assert both.all_gather_s_per_byte == pytest.approx(63 / 64 / (6 * 9e10))
    assert both.all_to_all_s_per_byte == pytest.approx(4 / (4 * 64 * 2 * 9e10))


def test_the_two_cores_of_a_chip_exchange_over_their_own_link() -> None:
    """Each core sends the other its half of V, a quarter in an AllToAll."""
    cores = group(parse_slice("tpu7x:1x1x1"), [CORE])
    assert (cores.n, cores.hops) == (2, 1)
    assert cores.all_gather_s_per_byte == pytest.approx(0.5 / 5.4e11)
    assert cores.all_to_all_s_per_byte == pytest.approx(0.25 / 5.4e11)
    assert cores.permute_s_per_byte == pytest.approx(1 / 5.4e11)


def test_a_permute_wraps_at_once_on_a_ring_and_back_along_a_line() -> None:
    """The wrap message costs hops, not bandwidth; far pieces share links."""
    v5e = parse_slice("v5e:8x16")
    line, ring = group(v5e, [Piece(axis=0, stride=1, size=8)]), group(v5e, [Piece(axis=1, stride=1, size=16)])
    assert (line.permute_hops, ring.permute_hops) == (7, 1)
    assert line.permute_s_per_byte == ring.permute_s_per_byte == 1 / 4.5e10
    far = group(v5e, [Piece(axis=0, stride=4, size=2)])
    assert (far.permute_hops, far.permute_s_per_byte) == (4, 4 / 4.5e10)


def test_gpus_gather_and_exchange_through_their_switch() -> None:
    """gpu.node_AG: 536.9 MB on 8 H100 in 1.04 ms; an AllToAll is an eighth of that."""
    node = group(parse_slice("h100:8"), whole(parse_slice("h100:8")))
    assert all_gather(536870912, node).s == pytest.approx(1.04e-3, rel=0.01)
    assert all_to_all(536870912, node).s == pytest.approx(all_gather(536870912, node).s / 8)
    assert (node.hops, node.permute_hops) == (1, 1)


def test_bytes_may_be_an_array() -> None:
    """The search prices many candidates at once."""
    ring, sizes = group(parse_slice("v5p:4x4x4"), [X4]), np.array([1e6, 2e6])
    for price in PRICES:
        many = price(sizes, ring).bandwidth_s  # type: ignore[arg-type]
        assert many.tolist() == [price(1e6, ring).bandwidth_s, price(2e6, ring).bandwidth_s]  # type: ignore[attr-defined]


def test_pieces_that_do_not_fit_are_refused() -> None:
    """group checks its pieces against the slice."""
    with pytest.raises(InputError) as error:
        group(parse_slice("v5e:2x4"), [X4])
    assert str(error.value) == (
        "Piece(axis=0, stride=1, size=4): stride x size = 4 must divide axis X of v5e:2x4, which is 2"
    )


@pytest.mark.parametrize("name", SLICES)
def test_doubling_every_link_halves_every_price(name: str) -> None:
    """Bandwidth enters as 1/W and nowhere else."""
    slice_ = parse_slice(name)
    core = slice_.chip.core_link_bytes_per_s
    chip = msgspec.structs.replace(
        slice_.chip,
        link_bytes_per_s=2 * slice_.chip.link_bytes_per_s,
        core_link_bytes_per_s=2 * core if core else None,
    )
    fast = msgspec.structs.replace(slice_, chip=chip)
    for pieces in merged_groups(slice_):
        now, then = group(slice_, pieces), group(fast, pieces)
        for price in PRICES:
            assert price(1e9, then).bandwidth_s == pytest.approx(price(1e9, now).bandwidth_s / 2)


@given(name=st.sampled_from(SLICES), data=st.data())
def test_gathering_axis_by_axis_is_never_faster_than_at_once(name: str, data: st.DataObject) -> None:
    """A joint gather may do what the two gathers do, so it costs no more bandwidth."""
    slice_ = parse_slice(name)
    pieces = data.draw(st.sampled_from(merged_groups(slice_)))
    joint = group(slice_, pieces)
    parts = [group(slice_, [piece]) for piece in pieces]
    gathered, apart_s = 1.0, 0.0
    for part in parts:
        apart_s += gathered / joint.n * part.n * part.all_gather_s_per_byte
        gathered *= part.n
    assert joint.all_gather_s_per_byte <= apart_s * (1 + 1e-9)


def test_seconds_keep_their_terms() -> None:
    """A caller that calibrates needs both terms, not their maximum."""
    both = all_reduce(1.2e8, group(parse_slice("v5p:4x4x4"), [X4]))
    assert both == Seconds(bandwidth_s=pytest.approx(1e-3), latency_s=4e-6)  # type: ignore[arg-type]


def test_the_examples_in_the_package_are_true() -> None:
    """Doctests of mesh/ and of the page about collectives run with the other tests."""
    modules = [importlib.import_module(f"mesh.{name}") for name in DOCUMENTED]
    assert [doctest.testmod(module).failed for module in modules] == [0] * len(modules)
    page = Path(__file__).parents[2] / "docs" / "concepts" / "collectives.md"
    assert doctest.testfile(str(page), module_relative=False).failed == 0
