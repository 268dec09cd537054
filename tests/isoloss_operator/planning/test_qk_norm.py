"""A Llama with QK-norm is a Qwen3 of the same shape."""

from __future__ import annotations

from typing import Any

import pytest

from isoloss_operator.planning.architectures import UnsupportedModel, unknown_keys
from isoloss_operator.planning.parameters import parameter_counts
from isoloss_operator.planning.points import plan_points
from isoloss_operator.planning.presets import preset_config
from isoloss_operator.planning.qk_norm import with_qk_norm
from isoloss_operator.planning.specs import parse_sweep_spec, with_derived_proxies
from tests.support.builders import manifest, points, sweep_spec
from tests.support.published_configs import LLAMA_3_8B, MISTRAL_7B, QWEN3_30B_A3B, TOY_CHECKPOINT


@pytest.mark.parametrize("llama", [LLAMA_3_8B, preset_config("dense-100m")])
def test_only_the_gains_of_the_norms_are_added(llama: dict[str, Any]) -> None:
    """Two per layer, one number for each dimension of a head: no matrix, so that N is the same."""
    config = with_qk_norm(llama)
    before, after = parameter_counts(llama), parameter_counts(config)
    gains = llama["num_hidden_layers"] * 2 * config["head_dim"]
    assert after == before.model_copy(update={"other": before.other + gains})
    assert unknown_keys(config) == {}


def test_what_qwen3_would_take_as_its_own_default_is_stated() -> None:
    """Its heads are 128 wide and have 32 keys unless said otherwise."""
    plain = {"model_type": "llama", "vocab_size": 512, "hidden_size": 64, "intermediate_size": 96,
             "num_hidden_layers": 2, "num_attention_heads": 4}  # fmt: skip
    config = with_qk_norm(plain)
    assert (config["head_dim"], config["num_key_value_heads"]) == (16, 4)


@pytest.mark.parametrize(
    ("config", "says"),
    [
        (QWEN3_30B_A3B, "qwen3_moe has QK-norm of its own"),
        (MISTRAL_7B, "for llama only, not for mistral"),
        ({**LLAMA_3_8B, "mlp_bias": True}, "mlp_bias, which Qwen3 does not have"),
    ],
)
def test_other_models_are_refused_with_the_reason(config: dict[str, Any], says: str) -> None:
    with pytest.raises(UnsupportedModel, match=says) as refusal:
        with_qk_norm(config)
    assert refusal.value.field == "qkNorm"


def with_norm(model: dict[str, Any]) -> dict[str, Any]:
    """The toy sweep with a first size of this model."""
    first, *others = sweep_spec()["proxies"]
    return sweep_spec(proxies=[{**first, "model": {**model, "qkNorm": True}}, *others])


def test_the_points_configuration_and_thus_its_key_say_so() -> None:
    """Of the size that asks for it; the other size's points keep their keys."""
    plain, normed = points(), points(with_norm({"preset": "dense-tiny"}))
    assert normed[0].config.model["model_type"] == "qwen3"
    same = {b.name for b, a in zip(plain, normed, strict=True) if b.key == a.key}
    assert same == {point.name for point in plain if point.proxy.name == "small"}


def test_a_proxy_like_a_checkpoint_can_have_it() -> None:
    """The shape comes from the checkpoint, the norm from the manifest."""
    uri = "s3://bucket/models/x"
    model = {"like": {"checkpoint": uri, "parameters": 1_000_000}}
    spec = parse_sweep_spec(with_norm(model))
    derived = with_derived_proxies(spec, {uri: TOY_CHECKPOINT})
    first = plan_points(derived, manifest(with_norm(model)))[0]
    assert first.config.model["model_type"] == "qwen3"
