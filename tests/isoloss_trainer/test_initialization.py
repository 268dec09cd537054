"""Random weights scaled by depth, and QK-norm."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from isoloss_operator.planning.parameters import parameter_counts
from isoloss_operator.planning.qk_norm import with_qk_norm
from isoloss_trainer.model import build_network, count_parameters, scale_residual_outputs
from isoloss_trainer.run import PointRun
from isoloss_trainer.shards import PreparedData
from isoloss_trainer.termination import BadConfiguration
from tests.isoloss_trainer.builders import LLAMA, attempt, train_task
from tests.isoloss_trainer.conftest import Prepared
from tests.isoloss_trainer.test_model import FAMILIES, family

LAYERS = 3


@pytest.mark.parametrize("config", FAMILIES, ids=family)
def test_what_writes_into_the_residual_stream_is_divided_and_nothing_else(
    config: dict[str, Any],
) -> None:
    """By sqrt(2 * layers): in each layer the attention's output and every feed-forward's."""
    config = {**config, "num_hidden_layers": LAYERS}
    plain, scaled = build_network(config, seed=3), build_network(config, seed=3)
    scale_residual_outputs(scaled)
    changed: dict[str, float] = {}
    for (name, before), after in zip(plain.named_parameters(), scaled.parameters(), strict=True):
        if not torch.equal(before, after):
            changed[name] = float((before.norm() / after.norm()).detach())
    assert {name.split(".")[2] for name in changed} == {str(layer) for layer in range(LAYERS)}
    assert all("o_proj" in name or "down_proj" in name for name in changed)
    assert sum("o_proj" in name for name in changed) == LAYERS
    assert list(changed.values()) == pytest.approx([math.sqrt(2 * LAYERS)] * len(changed))


def test_an_unknown_family_is_refused() -> None:
    """Rather than left as it is under a name that says otherwise."""
    network = build_network({"model_type": "gpt2", "vocab_size": 64, "n_embd": 16, "n_head": 2,
                             "n_layer": 1, "n_positions": 64}, seed=0)  # fmt: skip
    with pytest.raises(BadConfiguration, match="DepthScaled is not possible for gpt2") as refusal:
        scale_residual_outputs(network)
    assert refusal.value.field == "initialization"


def test_a_run_starts_from_the_weights_that_its_point_asks_for(prepared: Prepared) -> None:
    """One layer: sqrt(2)."""
    weights = []
    for initialization in ("Default", "DepthScaled"):
        task = train_task(prepared.manifest, prepared.uri, initialization=initialization)
        data = PreparedData(prepared.data_uri, prepared.folder)
        network = PointRun(attempt(task, data)).learner.model.network
        weights.append(network.model.layers[0].mlp.down_proj.weight.detach().clone())
    torch.testing.assert_close(weights[0], math.sqrt(2) * weights[1])


@pytest.mark.parametrize("biased", [False, True])
def test_qk_norm_is_all_that_the_qwen3_of_a_llama_adds(biased: bool) -> None:
    """The Llama's weights fit into it, and the counts of the operator are those of the model."""
    config = {**LLAMA, "attention_bias": biased}
    network = build_network(with_qk_norm(config), seed=0)
    assert count_parameters(network) == parameter_counts(with_qk_norm(config))
    missing, unexpected = network.load_state_dict(
        build_network(config, seed=0).state_dict(), strict=False
    )
    assert not unexpected
    assert {name.split(".")[-2] for name in missing} == {"q_norm", "k_norm"}
