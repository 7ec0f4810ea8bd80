"""The cost reader, by hand: FLOPs, bytes and collectives of steps, peaks, and MLPs against the book."""

from dataclasses import replace
from math import prod

import numpy as np
import pytest

from mesh.pieces import Piece
from mesh.slices import parse_slice
from strategies import residual_program
from strategies.bind import bind
from strategies.book.crossover import Grid, ws1d_comms_s, ws2d_comms_s
from strategies.components import CheckedProgram, components
from strategies.layoutfile import parse_layout
from strategies.models.models import Attention, LayerGroup, Mlp, Model
from strategies.models.workload import Dtypes, Workload
from strategies.notation import Axes, Program
from strategies.prices import Comm, Number, Work
from strategies.primitives import PRIMITIVES
from strategies.readers.axis_sets import masks_of_one
from strategies.readers.cost import ArrayScope, Speeds, Totals, price_steps
from strategies.readers.memory import cache_bytes, peak_activation_bytes, weight_bytes
from strategies.readers.rates import tabulate_rates

V5P = parse_slice("v5p:4x4x4").at_data_sheet
AXES = "XYZ"
RATES = tabulate_rates(V5P, [[Piece(axis=i, stride=1, size=4)] for i in range(3)])
WIDTHS = {"weight": 1.0, "cache": 0.5, "activation": 2.0, "index": 4.0, "statistic": 4.0}
MASKS = masks_of_one({axis: (i,) for i, axis in enumerate(AXES)}, len(AXES))
SIZES: dict[str, Number] = {
    "B": 64, "T": 16, "S": 256, "D": 32, "F": 128, "N": 32, "K": 4, "M": 8, "H": 16, "V": 512, "E": 8, "experts": 8,
    "k": 2,
    "attended": 100.0, "kept": 1.0, "tokens": 64, "C": 16,
}  # fmt: skip


def scope(text: str, **sizes: float) -> ArrayScope:
    """A scope over steps on mesh axes X, Y, Z of 4 chips each, weights of 1 byte, caches of 1/2, activations of 2."""
    header = (
        "program p\nphase: decode\ncomponent: mlp\nroles: X=D\nweights: W Wg Wo Em g\ncache: Kc Vc\nindex: pos tok\n"
        "input: n[B, D]\noutput: n[B, D]\nbody\n"
    )
    (program,) = parse_layout(header + text)
    return ArrayScope(replace(program, roles=()), MASKS, {**SIZES, **sizes}, RATES, WIDTHS)


def work(text: str, **sizes: float) -> Work:
    """What the last of these steps asks of one device."""
    over = scope(text, **sizes)
    step = over.program.steps[-1]
    found = PRIMITIVES[step.op].price(step, over)
    comms = tuple(Comm(c.kind, c.axes, np.asarray(c.nbytes).item(), np.asarray(c.times).item()) for c in found.comms)
    return Work(np.asarray(found.flops).item(), np.asarray(found.hbm_bytes).item(), comms)


def test_an_einsum_is_two_flops_per_multiply_add_and_three_tensors() -> None:
    """n[64, 32/4] * W[32/4, 128/4]: 2*64*8*32 FLOPs; 2*512 bytes of n, 256 of W, 2*2048 of the result."""
    assert work("h[B, F_Y] {U_X} = n[B, D_X] * W[D_X, F_Y]") == Work(2 * 64 * 8 * 32, 2 * 64 * 8 + 8 * 32 + 2 * 64 * 32)


@pytest.mark.parametrize(
    ("text", "kind", "nbytes"),
    [
        ("n[B, D] = AllGather_X(n[B, D_X])", "AllGather", 2 * 64 * 32),
        ("W[D, F_Y] = AllGather_X(W[D_X, F_Y])", "AllGather", 32 * 32),
        ("h[B, F_X] = ReduceScatter_X(h[B, F] {U_X})", "ReduceScatter", 2 * 64 * 128),
        ("h[B_Y, F] = AllReduce_X(h[B_Y, F] {U_X})", "AllReduce", 2 * 16 * 128),
        ("q[B_X, N, H] = AllToAll_X(q[B, N_X, H])", "AllToAll", 2 * 64 * 32 * 16),
    ],
)
def test_a_collective_s_v_is_the_gathered_array(text: str, kind: str, nbytes: float) -> None:
    """V: the gathered array (AllGather, ReduceScatter), the local array (AllReduce), all of the group (AllToAll)."""
    assert work(text) == Work(comms=(Comm(kind, ("X",), nbytes),))


def test_a_collective_s_seconds_are_those_of_its_formula() -> None:
    """On a ring of 4 with both directions: gather V*3/4/2W, reduce twice that, AllToAll V*4/(4*4*2W)."""
    both = 2 * V5P.chip.link_bytes_per_s
    found = {}
    for text in ("n[B, D] = AllGather_X(n[B, D_X])", "n[B, D] = AllReduce_X(n[B, D] {U_X})",
                 "q[B_X, D] = AllToAll_X(q[B, D_X])"):  # fmt: skip
        (cost,) = price_steps(scope(text, B=1 << 24), Speeds(1e12, 1e12, WIDTHS))
        found[cost.step.op] = cost.comms[0].bandwidth_s.item()
        assert cost.comms[0].seconds.item() == found[cost.step.op]
    V = 2 * (1 << 24) * 32
    assert found == pytest.approx(
        {"AllGather": V * 0.75 / both, "AllReduce": 2 * V * 0.75 / both, "AllToAll": V / 4 / both}
    )


def test_a_small_collective_takes_its_hops() -> None:
    """Two hops on a ring of 4; an AllReduce runs twice."""
    (cost,) = price_steps(scope("n[B, D] = AllReduce_X(n[B, D] {U_X})", B=1), Speeds(1e12, 1e12, WIDTHS))
    assert cost.comms[0].seconds.item() == pytest.approx(4 * V5P.chip.hop_latency_s)


def test_several_tensors_in_one_collective_add_their_bytes_not_their_hops() -> None:
    """One launch for keys and values: V is the sum."""
    text = "k[B, D], v[B, F] = AllGather_X(k[B, D_X], v[B, F_X])"
    assert work(text) == Work(comms=(Comm("AllGather", ("X",), 2 * 64 * (32 + 128)),))


def test_decode_attention_reads_the_cache_once() -> None:
    """K and V of 64/4 sequences, 256 keys, 4 heads of 16: 2 * 262144 half bytes; q and O of 2 bytes."""
    text = "O[B_X, K, M, H] = Attend(q[B_X, K, M, H], Kc[B_X, S, K, H], Vc[B_X, S, K, H], pos[B_X])"
    cache, heads = 16 * 256 * 4 * 16, 16 * 32 * 16
    assert work(text) == Work(4 * heads * 100, 2 * cache * 0.5 + 2 * heads * 2)
    assert cache_bytes(scope(text)).item() == 2 * cache * 0.5


def test_a_cut_sequence_divides_keys_and_bytes() -> None:
    """Each of 4 shards attends to a quarter of the keys."""
    text = "O[B, K, M, H] {A_Z} = Attend(q[B, K, M, H], Kc[B, S_Z, K, H], Vc[B, S_Z, K, H], pos[B])"
    q = 64 * 32 * 16
    assert work(text) == Work(4 * q * 25, 64 * 64 * 4 * 16 * 2 * 0.5 + 2 * q * 2)


def test_combining_the_softmax_gathers_statistics_first() -> None:
    """Max and sum of 64 x 32 heads from 4 shards, 8 bytes each, then the outputs."""
    statistics = Comm("AllGather", ("Z",), 64 * 32 * 8 * 4)
    outputs = 2 * 64 * 32 * 16
    scatter = work("O[B, N_Z, H] = AttendScatter_Z(O[B, N, H] {A_Z})")
    reduce = work("O[B, N, H] = AttendReduce_Z(O[B, N, H] {A_Z})")
    assert scatter == Work(comms=(statistics, Comm("ReduceScatter", ("Z",), outputs)))
    assert reduce == Work(comms=(statistics, Comm("AllReduce", ("Z",), outputs)))


PREFILL = "O[B, T_X, K, M, H] = Attend(q[B, T_X, K, M, H], Kg[B, S, K, H], Vg[B, S, K, H], pos[B, T_X]{})"


def test_contiguous_shards_wait_for_the_last_and_zigzag_ones_do_not() -> None:
    """Under a causal mask the last of W contiguous shards has 2 - 1/W times the mean work."""
    zigzag, contiguous = (work(PREFILL.format(order)).flops for order in ("; order=zigzag", ""))
    assert zigzag == 4 * 64 * 4 * 32 * 16 * 100
    assert contiguous / zigzag == 2 - 1 / 4


def test_the_imbalance_is_that_of_counting_keys() -> None:
    """Counted on a prompt of 4096 over 4 shards: contiguous ones, and zigzag ones of one early and one late eighth."""
    eighths = np.arange(1, 4097).reshape(8, -1).sum(axis=1)
    contiguous, zigzag = eighths.reshape(4, 2).sum(axis=1), eighths[:4] + eighths[:3:-1]
    assert contiguous[-1] / contiguous.mean() == pytest.approx(2 - 1 / 4, rel=1e-3)
    assert set(zigzag) == {contiguous.mean()}


def test_a_ring_rotates_both_shards_one_time_less_than_its_size() -> None:
    """3 permutes of K and V shards of 64 x 4 keys; FLOPs over all keys; 4 shards are read."""
    text = (
        "O[B, T_X, K, M, H] = RingAttend_X(q[B, T_X, K, M, H], Kc[B, S_X, K, H], Vc[B, S_X, K, H], pos[B, T_X]; "
        "order=zigzag)"
    )
    q, shard = 64 * 4 * 32 * 16, 2 * 64 * 64 * 4 * 16 * 0.5
    assert work(text) == Work(4 * q * 100, 2 * q * 2 + 4 * shard, (Comm("CollectivePermute", ("X",), shard, 3),))


def test_only_the_experts_that_tokens_chose_are_read() -> None:
    """Of 8 experts, 2 per token: 64/4 tokens that meet touch 1 - (1 - 1/4)^16 of them."""
    text = "h[E_Z, C_X, F] = x[E_Z, C_X, D] * W[E_Z, D, F]"
    touched = 1 - 0.75**16
    rows = 2 * 4  # experts and slots per device: 8/4 and 16/4
    assert work(text) == Work(
        pytest.approx(2 * rows * 32 * 128), pytest.approx(2 * 32 * 128 * touched + 2 * rows * (32 + 128))
    )


def test_the_expected_share_of_experts_is_that_of_a_draw() -> None:
    """Simulated: tokens that choose 2 of 8 experts evenly."""
    rng = np.random.default_rng(0)
    chosen = [len({int(e) for _ in range(6) for e in rng.choice(8, 2, replace=False)}) for _ in range(4000)]
    over = scope("n[B, D] = Gelu(n[B, D])", tokens=6)
    assert np.asarray(over.touched(())).item() == pytest.approx(np.mean(chosen) / 8, rel=0.01)


def test_a_vocabulary_is_read_by_row_and_sampled_by_pairs() -> None:
    """A lookup reads one row per token; ArgMax gathers 8 bytes per token and shard."""
    assert work("x[B, D] {U_Y} = Lookup(tok[B], Em[V_Y, D])") == Work(hbm_bytes=2 * 64 * 32)
    assert work("t[B] = ArgMax(l[B, V_Y])") == Work(
        hbm_bytes=2 * 64 * 128, comms=(Comm("AllGather", ("Y",), 64 * 8 * 4),)
    )


def test_the_norm_s_statistic_is_small_and_priced() -> None:
    """The AllReduce of the sum of squares moves 4 bytes per token."""
    text = "q[B] {U_X} = SumSq(n[B, D_X])\nq[B] = AllReduce_X(q[B] {U_X})"
    assert work(text) == Work(comms=(Comm("AllReduce", ("X",), 64 * 4),))


def test_the_peak_of_a_tiny_program_by_hand() -> None:
    """n 4096 bytes, h 16384: the widest moment is the product that makes u while n and h live; SwiGLU is in place."""
    text = (
        "h[B, F] = n[B, D] * W[D, F]\nu[B, F] = n[B, D] * Wg[D, F]\na[B, F] = SwiGLU(u[B, F], h[B, F])\n"
        "n[B, D] = a[B, F] * Wo[F, D]\n"
    )
    n, h = 2 * 64 * 32, 2 * 64 * 128
    assert peak_activation_bytes(scope(text)).item() == n + h + h
    assert weight_bytes(scope(text)) == 3 * 32 * 128


def test_a_gathered_weight_and_its_reordering_count_as_activations() -> None:
    """A gather of one dim holds its result; one of two dims holds it twice."""
    once = "G[D, F] = AllGather_X(W[D, F_X])\nn[B, F] = n[B, D] * G[D, F]\n"
    twice = "G[D, F] = AllGather_XY(W[D_Y, F_X])\nn[B, F] = n[B, D] * G[D, F]\n"
    assert peak_activation_bytes(scope(once, B=1)).item() == 32 * 128 + 2 * (32 + 128)
    assert peak_activation_bytes(scope(twice, B=1)).item() == 2 * 32 * 128 + 2 * 32


def comms_s(program: Program, playing: dict[str, Axes], sizes: dict[str, Number]) -> float:
    """Seconds of bandwidth of a bound program's gathers and scatters."""
    over = ArrayScope(bind(program, playing), MASKS, sizes, RATES, WIDTHS)
    costs = price_steps(over, Speeds(1e12, 1e12, WIDTHS))
    found = (c.bandwidth_s for cost in costs for c in cost.comms if cost.step.op in ("AllGather", "ReduceScatter"))
    return float(sum(np.asarray(s).item() for s in found))


def layer(body: CheckedProgram, body_plays: dict[str, Axes], entry: dict[str, Axes], leave: dict[str, Axes]) -> float:
    """Seconds of bandwidth of an MLP with its reshard, decode."""
    sizes: dict[str, Number] = {"B": 4096, "D": 1024, "F": 4096}
    total = comms_s(body.program, body_plays, sizes)
    for program, plays in ((residual_program.entry("decode"), entry), (residual_program.leave("decode"), leave)):
        letters = {role.name: role.axis for role in program.roles}
        total += comms_s(program, {letters[pair]: axes for pair, axes in plays.items()}, sizes)
    return total


def mlp(gated: bool) -> CheckedProgram:
    """The built-in decode MLP."""
    group = LayerGroup(count=1, attention=Attention(N=8, K=2, H=16), mlp=Mlp(F=64, gated=gated))
    model = Model(name="small", D=32, V=100, tied=False, groups=(group,))
    work = Workload(phase="decode", batches=(8,), context=256, dtypes=Dtypes())
    return next(c for c in components(model, work) if c.kind == "mlp").bodies[0].parts[0]


RING_BYTES_PER_S = 2 * V5P.chip.link_bytes_per_s


@pytest.mark.parametrize("gated", [True, False])
def test_a_2d_mlp_moves_what_the_book_says(gated: bool) -> None:
    """Entry gather, hidden scatters and gather, exit scatter: problem 7's exact form, with (n-1)/n."""
    found = layer(
        mlp(gated),
        {"X": ("X",), "Y": ("Y", "Z")},
        {"DD": ("X",), "D-": ("Y", "Z")},
        {"DD": ("X",), "UD": ("Y", "Z")},
    )
    assert found == pytest.approx(
        ws2d_comms_s(batch=4096, d=1024, f=4096, grid=Grid(x=4, yz=16), ici_bytes_per_s=RING_BYTES_PER_S, gated=gated)
    )


def test_a_1d_mlp_moves_what_the_book_says() -> None:
    """All three axes cut F: gather and scatter of [B, D]."""
    every: Axes = ("X", "Y", "Z")
    found = layer(mlp(True), {"Y": every}, {"D-": every}, {"UD": every})
    assert found == pytest.approx(ws1d_comms_s(batch=4096, d=1024, chips=64, ici_bytes_per_s=RING_BYTES_PER_S))


def test_bound_and_estimate_differ_by_what_overlaps() -> None:
    """Lower bound = max of the sums, estimate = roofs + collectives."""
    text = "n[B, D] = AllGather_X(n[B, D_X])\nh[B, F] = n[B, D] * W[D, F]\nu[B, F] = n[B, D] * Wg[D, F]"
    total = Totals()
    for cost in price_steps(scope(text), Speeds(1e9, 1e9, WIDTHS)):
        total.add(cost)
    flops_s = 2 * 2 * 64 * 32 * 128 / 1e9
    hbm_s = 2 * (2 * 64 * 32 + 32 * 128 + 2 * 64 * 128) / 1e9
    comm_s = max(2 * 64 * 32 * 0.75 / (2 * V5P.chip.link_bytes_per_s), 2 * V5P.chip.hop_latency_s)
    assert total.step_s.item() == pytest.approx(max(flops_s, hbm_s) + comm_s)
    assert total.lower_bound_s.item() == pytest.approx(max(flops_s, hbm_s, comm_s))
    assert total.comm_s.item() == pytest.approx(comm_s)


def test_every_step_is_divided_by_the_axes_that_cut_it() -> None:
    """FLOPs of a 1D MLP over 64 chips are 1/64 of those on one."""
    part = mlp(True)
    sizes: dict[str, Number] = {"B": 64, "D": 1024, "F": 4096}
    flops = []
    for axes in ((), ("X", "Y", "Z")):
        over = ArrayScope(bind(part.program, {"Y": axes}), MASKS, sizes, RATES, WIDTHS)
        flops.append(sum(float(np.max(cost.work.flops)) for cost in price_steps(over, Speeds(1e12, 1e12, WIDTHS))))
    assert flops[0] / flops[1] == prod((4, 4, 4))
    assert flops[0] == 3 * 2 * 64 * 1024 * 4096
