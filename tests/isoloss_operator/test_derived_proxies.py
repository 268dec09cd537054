"""Proxies like a checkpoint, through the whole operator: config.json read, refused, fixed, trained."""

from __future__ import annotations

import json
import shutil
from typing import Any

import pytest

from devcluster.process_node import ProcessNode
from isoloss_contract.ledger import PointState
from isoloss_operator.planning.derived_proxies import derive_proxy
from tests.isoloss_operator.conftest import Place
from tests.support.operator_process import (
    OperatorProcess,
    User,
    conditions,
    prediction_manifest,
    sweep_manifest,
)
from tests.support.published_configs import TOY_CHECKPOINT

pytestmark = [pytest.mark.cluster, pytest.mark.s3]

PARAMETERS = 1_000_000
FIELD = "spec.proxies[0].model.like.checkpoint"


def sweep(place: Place, checkpoint: str, **spec: Any) -> dict[str, Any]:
    like = {"checkpoint": checkpoint, "parameters": PARAMETERS}
    proxies = [
        {"name": "alike", "model": {"like": like}, "tokens": 4_000_000},
        {"name": "small", "model": {"preset": "dense-small"}, "tokens": 8_000_000},
    ]
    grid = {"batchSizes": [4, 8], "learningRates": ["2e-3", "4e-3"]}
    return sweep_manifest("dense", place.uri, proxies=proxies, grid=grid, **spec)


def test_a_missing_config_is_reported_by_field_and_fixed_by_adding_it(
    operator: OperatorProcess, user: User, node: ProcessNode, place: Place
) -> None:
    operator.start()
    checkpoint = f"{place.uri}/models/target"
    user.apply_sweep(sweep(place, checkpoint))
    said = user.wait_for(lambda: user.sweep("dense"), "Accepted", "False", "InvalidSpec")
    message = conditions(said)["Accepted"]["message"]
    assert message == f"{FIELD}: {checkpoint}/config.json: not found"
    assert not user.jobs()

    folder = place.folder / "models" / "target"
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(TOY_CHECKPOINT))
    user.apply_sweep(sweep(place, checkpoint, parallelism=5))
    ended = user.wait_for(lambda: user.sweep("dense"), "Progressing", "False", "Finished")
    points = place.ledger(ended).points
    assert [point.state for point in points] == [PointState.SUCCEEDED] * 8
    configs = [json.loads(path.read_text()) for path in place.folder.glob("points/*/config.json")]
    models = [config["model"] for config in configs]
    assert models.count(derive_proxy(TOY_CHECKPOINT, PARAMETERS)) == 4


@pytest.mark.whole
def test_a_finished_sweep_needs_neither_its_checkpoint_nor_its_corpus(
    operator: OperatorProcess, user: User, node: ProcessNode, place: Place
) -> None:
    """Another operator finds another config.json, no data and an edited spec: nothing is trained or prepared."""
    target = place.folder / "models" / "target" / "config.json"
    target.parent.mkdir(parents=True)
    target.write_text(json.dumps(TOY_CHECKPOINT))
    wanted = sweep(place, f"{place.uri}/models/target")
    wanted["spec"]["grid"] = {"batchSizes": [4, 8, 16], "learningRates": ["2e-3", "4e-3", "8e-3"]}
    operator.start()
    user.apply_sweep(wanted)
    before = user.wait_for(lambda: user.sweep("dense"), "Ready")
    trained = {point.key for point in place.ledger(before).points}
    assert operator.stop() == 0
    target.write_text(json.dumps({**TOY_CHECKPOINT, "rope_theta": 12345.0}))
    shutil.rmtree(place.folder / "data")
    ran = {job.metadata.name for job in user.jobs()}

    operator.start()
    wanted["spec"]["parallelism"] = 5
    user.apply_sweep(wanted)
    again = user.wait_for(lambda: user.sweep("dense"), "Ready")
    assert again["status"]["lawsSha256"] == before["status"]["lawsSha256"]
    target.unlink()
    wanted["spec"]["parallelism"] = 4
    user.apply_sweep(wanted)
    again = user.wait_for(lambda: user.sweep("dense"), "Ready")
    assert {point.key for point in place.ledger(again).points} == trained

    given = prediction_manifest("given", "dense", initialLoss="2.6")
    del given["spec"]["checkpoint"]
    user.apply_prediction(given)
    user.wait_for(lambda: user.prediction("given"), "Ready")
    user.apply_prediction(prediction_manifest("target", "dense"))
    said = user.wait_for(lambda: user.prediction("target"), "Ready", "False", "DataRemoved")
    assert "or give spec.initialLoss" in conditions(said)["Stalled"]["message"]
    assert {job.metadata.name for job in user.jobs()} <= ran, "no Job since"
    assert not (place.folder / "data").exists()
