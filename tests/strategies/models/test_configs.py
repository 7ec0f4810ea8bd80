import json
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mesh.errors import InputError
from strategies.models.configs import builtin_names, load_model, parse_config
from strategies.models.models import Model

REFERENCE = Path(__file__).parents[4] / "shared" / "reference" / "configs"
NAMES = "llama, mistral, qwen2, qwen3, phi3, mixtral, qwen3_moe, qwen3_vl_moe, gpt_oss"
SIZE = "expected a whole number from 1 to 1000000000"

REFERENCE_FILES = {
    "llama-3.1-8b": "meta-llama--Meta-Llama-3.1-8B",
    "llama-3.1-70b": "meta-llama--Meta-Llama-3.1-70B",
    "llama-3.1-405b": "meta-llama--Meta-Llama-3.1-405B",
    "qwen2.5-7b": "Qwen2.5-7B-Instruct",
    "qwen3-8b": "Qwen--Qwen3-8B",
    "qwen3-32b": "Qwen--Qwen3-32B",
    "qwen3-30b-a3b": "Qwen--Qwen3-30B-A3B",
    "qwen3-vl-30b-a3b": "Qwen--Qwen3-VL-30B-A3B-Instruct",
    "phi-4": "phi-4",
    "mixtral-8x7b": "mistralai--Mixtral-8x7B-v0.1",
    "gpt-oss-20b": "openai--gpt-oss-20b",
    "gpt-oss-120b": "openai--gpt-oss-120b",
}


def sizes(model_type: str, D: int, F: int, L: int, N: int, K: int, V: int, **more: object) -> dict[str, object]:
    """A config with the fields that every architecture has."""
    return {
        "model_type": model_type,
        "hidden_size": D,
        "intermediate_size": F,
        "num_hidden_layers": L,
        "num_attention_heads": N,
        "num_key_value_heads": K,
        "vocab_size": V,
        **more,
    }


EXPERTS = {"num_experts": 128, "num_experts_per_tok": 8, "moe_intermediate_size": 768, "head_dim": 128}

# The fields of published configs that decide the shape, one model per architecture.
CONFIGS: dict[str, dict[str, object]] = {
    "llama-3.1-8b": sizes(
        "llama", 4096, 14336, 32, 32, 8, 128256, max_position_embeddings=131072, tie_word_embeddings=False
    ),
    "qwen2.5-7b": sizes(
        "qwen2", 3584, 18944, 28, 28, 4, 152064, max_position_embeddings=32768,
        sliding_window=131072, use_sliding_window=False, max_window_layers=28,
    ),
    "qwen3-32b": sizes(
        "qwen3", 5120, 25600, 64, 64, 8, 151936, head_dim=128, max_position_embeddings=40960,
        sliding_window=None, attention_bias=False,
    ),
    "phi-4": sizes("phi3", 5120, 17920, 40, 40, 10, 100352, max_position_embeddings=16384),
    "mixtral-8x7b": sizes(
        "mixtral", 4096, 14336, 32, 32, 8, 32000, max_position_embeddings=32768, num_local_experts=8,
        num_experts_per_tok=2, sliding_window=None,
    ),
    "qwen3-30b-a3b": sizes(
        "qwen3_moe", 2048, 6144, 48, 32, 4, 151936, max_position_embeddings=40960, decoder_sparse_step=1,
        mlp_only_layers=[], **EXPERTS,
    ),
    "qwen3-vl-30b-a3b": {
        "model_type": "qwen3_vl_moe",
        "tie_word_embeddings": False,
        "vision_config": {"num_heads": 16, "hidden_size": 1152, "depth": 27},
        "text_config": sizes(
            "qwen3_vl_moe_text", 2048, 6144, 48, 32, 4, 151936, max_position_embeddings=262144, **EXPERTS
        ),
    },
    "gpt-oss-20b": sizes(
        "gpt_oss", 2880, 2880, 24, 64, 8, 201088, head_dim=64, max_position_embeddings=131072,
        sliding_window=128, num_local_experts=32, num_experts_per_tok=4, attention_bias=True,
        layer_types=["sliding_attention", "full_attention"] * 12,
    ),
}  # fmt: skip

SMALL = sizes("llama", 32, 64, 4, 8, 2, 100)


def parsed(model_type: str = "llama", **changes: object) -> Model:
    """The small config with changes; a value of `...` removes the field."""
    fields = {**SMALL, "model_type": model_type, **changes}
    return parse_config({key: value for key, value in fields.items() if value is not ...}, "small")


def refusal(call: Callable[[], object]) -> str:
    """The one line that the call is refused with."""
    with pytest.raises(InputError) as error:
        call()
    assert "\n" not in str(error.value)
    return str(error.value)


@pytest.mark.parametrize("name", CONFIGS)
def test_a_builtin_equals_its_config(name: str) -> None:
    """A built-in model has the shape of the published config of every architecture."""
    model = parse_config(CONFIGS[name], name)
    assert model.digest == load_model(name).digest
    assert model.groups == load_model(name).groups


@pytest.mark.parametrize("name", REFERENCE_FILES)
def test_a_builtin_equals_its_reference_file(name: str) -> None:
    """A built-in model has the shape of the genuine config file."""
    if not REFERENCE.is_dir():
        pytest.skip(f"no reference configs at {REFERENCE}")
    model = load_model(REFERENCE / f"{REFERENCE_FILES[name]}.json")
    assert model.digest == load_model(name).digest


def test_builtin_names_are_sorted_cited_and_found_in_any_case() -> None:
    """Every built-in is found by its name in any case, and says where its facts come from."""
    assert list(builtin_names()) == sorted(builtin_names())
    for name in builtin_names():
        model = load_model(name.upper())
        assert model.name == name == name.lower()
        assert model.source


def test_a_file_and_its_folder_are_the_same_model(tmp_path: Path) -> None:
    """A config.json and the folder it lies in give one model, named after the folder."""
    folder = tmp_path / "Tiny-1.5B"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(SMALL))
    model = load_model(folder)
    assert model == load_model(str(folder / "config.json"))
    assert (model.name, model.source) == ("Tiny-1.5B", str(folder / "config.json"))


def test_another_file_name_names_the_model(tmp_path: Path) -> None:
    """A config under another name gives its own name, without .json only."""
    file = tmp_path / "Tiny-1.5B.json"
    file.write_text(json.dumps(SMALL))
    assert load_model(file).name == "Tiny-1.5B"


def test_a_byte_order_mark_is_accepted(tmp_path: Path) -> None:
    """A config saved by a Windows editor loads."""
    (tmp_path / "config.json").write_bytes(b"\xef\xbb\xbf" + json.dumps(SMALL).encode())
    assert load_model(tmp_path).D == 32


@pytest.mark.parametrize("model_type", ["llama", "mistral", "qwen2", "qwen3", "phi3"])
def test_absent_tie_word_embeddings_means_untied(model_type: str) -> None:
    """In every supported architecture embeddings are tied only where the config says so."""
    assert not parsed(model_type).tied
    assert parsed(model_type, tie_word_embeddings=True).tied


def test_a_nested_config_is_tied_as_its_outer_part_says() -> None:
    """The outer tie_word_embeddings wins over the text part's."""
    text = {**sizes("qwen3_vl_moe_text", 32, 64, 4, 8, 2, 100, **EXPERTS), "tie_word_embeddings": True}
    config = {"model_type": "qwen3_vl_moe", "text_config": text}
    assert parse_config(config, "x").tied
    assert not parse_config({**config, "tie_word_embeddings": False}, "x").tied


@pytest.mark.parametrize(
    ("model_type", "changes", "H"),
    [
        ("llama", {}, 4),
        ("llama", {"head_dim": None}, 4),
        ("llama", {"head_dim": 16}, 16),
        ("qwen2", {}, 4),
        ("qwen3", {}, 128),
        ("qwen3", {"head_dim": 16}, 16),
    ],
)
def test_head_dim(model_type: str, changes: dict[str, object], H: int) -> None:
    """Without head_dim H is D/N, except where the architecture has its own default."""
    assert parsed(model_type, **changes).groups[0].attention.H == H


def test_head_dim_is_needed_where_heads_do_not_divide_the_width() -> None:
    """D/N is never rounded."""
    assert refusal(lambda: parsed(num_attention_heads=12)) == (
        "small: field 'head_dim' is missing: expected it, as num_attention_heads=12 does not divide hidden_size=32"
    )


@pytest.mark.parametrize("model_type", ["llama", "phi3"])
def test_absent_kv_heads_are_query_heads(model_type: str) -> None:
    """Llama and Phi-3 configs from before grouped-query attention have as many KV heads as query heads."""
    assert parsed(model_type, num_key_value_heads=...).groups[0].attention.K == 8


def test_null_kv_heads_are_query_heads_but_absent_ones_are_missing_in_mistral() -> None:
    """Null means multi-head everywhere; absent is not guessed where transformers would fill in a number."""
    assert parsed("mistral", num_key_value_heads=None).groups[0].attention.K == 8
    assert refusal(lambda: parsed("mistral", num_key_value_heads=...)) == (
        f"small: field 'num_key_value_heads' is missing: {SIZE}"
    )


@pytest.mark.parametrize(
    ("model_type", "changes", "windows"),
    [
        ("llama", {"sliding_window": 7}, [(4, None)]),
        ("mistral", {}, [(4, 4096)]),
        ("mistral", {"sliding_window": 7}, [(4, 7)]),
        ("mistral", {"sliding_window": None}, [(4, None)]),
        ("phi3", {}, [(4, None)]),
        ("phi3", {"sliding_window": 7}, [(4, 7)]),
        ("qwen2", {"sliding_window": 7}, [(4, None)]),
        ("qwen2", {"sliding_window": 7, "use_sliding_window": False}, [(4, None)]),
        ("qwen2", {"sliding_window": 7, "use_sliding_window": True}, [(4, None)]),
        ("qwen2", {"sliding_window": 7, "use_sliding_window": True, "max_window_layers": 0}, [(4, 7)]),
        ("qwen2", {"use_sliding_window": True, "max_window_layers": 3}, [(3, None), (1, 4096)]),
        ("qwen3", {"sliding_window": None, "use_sliding_window": True, "max_window_layers": 0}, [(4, None)]),
        (
            "qwen3",
            {
                "sliding_window": 7,
                "use_sliding_window": True,
                "layer_types": ["full_attention", "sliding_attention"] * 2,
            },
            [(2, None), (2, 7)],
        ),
    ],
)
def test_windows(model_type: str, changes: dict[str, object], windows: list[tuple[int, int | None]]) -> None:
    """Sliding windows follow the switches of each architecture."""
    model = parsed(model_type, **changes)
    assert [(group.count, group.attention.window) for group in model.groups] == windows


def test_gpt_oss_alternates_without_layer_types() -> None:
    """Without layer_types gpt-oss starts with a windowed layer and alternates."""
    config = {key: value for key, value in CONFIGS["gpt-oss-20b"].items() if key != "layer_types"}
    assert parse_config(config, "x").digest == load_model("gpt-oss-20b").digest
    config = {**config, "num_hidden_layers": 3}
    assert [group.count for group in parse_config(config, "x").groups] == [2, 1]


@pytest.mark.parametrize(
    ("model_type", "changes", "qkv", "o", "mlp"),
    [
        ("llama", {}, False, False, False),
        ("llama", {"attention_bias": True}, True, True, False),
        ("llama", {"mlp_bias": True}, False, False, True),
        ("mistral", {"attention_bias": True, "mlp_bias": True}, False, False, False),
        ("qwen2", {}, True, False, False),
        ("qwen3", {"attention_bias": True}, True, True, False),
    ],
)
def test_biases(model_type: str, changes: dict[str, object], qkv: bool, o: bool, mlp: bool) -> None:
    """Biases are where the architecture and its switches put them."""
    group = parsed(model_type, **changes).groups[0]
    assert (group.attention.qkv_bias, group.attention.o_bias, group.mlp.bias) == (qkv, o, mlp)


def test_dense_layers_among_moe_layers() -> None:
    """Two switches leave 23 of 48 layers routed, and mlx-lm counts the same parameters."""
    config = {**CONFIGS["qwen3-30b-a3b"], "mlp_only_layers": [0, 5], "decoder_sparse_step": 2}
    model = parse_config(config, "x")
    kinds = [(group.count, group.mlp.F, group.mlp.E) for group in model.groups]
    assert kinds == [(25, 6144, 1), (23, 768, 128)]
    assert model.params == 16_369_793_024


@pytest.mark.parametrize("key", ["num_experts", "num_local_experts"])
def test_both_names_of_the_expert_count(key: str) -> None:
    """Either name of the number of experts works."""
    model = parsed("mixtral", num_experts_per_tok=2, **{key: 4})
    assert (model.groups[0].mlp.E, model.groups[0].mlp.k) == (4, 2)


@pytest.mark.parametrize(
    ("model_type", "part"),
    [
        ("deepseek_v3", "multi-head latent attention and shared experts"),
        ("kimi_k2", "multi-head latent attention and shared experts"),
        ("gemma4", "global layers with their own head size and KV heads, and a dense MLP beside the experts"),
        ("llama4", "shared experts and chunked attention"),
    ],
)
def test_an_unsupported_architecture_names_what_is_missing(model_type: str, part: str) -> None:
    """A known architecture that cannot be described says which of its parts is missing."""
    assert refusal(lambda: parsed(model_type)) == (
        f"small: model_type '{model_type}' is not supported yet: it needs {part} (supported: {NAMES})"
    )


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model_type": "bloom"}, f'model_type "bloom" is not known (supported: {NAMES})'),
        (
            {"model_type": ...},
            f"field 'model_type' is missing: expected the name of an architecture (supported: {NAMES})",
        ),
        ({"model_type": 3}, f"model_type=3: expected the name of an architecture (supported: {NAMES})"),
        ({"hidden_size": ...}, f"field 'hidden_size' is missing: {SIZE}"),
        ({"vocab_size": None}, f"field 'vocab_size' is missing: {SIZE}"),
        ({"hidden_size": 0}, f"hidden_size=0: {SIZE}"),
        ({"hidden_size": -32}, f"hidden_size=-32: {SIZE}"),
        ({"hidden_size": True}, f"hidden_size=true: {SIZE}"),
        ({"hidden_size": "32"}, f'hidden_size="32": {SIZE}'),
        ({"hidden_size": 32.0}, f"hidden_size=32.0: {SIZE}"),
        ({"hidden_size": float("nan")}, f"hidden_size=NaN: {SIZE}"),
        ({"hidden_size": 10**400}, f"hidden_size=1{'0' * 56}...: {SIZE}"),
        ({"hidden_size": 10**5000}, f"hidden_size=(int too long to show): {SIZE}"),
        ({"num_hidden_layers": 10**6}, "num_hidden_layers=1000000: expected a whole number from 1 to 10000"),
        ({"head_dim": 0}, f"head_dim=0: {SIZE}"),
        ({"max_position_embeddings": []}, f"max_position_embeddings=[]: {SIZE}"),
        ({"tie_word_embeddings": 0}, "tie_word_embeddings=0: expected true or false"),
        ({"mlp_bias": "no"}, 'mlp_bias="no": expected true or false'),
        (
            {"num_key_value_heads": 3},
            "attention: N=8 query heads cannot share K=3 KV heads: expected a divisor of 8",
        ),
        ({"model_type": "mistral", "sliding_window": 0}, f"sliding_window=0: {SIZE}"),
        ({"model_type": "qwen2", "use_sliding_window": 1}, "use_sliding_window=1: expected true or false"),
        ({"model_type": "qwen2", "layer_types": "x"}, 'layer_types="x": expected a list of attention kinds'),
        (
            {"model_type": "qwen2", "layer_types": ["full_attention"]},
            "layer_types has 1 entries: expected num_hidden_layers=4",
        ),
        (
            {"model_type": "mistral", "layer_types": ["linear_attention"] * 4},
            'layer_types has "linear_attention": supported are full_attention, sliding_attention',
        ),
        (
            {"model_type": "qwen2", "sliding_window": 7, "layer_types": ["sliding_attention"] * 4},
            "layer_types has sliding_attention, but no sliding_window is set or it is off",
        ),
        (
            {"model_type": "mixtral"},
            "field 'num_experts' or 'num_local_experts' is missing: expected one of them",
        ),
        (
            {"model_type": "mixtral", "num_experts": 1},
            "num_experts=1: expected a whole number from 2 to 1000000000",
        ),
        (
            {"model_type": "mixtral", "num_experts": 8, "num_local_experts": 4},
            "num_experts=8 but num_local_experts=4: expected one of them",
        ),
        (
            {"model_type": "mixtral", "num_experts": 8, "num_experts_per_tok": 9},
            "num_experts_per_tok=9: expected a whole number from 1 to 8",
        ),
        (
            {"model_type": "qwen3_moe", **EXPERTS, "mlp_only_layers": [True]},
            "mlp_only_layers=[true]: expected a list of layer numbers",
        ),
        ({"model_type": "qwen3_vl_moe"}, "field 'text_config' is missing: expected an object"),
        (
            {"model_type": "qwen3_vl_moe", "text_config": {"hidden_size": 0}},
            f"text_config.hidden_size=0: {SIZE}",
        ),
        (
            {"hidden_size": 10**9, "vocab_size": 10**9},
            "model 'small': 1.2e+19 parameters: expected at most 1e+15; check its sizes",
        ),
    ],
)
def test_a_bad_field_is_named(changes: dict[str, object], message: str) -> None:
    """A field that is missing or wrong is named, with its value and what was expected."""
    assert refusal(lambda: parsed(**changes)) == f"small: {message}"  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("name", "closest"),
    [
        ("llama-3.1-71b", "llama-3.1-70b, llama-3.1-8b, llama-3.1-405b"),
        ("meta-llama/Llama-3.1-70B", "llama-3.1-70b, llama-3.1-405b, llama-3.1-8b"),
    ],
)
def test_a_wrong_name_gets_the_closest_ones(name: str, closest: str) -> None:
    """A misspelt name, or a Hugging Face one, is answered with built-in names and the way out."""
    assert refusal(lambda: load_model(name)) == (
        f'model "{name}": no built-in and no file of that name; the closest are {closest}; or give a config.json'
    )


@pytest.mark.parametrize("name", ["", "zzz", "a\0b"])
def test_a_name_like_no_other_gets_all_of_them(name: str) -> None:
    """A name that is close to none is answered with all built-in names."""
    assert refusal(lambda: load_model(name)) == (
        f"model {json.dumps(name)}: no built-in and no file of that name; "
        f"there are {', '.join(builtin_names())}; or give a config.json"
    )


def test_a_name_too_long_for_a_file() -> None:
    """A name that no file can have is an error like the others, and cut short."""
    message = refusal(lambda: load_model("a" * 5000))
    assert message == f'cannot read "{"a" * 296}...: File name too long'


def test_a_folder_without_config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder without a config.json is named."""
    (tmp_path / "empty").mkdir()
    monkeypatch.chdir(tmp_path)
    assert refusal(lambda: load_model("empty")) == (
        'folder "empty" has no config.json: give one that has it, or the file'
    )


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "not valid JSON at line 1 column 1: Expecting value"),
        (b'{"a": 1,\n "b": ', "not valid JSON at line 2 column 7: Expecting value"),
        (b'{"a": 1} x', "not valid JSON at line 1 column 10: Extra data"),
        (b"[1, 2]", "expected a JSON object, got [1, 2]"),
        (b"null", "expected a JSON object, got null"),
        (b"\x00\xff\xfe\x01", "not text (byte 1): expected a config.json"),
        (b'{"a": ' + b"9" * 5000 + b"}", "a number too long or values nested too deep for a config.json"),
        (b"[" * 100_000, "a number too long or values nested too deep for a config.json"),
        (b" " * 10_000_001, "not a config.json: expected a file of at most 10 MB"),
        (b'{"model_type": "llama"}', f"field 'hidden_size' is missing: {SIZE}"),
    ],
    ids=["empty", "truncated", "trailing", "list", "null", "binary", "digits", "deep", "large", "fields"],
)
def test_a_bad_file_is_named(tmp_path: Path, content: bytes, message: str) -> None:
    """A file that is no config says where and why."""
    file = tmp_path / "config.json"
    file.write_bytes(content)
    assert refusal(lambda: load_model(file)) == f"{file}: {message}"


def test_an_unreadable_file_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file without read permission is named (simulated: root may read every file)."""

    def denied(_: Path) -> bytes:
        raise PermissionError(13, "Permission denied")

    file = tmp_path / "config.json"
    file.write_text(json.dumps(SMALL))
    monkeypatch.setattr(Path, "read_bytes", denied)
    assert refusal(lambda: load_model(file)) == f"cannot read {json.dumps(str(file))}: Permission denied"


def test_a_device_is_not_read() -> None:
    """An endless device is refused unread."""
    message = refusal(lambda: load_model("/dev/zero"))
    assert message == "/dev/zero: not a config.json: expected a file of at most 10 MB"


@pytest.mark.parametrize("name", ["llama-3.1-8b", "gpt-oss-20b", "qwen3-vl-30b-a3b"])
def test_a_truncated_file_is_never_anything_but_an_input_error(
    tmp_path_factory: pytest.TempPathFactory, name: str
) -> None:
    """However many bytes are left of a config, the answer is an InputError of one line with its place."""
    file = tmp_path_factory.mktemp("cut") / "config.json"
    text = json.dumps(CONFIGS[name], indent=2)

    @given(kept=st.integers(0, len(text) - 1))
    def check(kept: int) -> None:
        file.write_text(text[:kept])
        assert refusal(lambda: load_model(file)).startswith(f"{file}: not valid JSON at line ")

    check()


JUNK = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=5,
)


def outcome(config: dict[str, object]) -> Model | str:
    """The model, or the line that the config is refused with."""
    try:
        return parse_config(config, "junk")
    except InputError as error:
        return str(error)


@given(name=st.sampled_from(sorted(CONFIGS)), data=st.data(), value=JUNK)
def test_a_junk_value_gives_a_model_or_an_input_error(name: str, data: st.DataObject, value: object) -> None:
    """Any value in any field gives a model of exact positive size or an InputError, nothing else."""
    key = data.draw(st.sampled_from(sorted(CONFIGS[name])))
    answer = outcome({**CONFIGS[name], key: value})
    if isinstance(answer, Model):
        assert 0 < answer.matmul_params <= answer.params
    else:
        assert answer.startswith("junk: ")
        assert "\n" not in answer
