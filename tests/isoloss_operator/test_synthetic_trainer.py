"""The synthetic trainer says what the contract says: else the tests with it would prove nothing."""

import json

import pytest

from isoloss_contract.records import OptimizerConfig, PointConfig
from isoloss_contract.records.points import evaluation_steps
from isoloss_contract.store import parse_record
from isoloss_operator.planning.models import parameter_counts
from tests.isoloss_contract.test_formats import FILES, KEYED
from tests.support import synthetic_trainer
from tests.support.builders import points, sweep_spec
from tests.support.models import example_model


@pytest.mark.parametrize("weights", [None, "s3://models/base"])
@pytest.mark.parametrize("rate", [1e-4, 2.5e-5, 0.003, 1.0])
def test_its_keys_are_the_contracts(rate: float, weights: str | None) -> None:
    point = PointConfig(
        data_digest="0" * 64,
        mixture={"a": 0.75, "b": 0.25},
        model=example_model("dense-tiny", 64),
        optimizer=OptimizerConfig(),
        learning_rate=rate,
        batch_size=8,
        sequence_length=128,
        initial_weights=weights,
    )
    assert synthetic_trainer.canonical_key(json.loads(point.model_dump_json())) == point.key


@pytest.mark.parametrize("name", KEYED)
def test_its_keys_are_those_of_the_stored_formats(name: str) -> None:
    model, key = KEYED[name]
    config = parse_record((FILES / f"{name}.json").read_bytes(), model, name)
    assert synthetic_trainer.canonical_key(json.loads(config.model_dump_json())) == key


@pytest.mark.parametrize("batches", [[1, 3], [8, 16], [30, 200]])
@pytest.mark.parametrize("first", [1_000, 9_999, 50_000])
def test_its_evaluations_are_the_contracts(batches: list[int], first: int) -> None:
    evaluation = {"firstTokens": first, "perDecade": 24}
    grid = {"batchSizes": batches, "learningRates": ["1e-3", "2e-3"]}
    for point in points(sweep_spec(evaluation=evaluation, grid=grid)):
        config, step = point.config, point.batch_size * 128
        steps = point.tokens // step
        raw = json.loads(config.model_dump_json())
        rows = synthetic_trainer.trajectory_rows(raw, point.tokens)
        wanted = evaluation_steps(config.evaluation, step, steps) | {steps}
        assert [row["step"] for row in rows] == sorted(wanted)


@pytest.mark.parametrize("name", ["dense-tiny", "dense-small"])
def test_its_parameter_counts_are_the_cores(name: str) -> None:
    model = example_model(name, synthetic_trainer.VOCABULARY)
    assert synthetic_trainer.counts(model) == parameter_counts(model).model_dump()
