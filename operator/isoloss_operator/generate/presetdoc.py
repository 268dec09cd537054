"""The reference page of the presets, computed by the same code that counts every sweep's FLOPs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from isoloss_operator.generate.markdown import table
from isoloss_operator.planning.flops import Convention, token_flops
from isoloss_operator.planning.parameters import parameter_counts
from isoloss_operator.planning.presets import MAX_POSITIONS, PRESETS, preset_config

INTRODUCTION = f"""\
# Presets

Written by `python -m isoloss_operator.generate.crdgen`. Counts equal those of the models that transformers
builds. The laws' N is the sum of *active body* and *head*: parameters that take part in matrix
products for a token, without the embedding table. Toy presets take the tokenizer's vocabulary;
here it is 1024. FLOPs are of training (forward and backward) at sequence length {MAX_POSITIONS}."""
SHAPE_KEYS = {
    "layers": "num_hidden_layers",
    "hidden": "hidden_size",
    "FFN": "intermediate_size",
    "expert FFN": "moe_intermediate_size",
    "experts": "n_routed_experts",
    "heads": "num_attention_heads",
    "KV heads": "num_key_value_heads",
    "Q rank": "q_lora_rank",
    "KV rank": "kv_lora_rank",
    "vocabulary": "vocab_size",
}
CONVENTIONS = """\
- `6ND`: 6 x (active body + head). What the laws, budgets and `isoloss plan` count.
- `exact`: with attention scores under the causal mask: what is executed.
- `PaLM`: with attention scores as if nothing were masked: usual for MFU."""


def presets_page() -> str:
    """Markdown: shape, parameter counts and FLOPs per token of every preset."""
    configs = {name: preset_config(name) for name in PRESETS}
    parts = [
        INTRODUCTION,
        "## Shapes",
        table(
            ["preset", *SHAPE_KEYS, "head sizes"],
            map(_shape_row, configs, configs.values()),
            numbers=True,
        ),
        "Head sizes are query/value; with latent attention NoPE + RoPE/value.",
        "## Parameters",
        table(
            ["preset", "active body", "head", "N", "whole body", "embedding", "other", "in all"],
            map(_count_row, configs, configs.values()),
            numbers=True,
        ),
        "## FLOPs per token",
        table(["preset", *Convention], map(_flops_row, configs, configs.values()), numbers=True),
        CONVENTIONS,
    ]
    return "\n\n".join(parts) + "\n"


def _shape_row(name: str, config: Mapping[str, Any]) -> Iterator[str]:
    yield f"`{name}`"
    for key in SHAPE_KEYS.values():
        is_latent = key == "num_key_value_heads" and "kv_lora_rank" in config
        yield "–" if is_latent or key not in config else f"{config[key]:,}"
    if "head_dim" in config:
        yield f"{config['head_dim']}/{config['head_dim']}"
    else:
        rope = config["qk_rope_head_dim"]
        yield f"{config['qk_nope_head_dim']} + {rope}/{config['v_head_dim']}"


def _count_row(name: str, config: Mapping[str, Any]) -> Iterator[str]:
    counts = parameter_counts(config)
    yield f"`{name}`"
    for count in (
        counts.body_active,
        counts.head,
        counts.active,
        counts.body_total,
        counts.embedding,
        counts.other,
        counts.total,
    ):
        yield f"{count:,}"


def _flops_row(name: str, config: Mapping[str, Any]) -> Iterator[str]:
    flops = token_flops(config, MAX_POSITIONS)
    yield f"`{name}`"
    for convention in Convention:
        yield f"{flops.total(convention):.3e}"
