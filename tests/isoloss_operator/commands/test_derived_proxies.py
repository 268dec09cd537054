"""Proxies derived from published checkpoints: what is kept, how close they come, what is refused."""

import json
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from isoloss import formatting
from isoloss_operator.commands.derived_proxies import NoDerivedProxy, derive_proxy
from isoloss_operator.commands.nearest_family import nearest
from isoloss_operator.planning.models import (
    UnsupportedModel,
    completed,
    parameter_counts,
    text_model,
    unknown_keys,
)
from tests.support.published_configs import (
    DEEPSEEK_V3,
    FAMILIES,
    LLAMA_3_8B,
    MISTRAL_7B,
    MIXTRAL_8X7B,
    PUBLISHED,
    QWEN3_8B,
    QWEN3_30B_A3B,
)

SIZES = (100_000_000, 300_000_000, 1_000_000_000)
COARSE = [("Gemma-3-4B", 300_000_000), ("Llama-4-Scout", 100_000_000)]
"""Sizes that groups of layers leave out."""
CASES = [(name, size) for name in PUBLISHED for size in SIZES if (name, size) not in COARSE]
IN_GROUPS = ("Gemma-3-4B", "SmolLM3-3B", "gpt-oss-20b", "Llama-4-Scout")
"""Their layers are of several kinds, so that depths are multiples of a number."""
KEPT = {
    "llama": ["head_dim"],
    "mistral": ["head_dim", "sliding_window"],
    "qwen3": ["head_dim"],
    "qwen3_moe": ["head_dim", "num_experts", "num_experts_per_tok", "norm_topk_prob"],
    "mixtral": ["head_dim", "num_local_experts", "num_experts_per_tok"],
    "qwen2": [],
    "gemma3_text": ["head_dim", "sliding_window", "sliding_window_pattern", "rope_scaling"],
    "olmo2": [],
    "gpt_oss": ["head_dim", "sliding_window", "num_local_experts", "swiglu_limit", "rope_scaling"],
    "smollm3": [],
    "glm4": ["head_dim", "partial_rotary_factor", "attention_bias"],
    "glm4_moe": ["head_dim", "n_routed_experts", "n_shared_experts", "use_qk_norm"],
    "phi3": ["original_max_position_embeddings"],
    "granite": ["embedding_multiplier", "residual_multiplier", "attention_multiplier"],
    "llama4_text": ["head_dim", "num_local_experts", "attention_chunk_size", "use_qk_norm"],
    "deepseek_v3": [
        *("qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim"),
        *("n_routed_experts", "n_shared_experts", "num_experts_per_tok", "n_group"),
        *("topk_group", "routed_scaling_factor", "rope_scaling"),
    ],
}
WIDTHS = (
    *("intermediate_size", "moe_intermediate_size", "intermediate_size_mlp"),
    *("q_lora_rank", "kv_lora_rank"),
)


@pytest.mark.parametrize(
    ("name", "billions"),
    [
        ("Llama-3-8B", 8.03),
        ("Mistral-7B", 7.24),
        ("Qwen3-8B", 8.19),
        ("Qwen3-30B-A3B", 30.53),
        ("Mixtral-8x7B", 46.70),
        ("DeepSeek-V3", 671.03),
        ("Qwen2.5-7B", 7.62),
        ("Gemma-3-4B", 3.88),
        ("OLMo-2-7B", 7.30),
        ("Mistral-Small-3.1-24B", 23.57),
        ("gpt-oss-20b", 20.91),
        ("SmolLM3-3B", 3.08),
        ("GLM-4-9B", 9.40),
        ("GLM-4.5-Air", 106.85),
        ("Phi-4", 14.66),
        ("Granite-3.1-8B", 8.17),
        ("Llama-4-Scout", 107.77),
    ],
)
def test_the_checkpoints_have_the_sizes_that_their_makers_state(
    name: str, billions: float
) -> None:
    """Or the dictionaries would not be the published ones."""
    counts = parameter_counts(PUBLISHED[name])
    total = counts.body_total + counts.head + counts.embedding + counts.other
    assert total / 1e9 == pytest.approx(billions, abs=0.006)


@pytest.mark.parametrize(("name", "size"), CASES)
def test_a_proxy_keeps_what_makes_the_checkpoint_what_it_is(name: str, size: int) -> None:
    """Family, vocabulary, head sizes, experts and positions exactly; proportions but for rounding."""
    checkpoint, proxy = PUBLISHED[name], derive_proxy(PUBLISHED[name], size)
    assert unknown_keys(proxy) == {}
    defaults = {"head_dim": 128}
    common = ["model_type", "vocab_size", "rope_theta", "max_position_embeddings"]
    for key in [*common, "tie_word_embeddings", "rms_norm_eps", *KEPT[proxy["model_type"]]]:
        assert proxy.get(key) == checkpoint.get(key, defaults.get(key)), key
    shrunk = proxy["hidden_size"] / checkpoint["hidden_size"]
    deeper = proxy["num_hidden_layers"] / checkpoint["num_hidden_layers"]
    assert 0.5 <= shrunk / deeper <= 2
    for key in WIDTHS:
        if key in checkpoint:
            assert abs(proxy[key] - checkpoint[key] * shrunk) <= 32, key
    heads = proxy["num_attention_heads"] / checkpoint["num_attention_heads"]
    assert heads == pytest.approx(shrunk, rel=0.05)


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("Llama-3-8B", (640, 5, 5, 1, 2240)),
        ("Mistral-7B", (1024, 5, 8, 2, 3584)),
        ("Qwen3-8B", (512, 5, 4, 1, 1536)),
        ("Qwen3-30B-A3B", (448, 11, 7, 1, 1344)),
        ("Mixtral-8x7B", (768, 6, 6, 2, 2688)),
        ("DeepSeek-V3", (576, 5, 10, 10, 1472)),
    ],
)
def test_the_shape_for_a_hundred_million_does_not_change_unnoticed(
    name: str, shape: tuple[int, ...]
) -> None:
    """Another shape is another key: everything trained before would be trained again."""
    proxy = derive_proxy(PUBLISHED[name], 100_000_000)
    keys = ["hidden_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads"]
    assert tuple(proxy[key] for key in [*keys, "intermediate_size"]) == shape


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_proxy_of_the_checkpoints_own_size_is_the_checkpoint(name: str) -> None:
    """Nothing is changed that need not be."""
    checkpoint = PUBLISHED[name]
    proxy = derive_proxy(checkpoint, parameter_counts(checkpoint).active)
    assert parameter_counts(proxy) == parameter_counts(checkpoint)
    assert {key: checkpoint[key] for key in proxy.keys() & checkpoint.keys()} == {
        key: proxy[key] for key in proxy.keys() & checkpoint.keys()
    }


def test_a_deepseek_keeps_a_dense_layer_first_and_mixtures_after_it() -> None:
    """Three of 61 become one of a few, never all."""
    proxy = derive_proxy(DEEPSEEK_V3, 50_000_000)
    assert 1 == proxy["first_k_dense_replace"] < proxy["num_hidden_layers"]
    counts = parameter_counts(proxy)
    assert counts.body_total > 3 * counts.body_active


def test_queries_without_a_rank_stay_so() -> None:
    """Left out, transformers would take its default rank."""
    proxy = derive_proxy({**DEEPSEEK_V3, "q_lora_rank": None}, 300_000_000)
    assert proxy["q_lora_rank"] is None


def test_a_mistral_without_a_window_and_one_that_names_none_differ() -> None:
    """Null means none, absent means transformers' 4096."""
    absent = {key: value for key, value in MISTRAL_7B.items() if key != "sliding_window"}
    assert derive_proxy(absent, 100_000_000)["sliding_window"] == 4096
    none = derive_proxy({**MISTRAL_7B, "sliding_window": None}, 100_000_000)
    assert none["sliding_window"] is None


def test_what_belongs_to_the_checkpoint_alone_is_left_behind() -> None:
    """Quantisation, code of its own, token ids, extra prediction layers."""
    proxy = derive_proxy(DEEPSEEK_V3, 100_000_000)
    assert not proxy.keys() & {"quantization_config", "auto_map", "num_nextn_predict_layers"}
    assert "eos_token_id" not in derive_proxy(LLAMA_3_8B, 100_000_000)


@pytest.mark.parametrize(
    ("config", "parameters", "field", "says"),
    [
        ({}, 10**8, "checkpoint", "config.json: model_type: None is not supported; use one of"),
        ({**LLAMA_3_8B, "model_type": "gemma2"}, 10**8, "checkpoint", "'gemma2' is not supported"),
        ({**LLAMA_3_8B, "model_type": ["llama"]}, 10**8, "checkpoint", "is not supported"),
        (
            {**QWEN3_8B, "layer_types": ["full_attention", "sliding_attention"]},
            10**8,
            "checkpoint",
            "an entry for each of 36 layers",
        ),
        ({**QWEN3_8B, "layer_types": 3}, 10**8, "checkpoint", "must be a list"),
        ({**DEEPSEEK_V3, "moe_layer_freq": 2}, 10**8, "checkpoint", "moe_layer_freq: only 1"),
        (
            {**LLAMA_3_8B, "rope_scaling": {"long_factor": [1.5] * 5000}},
            10**8,
            "checkpoint",
            "rope_scaling: is too long",
        ),
        (LLAMA_3_8B, 10**7, "parameters", "the nearest has 1"),
        (QWEN3_8B, 50_000_000, "parameters", "vocabulary of 151,936"),
        (MIXTRAL_8X7B, 13 * 10**9, "parameters", "more than the 12,748,587,008 active"),
    ],
)
def test_what_no_proxy_can_be_derived_from_is_refused_with_the_reason(
    config: dict[str, Any], parameters: int, field: str, says: str
) -> None:
    """A misshapen proxy would teach nothing about the checkpoint."""
    with pytest.raises(NoDerivedProxy) as refusal:
        derive_proxy(config, parameters)
    assert refusal.value.field == field
    assert says in refusal.value.message
    assert len(refusal.value.message) <= 400


def test_a_message_does_not_repeat_what_a_stranger_wrote_at_length() -> None:
    """config.json is not ours."""
    with pytest.raises(NoDerivedProxy) as refusal:
        derive_proxy({**LLAMA_3_8B, "model_type": "x" * 100_000}, 10**8)
    assert len(str(refusal.value)) < 500


@given(
    name=st.sampled_from(sorted(set(PUBLISHED) - set(IN_GROUPS))),
    size=st.integers(10**6, 3 * 10**9),
)
def test_every_size_is_met_within_a_tenth_and_only_small_ones_are_refused(
    name: str, size: int
) -> None:
    """Below 80 million, the vocabularies leave too little for layers."""
    try:
        missed = abs(parameter_counts(derive_proxy(PUBLISHED[name], size)).active / size - 1)
    except NoDerivedProxy:
        missed = 0.0 if size < 80_000_000 else 1.0
    assert missed <= 0.1


@pytest.mark.parametrize(
    ("name", "changes", "key"),
    [
        ("gpt-oss-20b", {}, "layer_types"),
        ("SmolLM3-3B", {}, "no_rope_layers"),
        ("Llama-4-Scout", {}, "no_rope_layers"),
        (
            "Gemma-3-4B",
            {
                "layer_types": [
                    *(["sliding_attention"] * 5 + ["full_attention"]) * 5,
                    *["sliding_attention"] * 4,
                ]
            },
            "layer_types",
        ),
    ],
)
def test_layers_of_several_kinds_follow_each_other_as_in_the_checkpoint(
    name: str, changes: dict[str, Any], key: str
) -> None:
    checkpoint = {**PUBLISHED[name], **changes}
    proxy = derive_proxy(checkpoint, 500_000_000)
    assert len(proxy[key]) == proxy["num_hidden_layers"]
    assert proxy[key] == checkpoint[key][: len(proxy[key])]
    shares = [each[key].count(checkpoint[key][0]) / len(each[key]) for each in (proxy, checkpoint)]
    assert shares[0] == pytest.approx(shares[1], abs=0.02)


def test_kinds_of_layers_without_a_pattern_keep_their_places_in_the_depth() -> None:
    """Windows from a layer on, as a number or as a list; dense layers by number."""
    windows = {"use_sliding_window": True, "max_window_layers": 27, "sliding_window": 4096}
    proxy = derive_proxy({**QWEN3_8B, **windows}, 300_000_000)
    layers = proxy["num_hidden_layers"]
    assert (proxy["sliding_window"], proxy["max_window_layers"]) == (4096, round(0.75 * layers))
    kinds = ["full_attention"] * 27 + ["sliding_attention"] * 9
    listed = derive_proxy({**QWEN3_8B, **windows, "layer_types": kinds}, 300_000_000)[
        "layer_types"
    ]
    full = listed.count("full_attention")
    assert listed == ["full_attention"] * full + ["sliding_attention"] * (len(listed) - full)
    assert abs(full - 0.75 * len(listed)) <= 0.5
    mixture = derive_proxy({**QWEN3_30B_A3B, "mlp_only_layers": [0, 1, 2, 3, 4, 5]}, 300_000_000)
    dense = round(mixture["num_hidden_layers"] * 6 / 48)
    assert mixture["mlp_only_layers"] == list(range(dense))


def test_what_a_llama_4_has_experts_in_is_as_often_in_its_proxies() -> None:
    maverick = {
        **PUBLISHED["Llama-4-Scout"],
        "num_local_experts": 128,
        "interleave_moe_layer_step": 2,
        "moe_layers": list(range(1, 48, 2)),
    }
    assert parameter_counts(maverick).total / 1e9 == pytest.approx(400, abs=2)
    proxy = derive_proxy(maverick, 300_000_000)
    assert proxy["moe_layers"] == list(range(1, proxy["num_hidden_layers"], 2))


def test_the_scale_of_logits_follows_the_width() -> None:
    """As in Granite's own sizes: 8 at a width of 2048, 16 at 4096."""
    proxy = derive_proxy(PUBLISHED["Granite-3.1-8B"], 300_000_000)
    assert proxy["logits_scaling"] == proxy["hidden_size"] / 256


@pytest.mark.parametrize("name", ["Gemma-3-4B", "Mistral-Small-3.1-24B", "Llama-4-Scout"])
def test_a_model_of_images_is_taken_for_its_text_decoder(name: str) -> None:
    whole = FAMILIES[name]
    text = text_model(whole)
    assert text["model_type"] == whole["text_config"]["model_type"]
    assert text_model(text) == text
    tied = text_model({**whole, "tie_word_embeddings": True})
    assert tied["tie_word_embeddings"] is True


@given(
    key=st.sampled_from(sorted({key for config in PUBLISHED.values() for key in config})),
    name=st.sampled_from(sorted(PUBLISHED)),
    value=st.none()
    | st.booleans()
    | st.integers(-2, 2**40)
    | st.floats(allow_nan=False)
    | st.text(max_size=8)
    | st.lists(st.integers(), max_size=3)
    | st.dictionaries(st.text(max_size=3), st.integers(), max_size=2),
)
def test_a_strange_config_gives_a_sound_proxy_or_a_refusal(
    key: str, name: str, value: object
) -> None:
    """Whatever config.json holds, only NoDerivedProxy is raised."""
    try:
        proxy = derive_proxy({**PUBLISHED[name], key: value}, 200_000_000)
    except NoDerivedProxy:
        return
    assert parameter_counts(proxy).active == pytest.approx(200_000_000, rel=0.1)


@pytest.mark.parametrize("kind", ["rwkv", "zamba", "lfm2"])
def test_layers_of_other_kinds_are_counted_as_transformers_builds_them(kind: str) -> None:
    """By their sizes alone they would be 0.5, 2.3 and 1.4 times as large."""
    named = MODEL_FOR_CAUSAL_LM_MAPPING_NAMES[kind]
    published = json.loads(
        json.dumps({**AutoConfig.for_model(kind).to_dict(), "architectures": [named]})
    )
    found = nearest(published)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(AutoConfig.for_model(kind))
    total = sum(each.numel() for each in model.parameters())
    assert parameter_counts(completed(found.config)).total == pytest.approx(total, rel=0.05)
    layers = found.config["num_hidden_layers"]
    phrase = f"in all ({layers} layers for its "
    assert phrase in found.differences[-1]
    assert f"for the {formatting.count(total)} that transformers builds" in found.differences[-1]


def test_a_mixture_of_another_kind_keeps_its_layers_and_active_parameters() -> None:
    """Half of Jamba's layers have experts: as many layers as have its parameters would have half of its active ones."""
    given = AutoConfig.for_model("jamba", architectures=["JambaForCausalLM"]).to_dict()
    found = nearest(json.loads(json.dumps(given)))
    assert found.config["num_hidden_layers"] == given["num_hidden_layers"]
    assert parameter_counts(completed(found.config)).active == pytest.approx(12e9, rel=0.15)
    assert "layers for its" not in found.differences[-1]


def test_a_family_that_no_layers_come_near_is_refused() -> None:
    """Sixteen thousand experts of one number each."""
    doge = json.loads(
        json.dumps(AutoConfig.for_model("doge", architectures=["DogeForCausalLM"]).to_dict())
    )
    with pytest.raises(
        UnsupportedModel, match=r"doge: transformers builds .* write the manifest by hand"
    ):
        nearest(doge)
