"""The checker as a type system: what it rejects, with whole messages, and what it accepts."""

import tomllib
from pathlib import Path

import pytest

from strategies.checker import Requirements, check, check_sizes
from strategies.layoutfile import parse_layout, specialise
from strategies.notation import LayoutError
from strategies.primitives import PRIMITIVES
from strategies.rules.common import WholeIfCut

CASES = tomllib.loads((Path(__file__).parents[1] / "cases" / "rejected_layouts.toml").read_text("utf-8"))

HEADS = """program heads
phase: decode
component: attention
roles: Y=K Z=B
weights: WQ WO
cache: Kc Vc
index: pos
input: n[B, D]
output: o[B, D] {U_YZ}
body
q[B, N_YZ, H] = n[B, D] * WQ[D, N_YZ, H]
q[B_Z, N_Y, H] = AllToAll_Z(q[B, N_YZ, H])
q[B_Z, K_Y, M, H] = Split(q[B_Z, N_Y, H])
O[B_Z, K_Y, M, H] = Attend(q[B_Z, K_Y, M, H], Kc[B_Z, S, K_Y, H], Vc[B_Z, S, K_Y, H], pos[B_Z])
BACK
o[B, D] {U_YZ} = O[B, N_YZ, H] * WO[N_YZ, H, D]
"""
CHAPTER = "O[B, K_Y, M_Z, H] = AllToAll_Z(O[B_Z, K_Y, M, H])\nO[B, N_YZ, H] = Merge(O[B, K_Y, M_Z, H])"
MERGED = "O[B_Z, N_Y, H] = Merge(O[B_Z, K_Y, M, H])\nO[B, N_YZ, H] = AllToAll_Z(O[B_Z, N_Y, H])"
SIZES = {"B": 8, "D": 64, "N": 16, "K": 4, "M": 4, "H": 8, "S": 32}


def needs(text: str) -> Requirements:
    """Check a single program."""
    (program,) = parse_layout(text, "case.layout")
    return check(specialise(program, frozenset()))


def body(*lines: str, output: str = "n[B, D_X]") -> str:
    """A program of these lines under the cases' header."""
    header: str = CASES["header"]
    return header.replace("output: n[B, D_X]", f"output: {output}") + "\n".join(lines)


@pytest.mark.parametrize("case", CASES["step"], ids=lambda case: case["breaks"])
def test_a_step_that_breaks_a_rule_is_rejected_with_the_whole_message(case: dict[str, str]) -> None:
    """Every rule that a step breaks is an error that names line, tensor, dim and axis, what was required and got."""
    with pytest.raises(LayoutError) as caught:
        needs(CASES["header"] + case["text"])
    assert str(caught.value) == case["error"]


def test_every_primitive_has_a_case_that_it_rejects() -> None:
    """No rule of a primitive goes untested."""
    everywhere = " ".join(case["error"] for kind in ("step", "file") for case in CASES[kind])
    assert [name for name in PRIMITIVES if f": {name}: " not in everywhere] == []


def test_the_chapter_s_steps_9_and_10_need_k_cut_fully() -> None:
    """AllToAll onto M, then merge: with |Y| < K that would permute the heads, so the sizes are rejected."""
    found = needs(HEADS.replace("BACK", CHAPTER))
    assert found.whole == (WholeIfCut("K", ("Y",), ("Z",), "M"),)
    with pytest.raises(LayoutError) as caught:
        check_sizes(found, SIZES, {"Y": 2, "Z": 2}, "attention: ")
    assert str(caught.value) == (
        "attention: M may be cut (by Z, 2 ways) only where K is cut fully: K_Y is cut 2 ways, K = 4; "
        "merge the heads first, then move Z"
    )


def test_the_chapter_s_steps_9_and_10_are_right_where_k_is_cut_fully() -> None:
    """With |Y| = K, or with Z empty, the same program passes."""
    found = needs(HEADS.replace("BACK", CHAPTER))
    check_sizes(found, SIZES, {"Y": 4, "Z": 2})
    check_sizes(found, SIZES, {"Y": 2, "Z": 1})


def test_merging_the_heads_first_is_right_for_any_cut() -> None:
    """Merge, then AllToAll: nothing is asked of |Y|."""
    found = needs(HEADS.replace("BACK", MERGED))
    assert found.whole == ()
    check_sizes(found, SIZES, {"Y": 2, "Z": 2})


def test_merging_onto_a_cut_m_permutes_the_heads_where_k_is_not_cut_fully() -> None:
    """The rule by brute force: head n lives on shard (y, z) of N_YZ, but on another after the chapter's steps."""
    for K, M, Y, Z, same in ((4, 4, 2, 2, False), (4, 4, 4, 2, True), (4, 4, 2, 1, True)):
        merged = {n: n // (K * M // (Y * Z)) for n in range(K * M)}
        chapter = {k * M + m: (k // (K // Y)) * Z + m // (M // Z) for k in range(K) for m in range(M)}
        assert (merged == chapter) is same


def test_a_dim_that_does_not_divide_names_what_would() -> None:
    """Heads over an axis that does not divide them: the numbers, and the divisors."""
    with pytest.raises(LayoutError) as caught:
        check_sizes(needs(HEADS.replace("BACK", MERGED)), SIZES, {"Y": 3, "Z": 1})
    assert str(caught.value) == "N = 16 cannot be cut 3 ways by YZ; 1, 2, 4, 8, 16 would work"


def test_many_divisors_are_cut_short() -> None:
    """A message stays one line however many sizes would work."""
    with pytest.raises(LayoutError, match=r"16, 18, \.\.\. would work$"):
        check_sizes(Requirements((("F", ("Y",)),), ()), {"F": 28672 * 9}, {"Y": 5})


ACCEPTED = {
    "a gather of two dims at once": ("g[D, F] = AllGather_XY(Wi[D_X, F_Y])",),
    "a gather of a partial sum": (
        "h[B, F_Y] {U_X} = n[B, D_X] * W1[D_X, F_Y]",
        "h[B, F] {U_X} = AllGather_Y(h[B, F_Y] {U_X})",
    ),
    "an AllReduce of a part of {U}": (
        "s[B, D_XY] = Slice_Y(n[B, D_X])",
        "h[B, F] {U_XY} = s[B, D_XY] * W1[D_XY, F]",
        "h[B, F] {U_X} = AllReduce_Y(h[B, F] {U_XY})",
    ),
    "an AllToAll of a partial sum": (
        "q[B, N_YZ, H] {U_X} = n[B, D_X] * WQ[D_X, N_YZ, H]",
        "q[B_Z, N_Y, H] {U_X} = AllToAll_Z(q[B, N_YZ, H] {U_X})",
    ),
    "a Split of a partial sum": (
        "q[B, N_Y, H] {U_X} = n[B, D_X] * WQ[D_X, N_Y, H]",
        "q[B, K_Y, M, H] {U_X} = Split(q[B, N_Y, H] {U_X})",
    ),
    "an Add of like partial sums": (
        "h[B, F] {U_X} = n[B, D_X] * W1[D_X, F]",
        "h[B, F] {U_X} = Add(h[B, F] {U_X}, h[B, F] {U_X})",
    ),
    "a partial sum that meets a whole operand": (
        "h[B, F] {U_X} = n[B, D_X] * W1[D_X, F]",
        "o[B, V_Y] {U_X} = h[B, F] {U_X} * W2[F, V_Y]",
    ),
    "a ReduceScatter that appends": (
        "h[B, F_Y] {U_X} = n[B, D_X] * W1[D_X, F_Y]",
        "h[B, F_YX] = ReduceScatter_X(h[B, F_Y] {U_X})",
    ),
    "two tensors in one collective, scattered to different dims": (
        "h[B, F] {U_X} = n[B, D_X] * W1[D_X, F]",
        "u[B, V] {U_X} = n[B, D_X] * W2[D_X, V]",
        "h[B_X, F], u[B, V_X] = ReduceScatter_X(h[B, F] {U_X}, u[B, V] {U_X})",
    ),
    "a Merge of a softmax triple, then its scatter": (
        "q[B, N_Y, H] {U_X} = n[B, D_X] * WQ[D_X, N_Y, H]",
        "q[B, N_Y, H] = AllReduce_X(q[B, N_Y, H] {U_X})",
        "q[B, K_Y, M, H] = Split(q[B, N_Y, H])",
        "O[B, K_Y, M, H] {A_W} = Attend(q[B, K_Y, M, H], Kc[B, S_W, K_Y, H], Vc[B, S_W, K_Y, H], pos[B])",
        "O[B, N_Y, H] {A_W} = Merge(O[B, K_Y, M, H] {A_W})",
        "O[B, N_YW, H] = AttendScatter_W(O[B, N_Y, H] {A_W})",
    ),
    "a Combine of a partial sum over a cut E": (
        "m[B, D] = AllGather_X(n[B, D_X])",
        "x[E_Z, C, D] = Dispatch(m[B, D], i[B, k])",
        "h[E_Z, C, F_Y] = x[E_Z, C, D] * W1[E_Z, D, F_Y]",
        "y[E_Z, C, D] {U_Y} = h[E_Z, C, F_Y] * W2[E_Z, F_Y, D]",
        "o[B, D] {U_YZ} = Combine(y[E_Z, C, D] {U_Y}, w[B, k], i[B, k])",
    ),
}


@pytest.mark.parametrize("lines", ACCEPTED.values(), ids=ACCEPTED)
def test_what_is_linear_passes_partial_sums(lines: tuple[str, ...]) -> None:
    """What the trial's first draft wrongly rejected is accepted."""
    needs(body(*lines))


def test_requirements_list_every_cut_once() -> None:
    """Each (dim, axes) that a program uses is one need."""
    found = needs(body("h[B, F_Y] {U_X} = n[B, D_X] * W1[D_X, F_Y]", "a[B, D] = AllGather_X(n[B, D_X])"))
    assert found.divides == (("D", ("X",)), ("F", ("Y",)))
