"""The notation's parser and printer."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strategies.notation import Dim, LayoutError, Role, Step, Tensor, parse_step, parse_tensor

NAMES = st.from_regex(r"[A-Za-z][A-Za-z0-9]{0,2}", fullmatch=True)
AXES = st.lists(st.sampled_from("XYZWabc123"), unique=True, max_size=3).map(tuple)
DIMS = st.builds(Dim, st.sampled_from("BTSDFNKMHEC"), AXES)
TENSORS = st.builds(Tensor, NAMES, st.lists(DIMS, max_size=4).map(tuple), AXES, AXES)
SOME = st.lists(TENSORS, min_size=1, max_size=3).map(tuple)
WORDS = st.from_regex(r"[a-z]{1,6}", fullmatch=True)
OPTIONS = st.lists(st.tuples(WORDS.filter(lambda word: word != "when"), WORDS), max_size=2).map(tuple)
CALLS = st.builds(Step, st.from_regex(r"[A-Z][A-Za-z0-9]{0,5}", fullmatch=True), AXES, SOME, SOME, OPTIONS)
PRODUCTS = st.builds(Step, st.just("Einsum"), st.just(()), st.tuples(TENSORS, TENSORS), SOME)


@given(TENSORS)
def test_a_printed_tensor_parses_to_itself(tensor: Tensor) -> None:
    """Name, dims, cuts and both marks survive printing and parsing."""
    assert parse_tensor(str(tensor)) == tensor


@given(st.one_of(CALLS.filter(lambda step: step.op != "Einsum"), PRODUCTS))
def test_a_printed_step_parses_to_itself(step: Step) -> None:
    """Operation, axes, tensors and options survive printing and parsing."""
    assert parse_step(str(step)) == step


def test_spaces_do_not_matter() -> None:
    """Spaces around names, dims and marks are free."""
    assert parse_tensor("  Q [ B_Z,N_Y , H ]{U_X}  {A_W} ") == Tensor(
        "Q", (Dim("B", ("Z",)), Dim("N", ("Y",)), Dim("H")), ("X",), ("W",)
    )


def test_a_scalar_has_no_dims() -> None:
    """Empty brackets are a tensor without dims."""
    assert parse_tensor("s[]") == Tensor("s", ())


def test_a_step_may_take_and_give_several_tensors() -> None:
    """A comma between tensors is no comma between dims."""
    step = parse_step("h[B, F_YX], u[B, F_YX] = ReduceScatter_X(h[B, F_Y] {U_X}, u[B, F_Y] {U_X})", 7)
    assert [t.name for t in step.outputs] == ["h", "u"]
    assert [t.partial for t in step.inputs] == [("X",), ("X",)]
    assert (step.op, step.axes, step.line) == ("ReduceScatter", ("X",), 7)


def test_a_product_is_an_einsum() -> None:
    """`A * B` has the op Einsum and no axes."""
    step = parse_step("h[B, F] = n[B, D] * Wi[D, F]")
    assert (step.op, step.axes, step.right) == ("Einsum", (), "n[B, D] * Wi[D, F]")


def test_an_option_is_found_by_its_key() -> None:
    """`order=zigzag` is read by key; another key has no value."""
    step = parse_step("O[B] = Attend(q[B], k[B]; order=zigzag)")
    assert (step.option("order"), step.option("when")) == ("zigzag", None)


def test_an_error_says_where() -> None:
    """The caller's place comes first in the message."""
    with pytest.raises(LayoutError) as caught:
        parse_tensor("Q{B}", "my.layout, line 3: ")
    assert str(caught.value) == ("my.layout, line 3: 'Q{B}' is not a tensor; expected a form like Q[B_Z, N_Y, H] {U_X}")


@pytest.mark.parametrize(
    ("name", "weights", "cache"),
    [("D", "D", ""), ("N+B", "N", "B"), ("ND+S", "ND", "S"), ("D*+T", "D*", "T"), ("-+B", "-", "B"), ("D+-", "D", "-")],
)
def test_a_role_has_a_part_for_the_weights_and_one_for_the_cache(name: str, weights: str, cache: str) -> None:
    """`N+B`: the mesh axis cuts weights by N and the cache by B."""
    role = Role("Z", name)
    assert (role.weights, role.cache) == (weights, cache)


def test_types_compare_cuts_in_order_and_marks_as_sets() -> None:
    """`D_XY` is not `D_YX`, but `{U_XY}` is `{U_YX}`."""
    assert not parse_tensor("n[D_XY]").same_type(parse_tensor("n[D_YX]"))
    assert parse_tensor("n[D] {U_XY} {A_ZW}").same_type(parse_tensor("n[D] {U_YX} {A_WZ}"))
    assert not parse_tensor("n[D] {U_X}").same_type(parse_tensor("n[D]"))
