"""An operator with nothing to do does nothing: passes and status writes are counted from outside."""

import time

import pytest

from devcluster.process_node import ProcessNode
from tests.isoloss_operator.conftest import Place, finished, metrics, sweep
from tests.support.cluster import wait_until
from tests.support.operator_process import (
    OperatorProcess,
    User,
    prediction_manifest,
    sweep_manifest,
)

pytestmark = [pytest.mark.cluster, pytest.mark.s3]


def passes(operator: OperatorProcess) -> dict[str, float]:
    """Passes so far, by kind."""
    found = metrics(operator)["isoloss_reconcile_duration_seconds_count"]
    return {labels["kind"]: value for labels, value in found}


def new_passes(operator: OperatorProcess, seconds: float) -> dict[str, float]:
    before = passes(operator)
    time.sleep(seconds)
    return {kind: count - before.get(kind, 0) for kind, count in passes(operator).items()}


def test_a_sweep_in_training_is_looked_at_seldom_and_wakes_no_prediction(
    operator: OperatorProcess, user: User, node: ProcessNode, place: Place
) -> None:
    """Its estimated completion moves all the time: that used to cost two passes a second."""
    operator.start()
    user.apply_sweep(sweep(place, seconds=40))
    prediction = prediction_manifest("p", "dense", initialLoss="2.6")
    del prediction["spec"]["checkpoint"]
    user.apply_prediction(prediction)
    wait_until(
        lambda: user.sweep("dense")["status"].get("points", {}).get("active") == 6, "points"
    )
    wait_until(lambda: len(place.traces.read("start")) == 6, "points to train")
    time.sleep(3)
    version = user.sweep("dense")["metadata"]["resourceVersion"]
    counted = new_passes(operator, 10)
    assert counted["ScalingSweep"] <= 1
    assert counted["HyperparamPrediction"] <= 1
    assert user.sweep("dense")["metadata"]["resourceVersion"] == version


def test_a_finished_sweep_and_its_prediction_rest(
    operator: OperatorProcess, user: User, node: ProcessNode, place: Place
) -> None:
    """Although everything else is looked at every second here."""
    operator.environment = {**operator.environment, "ISOLOSS_RESYNC_SECONDS": "1"}
    operator.start()
    whole = sweep(place, grid=sweep_manifest("x", place.uri)["spec"]["grid"])
    user.apply_sweep(whole)
    user.apply_prediction(prediction_manifest("p", "dense"))
    finished(user)
    user.wait_for(lambda: user.sweep("dense"), "Ready", seconds=30)
    user.wait_for(lambda: user.sweep("dense"), "Reconciling", "False")  # the report is drawn
    user.wait_for(lambda: user.prediction("p"), "Ready", seconds=10)
    wait_until(lambda: user.prediction("p")["status"].get("reportUri"), "its page")
    time.sleep(5)
    assert new_passes(operator, 10) == {"ScalingSweep": 0, "HyperparamPrediction": 0}
    user.apply_sweep({**whole, "spec": {**whole["spec"], "parallelism": 2}})
    wait_until(
        lambda: user.sweep("dense")["status"]["observedGeneration"] == 2, "the edit's pass", 10
    )
