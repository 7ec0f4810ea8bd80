"""Rewrites that the compilers do are recognised, and programs that are like them and wrong are differences."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from executor.compiler.expected import ExpectedCollective
from executor.compiler.hlo import Collective, Operand, collectives
from executor.compiler.rewrites import CollectiveDiff, compare_collectives

CASES = Path(__file__).parents[2] / "cases" / "hlo"
SIZES = {"X": 2, "Y": 4}
GROUPS = {
    ("X",): tuple((n, n + 4) for n in range(4)),
    ("Y",): (tuple(range(4)), tuple(range(4, 8))),
    ("X", "Y"): (tuple(range(8)),),
}


def promise(kind: str, axes: tuple[str, ...], elements: float, runs: int = 1, width: float = 2) -> ExpectedCollective:
    """A priced collective."""
    return ExpectedCollective(kind, axes, elements, width, runs, f"{kind} of {elements}")


def ran(
    kind: str, axes: tuple[str, ...], *elements: int, runs: int | None = 1, dtype: str = "bf16", padding: int = 0
) -> Collective:
    """A collective of a compiled program, with an operand for each number of elements."""
    bits = {"bf16": 16, "f32": 32}[dtype]
    return Collective(
        kind=kind,
        name=f"{kind}.{sum(elements)}",
        op_name="jit(f)/op",
        parts=tuple(Operand(n, dtype, bits) for n in elements),
        groups=GROUPS[axes] if kind != "CollectivePermute" else (),
        pairs=tuple((g[0], g[1]) for g in GROUPS[axes]) if kind == "CollectivePermute" else (),
        runs=runs,
        padding=padding,
    )


def compare(promised: Sequence[ExpectedCollective], found: Sequence[Collective]) -> CollectiveDiff:
    """On a mesh of 2 x 4."""
    return compare_collectives(promised, found, SIZES)


def test_what_was_promised_holds_without_a_word() -> None:
    """Runs may be split over several places in the program."""
    found = [ran("AllReduce", ("Y",), 64, runs=1), ran("AllReduce", ("Y",), 64, runs=79)]
    assert compare([promise("AllReduce", ("Y",), 64, runs=80)], found) == CollectiveDiff((), ())


@pytest.mark.parametrize(
    ("kind", "promised", "found", "extra_bytes"),
    [
        ("AsAllReduce", promise("ReduceScatter", ("Y",), 64), [ran("AllReduce", ("Y",), 64)], 96),
        ("AsAllReduce", promise("AllGather", ("Y",), 64), [ran("AllReduce", ("Y",), 64)], 96),
        ("AsAllReduce", promise("AllToAll", ("Y",), 64), [ran("AllReduce", ("Y",), 64)], 192 - 24),
        ("AsAllGather", promise("AllToAll", ("Y",), 64), [ran("AllGather", ("Y",), 64)], 96 - 24),
        ("AsTwo", promise("AllReduce", ("Y",), 64), [ran(k, ("Y",), 64) for k in ("ReduceScatter", "AllGather")], 0),
        ("AsPermutes", promise("AllToAll", ("Y",), 64), [ran("CollectivePermute", ("Y",), 4, runs=3)], 0),
        ("ByAxes", promise("AllReduce", ("X", "Y"), 64), [ran("AllReduce", (a,), 64) for a in "XY"], 96),
        (
            "ByAxes",
            promise("AllGather", ("X", "Y"), 64),
            [ran("AllGather", ("X",), 64), ran("AllGather", ("Y",), 32)],
            0,
        ),
        ("Widened", promise("AllReduce", ("Y",), 64), [ran("AllReduce", ("Y",), 64, dtype="f32")], 192),
        ("Narrowed", promise("AllReduce", ("Y",), 64, width=4), [ran("AllReduce", ("Y",), 64)], -192),
        ("Regrouped", promise("AllGather", ("Y",), 64), [ran("AllGather", ("Y",), 16, runs=4)], 0),
    ],
)
def test_a_known_rewrite_is_a_value_with_its_extra_bytes(
    kind: str, promised: ExpectedCollective, found: list[Collective], extra_bytes: float
) -> None:
    """Extra bytes: those that each device sends beyond the priced ones."""
    outcome = compare([promised], found)
    assert outcome.holds
    (rewrite,) = outcome.rewrites
    assert (rewrite.kind, rewrite.expected, rewrite.compiled) == (kind, (promised,), tuple(found))
    assert rewrite.extra_bytes == pytest.approx(extra_bytes)


def test_a_merged_collective_is_matched_operand_by_operand() -> None:
    """Two promises in one AllReduce of two operands; a promise of the sum is no rewrite."""
    found = ran("AllReduce", ("Y",), 64, 1024, runs=5)
    wanted = [promise("AllReduce", ("Y",), n, runs=5) for n in (64, 1024)]
    (rewrite,) = compare(wanted, [found]).rewrites
    assert (rewrite.kind, rewrite.expected, rewrite.extra_bytes) == ("Merged", tuple(wanted), 0)
    assert compare([promise("AllReduce", ("Y",), 1088, runs=5)], [found]) == CollectiveDiff((), ())


def permute(elements: int, far: int, runs: int = 1, shards: int = 4) -> Collective:
    """A CollectivePermute along Y by `far` places forward, without a wrap."""
    pairs = tuple((g[i], g[i + far]) for g in GROUPS[("Y",)] for i in range(shards) if 0 <= i + far < shards)
    return replace(ran("CollectivePermute", ("Y",), elements, runs=runs), name=f"far.{far}.{elements}", pairs=pairs)


def test_a_padded_scatter_takes_its_border_permutes_with_it() -> None:
    """4 shards of 1600 padded to 1640: up to 120 elements of a shard belong to the next one."""
    wanted, scatter = promise("ReduceScatter", ("Y",), 6400, 5), ran("ReduceScatter", ("Y",), 6400, runs=5, padding=160)
    (rewrite,) = compare([wanted], [scatter, permute(120, 1, 5)]).rewrites
    assert (rewrite.kind, rewrite.extra_bytes) == ("Padded", 5 * (160 * 2 * 3 / 4 + 120 * 2))


def test_much_padding_is_permuted_over_more_than_one_border() -> None:
    """PaLM on v4:4x4x4: 16 shards of 18 rows padded to 20: all of a shard to the next, half of it to the one after."""
    sizes = {"Y": 16}
    groups = (tuple(range(16)),)
    pairs = {far: tuple((i, i + far) for i in range(16 - far)) for far in (1, 2)}
    wanted = promise("ReduceScatter", ("Y",), 16 * 18 * 1024)
    scatter = replace(ran("ReduceScatter", ("Y",), 16 * 18 * 1024, padding=32 * 1024), groups=groups)
    moves = [replace(permute(rows * 1024, 1), pairs=pairs[far]) for far, rows in ((1, 20), (2, 10))]
    assert compare_collectives([wanted], [scatter, *moves], sizes).holds
    for wrong in (permute(20 * 1024, 1), permute(11 * 1024, 1)):
        assert not compare_collectives([wanted], [scatter, moves[0], replace(wrong, pairs=pairs[2])], sizes).holds


@pytest.mark.parametrize(
    ("why", "scatter", "permutes"),
    [
        ("no padding", ran("ReduceScatter", ("Y",), 6400), [permute(80, 1)]),
        ("more than lies across a border", ran("ReduceScatter", ("Y",), 6400, padding=160), [permute(121, 1)]),
        ("the other way", ran("ReduceScatter", ("Y",), 6400, padding=160), [permute(80, -1)]),
        ("where nothing must go", ran("ReduceScatter", ("Y",), 6400, padding=160), [permute(80, 2)]),
        ("twice", ran("ReduceScatter", ("Y",), 6400, padding=160), [permute(80, 1), permute(40, 1)]),
        ("more often", ran("ReduceScatter", ("Y",), 6400, padding=160), [permute(80, 1, runs=2)]),
        (
            "across groups",
            ran("ReduceScatter", ("Y",), 6400, padding=160),
            [replace(permute(80, 1), pairs=((0, 1), (3, 4)))],
        ),
        (
            "wider elements",
            ran("ReduceScatter", ("Y",), 6400, padding=160),
            [replace(permute(80, 1), parts=(Operand(80, "f32", 32),))],
        ),
    ],
)
def test_a_permute_that_padding_does_not_ask_for_is_extra(
    why: str, scatter: Collective, permutes: list[Collective]
) -> None:
    """One for each distance, forward, no more often and no more than what lies across borders."""
    outcome = compare([promise("ReduceScatter", ("Y",), 6400)], [scatter, *permutes])
    assert [d.kind for d in outcome.differences] == ["extra"], why


def again(**change: Any) -> Collective:
    """What XLA makes of a gather of 64 that it runs again."""
    known: dict[str, Any] = {"name": "AllGather.64.remat"}
    return replace(ran("AllGather", ("Y",), 64, runs=48), **(known | change))


def test_a_gather_that_is_run_again_is_told_with_its_bytes() -> None:
    """Rather than keep its result, where memory is short; the price knows one run."""
    first = ran("AllGather", ("Y",), 64, runs=48)
    (rewrite,) = compare([promise("AllGather", ("Y",), 64, runs=48)], [first, again()]).rewrites
    assert (rewrite.kind, rewrite.compiled, rewrite.extra_bytes) == ("Repeated", (again(),), 48 * 64 * 2 * 3 / 4)


@pytest.mark.parametrize(
    "wrong",
    [
        again(name="AllGather.65"),
        again(name="AllGather.65.remat"),
        again(op_name="jit(f)/another"),
        again(runs=49),
        again(parts=(Operand(128, "bf16", 16),)),
        again(parts=(Operand(64, "f32", 32),)),
        again(groups=GROUPS[("X",)]),
        again(kind="AllReduce"),
    ],
    ids=lambda c: f"{c.name}-{c.kind}-{c.elements}-{c.runs}",
)
def test_another_gather_is_no_repeated_one(wrong: Collective) -> None:
    """XLA's name for the very same operation, as large and no more often: anything else is extra."""
    first = ran("AllGather", ("Y",), 64, runs=48)
    assert not compare([promise("AllGather", ("Y",), 64, runs=48)], [first, wrong]).holds


REDUCE = ExpectedCollective("AllReduce", ("X",), 64, 2, 80, "attention: o[B, D] {U_Y} = AllReduce_X(o[B, D] {U_XY})")
SCATTER = ExpectedCollective(
    "ReduceScatter", ("Y",), 64, 2, 80, "attention: o[B, D_Y] = ReduceScatter_Y(o[B, D] {U_Y})"
)


def test_an_all_reduce_may_come_behind_the_scatter_of_its_result() -> None:
    """Then it is of a quarter of the elements: fewer bytes than priced."""
    found = [ran("ReduceScatter", ("Y",), 64, runs=80), ran("AllReduce", ("X",), 16, runs=80)]
    outcome = compare([REDUCE, SCATTER], found)
    assert outcome.holds
    (rewrite,) = outcome.rewrites
    assert (rewrite.kind, rewrite.expected, rewrite.compiled) == ("Reordered", (REDUCE,), (found[1],))
    assert rewrite.extra_bytes == -80 * (64 - 16) * 2


@pytest.mark.parametrize(
    ("why", "promised", "found"),
    [
        ("the scatter is not there", [REDUCE, SCATTER], [ran("AllReduce", ("X",), 16, runs=80)]),
        ("nothing scatters its result", [REDUCE], [ran("AllReduce", ("X",), 16, runs=80)]),
        (
            "the scatter reads something else",
            [REDUCE, replace(SCATTER, text="attention: p[B, D_Y] = ReduceScatter_Y(p[B, D] {U_Y})")],
            [ran("ReduceScatter", ("Y",), 64, runs=80), ran("AllReduce", ("X",), 16, runs=80)],
        ),
        (
            "the scatter is of another component",
            [REDUCE, replace(SCATTER, text=SCATTER.text.replace("attention", "mlp"))],
            [ran("ReduceScatter", ("Y",), 64, runs=80), ran("AllReduce", ("X",), 16, runs=80)],
        ),
        (
            "too few elements",
            [REDUCE, SCATTER],
            [ran("ReduceScatter", ("Y",), 64, runs=80), ran("AllReduce", ("X",), 8, runs=80)],
        ),
        (
            "over other axes",
            [REDUCE, SCATTER],
            [ran("ReduceScatter", ("Y",), 64, runs=80), ran("AllReduce", ("Y",), 16, runs=80)],
        ),
        (
            "in one layer less",
            [REDUCE, SCATTER],
            [ran("ReduceScatter", ("Y",), 64, runs=80), ran("AllReduce", ("X",), 16, runs=79)],
        ),
        (
            "wider",
            [REDUCE, SCATTER],
            [ran("ReduceScatter", ("Y",), 64, runs=80), ran("AllReduce", ("X",), 16, runs=80, dtype="f32")],
        ),
    ],
)
def test_a_smaller_all_reduce_is_no_reordered_one_without_proof(
    why: str, promised: list[ExpectedCollective], found: list[Collective]
) -> None:
    """The promised scatter takes exactly its result, as often, and is there."""
    assert not compare_collectives(promised, found, SIZES, widens=False).holds, why


def test_where_nothing_widens_a_wider_collective_is_a_difference() -> None:
    """On TPU: int8 keys that are gathered as bf16, say; as another kind, too, and when regrouped."""
    wanted = promise("AllGather", ("Y",), 64, width=1)
    for found in (
        [ran("AllGather", ("Y",), 64)],
        [ran("AllReduce", ("Y",), 64)],
        [ran("AllGather", ("Y",), 16, runs=4)],
    ):
        assert compare([wanted], found).holds
        assert not compare_collectives([wanted], found, SIZES, widens=False).holds
    same = [promise("AllGather", ("Y",), 64)], [ran("AllGather", ("Y",), 64)]
    assert compare_collectives(*same, SIZES, widens=False).holds


@pytest.mark.parametrize(
    ("kind", "promised", "found"),
    [
        ("extra", [], [ran("AllGather", ("Y",), 64)]),
        ("missing", [promise("AllGather", ("Y",), 64)], []),
        ("changed", [promise("AllGather", ("Y",), 64)], [ran("AllGather", ("Y",), 128)]),
        ("changed", [promise("AllGather", ("Y",), 32)], [ran("AllGather", ("Y",), 64, dtype="f32")]),
        ("extra", [], [ran("AllGather", ("Y",), 64, runs=None)]),
    ],
)
def test_anything_else_is_a_difference(kind: str, promised: list[ExpectedCollective], found: list[Collective]) -> None:
    """With the promised steps and the found operations in it."""
    (difference,) = compare(promised, found).differences
    assert (difference.kind, difference.expected, difference.compiled) == (kind, tuple(promised), tuple(found))


def test_a_run_that_is_missing_is_counted() -> None:
    """79 of 80 layers: one run is missing, and what it would have sent."""
    wanted = promise("AllGather", ("Y",), 64, runs=80)
    (difference,) = compare([wanted], [ran("AllGather", ("Y",), 64, runs=79)]).differences
    assert (difference.kind, difference.expected) == ("missing", (wanted,))
    assert difference.extra_bytes == -96


def test_another_axis_is_one_missing_and_one_extra() -> None:
    """A swapped device order shows as groups that are no axes, or others."""
    foreign = ran("AllGather", ("Y",), 64)
    outcome = compare([promise("AllGather", ("X",), 64)], [foreign])
    assert sorted(d.kind for d in outcome.differences) == ["extra", "missing"]


def test_the_cpus_program_holds_against_the_same_promises() -> None:
    """A golden program: all bf16 widened, two AllReduces merged; nothing missing or extra."""
    wanted = [
        promise("AllGather", ("y",), 16 * 256, 5),
        promise("ReduceScatter", ("x",), 16 * 64, 5),
        promise("AllGather", ("x",), 16 * 64, 5),
        promise("AllReduce", ("x", "y"), 16 * 64, 5),
        promise("AllReduce", ("x", "y"), 64, 5),
        *[promise("AllToAll", ("y",), 16 * 64 * 4, 5)] * 2,
        promise("CollectivePermute", ("y",), 16 * 64, 5),
    ]
    found = collectives((CASES / "cpu_promoted.hlo").read_text("utf-8"))
    outcome = compare_collectives(wanted, found, {"x": 2, "y": 4})
    assert outcome.holds
    assert {r.kind for r in outcome.rewrites} == {"Widened", "Merged"}
    for n in range(len(wanted)):
        assert not compare_collectives(wanted[:n] + wanted[n + 1 :], found, {"x": 2, "y": 4}).holds
