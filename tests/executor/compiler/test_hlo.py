"""Compiled HLO is read right: golden excerpts of what the CPU's and the TPU's compilers really wrote."""

from pathlib import Path

import numpy as np
import pytest

from executor.compiler.hlo import Collective, axes_of_groups, axes_of_pairs, big_arrays, big_copies, collectives
from executor.compiler.hlo_text import parse_groups, parse_hlo

CASES = Path(__file__).parents[2] / "cases" / "hlo"
SQUARE = {"X": 4, "Y": 4}


def case(name: str) -> str:
    """A golden excerpt."""
    return (CASES / f"{name}.hlo").read_text("utf-8")


def summary(c: Collective, sizes: dict[str, int]) -> tuple[object, ...]:
    """What a price is compared with."""
    return c.kind, c.axes(sizes), c.elements, c.runs, c.emitter


def test_an_asynchronous_gather_spread_over_fusions_counts_once() -> None:
    """v5e: its start, a matmul that runs meanwhile, and its end all hold an all-gather. 8 runs by the condition."""
    found = collectives(case("v5e_async_gather"))
    assert [summary(c, SQUARE) for c in found] == [
        ("AllGather", ("X",), 4096 * 3584, 8, "AsyncCollectiveFusion"),
        ("AllGather", ("X",), 4096 * 3584, 8, "1DAllGatherNonMajorDim"),
        ("AllReduce", ("Y",), 256 * 4096, 8, "RotatedPincerEmitter"),
    ]
    assert found[2].op_name == "jit(f)/shard_map/while/body/closed_call/psum"


def test_a_scatter_that_became_a_reduction_keeps_its_name() -> None:
    """v5e: shards of 896 columns are no multiple of 256, so an all-reduce and a slice run; its reducer is named."""
    _, reduce, _, scatter = collectives(case("v5e_scatter_as_reduce"))
    assert summary(reduce, SQUARE) == ("AllReduce", ("X",), 64 * 3584, 8, "RotatedPincerShortEmitter")
    assert summary(scatter, SQUARE) == ("ReduceScatter", ("Y",), 64 * 1024, 8, "SingleInputAllReduceScatterFusion")
    assert reduce.op_name == "while/body/closed_call/reduce_scatter"


def test_a_scatter_fused_with_padding_has_the_elements_before_it() -> None:
    """v5e: 4096 rows padded to 4176, then 40 rows move across the shards' border."""
    scatter, permute = collectives(case("v5e_padded_scatter"))
    sizes = {"X": 2, "Y": 2, "Z": 4}
    assert summary(scatter, sizes) == ("ReduceScatter", ("X",), 4096 * 8192, 1, "SingleInputAllReduceScatterFusion")
    assert (scatter.padding, scatter.parts[0].dtype) == (80 * 8192, "bf16")
    assert summary(permute, sizes) == ("CollectivePermute", ("X",), 40 * 8192, 1, None)


def test_collectives_of_the_sparse_core_are_found_in_what_it_is_called_with() -> None:
    """tpu7x: call-start of a computation for the SparseCore."""
    found = collectives(case("tpu7x_sparsecore"))
    assert [summary(c, {"X": 2, "Y": 4}) for c in found] == [
        ("AllGather", ("X",), 4096 * 3584, 8, "SparseCore"),
        ("AllGather", ("X",), 4096 * 3584, 8, "SparseCore"),
        ("AllReduce", ("Y",), 512 * 4096, 8, "SparseCore"),
    ]


def test_the_cpu_merges_reductions_and_widens_them() -> None:
    """Two psums are one all-reduce with two operands; an all-to-all passes its shards one by one; bf16 is float32."""
    sizes = {"x": 2, "y": 4}
    found = collectives(case("cpu_promoted"))
    assert [(c.kind, c.axes(sizes), [p.elements for p in c.parts], c.runs) for c in found] == [
        ("AllGather", ("y",), [16 * 256], 5),
        ("ReduceScatter", ("x",), [16 * 64], 5),
        ("AllGather", ("x",), [16 * 64], 5),
        ("AllReduce", ("x", "y"), [64, 16 * 64], 5),
        ("CollectivePermute", ("y",), [16 * 64], 5),
        ("AllToAll", ("y",), [16 * 64] * 4, 5),
        ("AllToAll", ("y",), [16 * 64] * 4, 5),
    ]
    assert {p.dtype for c in found for p in c.parts} == {"f32"}


def test_copies_of_weights_are_found_and_copies_into_fast_memory_are_not() -> None:
    """tpu7x formats both stacked weights anew before the loop, 117 MB each; v5e prefetches into VMEM only."""
    copies = big_copies(case("tpu7x_sparsecore"), 100e6)
    assert [(c.opcode, c.shape.dims, c.runs) for c in copies] == [
        ("format", (8, 2048, 3584), 1),
        ("format", (8, 3584, 2048), 1),
    ]
    assert big_copies(case("v5e_async_gather"), 3e6) == []
    layers = big_copies(case("tpu7x_sparsecore"), 10e6)[2:]
    assert [(c.opcode, c.shape.dims, c.runs) for c in layers] == [
        ("copy", (1, 2048, 3584), 8),
        ("copy", (1, 3584, 2048), 8),
    ]


def test_what_a_started_call_makes_is_what_it_calls_gives() -> None:
    """libtpu 0.0.50, tpu7x: the start has no arrays, an update brings them; both weights are formatted, 134 MB each."""
    copies = big_copies(case("tpu7x_started_calls"), 100e6)
    assert [(c.opcode, c.shape.dims, c.runs) for c in copies] == [
        ("format", (8, 2048, 4096), 1),
        ("format", (8, 4096, 2048), 1),
    ]


def test_big_arrays_are_what_instructions_make_in_hbm() -> None:
    """Gathered weights of a layer appear on tpu7x (in HBM), largest first; parameters and tuples never."""
    found = big_arrays(case("tpu7x_sparsecore"), 20e6)
    assert [a.shape.nbytes for a in found] == sorted((a.shape.nbytes for a in found), reverse=True)
    assert ("all-gather", (1, 4096, 3584)) in {(a.opcode, a.shape.dims) for a in found}
    assert not {a.opcode for a in found} & {"parameter", "tuple", "get-tuple-element", "while", "bitcast"}


LOOP = """HloModule m, num_partitions=4

%sum (a: f32[], b: f32[]) -> f32[] {
  %a = f32[] parameter(0)
  %b = f32[] parameter(1)
  ROOT %c = f32[] add(%a, %b)
}

%inner_cond (p: (s32[], f32[8])) -> pred[] {
  %p = (s32[], f32[8]{0}) parameter(0)
  %i = s32[] get-tuple-element(%p), index=0
  %n = s32[] constant(3)
  ROOT %lt = pred[] compare(%i, %n), direction=LT
}

%inner (p: (s32[], f32[8])) -> (s32[], f32[8]) {
  %p = (s32[], f32[8]{0}) parameter(0)
  %i = s32[] get-tuple-element(%p), index=0
  %x = f32[8]{0} get-tuple-element(%p), index=1
  %one = s32[] constant(1)
  %next = s32[] add(%i, %one)
  %r = f32[8]{0} all-reduce(%x), channel_id=1, replica_groups=[2,2]<=[4], use_global_device_ids=true, to_apply=%sum
  ROOT %t = (s32[], f32[8]{0}) tuple(%next, %r)
}

%outer_cond (p: (s32[], f32[8], s32[])) -> pred[] {
  %p = (s32[], f32[8]{0}, s32[]) parameter(0)
  %i = s32[] get-tuple-element(%p), index=0
  %n = s32[] get-tuple-element(%p), index=2
  ROOT %lt = pred[] compare(%i, %n), direction=LT
}

%outer (p: (s32[], f32[8], s32[])) -> (s32[], f32[8], s32[]) {
  %p = (s32[], f32[8]{0}, s32[]) parameter(0)
  %i = s32[] get-tuple-element(%p), index=0
  %x = f32[8]{0} get-tuple-element(%p), index=1
  %n = s32[] get-tuple-element(%p), index=2
  %two = s32[] constant(2)
  %zero = s32[] constant(0)
  %next = s32[] add(%i, %two)
  %t = (s32[], f32[8]{0}) tuple(%zero, %x)
  %w = (s32[], f32[8]{0}) while(%t), condition=%inner_cond, body=%inner
  %y = f32[8]{0} get-tuple-element(%w), index=1
  ROOT %u = (s32[], f32[8]{0}, s32[]) tuple(%next, %y, %n)
}

ENTRY %main (x: f32[8]) -> f32[8] {
  %x = f32[8]{0} parameter(0)
  %first = s32[] constant(1)
  %ten = s32[] constant(10)
  %t = (s32[], f32[8]{0}, s32[]) tuple(%first, %x, %ten)
  %w = (s32[], f32[8]{0}, s32[]) while(%t), condition=%outer_cond, body=%outer
  ROOT %y = f32[8]{0} get-tuple-element(%w), index=1
}
"""


def test_nested_loops_multiply_with_start_step_and_hoisted_bound() -> None:
    """1, 3, 5, 7, 9 times 0, 1, 2; the outer bound comes in through the loop's tuple."""
    (found,) = collectives(LOOP)
    assert (found.runs, found.groups) == (15, ((0, 1), (2, 3)))


def test_what_first_uses_a_collective_is_known_through_what_has_no_name() -> None:
    """Some of libtpu 0.0.50's collectives have no name of their own."""
    used = (
        "%v = f32[8]{0} bitcast(%r)\n"
        '  %u = f32[8]{0} negate(%v), metadata={op_name="jit(f)/attention/O/neg"}\n'
        "  ROOT %t = (s32[], f32[8]{0}) tuple(%next, %u)"
    )
    (found,) = collectives(LOOP.replace("ROOT %t = (s32[], f32[8]{0}) tuple(%next, %r)", used))
    assert (found.op_name, found.user_op_name) == ("", "jit(f)/attention/O/neg")
    assert [c.user_op_name for c in collectives(LOOP)] == [""]


def test_an_unknown_trip_count_is_not_guessed() -> None:
    """A bound that is an argument makes the number of runs unknown."""
    text = LOOP.replace("%ten = s32[] constant(10)", "%ten = s32[] parameter(1)")
    assert [c.runs for c in collectives(text)] == [None]
    assert parse_hlo(text).runs()["main"] == 1


@pytest.mark.parametrize(
    ("text", "groups"),
    [
        ("{{0,1},{2,3}}", ((0, 1), (2, 3))),
        ("{}", ((0, 1, 2, 3),)),
        ("[2,2]<=[4]", ((0, 1), (2, 3))),
        ("[2,2]<=[2,2]T(1,0)", ((0, 2), (1, 3))),
        ("mesh['a'=2,'b'=2] {'b'}", ((0, 1), (2, 3))),
        ("mesh['a'=1,'b'=2,'c'=2], device_ids=([2,2]T(1,0)) {'b'}", ((0, 1), (2, 3))),
        ("mesh['a'=4,'b'=2] {'a':(2)2,'b'}", ((0, 1, 2, 3), (4, 5, 6, 7))),
        ("mesh['a'=4] {'a':(1)2}", ((0, 2), (1, 3))),
    ],
)
def test_replica_groups_are_read_in_every_form(text: str, groups: tuple[tuple[int, ...], ...]) -> None:
    """Listed, all, iota, iota transposed; axes of a mesh, parts of them, and another order of the devices."""
    assert parse_groups(text, 4) == groups


def test_groups_are_mesh_axes_whatever_their_order() -> None:
    """Every subset of the axes of a mesh is recognised, shuffled or not; anything else is none."""
    sizes = {"X": 2, "Y": 4, "Z": 2}
    ids = np.arange(16).reshape(2, 4, 2)
    over_xz = ids.transpose(1, 2, 0).reshape(4, 4)
    assert axes_of_groups(tuple(map(tuple, over_xz[::-1].tolist())), sizes) == ("X", "Z")
    assert axes_of_groups((tuple(range(16)),), sizes) == ("X", "Y", "Z")
    assert axes_of_groups(tuple((n,) for n in range(16)), sizes) == ()
    swapped = ((0, 3), (1, 2), *((n, n + 1) for n in range(4, 16, 2)))
    assert axes_of_groups(swapped, sizes) is None
    assert axes_of_groups(((0, 1),), sizes) is None


def test_a_permute_lies_along_the_axes_in_which_its_pairs_differ() -> None:
    """A shift along Y, also without its wrap; a shift over Y and Z together changes both."""
    sizes = {"X": 2, "Y": 2, "Z": 2}
    assert axes_of_pairs([(0, 2), (2, 0)], sizes) == ("Y",)
    assert axes_of_pairs([(0, 1), (1, 2), (2, 3)], sizes) == ("Y", "Z")


def test_a_permute_in_place_moves_its_slice() -> None:
    """Operands are two arrays and offsets; only the slice travels."""
    text = LOOP.replace(
        "all-reduce(%x), channel_id=1, replica_groups=[2,2]<=[4], use_global_device_ids=true, to_apply=%sum",
        "collective-permute(%x, %x, %i, %i), channel_id=1, source_target_pairs={{0,1},{1,0}}, slice_sizes={{2}}",
    )
    assert [(c.kind, c.elements, c.pairs) for c in collectives(text)] == [("CollectivePermute", 2, ((0, 1), (1, 0)))]
