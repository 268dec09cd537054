"""Which transformers configurations are understood: model types and their keys.

Only architectures that `parameters.py` counts are accepted, because a wrong N is a wrong law.
"""

import difflib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal


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


def _suggestion(key: str, known: frozenset[str]) -> str:
    close = difflib.get_close_matches(key, sorted(known), n=1)
    return f"; did you mean {close[0]}?" if close else ""
