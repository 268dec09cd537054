"""Which transformers configurations are understood: model types, their keys, and reading them strictly.

Only architectures that `parameters.py` counts are accepted, because a wrong N is a wrong law.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import Any


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
_EXTRA_KEYS: Mapping[str, frozenset[str]] = {
    "llama": _words("mlp_bias"),
    "mistral": _words("sliding_window"),
    "qwen3": frozenset(
        {"use_sliding_window", "sliding_window", "max_window_layers", "layer_types"}
    ),
    "qwen3_moe": _words(
        "use_sliding_window sliding_window max_window_layers decoder_sparse_step moe_intermediate_size"
        " num_experts_per_tok num_experts num_local_experts norm_topk_prob output_router_logits"
        " router_aux_loss_coef mlp_only_layers"
    ),
    "mixtral": _words(
        "sliding_window num_experts_per_tok num_local_experts num_experts output_router_logits"
        " router_aux_loss_coef router_jitter_noise"
    ),
    "deepseek_v3": _words(
        "moe_intermediate_size n_shared_experts n_routed_experts routed_scaling_factor kv_lora_rank"
        " q_lora_rank qk_rope_head_dim v_head_dim qk_nope_head_dim n_group topk_group"
        " num_experts_per_tok first_k_dense_replace norm_topk_prob rope_interleave"
        " output_router_logits num_nextn_predict_layers ep_size moe_layer_freq scoring_func"
        " topk_method aux_loss_alpha seq_aux"
    ),
}
_RANDOM_KEYS = ("attention_dropout", "router_jitter_noise")
SUPPORTED_MODEL_TYPES = tuple(_EXTRA_KEYS)


def model_type(config: Mapping[str, Any]) -> str:
    """The config's model_type. Raises UnsupportedModel if it is missing or not supported."""
    value = config.get("model_type")
    if not isinstance(value, str) or value not in _EXTRA_KEYS:
        raise UnsupportedModel(
            "model_type",
            f"{value!r} is not supported; use one of {', '.join(SUPPORTED_MODEL_TYPES)}",
        )
    return value


def unknown_keys(config: Mapping[str, Any]) -> dict[str, str]:
    """Keys that the model type does not have, or that no trainer takes, each with a message.

    transformers ignores the former silently: a misspelt size would train its default.
    """
    kind = model_type(config)
    known = _COMMON_KEYS | _EXTRA_KEYS[kind]
    unknown = {
        key: f"is not a setting of {kind}" + _suggestion(key, known)
        for key in sorted(config)
        if key not in known
    }
    random = [key for key in _RANDOM_KEYS if key in known and config.get(key)]
    why = "must be 0: a run must be reproducible from its seed and step alone"
    return {**unknown, **dict.fromkeys(random, why)}


def _suggestion(key: str, known: frozenset[str]) -> str:
    close = difflib.get_close_matches(key, sorted(known), n=1)
    return f"; did you mean {close[0]}?" if close else ""


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
            raise UnsupportedModel(key, f"must be a positive integer, not {value!r}")
        return value

    def count_or_zero(self, key: str, default: int | None = None) -> int:
        """A non-negative integer; null counts as absent."""
        return 0 if self._config.get(key, default) == 0 else self.count(key, default)

    def flag(self, key: str, *, default: bool) -> bool:
        """True or false."""
        value = self._config.get(key, default)
        if not isinstance(value, bool):
            raise UnsupportedModel(key, f"must be true or false, not {value!r}")
        return value

    def is_null(self, key: str) -> bool:
        """Present and null: DeepSeek-V3's q_lora_rank says 'no low-rank queries' this way."""
        return key in self._config and self._config[key] is None

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
