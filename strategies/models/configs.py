"""Models by name or from a Hugging Face `config.json`: `load_model` is the one to call.

Facts are data, in `data/`: the built-in models, and what is particular to each architecture.
"""

import difflib
import functools
import json
import tomllib
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, NoReturn

import msgspec

from mesh.errors import InputError
from strategies.models.models import LARGEST_SIZE, Attention, LayerGroup, Mlp, Model

LARGEST_FILE_BYTES = 10_000_000
MOST_LAYERS = 10_000


class Architecture(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The differences of one Hugging Face `model_type` from Llama.

    `bias`: of the attention projections; "config": all or none, as `attention_bias` or `default_bias` says.
    `heads_optional`: an absent `num_key_value_heads` means as many KV heads as query heads.
    `window`: "always" as `sliding_window` says, "switched" by `use_sliding_window`. `windowed_layers`, unless
    `layer_types` says: all, "late" (from `max_window_layers` on) or "alternate" (the first, the third, ...).
    `expert_size`: the field with the F of an expert. `text_config`: the text model is nested.
    """

    bias: Literal["none", "qkv", "config"] = "none"
    default_bias: bool = False
    mlp_bias: bool = False
    qk_norm: bool = False
    sinks: bool = False
    heads_optional: bool = False
    default_head_dim: int | None = None
    window: Literal["never", "always", "switched"] = "never"
    default_window: int | None = None
    windowed_layers: Literal["all", "late", "alternate"] = "all"
    expert_size: str | None = None
    expert_bias: bool = False
    text_config: bool = False


def load_model(name_or_path: str | Path) -> Model:
    """The model that a built-in name (in any case), a `config.json` or a folder with one stands for.

    A built-in name wins over a file of that name: write `./name` for the file. Raises InputError if there is
    no such model or file, or if the file does not describe a supported model.
    """
    name = str(name_or_path)
    return _builtins().get(name.lower()) or _load_path(name)


def builtin_names() -> tuple[str, ...]:
    """Names of the built-in models, sorted."""
    return tuple(sorted(_builtins()))


def parse_config(config: Mapping[str, object], name: str, *, source: str = "") -> Model:
    """The model that a Hugging Face config describes; errors (InputError) start with `source`, or `name`."""
    try:
        return _parse(_Fields(config), name, source)
    except InputError as error:
        raise InputError(f"{source or name}: {error}") from None


def _parse(outer: "_Fields", name: str, source: str) -> Model:
    architecture = _architecture(outer)
    fields = outer.nested("text_config") if architecture.text_config else outer
    return Model(
        name=name,
        D=fields.size("hidden_size"),
        V=fields.size("vocab_size"),
        tied=outer.flag("tie_word_embeddings", fields.flag("tie_word_embeddings", False)),
        groups=_groups(fields, architecture),
        max_context=fields.size_or("max_position_embeddings", None),
        source=source,
    )


class _Fields:
    """Typed access to the fields of a JSON object; null counts as absent, an error names the field."""

    def __init__(self, config: Mapping[str, object], prefix: str = "") -> None:
        self.config = config
        self.prefix = prefix

    def fail(self, key: str, expected: str) -> NoReturn:
        if self.config.get(key) is None:
            raise InputError(f"field '{self.prefix}{key}' is missing: expected {expected}")
        raise InputError(f"{self.prefix}{key}={_shown(self.config[key])}: expected {expected}")

    def size(self, key: str, *, least: int = 1, most: int = LARGEST_SIZE) -> int:
        value = self.config.get(key)
        if type(value) is not int or not least <= value <= most:
            self.fail(key, f"a whole number from {least} to {most}")
        return value

    def size_or(self, key: str, default: int | None, *, least: int = 1) -> int | None:
        return default if self.config.get(key) is None else self.size(key, least=least)

    def flag(self, key: str, default: bool) -> bool:
        value = self.config.get(key)
        value = default if value is None else value
        return value if isinstance(value, bool) else self.fail(key, "true or false")

    def items(self, key: str, of: type, expected: str) -> list[Any] | None:
        value = self.config.get(key)
        if value is None or (isinstance(value, list) and all(type(item) is of for item in value)):
            return value
        return self.fail(key, expected)

    def nested(self, key: str) -> "_Fields":
        value = self.config.get(key)
        return _Fields(value, f"{key}.") if isinstance(value, dict) else self.fail(key, "an object")


def _shown(value: object, most: int = 60) -> str:
    """The value as JSON, cut to what fits in a line."""
    try:
        text = json.dumps(value)
    except (TypeError, ValueError, RecursionError):
        text = f"({type(value).__name__} too long to show)"
    return text if len(text) <= most else f"{text[: most - 3]}..."


def _architecture(fields: _Fields) -> Architecture:
    supported, unsupported = _architectures()
    names = f"supported: {', '.join(supported)}"
    kind = fields.config.get("model_type")
    if not isinstance(kind, str):
        fields.fail("model_type", f"the name of an architecture ({names})")
    if kind in unsupported:
        raise InputError(f"model_type {kind!r} is not supported yet: it needs {unsupported[kind]} ({names})")
    if kind not in supported:
        raise InputError(f"model_type {_shown(kind)} is not known ({names})")
    return supported[kind]


def _groups(fields: _Fields, architecture: Architecture) -> tuple[LayerGroup, ...]:
    """Equal layers counted together, kinds in order of first appearance."""
    layers = fields.size("num_hidden_layers", most=MOST_LAYERS)
    windows = _windows(fields, architecture, layers)
    attentions = {window: _attention(fields, architecture, window) for window in windows}
    mlps = _mlps(fields, architecture, layers)
    kinds = Counter((attentions[window], mlp) for window, mlp in zip(windows, mlps, strict=True))
    return tuple(LayerGroup(count=count, attention=a, mlp=m) for (a, m), count in kinds.items())


def _attention(fields: _Fields, architecture: Architecture, window: int | None) -> Attention:
    heads = fields.size("num_attention_heads")
    biased = architecture.bias == "config" and fields.flag("attention_bias", architecture.default_bias)
    return Attention(
        N=heads,
        K=_kv_heads(fields, architecture, heads),
        H=_head_dim(fields, architecture, heads),
        window=window,
        qk_norm=architecture.qk_norm,
        qkv_bias=biased or architecture.bias == "qkv",
        o_bias=biased,
        sinks=architecture.sinks,
    )


def _kv_heads(fields: _Fields, architecture: Architecture, heads: int) -> int:
    """K; null says as many as query heads, absent does so in some architectures only."""
    key = "num_key_value_heads"
    as_many = architecture.heads_optional or key in fields.config
    return heads if as_many and fields.config.get(key) is None else fields.size(key)


def _head_dim(fields: _Fields, architecture: Architecture, heads: int) -> int:
    """H is its own field in many models; without it, the architecture's default or D/N."""
    width = fields.size("hidden_size")
    given = fields.size_or("head_dim", architecture.default_head_dim)
    if given is None and width % heads:
        fields.fail("head_dim", f"it, as num_attention_heads={heads} does not divide hidden_size={width}")
    return given or width // heads


def _windows(fields: _Fields, architecture: Architecture, layers: int) -> list[int | None]:
    """The sliding window of each layer, None for all of the context."""
    if architecture.window == "never":
        return [None] * layers
    window = _window(fields, architecture)
    kinds = fields.items("layer_types", str, "a list of attention kinds")
    if kinds is not None:
        return _typed_windows(kinds, window, layers)
    late = architecture.windowed_layers == "late"
    first = (fields.size_or("max_window_layers", 28, least=0) or 0) if late else 0
    step = 2 if architecture.windowed_layers == "alternate" else 1
    return [window if layer >= first and layer % step == 0 else None for layer in range(layers)]


def _window(fields: _Fields, architecture: Architecture) -> int | None:
    """`sliding_window`, unless switched off; null it is none, absent the architecture's default."""
    if architecture.window == "switched" and not fields.flag("use_sliding_window", False):
        return None
    absent = "sliding_window" not in fields.config
    return fields.size_or("sliding_window", architecture.default_window if absent else None)


def _typed_windows(kinds: list[str], window: int | None, layers: int) -> list[int | None]:
    if len(kinds) != layers:
        raise InputError(f"layer_types has {len(kinds)} entries: expected num_hidden_layers={layers}")
    known = {"full_attention": None, "sliding_attention": window}
    for kind in kinds:
        if kind not in known:
            raise InputError(f"layer_types has {_shown(kind)}: supported are {', '.join(known)}")
    if "sliding_attention" in kinds and window is None:
        raise InputError("layer_types has sliding_attention, but no sliding_window is set or it is off")
    return [known[kind] for kind in kinds]


def _mlps(fields: _Fields, architecture: Architecture, layers: int) -> list[Mlp]:
    if architecture.expert_size is None:
        return [_dense(fields, architecture)] * layers
    experts = _experts(fields, architecture, architecture.expert_size)
    step = fields.size_or("decoder_sparse_step", 1) or 1
    dense = set(fields.items("mlp_only_layers", int, "a list of layer numbers") or [])
    routed = [(layer + 1) % step == 0 and layer not in dense for layer in range(layers)]
    return [experts if moe else _dense(fields, architecture) for moe in routed]


def _dense(fields: _Fields, architecture: Architecture) -> Mlp:
    biased = architecture.mlp_bias and fields.flag("mlp_bias", False)
    return Mlp(F=fields.size("intermediate_size"), gated=True, bias=biased)


def _experts(fields: _Fields, architecture: Architecture, size: str) -> Mlp:
    """The MoE block; its number of experts has two names, as transformers maps one to the other."""
    keys = [key for key in ("num_experts", "num_local_experts") if fields.config.get(key) is not None]
    if not keys:
        raise InputError("field 'num_experts' or 'num_local_experts' is missing: expected one of them")
    counts = [fields.size(key, least=2) for key in keys]
    if len(set(counts)) > 1:
        raise InputError(f"num_experts={counts[0]} but num_local_experts={counts[1]}: expected one of them")
    k = fields.size("num_experts_per_tok", most=counts[0])
    return Mlp(F=fields.size(size), gated=True, E=counts[0], k=k, bias=architecture.expert_bias)


def _tables(file: str) -> dict[str, Any]:
    text = (Path(__file__).parent / "data" / file).read_text("utf-8")
    return tomllib.loads(text)


@functools.cache
def _builtins() -> dict[str, Model]:
    tables = _tables("models.toml")
    return {name: msgspec.convert({"name": name, **table}, Model) for name, table in tables.items()}


@functools.cache
def _architectures() -> tuple[dict[str, Architecture], dict[str, str]]:
    tables = _tables("architectures.toml")
    return msgspec.convert(tables["supported"], dict[str, Architecture]), tables["unsupported"]


def _load_path(name: str) -> Model:
    try:
        file = Path(name, "config.json") if name and Path(name).is_dir() else Path(name)
        if not name or not file.exists():
            raise InputError(_not_found(file, name))
        config = _read_object(file)
    except OSError as error:
        raise InputError(f"cannot read {_shown(name, 300)}: {error.strerror}") from None
    named_by = file.parent.resolve() if file.name == "config.json" else file
    return parse_config(config, named_by.name.removesuffix(".json"), source=str(file))


def _not_found(file: Path, name: str) -> str:
    if file != Path(name):
        return f"folder {_shown(name, 300)} has no config.json: give one that has it, or the file"
    close = difflib.get_close_matches(name.rsplit("/", 1)[-1].lower(), builtin_names(), n=3, cutoff=0.5)
    names = f"the closest are {', '.join(close)}" if close else f"there are {', '.join(builtin_names())}"
    return f"model {_shown(name, 300)}: no built-in and no file of that name; {names}; or give a config.json"


def _read_object(file: Path) -> dict[str, object]:
    if not file.is_file() or file.stat().st_size > LARGEST_FILE_BYTES:
        raise InputError(f"{file}: not a config.json: expected a file of at most 10 MB")
    try:
        config = json.loads(file.read_bytes().decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        raise InputError(f"{file}: not text (byte {error.start}): expected a config.json") from None
    except json.JSONDecodeError as error:
        at = f"line {error.lineno} column {error.colno}"
        raise InputError(f"{file}: not valid JSON at {at}: {error.msg}") from None
    except (ValueError, RecursionError):
        raise InputError(f"{file}: a number too long or values nested too deep for a config.json") from None
    if not isinstance(config, dict):
        raise InputError(f"{file}: expected a JSON object, got {_shown(config)}")
    return config
