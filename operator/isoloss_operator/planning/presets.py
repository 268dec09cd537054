"""Proxies known by name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from isoloss_operator.planning.architectures import UnsupportedModel

MAX_POSITIONS = 8192
PAPER_VOCABULARY = 131_072
TOY_VOCABULARY = 1024


def _llama(*, layers: int, hidden: int, ffn: int, heads: int, kv_heads: int) -> Mapping[str, Any]:
    return {
        "model_type": "llama",
        "hidden_size": hidden,
        "intermediate_size": ffn,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "head_dim": hidden // heads,
    }


def _deepseek_v3(
    *, layers: int, heads: int, nope: int, expert_ffn: int, experts: int, active: int, kv_rank: int
) -> Mapping[str, Any]:
    """Widths and ranks in the proportions of Zhou et al.'s MoE-3B: FFN 2 h, expert FFN h/3, ranks h/2 and h/6."""
    hidden = heads * nope
    return {
        "model_type": "deepseek_v3",
        "hidden_size": hidden,
        "intermediate_size": 2 * hidden,
        "moe_intermediate_size": expert_ffn,
        "num_hidden_layers": layers,
        "first_k_dense_replace": 1,
        "num_attention_heads": heads,
        "num_key_value_heads": heads,
        "q_lora_rank": hidden // 2,
        "kv_lora_rank": kv_rank,
        # 128 / 64 / 128 in the paper. Value heads are narrower than query heads (128 against 192): for
        # flash attention, which wants both equal, the trainer widens them with zeros.
        "qk_nope_head_dim": nope,
        "qk_rope_head_dim": nope // 2,
        "v_head_dim": nope,
        "n_routed_experts": experts,
        "n_shared_experts": 1,
        "num_experts_per_tok": active,
        "n_group": 1,
        "topk_group": 1,
    }


@dataclass(frozen=True)
class Preset:
    """A proxy known by name."""

    shape: Mapping[str, Any]
    """Its configuration without a vocabulary."""
    vocabulary: int | None = None
    """None: that of the tokenizer."""


PRESETS: Mapping[str, Preset] = {
    # Grouped queries as in Zhou et al.'s Dense-8B; what fewer key-value heads save went to the
    # feed-forward layers, which then are 3.2 hidden sizes wide (theirs: 3.5).
    "dense-100m": Preset(
        _llama(layers=12, hidden=768, ffn=2432, heads=6, kv_heads=2), PAPER_VOCABULARY
    ),
    "dense-500m": Preset(
        _llama(layers=24, hidden=1280, ffn=4096, heads=10, kv_heads=2), PAPER_VOCABULARY
    ),
    # Multiples of 64, and 8 experts of 64 instead of 256: so that the larger one trains on one 80 GB device.
    "moe-100m": Preset(
        _deepseek_v3(
            layers=12, heads=6, nope=128, expert_ffn=256, experts=64, active=8, kv_rank=128
        ),
        PAPER_VOCABULARY,
    ),
    "moe-500m": Preset(
        _deepseek_v3(
            layers=24, heads=10, nope=128, expert_ffn=448, experts=64, active=8, kv_rank=192
        ),
        PAPER_VOCABULARY,
    ),
    "dense-tiny": Preset(_llama(layers=2, hidden=64, ffn=176, heads=2, kv_heads=1)),
    "dense-small": Preset(_llama(layers=3, hidden=128, ffn=352, heads=4, kv_heads=2)),
    "moe-tiny": Preset(
        _deepseek_v3(layers=2, heads=2, nope=32, expert_ffn=32, experts=8, active=2, kv_rank=16)
    ),
}


def preset_config(name: str, tokenizer_vocabulary: int | None = None) -> dict[str, Any]:
    """The transformers configuration of a preset.

    Toy presets take `tokenizer_vocabulary` (1024 if unknown); the others keep their own. Raises
    UnsupportedModel for an unknown name.
    """
    preset = PRESETS.get(name)
    if preset is None:
        raise UnsupportedModel(
            "preset", f"{name!r} is not known; choose one of {', '.join(PRESETS)}"
        )
    return {
        **preset.shape,
        "vocab_size": preset.vocabulary or tokenizer_vocabulary or TOY_VOCABULARY,
        "max_position_embeddings": MAX_POSITIONS,
        "tie_word_embeddings": False,
    }
