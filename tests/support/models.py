"""Models by name: the shapes that crds/examples gives as configurations, and a mixture of experts of toy size.

And the domains and sizes of small sweeps.
"""

from functools import cache
from pathlib import Path
from typing import Any, Final

from isoloss.yaml_text import read_documents

EXAMPLES: Final = Path(__file__).parents[2] / "crds" / "examples"
DEMO: Final = {"tiny": "dense-tiny", "small": "dense-small"}
"""Names here by those of the demo's sizes."""
SHAPES: Final = ("dense-100m", "dense-500m", "moe-100m", "moe-500m")
"""Those of Zhou et al., with a vocabulary of 131,072."""
TOYS: Final = ("dense-tiny", "dense-small", "moe-tiny")
MOE_TINY: Final[dict[str, Any]] = {
    "model_type": "deepseek_v3",
    "vocab_size": 1024,
    "hidden_size": 64,
    "intermediate_size": 128,
    "moe_intermediate_size": 32,
    "num_hidden_layers": 2,
    "first_k_dense_replace": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "q_lora_rank": 32,
    "kv_lora_rank": 16,
    "qk_nope_head_dim": 32,
    "qk_rope_head_dim": 16,
    "v_head_dim": 32,
    "n_routed_experts": 8,
    "n_shared_experts": 1,
    "num_experts_per_tok": 2,
    "n_group": 1,
    "topk_group": 1,
    "max_position_embeddings": 8192,
    "tie_word_embeddings": False,
}


def example_model(name: str, vocabulary: int | None = None) -> dict[str, Any]:
    """The transformers configuration of one of SHAPES and TOYS, with another vocabulary if one is given."""
    config = {**_configs()[name]}
    return config if vocabulary is None else {**config, "vocab_size": vocabulary}


def two_domains(corpus: str) -> list[dict[str, Any]]:
    """Below this URI."""
    return [
        {"name": name, "uri": f"{corpus}/{name}/*.jsonl", "weight": weight}
        for name, weight in (("general", 82), ("math", 18))
    ]


def two_sizes(tokens: int, vocabulary: int | None = None) -> list[dict[str, Any]]:
    """The smaller one trains so many tokens, the larger one twice as many."""
    return [
        {
            "name": name,
            "model": {"config": example_model(f"dense-{name}", vocabulary)},
            "tokens": times * tokens,
        }
        for times, name in enumerate(("tiny", "small"), 1)
    ]


@cache
def _configs() -> dict[str, dict[str, Any]]:
    found = {"moe-tiny": MOE_TINY}
    for sweep in ("dense", "moe", "demo"):
        (manifest,) = read_documents((EXAMPLES / f"{sweep}-sweep.yaml").read_text("utf-8"))
        for proxy in manifest["spec"]["proxies"]:
            found[DEMO.get(proxy["name"], proxy["name"])] = proxy["model"]["config"]
    return found
