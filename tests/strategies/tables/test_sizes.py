"""Which sizes divide: the search's arrays against the checker's numbers."""

from math import prod

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from strategies.bind import bind
from strategies.checker import check, check_sizes
from strategies.layoutfile import builtin_programs, parse_layout, specialise
from strategies.notation import Axes, LayoutError, Program
from strategies.readers.rates import Ints
from strategies.readers.sizes import PaddedSizes, fit

PROGRAMS = [specialise(p, frozenset({"gated"})) for p in builtin_programs()]
DIMS = st.fixed_dictionaries(
    {
        "D": st.sampled_from([8, 12, 30, 64]),
        "K": st.sampled_from([1, 2, 3, 4, 8]),
        "M": st.sampled_from([1, 2, 3, 6, 8]),
        "H": st.just(16),
        "F": st.sampled_from([8, 11, 24, 30, 64]),
        "V": st.sampled_from([15, 100, 128]),
        "E": st.sampled_from([4, 6, 7, 16]),
        "S": st.sampled_from([10, 15, 64]),
        "T": st.sampled_from([10, 12, 64]),
    }
)


def fitted(program: Program, dims: dict[str, int], batch: int, ways: dict[str, int]) -> PaddedSizes:
    """Fit one assignment, given as ways per program axis."""

    def column(axes: Axes) -> Ints:
        return np.array([[prod(ways.get(axis, 1) for axis in axes)]])

    return fit(check(program), dims, program.pad, np.array([[batch]]), column, 1)


def padded(program: Program, dims: dict[str, int], batch: int, ways: dict[str, int]) -> dict[str, int]:
    """The least sizes, padding only what may be padded, that every cut of the dim divides: by trying them in turn."""
    cuts: dict[str, list[int]] = {}
    for dim, axes in check(program).divides:
        cuts.setdefault(dim, []).append(prod(ways.get(axis, 1) for axis in axes))
    sizes = {**dims, "B": batch}
    for dim in set(program.pad) & set(dims) - {"M"}:
        sizes[dim] = next(n for n in range(dims[dim], 10**6) if not any(n % cut for cut in cuts.get(dim, [])))
    if "M" in program.pad and dims["K"] % max(cuts["K"]) == 0:
        fits = (
            m
            for m in range(dims["M"], 10**6)
            if not any(m % cut for cut in cuts["M"]) and not any(m * dims["K"] % cut for cut in cuts["N"])
        )
        sizes["M"] = next(fits)
    return sizes | {"N": sizes["K"] * sizes["M"]}


@given(
    st.sampled_from(PROGRAMS),
    DIMS,
    st.sampled_from([1, 8, 12]),
    st.lists(st.tuples(st.integers(0, 99), st.sampled_from([2, 3, 4, 5, 8])), max_size=3),
)
def test_arrays_and_numbers_agree(
    program: Program, sizes: dict[str, int], batch: int, plays: list[tuple[int, int]]
) -> None:
    """An assignment fits exactly where the checker accepts the padded sizes and nothing grows by more than 25%."""
    dims = {**sizes, "N": sizes["K"] * sizes["M"]}
    ways: dict[str, int] = {}
    for pick, size in plays:
        letter = program.roles[pick % len(program.roles)].axis
        ways[letter] = ways.get(letter, 1) * size
    expected = padded(program, dims, batch, ways)
    small = all(expected[d] <= 1.25 * dims[d] for d in dims)
    try:
        check_sizes(check(program), expected, {role.axis: ways.get(role.axis, 1) for role in program.roles})
        checks = True
    except LayoutError:
        checks = False
    found = fitted(program, dims, batch, ways)
    assert found.ok.item() == (checks and small)
    if found.ok.item():
        assert {d: int(np.max(found.sizes[d])) for d in expected} == expected


def builtin(phase: str, name: str) -> Program:
    """A gated built-in program."""
    return next(p for p in PROGRAMS if (p.phase, p.name) == (phase, name))


HEADS = {"D": 64, "N": 48, "K": 1, "M": 48, "H": 16, "S": 64}


def test_palm_pads_its_heads_from_48_to_64_only_where_25_percent_allow() -> None:
    """48 heads over 32 ways need 64, a third more; over 20 ways they need 60, a quarter more."""
    program = builtin("decode", "attention")
    assert not fitted(program, HEADS, 1, {"V": 32}).ok.item()
    found = fitted(program, HEADS, 1, {"V": 20})
    assert found.ok.item()
    assert (found.sizes["M"].item(), found.sizes["N"].item()) == (60, 60)


def test_every_kv_head_keeps_as_many_query_heads() -> None:
    """N is padded through M: 8 KV heads of 5 query heads over 16 ways become 8 of 6."""
    found = fitted(builtin("decode", "attention"), {**HEADS, "N": 40, "K": 8, "M": 5}, 2, {"Y": 8, "Z": 2})
    assert found.ok.item()
    assert (found.sizes["M"].item(), found.sizes["N"].item()) == (6, 48)


@pytest.mark.parametrize(
    ("name", "dims", "batch", "ways", "failure"),
    [
        ("mlp", {"D": 30, "F": 64}, 8, {"X": 4}, ("D", "D does not divide")),
        ("mlp", {"D": 32, "F": 64}, 6, {"G": 4}, ("B", "B does not divide")),
        ("mlp", {"D": 32, "F": 9}, 8, {"Y": 8}, ("F", "F does not divide, and padding it would add more than 25%")),
        ("attention", HEADS, 1, {"Y": 2}, ("K", "KV heads do not divide")),
        (
            "attention",
            {**HEADS, "K": 4, "M": 12},
            1,
            {"Y": 2, "V": 2},
            ("M", "query heads of a group may be cut only where the KV heads are cut fully"),
        ),
        (
            "attention",
            HEADS,
            1,
            {"V": 32},
            ("N", "query heads do not divide, and padding them would add more than 25%"),
        ),
    ],
)
def test_a_failure_names_the_dim_the_reason_and_the_ways(
    name: str, dims: dict[str, int], batch: int, ways: dict[str, int], failure: tuple[str, str]
) -> None:
    """What cannot be assigned says why; D, B and KV heads are never padded."""
    found = fitted(builtin("decode", name), dims, batch, ways)
    assert not found.ok.item()
    assert [(dim, reason) for dim, reason, _, _ in found.failures] == [failure]


def test_a_prompt_is_never_padded() -> None:
    """T over an axis that does not divide it is no layout."""
    found = fitted(builtin("prefill", "mlp"), {"D": 32, "F": 64, "T": 10}, 1, {"W": 4})
    assert [(dim, reason) for dim, reason, _, _ in found.failures] == [("T", "T does not divide")]


MQA = """program mqa
phase: decode
component: attention
roles: V=N
weights: WQ WO
input: n[B, D]
output: o[B, D] {U_V}
body
q[B, N_V, H] = n[B, D] * WQ[D, N_V, H]
o[B, D] {U_V} = q[B, N_V, H] * WO[N_V, H, D]
"""


def test_heads_are_held_against_their_cuts_in_a_program_without_kv_heads() -> None:
    """A user's program that never cuts K (nor names it) still needs N to divide."""
    (program,) = parse_layout(MQA)
    assert fitted(program, HEADS, 1, {"V": 16}).ok.item()
    found = fitted(program, HEADS, 1, {"V": 5})
    assert [(dim, reason) for dim, reason, _, _ in found.failures] == [("N", "query heads do not divide")]


def test_a_cut_head_dim_must_divide() -> None:
    """H is no exception where a user's program cuts it."""
    (program,) = parse_layout(MQA.replace("N_V, H", "N, H_V"))
    assert not fitted(program, HEADS, 1, {"V": 3}).ok.item()


def test_rows_and_columns_are_independent() -> None:
    """Two assignments times three batches: each cell is judged on its own."""
    program = builtin("decode", "mlp")

    def ways(axes: Axes) -> Ints:
        return np.array([[8 if "G" in axes else 1], [5 if "X" in axes else 1]])

    found = fit(check(program), {"D": 64, "F": 64}, program.pad, np.array([[4, 8, 16]]), ways, 2)
    assert found.ok.tolist() == [[False, True, True], [False, False, False]]
    assert bind(program, {}).pad == ("F",)
