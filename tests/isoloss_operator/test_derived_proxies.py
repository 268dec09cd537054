"""Proxies like a checkpoint, through the whole operator: config.json read, refused, fixed, trained."""

from __future__ import annotations

import json
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
