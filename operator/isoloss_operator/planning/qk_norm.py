"""QK-norm for a model whose family has none: the same shape in the family that has it.

Queries and keys of every head are normalised before their product, which keeps attention logits bounded at
high learning rates (Wortsman et al. 2309.14322). A Llama with it is a Qwen3, which every loader knows: there
is no model of our own to count, compile or export.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from isoloss_operator.planning.architectures import ConfigReader, UnsupportedModel, model_type

FIELD = "qkNorm"
_HAVE_IT = ("qwen3", "qwen3_moe")
_LLAMA_ONLY = ("mlp_bias", "pretraining_tp", "architectures")
"""Keys without a counterpart; of these only mlp_bias changes the model."""


def with_qk_norm(config: Mapping[str, Any]) -> dict[str, Any]:
    """The Qwen3 configuration that differs from the Llama `config` in its QK-norm alone.

    Raises UnsupportedModel on `qkNorm` for what has QK-norm anyway and for what has no such counterpart.
    """
    kind, shape = model_type(config), ConfigReader(config)
    if kind in _HAVE_IT:
        raise UnsupportedModel(FIELD, f"{kind} has QK-norm of its own: leave qkNorm out")
    if kind != "llama":
        raise UnsupportedModel(
            FIELD,
            f"is possible for llama only, not for {kind}; qwen3 and qwen3_moe have it anyway",
        )
    if shape.flag("mlp_bias", default=False):
        raise UnsupportedModel(FIELD, "is not possible with mlp_bias, which Qwen3 does not have")
    heads, hidden = shape.count("num_attention_heads"), shape.count("hidden_size")
    kept = {key: value for key, value in config.items() if key not in _LLAMA_ONLY}
    return kept | {
        "model_type": "qwen3",
        # Qwen3's own defaults for these differ from Llama's.
        "num_key_value_heads": shape.count("num_key_value_heads", heads),
        "head_dim": shape.count("head_dim", hidden // heads),
    }
