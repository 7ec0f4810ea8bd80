"""Roles in words say the roles, and the words parse back to them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strategies.layoutfile import builtin_programs
from strategies.role_words import in_words, legend, letters_in_words, out_of_words

ROLES = sorted({(p.component in ("attention", "block"), role.name) for p in builtin_programs() for role in p.roles})
OWN = st.sampled_from(["Q+K", "NF+B", "X*", "-+KB", "Q*+-"])


def cuts(cached: bool) -> st.SearchStrategy[list[tuple[str, int]]]:
    """Roles of a component over devices: those of built-in programs, and of a user's own."""
    built_in = st.sampled_from([role for kind, role in ROLES if kind == cached])
    return st.lists(st.tuples(built_in | OWN | st.just("-"), st.integers(2, 4096)), max_size=6)


@given(cuts(True))
def test_attention_in_words_is_read_back(roles: list[tuple[str, int]]) -> None:
    """Weights and cache, paired by their order."""
    assert out_of_words(in_words(roles, cached=True)) == roles


@given(cuts(False))
def test_other_components_in_words_are_read_back(roles: list[tuple[str, int]]) -> None:
    """Weights and tokens."""
    assert out_of_words(in_words(roles, cached=False)) == roles


@pytest.mark.parametrize(("cached", "role"), ROLES)
def test_no_role_of_ours_is_said_in_letters(cached: bool, role: str) -> None:
    """Every role of a built-in program has words, and the legend says what they mean."""
    words = in_words([(role, 2)], cached)
    assert not any(letter in words.replace("KV", "").replace("2D", "").replace("1D", "") for letter in "NDFBSTM")
    assert legend([words])


def test_words_of_the_docs() -> None:
    """The words that a table shows for the layouts of the README."""
    assert in_words([("N+K", 4), ("-+B", 4)], True) == "heads 4 x batch 4 · KV: KV heads 4, batch 4"
    assert in_words([("F", 8), ("D", 2)], False) == "2D weight-stationary: d_ff 8 x d_model 2"
    assert in_words([("E", 8)], False) == "experts 8"
    assert in_words([("-+B", 4)], False) == "data parallel 4"
    assert (
        letters_in_words("attention", "attention-ring N+K 4, idle 2")
        == "attention-ring: heads 4 x idle 2 · KV: KV heads 4"
    )
    assert letters_in_words("mlp", "whole") == "whole on every device"
