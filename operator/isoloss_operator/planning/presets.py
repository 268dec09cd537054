"""Which models a sweep can train: presets by name, and parameter counts in closed form.

The operator counts parameters without building a model; the trainer checks the same numbers against the
model it built. Only architectures counted here are accepted, because a wrong N is a wrong law.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from isoloss_contract.records import ParameterCounts

MAX_POSITIONS = 8192
PAPER_VOCABULARY = 131_072
TOY_VOCABULARY = 1024


class UnsupportedModel(ValueError):
    """A model configuration that can not be counted; `field` is the key at fault."""

    def __init__(self, field: str, message: str) -> None:
        super().__init__(f"{field}: {message}")
        self.field = field
        self.message = message


def _llama(
    *,
    layers: int,
    hidden: int,
    ffn: int,
    heads: int,
    kv_heads: int,
    head_dim: int,
    vocabulary: int,
) -> dict[str, Any]:
    return {
        "model_type": "llama",
        "vocab_size": vocabulary,
        "hidden_size": hidden,
        "intermediate_size": ffn,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "head_dim": head_dim,
        "max_position_embeddings": MAX_POSITIONS,
        "tie_word_embeddings": False,
    }


def _deepseek_v3(
    *,
    layers: int,
    hidden: int,
    ffn: int,
    expert_ffn: int,
    experts: int,
    active_experts: int,
    heads: int,
    nope: int,
    q_rank: int,
    kv_rank: int,
    vocabulary: int,
) -> dict[str, Any]:
    return {
        "model_type": "deepseek_v3",
        "vocab_size": vocabulary,
        "hidden_size": hidden,
        "intermediate_size": ffn,
        "moe_intermediate_size": expert_ffn,
        "num_hidden_layers": layers,
        "first_k_dense_replace": 1,
        "num_attention_heads": heads,
        "num_key_value_heads": heads,
        "q_lora_rank": q_rank,
        "kv_lora_rank": kv_rank,
        # 128 / 64 / 128 in the paper. Value heads are narrower than query heads (128 against 192): the
        # trainer widens them with zeros, because flash attention wants both equal.
        "qk_nope_head_dim": nope,
        "qk_rope_head_dim": nope // 2,
        "v_head_dim": nope,
        "n_routed_experts": experts,
        "n_shared_experts": 1,
        "num_experts_per_tok": active_experts,
        "n_group": 1,
        "topk_group": 1,
        "max_position_embeddings": MAX_POSITIONS,
        "tie_word_embeddings": False,
    }


@dataclass(frozen=True)
class Preset:
    """A proxy known by name; `build` takes the vocabulary size."""

    description: str
    build: Callable[[int], dict[str, Any]]
    vocabulary: int | None
    """None: that of the tokenizer."""


PRESETS: Mapping[str, Preset] = {
    # Grouped queries as in Zhou et al.'s Dense-8B; what fewer key-value heads save went to the
    # feed-forward layers, which then are 3.2 hidden sizes wide (theirs: 3.5).
    "dense-100m": Preset(
        "Llama, 12 layers x 768, 86 M in the layers and 101 M in the head",
        lambda v: _llama(
            layers=12, hidden=768, ffn=2432, heads=6, kv_heads=2, head_dim=128, vocabulary=v
        ),
        PAPER_VOCABULARY,
    ),
    "dense-500m": Preset(
        "Llama, 24 layers x 1280, 472 M in the layers and 168 M in the head",
        lambda v: _llama(
            layers=24, hidden=1280, ffn=4096, heads=10, kv_heads=2, head_dim=128, vocabulary=v
        ),
        PAPER_VOCABULARY,
    ),
    # Widths and ranks in the proportions of Zhou et al.'s MoE-3B (FFN 2 h, expert FFN h/3, ranks h/2
    # and h/6) in multiples of 64, 8 experts of 64 instead of 256: so that the larger one trains on one
    # 80 GB device.
    "moe-100m": Preset(
        "DeepSeek-V3 (MLA), 12 layers x 768, 8 of 64 experts, 83 M active in the layers",
        lambda v: _deepseek_v3(
            layers=12,
            hidden=768,
            ffn=1536,
            expert_ffn=256,
            experts=64,
            active_experts=8,
            heads=6,
            nope=128,
            q_rank=384,
            kv_rank=128,
            vocabulary=v,
        ),
        PAPER_VOCABULARY,
    ),
    "moe-500m": Preset(
        "DeepSeek-V3 (MLA), 24 layers x 1280, 8 of 64 experts, 476 M active in the layers",
        lambda v: _deepseek_v3(
            layers=24,
            hidden=1280,
            ffn=2560,
            expert_ffn=448,
            experts=64,
            active_experts=8,
            heads=10,
            nope=128,
            q_rank=640,
            kv_rank=192,
            vocabulary=v,
        ),
        PAPER_VOCABULARY,
    ),
    "dense-tiny": Preset(
        "Llama, 2 layers x 64, about 0.15 M with its head: for trying out on a CPU",
        lambda v: _llama(
            layers=2, hidden=64, ffn=176, heads=2, kv_heads=1, head_dim=32, vocabulary=v
        ),
        None,
    ),
    "dense-small": Preset(
        "Llama, 3 layers x 128, about 0.7 M with its head: for trying out on a CPU",
        lambda v: _llama(
            layers=3, hidden=128, ffn=352, heads=4, kv_heads=2, head_dim=32, vocabulary=v
        ),
        None,
    ),
    "moe-tiny": Preset(
        "DeepSeek-V3 (MLA), 2 layers x 64, 2 of 8 experts: for trying out on a CPU",
        lambda v: _deepseek_v3(
            layers=2,
            hidden=64,
            ffn=128,
            expert_ffn=32,
            experts=8,
            active_experts=2,
            heads=2,
            nope=32,
            q_rank=32,
            kv_rank=16,
            vocabulary=v,
        ),
        None,
    ),
}


def preset_config(name: str, tokenizer_vocabulary: int | None = None) -> dict[str, Any]:
    """The transformers configuration of a preset.

    Toy presets take `tokenizer_vocabulary` (1024 where unknown); the others keep their own. Raises
    UnsupportedModel for an unknown name.
    """
    preset = PRESETS.get(name)
    if preset is None:
        raise UnsupportedModel(
            "preset", f"{name!r} is not known; choose one of {', '.join(PRESETS)}"
        )
    return preset.build(preset.vocabulary or tokenizer_vocabulary or TOY_VOCABULARY)


# --------------------------------------------------------------------------- what a config may say


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
SUPPORTED_MODEL_TYPES = tuple(_EXTRA_KEYS)


def model_type(config: Mapping[str, Any]) -> str:
    """The config's model_type. Raises UnsupportedModel where it is missing or not counted here."""
    value = config.get("model_type")
    if not isinstance(value, str) or value not in _EXTRA_KEYS:
        raise UnsupportedModel(
            "model_type",
            f"{value!r} is not supported; use one of {', '.join(SUPPORTED_MODEL_TYPES)}",
        )
    return value


def unknown_keys(config: Mapping[str, Any]) -> dict[str, str]:
    """Keys that the model type does not know, each with a message.

    transformers ignores them in silence, and a misspelt size would then train its default.
    """
    kind = model_type(config)
    known = _COMMON_KEYS | _EXTRA_KEYS[kind]
    return {
        key: f"is no setting of {kind}" + _suggestion(key, known)
        for key in sorted(config)
        if key not in known
    }


def _suggestion(key: str, known: frozenset[str]) -> str:
    close = difflib.get_close_matches(key, sorted(known), n=1)
    return f"; did you mean {close[0]}?" if close else ""


# ------------------------------------------------------------------------------------ the counts


@dataclass(frozen=True)
class AttentionShape:
    """What attention scores cost: per layer, all heads' query and value widths together."""

    layers: int
    query_width: int
    """heads * width of a query head."""
    value_width: int
    window: int | None = None
    """Tokens a query looks back, itself included; None: all."""


def parameter_counts(config: Mapping[str, Any]) -> ParameterCounts:
    """Parameters by part, in closed form, of the model that transformers builds from `config`.

    Expert layers count experts per token and the router as active. Raises UnsupportedModel naming the
    key that is missing, of the wrong type, out of range or (model_type) unknown.
    """
    kind = model_type(config)
    shape = _Reader(config)
    hidden, vocabulary = shape.count("hidden_size"), shape.count("vocab_size")
    layers = shape.count("num_hidden_layers")
    attention = _mla(shape) if kind == "deepseek_v3" else _attention(shape, kind)
    feed_forwards = _FEED_FORWARDS[kind](shape, layers)
    tied = shape.flag("tie_word_embeddings", default=False)
    return ParameterCounts(
        body_active=layers * attention.matrices + sum(f.active for f in feed_forwards),
        body_total=layers * attention.matrices + sum(f.total for f in feed_forwards),
        head=hidden * vocabulary,
        embedding=0 if tied else hidden * vocabulary,
        other=layers * (attention.other + 2 * hidden)
        + hidden
        + sum(f.other for f in feed_forwards),
    )


def attention_shape(config: Mapping[str, Any]) -> AttentionShape:
    """Widths that enter the cost of attention scores. Raises UnsupportedModel as parameter_counts."""
    kind = model_type(config)
    shape = _Reader(config)
    layers, heads = shape.count("num_hidden_layers"), shape.count("num_attention_heads")
    if kind == "deepseek_v3":
        query = shape.count("qk_nope_head_dim") + shape.count("qk_rope_head_dim")
        return AttentionShape(layers, heads * query, heads * shape.count("v_head_dim"))
    width = heads * _head_dim(shape, kind)
    window = config.get("sliding_window") if kind in ("mistral", "mixtral") else None
    return AttentionShape(layers, width, width, window if isinstance(window, int) else None)


@dataclass(frozen=True)
class _AttentionCounts:
    matrices: int
    other: int


@dataclass(frozen=True)
class _FeedForwardCounts:
    active: int
    total: int
    other: int = 0


class _Reader:
    """Reads a config's numbers; every complaint names its key."""

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
        value = self._config.get(key, default)
        if not isinstance(value, bool):
            raise UnsupportedModel(key, f"must be true or false, not {value!r}")
        return value

    def is_null(self, key: str) -> bool:
        """Present and null: for DeepSeek-V3's q_lora_rank that says 'no low-rank queries'."""
        return key in self._config and self._config[key] is None

    def indices(self, key: str) -> frozenset[int]:
        value = self._config.get(key) or ()
        if not isinstance(value, list | tuple) or not all(isinstance(i, int) for i in value):
            raise UnsupportedModel(key, f"must be a list of layer numbers, not {value!r}")
        return frozenset(value)

    def either(self, *keys: str) -> int:
        """A positive integer under any of several names of the same thing."""
        present = [key for key in keys if self._config.get(key) is not None]
        return self.count(present[0] if present else keys[0])


def _head_dim(shape: _Reader, kind: str) -> int:
    heads, hidden = shape.count("num_attention_heads"), shape.count("hidden_size")
    if kind == "qwen3":
        return shape.count("head_dim", 128)
    if hidden % heads and not shape.count_or_zero("head_dim", 0):
        raise UnsupportedModel(
            "num_attention_heads", f"{heads} does not divide hidden_size {hidden}; set head_dim"
        )
    return shape.count("head_dim", hidden // heads)


def _attention(shape: _Reader, kind: str) -> _AttentionCounts:
    hidden, heads = shape.count("hidden_size"), shape.count("num_attention_heads")
    kv_heads = shape.count("num_key_value_heads", heads if kind == "llama" else None)
    if heads % kv_heads:
        raise UnsupportedModel("num_key_value_heads", f"{kv_heads} does not divide {heads} heads")
    head_dim = _head_dim(shape, kind)
    query, key_value = heads * head_dim, kv_heads * head_dim
    has_bias = kind in ("llama", "qwen3", "qwen3_moe") and shape.flag(
        "attention_bias", default=False
    )
    biases = query + 2 * key_value + hidden if has_bias else 0
    gains = 2 * head_dim if kind in ("qwen3", "qwen3_moe") else 0
    return _AttentionCounts(2 * hidden * query + 2 * hidden * key_value, biases + gains)


def _mla(shape: _Reader) -> _AttentionCounts:
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


def _dense_layers(shape: _Reader, layers: int) -> list[_FeedForwardCounts]:
    hidden, width = shape.count("hidden_size"), shape.count("intermediate_size")
    matrices = _gated(hidden, width)
    biases = 2 * width + hidden if shape.flag("mlp_bias", default=False) else 0
    return [_FeedForwardCounts(matrices, matrices, biases)] * layers


def _experts(
    shape: _Reader, *, width: int, experts: int, shared_width: int = 0
) -> _FeedForwardCounts:
    hidden, chosen = shape.count("hidden_size"), shape.count("num_experts_per_tok")
    if chosen > experts:
        raise UnsupportedModel("num_experts_per_tok", f"{chosen} is more than {experts} experts")
    always = hidden * experts + _gated(hidden, shared_width)
    return _FeedForwardCounts(
        always + chosen * _gated(hidden, width), always + experts * _gated(hidden, width)
    )


def _mixtral_layers(shape: _Reader, layers: int) -> list[_FeedForwardCounts]:
    experts = shape.either("num_local_experts", "num_experts")
    return [_experts(shape, width=shape.count("intermediate_size"), experts=experts)] * layers


def _qwen3_moe_layers(shape: _Reader, layers: int) -> list[_FeedForwardCounts]:
    hidden, dense_width = shape.count("hidden_size"), shape.count("intermediate_size")
    dense = _FeedForwardCounts(_gated(hidden, dense_width), _gated(hidden, dense_width))
    sparse = _experts(
        shape,
        width=shape.count("moe_intermediate_size"),
        experts=shape.either("num_experts", "num_local_experts"),
    )
    dense_layers, step = shape.indices("mlp_only_layers"), shape.count("decoder_sparse_step", 1)
    return [
        dense if layer in dense_layers or (layer + 1) % step else sparse for layer in range(layers)
    ]


def _deepseek_v3_layers(shape: _Reader, layers: int) -> list[_FeedForwardCounts]:
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
    return [dense] * dense_layers + [sparse] * (layers - dense_layers)


_FEED_FORWARDS: Mapping[str, Callable[[_Reader, int], list[_FeedForwardCounts]]] = {
    "llama": _dense_layers,
    "mistral": _dense_layers,
    "qwen3": _dense_layers,
    "qwen3_moe": _qwen3_moe_layers,
    "mixtral": _mixtral_layers,
    "deepseek_v3": _deepseek_v3_layers,
}
