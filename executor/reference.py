"""The whole model in plain `jax.numpy`, unsharded and without a cache: what every other way to run it must equal.

Small and obviously right rather than fast: whole score matrices, and every expert on every token. It shares no code
with the interpreter of layout programs. Arithmetic is in float32 or wider, whatever the parameters' dtype, so that
rounded weights are compared with their exact result.

Symbols are those of `strategies.models.models`. A parameter tree is {component: {tensor: array}}, components named as
in `strategies.components`; all but those of `vocab` are stacked over the layers that the component serves.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from mesh.errors import InputError
from strategies.models.models import Attention, LayerGroup, Mlp, Model

Tensors = Mapping[str, jax.Array]
Params = Mapping[str, Tensors]
Shapes = dict[str, dict[str, tuple[int, ...]]]

LOGIT_STD = 4.0
"""How far `random_params` spreads logits: softmax over them has clear winners, yet is no constant."""


def reference_logits(
    model: Model,
    params: Params,
    tokens: jax.Array,
    *,
    rope_theta: float = 10000.0,
    eps: float = 1e-5,
    positions: jax.Array | None = None,
) -> jax.Array:
    """Logits `[B, T, V]` of whole prompts `[B, T]` under full causal attention.

    `positions` `[B, T]`: where each token stands (default 0, 1, ...), distinct in a sequence; a token sees those
    at or before its own position. So padding at the end changes nothing before it. Give arrays on one device.
    Raises InputError where the tree does not fit the model or a layer has what is not written here.
    """
    _check(model, params)
    if positions is None:
        positions = jnp.broadcast_to(jnp.arange(tokens.shape[1]), tokens.shape)
    with jax.default_matmul_precision("highest"):
        logits: jax.Array = _forward(model, params, tokens, positions, rope_theta, eps)
    return logits


@partial(jax.jit, static_argnames=("model", "rope_theta", "eps"))
def _forward(
    model: Model, params: Params, tokens: jax.Array, positions: jax.Array, rope_theta: float, eps: float
) -> jax.Array:
    float32_params = jax.tree.map(lambda a: a.astype(jnp.promote_types(a.dtype, jnp.float32)), params)
    vocab = float32_params["vocab"]
    x = jnp.take(vocab["Em"], tokens, axis=0)  # [B, T, D]; NaN for a token beyond V
    for group, layer in _layers(model, float32_params):
        x = _layer(model, group, layer, x, positions, rope_theta, eps)
    x = _norm(model, x, vocab["norm"], eps)
    return jnp.einsum("btd,vd->btv", x, vocab.get("Um", vocab["Em"]))


def param_shapes(model: Model) -> Shapes:
    """Names and shapes of the parameter tree; raises InputError where a layer has what is not written here."""
    V, D = model.V, model.D
    shapes: Shapes = {"vocab": {"Em": (V, D), "norm": (D,)} | ({} if model.tied else {"Um": (V, D)})}
    layers = Counter[str]()
    for group, names in zip(model.groups, _names(model), strict=True):
        _check_supported(group)
        for kind, name in names.items():
            layers[name] += group.count
            shapes[name] = {t: (layers[name], *s) for t, s in _layer_shapes(kind, group, D).items()}
    return shapes


def random_params(model: Model, key: jax.Array, dtype: jax.typing.DTypeLike = jnp.float32) -> Params:
    """Random parameters, every one of which matters: activations of about 1, logits of about `LOGIT_STD`.

    Drawn in float32 and rounded to `dtype`, so that the same key gives the same model in every dtype.
    """
    rng = np.random.default_rng(np.asarray(jax.random.key_data(key)))  # no compilation for each shape
    params: dict[str, dict[str, jax.Array]] = {}
    for component, tensors in sorted(param_shapes(model).items()):
        params[component] = {}
        for tensor, shape in sorted(tensors.items()):
            drawn = rng.normal(*_distribution(model, tensor, shape), shape).astype(np.float32)
            params[component][tensor] = jnp.asarray(drawn.astype(jnp.dtype(dtype)))
    return params


def _distribution(model: Model, tensor: str, shape: tuple[int, ...]) -> tuple[float, float]:
    """Mean and standard deviation; a matrix keeps the size of what it multiplies, scores are spread a little."""
    if tensor in ("norm", "gq", "gk"):
        return 1.0, 0.25
    if tensor in ("bq", "bk", "bv"):
        return 0.0, 0.5
    if tensor == "Um" or (tensor == "Em" and model.tied):
        return 0.0, LOGIT_STD * model.D**-0.5
    if tensor == "Em":
        return 0.0, 1.0
    fan_in = shape[1] * shape[2] if tensor == "WO" else shape[-2] if tensor in ("Wi", "Wg", "Wo") else model.D
    return 0.0, (2.0 if tensor in ("WQ", "WR") else 1.0) * fan_in**-0.5


def _kinds(group: LayerGroup) -> tuple[str, ...]:
    if group.parallel:
        return ("block",)
    return ("attention", "moe" if group.mlp.moe else "mlp")


def _names(model: Model) -> list[dict[str, str]]:
    """For each layer group: kind -> component. Equal shapes share one; it is numbered where a kind has several."""
    first: dict[tuple[str, object], int] = {}
    for index, group in enumerate(model.groups):
        for kind in _kinds(group):
            first.setdefault((kind, _shape(group, kind)), index)
    many = Counter(kind for kind, _ in first)
    return [
        {kind: f"{kind}{first[kind, _shape(group, kind)]}" if many[kind] > 1 else kind for kind in _kinds(group)}
        for group in model.groups
    ]


def _shape(group: LayerGroup, kind: str) -> object:
    """Return the shape that two layer groups must have in common to share a component of that kind."""
    if kind == "attention":
        return group.attention
    return group if kind == "block" else group.mlp


def _layers(model: Model, params: Params) -> Iterator[tuple[LayerGroup, dict[str, dict[str, jax.Array]]]]:
    """Each layer in order: its group, and kind -> its own tensors."""
    used = Counter[str]()
    for group, names in zip(model.groups, _names(model), strict=True):
        for _ in range(group.count):
            yield group, {kind: {t: a[used[name]] for t, a in params[name].items()} for kind, name in names.items()}
            used.update(names.values())


def _layer_shapes(kind: str, group: LayerGroup, D: int) -> dict[str, tuple[int, ...]]:
    attention = _attention_shapes(group.attention, D) if kind in ("attention", "block") else {}
    mlp = _mlp_shapes(group.mlp, D) if kind != "attention" else {}
    return {"norm": (D,)} | attention | mlp


def _attention_shapes(attention: Attention, D: int) -> dict[str, tuple[int, ...]]:
    N, K, H = attention.N, attention.K, attention.H
    shapes: dict[str, tuple[int, ...]] = {"WQ": (D, N, H), "WK": (D, K, H), "WV": (D, K, H), "WO": (N, H, D)}
    if attention.qkv_bias:
        shapes |= {"bq": (N, H), "bk": (K, H), "bv": (K, H)}
    if attention.qk_norm:
        shapes |= {"gq": (H,), "gk": (H,)}
    return shapes


def _mlp_shapes(mlp: Mlp, D: int) -> dict[str, tuple[int, ...]]:
    experts = (mlp.E,) if mlp.moe else ()
    shapes = {"Wi": (*experts, D, mlp.F), "Wo": (*experts, mlp.F, D)}
    if mlp.gated:
        shapes["Wg"] = (*experts, D, mlp.F)
    return shapes | ({"WR": (D, mlp.E)} if mlp.moe else {})


def _check_supported(group: LayerGroup) -> None:
    attention, mlp = group.attention, group.mlp
    features = {
        "an output bias (o_bias)": attention.o_bias,
        "attention sinks": attention.sinks,
        "MLP biases": mlp.bias,
        "a parallel MoE block": group.parallel and mlp.moe,
        f"an odd head size (H={attention.H})": attention.H % 2 == 1,
    }
    unsupported = [name for name, has in features.items() if has]
    if unsupported:
        raise InputError(f"the reference model cannot run {', '.join(unsupported)}")


def _check(model: Model, params: Params) -> None:
    """A wrong shape could broadcast and a tensor too many be ignored: the tree must be exactly the model's."""
    expected = {(c, t): shape for c, tensors in param_shapes(model).items() for t, shape in tensors.items()}
    actual = {(c, t): tuple(a.shape) for c, tensors in params.items() for t, a in tensors.items()}
    for component, tensor in sorted(expected.keys() | actual.keys()):
        expected_shape = expected.get((component, tensor), "none")
        actual_shape = actual.get((component, tensor), "none")
        if expected_shape != actual_shape:
            raise InputError(f"parameter {component}/{tensor}: expected shape {expected_shape}, got {actual_shape}")


def _layer(
    model: Model,
    group: LayerGroup,
    layer: Mapping[str, Tensors],
    x: jax.Array,
    positions: jax.Array,
    rope_theta: float,
    eps: float,
) -> jax.Array:
    """One layer added to the residual stream `x` `[B, T, D]`."""
    if group.parallel:
        p = layer["block"]
        n = _norm(model, x, p["norm"], eps)
        return x + _attention(group.attention, p, n, positions, rope_theta, eps) + _mlp(group.mlp, p, n)
    p = layer["attention"]
    x = x + _attention(group.attention, p, _norm(model, x, p["norm"], eps), positions, rope_theta, eps)
    p, feed_forward = (layer["moe"], _moe) if group.mlp.moe else (layer["mlp"], _mlp)
    return x + feed_forward(group.mlp, p, _norm(model, x, p["norm"], eps))


def _norm(model: Model, x: jax.Array, scale: jax.Array, eps: float) -> jax.Array:
    """RMS norm, or layer norm without a bias: that of x less its mean."""
    if model.norm == "layer":
        x = x - jnp.mean(x, axis=-1, keepdims=True)
    return _rms_norm(x, scale, eps)


def _rms_norm(x: jax.Array, scale: jax.Array, eps: float) -> jax.Array:
    return scale * x / jnp.sqrt(jnp.mean(x**2, axis=-1, keepdims=True) + eps)


def _attention(
    attention: Attention, p: Tensors, n: jax.Array, positions: jax.Array, rope_theta: float, eps: float
) -> jax.Array:
    """Causal grouped-query attention; query head k*M + m reads KV head k."""
    q = jnp.einsum("btd,dnh->btnh", n, p["WQ"])
    k = jnp.einsum("btd,dkh->btkh", n, p["WK"])
    v = jnp.einsum("btd,dkh->btkh", n, p["WV"])
    if attention.qkv_bias:
        q, k, v = q + p["bq"], k + p["bk"], v + p["bv"]
    if attention.qk_norm:
        q, k = _rms_norm(q, p["gq"], eps), _rms_norm(k, p["gk"], eps)
    q, k = _rope(q, positions, rope_theta), _rope(k, positions, rope_theta)
    k, v = jnp.repeat(k, attention.M, axis=2), jnp.repeat(v, attention.M, axis=2)  # [B, S, N, H]
    scores = jnp.einsum("btnh,bsnh->bnts", q, k) / jnp.sqrt(attention.H)
    scores = jnp.where(_visible(positions, attention.window)[:, None], scores, -jnp.inf)
    o = jnp.einsum("bnts,bsnh->btnh", jax.nn.softmax(scores, axis=-1), v)
    return jnp.einsum("btnh,nhd->btd", o, p["WO"])


def _visible(positions: jax.Array, window: int | None) -> jax.Array:
    """Return whether query t sees key s, `[B, T, S]`: not later, and among the last `window`, itself included."""
    age = positions[:, :, None] - positions[:, None, :]
    return (age >= 0) & (True if window is None else age < window)


def _rope(x: jax.Array, positions: jax.Array, theta: float) -> jax.Array:
    """Turns the pairs (i, i + H/2) of `x` `[B, T, heads, H]` by position * theta^(-2i/H)."""
    half = x.shape[-1] // 2
    angles = positions[:, :, None, None] * theta ** (-jnp.arange(half, dtype=x.dtype) / half)  # [B, T, 1, H/2]
    cos, sin = jnp.cos(angles), jnp.sin(angles)
    left, right = x[..., :half], x[..., half:]
    return jnp.concatenate([left * cos - right * sin, right * cos + left * sin], axis=-1)


def _mlp(mlp: Mlp, p: Tensors, n: jax.Array) -> jax.Array:
    """silu(n Wg) * (n Wi), or gelu(n Wi) without a gate, times Wo."""
    h = n @ p["Wi"]
    a = jax.nn.silu(n @ p["Wg"]) * h if mlp.gated else jax.nn.gelu(h, approximate=True)
    return a @ p["Wo"]


def _moe(mlp: Mlp, p: Tensors, n: jax.Array) -> jax.Array:
    """Every expert on every token, weighted by the router: k of E weights are not 0, and they add up to 1."""
    weights, experts = jax.lax.top_k(jax.nn.softmax(n @ p["WR"], axis=-1), mlp.k)  # [B, T, k]
    weights = weights / jnp.sum(weights, axis=-1, keepdims=True)
    gates = jnp.sum(weights[..., None] * jax.nn.one_hot(experts, mlp.E, dtype=n.dtype), axis=-2)  # [B, T, E]
    matrices = {name: p[name] for name in ("Wi", "Wg", "Wo") if name in p}
    outputs = jax.vmap(lambda expert_weights: _mlp(mlp, expert_weights, n))(matrices)  # [E, B, T, D]
    return jnp.einsum("bte,ebtd->btd", gates, outputs)
