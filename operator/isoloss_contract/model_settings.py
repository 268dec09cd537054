"""Settings of a checkpoint's config.json that change what its model computes, where transformers passes over them without a
word: it then computes another model than the one that was trained."""

import json
from collections.abc import Mapping
from typing import Any, Final

LOGIT_CAPS: Final = ("final_logit_softcapping", "logits_soft_cap", "output_logit_soft_cap")
"""What configs call a cap on logits."""
FACTORS: Final = (
    "logit_scale",
    "logits_scaling",
    "lm_head_multiplier",
    "embedding_multiplier",
    "scale_emb",
    "residual_multiplier",
    "attention_multiplier",
    "routed_scaling_factor",
    "partial_rotary_factor",
    "rotary_pct",
    "rope_pct",
)
"""Without effect if 1."""
SWITCHES: Final = (
    *LOGIT_CAPS,
    "attn_logit_softcapping",
    "clip_qkv",
    "alibi",
    "use_alibi",
    "parallel_attn",
    "use_parallel_residual",
    "qk_norm",
    "use_qk_norm",
    "qk_layernorm",
)
"""Without effect if zero or false."""
WINDOWS: Final = (
    "sliding_window",
    "sliding_window_size",
    "window_size",
    "attention_window_size",
    "attention_chunk_size",
)
"""Tokens that attention sees, without effect if a sequence has no more."""
MEASURED_QUANTIZATIONS: Final = ("fp8", "mxfp8", "mxfp4")
"""Those of quantization_config.quant_method whose weights the trainer reads."""


def has_effect(name: str, settings: Mapping[str, Any], sequence_length: int) -> bool:
    """Whether a model that reads this one of its `settings` computes sequences of this length in another way than one that
    does not."""
    value = settings[name]
    if value is None:
        return False
    if name in FACTORS:
        return bool(value != 1)
    if name in SWITCHES:
        return bool(value)
    if name in WINDOWS:
        used = settings.get("use_sliding_window", True)
        return bool(value and used and isinstance(value, int) and value < sequence_length)
    if name == "no_rope_layers":
        return not all(value)
    return False


def unread(name: str, value: Any, kind: str) -> str:
    """The sentence about a setting with an effect that the models of type `kind` do not read."""
    return (
        f"{name} is {json.dumps(value)}, which transformers' model of type {kind} does not read: it would be another model than the one "
        f"that was trained. Take {name} out if the model was trained without it, or correct model_type"
    )


def rope_contradiction(settings: Mapping[str, Any]) -> str | None:
    """Why rotary position embeddings would be others than those that the model was trained with; None if nothing shows it.

    They are rope_scaling and rope_theta, and since version 5 of transformers rope_parameters.
    """
    parameters, scaling = (
        found if isinstance(found := settings.get(name), dict) else {}
        for name in ("rope_parameters", "rope_scaling")
    )
    for name, found in (("rope_parameters", parameters), ("rope_scaling", scaling)):
        if found.get("factor") not in (None, 1) and _kind(found) in (None, "default"):
            return (
                f"{name} has a factor, and its rope_type is {_kind(found) or 'missing'}, by which transformers scales nothing: "
                "correct rope_type, or take the factor out"
            )
    theta, other = settings.get("rope_theta"), parameters.get("rope_theta")
    if theta is not None and other is not None and theta != other:
        return f"rope_theta is {theta}, and {other} in rope_parameters, which transformers 5 takes: correct the one that is wrong"
    if _kind(parameters) and scaling:
        factors = parameters.get("factor"), scaling.get("factor")
        if _kind(parameters) != _kind(scaling) or factors[0] != factors[1]:
            return f"rope_parameters is {json.dumps(parameters)} and rope_scaling {json.dumps(scaling)}: take out the one that is wrong"
    return None


def _kind(found: Mapping[str, Any]) -> Any:
    return found.get("rope_type", found.get("type"))


def quantization_refusal(config: Mapping[str, Any]) -> str | None:
    """Why a checkpoint with this config.json cannot be measured; None if its weights are not quantized, or in a way that is
    read."""
    found = config.get("quantization_config")
    method = found.get("quant_method") if isinstance(found, dict) else None
    if method is None or method in MEASURED_QUANTIZATIONS:
        return None
    return (
        f"its weights are quantized ({method}), which takes a library that the trainer's image does not have: give the "
        "checkpoint as it was before, or save it dequantized"
    )
