"""Models are what their config says: counts, attention without a mask, lean imports."""

import math
import subprocess
import sys
from typing import Any

import pytest
import torch

from isoloss_operator.planning.models import (
    SUPPORTED_MODEL_TYPES,
    UnsupportedModel,
    attention_shapes,
    parameter_counts,
    unknown_keys,
)
from isoloss_trainer import attention
from isoloss_trainer.attention import describe_kernels
from isoloss_trainer.model import (
    JOINING,
    LanguageModel,
    build_network,
    check_trains_reproducibly,
    compiler_options,
    count_parameters,
    model_config,
)
from isoloss_trainer.termination import BadConfiguration
from tests.isoloss_trainer.builders import DEEPSEEK, LLAMA, QWEN3, QWEN3_MOE, SEQUENCE_LENGTH
from tests.isoloss_trainer.families import FAMILIES as OTHER_FAMILIES
from tests.support.models import SHAPES, TOYS, example_model
from tests.support.warm_python import WarmPython

MISTRAL = {**LLAMA, "model_type": "mistral", "sliding_window": None}
MIXTRAL = {
    **{k: v for k, v in LLAMA.items() if k != "model_type"},
    "model_type": "mixtral",
    "num_local_experts": 4,
    "num_experts_per_tok": 2,
    "sliding_window": None,
}
FAMILIES = [LLAMA, QWEN3, MISTRAL, MIXTRAL, QWEN3_MOE, DEEPSEEK]
PROXIES = [{"model_type": kind, **OTHER_FAMILIES[kind]} for kind in SUPPORTED_MODEL_TYPES]
LLAMA_4 = {"model_type": "llama4_text", **OTHER_FAMILIES["llama4_text"]}
PLAIN = ("qwen2", "olmo2", "smollm3", "glm4", "glm4_moe", "phi3", "granite")
BIASED = [
    {**config, "attention_bias": True, "mlp_bias": True, "use_qk_norm": True}
    for config in PROXIES
    if config["model_type"]
    in ("llama", "qwen3", "olmo2", "granite", "smollm3", "glm4_moe", "llama4_text")
]
UNUSUAL = [
    {**QWEN3_MOE, "num_hidden_layers": 4, "mlp_only_layers": [1], "decoder_sparse_step": 2},
    {**DEEPSEEK, "q_lora_rank": None, "attention_bias": True, "n_shared_experts": 2},
]
"""Layers of several kinds, and latent attention without a rank for its queries."""


def family(config: dict[str, Any]) -> str:
    return str(config["model_type"])


@pytest.mark.parametrize("name", SHAPES + TOYS)
def test_built_examples_have_the_counted_parameters(name: str) -> None:
    config = example_model(name)
    with torch.device("meta"):
        network = build_network(config)
    assert count_parameters(network) == parameter_counts(config)


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("config", [*FAMILIES, *PROXIES, *BIASED, *UNUSUAL], ids=family)
def test_built_families_have_the_counted_parameters(config: dict[str, Any], tied: bool) -> None:
    config = {**config, "tie_word_embeddings": tied}
    with torch.device("meta"):
        network = build_network(config)
    assert count_parameters(network) == parameter_counts(config)


def test_a_multimodal_model_computes_with_its_text_decoder_alone() -> None:
    """And counts all that it has."""
    whole = OTHER_FAMILIES["gemma3"]
    with torch.device("meta"):
        network = build_network({"model_type": "gemma3", **whole})
        text = build_network({"model_type": "gemma3_text", **whole["text_config"]})
    found, of_text = count_parameters(network), count_parameters(text)
    assert (found.active, found.body_total) == (of_text.active, of_text.body_total)
    assert found.total == sum(p.numel() for p in network.parameters())
    assert found.total > of_text.total


@pytest.mark.parametrize("kind", ["gpt2", "gpt_bigcode", "gpt_neo", "opt"])
def test_a_table_of_positions_takes_part_in_no_product(kind: str) -> None:
    config = {"model_type": kind, **OTHER_FAMILIES[kind]}
    counts = []
    for positions in (64, 128):
        name = "n_positions" if kind in ("gpt2", "gpt_bigcode") else "max_position_embeddings"
        with torch.device("meta"):
            counts.append(count_parameters(build_network({**config, name: positions})))
    few, many = counts
    assert (few.active, few.body_total) == (many.active, many.body_total)
    assert many.other > few.other


@pytest.mark.parametrize(
    "config",
    [
        {"model_type": "aria_text", "moe_num_experts": 4, "moe_topk": 1},
        {
            "model_type": "gemma4_text",
            "enable_moe_block": True,
            "num_experts": 4,
            "moe_intermediate_size": 16,
            "top_k_experts": 1,
            "hidden_size_per_layer_input": 0,
        },
    ],
    ids=lambda config: config["model_type"],
)
def test_experts_of_a_token_are_counted_by_any_name(config: dict[str, Any]) -> None:
    shape = {**LLAMA, **config, "num_hidden_layers": 2}
    with torch.device("meta"):
        network = build_network(shape)
    experts = sum(p.numel() for name, p in network.named_parameters() if ".experts." in name)
    counts = count_parameters(network)
    assert experts
    assert counts.body_total - counts.body_active == experts * 3 // 4


@pytest.mark.parametrize("key", ["attention_dropout", "router_jitter_noise"])
def test_random_numbers_in_training_are_refused_by_the_operator_and_by_the_trainer(
    key: str,
) -> None:
    """A resumed run would draw others."""
    assert unknown_keys({**MIXTRAL, key: 0.0}) == {}
    check_trains_reproducibly(model_config({**MIXTRAL, key: 0.0}))
    noisy = {**MIXTRAL, key: 0.05}
    assert list(unknown_keys(noisy)) == [key]
    assert "must be 0" in unknown_keys(noisy)[key]
    with pytest.raises(BadConfiguration, match=f"{key} must be 0") as caught:
        check_trains_reproducibly(model_config(noisy))
    assert caught.value.field == f"model.{key}"


@pytest.mark.parametrize(
    "config",
    [
        *FAMILIES,
        *PROXIES,
        *(example_model(name) for name in SHAPES + TOYS),
        {**MISTRAL, "sliding_window": 16},
        {name: value for name, value in MISTRAL.items() if name != "sliding_window"},
        {**DEEPSEEK, "v_head_dim": 24},
        {**QWEN3, "num_hidden_layers": 3, "use_sliding_window": True, "max_window_layers": 1},
    ],
    ids=family,
)
def test_attention_has_the_counted_shape(config: dict[str, Any]) -> None:
    """Also where transformers fills in what the configuration leaves out."""
    assert attention.attention_shapes(model_config(config)) == attention_shapes(config)


@pytest.mark.parametrize("kind", sorted(set(SUPPORTED_MODEL_TYPES) - {"deepseek_v3"}))
def test_heads_that_do_not_divide_the_width_are_refused_where_transformers_refuses_them(
    kind: str,
) -> None:
    changed = {
        "num_attention_heads": 3,
        "num_key_value_heads": 3,
        "head_dim": 8,
        "hidden_size": 32,
    }
    config = {"model_type": kind, **OTHER_FAMILIES[kind], **changed}
    try:
        parameter_counts(config)
    except UnsupportedModel:
        with pytest.raises(Exception, match="not a multiple of the number of attention heads"):
            model_config(config)
    else:
        with torch.device("meta"):
            assert count_parameters(build_network(config)) == parameter_counts(config)


def test_attention_of_another_family_is_unknown() -> None:
    assert attention.attention_shapes(model_config({"model_type": "gpt2"})) is None


@pytest.mark.parametrize(
    "config",
    [
        *FAMILIES,
        *(each for each in PROXIES if each["model_type"] in PLAIN),
        {**LLAMA_4, "attention_chunk_size": 64},
        {**LLAMA_4, "attention_chunk_size": 64, "num_experts_per_tok": 2},
    ],
    ids=family,
)
def test_attention_without_a_mask_is_causal_attention(config: dict[str, Any]) -> None:
    """Also where transformers sends every token to every expert, and scales the logits."""
    network = build_network(config, seed=0)
    tokens = torch.arange(2 * SEQUENCE_LENGTH).view(2, -1)
    network.set_attn_implementation("eager")
    theirs = network(tokens, use_cache=False).logits
    model = LanguageModel(network, SEQUENCE_LENGTH)
    assert network.config._attn_implementation == attention.NAME
    ours = (model.hidden(tokens) @ model.head.T).view_as(theirs)
    torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("window", [8, 64], ids=["masked", "whole"])
def test_a_sink_takes_the_weight_that_transformers_gives_it(window: int) -> None:
    """With its gradient, in layers with windows and in layers without."""
    config = {"model_type": "gpt_oss", **OTHER_FAMILIES["gpt_oss"], "sliding_window": window}
    network = build_network(config, seed=0)
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.add_(torch.randn_like(parameter), alpha=0.1)
    tokens = torch.arange(2 * SEQUENCE_LENGTH).view(2, -1)
    found = []
    for name in ("eager", attention.WITH_SINKS):
        network.set_attn_implementation(name)
        logits = network(tokens, use_cache=False).logits
        weights = list(network.parameters())
        found.append([logits, *torch.autograd.grad(logits.square().sum(), weights)])
    LanguageModel(network, SEQUENCE_LENGTH)
    assert network.config._attn_implementation == attention.WITH_SINKS
    for theirs, ours in zip(*found, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-4)


def test_a_sliding_window_below_the_sequence_keeps_the_models_own_attention() -> None:
    for window, plain in ((16, False), (64, True), (None, True)):
        config = model_config({**MISTRAL, "sliding_window": window})
        assert attention.is_plainly_causal(config, SEQUENCE_LENGTH) is plain
    mixed = {**QWEN3, "use_sliding_window": True, "sliding_window": 8, "max_window_layers": 0}
    assert not attention.is_plainly_causal(model_config(mixed), SEQUENCE_LENGTH)


def test_an_unknown_family_keeps_its_own_attention() -> None:
    network = build_network({"model_type": "gpt2", "vocab_size": 64, "n_embd": 16, "n_head": 2,
                             "n_layer": 1, "n_positions": 64}, seed=0)  # fmt: skip
    LanguageModel(network, SEQUENCE_LENGTH)
    assert network.config._attn_implementation == "sdpa"


@pytest.mark.parametrize("config", [LLAMA, DEEPSEEK], ids=family)
def test_the_compiled_graph_has_causal_attention_and_no_mask(config: dict[str, Any]) -> None:
    """transformers' own `sdpa` gets a dense mask under the compiler; ours gets none."""
    calls = _attention_calls(config, own=True)
    assert calls
    assert all(call["is_causal"] and call["attn_mask"] is None for call in calls)


def _attention_calls(config: dict[str, Any], *, own: bool) -> list[dict[str, Any]]:
    network = build_network(config, seed=0).to(torch.bfloat16)  # as experts are compiled
    if own:
        LanguageModel(network, SEQUENCE_LENGTH)
    calls: list[dict[str, Any]] = []

    def look(graph: torch.fx.GraphModule, _inputs: Any) -> Any:
        for node in graph.graph.nodes:
            if "scaled_dot_product" in str(node.target):
                masks = {"attn_mask": None, "is_causal": False}
                calls.append({**masks, **node.kwargs})
        return graph.forward

    torch._dynamo.reset()
    compiled = torch.compile(network.base_model, backend=look, fullgraph=True)
    compiled(torch.zeros(1, SEQUENCE_LENGTH, dtype=torch.long), use_cache=False)
    return calls


@pytest.mark.parametrize(
    ("config", "experts"),
    [(LLAMA, None), (DEEPSEEK, "isoloss_grouped"), (QWEN3_MOE, "isoloss_grouped")],
)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_the_kernels_in_use_are_named(
    config: dict[str, Any], experts: str | None, dtype: torch.dtype
) -> None:
    network = LanguageModel(build_network(config), 32).network
    found = describe_kernels(network, 32, dtype)
    assert found["attention"] == "isoloss_causal"
    assert found["attention_kernel"] in ("FLASH_ATTENTION", "MATH")
    assert found.get("experts") == experts


def test_torch_knows_the_settings_that_layers_on_an_accelerator_are_compiled_with() -> None:
    """Versions that do not have them are given none; torch refuses a name that it does not know."""
    wanted = compiler_options()
    assert set(wanted) == set(JOINING) & set(torch._inductor.list_options())
    torch.compile(torch.sin, options=wanted)


def test_the_same_seed_gives_the_same_weights_and_another_gives_others() -> None:
    one, same, other = (build_network(LLAMA, seed=seed) for seed in (3, 3, 4))
    pairs = zip(one.parameters(), same.parameters(), strict=True)
    assert all(torch.equal(a, b) for a, b in pairs)
    assert not torch.equal(
        one.get_output_embeddings().weight, other.get_output_embeddings().weight
    )


FOREIGN = """
import sys
import isoloss_trainer.run
assert {"isoloss_trainer.evaluate", "isoloss_trainer.train", "transformers"} <= set(sys.modules)
foreign = {"datasets", "isoloss_operator", "kopf", "kubernetes"}
print(sorted(foreign & set(sys.modules)))
"""


def test_training_and_evaluating_import_nothing_of_the_operator_or_of_what_only_prepare_needs(
    python: WarmPython,
) -> None:
    """What others are forked from has imported both, has built models, and is asked for nothing else."""
    done = python.run(["-c", FOREIGN])
    assert done.returncode == 0, done.stderr
    assert done.stdout == "[]\n"


def test_a_number_that_json_has_no_word_for_is_what_transformers_reads() -> None:
    """As mamba's time_step_limit, which a config.json has as Infinity."""
    mamba = {"model_type": "mamba2", "time_step_limit": [0.0, {"__float__": "Infinity"}]}
    assert list(model_config(mamba).time_step_limit) == [0.0, math.inf]
    scaled = model_config({**LLAMA, "mine": {"a": {"__float__": "NaN"}, "b": {"__float__": "x"}}})
    assert math.isnan(scaled.mine["a"])
    assert scaled.mine["b"] == {"__float__": "x"}


@pytest.mark.parametrize("module", ["__main__", "prepare", "train"])
def test_torch_is_not_imported_before_there_is_something_to_train(module: str) -> None:
    """It takes seconds, and preparing a corpus needs none."""
    script = f"import sys, isoloss_trainer.{module}; print('torch' in sys.modules)"
    command = [sys.executable, "-c", script]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("normed", [True, False])
def test_experts_are_chosen_and_weighted_as_transformers_does(groups: int, normed: bool) -> None:
    """Bit for bit, with biases that matter, where one group is left and where there are several."""
    changes = {"n_group": groups, "topk_group": 1, "norm_topk_prob": normed}
    network = build_network({**DEEPSEEK, **changes}, seed=0)
    (router,) = (m for m in network.modules() if type(m).__name__ == "DeepseekV3TopkRouter")
    theirs = type(router)
    generator = torch.Generator().manual_seed(0)
    router.e_score_correction_bias.copy_(torch.randn(8, generator=generator) / 10)
    states = torch.randn(2, 16, DEEPSEEK["hidden_size"], generator=generator)
    wanted = router(states)
    LanguageModel(network, 16)
    assert (type(router) is theirs) == (groups != 1)
    for found, expected in zip(router(states), wanted, strict=True):
        assert torch.equal(found, expected)
