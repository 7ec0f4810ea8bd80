"""What an exported plan asks of a compiler: every type of a constrained tensor, in program order."""

from __future__ import annotations

import pytest
from helpers import drawn

from planner.plan.plan import Plan


def priced(kind: str, phase: str, residual: tuple[str, str], **roles: tuple[str, str, str]) -> Plan:
    """A layout on a mesh X4 Y2: by component its program, and the roles of X and Y."""
    played = {name.replace("_", "-"): (program, axes) for name, (program, *axes) in roles.items()}
    found: Plan = drawn.priced(drawn.MODELS[kind], phase, (4, 2), residual, played)
    return found


def asked(plan: Plan, unit: str) -> dict[str, str]:
    """A component's constraints, as `B_a, D`."""
    return {
        name.removeprefix(f"{unit}/"): ", ".join(
            d + ("_" + "".join(axes) if axes else "") for d, axes in zip(spec.dims, spec.axes, strict=True)
        )
        for name, spec in plan.activation_specs.items()
        if name.startswith(f"{unit}/")
    }


VOCAB = ("unembed", "V", "-")


def test_a_tensor_that_is_moved_has_a_constraint_before_and_after() -> None:
    """Between them is the collective that was priced; partial sums have none."""
    plan = priced(
        "gqa", "decode", ("-", "B"), attention=("attention", "N+K", "D+B"), mlp=("mlp", "F", "D"), vocab=VOCAB
    )
    found = asked(plan, "0/attention")
    assert [found[n] for n in ("n", "n@2", "n@3")] == ["B_b, D", "B, D", "B, D_b"]
    assert found["Q"] == "B_b, N_a, H"
    assert found["Q@2"] == "B_b, K_a, M, H"
    assert found["k"] == found["v"] == "B_b, K_a, H"
    assert [found[n] for n in ("O", "O@2", "O@3")] == ["B_b, K_a, M, H", "B_b, N_a, H", "B, N_a, H"]
    assert found["residual"] == "B_b, D"
    assert [asked(plan, "0/mlp")[n] for n in ("a", "a@2")] == ["B, F_ab", "B, F_a"]
    assert {plan.activation_specs[f"0/attention/{n}"].dtype for n in ("Q", "pos")} == {"f32", "int32"}


def test_a_partial_sum_that_is_gathered_is_asked_for_reduced() -> None:
    """`o[B, D_b] {U_X}` is gathered over Y, then scattered over X: it can be scattered first, but not gathered."""
    plan = priced(
        "gqa", "decode", ("B", "-"), attention=("attention", "N+K", "D+B"), mlp=("mlp", "F", "F"), vocab=VOCAB
    )
    found = asked(plan, "0/attention")
    assert [found[n] for n in ("o", "o@2")] == ["B_a, D_b", "B_a, D"]


@pytest.mark.parametrize(
    ("program", "keys"), [("attention-gathered-kv", "B, S, K_a, H"), ("attention-ring", "B, S, K_a, H")]
)
def test_keys_and_values_of_a_prompt_are_whole_where_they_are_attended(program: str, keys: str) -> None:
    """Gathered, or, since no constraint makes a ring, in its place; positions are whole for all."""
    plan = priced(
        "gqa",
        "prefill",
        ("-", "T"),
        attention=(program, "N+K", "-+T"),
        mlp=("mlp", "F", "-+T"),
        vocab=("unembed", "D", "-+T"),
    )
    found = asked(plan, "0/attention")
    assert found["Kc"] == found["Vc"] == "B, S_b, K_a, H"
    assert found["Kg"] == found["Vg"] == keys
    assert found["pos"] == "B, T"


def test_the_residual_of_a_prompt_is_whole_and_its_last_position_apart() -> None:
    """Key `model/vocab/residual` is what the embedding gives to the first layer."""
    plan = priced(
        "gqa",
        "prefill",
        ("B", "T"),
        attention=("attention-gathered-kv", "-+B", "-+T"),
        mlp=("mlp", "-+B", "-+T"),
        vocab=("unembed", "-+B", "-+T"),
    )
    found = asked(plan, "model/vocab")
    assert (found["tok"], found["residual"], found["last"]) == ("B_a, T_b", "B_a, T_b, D", "B_a, D")


def test_rows_of_the_embedding_are_asked_for_before_they_are_scattered() -> None:
    """Else XLA moves tokens."""
    plan = priced(
        "gqa", "decode", ("B", "-"), attention=("attention", "N+K", "N+K"), mlp=("mlp", "F", "F"), vocab=VOCAB
    )
    assert [asked(plan, "model/vocab")[n] for n in ("x", "x@2")] == ["B, D", "B_a, D"]


def test_a_partial_sum_that_travels_has_its_parts_along_a_dim_of_their_own() -> None:
    """Experts' results go back to their tokens, and a parallel block's terms are added, before they are reduced."""
    moe = priced(
        "moe", "decode", ("B", "-"), attention=("attention", "-+B", "N+K"), moe=("moe", "E+B", "F"), vocab=VOCAB
    )
    found = asked(moe, "0/moe")
    assert [found[n] for n in ("x", "x@2")] == ["E, C_a, D", "E_a, C, D"]
    assert [found[n] for n in ("y", "y@2")] == ["U_b, E_a, C, D", "U_b, E, C_a, D"]
    assert moe.activation_specs["0/moe/y"].shape[0] == 2
    block = priced("parallel", "decode", ("B", "-"), block=("parallel-block", "N+B", "D+B"), vocab=VOCAB)
    found = asked(block, "0/block")
    assert (found["p"], found["m"], found["o"]) == ("U_a, B, D_b", "U_a, B, D_b", "B_a, D_b")
