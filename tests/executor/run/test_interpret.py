"""Whole programs sharded equal the same text unsharded: every role alone and every pair of roles."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from itertools import combinations
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers.sharded import completed, run_sharded
from jax.sharding import AxisType, Mesh

from executor.run.context import Context
from executor.run.interpret import interpret, results
from strategies.bind import bind
from strategies.checker import check
from strategies.layoutfile import builtin_programs, specialise
from strategies.notation import Program, Tensor

pytestmark = pytest.mark.skipif(
    len(jax.devices()) < 8, reason="needs 8 host devices: XLA_FLAGS=--xla_force_host_platform_device_count=8"
)

SIZES = {"B": 8, "T": 16, "S": 16, "D": 16, "N": 16, "K": 4, "M": 4, "H": 8, "F": 32, "E": 8, "k": 2, "V": 32}
TINY = SIZES | {"K": 2, "M": 8}  # KV heads that one axis of 2 cuts fully
FEATURES = frozenset({"gated", "qk_norm", "qkv_bias"})
TOLERANCE = 1e-5
# The default run has one role alone of every program; test_numerics has every role of every program in its layouts.
ONLY = {
    "attention": "z",
    "attention-gathered-kv": "b",
    "attention-ring": "R",
    "parallel-block": "W",
    "parallel-block-gathered-kv": "V",
    "parallel-block-ring": "W",
    "mlp": "X",
    "moe": "A",
    "moe-scatter": "Y",
    "embed": "Y",
    "unembed": "X",
}


def program_named(phase: str, name: str, features: frozenset[str] = FEATURES) -> Program:
    """A built-in program for a model with these features."""
    return specialise(next(p for p in builtin_programs() if (p.phase, p.name) == (phase, name)), features)


def mesh_of(**axes: int) -> Mesh:
    """A mesh of host devices."""
    count = int(np.prod(list(axes.values())))
    grid = np.array(jax.devices()[:count]).reshape(tuple(axes.values()))
    return Mesh(grid, tuple(axes), axis_types=(AxisType.Auto,) * len(axes))


def arguments(program: Program, sizes: dict[str, int], seed: int = 0) -> dict[str, jax.Array]:
    """Random values for what a program reads."""
    rng = np.random.default_rng(seed)
    found = {}
    for t in (program.input, *program.arguments):
        if t.name == "tok":
            found[t.name] = rng.integers(0, sizes["V"], [sizes[d] for d in t.names])
        elif t.name != "pos":
            found[t.name] = rng.normal(size=[sizes[d] for d in t.names]).astype(np.float32) * scale_of(t, sizes)
    return {name: jnp.asarray(value) for name, value in found.items()}


def scale_of(tensor: Tensor, sizes: dict[str, int]) -> float:
    """Keeps activations near 1."""
    return {"W": sizes["D"] ** -0.5}.get(tensor.name[0], 1.0)


def striped(x: jax.Array, n: int, dim: int) -> jax.Array:
    """A cache with its slots, natural along `dim`, as `n` striped shards store them."""
    return jnp.take(x, np.arange(x.shape[dim]).reshape(-1, n).T.reshape(-1), axis=dim)


def positions(program: Program, sizes: dict[str, int]) -> jax.Array:
    """Different lengths per sequence in decode, some of them beyond a turn of the cache; a zigzag order in prefill."""
    if program.phase == "decode":
        return jnp.asarray([0, 15, 3, 7, 18, 8, 11, 40][: sizes["B"]])
    chunks = np.arange(sizes["T"]).reshape(8, -1)
    order = np.concatenate([chunks[[i, 7 - i]].reshape(-1) for i in range(4)])
    return jnp.asarray(np.tile(order, (sizes["B"], 1)))


@cache
def whole_results(program: Program, large: bool) -> dict[str, jax.Array]:
    """What the program gives with every role empty."""
    sizes, whole = (SIZES if large else TINY), bind(program, {})

    def run(values: dict[str, jax.Array], pos: jax.Array) -> dict[str, jax.Array]:
        held = interpret(whole, values, Context(sizes=sizes, replicated={"pos": pos}, block=8))
        return {name: held[own] for name, own in zip(results(program), results(whole), strict=True)}

    return jax.jit(run)(arguments(program, sizes), positions(program, sizes))


def check_equal(program: Program, large: bool, playing: dict[str, tuple[str, ...]], mesh: Mesh) -> None:
    """Run both ways and compare the output and the caches."""
    bound, sizes = bind(program, playing), (SIZES if large else TINY)
    check(bound)
    context = Context(sizes=sizes, replicated={"pos": positions(program, sizes)}, block=8)
    ways = {name: int(np.prod([mesh.shape[a] for a in t.axes("S")] or [1])) for name, t in results(bound).items()}

    def stored(name: str, x: jax.Array) -> jax.Array:
        held = name in program.cache and program.phase == "decode"
        return striped(x, ways[name], results(bound)[name].names.index("S")) if held else x

    values = {name: stored(name, x) for name, x in arguments(program, sizes).items()}
    got = run_sharded(completed(bound), mesh, context, values)
    expected = dict(zip(got, whole_results(program, large).items(), strict=True))
    for name, value in got.items():
        wanted = stored(name, expected[name][1])
        np.testing.assert_allclose(value, wanted, rtol=TOLERANCE, atol=TOLERANCE * float(jnp.abs(wanted).max()))


def fits(program: Program, playing: dict[str, tuple[str, ...]], sizes: dict[str, int], mesh: Mesh) -> bool:
    """Whether every dim divides and required roles are played."""
    if program.requires and not any(playing.get(axis) for axis in program.requires):
        return False
    needs = check(bind(program, playing))
    ways = {axes: int(np.prod([mesh.shape[a] for a in axes])) for _, axes in needs.divides}
    if any(d in sizes and sizes[d] % ways[axes] for d, axes in needs.divides):
        return False
    return all(int(np.prod([mesh.shape[a] for a in w.axes] or [1])) == sizes[w.dim] for w in needs.whole if w.by)


def sized(program: Program, playing: dict[str, tuple[str, ...]], mesh: Mesh) -> bool | None:
    """Whether the large sizes (else the tiny ones) fit this assignment; None where neither does."""
    return next((large for large in (False, True) if fits(program, playing, SIZES if large else TINY, mesh)), None)


def cases(phase: str) -> list[Any]:
    """(program, roles) for every role alone, on 2 devices, and every pair of roles, on 4 (slow, but for `ONLY`)."""
    found = []
    for p in builtin_programs():
        if p.phase != phase:
            continue
        letters = [r.axis for r in p.roles]
        for roles in (*letters, *map("".join, combinations(letters, 2))):
            slow = len(roles) > 1 or roles not in ONLY[p.name]
            found.append(pytest.param(p.name, roles, marks=[pytest.mark.slow] if slow else []))
    return found


def run_case(phase: str, name: str, letters: str, sizes: tuple[int, ...] = (2, 2)) -> None:
    """Give each role an axis of a mesh and compare."""
    program = program_named(phase, name)
    names = "XYZ"[: len(letters)]
    mesh = mesh_of(**dict(zip(names, sizes, strict=False)))
    playing = {letter: (axis,) for letter, axis in zip(letters, names, strict=True)}
    large = sized(program, playing, mesh)
    if large is None:
        pytest.skip(f"roles {letters} of {name}: no size fits, or a required role is idle")
    check_equal(program, large, playing, mesh)


@pytest.mark.parametrize(("name", "letters"), cases("decode"))
def test_a_decode_program_sharded_equals_itself_unsharded(name: str, letters: str) -> None:
    """Roles alone and in pairs, in decode."""
    run_case("decode", name, letters)


@pytest.mark.parametrize(("name", "letters"), cases("prefill"))
def test_a_prefill_program_sharded_equals_itself_unsharded(name: str, letters: str) -> None:
    """Roles alone and in pairs, in prefill."""
    run_case("prefill", name, letters)


@pytest.mark.parametrize(
    ("phase", "name", "letters", "sizes"),
    [
        pytest.param("decode", "attention", "XYW", (2, 2, 2), marks=pytest.mark.slow),
        pytest.param("decode", "attention", "RWz", (2, 2, 2), marks=pytest.mark.slow),
        pytest.param("decode", "attention", "YV", (4, 2), marks=pytest.mark.slow),
        pytest.param("decode", "attention", "W", (8,), marks=pytest.mark.slow),
        pytest.param("decode", "attention", "WZ", (2, 4), marks=pytest.mark.slow),
        pytest.param("decode", "moe", "AY", (4, 2), marks=pytest.mark.slow),
        pytest.param("decode", "moe-scatter", "ZAY", (2, 2, 2), marks=pytest.mark.slow),
        pytest.param("decode", "mlp", "XY", (2, 4), marks=pytest.mark.slow),
        pytest.param("decode", "unembed", "Y", (8,), marks=pytest.mark.slow),
        ("prefill", "attention-ring", "RW", (2, 4)),
        pytest.param("prefill", "attention-gathered-kv", "bt", (2, 4), marks=pytest.mark.slow),
        pytest.param("prefill", "mlp", "bd", (2, 4), marks=pytest.mark.slow),
        pytest.param("prefill", "moe", "eA", (4, 2), marks=pytest.mark.slow),
    ],
)
def test_larger_and_uneven_meshes(phase: str, name: str, letters: str, sizes: tuple[int, ...]) -> None:
    """Three axes, and axes of 4 and 8."""
    run_case(phase, name, letters, sizes)


@pytest.mark.parametrize(
    ("phase", "name", "letter"),
    [
        pytest.param("prefill", "attention-ring", "W", marks=pytest.mark.slow),
        pytest.param("decode", "attention", "W", marks=pytest.mark.slow),
        ("decode", "moe", "A"),
    ],
)
def test_two_axes_may_play_one_role_in_any_order(phase: str, name: str, letter: str) -> None:
    """The order of the axes in a dim is the PartitionSpec's, not the mesh's; the ring's too."""
    check_equal(program_named(phase, name), True, {letter: ("Y", "X")}, mesh_of(X=2, Y=4))


@pytest.mark.parametrize("sequence", ["striped", pytest.param("contiguous", marks=pytest.mark.slow)])
def test_a_window_masks_and_a_cache_of_its_size_turns(sequence: str) -> None:
    """Decoding with S slots and a window of S equals attention over the last S tokens of a longer sequence."""
    sizes, steps = SIZES | {"B": 1, "S": 4, "T": 9}, 9
    prompt = bind(program_named("prefill", "attention-gathered-kv", frozenset()), {})
    values = arguments(prompt, sizes)
    whole = Context(sizes=sizes, replicated={"pos": jnp.arange(steps)[None]}, window=4)
    expected = jax.jit(lambda v: interpret(prompt, v, whole)["o"])(values)
    bound = completed(bind(program_named("decode", "attention", frozenset()), {"W": ("X",)}))
    context = Context(sizes=sizes, window=4, sequence=sequence)
    run = jax.jit(lambda v, pos: run_sharded(bound, mesh_of(X=2), replace(context, replicated={"pos": pos}), v))
    found = {"Kc": jnp.zeros((1, 4, 4, 8)), "Vc": jnp.zeros((1, 4, 4, 8))}
    for t in range(steps):
        cache = {name: found[name] for name in ("Kc", "Vc")}
        found = run({**values, **cache, "n": values["n"][:, t]}, jnp.asarray([t]))
        np.testing.assert_allclose(found["o"], expected[:, t], atol=1e-5)


def test_an_error_names_the_step() -> None:
    """What goes wrong inside a step says which step it was."""
    program = bind(program_named("decode", "mlp"), {})
    values = arguments(program, SIZES) | {"Wi": jnp.ones((3, 3))}
    with pytest.raises(ValueError, match="does not match") as caught:
        interpret(program, values, Context(sizes=SIZES))
    assert "in step: h[B, F] = n[B, D] * Wi[D, F]" in caught.value.__notes__
