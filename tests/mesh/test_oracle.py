"""No group is priced above or below what the best cut of the real graph allows."""

import msgspec
import pytest
from oracles.torus import legal_slices, merged_groups

from mesh.chips import chip_names, load_chip
from mesh.collectives import group
from mesh.oracle import bounds, boxes, torus
from mesh.pieces import Piece
from mesh.slices import Slice, parse_slice

TPUS = [name for name in chip_names() if load_chip(name).kind == "tpu"]


def _distinct_tori() -> list[Slice]:
    """One slice of each shape up to 64 chips: the same torus with faster links has the same cuts."""
    shapes: dict[tuple[object, ...], Slice] = {}
    for chip in TPUS:
        for slice_ in legal_slices(chip):
            if slice_.chips <= 64:
                core = (slice_.chip.core_link_bytes_per_s or 0) / slice_.chip.link_bytes_per_s
                shapes.setdefault((*slice_.axes, core), slice_)
    return list(shapes.values())


def _resized(name: str, dims: tuple[int, ...]) -> Slice:
    """A slice that nobody rents, for its shape."""
    return msgspec.structs.replace(parse_slice(name), dims=dims)


def _assert_priced_as_cut(slice_: Slice) -> None:
    within = boxes(slice_)
    for pieces in merged_groups(slice_):
        priced, bound = group(slice_, pieces), bounds(slice_, pieces, within)
        exact = pytest.approx(priced.all_gather_s_per_byte, rel=1e-9)
        assert bound.all_gather_s_per_byte == exact, pieces
        assert bound.reduce_scatter_s_per_byte == exact, pieces
        assert bound.all_to_all_s_per_byte == pytest.approx(priced.all_to_all_s_per_byte, rel=1e-9), pieces
        least = bound.all_reduce_s_per_byte * (1 - 1e-9)
        assert least <= priced.all_reduce_s_per_byte <= 2 * bound.all_reduce_s_per_byte, pieces


@pytest.mark.parametrize(
    "slice_",
    [
        pytest.param(s, marks=pytest.mark.slow if s.name in ("tpu7x:4x4x4", "v3:8x8") else [], id=s.name)
        for s in _distinct_tori()
    ],
)
def test_every_group_costs_exactly_its_best_cut(slice_: Slice) -> None:
    """AllGather, ReduceScatter and AllToAll are optimal; AllReduce is at most twice its bound."""
    _assert_priced_as_cut(slice_)


@pytest.mark.parametrize(
    "slice_",
    [
        pytest.param(parse_slice("v5e:8x16"), marks=pytest.mark.slow),  # a line and a ring
        _resized("v5p:4x4x4", (4, 12)),  # rings of 3 and 6 members, 4 and 2 apart
        _resized("v5e:4x4", (3, 6)),  # lines of 3 and 6
        _resized("v5p:4x4x4", (20,)),  # a ring of 5 members, 4 apart
        _resized("tpu7x:4x4x4", (4, 4)),  # rings of two-device chips
    ],
    ids=lambda slice_: slice_.name,
)
def test_odd_and_mixed_shapes_cost_exactly_their_best_cut(slice_: Slice) -> None:
    """Sizes such as 3, 5, 6 and 12, and a line beside a ring, which no slice up to 64 chips has."""
    _assert_priced_as_cut(slice_)


@pytest.mark.parametrize("core_link_bytes_per_s", [1e9, 4.5e10, 9e10, 1e12])
def test_any_speed_of_the_core_link_costs_exactly_the_best_cut(core_link_bytes_per_s: float) -> None:
    """The link between the cores may be slower or faster than the ICI."""
    slice_ = parse_slice("tpu7x:2x2x2")
    chip = msgspec.structs.replace(slice_.chip, core_link_bytes_per_s=core_link_bytes_per_s)
    _assert_priced_as_cut(msgspec.structs.replace(slice_, chip=chip))


def test_the_distinct_tori_stand_for_every_slice_up_to_64_chips() -> None:
    """Slices left out differ only by a factor in every link, which scales price and bound alike."""
    assert len(_distinct_tori()) == 21
    v4, v5p = parse_slice("v4:2x2x4"), parse_slice("v5p:2x2x4")
    for pieces in merged_groups(v4):
        ratio = v5p.chip.link_bytes_per_s / v4.chip.link_bytes_per_s
        exact = pytest.approx(group(v4, pieces).all_gather_s_per_byte / ratio)
        assert group(v5p, pieces).all_gather_s_per_byte == exact


def test_the_graph_has_the_links_of_the_slice() -> None:
    """A 4x4 mesh has 24 cables and a 4x4x4 torus 192, each of them two one-way links."""
    assert torus(parse_slice("v5e:4x4")).number_of_edges() == 2 * 24
    assert torus(parse_slice("v5p:4x4x4")).number_of_edges() == 2 * 192


def test_the_bound_of_a_line_is_its_end_device() -> None:
    """The last of four devices must receive three quarters of V over its only link."""
    bound = bounds(parse_slice("v5e:4x4"), [Piece(axis=0, stride=1, size=4)])
    assert bound.all_gather_s_per_byte == pytest.approx(0.75 / 4.5e10)


def test_parts_of_one_axis_that_are_not_adjacent_add_no_bandwidth() -> None:
    """The cut shows why merge refuses them: priced like pieces of two axes they would be too cheap."""
    apart = bounds(parse_slice("v5e:8x8"), [Piece(axis=0, stride=1, size=2), Piece(axis=0, stride=4, size=2)])
    two_axes = group(parse_slice("v5e:8x8"), [Piece(axis=0, stride=1, size=2), Piece(axis=1, stride=4, size=2)])
    assert apart.all_gather_s_per_byte == pytest.approx(1.25 / 4.5e10)
    assert two_axes.all_gather_s_per_byte == pytest.approx(1.0 / 4.5e10)
