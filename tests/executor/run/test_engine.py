"""A whole model through its layouts: prompts, insertion and decoding equal the unsharded reference."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, Mesh
from msgspec.structs import replace as changed

import meshwright
from executor.compiler.hlo import collectives
from executor.devices import build_mesh
from executor.loaded import load
from executor.reference import random_params, reference_logits
from executor.run.engine import Engine, engine, engine_of
from executor.run.prompts import zigzag
from mesh.errors import InputError
from mesh.pieces import Piece
from mesh.slices import parse_slice
from strategies.components import components
from strategies.layout import Assigned, BoundLayout, lay_out, mesh_of
from strategies.models.models import Attention, LayerGroup, Mlp, Model
from strategies.models.workload import Dtypes, Workload
from strategies.notation import LayoutError

pytestmark = pytest.mark.skipif(
    len(jax.devices()) < 8, reason="needs 8 host devices: XLA_FLAGS=--xla_force_host_platform_device_count=8"
)

F32 = Dtypes(weights="f32", kv="f32", activations="f32", compute="f32")
BF16 = Dtypes()
B, T, LENGTHS, TOLERANCE = 4, 16, (16, 5, 9, 1), 1e-5

Roles = Mapping[str, tuple[str, str]]  # component or kind -> (program, roles by mesh axis, separated by spaces)


def layout_of_roles(model: Model, work: Workload, sizes: Sequence[int], residual: str, roles: Roles) -> BoundLayout:
    """A layout on one physical axis, cut into mesh axes of these sizes."""
    assigned = []
    for c in components(model, work):
        program, played = roles.get(c.name) or roles[c.kind]
        body = c.body(program)
        assigned.append(Assigned(c, body, tuple(body.axis_of(role) for role in played.split())))
    strides = list(accumulate(reversed(sizes), lambda a, b: a * b, initial=1))[-2::-1]
    pieces = tuple((Piece(0, stride, size),) for stride, size in zip(strides, sizes, strict=True))
    return lay_out(mesh_of(parse_slice(f"h100:{np.prod(sizes)}"), pieces), residual, assigned)


def devices_of(sizes: Sequence[int]) -> Mesh:
    """Host devices with axes a, b, c."""
    grid = np.array(jax.devices()[: int(np.prod(sizes))]).reshape(tuple(sizes))
    return Mesh(grid, tuple("abc"[: len(sizes)]), axis_types=(AxisType.Auto,) * len(sizes))


def workload(phase: str, context: int, dtypes: Dtypes = F32) -> Workload:
    """One phase at the batch of these tests."""
    return Workload(phase=phase, batches=(B,), context=context, dtypes=dtypes)


@dataclass(frozen=True)
class Case:
    """A model, and how prompts and decoding are laid out: sizes of the mesh axes, the residual's cut, roles."""

    model: Model
    sizes: tuple[int, ...]
    decode: tuple[str, Roles]
    prefill: tuple[str, Roles]
    dtypes: Dtypes = F32
    context: int = 24
    sequence: Mapping[str, str] = field(default_factory=dict)

    def engines(self) -> tuple[Engine, Engine]:
        """The engines of prefill and of decode."""
        found = []
        for phase, context, (residual, roles) in (("prefill", T, self.prefill), ("decode", self.context, self.decode)):
            work = workload(phase, context, self.dtypes)
            layout = layout_of_roles(self.model, work, self.sizes, residual, roles)
            found.append(engine(layout, self.model, work, devices_of(self.sizes), sequence=self.sequence))
        return found[0], found[1]


def model_of(attention: Attention, mlp: Mlp, *more: LayerGroup, **known: Any) -> Model:
    """Two equal layers, and what else is given."""
    parallel = known.pop("parallel", False)
    groups = (LayerGroup(count=2, attention=attention, mlp=mlp, parallel=parallel), *more)
    return Model(name="m", D=32, **{"V": 48, "tied": False, "groups": groups, **known})


GQA, GATED = Attention(N=8, K=4, H=8), Mlp(F=64, gated=True)
QWEN = Attention(N=8, K=2, H=8, qk_norm=True, qkv_bias=True)
WINDOWED = Attention(N=8, K=4, H=8, window=6)
MOE = Mlp(F=32, gated=True, E=8, k=2)
MIXED = LayerGroup(count=1, attention=WINDOWED, mlp=GATED)
MIXED_MOE = LayerGroup(count=2, attention=GQA, mlp=MOE)

CASES = {
    "gqa-sequence-and-heads": Case(
        model_of(GQA, GATED),
        (2, 2),
        ("D-", {"attention": ("attention", "N+S N+K"), "mlp": ("mlp", "F F"), "vocab": ("unembed", "D V")}),
        ("T-", {"attention": ("attention-ring", "-+T N+K"), "mlp": ("mlp", "-+T F"), "vocab": ("unembed", "- V")}),
    ),
    "qwen-2d-batch-tied": Case(
        model_of(QWEN, GATED, tied=True),
        (2, 4),
        ("DD", {"attention": ("attention", "D+B N+S"), "mlp": ("mlp", "D F"), "vocab": ("unembed", "D V")}),
        (
            "BT",
            {
                "attention": ("attention-gathered-kv", "D*+B D*+T"),
                "mlp": ("mlp", "F*+B D*+T"),
                "vocab": ("unembed", "- V"),
            },
        ),
        sequence={"attention": "contiguous"},
    ),
    "mha-batch": Case(
        model_of(Attention(N=8, K=8, H=8), Mlp(F=64, gated=False)),
        (4,),
        ("B", {"attention": ("attention", "N+B"), "mlp": ("mlp", "F"), "vocab": ("unembed", "V")}),
        ("D", {"attention": ("attention-gathered-kv", "N+K"), "mlp": ("mlp", "F"), "vocab": ("unembed", "V")}),
    ),
    "moe-dispatched": Case(
        model_of(GQA, MOE),
        (2, 2),
        ("BD", {"attention": ("attention", "N+B N+K"), "moe": ("moe", "E+B F"), "vocab": ("unembed", "V V")}),
        ("TB", {"attention": ("attention-ring", "-+T -+B"), "moe": ("moe", "E+T E+B"), "vocab": ("unembed", "V D")}),
    ),
    "parallel-mqa-layer-norm-padded": Case(
        model_of(Attention(N=7, K=1, H=8), Mlp(F=62, gated=True), parallel=True, norm="layer", V=50),
        (4, 2),
        ("DD", {"block": ("parallel-block", "N+M D+S"), "vocab": ("unembed", "V D")}),
        ("DB", {"block": ("parallel-block-gathered-kv", "N+M -+B"), "vocab": ("unembed", "V -")}),
        context=23,
    ),
    "window-dense-and-moe": Case(
        model_of(GQA, GATED, MIXED, MIXED_MOE),
        (2, 2),
        (
            "B-",
            {
                "attention0": ("attention", "-+B N+S"),
                "attention1": ("attention", "-+B N+S"),
                "mlp": ("mlp", "F F"),
                "moe": ("moe-scatter", "E F"),
                "vocab": ("unembed", "V V"),
            },
        ),
        (
            "TT",
            {
                "attention0": ("attention-gathered-kv", "D+T -+T"),
                "attention1": ("attention-ring", "-+T -+T"),
                "mlp": ("mlp", "-+T -+T"),
                "moe": ("moe", "E -+T"),
                "vocab": ("unembed", "V V"),
            },
        ),
    ),
}


def serve(case: Case, params: Mapping[str, Mapping[str, Any]], steps: int) -> tuple[list[Any], list[Any]]:
    """Tokens and logits of prompts in other places of the batch, then decoded one by one."""
    prefill, decode = case.engines()
    tokens, places = np.random.default_rng(0).integers(0, case.model.V, (B, T)), np.array([2, 0, 3, 1])
    token, logits, prompts = prefill.prefill(prefill.place(params), tokens, np.array(LENGTHS), logits=True)
    chosen, seen = [np.asarray(token)], [np.asarray(logits)]
    weights, cache = decode.place(params), decode.insert(decode.init_cache(), prompts, places)
    last, pos = np.zeros(B, int), np.zeros(B, int)
    last[places], pos[places] = chosen[0], LENGTHS
    for _ in range(steps - 1):
        token, logits, cache = decode.generate(weights, cache, last, pos, logits=True)
        last, pos = np.asarray(token), pos + 1
        chosen.append(last[places])
        seen.append(np.asarray(logits)[places])
    return chosen, seen


def reference(case: Case, params: Mapping[str, Mapping[str, Any]], chosen: list[Any]) -> np.ndarray[Any, Any]:
    """`[steps, B, V]`: the logits after each prompt, and after each of the chosen tokens behind it but the last."""
    tokens = np.pad(np.random.default_rng(0).integers(0, case.model.V, (B, T)), ((0, 0), (0, len(chosen))))
    for step, new in enumerate(chosen):
        tokens[np.arange(B), np.array(LENGTHS) + step] = new
    logits = jax.jit(lambda p, t: reference_logits(case.model, p, t))(params, jnp.asarray(tokens))
    return np.stack([np.asarray(logits)[np.arange(B), np.array(LENGTHS) - 1 + step] for step in range(len(chosen))])


QUICK = ("mha-batch",)
"""The cases of the default tests: heads, batch, vocabulary, and gathered keys."""


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if name in QUICK else pytest.mark.slow) for name in CASES]
)
def test_prompts_then_decoding_equal_the_reference(name: str) -> None:
    """Prompts of different lengths, then 4 tokens of each through the cache: logits within 1e-5, the best is taken."""
    case = CASES[name]
    params = random_params(case.model, jax.random.key(0))
    chosen, seen = serve(case, params, 5)
    for token, got, wanted in zip(chosen, seen, reference(case, params, chosen), strict=True):
        got = got[:, : case.model.V]
        np.testing.assert_allclose(got, wanted, rtol=TOLERANCE, atol=TOLERANCE * np.abs(wanted).max())
        assert token.tolist() == wanted.argmax(-1).tolist()


@pytest.mark.slow
def test_bf16_follows_the_reference_within_two_percent_of_the_logits() -> None:
    """Weights, cache and activations in bf16, against the same rounded weights in float32 arithmetic."""
    case = CASES["gqa-sequence-and-heads"]
    narrow = Case(case.model, case.sizes, case.decode, case.prefill, BF16)
    params = random_params(case.model, jax.random.key(0), jnp.bfloat16)
    chosen, seen = serve(narrow, params, 3)
    wanted = reference(case, params, chosen)
    assert np.abs(np.stack(seen).astype(np.float32) - wanted).mean() < 0.02 * np.abs(wanted).mean()


def test_the_cache_is_updated_in_place() -> None:
    """Every byte of the donated cache is aliased; the temporaries are scores and one layer's keys, not the cache."""
    case = CASES["mha-batch"]
    group = LayerGroup(count=16, attention=case.model.groups[0].attention, mlp=GATED)
    many = Model(name="m", D=32, V=48, tied=False, groups=(group,))
    work = workload("decode", 512)
    layout = layout_of_roles(many, work, case.sizes, *case.decode)
    decode = engine(layout, many, work, devices_of(case.sizes))
    memory = decode.lower().compile().memory_analysis()
    cache = sum(np.prod(s.shape) * 4 for tree in decode.caches.values() for s in tree.values()) / 4
    assert memory.alias_size_in_bytes == cache
    assert memory.temp_size_in_bytes < cache / 4


@pytest.mark.slow
@pytest.mark.parametrize("phase", ["decode", "prefill"])
def test_an_engine_stores_what_its_plan_says(phase: str) -> None:
    """Shapes, dtypes and PartitionSpecs of a searched plan; random weights and an empty cache run."""
    model = model_of(QWEN, MOE)
    plan = meshwright.plan(model, "v5e:2x2", phase=phase, batch=[8], context=16).plans[0]
    mesh = build_mesh(plan.mesh, parse_slice("v5e:2x2"), jax.devices()[:4])
    run = engine_of(load(plan), mesh)
    stored = {f"{c}/{n}": s for trees in (run.weights, run.caches) for c, t in trees.items() for n, s in t.items()}
    assert stored.keys() == plan.specs.keys()
    for name, one in stored.items():
        lead = () if name.startswith("vocab") else (2,)
        assert one.shape == (*lead, *plan.specs[name].shape)
        assert tuple(d.axes for d in one.type.dims) == plan.specs[name].axes
    if phase == "decode":
        params, cache = run.init_params(jax.random.key(0)), run.init_cache()
        token, none, _ = run.generate(params, cache, np.zeros(8), np.arange(8))
        assert (token.shape, none) == ((8,), None)


def test_zigzag_gives_every_shard_a_chunk_from_both_ends() -> None:
    """And leaves the order alone where the chunks would not be equal."""
    assert zigzag(8, 2).tolist() == [0, 1, 6, 7, 2, 3, 4, 5]
    assert zigzag(6, 2).tolist() == [0, 1, 2, 3, 4, 5]


def test_layouts_that_do_not_fit_are_refused() -> None:
    """A mesh without the axes, and dims that do not divide."""
    case = CASES["mha-batch"]
    work = workload("decode", 24)
    layout = layout_of_roles(case.model, work, case.sizes, *case.decode)
    with pytest.raises(InputError, match="the layout needs a"):
        engine(layout, case.model, work, Mesh(np.array(jax.devices()[:4]), ("Q",)))
    with pytest.raises(LayoutError, match="attention: B does not divide: B, cut 3 ways"):
        engine(layout, case.model, work, devices_of((3,)))


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("gqa-sequence-and-heads", "CollectivePermute"),
        pytest.param("qwen-2d-batch-tied", "AllGather", marks=pytest.mark.slow),
    ],
)
def test_a_prompts_keys_travel_in_the_caches_dtype(name: str, kind: str) -> None:
    """As priced: int8 goes round the ring, or is gathered, and comes back; nothing else is int8."""
    prefill, _ = replace(CASES[name], dtypes=changed(F32, kv="int8")).engines()
    found = [c for c in collectives(prefill.lower().compile().as_text()) if "s8" in {p.dtype for p in c.parts}]
    assert {c.kind for c in found} == {kind}
    assert {s.dtype for tree in prefill.caches.values() for s in tree.values()} == {jnp.dtype("int8")}
