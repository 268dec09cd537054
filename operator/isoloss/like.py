"""A proxy in the likeness of a target model: its own config.json, scaled down.

Kept: family, head sizes, vocabulary, experts and how many of them are active, and the proportions of
depth to width, of feed-forward parts to width, of queries to keys, of ranks to width. Scaled: width and
depth, together.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from isoloss.architectures import UnsupportedModel, model_type, parameter_counts, unknown_keys

WIDTH_UNIT = 64
"""Widths are multiples of it: what matrix units like."""
SIZE_TOLERANCE = 0.15
"""Relative deviation from the asked size that is still an answer."""
_OF_DEPTH = ("first_k_dense_replace",)
_DROPPED = (
    "num_nextn_predict_layers",  # extra prediction layers, which transformers does not train
    "quantization_config",
    "architectures",
    "transformers_version",
    "torch_dtype",
    "dtype",
    "layer_types",
    "max_window_layers",
)


@dataclass(frozen=True)
class _Target:
    """What of the target's shape enters the scaling."""

    layers: int
    width: int
    heads: int
    groups: int
    """Query heads per key/value head."""
    head_width: int


def proxy_like(target: Mapping[str, Any], body_parameters: int) -> dict[str, Any]:
    """The configuration of a proxy whose layers have about `body_parameters` active parameters.

    Like the presets' names, the size counts the layers' matrices that a token passes through, without
    embedding and output head. Raises UnsupportedModel for families that can not be counted, for
    layers that differ in ways a shallower model can not keep, and where no such size exists.
    """
    kind = model_type(target)
    _refuse_uneven_layers(target)
    known = {
        k: v for k, v in target.items() if k not in _DROPPED and k not in unknown_keys(target)
    }
    own = parameter_counts(known).body_active
    if not 0 < body_parameters < own:
        raise UnsupportedModel(
            "like",
            f"a proxy must be smaller than its target's {own:,} active parameters in layers",
        )
    shape = _shape(known)
    best = min(
        (_scaled(known, kind, shape, layers, width) for layers, width in _candidates(shape)),
        key=lambda config: _distance(config, shape, body_parameters),
    )
    found = parameter_counts(best).body_active
    if abs(found / body_parameters - 1) > SIZE_TOLERANCE:
        raise UnsupportedModel(
            "like",
            f"no {kind} proxy with its head sizes and experts comes near {body_parameters:,} active "
            f"parameters in layers; the nearest has {found:,}",
        )
    return best


def _refuse_uneven_layers(target: Mapping[str, Any]) -> None:
    kinds = set(target.get("layer_types") or ())
    if kinds - {"full_attention"}:
        raise UnsupportedModel("layer_types", "layers of several kinds can not be scaled")
    if target.get("use_sliding_window"):
        raise UnsupportedModel("use_sliding_window", "a window in some layers can not be scaled")
    if target.get("mlp_only_layers") or target.get("decoder_sparse_step", 1) != 1:
        raise UnsupportedModel("mlp_only_layers", "expert layers must follow one another")


def _shape(target: Mapping[str, Any]) -> _Target:
    heads = target["num_attention_heads"]
    groups = heads // (target.get("num_key_value_heads") or heads)
    own_width = target.get("head_dim") or target["hidden_size"] // heads
    return _Target(
        target["num_hidden_layers"], target["hidden_size"], heads, max(1, groups), own_width
    )


def _candidates(shape: _Target) -> Iterator[tuple[int, int]]:
    """Depths and widths near the target's proportion."""
    aspect = shape.width / shape.layers
    for layers in range(1, shape.layers + 1):
        middle = aspect * layers / WIDTH_UNIT
        for units in range(max(1, math.floor(middle * 0.7)), math.ceil(middle * 1.5) + 1):
            yield layers, units * WIDTH_UNIT


def _scaled(
    target: Mapping[str, Any], kind: str, shape: _Target, layers: int, width: int
) -> dict[str, Any]:
    factor = width / shape.width
    heads = max(1, round(shape.heads * factor))
    # Whole groups of query heads, as long as there is one.
    heads = max(1, round(heads / shape.groups)) * shape.groups if heads > shape.groups else heads
    config = {
        **target,
        "num_hidden_layers": layers,
        "hidden_size": width,
        "intermediate_size": _rounded(target["intermediate_size"] * factor, WIDTH_UNIT),
        "num_attention_heads": heads,
        "num_key_value_heads": max(1, heads // shape.groups),
    }
    if kind != "deepseek_v3":
        config["head_dim"] = shape.head_width
    if "moe_intermediate_size" in target:
        config["moe_intermediate_size"] = _rounded(target["moe_intermediate_size"] * factor, 16)
    for rank in ("q_lora_rank", "kv_lora_rank"):
        if target.get(rank):
            config[rank] = _rounded(target[rank] * factor, 16)
    for name in _OF_DEPTH:
        if target.get(name):
            config[name] = max(1, round(target[name] * layers / shape.layers))
    return config


def _rounded(value: float, unit: int) -> int:
    return max(1, round(value / unit)) * unit


def _distance(config: Mapping[str, Any], shape: _Target, wanted: int) -> float:
    """The asked size counts most, then the proportions of the target."""
    size = math.log(parameter_counts(config).body_active / wanted)
    aspect = math.log(
        config["hidden_size"] / config["num_hidden_layers"] / (shape.width / shape.layers)
    )
    heads = math.log(
        config["num_attention_heads"] / config["hidden_size"] / (shape.heads / shape.width)
    )
    groups = math.log(config["num_attention_heads"] / config["num_key_value_heads"] / shape.groups)
    return 4 * abs(size) + abs(aspect) + abs(heads) + 0.5 * abs(groups)
