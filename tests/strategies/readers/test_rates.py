"""Rates of a mesh's groups: what runs is what is priced."""

import pytest

from mesh.pieces import Piece
from mesh.slices import parse_slice
from strategies.readers.rates import Rates, tabulate_rates

WHOLE, FIRST = -1, 1  # sets of mesh axes: all, and the first one


def rates(name: str) -> Rates:
    """Of a slice whose torus axes are its mesh axes."""
    slice_ = parse_slice(name)
    return tabulate_rates(slice_, [[Piece(axis=i, stride=1, size=axis.size)] for i, axis in enumerate(slice_.axes)])


@pytest.mark.parametrize("name", ["v5e:4x4", "v6e:8x8", "v5e:16x16", "v4:2x2x2", "v5p:4x4x8", "v3:2x2"])
def test_a_scatter_over_a_whole_slice_costs_what_the_all_reduce_does_that_the_compiler_makes_of_it(name: str) -> None:
    """Only over all devices: over one axis it stays what it is."""
    found = rates(name)
    for table in (found.s_per_byte, found.latency_s):
        assert table["ReduceScatter"][WHOLE] == table["AllReduce"][WHOLE] == 2 * table["AllGather"][WHOLE]
        assert table["ReduceScatter"][FIRST] == table["AllGather"][FIRST] > 0
    assert found.reduced[WHOLE]
    assert found.reduced.sum() == 1


@pytest.mark.parametrize("name", ["v5e:2x2", "v5e:4x8", "v6e:2x4", "v4:2x2x1", "tpu7x:4x4x4", "h100:8", "v5e:1x1"])
def test_a_scatter_over_a_whole_slice_stays_one_where_the_compiler_leaves_it(name: str) -> None:
    """Oblong, flat and tpu7x slices, and switches."""
    found = rates(name)
    assert found.s_per_byte["ReduceScatter"][WHOLE] == found.s_per_byte["AllGather"][WHOLE]
    assert not found.reduced.any()


def test_at_the_data_sheet_every_collective_is_done_as_it_is() -> None:
    """As the book does it."""
    v5e = parse_slice("v5e:4x4")
    assert v5e.reduces_whole
    assert not v5e.at_data_sheet.reduces_whole
