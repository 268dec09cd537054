"""Models by their transformers configurations: which types and settings are understood, and what they count, in closed form.

The operator counts parameters without building a model; the trainer checks the same numbers against the model it built. Only
families that are counted here are accepted, because a wrong N is a wrong law.
"""

import difflib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, Literal

from isoloss_contract import model_settings
from isoloss_contract.footprint import ModelShape, copied_numbers, kept_numbers
from isoloss_contract.records import AttentionShape, ParameterCounts


class UnsupportedModel(ValueError):
    """A model whose parameters cannot be counted; `field` is the key at fault."""

    def __init__(self, field: str, message: str) -> None:
        super().__init__(f"{field}: {message}")
        self.field = field
        self.message = message


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


_COMMON_KEYS = _words(
    "model_type vocab_size hidden_size intermediate_size num_hidden_layers num_attention_heads"
    " num_key_value_heads head_dim max_position_embeddings hidden_act initializer_range rms_norm_eps"
    " tie_word_embeddings rope_theta rope_scaling rope_parameters attention_bias attention_dropout"
    " bos_token_id eos_token_id pad_token_id use_cache pretraining_tp architectures torch_dtype dtype"
    " transformers_version"
)


@dataclass(frozen=True)
class Family:
    """How a model type differs from Llama: in its settings, and in what parameters it has of them."""

    kept: str = ""
    """Settings of its own, which proxies of a checkpoint take over as they are."""
    unkept: str = ""
    """Settings of its own that say nothing of a proxy."""
    defaults: Mapping[str, Any] = field(default_factory=dict)
    """What transformers takes for settings that decide a size, where published configs leave them out."""
    fixed: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    """The only values with which the trainer computes what transformers does; absent is one of them."""
    widths: str = "intermediate_size"
    """Settings that grow with hidden_size, rounded as it is …"""
    proportional: str = ""
    """… and those that grow with it exactly."""
    by_layer: str = ""
    """Lists with an entry for each layer."""
    layer_numbers: str = ""
    """Lists of layers by their numbers."""
    periods: str = ""
    """Settings, or numbers: one of so many layers is of another kind, where no list says which."""
    has_equal_heads: bool = False
    """Whether transformers (5.23) refuses a hidden_size that num_attention_heads does not divide, whatever head_dim is."""
    biases: str = ""
    """Which of the matrices q, k, v and o have biases with `attention_bias`."""
    always_biased: bool = False
    """Whether they have them without it, too."""
    query_norm: Literal["none", "head", "all"] = "none"
    """Queries and keys are normed by head, or all heads together, with gains."""
    norms: int = 2
    """Norms of a layer, each with a gain of hidden_size."""
    has_sinks: bool = False
    """Whether each head has a number beside its scores, to which a query may give its weight."""
    window: Literal["none", "all", "layers"] = "none"
    """Which layers attend to no more than `sliding_window` tokens: all, or those that layer_types or a rule names."""

    @property
    def keys(self) -> frozenset[str]:
        """Every setting of its own."""
        shape = f"{self.widths} {self.proportional} {self.by_layer} {self.layer_numbers} {self.periods}"
        return _words(f"{self.kept} {self.unkept} {shape} {' '.join(self.fixed)}")


_WINDOWS = "use_sliding_window sliding_window max_window_layers"
_EXPERTS = "num_experts num_local_experts num_experts_per_tok router_aux_loss_coef"
_ROUTER = "output_router_logits router_jitter_noise"
_SIGMOID = (
    "n_routed_experts n_shared_experts num_experts_per_tok n_group topk_group norm_topk_prob"
    " routed_scaling_factor"
)
FAMILIES: Mapping[str, Family] = {
    "llama": Family("mlp_bias", has_equal_heads=True, biases="qkvo"),
    "mistral": Family("sliding_window", defaults={"sliding_window": 4096}, window="all"),
    "qwen3": Family(
        unkept=_WINDOWS,
        by_layer="layer_types",
        defaults={"head_dim": 128},
        biases="qkvo",
        query_norm="head",
        window="layers",
    ),
    "qwen3_moe": Family(
        f"{_EXPERTS} norm_topk_prob",
        f"{_WINDOWS} {_ROUTER}",
        widths="intermediate_size moe_intermediate_size",
        periods="decoder_sparse_step",
        layer_numbers="mlp_only_layers",
        biases="qkvo",
        query_norm="head",
        window="all",
    ),
    "mixtral": Family(f"sliding_window {_EXPERTS}", _ROUTER, window="all"),
    "deepseek_v3": Family(
        f"{_SIGMOID} qk_nope_head_dim qk_rope_head_dim v_head_dim scoring_func topk_method rope_interleave",
        f"{_ROUTER} num_nextn_predict_layers ep_size aux_loss_alpha seq_aux first_k_dense_replace",
        fixed={"moe_layer_freq": (None, 1)},
        widths="intermediate_size moe_intermediate_size q_lora_rank kv_lora_rank",
    ),
    "qwen2": Family(
        unkept=f"{_WINDOWS} use_mrope",
        by_layer="layer_types",
        biases="qkv",
        always_biased=True,
        window="layers",
    ),
    "gemma3_text": Family(
        "hidden_activation query_pre_attn_scalar sliding_window rope_local_base_freq",
        "cache_implementation _sliding_window_pattern",
        defaults={
            "vocab_size": 262_208,
            "num_attention_heads": 8,
            "num_key_value_heads": 4,
            "head_dim": 256,
            "sliding_window": 4096,
            "sliding_window_pattern": 6,
            "max_position_embeddings": 131_072,
            "tie_word_embeddings": True,
        },
        fixed={
            "final_logit_softcapping": (None,),
            "attn_logit_softcapping": (None,),
            "use_bidirectional_attention": (None, False),
        },
        by_layer="layer_types",
        periods="sliding_window_pattern",
        has_equal_heads=True,
        biases="qkvo",
        query_norm="head",
        norms=4,
        window="layers",
    ),
    "olmo2": Family(biases="qkvo", query_norm="all"),
    "gpt_oss": Family(
        f"{_EXPERTS} sliding_window swiglu_limit swiglu_alpha",
        f"{_ROUTER} experts_per_token initial_context_length",
        defaults={"head_dim": 64, "attention_bias": True, "sliding_window": 128},
        by_layer="layer_types",
        periods="2",
        biases="qkvo",
        has_sinks=True,
        window="layers",
    ),
    "smollm3": Family(
        "mlp_bias",
        _WINDOWS,
        defaults={
            "num_key_value_heads": 4,
            "tie_word_embeddings": True,
            "no_rope_layer_interval": 4,
        },
        by_layer="no_rope_layers layer_types",
        periods="no_rope_layer_interval",
        biases="qkvo",
        window="layers",
    ),
    "glm4": Family(
        "partial_rotary_factor",
        defaults={"head_dim": 128, "num_key_value_heads": 2, "attention_bias": True},
        biases="qkv",
        norms=4,
    ),
    "glm4_moe": Family(
        f"{_SIGMOID} partial_rotary_factor use_qk_norm",
        f"{_ROUTER} num_nextn_predict_layers first_k_dense_replace",
        defaults={"n_shared_experts": 1, "first_k_dense_replace": 1},
        widths="intermediate_size moe_intermediate_size",
        biases="qkv",
        query_norm="head",
    ),
    "phi3": Family(
        "partial_rotary_factor original_max_position_embeddings sliding_window",
        "full_attn_mod interpolate_factor resid_pdrop embd_pdrop",
        fixed={"lm_head_bias": (None, False), "mlp_bias": (None, False)},
        window="all",
    ),
    "granite": Family(
        "embedding_multiplier residual_multiplier attention_multiplier mlp_bias",
        proportional="logits_scaling",
        biases="qkvo",
    ),
    "llama4_text": Family(
        f"{_EXPERTS} attention_chunk_size attn_temperature_tuning floor_scale attn_scale use_qk_norm",
        f"{_ROUTER} for_llm_compressor",
        defaults={
            "head_dim": 128,
            "no_rope_layer_interval": 4,
            "interleave_moe_layer_step": 1,
            "attention_chunk_size": 8192,
        },
        widths="intermediate_size intermediate_size_mlp",
        periods="no_rope_layer_interval interleave_moe_layer_step",
        by_layer="no_rope_layers layer_types",
        layer_numbers="moe_layers",
        biases="qkvo",
    ),
}
"""By model type."""
WRAPPERS: Mapping[str, str] = {
    "gemma3": "gemma3_text",
    "mistral3": "mistral",
    "llama4": "llama4_text",
}
"""Models with a text decoder of this type among others, as `text_config`."""
_RANDOM_KEYS = ("attention_dropout", "router_jitter_noise", "resid_pdrop", "embd_pdrop")
SUPPORTED_MODEL_TYPES = tuple(FAMILIES)


def text_model(config: Mapping[str, Any]) -> dict[str, Any]:
    """The config of the text decoder: a model that reads more than text has it as `text_config`."""
    text = config.get("text_config")
    if not isinstance(text, Mapping):
        return dict(config)
    kind = WRAPPERS.get(str(config.get("model_type")))
    ties = {key: config[key] for key in ("tie_word_embeddings",) if key in config}
    return {**({"model_type": kind} if kind else {}), **ties, **text}


def completed(config: Mapping[str, Any]) -> dict[str, Any]:
    """With what transformers takes for the sizes that are left out. Raises UnsupportedModel for an unknown model type."""
    return {**FAMILIES[model_type(config)].defaults, **config}


def model_type(config: Mapping[str, Any]) -> str:
    """The config's model_type. Raises UnsupportedModel if it is missing or not supported."""
    value = config.get("model_type")
    if not isinstance(value, str) or value not in FAMILIES:
        raise UnsupportedModel(
            "model_type",
            f"{value!r} is not supported; use one of {', '.join(SUPPORTED_MODEL_TYPES)}",
        )
    return value


def known_keys(kind: str) -> frozenset[str]:
    """The settings of a model type."""
    return _COMMON_KEYS | FAMILIES[kind].keys


def unknown_keys(config: Mapping[str, Any]) -> dict[str, str]:
    """Keys that the model type does not have, or whose value no trainer takes, each with a message.

    transformers ignores the former silently: a misspelt size would train its default.
    """
    kind = model_type(config)
    known = known_keys(kind)
    unknown = {
        key: f"is not a setting of {kind}" + _suggestion(key, known)
        for key in sorted(config)
        if key not in known
    }
    random = [key for key in _RANDOM_KEYS if key in known and config.get(key)]
    why = "must be 0: a run must be reproducible from its seed and step alone"
    return {**unknown, **dict.fromkeys(random, why), **unsupported_values(config)}


def unsupported_values(config: Mapping[str, Any]) -> dict[str, str]:
    """Settings with a value that the trainer does not compute as the model type does, each with a message."""
    return {
        key: f"only {json.dumps(values[-1])} is supported: the trainer computes no other"
        for key, values in FAMILIES[model_type(config)].fixed.items()
        if config.get(key) not in values
    }


def measuring_refusal(config: Mapping[str, Any], sequence_length: int) -> str | None:
    """Why the trainer would not measure a checkpoint with this config.json, or would measure another model than the one that
    was trained, as far as that shows without transformers; None if nothing does."""
    settings = text_model(config)
    kind = str(settings.get("model_type"))
    known = known_keys(kind) if kind in FAMILIES else settings.keys()
    unread = (
        model_settings.unread(name, settings[name], kind)
        for name in sorted(settings.keys() - known)
        if model_settings.has_effect(name, settings, sequence_length)
    )
    quantization = model_settings.quantization_refusal(config)
    return quantization or model_settings.rope_contradiction(settings) or next(unread, None)


def _suggestion(key: str, known: frozenset[str]) -> str:
    close = difflib.get_close_matches(key, sorted(known), n=1)
    return f"; did you mean {close[0]}?" if close else ""


# -------------------------------------------------------------------------- what they count


class ConfigReader:
    """Reads a config's numbers. Every UnsupportedModel that it raises names its key."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        self._config = config

    def count(self, key: str, default: int | None = None) -> int:
        """A positive integer; null counts as absent."""
        value = self._config.get(key)
        if value is None:
            value = default
        if value is None:
            raise UnsupportedModel(key, "is required")
        if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= 2**31:
            raise UnsupportedModel(key, f"must be a positive integer, not {value!r:.60}")
        return value

    def count_or_zero(self, key: str, default: int | None = None) -> int:
        """A non-negative integer; null counts as absent."""
        value = self._config.get(key)
        return 0 if (default if value is None else value) == 0 else self.count(key, default)

    def number(self, key: str) -> float | None:
        """A positive number; None if absent or null."""
        value = self._config.get(key)
        if value is None or (isinstance(value, int | float) and 0 < value < 2**31):
            return None if value is None else float(value)
        raise UnsupportedModel(key, f"must be a positive number, not {value!r}")

    def flag(self, key: str, *, default: bool) -> bool:
        """True or false."""
        value = self._config.get(key, default)
        if not isinstance(value, bool):
            raise UnsupportedModel(key, f"must be true or false, not {value!r}")
        return value

    def is_absent(self, key: str) -> bool:
        """Left out, or null."""
        return self._config.get(key) is None

    def is_null(self, key: str) -> bool:
        """Present and null: DeepSeek-V3's q_lora_rank says 'no low-rank queries' this way."""
        return key in self._config and self._config[key] is None

    def by_layer(self, key: str, layers: int) -> list[Any]:
        """A list with an entry for each of so many layers; null counts as empty."""
        value = self._config.get(key) or []
        is_list = isinstance(value, list) and all(isinstance(each, str | int) for each in value)
        if not is_list or (value and len(value) != layers):
            message = f"must be a list with an entry for each of {layers:,} layers"
            raise UnsupportedModel(key, message)
        return list(value)

    def indices(self, key: str) -> frozenset[int]:
        """A list of layer numbers; null counts as empty."""
        value = self._config.get(key) or ()
        if not isinstance(value, list | tuple) or not all(isinstance(i, int) for i in value):
            raise UnsupportedModel(key, f"must be a list of layer numbers, not {value!r}")
        return frozenset(value)

    def either(self, *keys: str) -> int:
        """A positive integer under the first of several names that is present."""
        present = [key for key in keys if self._config.get(key) is not None]
        return self.count(present[0] if present else keys[0])


def _read(config: Mapping[str, Any]) -> tuple[str, ConfigReader]:
    """What transformers reads of it: settings that the model type does not have are ignored."""
    given = completed(config)
    kind = given["model_type"]
    known = known_keys(kind)
    return kind, ConfigReader({key: each for key, each in given.items() if key in known})


def parameter_counts(config: Mapping[str, Any]) -> ParameterCounts:
    """Parameters by part, in closed form, of the model that transformers builds from `config`.

    Expert layers count experts per token and the router as active. Raises UnsupportedModel naming the
    key that is missing, of the wrong type, out of range or (model_type) unknown.
    """
    return _counts(*_read(config))


def model_problems(config: Mapping[str, Any]) -> dict[str, str]:
    """What keeps a model from being counted or trained, by the setting at fault; empty: nothing."""
    try:
        kind, shape = _read(config)
        _counts(kind, shape)
        _attention_shapes(kind, shape)
    except UnsupportedModel as error:
        return {error.field: error.message}
    rope = model_settings.rope_contradiction(config)
    return {**({"rope_scaling": rope} if rope else {}), **unknown_keys(config)}


NOT_THE_MODEL: Final = frozenset({"_name_or_path", "auto_map", "qk_head_dim"})
"""Keys of a config.json that say where it came from, or what others say already. The trainer runs no code that
auto_map names; DeepSeek-V3's qk_head_dim is the sum of two others."""


def checkpoint_model(config: Mapping[str, Any]) -> dict[str, Any]:
    """The model of a checkpoint's config.json, of which text is read alone. Raises UnsupportedModel."""
    model = {key: each for key, each in text_model(config).items() if key not in NOT_THE_MODEL}
    for key, message in model_problems(model).items():
        raise UnsupportedModel(key, message)
    return completed(model)


def _counts(kind: str, shape: ConfigReader) -> ParameterCounts:
    hidden, vocabulary = shape.count("hidden_size"), shape.count("vocab_size")
    layers = shape.count("num_hidden_layers")
    attention = _attention(shape, kind)
    feed_forwards = _FEED_FORWARDS.get(kind, _dense_layers)(shape, layers)
    tied = shape.flag("tie_word_embeddings", default=False)
    return ParameterCounts(
        body_active=layers * attention.matrices + sum(n * f.active for n, f in feed_forwards),
        body_total=layers * attention.matrices + sum(n * f.total for n, f in feed_forwards),
        head=hidden * vocabulary,
        embedding=0 if tied else hidden * vocabulary,
        other=layers * (attention.other + FAMILIES[kind].norms * hidden)
        + hidden
        + sum(n * f.other for n, f in feed_forwards),
    )


def attention_shapes(config: Mapping[str, Any]) -> tuple[AttentionShape, ...]:
    """Widths that enter the cost of attention scores, for each kind of layer. Raises UnsupportedModel as parameter_counts."""
    return _attention_shapes(*_read(config))


def _attention_shapes(kind: str, shape: ConfigReader) -> tuple[AttentionShape, ...]:
    layers, heads = shape.count("num_hidden_layers"), shape.count("num_attention_heads")
    if kind == "deepseek_v3":
        query = shape.count("qk_nope_head_dim") + shape.count("qk_rope_head_dim")
        widths = heads * query, heads * shape.count("v_head_dim")
    else:
        widths = (heads * head_dim(shape, kind),) * 2
    narrow, window = _narrow_layers(shape, kind, layers)
    counts = ((layers - narrow, None), (narrow, window))
    return tuple(
        AttentionShape(
            layers=count,
            query_width=widths[0],
            value_width=widths[1],
            window=window,
            in_chunks=window is not None and kind == "llama4_text",
        )
        for count, window in counts
        if count
    )


def _narrow_layers(shape: ConfigReader, kind: str, layers: int) -> tuple[int, int | None]:
    """How many layers attend to no more than so many tokens."""
    if kind == "llama4_text":
        usual, chunk = layers - _without_positions(shape, layers), 0
        if not shape.is_absent("attention_chunk_size"):
            chunk = shape.count("attention_chunk_size")
        return _named(shape, "chunked_attention", layers, usual, chunk) if chunk else (0, None)
    where = FAMILIES[kind].window
    has_switch = "use_sliding_window" in FAMILIES[kind].keys
    if where == "none" or (has_switch and not shape.flag("use_sliding_window", default=False)):
        return 0, None
    if has_switch and shape.is_absent("sliding_window"):
        window = 0 if kind == "smollm3" else 4096
    else:
        window = shape.count_or_zero("sliding_window", 0)
    if not window or where == "all":
        return (layers, window) if window else (0, None)
    match kind:
        case "gemma3_text":
            usual = layers - layers // shape.count("sliding_window_pattern")
        case "gpt_oss":
            usual = layers - layers // 2
        case "smollm3":
            usual = _without_positions(shape, layers)
        case _:
            usual = max(0, layers - shape.count_or_zero("max_window_layers", 28))
    return _named(shape, "sliding_attention", layers, usual, window)


def _named(
    shape: ConfigReader, kind_of_layer: str, layers: int, usual: int, window: int
) -> tuple[int, int | None]:
    """Layers that layer_types calls so; the usual number where it is left out."""
    named = shape.by_layer("layer_types", layers)
    count = named.count(kind_of_layer) if named else usual
    return count, window if count else None


def _without_positions(shape: ConfigReader, layers: int) -> int:
    """Layers that do not rotate queries and keys."""
    listed = shape.by_layer("no_rope_layers", layers)
    return listed.count(0) if listed else layers // shape.count("no_rope_layer_interval")


def model_shape(config: Mapping[str, Any]) -> ModelShape:
    """What memory for training the model depends on. Raises UnsupportedModel as parameter_counts."""
    counts, (kind, shape) = parameter_counts(config), _read(config)
    hidden, layers = shape.count("hidden_size"), shape.count("num_hidden_layers")
    attention = _attention(shape, kind)
    feed_forwards = _FEED_FORWARDS.get(kind, _dense_layers)(shape, layers)
    largest = max(f.total + f.other for n, f in feed_forwards if n)
    # What transformers fills in where a config leaves it out.
    given = completed(config)
    if kind == "deepseek_v3":
        given["n_shared_experts"] = shape.count("n_shared_experts", 1)
    else:
        given["head_dim"] = head_dim(shape, kind)
    return ModelShape(
        parameters=counts.total,
        largest_layer=attention.matrices
        + attention.other
        + FAMILIES[kind].norms * hidden
        + largest,
        outside_layers=counts.head + counts.embedding + hidden,
        hidden=hidden,
        heads=shape.count("num_attention_heads"),
        vocabulary=shape.count("vocab_size"),
        kept=kept_numbers(given),
        copied=copied_numbers(given),
    )


@dataclass(frozen=True)
class _AttentionCounts:
    matrices: int
    other: int


@dataclass(frozen=True)
class _FeedForwardCounts:
    active: int
    total: int
    other: int = 0


def head_dim(shape: ConfigReader, kind: str) -> int:
    """Width of a head without latent attention. Raises UnsupportedModel as parameter_counts."""
    heads, hidden = shape.count("num_attention_heads"), shape.count("hidden_size")
    family = FAMILIES[kind]
    given = shape.count_or_zero("head_dim", 0) or family.defaults.get("head_dim", 0)
    if hidden % heads and (not given or family.has_equal_heads):
        asks = f", as transformers asks of {kind} whatever head_dim is"
        remedy = asks if family.has_equal_heads else "; set head_dim"
        raise UnsupportedModel(
            "num_attention_heads", f"{heads} does not divide hidden_size {hidden}{remedy}"
        )
    width = int(given or hidden // heads)
    if width % 2:
        raise UnsupportedModel(
            "head_dim", f"{width} is odd, and rotary positions take pairs: make it even"
        )
    return width


def key_value_heads(shape: ConfigReader, kind: str) -> int:
    """Heads of keys and values without latent attention. Raises UnsupportedModel as parameter_counts."""
    heads = shape.count("num_attention_heads")
    usual = heads if kind in _A_KEY_FOR_EACH_QUERY else None
    kv_heads = shape.count("num_key_value_heads", usual)
    if heads % kv_heads:
        raise UnsupportedModel("num_key_value_heads", f"{kv_heads} does not divide {heads} heads")
    return kv_heads


_A_KEY_FOR_EACH_QUERY = ("llama", "olmo2", "phi3", "granite")
"""Those for which transformers takes as many heads of keys as of queries, unless told."""


def _attention(shape: ConfigReader, kind: str) -> _AttentionCounts:
    if kind == "deepseek_v3":
        return _mla(shape)
    family, hidden = FAMILIES[kind], shape.count("hidden_size")
    width, heads = head_dim(shape, kind), shape.count("num_attention_heads")
    key_value = key_value_heads(shape, kind) * width
    widths = {"q": heads * width, "k": key_value, "v": key_value, "o": hidden}
    has_bias = family.always_biased or shape.flag("attention_bias", default=False)
    other = sum(widths[part] for part in family.biases) if has_bias else 0
    if kind != "glm4_moe" or shape.flag("use_qk_norm", default=False):
        gains = {"none": 0, "head": 2 * width, "all": widths["q"] + key_value}
        other += gains[family.query_norm]
    other += heads if family.has_sinks else 0
    return _AttentionCounts(2 * hidden * widths["q"] + 2 * hidden * key_value, other)


def _mla(shape: ConfigReader) -> _AttentionCounts:
    """Multi-head latent attention: queries and keys/values through low-rank products."""
    hidden, heads = shape.count("hidden_size"), shape.count("num_attention_heads")
    nope, rope = shape.count("qk_nope_head_dim"), shape.count("qk_rope_head_dim")
    value, kv_rank = shape.count("v_head_dim"), shape.count("kv_lora_rank")
    has_bias = shape.flag("attention_bias", default=False)
    queries = heads * (nope + rope)
    matrices = (
        hidden * (kv_rank + rope) + kv_rank * heads * (nope + value) + heads * value * hidden
    )
    other = kv_rank + ((kv_rank + rope + hidden) if has_bias else 0)
    if shape.is_null("q_lora_rank"):
        return _AttentionCounts(matrices + hidden * queries, other)
    rank = shape.count("q_lora_rank")
    return _AttentionCounts(
        matrices + rank * (hidden + queries), other + rank + (rank if has_bias else 0)
    )


def _gated(hidden: int, width: int) -> int:
    return 3 * hidden * width


Layers = list[tuple[int, _FeedForwardCounts]]
"""So many layers of each kind: multiplied, as a config may ask for hundreds of millions."""


def _dense_layers(shape: ConfigReader, layers: int) -> Layers:
    hidden, width = shape.count("hidden_size"), shape.count("intermediate_size")
    matrices = _gated(hidden, width)
    biases = 2 * width + hidden if shape.flag("mlp_bias", default=False) else 0
    return [(layers, _FeedForwardCounts(matrices, matrices, biases))]


def _experts(
    shape: ConfigReader, *, width: int, experts: int, shared_width: int = 0
) -> _FeedForwardCounts:
    hidden, chosen = shape.count("hidden_size"), shape.count("num_experts_per_tok")
    if chosen > experts:
        raise UnsupportedModel("num_experts_per_tok", f"{chosen} is more than {experts} experts")
    always = hidden * experts + _gated(hidden, shared_width)
    return _FeedForwardCounts(
        always + chosen * _gated(hidden, width), always + experts * _gated(hidden, width)
    )


def _mixtral_layers(shape: ConfigReader, layers: int) -> Layers:
    experts = shape.either("num_local_experts", "num_experts")
    return [(layers, _experts(shape, width=shape.count("intermediate_size"), experts=experts))]


def _gpt_oss_layers(shape: ConfigReader, layers: int) -> Layers:
    """Router and experts have biases."""
    ((_, found),) = _mixtral_layers(shape, layers)
    experts = shape.either("num_local_experts", "num_experts")
    biases = 1 + 2 * shape.count("intermediate_size") + shape.count("hidden_size")
    return [(layers, replace(found, other=experts * biases))]


def _llama4_layers(shape: ConfigReader, layers: int) -> Layers:
    """A shared expert as wide as the others; layers between mixtures are dense and of another width."""
    width, hidden = shape.count("intermediate_size"), shape.count("hidden_size")
    experts = shape.either("num_local_experts", "num_experts")
    sparse = _experts(shape, width=width, experts=experts, shared_width=width)
    mixtures = layers // shape.count("interleave_moe_layer_step")
    if not shape.is_absent("moe_layers"):
        mixtures = sum(0 <= layer < layers for layer in shape.indices("moe_layers"))
    dense = _gated(hidden, shape.count("intermediate_size_mlp", 16_384))
    return [(layers - mixtures, _FeedForwardCounts(dense, dense)), (mixtures, sparse)]


def _qwen3_moe_layers(shape: ConfigReader, layers: int) -> Layers:
    hidden, dense_width = shape.count("hidden_size"), shape.count("intermediate_size")
    dense = _FeedForwardCounts(_gated(hidden, dense_width), _gated(hidden, dense_width))
    sparse = _experts(
        shape,
        width=shape.count("moe_intermediate_size"),
        experts=shape.either("num_experts", "num_local_experts"),
    )
    dense_layers, step = shape.indices("mlp_only_layers"), shape.count("decoder_sparse_step", 1)
    excepted = sum(0 <= layer < layers and (layer + 1) % step == 0 for layer in dense_layers)
    mixtures = layers // step - excepted
    return [(layers - mixtures, dense), (mixtures, sparse)]


def _deepseek_layers(shape: ConfigReader, layers: int) -> Layers:
    hidden, dense_width = shape.count("hidden_size"), shape.count("intermediate_size")
    dense_layers = min(layers, shape.count_or_zero("first_k_dense_replace"))
    dense = _FeedForwardCounts(_gated(hidden, dense_width), _gated(hidden, dense_width))
    width = shape.count("moe_intermediate_size")
    sparse = _experts(
        shape,
        width=width,
        experts=shape.count("n_routed_experts"),
        shared_width=width * shape.count("n_shared_experts", 1),
    )
    return [(dense_layers, dense), (layers - dense_layers, sparse)]


_FEED_FORWARDS: Mapping[str, Callable[[ConfigReader, int], Layers]] = {
    "qwen3_moe": _qwen3_moe_layers,
    "mixtral": _mixtral_layers,
    "deepseek_v3": _deepseek_layers,
    "glm4_moe": _deepseek_layers,
    "gpt_oss": _gpt_oss_layers,
    "llama4_text": _llama4_layers,
}
"""Of families with experts; layers of others are dense and alike."""
