"""Every primitive's execution equals the same step on whole arrays, written without jax, on several meshes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, Mesh, PartitionSpec

from executor.run.context import Context, SoftmaxState
from executor.run.steps import STEPS
from mesh.errors import InputError
from strategies.notation import Step, Tensor, parse_step
from strategies.primitives import PRIMITIVES

pytestmark = pytest.mark.skipif(
    len(jax.devices()) < 8, reason="needs 8 host devices: XLA_FLAGS=--xla_force_host_platform_device_count=8"
)

SIZES = {"B": 8, "T": 8, "S": 16, "D": 16, "N": 16, "K": 8, "M": 2, "H": 4, "F": 16, "E": 8, "k": 2, "V": 16, "C": 8}
MESHES = {"2x4": (2, 4), "8x1": (8, 1), "2x2x2": (2, 2, 2)}
SOME = ["2x4", "8x1", pytest.param("2x2x2", marks=pytest.mark.slow)]
Arrays = list[np.ndarray[Any, Any]]


def mesh_of(shape: tuple[int, ...]) -> Mesh:
    """Host devices with axes X, Y, Z."""
    grid = np.array(jax.devices()[: int(np.prod(shape))]).reshape(shape)
    return Mesh(grid, tuple("XYZ"[: len(shape)]), axis_types=(AxisType.Auto,) * len(shape))


def spec(tensor: Tensor) -> PartitionSpec:
    """Partial sums lie along a leading dim, one per shard of {U}."""
    lead = (tensor.partial,) if tensor.partial else ()
    return PartitionSpec(*lead, *(d.axes or None for d in tensor.dims))


def run(step: Step, mesh: Mesh, arrays: Arrays, **known: Any) -> Arrays:
    """Run a step on whole arrays."""
    return run_all([step], mesh, [arrays], **known)[0]


def run_all(steps: list[Step], mesh: Mesh, arrays: list[Arrays], **known: Any) -> list[Arrays]:
    """Run steps that have nothing to do with each other, compiled once.

    Partial sums are split on the way in and summed on the way out.
    """
    context = Context(axes=dict(mesh.shape), sizes=SIZES, **known)

    def local(given: list[list[jax.Array]]) -> list[list[jax.Array]]:
        return [one(step, values) for step, values in zip(steps, given, strict=True)]

    def one(step: Step, values: list[jax.Array]) -> list[jax.Array]:
        given = tuple(v[0] if t.partial else v for v, t in zip(values, step.inputs, strict=True))
        found = STEPS[step.op](step, context, given)
        return [v[None] if t.partial else v for v, t in zip(found, step.outputs, strict=True)]

    specs, out = [list(map(spec, s.inputs)) for s in steps], [list(map(spec, s.outputs)) for s in steps]
    sharded = jax.shard_map(local, mesh=mesh, in_specs=(specs,), out_specs=out, check_vma=False)
    found = jax.jit(sharded)([_parts(s, mesh, x) for s, x in zip(steps, arrays, strict=True)])
    return [[_whole(x, t) for x, t in zip(one, s.outputs, strict=True)] for one, s in zip(found, steps, strict=True)]


def _parts(step: Step, mesh: Mesh, arrays: Arrays) -> Arrays:
    ways = [int(np.prod([mesh.shape[a] for a in t.partial])) for t in step.inputs]
    pairs = zip(arrays, step.inputs, ways, strict=True)
    return [summands(x, n) if t.partial else x for x, t, n in pairs]


def _whole(x: jax.Array, tensor: Tensor) -> np.ndarray[Any, Any]:
    return np.asarray(x).sum(0) if tensor.partial else np.asarray(x)


def summands(x: np.ndarray[Any, Any], n: int) -> np.ndarray[Any, Any]:
    """`n` arrays whose sum is x."""
    parts = np.random.default_rng(1).normal(size=(n, *x.shape)).astype(x.dtype)
    parts[-1] = x - parts[:-1].sum(0)
    return parts


def values(step: Step) -> Arrays:
    """Random whole inputs; positions, tokens and choices are integers."""
    rng = np.random.default_rng(0)
    high = {"pos": SIZES["S"], "tok": SIZES["V"]}
    found: Arrays = []
    for t in step.inputs:
        shape = [SIZES[d] for d in t.names]
        if t.name == "i":
            found.append(np.argsort(rng.normal(size=(*shape[:-1], SIZES["E"])), -1)[..., : SIZES["k"]])
        else:
            found.append(rng.integers(0, high[t.name], shape) if t.name in high else rng.normal(size=shape))
    return [x.astype(np.float32) if x.dtype == np.float64 else x.astype(np.int32) for x in found]


def check(cases: list[tuple[str, Callable[..., Any]]], shape: tuple[int, ...]) -> None:
    """Steps on one mesh against their oracles."""
    steps = [parse_step(text) for text, _ in cases]
    arrays = [values(step) for step in steps]
    found = run_all(steps, mesh_of(shape), arrays)
    for step, given, got, (_, oracle) in zip(steps, arrays, found, cases, strict=True):
        PRIMITIVES[step.op].rule(step)
        wanted = oracle(*given)
        for x, y in zip(got, wanted if isinstance(wanted, tuple) else (wanted,), strict=True):
            np.testing.assert_allclose(x, y, rtol=1e-5, atol=1e-5, err_msg=str(step))


def test_every_primitive_can_be_executed() -> None:
    """The same names in the price and the run, none missing."""
    assert set(STEPS) == set(PRIMITIVES)


def same(*arrays: Any) -> tuple[Any, ...]:
    """A collective changes where data is, not what it is."""
    return arrays


COLLECTIVES = [
    "a[B_Y, D] = AllGather_X(a[B_Y, D_X])",
    "a[B, D] = AllGather_YX(a[B, D_YX])",
    "a[B, D_X] = AllGather_Y(a[B, D_XY])",
    "a[B, D] = AllGather_XY(a[B_Y, D_X])",
    "a[B, D], b[D, F, H] = AllGather_XY(a[B_Y, D_X], b[D_XY, F, H])",
    "a[B_Y, D_X] = ReduceScatter_X(a[B_Y, D] {U_X})",
    "a[B_XY, D] = ReduceScatter_Y(a[B_X, D] {U_Y})",
    "a[B, D_YX] = ReduceScatter_YX(a[B, D] {U_XY})",
    "a[B, D_Y] {U_X}, b[F_Y, H] {U_X} = ReduceScatter_Y(a[B, D] {U_XY}, b[F, H] {U_XY})",
    "a[B, D] = AllReduce_XY(a[B, D] {U_XY})",
    "a[B, D] {U_Y}, b[D_Z, H] = AllReduce_X(a[B, D] {U_XY}, b[D_Z, H] {U_X})",
    "a[B, D_X] = AllToAll_X(a[B_X, D])",
    "a[B_Y, D] = AllToAll_Y(a[B, D_Y])",
    "a[B_YX, D] = AllToAll_YX(a[B, D_YX])",
    "a[B_X, D_Y] = AllToAll_Y(a[B_XY, D])",
    "a[B_XY, D], b[F, T_Y] = AllToAll_Y(a[B_X, D_Y], b[F_Y, T])",
    "a[B_XY, D] = Slice_Y(a[B_X, D])",
    "a[B_Y, D_X] = Slice_XY(a[B, D])",
    "a[B_X, S_Y] = Rename(a[B_X, T_Y])",
]


@pytest.mark.parametrize("name", SOME)
def test_collectives_only_move_data(name: str) -> None:
    """What is gathered, scattered, reduced, exchanged or sliced is the same whole array, in any order of axes."""
    check([(text, same) for text in COLLECTIVES if "Z" not in text or len(MESHES[name]) == 3], MESHES[name])


def heads(q: Any) -> Any:
    """N -> K, M."""
    return q.reshape(*q.shape[:-2], SIZES["K"], SIZES["M"], SIZES["H"])


def silu(x: Any) -> Any:
    """x * sigmoid(x)."""
    return x / (1 + np.exp(-x))


def gelu(x: Any) -> Any:
    """The tanh form."""
    return 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))


def rms(x: Any, g: Any) -> Any:
    """RMS norm over the last dim."""
    return g * x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-5)


def rope(x: Any, pos: Any) -> Any:
    """Rotation of the pairs as complex numbers."""
    half = x.shape[-1] // 2
    turn = np.exp(1j * pos[..., None, None] * 10000.0 ** (-np.arange(half) / half))
    z = (x[..., :half] + 1j * x[..., half:]) * turn
    return np.concatenate([z.real, z.imag], -1)


def routed(logits: Any) -> tuple[Any, Any]:
    """Softmax, the two best, renormalised."""
    experts = np.argsort(-logits, -1)[..., : SIZES["k"]]
    best = np.exp(np.take_along_axis(logits, experts, -1))
    return best / best.sum(-1, keepdims=True), experts


LOCAL: list[tuple[str, Callable[..., Any]]] = [
    ("h[B, F_Y] {U_X} = n[B, D_X] * Wi[D_X, F_Y]", lambda n, w: n @ w),
    ("h[E_X, C_Y, F] = x[E_X, C_Y, D] * Wi[E_X, D, F]", lambda x, w: np.einsum("ecd,edf->ecf", x, w)),
    ("Q[B_Y, K_X, M, H] = Split(Q[B_Y, N_X, H])", heads),
    ("Q[B_Y, N_X, H] = Merge(Q[B_Y, K_X, M, H])", lambda q: q.reshape(8, 16, 4)),
    ("a[B_X, F_Y] = Gelu(h[B_X, F_Y])", gelu),
    ("a[B_X, F_Y] = Silu(h[B_X, F_Y])", silu),
    ("a[B_X, F_Y] = SwiGLU(u[B_X, F_Y], h[B_X, F_Y])", lambda u, h: silu(u) * h),
    ("o[B, D_Y] {U_X} = Add(p[B, D_Y] {U_X}, m[B, D_Y] {U_X})", lambda p, m: p + m),
    ("Q[B_X, N_Y, H] = Bias(Q[B_X, N_Y, H], bq[N_Y, H])", lambda q, b: q + b),
    ("q[B_Y] {U_X} = SumSq(R[B_Y, D_X])", lambda r: (r**2).sum(-1)),
    ("Q[B_X, N_Y, H] = HeadNorm(Q[B_X, N_Y, H], gq[H])", rms),
    ("Q[B_X, N_Y, H] = Rope(Q[B_X, N_Y, H], pos[B_X])", rope),
    ("Q[B_X, T_Y, N, H] = Rope(Q[B_X, T_Y, N, H], pos[B_X, T_Y])", rope),
    ("w[B_X, k], i[B_X, k] = TopK(l[B_X, E])", routed),
    ("x[B_X, D_Y] = Lookup(tok[B_X], Em[V, D_Y])", lambda tok, em: em[tok]),
    ("x[B, T_X, D] {U_Y} = Lookup(tok[B, T_X], Em[V_Y, D])", lambda tok, em: em[tok]),
    ("t[B_X] = ArgMax(l[B_X, V_Y])", lambda x: x.argmax(-1)),
    ("t[B] = ArgMax(l[B, V_YX])", lambda x: x.argmax(-1)),
]


@pytest.mark.parametrize("name", SOME)
def test_local_steps_equal_numpy(name: str) -> None:
    """Matmuls, element-wise steps, norms, routing and the vocabulary."""
    check(LOCAL, MESHES[name])


@pytest.mark.parametrize("kind", ["rms", "layer"])
def test_norm_uses_the_sum_over_all_shards(kind: str) -> None:
    """The statistic's small AllReduce is a step of its own; a layer norm's carries the mean, too."""
    sums = [parse_step("q[B] {U_X} = SumSq(R[B, D_X])"), parse_step("m[B] {U_X} = Sum(R[B, D_X])")]
    sums = sums if kind == "layer" else sums[:1]
    names = [step.outputs[0].name for step in sums]
    reduce = parse_step(
        f"{', '.join(f'{n}[B]' for n in names)} = AllReduce_X({', '.join(f'{n}[B] {{U_X}}' for n in names)})"
    )
    norm = parse_step(f"n[B, D_X] = Norm(R[B, D_X], {', '.join(f'{n}[B]' for n in names)}, g[D_X])")
    x, g = values(Step("", (), (norm.inputs[0], norm.inputs[-1]), ()))
    mesh = mesh_of((4,))
    context = Context(axes={"X": 4}, sizes=SIZES)

    def local(x: jax.Array, g: jax.Array) -> jax.Array:
        statistic = STEPS["AllReduce"](reduce, context, tuple(STEPS[s.op](s, context, (x,))[0] for s in sums))
        return STEPS["Norm"](norm, context, (x, *statistic, g))[0]

    p = PartitionSpec
    specs = (p(None, "X"), p("X"))
    got = jax.jit(jax.shard_map(local, mesh=mesh, in_specs=specs, out_specs=specs[0], check_vma=False))(x, g)
    centred = x - x.mean(-1, keepdims=True) if kind == "layer" else x
    np.testing.assert_allclose(got, rms(centred, g), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", MESHES)
def test_ties_and_padding_in_argmax_and_topk(name: str) -> None:
    """Of equal logits the first wins, on whatever shard; padded tokens and experts never do."""
    step = parse_step("t[B] = ArgMax(l[B, V_XY])")
    logits = np.zeros((8, 16), np.float32)
    logits[:, 15] = 5
    logits[1:, [3, 12]] = 2
    got = run(step, mesh_of(MESHES[name]), [logits], real={"V": 14})[0]
    assert got.tolist() == [0, *[3] * 7]
    step = parse_step("w[B_X, k], i[B_X, k] = TopK(l[B_X, E])")
    chosen = run(step, mesh_of(MESHES[name]), [np.tile(np.arange(8, dtype=np.float32), (8, 1))], real={"E": 6})[1]
    assert chosen.tolist() == [[5, 4]] * 8


@pytest.mark.parametrize("sequence", ["striped", "contiguous"])
@pytest.mark.parametrize(
    "dims", ["B_X, S_Y, K, H", *(pytest.param(d, marks=pytest.mark.slow) for d in ("B_X, K, S_Y, H", "S_Y, K, B_X, H"))]
)
def test_append_writes_one_entry_at_the_position(dims: str, sequence: str) -> None:
    """The slot of each sequence's position changes, and nothing else, in every stored order of the axes."""
    rest = dims.replace("S_Y, ", "")
    step = parse_step(f"Kc[{dims}] = Append(Kc[{dims}], k[{rest}], pos[B_X])")
    cache, new, pos = values(step)
    names = step.inputs[0].names
    for shape in ((2, 4), (8, 1), (1, 8)):
        n, per = shape[1], SIZES["S"] // shape[1]
        expected = cache.copy()
        for b in range(8):
            p = int(pos[b])
            at = p if sequence == "contiguous" else p % n * per + p // n
            where = tuple({"B": b, "S": at}.get(d, slice(None)) for d in names)
            expected[where] = np.take(new, b, axis=step.inputs[1].names.index("B"))
        np.testing.assert_array_equal(run(step, mesh_of(shape), [cache, new, pos], sequence=sequence)[0], expected)


def dense(q: Any, k: Any, v: Any, q_pos: Any, k_pos: Any, window: int | None) -> Any:
    """Whole score matrices: q [B, T, K, M, H], k and v [B, S, K, H], positions [B, T] and [B, S]."""
    age = q_pos[:, :, None] - k_pos[:, None, :]
    seen = (age >= 0) & (age < (window or 10**9)) & (k_pos >= 0)[:, None]
    scores = np.einsum("btkmh,bskh->bkmts", q, k) / np.sqrt(q.shape[-1])
    weights = np.where(seen[:, None, None], np.exp(scores), 0)
    return np.einsum("bkmts,bskh->btkmh", weights / weights.sum(-1, keepdims=True), v)


@pytest.mark.parametrize("window", [None, 5])
@pytest.mark.parametrize(
    ("shape", "block"), [((2, 4), 512), pytest.param((4, 2), 3, marks=pytest.mark.slow), ((1, 8), 2)]
)
def test_prompts_in_blocks_equal_whole_matrices(window: int | None, shape: tuple[int, int], block: int) -> None:
    """Gathered and rotating keys, in an order that is not that of positions, with blocks that do not divide."""
    whole = "Q[B_X, T_Y, K, M, H], Kg[B_X, S, K, H], Vg[B_X, S, K, H], pos[B_X, T_Y]"
    gathered = parse_step(f"O[B_X, T_Y, K, M, H] = Attend({whole})")
    ring = parse_step(f"O[B_X, T_Y, K, M, H] = RingAttend_Y({whole.replace('S,', 'S_Y,')})")
    sizes = SIZES | {"S": 8}
    rng = np.random.default_rng(0)
    q, k, v = (rng.normal(size=[sizes[d] for d in dims]).astype(np.float32) for dims in ("BTKMH", "BSKH", "BSKH"))
    pos = np.stack([rng.permutation(8) for _ in range(8)]).astype(np.int32)
    for step in (gathered, ring):
        got = run(
            step, mesh_of(shape), [q, k, v, pos], replicated={"pos": jnp.asarray(pos)}, window=window, block=block
        )[0]
        np.testing.assert_allclose(got, dense(q, k, v, pos, pos, window), rtol=1e-5, atol=1e-5)


COMBINED = [
    ("AttendReduce_XY", "S_XY", "O[B, K, M, H]"),
    ("AttendScatter_XY", "S_XY", "O[B, K_YX, M, H]"),
    pytest.param("AttendScatter_YX", "S_YX", "O[B_XY, K, M, H]", marks=pytest.mark.slow),
]


@pytest.mark.parametrize("sequence", ["striped", pytest.param("contiguous", marks=pytest.mark.slow)])
@pytest.mark.parametrize(("op", "cut", "out"), COMBINED)
def test_softmaxes_over_shards_are_combined(op: str, cut: str, out: str, sequence: str) -> None:
    """Sequences shorter than a shard, too, and a cache that has turned."""
    axes = "".join(a for a in "XY")
    types = f"Q[B, K, M, H], Kc[B, {cut}, K, H], Vc[B, {cut}, K, H], pos[B]"
    attend = parse_step(f"O[B, K, M, H] {{A_{axes}}} = Attend({types})")
    join = parse_step(f"{out} = {op}(O[B, K, M, H] {{A_{axes}}})")
    for step in (attend, join):
        PRIMITIVES[step.op].rule(step)
    rng = np.random.default_rng(0)
    q, k, v = (rng.normal(size=[SIZES[d] for d in dims]).astype(np.float32) for dims in ("BKMH", "BSKH", "BSKH"))
    pos = np.array([0, 1, 5, 15, 16, 9, 20, 3], np.int32)
    for shape in ((2, 4), (8, 1)):
        axes_of = dict(zip("XY", shape, strict=True))
        n = int(np.prod(shape))
        slot = np.arange(16) if sequence == "contiguous" else np.arange(16).reshape(-1, n).T.reshape(-1)
        k_pos = pos[:, None] - (pos[:, None] - slot) % 16
        context = Context(axes=axes_of, sizes=SIZES, replicated={"pos": jnp.asarray(pos)}, sequence=sequence)

        def local(*arrays: jax.Array, context: Context = context) -> jax.Array:
            return STEPS[join.op](join, context, STEPS["Attend"](attend, context, arrays))[0]

        specs = tuple(spec(t) for t in attend.inputs)
        mesh = mesh_of(shape)
        got = jax.jit(jax.shard_map(local, mesh=mesh, in_specs=specs, out_specs=spec(join.outputs[0]), check_vma=False))
        expected = dense(q[:, None], k, v, pos[:, None], k_pos, None)[:, 0]
        np.testing.assert_allclose(got(q, k, v, pos), expected, rtol=1e-5, atol=1e-5)


def test_a_part_of_the_sequence_axes_leaves_a_triple() -> None:
    """Reduce over X, then scatter over Y."""
    first = parse_step("O[B, K, M, H] {A_Y} = AttendReduce_X(O[B, K, M, H] {A_XY})")
    second = parse_step("O[B, K_Y, M, H] = AttendScatter_Y(O[B, K, M, H] {A_Y})")
    mesh, context = mesh_of((2, 4)), Context(axes={"X": 2, "Y": 4}, sizes=SIZES)
    rng = np.random.default_rng(0)
    scores, v = rng.normal(size=(8, 8, 8, 2)).astype(np.float32), rng.normal(size=(8, 8, 8, 2, 4)).astype(np.float32)

    def local(score: jax.Array, v: jax.Array) -> jax.Array:
        triple = SoftmaxState(v[0], score[0], jnp.ones_like(score[0]))
        return STEPS[second.op](second, context, STEPS[first.op](first, context, (triple,)))[0]

    p = PartitionSpec
    specs = (p(("X", "Y")), p(("X", "Y")))
    run = jax.jit(jax.shard_map(local, mesh=mesh, in_specs=specs, out_specs=p(None, "Y"), check_vma=False))
    got = run(scores, v)
    weights = np.exp(scores) / np.exp(scores).sum(0)
    np.testing.assert_allclose(got, (weights[..., None] * v).sum(0), rtol=1e-5, atol=1e-5)


def moe_oracle(x: Any, w: Any, i: Any) -> Any:
    """Expert e multiplies by e + 1."""
    return x * (w * (i + 1)).sum(-1, keepdims=True)


@pytest.mark.parametrize("name", SOME)
def test_dispatch_and_combine_are_inverse(name: str) -> None:
    """Each token comes back as the weighted sum of what its experts made of it; others' experts add nothing."""
    mesh = mesh_of(MESHES[name])
    dispatch = parse_step("x[E_X, C_Y, D] = Dispatch(n[B_Y, D], i[B_Y, k])")
    combine = parse_step("o[B_Y, D] {U_X} = Combine(x[E_X, C_Y, D], w[B_Y, k], i[B_Y, k])")
    n, w, i = values(Step("", (), (dispatch.inputs[0], *combine.inputs[1:]), ()))
    rows = run(dispatch, mesh, [n, i])[0]
    rows = (rows * np.arange(1, 9).reshape(8, 1, 1)).astype(np.float32)
    np.testing.assert_allclose(run(combine, mesh, [rows, w, i])[0], moe_oracle(n, w, i), rtol=1e-5, atol=1e-5)


def test_tokens_beyond_the_capacity_are_dropped() -> None:
    """Capacity counts slots per expert on one shard of the tokens: the mean, times the factor."""
    step = parse_step("x[E, C_X, D] = Dispatch(n[B_X, D], i[B_X, k])")
    n, i = np.ones((8, 16), np.float32), np.tile(np.array([0, 1], np.int32), (8, 1))
    rows = run(step, mesh_of((2,)), [n, i], capacity_factor=2.0)[0]
    assert rows.shape == (8, 2 * 2, 16)  # of 4 tokens a shard, mean 4 * 2 / 8 = 1 slot, twice that
    assert rows[:2].sum() == 2 * 4 * 16
    assert rows[2:].sum() == 0


def test_last_takes_each_prompts_end() -> None:
    """Of prompts of different lengths, stored in another order than that of positions."""
    step = parse_step("R[B_X, D] {U_Y} = Last(R[B_X, T_Y, D])")
    (x,) = values(step)
    order, lengths = np.array([0, 1, 6, 7, 2, 3, 4, 5]), np.array([1, 8, 3, 4, 7, 2, 5, 6])
    whole = {"pos": jnp.asarray(np.tile(order, (8, 1))), "lengths": jnp.asarray(lengths)}
    expected = x[np.arange(8), np.argsort(order)[lengths - 1]]
    for shape in ((2, 4), (1, 8), (4, 2)):
        np.testing.assert_allclose(run(step, mesh_of(shape), [x], replicated=whole)[0], expected, rtol=1e-5, atol=1e-5)


def test_bad_steps_say_what_is_wrong() -> None:
    """A triple where none may be, and dtypes that one collective cannot mix."""
    step = parse_step("a[B] = Gelu(a[B])")
    triple = SoftmaxState(jnp.ones(1), jnp.ones(1), jnp.ones(1))
    with pytest.raises(InputError, match="softmax triple"):
        STEPS["Gelu"](step, Context(), (triple,))
    with pytest.raises(InputError, match="needs a softmax triple"):
        STEPS["AttendReduce"](replace(step, op="AttendReduce"), Context(), (jnp.ones(1),))
    step = parse_step("a[B], b[B] = AllGather_X(a[B_X], b[B_X])")
    with pytest.raises(InputError, match="one collective moves one dtype; got float32, int32"):
        STEPS["AllGather"](step, Context(axes={"X": 2}), (jnp.ones(2), jnp.ones(2, jnp.int32)))
