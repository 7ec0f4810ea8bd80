"""The KV transfer between two slices: bytes, the slower side, parts of a batch, copies."""

from __future__ import annotations

import msgspec
import pytest
from oracles.even_transfer import even_side, transfer_s

from mesh.errors import InputError
from mesh.pieces import Piece
from mesh.slices import Slice, parse_slice
from planner.best.sweep import sweep
from planner.plan.plan import Plan
from planner.plan.transfer import (
    DCN_LATENCY_S,
    Share,
    TransferEnd,
    chip_dcn_bytes_per_s,
    gather_s,
    request_cache_bytes,
    swap_s,
    transfer,
    transfer_end_of,
)
from planner.query.query import Query
from planner.search.candidate import price_candidate
from strategies.models.configs import load_model
from strategies.models.workload import Dtypes, Workload

SQUARE, SMALLER, FAST = (parse_slice(name) for name in ("v5e:4x4", "v5e:2x4", "v6e:2x4"))
LLAMA = load_model("llama-3.1-70b")
GPT = load_model("gpt-oss-20b")


def plan_of(model: str, phase: str, batch: int, context: int, slice_: Slice = SQUARE) -> Plan:
    """The best plan of one batch."""
    work = Workload(phase=phase, batches=(batch,), context=context, dtypes=Dtypes(weights="int8", kv="int8"))
    request = Query(model=load_model(model), slices=(slice_,), work=work, top=1)
    return price_candidate(sweep(request).bests[0], request)


def test_slower_side_decides() -> None:
    """Eight v5e chips at 3.125 GB/s each send what sixteen, or eight faster ones, could take sooner."""
    one_way_s = 2000 * 163840 / (8 * 3.125e9)
    assert transfer_s(LLAMA, "int8", 2000, SMALLER, SQUARE) == pytest.approx(one_way_s + DCN_LATENCY_S)
    assert transfer_s(LLAMA, "int8", 2000, SMALLER, FAST) == pytest.approx(one_way_s + DCN_LATENCY_S)
    assert transfer_s(LLAMA, "int8", 2000, SQUARE, SMALLER) == pytest.approx(one_way_s + DCN_LATENCY_S)


def test_pcie_counts_where_it_is_slower_than_the_cards() -> None:
    """A chip whose PCIe link is slower than its share of the cards sends through that."""
    chip = msgspec.structs.replace(SQUARE.chip, pcie_bytes_per_s=1e9)
    assert chip_dcn_bytes_per_s(msgspec.structs.replace(SQUARE, chip=chip)) == 1e9
    assert chip_dcn_bytes_per_s(SQUARE) == 3.125e9


def test_windows_bound_the_bytes() -> None:
    """Layers with a window of 128 tokens send 128, the others all: 12 of each in gpt-oss-20b, 2 x 8 x 64 per token."""
    assert request_cache_bytes(GPT, "bf16", 2000) == 2 * 8 * 64 * 2 * (12 * 2000 + 12 * 128)


def test_cut_batch_is_held_by_a_part_of_the_slice() -> None:
    """Where B is cut 4 ways one request's bytes come into a quarter of the chips; four requests fill all of them."""
    source, whole = even_side(SQUARE, LLAMA, "int8", 2000), request_cache_bytes(LLAMA, "int8", 2000)
    target = TransferEnd(SQUARE, (Share(nbytes=whole, batch_ways=4),))
    one, four = transfer(source, target, 1), transfer(source, target, 4)
    assert one.receive_s == pytest.approx(4 * one.send_s)
    assert four.receive_s == pytest.approx(four.send_s) == pytest.approx(one.receive_s)
    assert one.receive_load_s == pytest.approx(one.send_s)


def test_copies_are_gathered_over_ici() -> None:
    """Entries held 4 times along X cost an AllGather over lines of 4, of a quarter of the bytes each."""
    sheet = SQUARE.at_data_sheet
    line = Piece(axis=0, stride=1, size=4)
    target = TransferEnd(sheet, (Share(nbytes=4.5e9, copied=(line,)),))
    moved = transfer(TransferEnd(sheet, (Share(nbytes=4.5e9),)), target)
    assert moved.copies_s == pytest.approx(4.5e9 / 4 * 3 / 4 / 4.5e10)
    assert moved.seconds == pytest.approx(moved.latency_s + max(moved.send_s, moved.receive_s) + moved.copies_s)


def test_pieces_that_are_no_group_are_gathered_in_turn() -> None:
    """A near and a far piece of one axis share its links: first the one gathers half of it, then the other all."""
    sheet = parse_slice("v5e:8x8").at_data_sheet
    near, far = Piece(0, 1, 2), Piece(0, 4, 2)
    apart = gather_s(sheet, (far, near), 1e9)
    assert apart == pytest.approx(gather_s(sheet, (near,), 0.5e9) + gather_s(sheet, (far,), 1e9))


def test_swap_receives_what_it_says() -> None:
    """On a line of 2 each device receives half of V/2 over its one link."""
    sheet = parse_slice("v5e:2x2").at_data_sheet
    assert swap_s(sheet, (Piece(0, 1, 2),), 4.5e8) == pytest.approx(0.01)


@pytest.mark.parametrize(("model", "phase", "batch"), [("llama-3.1-70b", "decode", 32), ("gpt-oss-20b", "prefill", 4)])
def test_plan_says_where_its_caches_lie(model: str, phase: str, batch: int) -> None:
    """A plan's own specs give all bytes of a request, and parts and copies that make up its devices' memory."""
    plan = plan_of(model, phase, batch, 2048)
    side = transfer_end_of(plan, SQUARE, 2048)
    assert side.nbytes == request_cache_bytes(plan.model, "int8", 2048)
    held = sum(plan.padded_batch * s.nbytes * s.copies / plan.devices for s in side.shares)
    assert held == pytest.approx(plan.memory.kv_bytes)


def test_chip_without_dcn_is_named() -> None:
    """A chip file that does not say its DCN bandwidth is an error that says what to add."""
    chip = msgspec.structs.replace(SQUARE.chip, dcn_bytes_per_s=None)
    side = even_side(msgspec.structs.replace(SQUARE, chip=chip), LLAMA, "int8", 2000)
    with pytest.raises(InputError, match=r"v5e:4x4: chip v5e has no dcn_bytes_per_s; expected it in the chip file"):
        transfer(side, side)


def test_no_requests_are_bad_input() -> None:
    """A transfer of no request is refused."""
    side = even_side(SQUARE, LLAMA, "int8", 2000)
    with pytest.raises(InputError, match="requests 0: expected a whole number of at least 1"):
        transfer(side, side, 0)
