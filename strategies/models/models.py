"""The shape of a Transformer: what its layers are made of, how many parameters they hold and what they cache.

Symbols (all are counts): D model width, F MLP width, V vocabulary, L layers, N query heads, K KV heads,
H head dim, E experts, k experts per token. A model is a list of layer groups, each `count` equal layers; the
order of the layers changes neither cost nor memory, so interleaved kinds are grouped.
"""

import hashlib
import sys
from typing import Literal

import msgspec

from mesh.errors import InputError

LARGEST_SIZE = 1_000_000_000
"""No dimension of a model may be larger: a typing error, and 64-bit products would overflow."""

LARGEST_PARAMS = 10**15
"""No model may have more parameters than this."""


def _check_size(owner: str, field: str, value: object) -> None:
    if type(value) is not int or not 1 <= value <= LARGEST_SIZE:
        raise InputError(f"{owner}: {field}={value!r}: expected a whole number from 1 to {LARGEST_SIZE}")


def _canonical(value: object) -> bytes:
    return msgspec.json.encode(value, order="sorted")


class Attention(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """Grouped-query attention: q is `[D, N, H]`, k and v `[D, K, H]`, o `[N, H, D]`.

    `window`: tokens that one layer sees (sliding window), None for all. `qk_norm`: a norm over H on q and k.
    `sinks`: one learned softmax sink per query head. `cache_heads`: KV heads kept in the cache where that is
    not K (see `with_kv_heads`); the weights stay those of K. Raises InputError on sizes that do not fit.

    >>> Attention(N=64, K=8, H=128).params(8192)  # 2*8192*128*(64+8)
    150994944
    """

    N: int
    K: int
    H: int
    window: int | None = None
    qk_norm: bool = False
    qkv_bias: bool = False
    o_bias: bool = False
    sinks: bool = False
    cache_heads: int | None = None

    def __post_init__(self) -> None:
        for field in ("N", "K", "H", "window", "cache_heads"):
            value = getattr(self, field)
            if value is not None or field in "NKH":
                _check_size("attention", field, value)
        for field, heads in (("K", self.K), ("cache_heads", self.cache_heads)):
            if heads is not None and self.N % heads:
                raise InputError(
                    f"attention: N={self.N} query heads cannot share {field}={heads} KV heads: "
                    f"expected a divisor of {self.N}"
                )

    @property
    def M(self) -> int:
        """Query heads per KV head, N/K."""
        return self.N // self.K

    @property
    def cached_K(self) -> int:
        """KV heads in the cache: K, unless `cache_heads` says otherwise."""
        return self.K if self.cache_heads is None else self.cache_heads

    def matrix_params(self, D: int) -> int:
        """Elements of the four projections: 2DH(N + K)."""
        return 2 * D * self.H * (self.N + self.K)

    def params(self, D: int) -> int:
        """All parameters: projections, biases, q and k norm, sinks."""
        biases = self.qkv_bias * (self.N + 2 * self.K) * self.H + self.o_bias * D
        return self.matrix_params(D) + biases + self.qk_norm * 2 * self.H + self.sinks * self.N

    def kv_elements(self, context: int) -> int:
        """Elements of K and V of one layer and one sequence of `context` tokens: 2KH min(context, window)."""
        tokens = context if self.window is None else min(context, self.window)
        return 2 * self.cached_K * self.H * tokens


class Mlp(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """A feed-forward block: in `[D, F]` (two if gated), out `[F, D]`; or E such experts, router `[D, E]`.

    `k`: experts that each token uses. `bias`: every matrix has a bias, the router's too. Raises InputError on
    sizes that do not fit.

    >>> Mlp(F=28672, gated=True).params(8192)  # 3*8192*28672
    704643072
    """

    F: int
    gated: bool
    E: int = 1
    k: int = 1
    bias: bool = False

    def __post_init__(self) -> None:
        for field in ("F", "E", "k"):
            _check_size("mlp", field, getattr(self, field))
        if self.k > self.E:
            raise InputError(f"mlp: k={self.k} experts per token: expected 1 to E={self.E}")

    @property
    def moe(self) -> bool:
        """Return whether tokens are routed to experts (E > 1)."""
        return self.E > 1

    @property
    def ins(self) -> int:
        """Input matrices `[D, F]` per expert: 2 if gated, else 1."""
        return 2 if self.gated else 1

    def matrix_params(self, D: int, *, experts: int | None = None) -> int:
        """Elements of the matrices of `experts` experts (default all E) and of the router, if any."""
        experts = self.E if experts is None else experts
        return experts * (self.ins + 1) * D * self.F + self.moe * D * self.E

    def params(self, D: int, *, experts: int | None = None) -> int:
        """All parameters of `experts` experts (default all E): matrices, router, biases."""
        held = self.E if experts is None else experts
        biases = held * (self.ins * self.F + D) + self.moe * self.E
        return self.matrix_params(D, experts=held) + self.bias * biases


class LayerGroup(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """`count` equal layers. `parallel`: attention and MLP share one norm and are added together (PaLM)."""

    count: int
    attention: Attention
    mlp: Mlp
    parallel: bool = False

    def __post_init__(self) -> None:
        _check_size("layer group", "count", self.count)

    def layer_params(self, D: int, *, experts: int | None = None) -> int:
        """Parameters of one layer, norms included, with `experts` experts of its MLP (default all)."""
        norms = D if self.parallel else 2 * D
        return self.attention.params(D) + self.mlp.params(D, experts=experts) + norms

    def layer_matmul_params(self, D: int) -> int:
        """Matrix elements that one token multiplies in one layer: projections, k experts, router."""
        return self.attention.matrix_params(D) + self.mlp.matrix_params(D, experts=self.mlp.k)


class Model(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """A decoder-only Transformer: embedding `[V, D]`, layers, final norm, unembedding `[D, V]`.

    `tied`: embedding and unembedding are one matrix. `norm`: "rms", or "layer" (PaLM's, without biases); both
    hold D parameters. `max_context`: tokens it was made for (information, not a limit). `source`: where the
    facts come from.
    """

    name: str
    D: int
    V: int
    tied: bool
    groups: tuple[LayerGroup, ...]
    norm: Literal["rms", "layer"] = "rms"
    max_context: int | None = None
    source: str = ""

    def __post_init__(self) -> None:
        for field in ("D", "V", "max_context"):
            value = getattr(self, field)
            if value is not None or field in "DV":
                _check_size("model", field, value)
        msgspec.structs.force_setattr(
            self, "norm", sys.intern(self.norm)
        )  # defaults are left out if they are the same object
        if not self.groups:
            raise InputError(f"model {self.name!r}: groups is empty: expected at least one layer group")
        if self.params > LARGEST_PARAMS:
            raise InputError(
                f"model {self.name!r}: {self.params:.3g} parameters: expected at most "
                f"{LARGEST_PARAMS:.0g}; check its sizes"
            )

    @property
    def L(self) -> int:
        """Layers."""
        return sum(group.count for group in self.groups)

    @property
    def embedding_params(self) -> int:
        """Elements of embedding and unembedding: VD if tied, else 2VD."""
        return self.V * self.D * (1 if self.tied else 2)

    @property
    def params(self) -> int:
        """All parameters, exactly: layers, norms, router, biases, embedding and unembedding."""
        layers = sum(group.count * group.layer_params(self.D) for group in self.groups)
        return self.embedding_params + layers + self.D

    @property
    def active_params(self) -> int:
        """Parameters with k of the E experts of each layer: as `params`, embedding included."""
        layers = sum(group.count * group.layer_params(self.D, experts=group.mlp.k) for group in self.groups)
        return self.embedding_params + layers + self.D

    @property
    def matmul_params(self) -> int:
        """Matrix elements that one token multiplies, so that a step of B tokens does 2 * B * this in FLOPs.

        Active projections, experts, router and the unembedding; not norms and biases, nor the embedding,
        which is a lookup. Attention scores are extra.
        """
        return self.V * self.D + sum(group.count * group.layer_matmul_params(self.D) for group in self.groups)

    @property
    def kv_elements_per_token(self) -> int:
        """Cache elements that one more token adds while it is inside every window: sum over layers of 2KH."""
        return self.kv_elements(1)

    def kv_elements(self, context: int) -> int:
        """Cache elements of one sequence of `context` tokens: sum over layers of 2KH min(context, window)."""
        return sum(group.count * group.attention.kv_elements(context) for group in self.groups)

    @property
    def digest(self) -> str:
        """SHA-256 (hex) of the canonical JSON without name and source, whatever the order of groups."""
        shape = msgspec.to_builtins(msgspec.structs.replace(self, name="", source=""))
        shape["groups"] = sorted(shape["groups"], key=_canonical)
        return hashlib.sha256(_canonical(shape)).hexdigest()


def with_kv_heads(model: Model, kv_heads: int) -> Model:
    """The model with `kv_heads` KV heads in every layer's cache; its weights and parameter count stay.

    Raises InputError where `kv_heads` does not divide a layer's query heads.
    """

    def cached(group: LayerGroup) -> LayerGroup:
        attention = msgspec.structs.replace(group.attention, cache_heads=kv_heads)
        return msgspec.structs.replace(group, attention=attention)

    return msgspec.structs.replace(model, groups=tuple(cached(group) for group in model.groups))
