"""Binding programs to meshes: roles vanish, orders agree, names stay right."""

from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strategies.bind import bind
from strategies.checker import check
from strategies.layoutfile import builtin_programs, parse_layout, specialise
from strategies.notation import Axes, Program, parse_tensor

ALL = frozenset({"gated", "qk_norm", "qkv_bias", "o_bias"})
PROGRAMS = [specialise(p, ALL) for p in builtin_programs()]


def builtin(phase: str, name: str) -> Program:
    """A gated built-in program."""
    return next(p for p in PROGRAMS if (p.phase, p.name) == (phase, name))


def ids(program: Program) -> str:
    """Name of a program in test output."""
    return f"{program.phase}-{program.name}"


@pytest.mark.parametrize("program", PROGRAMS, ids=ids)
def test_every_role_alone_and_every_pair_binds_to_a_program_that_checks(program: Program) -> None:
    """Whichever one or two roles the mesh axes play, in either order, the bound text follows every rule."""
    axes = [role.axis for role in program.roles]
    check(bind(program, {}))
    for axis in axes:
        check(bind(program, {axis: ("1",)}))
        check(bind(program, {axis: ("1", "2")}))
    for a, b in combinations(axes, 2):
        check(bind(program, {a: ("1",), b: ("2",)}))
        check(bind(program, {a: ("2",), b: ("1",)}))


@given(st.sampled_from(PROGRAMS), st.lists(st.integers(0, 99), min_size=4, max_size=4), st.permutations("1234"))
def test_four_mesh_axes_in_any_order_bind_to_a_program_that_checks(
    program: Program, picks: list[int], order: list[str]
) -> None:
    """Several axes per role, sorted by any order of the residual stream: T and S, B and N still agree."""
    playing: dict[str, Axes] = {}
    for mesh_axis, pick in zip("1234", picks, strict=True):
        letter = program.roles[pick % len(program.roles)].axis
        playing[letter] = (*playing.get(letter, ()), mesh_axis)
    check(bind(program, playing, lambda dim, axis: (order.index(axis) if dim == "D" else -order.index(axis),)))


def test_a_program_with_no_roles_played_has_no_collectives() -> None:
    """On one device only local work is left, in the same order."""
    bound = bind(builtin("decode", "mlp"), {})
    assert [step.op for step in bound.steps] == ["Einsum", "Einsum", "SwiGLU", "Einsum"]
    assert str(bound.steps[-1]) == "o[B, D] = a[B, F] * Wo[F, D]"
    assert bound.roles == ()


def test_1d_is_2d_with_x_empty() -> None:
    """Dropping X from the 2D MLP gives the 1D MLP."""
    assert str(bind(builtin("decode", "mlp"), {"Y": ("Y",)})) == (
        "h[B, F_Y] = n[B, D] * Wi[D, F_Y]\n"
        "u[B, F_Y] = n[B, D] * Wg[D, F_Y]\n"
        "a[B, F_Y] = SwiGLU(u[B, F_Y], h[B, F_Y])\n"
        "o[B, D] {U_Y} = a[B, F_Y] * Wo[F_Y, D]"
    )


def test_a_role_played_by_two_axes_is_cut_by_both() -> None:
    """`F_Y` with Y played by mesh axes P and Q reads `F_PQ`."""
    bound = bind(builtin("decode", "mlp"), {"X": ("X",), "Y": ("P", "Q")})
    assert str(bound.steps[2]) == ("h[B, F_PQX], u[B, F_PQX] = ReduceScatter_X(h[B, F_PQ] {U_X}, u[B, F_PQ] {U_X})")


def test_a_vanished_gather_leaves_its_operand_s_name() -> None:
    """A weight that is not gathered is read under its own name."""
    bound = bind(builtin("prefill", "mlp"), {"Y": ("Y",)})
    assert str(bound.steps[0]) == "h[B, T, F_Y] = n[B, T, D] * Wi[D, F_Y]"
    assert not any(t.name == "GI" for step in bound.steps for t in step.inputs)


def test_axes_that_are_never_separated_follow_the_residual_s_order() -> None:
    """The residual's order of D decides the order of X and P in every D; the heads keep their own."""
    bound = bind(builtin("decode", "attention"), {"X": ("1",), "P": ("2",)}, lambda dim, axis: (-int(axis),))
    assert str(bound.input) == "n[B, D_21]"
    assert str(bound.steps[0]).endswith("* WQ[D_21, N, H]")


def test_the_sequence_of_the_cache_follows_the_tokens() -> None:
    """Where the residual's order swaps two axes of T, the cache's S swaps them too."""
    bound = bind(builtin("prefill", "attention-ring"), {"W": ("1",), "t": ("2",)}, lambda dim, axis: (-int(axis),))
    check(bound)
    caches = {str(t) for s in bound.steps for t in s.outputs if t.name == "Kc"}
    assert caches == {"Kc[B, S_21, K, H]"}


def test_an_axis_that_moves_between_dims_keeps_its_order() -> None:
    """Two mesh axes that play one role move from heads to batch in one order, whatever the residual's order of B."""
    bound = bind(
        builtin("decode", "attention"), {"Z": ("1", "2")}, lambda dim, axis: (-int(axis) if dim == "B" else int(axis),)
    )
    check(bound)
    assert str(next(s for s in bound.steps if s.op == "AllToAll")) == "Q[B_12, N, H] = AllToAll_12(Q[B, N_12, H])"


def test_a_vanished_copy_survives_a_new_value_of_its_operand() -> None:
    """Where a name is written anew, the copy made before keeps the old value: it becomes a Rename, not an alias."""
    (program,) = parse_layout(
        "program copy\nphase: decode\ncomponent: mlp\nroles: X=D\ninput: n[B, D_X]\noutput: o[B, D_X]\nbody\n"
        "m[B, D] = AllGather_X(n[B, D_X])\n"
        "m[B, D_X] = Slice_X(m[B, D])\n"
        "n[B, D_X] = Gelu(n[B, D_X])\n"
        "o[B, D_X] = Add(n[B, D_X], m[B, D_X])\n"
    )
    check(program)
    bound = bind(program, {})
    check(bound)
    assert str(bound) == "m[B, D] = Rename(n[B, D])\nn[B, D] = Gelu(n[B, D])\no[B, D] = Add(n[B, D], m[B, D])"


def test_the_output_is_known_by_the_name_it_ends_with() -> None:
    """A program that ends in a collective over nothing gives the collective's operand."""
    (program,) = parse_layout(
        "program last\nphase: decode\ncomponent: mlp\nroles: X=D\ninput: n[B, D_X]\noutput: o[B, D]\nbody\n"
        "a[B, D_X] = Gelu(n[B, D_X])\no[B, D] = AllGather_X(a[B, D_X])\n"
    )
    bound = bind(program, {})
    check(bound)
    assert bound.output == parse_tensor("a[B, D]")
