"""Sizes that continue a checkpoint: their models and points, and where points around an answer lie."""

from dataclasses import replace
from typing import Any

import pytest

from isoloss_contract.ledger import KnownCheckpoint, Neighbourhood
from isoloss_operator.api import MAX_NEIGHBOURHOOD, ScalingSweepSpec
from isoloss_operator.decide.checks import (
    neighbourhood_errors,
    places_around,
    with_checkpoint_models,
)
from isoloss_operator.planning.models import UnsupportedModel, checkpoint_model
from isoloss_operator.planning.points import Continued, PlannedPoint, plan_points
from isoloss_operator.planning.specs import InvalidSpec, parse_sweep_spec
from tests.support.builders import manifest, sweep_spec
from tests.support.published_configs import DEEPSEEK_V3, LLAMA_3_8B, PUBLISHED, TOY_CHECKPOINT

URI = "s3://models/dense-8b"
STAMP = "5" * 64


def test_places_of_an_answer_that_moves_by_a_hundredth_are_the_same() -> None:
    """Points are named by their content: others would be trained anew."""
    assert places_around(3.04e-4, 92, 2.0, 8) == places_around(3.0e-4, 92.4, 2.0, 8)
    assert places_around(3.04e-4, 92, 2.0, 8) != places_around(3.2e-4, 92, 2.0, 8)


def test_neighbours_keep_their_factor_and_batch_sizes_their_multiple() -> None:
    places = places_around(3.14e-4, 437, 2.0, 64)
    assert [place.learning_rate for place in places[:3]] == [3.1e-4, 1.55e-4, 6.2e-4]
    assert [place.batch_size for place in places] == [448, 448, 448, 192, 896]
    assert len(places) <= MAX_NEIGHBOURHOOD


@pytest.mark.parametrize("moved", [0.998, 1.002, 1.15, 1 / 1.15])
@pytest.mark.parametrize(("batch_size", "multiple_of"), [(437.0, 64), (92.0, 8), (4.49, 1)])
def test_an_answer_that_moves_by_less_than_a_quarter_of_the_way_keeps_every_place(
    batch_size: float, multiple_of: int, moved: float
) -> None:
    """Whichever border of rounding it crosses: the places that are known count, also beside former ones."""
    rate, given = 3.149e-4, round(batch_size / multiple_of) * multiple_of
    known = places_around(rate, given, 2.0, multiple_of)
    others = places_around(2e-3, 4 * given, 2.0, multiple_of)
    raw = batch_size * (1.002 if moved > 1 else 0.998)
    new = max(1, round(raw / multiple_of)) * multiple_of
    found = places_around(rate * moved, new, 2.0, multiple_of, known=(*known, *others))
    assert found == known


def test_an_answer_that_moves_further_gets_places_of_its_own() -> None:
    known = places_around(3e-4, 64, 2.0)
    assert places_around(3.7e-4, 64, 2.0, known=known) == places_around(3.7e-4, 64, 2.0)
    assert places_around(3e-4, 80, 2.0, known=known) == places_around(3e-4, 80, 2.0)


def test_an_answer_that_moves_to_its_neighbour_keeps_both() -> None:
    known = places_around(3e-4, 64, 2.0)
    found = places_around(6.1e-4, 64, 2.0, known=known)
    assert found[0] == known[2]
    assert known[0] in found


def test_an_answer_that_returns_finds_its_former_probes() -> None:
    first, second = places_around(3e-4, 64, 2.0), places_around(5e-4, 64, 2.0)
    assert places_around(3.1e-4, 64, 2.0, known=(*second, *first)) == first


def test_a_place_that_would_not_stand_for_the_answer_is_not_kept() -> None:
    """A batch size of 1 and one of 2, whatever they were before they were rounded; another multiple."""
    known = places_around(3e-4, 1, 2.0)
    moved = places_around(3e-4, 2, 2.0, known=known)
    assert moved[0].batch_size == 2
    known = places_around(3e-4, 60, 2.0)
    assert places_around(3e-4, 64, 2.0, 64, known=known)[0].batch_size == 64
    far_apart = places_around(3e-4, 64, 16.0)
    assert places_around(3.8e-4, 64, 16.0, known=far_apart)[0].learning_rate == 3.8e-4


@pytest.mark.parametrize("name", sorted(set(PUBLISHED) - {"DeepSeek-V3", "gpt-oss-20b"}))
def test_a_published_config_is_its_own_model(name: str) -> None:
    config = PUBLISHED[name]
    assert checkpoint_model(config) == config


def test_where_a_config_came_from_is_no_part_of_the_model() -> None:
    """Nor is a width that transformers adds when it saves a DeepSeek-V3."""
    plain = {k: v for k, v in DEEPSEEK_V3.items() if k not in ("quantization_config", "auto_map")}
    saved = {**plain, "_name_or_path": "here", "auto_map": {"AutoConfig": "x"}, "qk_head_dim": 192}
    assert checkpoint_model(saved) == plain


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
def test_a_config_that_is_not_understood_is_no_model(config: dict[str, Any], says: str) -> None:
    with pytest.raises(UnsupportedModel, match=says):
        checkpoint_model(config)


def continued(**changes: Any) -> dict[str, Any]:
    """A size that continues a checkpoint on the sweep's grid."""
    return {"name": "probe", "checkpoint": {"uri": f"{URI}/"}, "tokens": 1_000_000, **changes}


def around(**changes: Any) -> dict[str, Any]:
    """The same around an answer."""
    return continued(grid={"around": {"prediction": "dense-8b"}}, **changes)


def known(**config: Any) -> tuple[KnownCheckpoint, ...]:
    """The checkpoint as a ledger has it."""
    return (KnownCheckpoint(URI, STAMP, {**TOY_CHECKPOINT, **config}),)


def planned(
    proxy: dict[str, Any], *neighbourhoods: Neighbourhood, **spec: Any
) -> tuple[PlannedPoint, ...]:
    """The points of a sweep of one size."""
    raw = sweep_spec(proxies=[proxy], **spec)
    found = with_checkpoint_models(parse_sweep_spec(raw), known())
    return plan_points(found, manifest(raw), (), Continued.of(known(), neighbourhoods))


def test_a_point_of_a_continued_size_is_what_its_checkpoint_is() -> None:
    """And as many as any other size has, in a grid of seeds, batch sizes and learning rates."""
    points = planned(continued(), training={"additionalSeeds": [7]})
    assert len(points) == 8
    config = points[0].config
    assert (config.initial_weights, config.initial_weights_stamp) == (URI, STAMP)
    assert config.model == TOY_CHECKPOINT
    assert points[0].flops == pytest.approx(6 * points[0].proxy.parameters.active * 1_000_448)


def test_the_secret_of_a_checkpoint_is_of_its_own_size_and_starts_failures_anew() -> None:
    plain = planned(continued())[0]
    secret = planned(continued(checkpoint={"uri": URI, "secretName": "models"}))[0]
    assert (plain.proxy.secret_name, secret.proxy.secret_name) == (None, "models")
    assert plain.key == secret.key
    assert plain.proxy.template_digest != secret.proxy.template_digest


def test_points_around_an_answer_are_the_places_in_the_ledger() -> None:
    places = ((3e-4, 8), (1.5e-4, 8), (6e-4, 8), (3e-4, 4), (3e-4, 16))
    points = planned(around(), Neighbourhood("probe", "dense-8b", places), design="Checked")
    assert tuple((point.learning_rate, point.batch_size) for point in points) == places


def test_a_checkpoint_with_too_few_positions_or_none_is_refused() -> None:
    spec = parse_sweep_spec(sweep_spec(proxies=[continued()]))
    with pytest.raises(InvalidSpec, match="128 is more than the 64 positions of proxy probe"):
        with_checkpoint_models(spec, known(max_position_embeddings=64))
    bare = {k: v for k, v in TOY_CHECKPOINT.items() if k != "max_position_embeddings"}
    with pytest.raises(InvalidSpec, match="max_position_embeddings"):
        with_checkpoint_models(spec, (replace(known()[0], config=bare),))


def test_a_checkpoint_with_a_smaller_vocabulary_than_the_tokenizers_is_refused() -> None:
    raw = sweep_spec(proxies=[continued()])
    spec = with_checkpoint_models(parse_sweep_spec(raw), known(vocab_size=512))
    with pytest.raises(InvalidSpec, match=r"spec.proxies\[0\].checkpoint: a vocabulary of 512"):
        plan_points(spec, manifest(raw))


def test_points_whose_batch_sizes_end_at_different_tokens_are_refused() -> None:
    """Compared are losses after equal tokens."""
    spec: ScalingSweepSpec = parse_sweep_spec(sweep_spec(proxies=[around(tokens=20_480)]))
    fits = Neighbourhood("probe", "dense-8b", ((3e-4, 8), (3e-4, 16)))
    assert neighbourhood_errors(spec, fits) == []
    long = Neighbourhood("probe", "dense-8b", ((3e-4, 8), (3e-4, 100)))
    (error,) = neighbourhood_errors(spec, long)
    assert str(error).startswith(
        "spec.proxies[0].tokens: 20480 tokens are too few steps of 100 x 128"
    )


def test_one_size_around_an_answer_is_a_checked_design() -> None:
    """It is no sweep for laws, of which one size gives none."""
    raw = sweep_spec(proxies=[around()], design="Checked")
    assert parse_sweep_spec(raw).fitted_proxies == ()


def test_two_sizes_of_one_checkpoint_may_not_share_points() -> None:
    raw = sweep_spec(proxies=[continued(), around(name="near")])
    with pytest.raises(InvalidSpec, match="continue the same checkpoint"):
        with_checkpoint_models(parse_sweep_spec(raw), known())
