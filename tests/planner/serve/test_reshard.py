"""Moving tensors between two layouts of one slice: bytes against a count of elements, seconds against collectives."""

from __future__ import annotations

from itertools import product
from math import prod
from random import Random

import pytest

from mesh.collectives import all_gather, all_to_all, group
from mesh.pieces import Piece
from mesh.slices import Slice, parse_slice
from planner.best.sweep import sweep
from planner.plan.plan import Plan
from planner.query.query import Query
from planner.search.candidate import price_candidate
from planner.serve.reshard import Box, box_move, differing, insert_move, weight_names, weights_move
from strategies.models.configs import load_model
from strategies.models.workload import Dtypes, Workload

SHEET = parse_slice("v5e:4x4").at_data_sheet
FINEST = (Piece(0, 2, 2), Piece(0, 1, 2), Piece(1, 2, 2), Piece(1, 1, 2))
SIDE = 16  # elements of each of two dims
ROW = Piece(0, 1, 4)


def random_box(random: Random) -> Box:
    """Each finest piece cuts D, F or nothing, in any order."""
    pieces = random.sample(FINEST, len(FINEST))
    dims = [random.choice("DF-") for _ in pieces]
    return Box({dim: tuple(p for p, d in zip(pieces, dims, strict=True) if d == dim) for dim in "DF"})


def elements(box: Box, place: tuple[int, ...]) -> set[tuple[int, ...]]:
    """The elements that the device at these coordinates holds."""
    ranges = []
    for dim in "DF":
        first, length = 0, SIDE
        for piece in box.dims[dim]:
            length //= piece.size
            first += length * (place[piece.axis] // piece.stride % piece.size)
        ranges.append(range(first, first + length))
    return set(product(*ranges))


@pytest.mark.parametrize("seed", range(60))
def test_received_bytes_are_counted_elements(seed: int) -> None:
    """The busiest device receives the elements of its new box that its old one lacks, one by one."""
    random = Random(seed)
    before, after = random_box(random), random_box(random)
    lacking = max(len(elements(after, p) - elements(before, p)) for p in product(range(4), range(4)))
    move = box_move(before, after, float(SIDE * SIDE), SHEET)
    assert move.received_bytes == pytest.approx(lacking)
    assert (move.gathered_s + move.swapped_s > 0) == (lacking > 0)


def test_equal_boxes_stay() -> None:
    """Nothing crosses ICI where both layouts are equal; the bytes are copied within HBM, read and written."""
    box = Box({"D": (ROW,), "F": ()})
    move = box_move(box, box, 8.2e11, SHEET)
    assert (move.received_bytes, move.gathered_s, move.swapped_s) == (0.0, 0.0, 0.0)
    assert move.seconds == pytest.approx(2 / 4)


def test_dropping_a_cut_is_an_all_gather() -> None:
    """From D cut over a line of 4 to whole: the AllGather of the notation, at its price."""
    move = box_move(Box({"D": (ROW,), "F": ()}), Box({"D": (), "F": ()}), 4.5e10, SHEET)
    assert move.gathered_s == pytest.approx(all_gather(4.5e10, group(SHEET, [ROW])).s)
    assert move.swapped_s == 0.0


def test_moving_a_cut_is_an_all_to_all() -> None:
    """From D to F over a line of 4: the AllToAll of the notation, at its price."""
    move = box_move(Box({"D": (ROW,), "F": ()}), Box({"D": (), "F": (ROW,)}), 4.5e10, SHEET)
    assert move.swapped_s == pytest.approx(all_to_all(4.5e10, group(SHEET, [ROW])).s)
    assert move.gathered_s == 0.0


def plan_of(phase: str, batch: int, context: int, slice_: Slice) -> Plan:
    """The best plan of llama-3.1-8b."""
    work = Workload(phase=phase, batches=(batch,), context=context, dtypes=Dtypes(weights="int8", kv="int8"))
    request = Query(model=load_model("llama-3.1-8b"), slices=(slice_,), work=work, top=1)
    return price_candidate(sweep(request).bests[0], request)


@pytest.fixture(scope="module")
def pair() -> tuple[Plan, Plan, Slice]:
    """A prefill and a decode plan of one slice."""
    slice_ = parse_slice("v5e:2x4")
    return plan_of("prefill", 2, 1024, slice_), plan_of("decode", 32, 1280, slice_), slice_


def test_weights_that_move_are_those_that_differ(pair: tuple[Plan, Plan, Slice]) -> None:
    """A plan and itself differ in nothing and move nothing; two plans move at most what the target stores."""
    prefill, decode, slice_ = pair
    assert differing(decode, decode, slice_) == ()
    assert weights_move(decode, decode, slice_).seconds == 0.0
    names = differing(prefill, decode, slice_)
    assert names
    assert set(names) <= set(weight_names(decode))
    there = weights_move(decode, prefill, slice_)
    assert 0 < there.received_bytes <= prefill.memory.weights_bytes


def test_names_of_mesh_axes_do_not_matter(pair: tuple[Plan, Plan, Slice]) -> None:
    """Layouts are compared by the devices that hold each part, not by what mesh axes are called."""
    import msgspec

    _, decode, slice_ = pair
    names = dict(zip(decode.mesh.axis_names, "QRST", strict=False))
    mesh = msgspec.structs.replace(decode.mesh, axis_names=tuple(names.values()))
    specs = {
        key: msgspec.structs.replace(spec, axes=tuple(tuple(names[a] for a in axes) for axes in spec.axes))
        for key, spec in decode.specs.items()
    }
    assert differing(decode, msgspec.structs.replace(decode, mesh=mesh, specs=specs), slice_) == ()


def test_inserting_moves_at_most_the_prompts_caches(pair: tuple[Plan, Plan, Slice]) -> None:
    """A device receives no more than all requests' caches, and writes at least its part of them."""
    prefill, decode, slice_ = pair
    whole = prefill.batch * prefill.model.kv_elements(prefill.context)
    move = insert_move(prefill, decode, slice_)
    assert 0 <= move.received_bytes <= whole
    reached = slice_.chip.reached
    assert reached is not None
    assert move.hbm_s >= 2 * whole / slice_.devices / (slice_.chip.device_hbm_bytes_per_s * reached.hbm) * (1 - 1e-9)
    assert prod(decode.mesh.axis_sizes) == slice_.devices
