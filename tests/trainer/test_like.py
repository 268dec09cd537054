"""Proxies in the likeness of known models: the size that was asked for, the proportions kept, and
models that can be built and trained."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from isoloss.architectures import UnsupportedModel, parameter_counts
from isoloss.like import SIZE_TOLERANCE, proxy_like
from isoloss_trainer.model import build_network, count_parameters

# Shapes from the models' published config.json files.
TARGETS: dict[str, dict[str, Any]] = {
    "Llama-3.1-8B": {
        "model_type": "llama", "vocab_size": 128256, "hidden_size": 4096,
        "intermediate_size": 14336, "num_hidden_layers": 32, "num_attention_heads": 32,
        "num_key_value_heads": 8, "max_position_embeddings": 131072, "rope_theta": 500000.0,
        "torch_dtype": "bfloat16", "architectures": ["LlamaForCausalLM"],
    },
    "Mistral-7B": {
        "model_type": "mistral", "vocab_size": 32768, "hidden_size": 4096,
        "intermediate_size": 14336, "num_hidden_layers": 32, "num_attention_heads": 32,
        "num_key_value_heads": 8, "max_position_embeddings": 32768, "sliding_window": None,
    },
    "Qwen3-8B": {
        "model_type": "qwen3", "vocab_size": 151936, "hidden_size": 4096,
        "intermediate_size": 12288, "num_hidden_layers": 36, "num_attention_heads": 32,
        "num_key_value_heads": 8, "head_dim": 128, "max_position_embeddings": 40960,
        "use_sliding_window": False, "max_window_layers": 36,
    },
    "Qwen3-30B-A3B": {
        "model_type": "qwen3_moe", "vocab_size": 151936, "hidden_size": 2048,
        "intermediate_size": 6144, "moe_intermediate_size": 768, "num_hidden_layers": 48,
        "num_attention_heads": 32, "num_key_value_heads": 4, "head_dim": 128,
        "num_experts": 128, "num_experts_per_tok": 8, "norm_topk_prob": True,
        "mlp_only_layers": [], "decoder_sparse_step": 1, "max_position_embeddings": 40960,
    },
    "Mixtral-8x7B": {
        "model_type": "mixtral", "vocab_size": 32000, "hidden_size": 4096,
        "intermediate_size": 14336, "num_hidden_layers": 32, "num_attention_heads": 32,
        "num_key_value_heads": 8, "num_local_experts": 8, "num_experts_per_tok": 2,
        "max_position_embeddings": 32768, "sliding_window": None,
    },
    "DeepSeek-V3": {
        "model_type": "deepseek_v3", "vocab_size": 129280, "hidden_size": 7168,
        "intermediate_size": 18432, "moe_intermediate_size": 2048, "num_hidden_layers": 61,
        "num_attention_heads": 128, "num_key_value_heads": 128, "n_routed_experts": 256,
        "num_experts_per_tok": 8, "n_shared_experts": 1, "n_group": 8, "topk_group": 4,
        "q_lora_rank": 1536, "kv_lora_rank": 512, "qk_nope_head_dim": 128,
        "qk_rope_head_dim": 64, "v_head_dim": 128, "first_k_dense_replace": 3,
        "max_position_embeddings": 163840, "num_nextn_predict_layers": 1,
        "quantization_config": {"quant_method": "fp8"},
    },
}  # fmt: skip
SIZES = (100_000_000, 500_000_000)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("name", TARGETS)
def test_the_proxy_has_the_asked_size_and_the_targets_proportions(name: str, size: int) -> None:
    target = TARGETS[name]
    proxy = proxy_like(target, size)
    assert parameter_counts(proxy).body_active == pytest.approx(size, rel=SIZE_TOLERANCE)
    for kept in ("model_type", "vocab_size", "num_experts_per_tok", "n_routed_experts",
                 "num_experts", "num_local_experts", "qk_nope_head_dim", "v_head_dim"):  # fmt: skip
        assert proxy.get(kept) == target.get(kept)
    aspects = [c["hidden_size"] / c["num_hidden_layers"] for c in (proxy, target)]
    assert aspects[0] == pytest.approx(aspects[1], rel=0.5)
    ratios = [c["intermediate_size"] / c["hidden_size"] for c in (proxy, target)]
    assert ratios[0] == pytest.approx(ratios[1], rel=0.1)
    assert proxy["num_attention_heads"] % proxy["num_key_value_heads"] == 0


@pytest.mark.parametrize("name", TARGETS)
def test_the_proxy_can_be_built_with_the_counted_parameters(name: str) -> None:
    proxy = proxy_like(TARGETS[name], SIZES[0])
    with torch.device("meta"):
        network = build_network(proxy)
    assert count_parameters(network) == parameter_counts(proxy)


def test_the_larger_proxy_is_deeper_and_wider() -> None:
    small, large = (proxy_like(TARGETS["Llama-3.1-8B"], size) for size in SIZES)
    assert small["num_hidden_layers"] < large["num_hidden_layers"]
    assert small["hidden_size"] < large["hidden_size"]


REFUSED: dict[str, tuple[dict[str, Any], int, str]] = {
    "another family": ({"model_type": "gpt2"}, SIZES[0], "model_type"),
    "as large as the target": (TARGETS["Mistral-7B"], 8 * 10**9, "must be smaller"),
    "too small for its heads": (TARGETS["DeepSeek-V3"], 10_000, "the nearest has"),
    "layers of several kinds": (
        {**TARGETS["Qwen3-8B"], "layer_types": ["full_attention", "sliding_attention"]},
        SIZES[0],
        "layer_types",
    ),
    "dense layers in between": (
        {**TARGETS["Qwen3-30B-A3B"], "mlp_only_layers": [3]},
        SIZES[0],
        "mlp_only_layers",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_can_not_be_scaled_is_refused_with_a_reason(case: str) -> None:
    target, size, words = REFUSED[case]
    with pytest.raises(UnsupportedModel, match=words):
        proxy_like(target, size)
