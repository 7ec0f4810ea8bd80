"""The closed forms beyond the book's worked numbers: relations, real slices, bad input, and the table."""

import math

import pytest
from oracles.torus import legal_slices

from mesh.collectives import all_gather, all_reduce, group, reduce_scatter
from mesh.errors import InputError
from mesh.pieces import Piece
from mesh.slices import parse_slice
from strategies.book.crossover import (
    Grid,
    best_x_ways,
    crossover_chips,
    latency_bound_bytes,
    latency_bound_ways,
    ws1d_comms_s,
    ws2d_comms_s,
)
from strategies.book.intensity import (
    attention_intensity_flops_per_byte,
    critical_batch_tokens,
    exact_critical_batch_tokens,
    expected_distinct_experts,
    matmul_s,
)
from strategies.book.roofline import (
    Transformer,
    general_step_s,
    largest_batch,
    min_step_s,
    replicas,
    transformer_params,
)
from strategies.book.rooftable import params_read, roofline_table
from strategies.models.configs import builtin_names, load_model
from strategies.models.workload import DTYPE_BYTES, dtype_bytes

V5E = {"flops_per_s": 1.97e14, "hbm_bytes_per_s": 8.2e11}
V5P_AXIS = 1.8e11  # bytes/s of one ring, both directions


def table(model="llama-2-13b", slice_name="v5e:2x4", context=8192, batches=(1, 240), **options):
    """A roofline table, by default the chapter's."""
    return roofline_table(load_model(model), parse_slice(slice_name), context=context, batches=batches, **options)


# Intensity


def test_critical_batch_is_beta_alpha():
    """beta = param bits / activation bits, alpha at bf16: int8 weights halve it, int8 FLOP/s double it."""
    alpha = 1.97e14 / 8.2e11
    assert critical_batch_tokens(**V5E) == pytest.approx(16 / 16 * alpha)
    assert critical_batch_tokens(**V5E, weight_bytes=1) == pytest.approx(8 / 16 * alpha)
    int8 = critical_batch_tokens(flops_per_s=3.94e14, hbm_bytes_per_s=8.2e11, weight_bytes=1)
    assert int8 == pytest.approx(8 / 8 * alpha)


def test_exact_critical_batch_is_where_both_times_meet_and_tends_to_the_simple_one():
    """There FLOPs take as long as all bytes; with large D and F the activations do not matter."""
    shape = {"d": 4096, "f": 16384, "weight_bytes": 1}
    batch = exact_critical_batch_tokens(**shape, **V5E)
    flops_s = 2 * batch * 4096 * 16384 / 1.97e14
    assert matmul_s(batch=batch, **shape, **V5E) == pytest.approx(flops_s)
    assert matmul_s(batch=0.9 * batch, **shape, **V5E) > 0.9 * flops_s
    large = exact_critical_batch_tokens(d=1e8, f=1e8, weight_bytes=1, **V5E)
    assert large == pytest.approx(critical_batch_tokens(**V5E, weight_bytes=1), rel=1e-4)


def test_prefill_attention_is_compute_bound_above_480_tokens():
    """The chapter's T/2 for MHA meets v5e's 240 at 480 tokens; decode stays at 1."""
    assert attention_intensity_flops_per_byte(tokens=480, context=480) == pytest.approx(240)
    assert attention_intensity_flops_per_byte(tokens=1, context=8192) == pytest.approx(1, rel=2e-4)


def test_expected_experts_against_counting():
    """2 tokens that each pick 2 of 4 experts: all 36 pairs of picks, counted."""
    picks = [{a, b} for a in range(4) for b in range(a)]
    mean = sum(len(first | second) for first in picks for second in picks) / len(picks) ** 2
    assert expected_distinct_experts(experts=4, experts_per_token=2, tokens=2) == pytest.approx(mean)
    assert expected_distinct_experts(experts=16, experts_per_token=2, tokens=1) == pytest.approx(2)
    assert expected_distinct_experts(experts=16, experts_per_token=2, tokens=1000) == pytest.approx(16)


# 1D against 2D weight-stationary


def slice_comms(name: str, x_axis: int, *, f: float, gated: bool, batch=512, d=8192) -> tuple[float, float]:
    """(1D, 2D) ICI bandwidth terms of a bf16 MLP by `mesh.collectives`; X is one whole axis of the slice."""
    slice_ = parse_slice(name)
    pieces = [Piece(axis=i, stride=1, size=dim) for i, dim in enumerate(slice_.dims)]
    everything, x = group(slice_, pieces), group(slice_, [pieces[x_axis]])
    yz = group(slice_, [piece for piece in pieces if piece.axis != x_axis])
    model_bytes, hidden_bytes = 2 * batch * d, 2 * batch * f
    steps = [reduce_scatter, reduce_scatter, all_gather] if gated else [all_reduce]
    hidden_s = sum(step(hidden_bytes / yz.n, x).bandwidth_s for step in steps)
    one_s = 2 * all_gather(model_bytes, everything).bandwidth_s  # and a ReduceScatter, which takes as long
    return one_s, 2 * all_gather(model_bytes / x.n, yz).bandwidth_s + hidden_s


@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize("name", ["v5p:4x4x4", "v5p:4x4x8", "v5p:8x8x8", "v4:4x8x8"])
def test_closed_forms_are_the_prices_of_wrapped_slices(name, gated):
    """With (n-1)/n, the 1D and 2D forms are what `mesh.collectives` charges on a torus, whatever X."""
    slice_ = parse_slice(name)
    shape = {"batch": 512, "d": 8192, "ici_bytes_per_s": 2 * slice_.chip.link_bytes_per_s}
    for x_axis, x in enumerate(slice_.dims):
        one, two = slice_comms(name, x_axis, f=28672, gated=gated)
        assert ws1d_comms_s(chips=slice_.chips, **shape) == pytest.approx(one)
        yz = slice_.chips // x
        assert ws2d_comms_s(f=28672, grid=Grid(x=x, yz=yz), gated=gated, **shape) == pytest.approx(two)


@pytest.mark.parametrize(
    ("name", "gated", "wins"),
    [("v5p:4x4x4", False, True), ("v5p:4x4x4", True, False), ("v5p:4x4x8", True, True)],
)
def test_crossover_with_whole_axes(name, gated, wins):
    """F = 4D, X one whole axis, exact (n-1)/n: 64 chips are enough not gated, though the book says 72.

    At 4x4x4 in BD/W: 1D 4/3 * 63/64 = 1.3125; 2D 2/4 * 15/16 + 4*4/16 * 3/4 = 1.21875, gated 1.59375.
    """
    pairs = [slice_comms(name, x_axis, f=4 * 8192, gated=gated) for x_axis in range(3)]
    assert (min(two for _, two in pairs) < pairs[0][0]) == wins


def test_crossover_at_4x4x4_depends_on_f_over_d():
    """At 4x4x4 2D wins for F < 4.5 D, gated for F < 3 D: LLaMA-2 13B (2.7 D), not LLaMA-3 70B (3.5 D)."""
    for gated, limit in ((False, 4.5), (True, 3.0)):
        one, two = slice_comms("v5p:4x4x4", 0, f=limit * 8192, gated=gated)
        assert two == pytest.approx(one)
        assert slice_comms("v5p:4x4x4", 0, f=0.99 * limit * 8192, gated=gated)[1] < one


@pytest.mark.parametrize("gated", [False, True])
def test_crossover_is_where_the_limits_at_best_x_meet(gated):
    """At `crossover_chips` 1D equals 2D at its best X; that X is a minimum; more chips favour 2D."""
    chips = crossover_chips(d=1, f=3.5, gated=gated)
    shape = {"batch": 1, "d": 1, "ici_bytes_per_s": V5P_AXIS, "limit": True}

    def two(chips: float, x: float) -> float:
        return ws2d_comms_s(f=3.5, grid=Grid(x=x, yz=chips / x), gated=gated, **shape)

    x = best_x_ways(chips=chips, d=1, f=3.5, gated=gated)
    assert two(chips, x) == pytest.approx(ws1d_comms_s(chips=chips, **shape))
    assert two(chips, x) < min(two(chips, 0.9 * x), two(chips, 1.1 * x))
    assert two(2 * chips, best_x_ways(chips=2 * chips, d=1, f=3.5, gated=gated)) < two(chips, x)


def test_latency_rule_is_per_shard():
    """Appendix C: int8 [16, 8192] on 8 ways is latency-bound, and Y = BD/45000 is the same rule."""
    assert latency_bound_bytes(ways=8, link_bytes_per_s=4.5e10) > 16 * 8192
    ways = latency_bound_ways(batch=16, d=8192, act_bytes=1, link_bytes_per_s=4.5e10)
    assert ways == pytest.approx(16 * 8192 / 45000)
    assert latency_bound_bytes(ways=ways, link_bytes_per_s=4.5e10) == pytest.approx(16 * 8192)


# Sizes


@pytest.mark.parametrize("name", ["scaling-book-18b", "scaling-book-18b-moe", "llama-2-13b", "llama-3.1-70b"])
def test_book_parameter_formula_differs_from_the_models_by_norms_and_router(name):
    """L*D*(3EF + 2H(N + K)) + DV misses only norms (2 per layer, one last) and routers."""
    model = load_model(name)
    (layers,) = model.groups
    sizes = {
        "layers": model.L, "d": model.D, "f": layers.mlp.F, "heads": layers.attention.N,
        "kv_heads": layers.attention.K, "head_dim": layers.attention.H, "vocab": model.V,
        "vocab_matrices": 1 if model.tied else 2,
    }  # fmt: skip
    small = (2 * model.L + 1) * model.D + (layers.mlp.E > 1) * model.L * model.D * layers.mlp.E
    assert transformer_params(Transformer(**sizes), experts=layers.mlp.E) == model.params - small
    assert transformer_params(Transformer(**sizes), experts=layers.mlp.k) == model.active_params - small


# The table


def test_table_shows_where_hbm_ends():
    """As the chapter says: LLaMA-2 13B does not fit 8 v5e over batch 16; with 8 KV heads 64 does."""
    batches = [1, 8, 16, 32, 64, 240]
    assert [row.fits for row in table(batches=batches).rows] == [True] * 3 + [False] * 3
    assert [row.fits for row in table(batches=batches, kv_heads=8).rows] == [True] * 5 + [False]
    assert (table().largest_batch, table(kv_heads=8).largest_batch) == (16, 81)


def test_table_constants():
    """The header is the slice's: 8 v5e, 15.75 GiB usable each, critical batch 240, half with int8 weights."""
    header = table(context=8192)
    assert header.params == 13_015_864_320
    assert header.param_bytes == 2 * header.params
    assert header.kv_bytes_per_seq == 8192 * 819200
    assert (header.total_flops_per_s, header.total_hbm_bytes_per_s) == (8 * 1.97e14, 8 * 8.2e11)
    assert header.usable_hbm_bytes == pytest.approx(8 * 15.75 * 2**30, rel=2e-4)
    assert header.critical_batch_tokens == pytest.approx(240.24, abs=0.01)
    assert table(weights="int8").critical_batch_tokens == pytest.approx(120.12, abs=0.01)
    moe = table("scaling-book-18b-moe", "v5e:16x16")
    assert moe.critical_batch_tokens == pytest.approx(1921.95, abs=0.01)


@pytest.mark.parametrize("name", builtin_names())
@pytest.mark.parametrize("slice_name", ["v5e:16x16", "v5p:4x4x8", "tpu7x:2x2x1", "h100:8"])
def test_table_relations(name, slice_name):
    """Rows obey both formulas, the general step is never the shorter, and exactly the largest batch fits."""
    header = table(name, slice_name, batches=[1, 7, 240, 5000])
    for row in header.rows:
        assert row.step_s == pytest.approx(row.kv_s + row.weights_s)
        assert row.general_step_s == row.kv_s + max(row.weights_s, row.flops_s) >= row.step_s * (1 - 1e-9)
        assert row.tokens_per_s_per_chip * header.chips * row.step_s == pytest.approx(row.batch)
        assert row.fits == (row.batch <= header.largest_batch)
    steps = [row.general_step_s for row in header.rows]
    assert steps == sorted(steps)


def test_table_bound_by_names_the_larger_part():
    """Short caches let FLOPs take over beyond the critical batch; long ones never do."""
    bounds = [row.bound_by for row in table(context=16, batches=[1, 239, 241, 1000]).rows]
    assert bounds == ["hbm", "hbm", "flops", "flops"]
    assert {row.bound_by for row in table(context=8192, batches=[1, 241, 1000]).rows} == {"hbm"}


def test_table_of_dense_model_is_the_general_formula():
    """Every number of a row follows from the header by the public formulas."""
    header = table(batches=[300], weights="int8", kv="fp8", compute="bf16")
    sizes = {
        "kv_bytes_per_seq": header.kv_bytes_per_seq, "param_bytes": header.param_bytes,
        "total_hbm_bytes_per_s": header.total_hbm_bytes_per_s,
    }  # fmt: skip
    (row,) = header.rows
    assert row.step_s == min_step_s(batch=300, **sizes)
    flops = {"params": header.active_params, "total_flops_per_s": header.total_flops_per_s}
    assert row.general_step_s == pytest.approx(general_step_s(batch=300, **flops, **sizes))


def test_moe_reads_only_the_experts_it_touches():
    """One token reads the active parameters; a large batch reads all; memory always holds all."""
    model = load_model("scaling-book-18b-moe")
    assert params_read(model, 1) == pytest.approx(model.active_params)
    assert params_read(model, 10**4) == pytest.approx(model.params)
    one, many = table("scaling-book-18b-moe", "v5e:16x16", batches=[1, 10**4]).rows
    assert one.weights_s < many.weights_s / 6
    assert one.total_bytes - one.kv_bytes == many.total_bytes - many.kv_bytes


def test_chapter_7_problem_6():
    """The MoE on v5e 8x16: int8 weights are 1.65 GB a chip and load in 2.02 ms, bf16 twice that."""
    header = table("scaling-book-18b-moe", "v5e:8x16", weights="int8", kv="int8", batches=[10**4])
    assert header.param_bytes / header.chips == pytest.approx(1.6536e9, rel=1e-4)
    assert header.rows[0].weights_s == pytest.approx(2.0166e-3, rel=1e-4)
    fits = [s.name for s in legal_slices("v5e") if s.chips * 16e9 > header.param_bytes]
    assert fits[0] == "v5e:4x4"


# Bad input


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: dtype_bytes("bf15"), "dtype 'bf15' is not known; expected one of: f32, bf16, f16"),
        (lambda: critical_batch_tokens(flops_per_s=1, hbm_bytes_per_s=0), "hbm_bytes_per_s must be positive"),
        (lambda: best_x_ways(chips=1, d=1, f=0), "best_x_ways: divisors must be positive. Got f=0"),
        (lambda: largest_batch(total_hbm_bytes=-1, param_bytes=1, kv_bytes_per_seq=1), "hbm_bytes=-1"),
        (lambda: largest_batch(total_hbm_bytes=math.nan, param_bytes=1, kv_bytes_per_seq=1), "hbm_bytes=nan"),
        (lambda: replicas(chips=12, ways=8), "chips=12 cannot be split evenly into ways=8"),
        (lambda: table(batches=[1, 0]), "batch must be at least 1. Got batch=0"),
        (lambda: table(context=0), "context must be at least 1. Got context=0"),
        (lambda: table(weights="q4"), "dtype 'q4' is not known"),
        (lambda: table(compute="int4"), "v5e has no FLOP/s for dtype 'int4'"),
        (lambda: table(kv_heads=7), "cache_heads=7"),
    ],
)
def test_bad_input_names_the_value(call, message):
    """Every bad argument is one InputError that names it."""
    with pytest.raises(InputError, match=message):
        call()


def test_dtype_sizes():
    """The sizes the book uses, and as many KV bytes as they say."""
    assert {name: dtype_bytes(name) for name in DTYPE_BYTES} == dict(DTYPE_BYTES)
    assert table(kv="bf16").kv_bytes_per_seq == 4 * table(kv="int4").kv_bytes_per_seq


@pytest.mark.parametrize("wrong", [{"x": 0}, {"yz": -1}, {"x_axes": 0}, {"x": float("inf")}])
def test_a_grid_and_a_shape_say_which_number_is_wrong(wrong):
    """A cut of no ways, and layers of a negative size."""
    ((name, value),) = wrong.items()
    with pytest.raises(InputError, match=f"{name} must be finite and positive. Got {name}={value}"):
        Grid(**({"x": 2, "yz": 2} | wrong))
    with pytest.raises(InputError, match=r"d must be finite and not negative\. Got d=-1"):
        Transformer(layers=1, d=-1, f=1, heads=1, kv_heads=1, head_dim=1, vocab=1)
