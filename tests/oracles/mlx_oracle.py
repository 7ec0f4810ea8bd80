"""An independent implementation to compare with: mlx-lm on CPU, given our parameters under its names.

Needs the extra `oracle`. A layer is told by its components, so that nothing here relies on how ours walks them.
"""

from __future__ import annotations

import importlib
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import mlx.core as mx
import numpy as np
from mlx_lm.models.cache import make_prompt_cache

Tensors = dict[str, np.ndarray]
Params = Mapping[str, Mapping[str, Any]]
Layers = Sequence[Sequence[str]]


class Oracle:
    """An mlx-lm model of a Hugging Face config with our parameters; `layers`: the components of each layer."""

    def __init__(self, config: Mapping[str, Any], params: Params, layers: Layers) -> None:
        self.kind = config["model_type"]
        module = importlib.import_module(f"mlx_lm.models.{self.kind}")
        with mx.stream(mx.cpu):
            self.model = module.Model(module.ModelArgs.from_dict(dict(config)))
            weights = gptj(params, layers) if self.kind == "gptj" else hugging_face(self.kind, params, layers)
            # strict: every parameter that mlx-lm has is given, and none that it has not
            self.model.load_weights([(name, mx.array(a)) for name, a in weights.items()], strict=True)

    def logits(self, tokens: np.ndarray) -> np.ndarray:
        """Logits [B, T, V] of whole prompts."""
        with mx.stream(mx.cpu):
            return np.array(self.model(mx.array(tokens)))

    def decode(self, tokens: np.ndarray, steps: int) -> tuple[np.ndarray, np.ndarray]:
        """The greedy continuation through mlx-lm's own cache: new tokens [B, steps], their logits [B, steps, V]."""
        with mx.stream(mx.cpu):
            cache, chosen, seen = make_prompt_cache(self.model), [], []
            now = mx.array(tokens)
            for _ in range(steps):
                seen.append(np.array(self.model(now, cache=cache))[:, -1])
                chosen.append(seen[-1].argmax(axis=-1))
                now = mx.array(chosen[-1][:, None].astype(tokens.dtype))
        return np.stack(chosen, axis=1), np.stack(seen, axis=1)


def hugging_face(kind: str, params: Params, layers: Layers) -> Tensors:
    """Names and row-major `[out, in]` matrices as Llama and its descendants have them."""
    weights = {
        "model.embed_tokens.weight": np.asarray(params["vocab"]["Em"]),
        "model.norm.weight": np.asarray(params["vocab"]["norm"]),
    }
    if "Um" in params["vocab"]:
        weights["lm_head.weight"] = np.asarray(params["vocab"]["Um"])
    for number, layer in enumerate(each_layer(params, layers)):
        for component, p in layer:
            for name, array in component_weights(kind, component, p).items():
                weights[f"model.layers.{number}.{name}"] = array
    return weights


def each_layer(params: Params, layers: Layers) -> list[list[tuple[str, Tensors]]]:
    """The tensors of each layer's components: a component's next entry each time that it is named."""
    used = Counter[str]()
    result = []
    for names in layers:
        result.append([(n, {t: np.asarray(a[used[n]]) for t, a in params[n].items()}) for n in names])
        used.update(names)
    assert all(len(a) == used[n] for n in used for a in params[n].values())
    return result


def component_weights(kind: str, component: str, p: Tensors) -> Tensors:
    """One component of one layer, names below the layer's."""
    if component.startswith("attention"):
        return {"input_layernorm.weight": p["norm"]} | attention(kind, p)
    if component == "block":
        return {"input_layernorm.weight": p["norm"]} | attention(kind, interleaved(p)) | mlp(kind, p)
    return {"post_attention_layernorm.weight": p["norm"]} | (moe(kind, p) if component == "moe" else mlp(kind, p))


def rows(matrix: np.ndarray, ins: int = 1) -> np.ndarray:
    """A matrix as [out, in], whose first `ins` dims are the input's."""
    return matrix.reshape(int(np.prod(matrix.shape[:ins])), -1).T


def attention(kind: str, p: Tensors) -> Tensors:
    """The projections, heads and head dim as one, with what biases and norms there are."""
    inputs = {f"self_attn.{x}_proj.weight": rows(p[w]) for x, w in (("q", "WQ"), ("k", "WK"), ("v", "WV"))}
    if kind == "phi3":
        inputs = {"self_attn.qkv_proj.weight": np.concatenate(list(inputs.values()))}
    biases = {f"self_attn.{x}_proj.bias": p[f"b{x}"].reshape(-1) for x in "qkv" if f"b{x}" in p}
    norms = {f"self_attn.{x}_norm.weight": p[f"g{x}"] for x in "qk" if f"g{x}" in p}
    return inputs | biases | norms | {"self_attn.o_proj.weight": rows(p["WO"], 2)}


def interleaved(p: Tensors) -> Tensors:
    """The same layer for rope on pairs (2i, 2i + 1) in place of (i, i + H/2): q and k have H in that order."""

    def reordered(w: np.ndarray) -> np.ndarray:
        return np.stack(np.split(w, 2, axis=-1), axis=-1).reshape(w.shape)

    return p | {"WQ": reordered(p["WQ"]), "WK": reordered(p["WK"])}


def mlp(kind: str, p: Tensors) -> Tensors:
    """A dense gated MLP."""
    gate, up = rows(p["Wg"]), rows(p["Wi"])
    ins = {"mlp.gate_proj.weight": gate, "mlp.up_proj.weight": up}
    if kind == "phi3":
        ins = {"mlp.gate_up_proj.weight": np.concatenate([gate, up])}
    return ins | {"mlp.down_proj.weight": rows(p["Wo"])}


def moe(kind: str, p: Tensors) -> Tensors:
    """Router and experts, each expert's matrices as [out, in]."""
    at = "block_sparse_moe" if kind == "mixtral" else "mlp"
    experts = (("gate", "Wg"), ("up", "Wi"), ("down", "Wo"))
    matrices = {f"{at}.switch_mlp.{x}_proj.weight": p[w].swapaxes(1, 2) for x, w in experts}
    return matrices | {f"{at}.gate.weight": rows(p["WR"])}


def gptj(params: Params, layers: Layers) -> Tensors:
    """GPT-J: a parallel block with a plain MLP; the biases that it has and ours has not are zero."""
    vocab = {name: np.asarray(a) for name, a in params["vocab"].items()}
    weights = {"model.wte.weight": vocab["Em"], "lm_head.weight": vocab["Um"]}
    weights |= {"lm_head.bias": np.zeros(len(vocab["Um"]), np.float32)}
    weights |= layer_norm("model.ln_f", vocab["norm"])
    for number, ((_, p),) in enumerate(each_layer(params, layers)):
        at, turned = f"model.h.{number}", interleaved(p)
        weights |= layer_norm(f"{at}.ln_1", p["norm"])
        weights |= {f"{at}.attn.{x.lower()}_proj.weight": rows(turned[f"W{x}"]) for x in "QKV"}
        weights |= {f"{at}.attn.out_proj.weight": rows(p["WO"], 2)}
        for name, matrix in (("in", rows(p["Wi"])), ("out", rows(p["Wo"]))):
            weights[f"{at}.mlp.fc_{name}.weight"] = matrix
            weights[f"{at}.mlp.fc_{name}.bias"] = np.zeros(len(matrix), np.float32)
    return weights


def layer_norm(name: str, scale: np.ndarray) -> Tensors:
    """A layer norm without a bias, for a class that has one."""
    return {f"{name}.weight": scale, f"{name}.bias": np.zeros_like(scale)}
