"""Checkpoints whose config.json or files describe another model than the one that transformers would build of them."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from isoloss_trainer.foreign_model import (
    ForeignModel,
    contradiction,
    load_network,
    load_shapes,
)
from isoloss_trainer.model import build_network
from isoloss_trainer.termination import BadData
from tests.isoloss_trainer.builders import DEEPSEEK, LLAMA, SEQUENCE_LENGTH, uri
from tests.isoloss_trainer.families import FAMILIES
from tests.support import published_configs

SCALED = {"factor": 4.0, "original_max_position_embeddings": 16}
YARN = {"rope_type": "yarn", **SCALED}
DEFAULT = {"rope_theta": 10_000.0, "rope_type": "default"}
OLMO3 = {"model_type": "olmo3", "architectures": ["Olmo3ForCausalLM"], "rope_parameters": ...}
EPS, ACT = "rms_norm_eps", "hidden_act"
OF_SEVERAL = ("gemma4_assistant", "musicgen", "musicgen_melody")
"""Families whose configuration takes those of other models."""

REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "a factor of rope without its type": ({"rope_scaling": SCALED}, "rope_scaling has a factor"),
    "a factor of rope of the default type": (
        {"rope_scaling": {**SCALED, "rope_type": "default"}},
        "rope_type is default",
    ),
    "a type of rope that is not there": (
        {"rope_scaling": {"type": "ntk-by-parts", "factor": 4.0}},
        "no rope_type 'ntk-by-parts'.*yarn",
    ),
    "two bases of rope": (
        {"rope_theta": 5e5, "rope_parameters": DEFAULT},
        r"500000.*10000\.0 in rope_parameters",
    ),
    "two scalings of rope": (
        {"rope_scaling": YARN, "rope_parameters": DEFAULT},
        "rope_parameters is .*rope_scaling",
    ),
    "another architecture": ({"architectures": ["MistralForCausalLM"]}, "MistralForCausalLM.*llama"),
    "windows": ({"sliding_window": SEQUENCE_LENGTH - 1}, "sliding_window is 31"),
    "part of a head with positions": ({"partial_rotary_factor": 0.5}, "partial_rotary_factor"),
    "the same in rope_parameters": (
        {"rope_parameters": {**DEFAULT, "partial_rotary_factor": 0.5}},
        "partial_rotary_factor is 0.5",
    ),
    "chunks": ({"attention_chunk_size": 8}, "attention_chunk_size is 8"),
    "norms of queries and keys": ({"use_qk_norm": True}, "use_qk_norm"),
    "layers without positions": ({"no_rope_layers": [1, 0]}, "no_rope_layers"),
    "a cap on logits": ({"final_logit_softcapping": 30.0}, "final_logit_softcapping is 30"),
    "a cap on scores": ({"attn_logit_softcapping": 50.0}, "attn_logit_softcapping"),
    "a factor of logits": ({"logits_scaling": 8.0}, "logits_scaling is 8"),
    "another factor of logits": ({"logit_scale": 0.0625}, "logit_scale is 0.0625"),
    "clipped projections": ({"clip_qkv": 8.0}, "clip_qkv"),
    "a norm's constant by another name": (
        {EPS: ..., "layer_norm_eps": 1e-5},
        "layer_norm_eps is 1e-05.*reads rms_norm_eps, which would be 1e-06",
    ),
    "an activation by another name": (
        {ACT: ..., "activation_function": "gelu"},
        "activation_function is .gelu..*reads hidden_act",
    ),
    "experts of a token by another name": (
        {
            "model_type": "mixtral",
            "architectures": ["MixtralForCausalLM"],
            "num_local_experts": 4,
            "moe_top_k": 1,
        },
        "moe_top_k is 1.*reads num_experts_per_tok, which would be 2",
    ),
    "a base of rope by another name": (
        {"rope_parameters": ..., "rope_base": 500_000},
        "rope_base is 500000.*rope_theta, which would be 10000",
    ),
    "a base of rope for layers with windows": (
        {**OLMO3, "rope_theta": 10_000.0},
        r"rope_theta is 10000\.0, and transformers' olmo3 reads 500000\.0 for sliding_attention",
    ),
}  # fmt: skip
WITHOUT_EFFECT: dict[str, dict[str, Any]] = {
    "a window of a whole sequence": {"sliding_window": SEQUENCE_LENGTH},
    "a window that is not used": {"sliding_window": 8, "use_sliding_window": False},
    "no window": {"sliding_window": None},
    "factors of one": {"logit_scale": 1.0, "partial_rotary_factor": 1.0},
    "caps of none": {"final_logit_softcapping": None, "attn_logit_softcapping": None},
    "both names of a setting": {"layer_norm_eps": 1e-5, EPS: 1e-6},
    "the same value by another name": {ACT: ..., "activation_function": "silu"},
    "an unknown architecture": {"architectures": ["OursForCausalLM"]},
    "both forms of rope": {
        "rope_theta": 10_000.0,
        "rope_scaling": YARN,
        "rope_parameters": {**YARN, "rope_theta": 10_000.0},
    },
    "the base of rope that layers with windows have": {**OLMO3, "rope_theta": 500_000},
    "what no model computes with": {"pretraining_tp": 2, "note": "ours"},
}


def saved(folder: Path, config: dict[str, Any], changes: dict[str, Any]) -> Path:
    build_network(config, seed=0).save_pretrained(folder)
    file = folder / "config.json"
    content = {**json.loads(file.read_text()), **changes}
    file.write_text(json.dumps({name: each for name, each in content.items() if each is not ...}))
    return folder


def spoil(file: Path, change: Callable[[dict[str, torch.Tensor]], None]) -> None:
    weights = load_file(file)
    change(weights)
    save_file(weights, file, {"format": "pt"})


@pytest.mark.parametrize("case", REFUSED)
def test_a_setting_that_transformers_would_pass_over_is_refused_by_name(
    tmp_path: Path, case: str
) -> None:
    changes, words = REFUSED[case]
    folder = saved(tmp_path, LLAMA, changes)
    with pytest.raises(BadData, match=words) as caught:
        load_shapes(folder, uri(folder), torch.float32, SEQUENCE_LENGTH)
    assert caught.value.code == "NotACheckpoint"


@pytest.mark.parametrize("case", WITHOUT_EFFECT)
def test_a_setting_without_effect_is_passed_over(tmp_path: Path, case: str) -> None:
    folder = saved(tmp_path, LLAMA, WITHOUT_EFFECT[case])
    load_shapes(folder, uri(folder), torch.float32, SEQUENCE_LENGTH)


@pytest.mark.parametrize(
    "changes",
    [
        {"return_dict": False, "output_hidden_states": True},
        {"_attn_implementation": "flash_attention_2"},
        {"attn_implementation": "flash_attention_2"},
        {"dtype": "auto"},
        {"dtype": ..., "torch_dtype": "fp16"},
    ],
    ids=str,
)
def test_how_another_machine_computed_does_not_matter(
    tmp_path: Path, changes: dict[str, Any]
) -> None:
    folder = saved(tmp_path, LLAMA, changes)
    load_shapes(folder, uri(folder), torch.float32, SEQUENCE_LENGTH)
    model = ForeignModel(load_network(folder, uri(folder), torch.float32), SEQUENCE_LENGTH)
    tokens = torch.arange(SEQUENCE_LENGTH + 1)[None]
    network = build_network(LLAMA, seed=0)
    theirs = network(tokens[:, :-1]).logits[0]
    expected = torch.nn.functional.cross_entropy(theirs, tokens[0, 1:])
    assert model.token_losses(tokens[:, :-1], tokens[:, 1:]).mean() == pytest.approx(
        expected.item(), abs=1e-5
    )


def test_settings_that_do_not_fit_one_another_are_those_of_the_checkpoint(tmp_path: Path) -> None:
    """They ended as an error of ours, which is tried again, where the family is also trained."""
    folder = saved(tmp_path, DEEPSEEK, {"head_dim": 32})
    network = load_network(folder, uri(folder), torch.float32)
    with pytest.raises(BadData, match=r"deepseek_v3.: transformers cannot use it") as caught:
        ForeignModel(network, SEQUENCE_LENGTH, uri(folder))
    assert caught.value.code == "NotACheckpoint"


def test_no_family_of_transformers_contradicts_itself() -> None:
    """With what it takes for all that is left out; some have the model of another family, or no rotary positions."""
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    found = {}
    for kind in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES:
        if kind in OF_SEVERAL:
            continue
        config = CONFIG_MAPPING[kind]()
        why = contradiction(config.to_dict(), config, SEQUENCE_LENGTH)
        found |= {kind: why} if why else {}
    assert found == {}


@pytest.mark.parametrize("changes", [{"scoring_func": "softmax"}, {"topk_method": "greedy"}])
def test_a_router_that_transformers_computes_in_another_way_is_refused(
    tmp_path: Path, changes: dict[str, Any]
) -> None:
    folder = saved(tmp_path, DEEPSEEK, changes)
    with pytest.raises(BadData, match="alone"):
        load_shapes(folder, uri(folder), torch.float32, SEQUENCE_LENGTH)


@pytest.mark.parametrize("cap", [None, 3.0])
def test_a_cap_that_the_model_around_the_text_leaves_out_is_refused(
    tmp_path: Path, cap: float | None
) -> None:
    """Gemma 3 with a vision tower, in transformers 5.23: the text's model alone has the cap."""
    from transformers import AutoConfig

    config = {**FAMILIES["gemma3"]}
    config["text_config"] = {**config["text_config"], "final_logit_softcapping": cap}
    AutoConfig.for_model("gemma3", **config).save_pretrained(tmp_path)
    save_file({"x": torch.zeros(1)}, tmp_path / "model.safetensors")
    if cap is None:
        load_shapes(tmp_path, uri(tmp_path), torch.float32, SEQUENCE_LENGTH)
        return
    with pytest.raises(BadData, match=r"final_logit_softcapping is 3\.0 in text_config"):
        load_shapes(tmp_path, uri(tmp_path), torch.float32, SEQUENCE_LENGTH)


def test_published_configurations_have_no_contradictions() -> None:
    from transformers import AutoConfig

    published = {**published_configs.PUBLISHED, **published_configs.NEIGHBOURS}
    for name, config in {**published, **published_configs.FAMILIES}.items():
        # transformers changes what it is given.
        given = json.loads(json.dumps(config))
        parsed = AutoConfig.for_model(given.pop("model_type"), **given)
        assert contradiction(config, parsed, 4096) is None, name


def frequencies(base: float) -> torch.Tensor:
    half = LLAMA["head_dim"] // 2
    return base ** -(torch.arange(half) / half)


@pytest.mark.parametrize("kind", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("base", [10_000.0, 1e6])
def test_saved_frequencies_of_another_base_than_that_of_config_json_are_refused(
    tmp_path: Path, base: float, kind: torch.dtype
) -> None:
    name = "model.layers.0.self_attn.rotary_emb.inv_freq"
    folder = saved(tmp_path, LLAMA, {})
    spoil(folder / "model.safetensors", lambda w: w.update({name: frequencies(base).to(kind)}))
    if base == 10_000.0:
        load_network(folder, uri(folder), torch.float32)
        return
    with pytest.raises(BadData, match=re.escape(name) + r".*of base .*e\+0[56].*says 1e\+04"):
        load_network(folder, uri(folder), torch.float32)


@pytest.mark.parametrize("same", [True, False])
def test_a_weight_in_two_files_is_refused_unless_it_is_the_same(
    tmp_path: Path, same: bool
) -> None:
    build_network(LLAMA, seed=0).save_pretrained(tmp_path, max_shard_size="12KB")
    index = json.loads((tmp_path / "model.safetensors.index.json").read_text())["weight_map"]
    name = "model.norm.weight"
    other = next(file for file in sorted(index.values()) if file != index[name])
    twice = load_file(tmp_path / index[name])[name] * (1 if same else 2)
    spoil(tmp_path / other, lambda weights: weights.update({name: twice}))
    if same:
        load_shapes(tmp_path, uri(tmp_path), torch.float32, SEQUENCE_LENGTH)
        return
    with pytest.raises(BadData, match=rf"{name} is in .*{index[name]}"):
        load_shapes(tmp_path, uri(tmp_path), torch.float32, SEQUENCE_LENGTH)


def test_shapes_that_differ_and_names_that_are_prefixed_are_said(tmp_path: Path) -> None:
    folder = saved(tmp_path / "wide", {**LLAMA, "vocab_size": 400}, {"vocab_size": 384})
    with pytest.raises(BadData, match=r"lm_head.weight is \[400, 32\], and \[384, 32\]") as caught:
        load_network(folder, uri(folder), torch.float32)
    assert caught.value.code == "WeightsMissing"

    def prefixed(weights: dict[str, torch.Tensor]) -> None:
        for name in list(weights):
            weights[f"_orig_mod.{name}"] = weights.pop(name)

    folder = saved(tmp_path / "compiled", LLAMA, {})
    spoil(folder / "model.safetensors", prefixed)
    with pytest.raises(BadData, match=r"missing, first lm_head.weight.*_orig_mod.lm_head.weight"):
        load_network(folder, uri(folder), torch.float32)

    folder = saved(tmp_path / "tied", LLAMA, {})
    spoil(folder / "model.safetensors", lambda weights: weights.pop("lm_head.weight"))
    with pytest.raises(BadData, match=r"first lm_head.weight; .* set tie_word_embeddings to true"):
        load_network(folder, uri(folder), torch.float32)


@pytest.mark.parametrize("kind", ["falcon_mamba", "mamba", "mamba2"])
def test_a_family_whose_states_are_wider_than_its_weights_is_measured(
    tmp_path: Path, kind: str
) -> None:
    """They were refused in bfloat16, as accelerators compute."""
    config = {"model_type": kind, **FAMILIES[kind]}
    folder = saved(tmp_path, config, {})
    network = load_network(folder, uri(folder), torch.bfloat16)
    tokens = torch.arange(SEQUENCE_LENGTH + 1)[None]
    with torch.no_grad():
        theirs = network(tokens[:, :-1], use_cache=False).logits[0].float()
        ours = ForeignModel(network, SEQUENCE_LENGTH).token_losses(tokens[:, :-1], tokens[:, 1:])
    expected = torch.nn.functional.cross_entropy(theirs, tokens[0, 1:])
    assert ours.mean() == pytest.approx(expected.item(), abs=1e-3)
