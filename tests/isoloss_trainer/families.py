"""A tiny configuration of each family of models whose checkpoints are evaluated in tests."""

from typing import Any

from tests.isoloss_trainer.builders import DEEPSEEK, VOCABULARY

_OLD: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "max_position_embeddings": 64,
}
_DENSE: dict[str, Any] = {**_OLD, "num_key_value_heads": 1, "head_dim": 16}
_WINDOWED = {**_DENSE, "sliding_window": 8}
_GEMMA = {**_WINDOWED, "query_pre_attn_scalar": 16}
_MIXTURE = {**_DENSE, "num_experts_per_tok": 2, "moe_intermediate_size": 16}
_MIXTRAL = {**_MIXTURE, "num_local_experts": 4}
_QWEN = {**_MIXTURE, "num_experts": 4, "shared_expert_intermediate_size": 16}
_GLM = {**_MIXTURE, "n_routed_experts": 4, "first_k_dense_replace": 1}
_LINEAR: dict[str, Any] = {
    "num_hidden_layers": 4,
    "linear_num_value_heads": 2,
    "linear_num_key_heads": 1,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 16,
}
_STATES: dict[str, Any] = {"vocab_size": VOCABULARY, "hidden_size": 32, "num_hidden_layers": 2}
_MAMBA_HEADS: dict[str, Any] = {
    "mamba_n_heads": 4,
    "mamba_d_head": 16,
    "mamba_n_groups": 1,
    "mamba_d_state": 8,
}
_GPT2: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "n_embd": 32,
    "n_layer": 1,
    "n_head": 2,
    "n_positions": 64,
}
_LLAMA4 = {
    **_DENSE,
    "intermediate_size_mlp": 64,
    "num_local_experts": 4,
    "num_experts_per_tok": 1,
    "attention_chunk_size": 8,
}

FAMILIES: dict[str, dict[str, Any]] = {
    "apertus": _DENSE,
    "arcee": _DENSE,
    "bamba": {**_DENSE, **_MAMBA_HEADS, "attn_layer_indices": [1]},
    "bloom": {"vocab_size": VOCABULARY, "hidden_size": 32, "n_layer": 2, "n_head": 2},
    "cohere": {**_OLD, "logit_scale": 4.0},
    "cohere2": {**_WINDOWED, "logit_scale": 4.0},
    "deepseek_v2": {
        **{k: v for k, v in DEEPSEEK.items() if k != "model_type"},
        "q_lora_rank": None,
        "topk_method": "greedy",
        "head_dim": 8,
    },
    "deepseek_v3": {k: v for k, v in DEEPSEEK.items() if k != "model_type"},
    "ernie4_5": _DENSE,
    "ernie4_5_moe": {**_MIXTURE, "moe_num_experts": 4, "moe_k": 2},
    "exaone4": _WINDOWED,
    "falcon": {**_OLD, "new_decoder_architecture": False},
    "falcon_h1": {**_DENSE, **_MAMBA_HEADS, "mamba_d_head": 8, "mamba_d_ssm": 32},
    "falcon_mamba": {**_STATES, "state_size": 8},
    "gemma": _DENSE,
    "gemma2": _GEMMA,
    "gemma3": {
        "text_config": _GEMMA,
        "vision_config": {**_OLD, "image_size": 28, "patch_size": 14},
    },
    "gemma3_text": _GEMMA,
    "glm": {**_DENSE, "pad_token_id": 0},
    "glm4": {**_DENSE, "pad_token_id": 0},
    "glm4_moe": _GLM,
    "gpt2": _GPT2,
    "gpt_bigcode": _GPT2,
    "gpt_neo": {
        "vocab_size": VOCABULARY,
        "hidden_size": 32,
        "num_layers": 2,
        "num_heads": 2,
        "attention_types": [[["global", "local"], 1]],
        "max_position_embeddings": 64,
    },
    "gpt_neox": {**_OLD, "hidden_dropout": 0.1},
    "gpt_oss": {**_WINDOWED, "num_local_experts": 4, "num_experts_per_tok": 2},
    "gptj": {**_GPT2, "rotary_dim": 8},
    "granite": {**_DENSE, "logits_scaling": 4.0},
    "granitemoe": _MIXTRAL,
    "granitemoehybrid": {
        **_MIXTRAL,
        **_MAMBA_HEADS,
        "layer_types": ["mamba", "attention"],
        "shared_intermediate_size": 32,
    },
    "helium": _DENSE,
    "hunyuan_v1_dense": _DENSE,
    "jamba": {
        **_DENSE,
        "num_experts": 2,
        "attn_layer_period": 2,
        "attn_layer_offset": 1,
        "expert_layer_period": 2,
        "expert_layer_offset": 1,
        "mamba_d_state": 8,
        "mamba_dt_rank": 4,
        "use_mamba_kernels": False,
    },
    "lfm2": {**_DENSE, "layer_types": ["conv", "full_attention"]},
    "llama": _DENSE,
    "llama4": {"text_config": _LLAMA4},
    "llama4_text": _LLAMA4,
    "mamba": {**_STATES, "state_size": 8},
    "mamba2": {**_STATES, "state_size": 8, "num_heads": 4, "head_dim": 16, "n_groups": 1},
    "minimax": _MIXTRAL,
    "minimax_m2": _MIXTRAL,
    "ministral": _WINDOWED,
    "mistral": _WINDOWED,
    "mixtral": _MIXTRAL,
    "mpt": {
        "vocab_size": VOCABULARY,
        "d_model": 32,
        "n_layers": 2,
        "n_heads": 2,
        "max_seq_len": 64,
    },
    "nemotron": _DENSE,
    "nemotron_h": {
        **_DENSE,
        "mamba_num_heads": 4,
        "mamba_head_dim": 16,
        "n_groups": 1,
        "ssm_state_size": 8,
        "layers_block_type": ["mamba", "attention"],
    },
    "olmo": _OLD,
    "olmo2": _DENSE,
    "olmo3": _WINDOWED,
    "olmoe": {**_MIXTURE, "num_experts": 4},
    "opt": {**_OLD, "ffn_dim": 64, "word_embed_proj_dim": 32},
    "phi": _OLD,
    "phi3": {**_DENSE, "pad_token_id": 0},
    "phimoe": _MIXTRAL,
    "qwen2": _DENSE,
    "qwen2_moe": _QWEN,
    "qwen3": _DENSE,
    "qwen3_5": {"text_config": {**_DENSE, **_LINEAR}},
    "qwen3_moe": {**_MIXTURE, "num_experts": 4},
    "qwen3_next": {**_QWEN, **_LINEAR},
    "recurrent_gemma": {
        **_DENSE,
        "lru_width": 32,
        "attention_window_size": 8,
        "block_types": ["recurrent", "attention"],
    },
    "rwkv": {**_STATES, "attention_hidden_size": 32, "context_length": 64},
    "seed_oss": _DENSE,
    "smollm3": _DENSE,
    "stablelm": {**_OLD, "num_key_value_heads": 2},
    "starcoder2": _DENSE,
    "vaultgemma": _GEMMA,
    "xlstm": {
        "vocab_size": VOCABULARY,
        "hidden_size": 32,
        "num_heads": 2,
        "num_blocks": 1,
        "chunk_size": 16,
    },
}
"""By model_type, without it."""

REFUSED: dict[str, dict[str, Any]] = {
    "bart": {
        "vocab_size": VOCABULARY,
        "d_model": 32,
        "decoder_layers": 1,
        "decoder_attention_heads": 2,
        "decoder_ffn_dim": 32,
        "max_position_embeddings": 64,
    },
    "bert": _OLD,
    "xlnet": {
        "vocab_size": VOCABULARY,
        "d_model": 32,
        "n_layer": 1,
        "n_head": 2,
        "d_inner": 64,
        "initializer_range": 0.5,
    },
}
"""Those that transformers loads as causal language models, and that are none."""
