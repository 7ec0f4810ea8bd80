"""The reshard between components and the residual stream."""

from collections.abc import Callable
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strategies import residual_program
from strategies.bind import bind
from strategies.checker import check
from strategies.notation import Axes, Program

PROGRAMS = {
    "entry decode": residual_program.entry("decode"),
    "entry prefill": residual_program.entry("prefill"),
    "entry of the last position": residual_program.entry("prefill", True),
    "exit decode": residual_program.leave("decode"),
    "exit prefill": residual_program.leave("prefill"),
    "exit of an embedding, decode": residual_program.leave("decode", False),
    "exit of an embedding, prefill": residual_program.leave("prefill", False),
    "last position": residual_program.last_position(),
}


def played(program: Program, pairs: tuple[str, ...]) -> dict[str, Axes]:
    """Which mesh axes play each pair: the first pair is axis 1's, and so on."""
    letters = {role.name: role.axis for role in program.roles}
    playing: dict[str, Axes] = {}
    for number, pair in enumerate(pairs, 1):
        playing[letters[pair]] = (*playing.get(letters[pair], ()), str(number))
    return playing


@pytest.mark.parametrize("program", PROGRAMS.values(), ids=PROGRAMS)
def test_every_pair_of_one_and_two_mesh_axes_checks(program: Program) -> None:
    """Whatever two mesh axes do to the residual and to a body, the derived collectives follow every rule."""
    check(program)
    names = [role.name for role in program.roles]
    for count in (1, 2):
        for pairs in product(names, repeat=count):
            check(bind(program, played(program, pairs)))


@given(st.sampled_from(list(PROGRAMS.values())), st.lists(st.integers(0, 99), min_size=3, max_size=3))
def test_three_mesh_axes_check(program: Program, picks: list[int]) -> None:
    """Three mesh axes, alike or not, give programs that follow every rule."""
    names = [role.name for role in program.roles]
    check(bind(program, played(program, tuple(names[pick % len(names)] for pick in picks))))


def test_there_is_a_pair_for_everything_that_an_axis_can_do() -> None:
    """From and to D, B, T or nothing; only a body's output can be a partial sum."""
    names = {name: {role.name for role in program.roles} for name, program in PROGRAMS.items()}
    assert names["entry decode"] == names["entry prefill"] == {a + b for a in "DBT-" for b in "DBT-"}
    assert names["exit prefill"] == {a + b for a in "DBTU-" for b in "DBT-"}
    assert names["last position"] == {"D-", "B-", "T-", "--"}


def lines(program: Program, *pairs: str) -> list[str]:
    """The bound reshard's text."""
    return str(bind(program, played(program, pairs))).splitlines()


ENTRIES: dict[tuple[str, ...], list[str]] = {
    ("--",): ["q[B] = SumSq(R[B, D])", "n[B, D] = Norm(R[B, D], q[B], g[D])"],
    ("D-", "DD"): [
        "q[B] {U_21} = SumSq(R[B, D_21])",
        "q[B] = AllReduce_21(q[B] {U_21})",
        "n[B, D_21] = Norm(R[B, D_21], q[B], g[D_21])",
        "n[B, D_2] = AllGather_1(n[B, D_21])",
    ],
    ("BD",): [
        "q[B_1] = SumSq(R[B_1, D])",
        "n[B_1, D] = Norm(R[B_1, D], q[B_1], g[D])",
        "n[B, D] = AllGather_1(n[B_1, D])",
        "n[B, D_1] = Slice_1(n[B, D])",
    ],
}
EXITS: dict[tuple[str, ...], list[str]] = {
    ("--",): ["R[B, D] = Add(R[B, D], o[B, D])"],
    ("U-",): ["o[B, D] = AllReduce_1(o[B, D] {U_1})", "R[B, D] = Add(R[B, D], o[B, D])"],
    ("UD", "DD"): [
        "o[B, D_21] = ReduceScatter_1(o[B, D_2] {U_1})",
        "R[B, D_21] = Add(R[B, D_21], o[B, D_21])",
    ],
    ("UD", "UB"): [
        "o[B_2, D] {U_1} = ReduceScatter_2(o[B, D] {U_12})",
        "o[B_2, D_1] = ReduceScatter_1(o[B_2, D] {U_1})",
        "R[B_2, D_1] = Add(R[B_2, D_1], o[B_2, D_1])",
    ],
}


@pytest.mark.parametrize(
    ("make", "cases"),
    [(lambda: residual_program.entry("decode"), ENTRIES), (lambda: residual_program.leave("decode"), EXITS)],
)
def test_the_derived_collectives_are_those_of_the_book(
    make: Callable[[], Program], cases: dict[tuple[str, ...], list[str]]
) -> None:
    """A cut D is normalised with a small AllReduce and gathered; a partial sum is reduced or scattered."""
    for pairs, expected in cases.items():
        found = lines(make(), *pairs)
        assert [sorted_marks(line) for line in found] == [sorted_marks(line) for line in expected], pairs


def sorted_marks(line: str) -> str:
    """The line with the axes of marks and operations in order: `{U_21}` is `{U_12}`."""
    return line.replace("{U_21}", "{U_12}").replace("AllReduce_21", "AllReduce_12")


def test_an_embedding_becomes_the_residual_and_is_not_added_to_it() -> None:
    """The first value of the residual is the embedding's output."""
    assert lines(residual_program.leave("decode", False), "UD") == [
        "o[B, D_1] = ReduceScatter_1(o[B, D] {U_1})",
        "R[B, D_1] = Rename(o[B, D_1])",
    ]


def test_the_last_position_is_sent_by_the_shard_that_owns_it() -> None:
    """A cut T leaves a partial sum, of zeros but for the owner's rows."""
    assert lines(residual_program.last_position(), "T-", "D-") == [
        "R[B, D_2] {U_1} = Last(R[B, T_1, D_2])",
        "R[B, D_2] = AllReduce_1(R[B, D_2] {U_1})",
    ]
