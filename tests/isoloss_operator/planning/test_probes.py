"""Which continued runs are probes of an answer: places, models, lengths, costs."""

from __future__ import annotations

from typing import Any

import pytest

from isoloss.validation import Place
from isoloss_contract.records import ParameterCounts
from isoloss_operator.api import AnswerValidation, Checkpoint, HyperparamPredictionSpec
from isoloss_operator.planning.parameters import parameter_counts
from isoloss_operator.planning.points import PlannedPoint, planned_proxy
from isoloss_operator.planning.probes import (
    MAX_PLACES,
    NoProbes,
    plan_probes,
    probe_cost,
    probe_model,
    probe_places,
    probe_sweep,
    probe_tokens,
)
from tests.support import builders
from tests.support.builders import manifest, sweep_spec
from tests.support.published_configs import DEEPSEEK_V3, LLAMA_3_8B, PUBLISHED, TOY_CHECKPOINT


def test_places_of_an_answer_that_moves_by_a_hundredth_are_the_same() -> None:
    """Points are named by their content: others would be trained anew."""
    assert probe_places(3.04e-4, 92, 2.0, 8) == probe_places(3.0e-4, 92.4, 2.0, 8)
    assert probe_places(3.04e-4, 92, 2.0, 8) != probe_places(3.2e-4, 92, 2.0, 8)


def test_neighbours_keep_their_factor_and_batch_sizes_their_multiple() -> None:
    places = probe_places(3.14e-4, 437, 2.0, 64)
    assert [place.learning_rate for place in places[:3]] == [3.1e-4, 1.55e-4, 6.2e-4]
    assert [place.batch_size for place in places] == [448, 448, 448, 192, 896]
    assert len(places) <= MAX_PLACES


@pytest.mark.parametrize("moved", [0.998, 1.002, 1.15, 1 / 1.15])
@pytest.mark.parametrize(("batch_size", "multiple_of"), [(437.0, 64), (92.0, 8), (4.49, 1)])
def test_an_answer_that_moves_by_less_than_a_quarter_of_the_way_keeps_every_place(
    batch_size: float, multiple_of: int, moved: float
) -> None:
    """Whichever border of rounding it crosses: the places that are known count, also beside former ones."""
    rate, given = 3.149e-4, round(batch_size / multiple_of) * multiple_of
    known = probe_places(rate, given, 2.0, multiple_of, raw_batch_size=batch_size)
    others = probe_places(2e-3, 4 * given, 2.0, multiple_of)
    raw = batch_size * (1.002 if moved > 1 else 0.998)
    new = max(1, round(raw / multiple_of)) * multiple_of
    found = probe_places(
        rate * moved, new, 2.0, multiple_of, raw_batch_size=raw, known=(*known, *others)
    )
    assert found == known


def test_an_answer_that_moves_further_gets_places_of_its_own() -> None:
    known = probe_places(3e-4, 64, 2.0)
    assert probe_places(3.7e-4, 64, 2.0, known=known) == probe_places(3.7e-4, 64, 2.0)
    assert probe_places(3e-4, 80, 2.0, known=known) == probe_places(3e-4, 80, 2.0)


def test_an_answer_that_moves_to_its_neighbour_keeps_both() -> None:
    known = probe_places(3e-4, 64, 2.0)
    found = probe_places(6.1e-4, 64, 2.0, known=known)
    assert found[0] == known[2]
    assert known[0] in found


def test_an_answer_that_returns_finds_its_former_probes() -> None:
    first, second = probe_places(3e-4, 64, 2.0), probe_places(5e-4, 64, 2.0)
    assert probe_places(3.1e-4, 64, 2.0, known=(*second, *first)) == first


def test_a_place_that_would_not_stand_for_the_answer_is_not_kept() -> None:
    """A batch size of 1 and one of 2, whatever they were before they were rounded; another multiple."""
    known = probe_places(3e-4, 1, 2.0, raw_batch_size=1.49)
    moved = probe_places(3e-4, 2, 2.0, raw_batch_size=1.51, known=known)
    assert moved[0].batch_size == 2
    known = probe_places(3e-4, 60, 2.0)
    assert probe_places(3e-4, 64, 2.0, 64, known=known)[0].batch_size == 64
    far_apart = probe_places(3e-4, 64, 16.0)
    assert probe_places(3.8e-4, 64, 16.0, known=far_apart)[0].learning_rate == 3.8e-4


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


def test_probes_are_trained_by_as_many_nodes_as_the_validation_says() -> None:
    """Failures of one node say nothing of two: the digest of what shapes the pods is another."""
    sweep = builders.placed(sweep_spec())
    raw = ({"tokensShare": "0.3"}, {"tokensShare": "0.3", "nodes": 2})
    one, two = (
        planned_proxy(
            probe_sweep(
                sweep, AnswerValidation.model_validate(each), TOY_CHECKPOINT, 10**6, suspend=False
            ),
            0,
            manifest(sweep_spec()),
        )
        for each in raw
    )
    assert (one.nodes, two.nodes) == (1, 2)
    assert one.template_digest != two.template_digest


CONTINUED = Checkpoint(uri="s3://models/dense-8b")


def evaluated(**changes: Any) -> dict[str, Any]:
    """A sweep's spec, its evaluation changed."""
    return sweep_spec(evaluation={"firstTokens": 10_000, **changes})


def planned(
    raw: dict[str, Any], tokens: int = 1_024_000, batches: tuple[int, ...] = (8, 4, 16)
) -> tuple[PlannedPoint, ...]:
    """Probes of `tokens` each at one learning rate."""
    sweep = builders.placed(raw)
    validation = AnswerValidation.model_validate({"tokensShare": "0.3"})
    spec = probe_sweep(sweep, validation, TOY_CHECKPOINT, tokens, suspend=False)
    places = [Place(1e-3, batch) for batch in batches]
    return plan_probes(spec, manifest(raw), places, CONTINUED)


def test_probes_share_no_key_with_points_of_their_sweep_or_with_other_probes() -> None:
    """Of the same model, too."""
    own = {"name": "own", "model": {"config": TOY_CHECKPOINT}, "tokens": 1_024_000}
    grid = {"batchSizes": [4, 8, 16], "learningRates": ["1e-3", "2e-3"]}
    sweep = builders.points({**evaluated(), "proxies": [own], "grid": grid})
    keys = [point.key for points in (planned(evaluated()), sweep) for point in points]
    assert len(set(keys)) == len(keys) == 9
