import pickle

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mesh.errors import InputError
from strategies.models.configs import builtin_names, load_model
from strategies.models.models import Attention, LayerGroup, Mlp, Model, with_kv_heads

# Counted by mlx-lm 0.32.2 from the Hugging Face configs; PaLM and the worked models by hand, below.
PARAMS = {
    "llama-2-7b": 6_738_415_616,
    "llama-2-13b": 13_015_864_320,
    "llama-2-70b": 68_976_648_192,
    "llama-3.1-8b": 8_030_261_248,
    "llama-3.1-70b": 70_553_706_496,
    "llama-3.1-405b": 405_853_388_800,
    "qwen2.5-7b": 7_615_616_512,
    "qwen3-8b": 8_190_735_360,
    "qwen3-32b": 32_762_123_264,
    "qwen3-30b-a3b": 30_532_122_624,
    "qwen3-vl-30b-a3b": 30_532_122_624,
    "phi-4": 14_659_507_200,
    "mixtral-8x7b": 46_702_792_704,
    "gpt-oss-20b": 20_914_757_184,
    "gpt-oss-120b": 116_829_156_672,
    # L*(D + 2*D*H*(N + K) + 3*D*F) + V*D + D, with one norm per parallel block
    "palm-8b": 32 * (4096 + 2 * 4096 * 256 * 17 + 3 * 4096 * 16384) + 256128 * 4096 + 4096,
    "palm-62b": 64 * (8192 + 2 * 8192 * 256 * 33 + 3 * 8192 * 32768) + 256128 * 8192 + 8192,
    "palm-540b": 118 * (18432 + 2 * 18432 * 256 * 49 + 3 * 18432 * 73728) + 256128 * 18432 + 18432,
    # the chapter's formula (it leaves out norms and router) plus norms and router
    "scaling-book-18b": 64 * 4096 * (3 * 16384 + 2 * 256 * 40) + 4096 * 32128 + 129 * 4096,
    "scaling-book-18b-moe": 64 * 4096 * (3 * 16 * 16384 + 2 * 256 * 40 + 16) + 4096 * 32128 + 129 * 4096,
}


def attention(**changes: object) -> Attention:
    """Eight query heads on two KV heads, with changes."""
    return msgspec.convert({"N": 8, "K": 2, "H": 16, **changes}, Attention)


def small(**changes: object) -> Model:
    """Three small dense layers, with changes."""
    group = LayerGroup(count=3, attention=Attention(N=8, K=2, H=16), mlp=Mlp(F=64, gated=True))
    fields = {"name": "small", "D": 32, "V": 100, "tied": False, "groups": (group,), **changes}
    return Model(**fields)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", builtin_names())
def test_params_of_every_builtin_are_exact(name: str) -> None:
    """Every built-in model has exactly the parameters counted independently."""
    assert load_model(name).params == PARAMS[name]


@pytest.mark.parametrize(("name", "billions"), [("palm-8b", 8.63), ("palm-62b", 62.50), ("palm-540b", 540.36)])
def test_palm_sizes_are_those_of_the_paper(name: str, billions: float) -> None:
    """PaLM's parameter counts are those of its paper, to its rounding."""
    assert load_model(name).params / 1e9 == pytest.approx(billions, abs=0.006)


def test_worked_model_matches_the_chapter() -> None:
    """The chapter's model has 18.4e9 parameters and caches 262,144 bytes per token in int8."""
    model = load_model("scaling-book-18b")
    assert round(model.params / 1e9, 1) == 18.4
    assert model.kv_elements_per_token == 2 * 64 * 8 * 256 == 262_144


def test_worked_moe_matches_the_chapter() -> None:
    """The chapter's mixture of experts has 212e9 parameters, of which a token uses 31.2e9."""
    model = load_model("scaling-book-18b-moe")
    assert round(model.params / 1e9) == 212
    assert model.active_params / 1e9 == pytest.approx(31.2, abs=0.1)


@pytest.mark.parametrize(
    ("name", "active", "matmul"),
    [
        ("llama-3.1-8b", 8_030_261_248, 7_504_658_432),
        ("mixtral-8x7b", 12_879_925_248, 12_748_587_008),
        ("qwen3-30b-a3b", 3_353_032_704, 3_041_656_832),
        ("gpt-oss-20b", 4_187_440_704, 3_607_142_400),
        ("palm-540b", 540_358_834_176, 540_356_640_768),
    ],
)
def test_active_and_matmul_params(name: str, active: int, matmul: int) -> None:
    """A token uses k experts, and multiplies neither the norms nor an untied embedding."""
    model = load_model(name)
    assert (model.active_params, model.matmul_params) == (active, matmul)


def test_matmul_params_are_active_params_without_vectors_and_lookup() -> None:
    """What separates active from multiplied parameters of Llama-8B is the lookup and 65 norms of D."""
    model = load_model("llama-3.1-8b")
    assert model.active_params - model.matmul_params == model.V * model.D + 65 * model.D


def test_tying_removes_one_embedding() -> None:
    """A tied model has one V*D matrix less and multiplies as much."""
    untied, tied = small(), small(tied=True)
    assert untied.params - tied.params == 100 * 32
    assert untied.matmul_params == tied.matmul_params


def test_every_optional_part_adds_its_parameters() -> None:
    """Biases, q and k norms, sinks and a parallel block change the count by what they hold."""
    plain = Attention(N=8, K=2, H=16).params(32)
    assert plain == 2 * 32 * 16 * 10
    assert attention(qkv_bias=True).params(32) - plain == (8 + 2 * 2) * 16
    assert attention(o_bias=True).params(32) - plain == 32
    assert attention(qk_norm=True).params(32) - plain == 2 * 16
    assert attention(sinks=True).params(32) - plain == 8
    serial = small().groups[0]
    assert serial.layer_params(32) - msgspec.structs.replace(serial, parallel=True).layer_params(32) == 32


@pytest.mark.parametrize(
    ("mlp", "params"),
    [
        (Mlp(F=64, gated=True), 3 * 32 * 64),
        (Mlp(F=64, gated=False), 2 * 32 * 64),
        (Mlp(F=64, gated=True, bias=True), 3 * 32 * 64 + 2 * 64 + 32),
        (Mlp(F=64, gated=True, E=4, k=2), 4 * 3 * 32 * 64 + 32 * 4),
        (Mlp(F=64, gated=True, E=4, k=2, bias=True), 4 * (3 * 32 * 64 + 2 * 64 + 32) + 32 * 4 + 4),
    ],
)
def test_mlp_params(mlp: Mlp, params: int) -> None:
    """An MLP counts its matrices, experts, router and biases."""
    assert mlp.params(32) == params
    assert mlp.moe == (mlp.E > 1)


def test_a_window_bounds_the_cache_of_its_layers_only() -> None:
    """Half of gpt-oss-20b's layers cache at most 128 tokens, the other half all."""
    model = load_model("gpt-oss-20b")
    assert model.kv_elements_per_token == 24 * 2 * 8 * 64
    assert model.kv_elements(100) == 24 * 2 * 8 * 64 * 100
    assert model.kv_elements(4096) == 12 * 2 * 8 * 64 * (128 + 4096)


@given(context=st.integers(0, 10**6), more=st.integers(0, 10**6), window=st.none() | st.integers(1, 10**6))
def test_a_longer_context_never_caches_less(context: int, more: int, window: int | None) -> None:
    """The cache grows with the context, and never beyond that of a model without windows."""
    full = small()
    group = msgspec.structs.replace(full.groups[0], attention=attention(window=window))
    model = msgspec.structs.replace(full, groups=(group,))
    assert model.kv_elements(context) <= model.kv_elements(context + more) <= full.kv_elements(context + more)


def test_with_kv_heads_changes_the_cache_only() -> None:
    """Another number of KV heads scales the cache and leaves every parameter count and the model's K."""
    model = load_model("llama-2-13b")
    fewer = with_kv_heads(model, 8)
    assert fewer.kv_elements(1000) * 5 == model.kv_elements(1000)
    assert (fewer.params, fewer.matmul_params) == (model.params, model.matmul_params)
    assert (fewer.groups[0].attention.K, fewer.groups[0].attention.cached_K) == (40, 8)
    assert fewer.digest != model.digest
    assert with_kv_heads(fewer, 40).kv_elements(1000) == model.kv_elements(1000)


def test_with_kv_heads_must_divide_the_query_heads() -> None:
    """KV heads that cannot be shared evenly are refused, naming both numbers."""
    with pytest.raises(InputError) as error:
        with_kv_heads(load_model("llama-3.1-70b"), 7)
    assert str(error.value) == (
        "attention: N=64 query heads cannot share cache_heads=7 KV heads: expected a divisor of 64"
    )


def test_a_model_from_another_process_is_the_same_to_the_byte() -> None:
    """Its words are other objects there, and still the defaults."""
    model = load_model("llama-3.1-8b")
    sent = pickle.loads(pickle.dumps(model))
    read = msgspec.json.decode(msgspec.json.encode(model)[:-1] + b',"norm":"rms"}', type=Model)
    for one in (sent, read):
        assert msgspec.json.encode(one) == msgspec.json.encode(model)
        assert one.digest == model.digest


def test_digest_ignores_name_source_and_order_but_no_size() -> None:
    """Equal shapes share a digest, whatever they are called; any other size changes it."""
    model = load_model("gpt-oss-20b")
    renamed = msgspec.structs.replace(model, name="x", source="y", groups=model.groups[::-1])
    assert renamed.digest == model.digest
    assert len(model.digest) == 64
    assert msgspec.structs.replace(model, D=2944).digest != model.digest


@pytest.mark.parametrize("name", builtin_names())
def test_a_model_survives_json(name: str) -> None:
    """Every built-in model comes back equal from its JSON."""
    model = load_model(name)
    assert msgspec.json.decode(msgspec.json.encode(model), type=Model) == model


def test_an_unknown_field_is_rejected() -> None:
    """A misspelt field is an error, not an ignored value."""
    with pytest.raises(msgspec.ValidationError, match=r"^Object contains unknown field `windows`$"):
        attention(windows=4)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: Attention(N=12, K=8, H=64),
            "attention: N=12 query heads cannot share K=8 KV heads: expected a divisor of 12",
        ),
        (
            lambda: Attention(N=0, K=8, H=64),
            "attention: N=0: expected a whole number from 1 to 1000000000",
        ),
        (
            lambda: Attention(N=8, K=True, H=64),
            "attention: K=True: expected a whole number from 1 to 1000000000",
        ),
        (
            lambda: Attention(N=8, K=8, H=64, window=-1),
            "attention: window=-1: expected a whole number from 1 to 1000000000",
        ),
        (
            lambda: Attention(N=8, K=8, H=float("nan")),  # type: ignore[arg-type]
            "attention: H=nan: expected a whole number from 1 to 1000000000",
        ),
        (
            lambda: Mlp(F=10**10, gated=True),
            "mlp: F=10000000000: expected a whole number from 1 to 1000000000",
        ),
        (lambda: Mlp(F=64, gated=True, E=4, k=5), "mlp: k=5 experts per token: expected 1 to E=4"),
        (
            lambda: LayerGroup(count=0, attention=attention(), mlp=Mlp(F=64, gated=True)),
            "layer group: count=0: expected a whole number from 1 to 1000000000",
        ),
        (lambda: small(D=0), "model: D=0: expected a whole number from 1 to 1000000000"),
        (
            lambda: small(max_context=0),
            "model: max_context=0: expected a whole number from 1 to 1000000000",
        ),
        (lambda: small(groups=()), "model 'small': groups is empty: expected at least one layer group"),
        (
            lambda: small(D=10**9, V=10**9),
            "model 'small': 2e+18 parameters: expected at most 1e+15; check its sizes",
        ),
    ],
)
def test_bad_sizes_are_refused_at_construction(make: object, message: str) -> None:
    """A size that cannot be is refused where it is given, with the value and what was expected."""
    with pytest.raises(InputError) as error:
        make()  # type: ignore[operator]
    assert str(error.value) == message
