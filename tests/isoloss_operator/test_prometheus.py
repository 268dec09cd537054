"""A real Prometheus scrapes a real operator with a sweep that answers and others that are broken on purpose.

DRAW_DASHBOARD=1 lets points train for 45 seconds each, and draws docs/guides/dashboard.png from what was scraped.
"""

import os
import secrets
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from devcluster.process_node import ProcessNode
from tests.deploy.chart import ROOT
from tests.isoloss_operator.conftest import Place, judging_sweep, sweep, write_toy_checkpoint
from tests.monitoring.drawing import draw
from tests.monitoring.prometheus import Prometheus, scraping
from tests.monitoring.rules import alerts, program
from tests.support.cluster import wait_until
from tests.support.operator_process import (
    OperatorProcess,
    User,
    prediction_manifest,
    sweep_manifest,
)

pytestmark = [pytest.mark.cluster, pytest.mark.s3, pytest.mark.slow, pytest.mark.alerts]
Json = dict[str, Any]
EXPECTED = {
    "IsolossPointsFailed": {"dense"},
    "IsolossPodsBlocked": {"blocked"},
    "IsolossSweepStalled": {"refused"},
    "IsolossPredictionStalled": {"elsewhere"},
}
"""Alerts whose expressions hold, and of which sweeps or predictions."""
UNDECIDED = {"IsolossReconcileErrors", "IsolossStoreErrors", "IsolossAPIErrors"}
"""Whether a call fails while the machine is busy is not this test's to say."""
MAY_BE_EMPTY = {
    "Silence of the quietest training point",  # only while a point trains
    "Answers that do not hold",
    "Failed passes",
    "Store: calls without an answer",
}
PICTURE = ROOT / "docs" / "guides" / "dashboard.png"
IS_DRAWN = "DRAW_DASHBOARD" in os.environ
POINT_SECONDS = 45.0 if IS_DRAWN else 0.02


@pytest.fixture
def namespace_name() -> str:
    """In the picture a plain one."""
    return "research" if IS_DRAWN else f"test-{secrets.token_hex(4)}"


@pytest.fixture
def prometheus(operator: OperatorProcess, tmp_path: Path) -> Iterator[Prometheus]:
    """Scrapes the operator."""
    program("prometheus")  # skips before anything is started
    operator.start()
    with scraping(operator.url().removeprefix("http://"), tmp_path) as server:
        yield server


def break_on_purpose(user: User, place: Place) -> None:
    """A point without memory, a pod without its Secret, a store and a checkpoint that are not allowed."""
    failures = [{"batch_size": 8, "learning_rate": 4e-3, "exit": 43, "message": "needs 99 GiB"}]
    failures[0]["after"] = POINT_SECONDS / 3
    policy = {"retriesPerPoint": 1, "maxFailedPoints": 8}
    budget = {"acceleratorHours": 100}
    user.apply_sweep(sweep(place, POINT_SECONDS, failures, failurePolicy=policy, budget=budget))
    blocked = sweep(place, storage={"uri": f"{place.uri}/blocked", "secretName": "missing"})
    user.apply_sweep({**blocked, "metadata": {"name": "blocked"}})
    refused = sweep(place, storage={"uri": "s3://of-another-tenant/sweep"})
    user.apply_sweep({**refused, "metadata": {"name": "refused"}})
    checkpoint = {"uri": "s3://of-another-tenant/model"}
    user.apply_prediction(prediction_manifest("elsewhere", "dense", checkpoint=checkpoint))


def answer(user: User, place: Place) -> None:
    """A sweep whose prediction is judged by another, each with a store of its own."""
    uri = write_toy_checkpoint(place)
    grid = sweep_manifest("x", place.uri)["spec"]["grid"]
    healthy = sweep(place, POINT_SECONDS, grid=grid, budget={"flops": "2e15"})
    judging = judging_sweep(place, "judging", "dense-8b", uri, 4_000_000)
    judging["spec"]["podTemplate"] = healthy["spec"]["podTemplate"]
    for each in (healthy, judging):
        each["spec"]["storage"]["uri"] = f"{place.uri}/healthy"
    user.apply_sweep({**healthy, "metadata": {"name": "healthy"}})
    user.apply_sweep(judging)
    validation = {"sweepRef": {"name": "judging"}}
    asked = {"checkpoint": {"uri": uri}, "validation": validation}
    user.apply_prediction(prediction_manifest("dense-8b", "healthy", **asked))


@pytest.mark.timeout(1800)
def test_every_expression_returns_what_it_should_while_sweeps_are_broken(
    operator: OperatorProcess,
    user: User,
    node: ProcessNode,
    place: Place,
    prometheus: Prometheus,
    tmp_path: Path,
) -> None:
    rules, began = alerts(), time.time()

    def holding() -> dict[str, set[str]]:
        found = {name: prometheus.query(rule["expr"]) for name, rule in rules.items()}
        return {
            name: {sample["metric"].get("name", "") for sample in samples}
            for name, samples in found.items()
            if samples and name not in UNDECIDED
        }

    answer(user, place)
    break_on_purpose(user, place)
    wait_until(lambda: holding().keys() >= EXPECTED.keys(), "all troubles to be seen", 900)
    seen = holding()
    # A sweep with a failed point may have its laws refused, and then stalls for that.
    assert seen.pop("IsolossSweepStalled") - {"dense"} == {"refused"}
    assert seen == {n: names for n, names in EXPECTED.items() if n != "IsolossSweepStalled"}

    wait_until(lambda: all(r["health"] == "ok" for r in prometheus.rules()), "every rule to run")
    wait_until(lambda: prometheus.query("sum(isoloss_fits_total) > 0"), "a fit", 600)
    user.wait_for(lambda: user.prediction("dense-8b"), "Validated", seconds=900)
    drawn = PICTURE if IS_DRAWN else tmp_path / "dashboard.png"

    def empty_panels() -> set[str]:
        return set(draw(prometheus, began, time.time(), drawn)) - MAY_BE_EMPTY

    if IS_DRAWN:
        time.sleep(30)  # what it looks like afterwards
    # A rate needs two scrapes since the first fit.
    wait_until(lambda: not empty_panels(), lambda: f"data in the panels {sorted(empty_panels())}")

    (jobs,) = prometheus.query('isoloss_scalingsweep_jobs{name="blocked",state="blocked"}')
    assert jobs["value"][1] == "1"
    counted = prometheus.query("isoloss_attempts_ended_total")
    ended = {each["metric"]["class"]: each["value"][1] for each in counted}
    assert ended["OutOfMemory"] == "2", ended

    operator.kill()
    down = rules["IsolossOperatorDown"]["expr"]
    wait_until(lambda: prometheus.query(down), "the missing operator to be noticed")
