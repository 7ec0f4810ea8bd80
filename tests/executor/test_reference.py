"""The unsharded reference: equal to mlx-lm, and by itself as a causal Transformer must be."""

from __future__ import annotations

import ast
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

import jax
import jax.numpy as jnp
import msgspec
import numpy as np
import pytest
from oracles.greedy import reference_decode

from executor import reference
from executor.reference import LOGIT_STD, Params, param_shapes, random_params, reference_logits
from mesh.errors import InputError
from strategies.components import components
from strategies.models.configs import builtin_names, load_model, parse_config
from strategies.models.models import Attention, LayerGroup, Mlp, Model
from strategies.models.workload import Dtypes, Workload

TOLERANCE = 1e-5
"""Largest difference of two logits in float32, as a part of the logits' standard deviation."""

STEPS = 16

BASE = {
    "hidden_size": 32,
    "num_hidden_layers": 3,
    "intermediate_size": 48,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 61,
    "max_position_embeddings": 64,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "tie_word_embeddings": False,
}
SPARSE = {
    "head_dim": 16,
    "moe_intermediate_size": 24,
    "num_experts": 8,
    "num_experts_per_tok": 3,
    "decoder_sparse_step": 1,
    "mlp_only_layers": [],
    "norm_topk_prob": True,
}


@dataclass(frozen=True)
class Case:
    """A model for mlx-lm (`config`, told from `BASE`) and for us, read from the same config unless given."""

    config: Mapping[str, Any]
    layers: tuple[tuple[str, ...], ...] = (("attention", "mlp"),) * 3
    given: Model | None = None
    options: Mapping[str, float] = field(default_factory=dict)

    @property
    def hugging_face(self) -> dict[str, Any]:
        """The whole config."""
        return {**BASE, **self.config}

    @property
    def model(self) -> Model:
        """The same in our terms."""
        return self.given or parse_config(self.hugging_face, "tiny")


def _model(*groups: LayerGroup, **options: Any) -> Model:
    return Model(**{"name": "tiny", "D": 32, "V": 61, "tied": False, **options, "groups": groups})


def _group(count: int = 2, *, N: int = 4, K: int = 2, mlp: Mlp | None = None, **options: Any) -> LayerGroup:
    parallel = options.pop("parallel", False)
    attention = Attention(N=N, K=K, H=8, **options)
    return LayerGroup(count=count, attention=attention, mlp=mlp or Mlp(F=48, gated=True), parallel=parallel)


MOE = Mlp(F=24, gated=True, E=8, k=3)
BLOCKS = (("block",),) * 3
CASES = {
    "llama": Case({"model_type": "llama", "head_dim": 16}),
    "llama-multi-head": Case({"model_type": "llama", "num_key_value_heads": 4}),
    "llama-multi-query-tied": Case({"model_type": "llama", "num_key_value_heads": 1, "tie_word_embeddings": True}),
    "llama-windows": Case(
        {
            "model_type": "llama",
            "sliding_window": 6,
            "layer_types": ["sliding_attention", "sliding_attention", "full_attention"],
        },
        layers=(("attention0", "mlp"), ("attention0", "mlp"), ("attention1", "mlp")),
        given=_model(_group(2, window=6), _group(1)),
    ),
    "qwen2": Case({"model_type": "qwen2"}),
    "qwen3": Case(
        {"model_type": "qwen3", "head_dim": 16, "rms_norm_eps": 1e-6, "rope_theta": 1e6},
        options={"rope_theta": 1e6, "eps": 1e-6},
    ),
    "phi3": Case({"model_type": "phi3"}),
    "mixtral": Case(
        {"model_type": "mixtral", "num_local_experts": 8, "num_experts_per_tok": 2, "sliding_window": None},
        layers=(("attention", "moe"),) * 3,
    ),
    "qwen3_moe": Case({"model_type": "qwen3_moe", **SPARSE}, layers=(("attention", "moe"),) * 3),
    "qwen3_moe-first-dense": Case(
        {"model_type": "qwen3_moe", **SPARSE, "mlp_only_layers": [0]},
        layers=(("attention", "mlp"), ("attention", "moe"), ("attention", "moe")),
    ),
    "cohere": Case(  # a gated parallel block with layer norm, as PaLM's
        {"model_type": "cohere", "logit_scale": 1.0, "layer_norm_eps": 1e-5, "num_key_value_heads": 1},
        layers=BLOCKS,
        given=_model(_group(3, K=1, parallel=True), norm="layer", tied=True),
    ),
    "gptj": Case(
        {"model_type": "gptj", "n_embd": 32, "n_head": 4, "rotary_dim": 8, "n_layer": 3},
        layers=BLOCKS,
        given=_model(_group(3, K=4, mlp=Mlp(F=128, gated=False), parallel=True), norm="layer"),
    ),
}
ALONE = {
    "dense": _model(_group(qkv_bias=True, qk_norm=True)),
    "plain": _model(_group(mlp=Mlp(F=48, gated=False))),
    "moe": _model(_group(mlp=MOE)),
    "block": _model(_group(parallel=True), norm="layer", tied=True),
    "mixed": _model(_group(1), _group(2, mlp=MOE), _group(1, window=4)),
}


QUICK = ("llama", "llama-windows", "qwen3", "mixtral", "cohere")
"""Of the models beside mlx-lm's those of the default tests: a Llama, windows, norms of heads, experts, a block."""


def some(names: Iterable[str], *quick: str) -> list[Any]:
    """All names as cases, slow but for these."""
    return [pytest.param(name, marks=[] if name in quick else pytest.mark.slow) for name in names]


@pytest.fixture(scope="session")
def oracle() -> ModuleType:
    """The helper module tests/oracles/mlx_oracle.py; skips where mlx-lm is not installed."""
    why = 'needs mlx-lm as an independent implementation: pip install "meshwright[oracle]"'
    for name in ("mlx.core", "mlx_lm"):
        pytest.importorskip(name, reason=why, exc_type=ImportError)
    from oracles import mlx_oracle

    return mlx_oracle


def _key(seed: int = 0) -> jax.Array:
    return jax.random.key(seed)


def _tokens(model: Model, B: int = 2, T: int = 12, seed: int = 1) -> jax.Array:
    return jnp.asarray(np.random.default_rng(seed).integers(0, model.V, (B, T)), jnp.int32)


def _difference(ours: jax.Array | np.ndarray, theirs: jax.Array | np.ndarray) -> float:
    """Largest difference, as a part of the standard deviation of `theirs`."""
    return float(np.abs(np.asarray(ours) - np.asarray(theirs)).max() / np.asarray(theirs).std())


@pytest.mark.parametrize("name", some(CASES, *QUICK))
def test_logits_equal_those_of_mlx(name: str, oracle: ModuleType) -> None:
    """The same random weights and prompt give the same logits in an implementation that is not ours."""
    case, model = CASES[name], CASES[name].model
    params, tokens = random_params(model, _key()), _tokens(model, T=12 + STEPS)
    theirs = oracle.Oracle(case.hugging_face, params, case.layers).logits(np.asarray(tokens))
    ours = reference_logits(model, params, tokens, **case.options)
    assert _difference(ours, theirs) < TOLERANCE


@pytest.mark.parametrize("name", some(CASES, *QUICK))
def test_decoding_equals_mlx_with_its_cache(name: str, oracle: ModuleType) -> None:
    """Recomputing everything for each token gives what mlx-lm's caches give, rotating ones of windows included."""
    case, model = CASES[name], CASES[name].model
    params, tokens = random_params(model, _key(2)), _tokens(model, seed=3)
    chosen, logits = oracle.Oracle(case.hugging_face, params, case.layers).decode(np.asarray(tokens), STEPS)
    ours, our_logits = reference_decode(model, params, tokens, STEPS, **case.options)
    np.testing.assert_array_equal(ours, chosen)
    assert _difference(our_logits, logits) < TOLERANCE


@pytest.mark.parametrize("name", some(ALONE, "mixed"))
def test_every_parameter_matters(name: str) -> None:
    """Changing one layer of any tensor changes the logits: nothing is ignored, no layer is skipped or run twice."""
    model = ALONE[name]
    params, tokens = random_params(model, _key()), _tokens(model)
    before = reference_logits(model, params, tokens)
    for component, tensors in params.items():
        for tensor, array in tensors.items():
            for layer in range(1 if component == "vocab" else len(array)):
                at = ... if component == "vocab" else layer
                changed = np.array(array)
                changed[at] += np.random.default_rng(layer).normal(0, 0.5, changed[at].shape)
                after = reference_logits(model, _with(params, component, tensor, jnp.asarray(changed)), tokens)
                assert _difference(after, before) > 1e-3, (component, tensor, layer)


def _with(params: Params, component: str, tensor: str, array: jax.Array) -> Params:
    return {**params, component: {**params[component], tensor: array}}


@pytest.mark.parametrize("name", some(ALONE, "dense", "mixed"))
def test_later_tokens_change_nothing(name: str) -> None:
    """Causality: the logits before a changed token stay, those from it on change."""
    model = ALONE[name]
    params, tokens = random_params(model, _key()), _tokens(model)
    before = reference_logits(model, params, tokens)
    after = reference_logits(model, params, tokens.at[:, 7].set((tokens[:, 7] + 1) % model.V))
    assert _difference(after[:, :7], before[:, :7]) < 1e-6
    assert _difference(after[:, 7:], before[:, 7:]) > 1e-2


@pytest.mark.parametrize("name", some(ALONE, "dense", "mixed"))
def test_only_relative_positions_count(name: str) -> None:
    """All positions 100 later, or the tokens stored in another order with their positions: the same logits."""
    model = ALONE[name]
    params, tokens = random_params(model, _key()), _tokens(model)
    positions = jnp.broadcast_to(jnp.arange(12), tokens.shape)
    before = reference_logits(model, params, tokens)
    assert _difference(reference_logits(model, params, tokens, positions=positions + 100), before) < TOLERANCE
    order = np.random.default_rng(4).permutation(12)
    stored = reference_logits(model, params, tokens[:, order], positions=positions[:, order])
    assert _difference(stored, before[:, order]) < TOLERANCE


def test_a_window_sees_its_last_tokens() -> None:
    """With one layer and a window of 4, the last of 12 logits depend on the last 4 tokens and on no others."""
    model = _model(_group(1, window=4))
    params, tokens = random_params(model, _key()), _tokens(model)
    before = reference_logits(model, params, tokens)[:, -1]
    for changed, matters in ((7, False), (8, True)):
        after = reference_logits(model, params, tokens.at[:, changed].set((tokens[:, changed] + 1) % model.V))
        assert (_difference(after[:, -1], before) > 1e-3) is matters, changed


def test_a_window_as_long_as_the_prompt_is_none() -> None:
    """A window of all tokens masks nothing."""
    wide, without = _model(_group(window=12)), _model(_group())
    params, tokens = random_params(wide, _key()), _tokens(wide)
    assert _difference(reference_logits(wide, params, tokens), reference_logits(without, params, tokens)) == 0


@pytest.mark.parametrize("gated", [True, False])
def test_equal_experts_are_a_dense_mlp(gated: bool) -> None:
    """Router weights add up to 1, so that equal experts give what one gives, whichever are chosen."""
    dense, sparse = (_model(_group(mlp=Mlp(F=48, gated=gated, E=E, k=k))) for E, k in ((1, 1), (4, 2)))
    params, tokens = random_params(sparse, _key()), _tokens(sparse)
    one = {t: a if t == "norm" else a[:, 0] for t, a in params["moe"].items() if t != "WR"}
    every = {t: a if t in ("norm", "WR") else jnp.repeat(a[:, :1], 4, axis=1) for t, a in params["moe"].items()}
    expected = reference_logits(dense, {**{c: p for c, p in params.items() if c != "moe"}, "mlp": one}, tokens)
    assert _difference(reference_logits(sparse, {**params, "moe": every}, tokens), expected) < TOLERANCE


def test_query_heads_of_a_kv_head_are_neighbours() -> None:
    """Head order k*M + m: equal to a model with a KV head per query head, each repeated M times."""
    grouped, full = _model(_group(K=2)), _model(_group(K=4))
    params, tokens = random_params(grouped, _key()), _tokens(grouped)
    repeated = {t: jnp.repeat(a, 2, axis=2) if t in ("WK", "WV") else a for t, a in params["attention"].items()}
    expected = reference_logits(full, {**params, "attention": repeated}, tokens)
    assert _difference(reference_logits(grouped, params, tokens), expected) < TOLERANCE


def test_groups_run_one_after_the_other() -> None:
    """Two groups of a shape are one group of all their layers; `mixed` shares attention of groups 0 and 1."""
    params = random_params(ALONE["dense"], _key())
    half = _group(1, qkv_bias=True, qk_norm=True)
    tokens = _tokens(ALONE["dense"])
    parts = reference_logits(_model(half, half), params, tokens)
    assert _difference(parts, reference_logits(ALONE["dense"], params, tokens)) == 0
    assert {name: len(p["norm"]) for name, p in random_params(ALONE["mixed"], _key()).items() if name != "vocab"} == {
        "attention0": 3,
        "attention2": 1,
        "mlp": 2,
        "moe": 2,
    }


@pytest.mark.slow
@pytest.mark.parametrize("name", ALONE)
def test_decoding_prompts_of_different_length_equals_each_alone(name: str) -> None:
    """What stands behind a prompt in a batch of longer ones changes nothing."""
    model = ALONE[name]
    params, tokens = random_params(model, _key()), _tokens(model)
    chosen, logits = reference_decode(model, params, tokens, 4, lengths=jnp.array([5, 12]))
    for row, alone in ((0, tokens[:1, :5]), (1, tokens)):
        expected, expected_logits = reference_decode(model, params, alone, 4)
        np.testing.assert_array_equal(chosen[row], expected[row])
        assert _difference(logits[row], expected_logits[row]) < TOLERANCE


def test_kv_heads_repeated_in_the_cache_change_nothing() -> None:
    """`cache_heads` says how a cache is kept; the reference has none."""
    params, tokens = random_params(_model(_group()), _key()), _tokens(_model(_group()))
    more = reference_logits(_model(_group(cache_heads=4)), params, tokens)
    assert _difference(more, reference_logits(_model(_group()), params, tokens)) == 0


def test_components_are_named_as_the_plan_names_them() -> None:
    """The tree has the components that layouts are chosen for, each with as many layers."""
    for model in (*ALONE.values(), *(load_model(name) for name in RUNNABLE)):
        shapes = param_shapes(model)
        for phase in ("decode", "prefill"):
            planned = components(model, Workload(phase=phase, batches=(1,), context=128, dtypes=Dtypes()))
            assert {c.name for c in planned} == set(shapes)
            assert all(shapes[c.name]["norm"][0] == c.times for c in planned if c.name != "vocab")


RUNNABLE = tuple(name for name in builtin_names() if not name.startswith("gpt-oss"))


@pytest.mark.parametrize("name", RUNNABLE)
def test_the_tree_holds_exactly_the_models_parameters(name: str) -> None:
    """Its elements add up to the parameter count of the built-in models."""
    model = load_model(name)
    sizes = [math.prod(shape) for tensors in param_shapes(model).values() for shape in tensors.values()]
    assert sum(sizes) == model.params


@pytest.mark.parametrize("name", some([*ALONE, *CASES], *ALONE))
def test_random_logits_are_well_spread(name: str) -> None:
    """Their standard deviation is about `LOGIT_STD`."""
    model = ALONE[name] if name in ALONE else CASES[name].model
    tokens = _tokens(model, T=12 if name in ALONE else 12 + STEPS)
    assert LOGIT_STD / 2 < reference_logits(model, random_params(model, _key()), tokens).std() < LOGIT_STD * 2


@pytest.mark.parametrize("name", some(ALONE, "dense"))
def test_rounded_parameters_run_in_float32(name: str) -> None:
    """A key gives the same model in every dtype, and bfloat16 weights their exact result."""
    model = ALONE[name]
    params = random_params(model, _key(), jnp.bfloat16)
    rounded = jax.tree.map(lambda a: np.asarray(a).astype(jnp.bfloat16), random_params(model, _key()))
    assert jax.tree.all(jax.tree.map(lambda a, b: bool((np.asarray(a) == b).all()), params, rounded))
    widened = jax.tree.map(lambda a: jnp.asarray(a.astype(np.float32)), rounded)
    logits = reference_logits(model, params, _tokens(model))
    assert logits.dtype == jnp.float32
    assert _difference(logits, reference_logits(model, widened, _tokens(model))) < TOLERANCE


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"WK": jnp.zeros((2, 32, 1, 8))}, r"attention/WK: expected shape \(2, 32, 2, 8\), got \(2, 32, 1, 8\)"),
        ({"bq": jnp.zeros((2, 4, 8))}, r"attention/bq: expected shape none, got \(2, 4, 8\)"),
        ({"WQ": None}, r"attention/WQ: expected shape \(2, 32, 4, 8\), got none"),
    ],
)
def test_a_tree_that_does_not_fit_is_refused(change: dict[str, jax.Array | None], told: str) -> None:
    """A wrong shape is not broadcast, and no tensor is ignored."""
    model = _model(_group())
    params = random_params(model, _key())
    attention = {t: a for t, a in {**params["attention"], **change}.items() if a is not None}
    with pytest.raises(InputError, match=told):
        reference_logits(model, {**params, "attention": attention}, _tokens(model))


def test_what_the_reference_cannot_run_is_named() -> None:
    """gpt-oss has three things that no layout program says; a parallel MoE block and an odd H are told, too."""
    with pytest.raises(InputError, match=r"an output bias \(o_bias\), attention sinks, MLP biases$"):
        param_shapes(load_model("gpt-oss-20b"))
    odd = msgspec.structs.replace(_group(mlp=MOE, parallel=True), attention=Attention(N=4, K=2, H=7))
    with pytest.raises(InputError, match=r"a parallel MoE block, an odd head size \(H=7\)$"):
        random_params(_model(odd), _key())


def test_the_reference_shares_no_code_with_what_it_judges() -> None:
    """It imports jax and numpy, the model's shape and the error class, and nothing else of ours."""
    tree = ast.parse(Path(reference.__file__).read_text(encoding="utf-8"))
    modules = {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    modules |= {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    standard = {"__future__", "collections", "collections.abc", "functools"}
    assert modules - standard == {"jax", "jax.numpy", "numpy", "mesh.errors", "strategies.models.models"}
