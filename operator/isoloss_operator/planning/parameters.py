"""Parameter counts in closed form, by family.

The operator counts parameters without building a model. The trainer checks the same numbers against the model
it built.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from isoloss_contract.footprint import ModelShape, copied_numbers, kept_numbers
from isoloss_contract.records import AttentionShape, ParameterCounts
from isoloss_operator.planning.architectures import ConfigReader, UnsupportedModel, model_type


def parameter_counts(config: Mapping[str, Any]) -> ParameterCounts:
    """Parameters by part, in closed form, of the model that transformers builds from `config`.

    Expert layers count experts per token and the router as active. Raises UnsupportedModel naming the
    key that is missing, of the wrong type, out of range or (model_type) unknown.
    """
    kind = model_type(config)
    shape = ConfigReader(config)
    hidden, vocabulary = shape.count("hidden_size"), shape.count("vocab_size")
    layers = shape.count("num_hidden_layers")
    attention = _attention(shape, kind)
    feed_forwards = _FEED_FORWARDS[kind](shape, layers)
    tied = shape.flag("tie_word_embeddings", default=False)
    return ParameterCounts(
        body_active=layers * attention.matrices + sum(n * f.active for n, f in feed_forwards),
        body_total=layers * attention.matrices + sum(n * f.total for n, f in feed_forwards),
        head=hidden * vocabulary,
        embedding=0 if tied else hidden * vocabulary,
        other=layers * (attention.other + 2 * hidden)
        + hidden
        + sum(n * f.other for n, f in feed_forwards),
    )


def attention_shape(config: Mapping[str, Any]) -> AttentionShape:
    """Widths that enter the cost of attention scores. Raises UnsupportedModel as parameter_counts."""
    kind = model_type(config)
    shape = ConfigReader(config)
    layers, heads = shape.count("num_hidden_layers"), shape.count("num_attention_heads")
    if kind == "deepseek_v3":
        query = shape.count("qk_nope_head_dim") + shape.count("qk_rope_head_dim")
        value = shape.count("v_head_dim")
        return AttentionShape(layers=layers, query_width=heads * query, value_width=heads * value)
    width = heads * head_dim(shape, kind)
    window = config.get("sliding_window", DEFAULT_WINDOW.get(kind)) if kind in _WINDOWED else None
    return AttentionShape(
        layers=layers,
        query_width=width,
        value_width=width,
        window=window if isinstance(window, int) else None,
    )


def model_shape(config: Mapping[str, Any]) -> ModelShape:
    """What memory for training the model depends on. Raises UnsupportedModel as parameter_counts."""
    counts, kind, shape = parameter_counts(config), model_type(config), ConfigReader(config)
    hidden, layers = shape.count("hidden_size"), shape.count("num_hidden_layers")
    attention = _attention(shape, kind)
    largest = max(f.total + f.other for n, f in _FEED_FORWARDS[kind](shape, layers) if n)
    # What transformers fills in where a config leaves it out.
    given = (
        {"n_shared_experts": shape.count("n_shared_experts", 1)}
        if kind == "deepseek_v3"
        else {"head_dim": head_dim(shape, kind)}
    )
    return ModelShape(
        parameters=counts.total,
        largest_layer=attention.matrices + attention.other + 2 * hidden + largest,
        outside_layers=counts.head + counts.embedding + hidden,
        hidden=hidden,
        heads=shape.count("num_attention_heads"),
        vocabulary=shape.count("vocab_size"),
        kept=kept_numbers({**config, **given}),
        copied=copied_numbers(config),
    )


_WINDOWED = ("mistral", "mixtral")
DEFAULT_WINDOW = {"mistral": 4096}
"""transformers' sliding_window if a config leaves it out; null means none."""


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
    if kind == "qwen3":
        return shape.count("head_dim", 128)
    if hidden % heads and not shape.count_or_zero("head_dim", 0):
        raise UnsupportedModel(
            "num_attention_heads", f"{heads} does not divide hidden_size {hidden}; set head_dim"
        )
    return shape.count("head_dim", hidden // heads)


def _attention(shape: ConfigReader, kind: str) -> _AttentionCounts:
    if kind == "deepseek_v3":
        return _mla(shape)
    hidden, heads = shape.count("hidden_size"), shape.count("num_attention_heads")
    kv_heads = shape.count("num_key_value_heads", heads if kind == "llama" else None)
    if heads % kv_heads:
        raise UnsupportedModel("num_key_value_heads", f"{kv_heads} does not divide {heads} heads")
    width = head_dim(shape, kind)
    query, key_value = heads * width, kv_heads * width
    has_bias = kind in ("llama", "qwen3", "qwen3_moe") and shape.flag(
        "attention_bias", default=False
    )
    biases = query + 2 * key_value + hidden if has_bias else 0
    gains = 2 * width if kind in ("qwen3", "qwen3_moe") else 0
    return _AttentionCounts(2 * hidden * query + 2 * hidden * key_value, biases + gains)


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


def _deepseek_v3_layers(shape: ConfigReader, layers: int) -> Layers:
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
    "llama": _dense_layers,
    "mistral": _dense_layers,
    "qwen3": _dense_layers,
    "qwen3_moe": _qwen3_moe_layers,
    "mixtral": _mixtral_layers,
    "deepseek_v3": _deepseek_v3_layers,
}
