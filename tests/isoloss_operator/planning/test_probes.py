"""Which continued runs are probes of an answer: places, models, lengths, costs."""

from __future__ import annotations

from typing import Any

import pytest

from isoloss_contract.records import ParameterCounts
from isoloss_operator.api import HyperparamPredictionSpec
from isoloss_operator.planning.parameters import parameter_counts
from isoloss_operator.planning.probe_cost import probe_cost
from isoloss_operator.planning.probes import (
    MAX_PLACES,
    NoProbes,
    probe_model,
    probe_places,
    probe_tokens,
)
from tests.support.published_configs import DEEPSEEK_V3, LLAMA_3_8B, PUBLISHED


def test_places_of_an_answer_that_moves_by_a_hundredth_are_the_same() -> None:
    """Points are named by their content: others would be trained anew."""
    assert probe_places(3.04e-4, 92, 2.0, 8) == probe_places(3.0e-4, 92.4, 2.0, 8)
    assert probe_places(3.04e-4, 92, 2.0, 8) != probe_places(3.2e-4, 92, 2.0, 8)


def test_neighbours_keep_their_factor_and_batch_sizes_their_multiple() -> None:
    places = probe_places(3.14e-4, 437, 2.0, 64)
    assert [place.learning_rate for place in places[:3]] == [3.1e-4, 1.55e-4, 6.2e-4]
    assert [place.batch_size for place in places] == [448, 448, 448, 192, 896]
    assert len(places) <= MAX_PLACES


@pytest.mark.parametrize("name", sorted(set(PUBLISHED) - {"DeepSeek-V3"}))
def test_a_published_config_is_its_own_model(name: str) -> None:
    config = PUBLISHED[name]
    assert probe_model(config, parameter_counts(config)) == config


def test_where_a_config_came_from_is_no_part_of_the_model() -> None:
    """Nor is a width that transformers adds when it saves a DeepSeek-V3."""
    plain = {k: v for k, v in DEEPSEEK_V3.items() if k not in ("quantization_config", "auto_map")}
    saved = {**plain, "_name_or_path": "here", "auto_map": {"AutoConfig": "x"}, "qk_head_dim": 192}
    assert probe_model(saved, parameter_counts(plain)) == plain


@pytest.mark.parametrize(
    ("config", "says"),
    [
        ({}, "model_type"),
        ({"model_type": "gpt2"}, "'gpt2' is not supported"),
        ({**LLAMA_3_8B, "hidden_size": "wide"}, "hidden_size: must be a positive integer"),
        ({**LLAMA_3_8B, "hiden_size": 8}, "did you mean hidden_size"),
        (DEEPSEEK_V3, "quantization_config"),
    ],
)
def test_a_config_that_is_not_understood_has_no_probes(config: dict[str, Any], says: str) -> None:
    with pytest.raises(NoProbes, match=says):
        probe_model(config, ParameterCounts(body_active=1, body_total=1, head=1, embedding=0))


def test_a_probe_has_its_share_of_the_budget_in_whole_steps() -> None:
    assert probe_tokens(1e9, 0.3, 64, 1024) == pytest.approx(3e8, abs=64 * 1024)
    assert probe_tokens(1e9, 0.3, 64, 1024) % (64 * 1024) == 0
    with pytest.raises(NoProbes, match="one step of 64 sequences is more"):
        probe_tokens(1000, 0.3, 64, 1024)


def prediction(**changes: Any) -> HyperparamPredictionSpec:
    return HyperparamPredictionSpec.model_validate(
        {
            "sweepRef": {"name": "dense"},
            "checkpoint": {"uri": "s3://models/m"},
            "budget": {"tokens": 1_000_000},
            **changes,
        }
    )


def test_probes_cost_at_most_five_places_times_seeds_times_share() -> None:
    """In the unit of the budget; nothing where no validation is asked for."""
    assert probe_cost(prediction()) is None
    cost = probe_cost(prediction(validation={"seeds": 3, "tokensShare": "0.2"}))
    assert cost is not None
    assert (cost.runs, cost.tokens, cost.flops) == (15, pytest.approx(3e6), None)
    assert cost.share_of_budget == pytest.approx(3.0)
