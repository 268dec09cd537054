"""A real Prometheus scrapes a real operator whose sweeps are broken on purpose."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from devcluster.process_node import ProcessNode
from tests.isoloss_operator.conftest import Place, sweep
from tests.monitoring.dashboard import dashboard_queries
from tests.monitoring.prometheus import Prometheus, scraping
from tests.monitoring.rules import alerts, program
from tests.support.cluster import wait_until
from tests.support.operator_process import OperatorProcess, User, prediction_manifest

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
    "Predictions: compute beyond the data",  # only with an answer
    "Predicted learning rate",
    "Predicted batch size",
    "Answers that do not hold",
    "Failed passes",
    "Store: calls without an answer",
}


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
    policy = {"retriesPerPoint": 1, "maxFailedPoints": 8}
    budget = {"acceleratorHours": 100}
    user.apply_sweep(sweep(place, failures=failures, failurePolicy=policy, budget=budget))
    blocked = sweep(place, storage={"uri": f"{place.uri}/blocked", "secretName": "missing"})
    user.apply_sweep({**blocked, "metadata": {"name": "blocked"}})
    refused = sweep(place, storage={"uri": "s3://of-another-tenant/sweep"})
    user.apply_sweep({**refused, "metadata": {"name": "refused"}})
    checkpoint = {"uri": "s3://of-another-tenant/model"}
    user.apply_prediction(prediction_manifest("elsewhere", "dense", checkpoint=checkpoint))


def empty_panels(prometheus: Prometheus) -> set[str]:
    """Titles of the dashboard's panels that show nothing now and should."""
    queries = dashboard_queries()
    empty = {query.panel for query in queries if not prometheus.query(query.expression)}
    return empty - MAY_BE_EMPTY


@pytest.mark.timeout(1800)
def test_every_expression_returns_what_it_should_while_sweeps_are_broken(
    operator: OperatorProcess,
    user: User,
    node: ProcessNode,
    place: Place,
    prometheus: Prometheus,
) -> None:
    rules = alerts()

    def holding() -> dict[str, set[str]]:
        found = {name: prometheus.query(rule["expr"]) for name, rule in rules.items()}
        return {
            name: {sample["metric"].get("name", "") for sample in samples}
            for name, samples in found.items()
            if samples and name not in UNDECIDED
        }

    break_on_purpose(user, place)
    wait_until(lambda: holding().keys() >= EXPECTED.keys(), "all troubles to be seen", 900)
    seen = holding()
    # A sweep with a failed point may have its laws refused, and then stalls for that.
    assert seen.pop("IsolossSweepStalled") - {"dense"} == {"refused"}
    assert seen == {n: names for n, names in EXPECTED.items() if n != "IsolossSweepStalled"}

    wait_until(lambda: all(r["health"] == "ok" for r in prometheus.rules()), "every rule to run")
    wait_until(lambda: prometheus.query("sum(isoloss_fits_total) > 0"), "a fit", 600)
    # A rate needs two scrapes since the first fit.
    wait_until(
        lambda: not empty_panels(prometheus),
        lambda: f"data in the panels {sorted(empty_panels(prometheus))}",
    )

    (jobs,) = prometheus.query('isoloss_scalingsweep_jobs{name="blocked",state="blocked"}')
    assert jobs["value"][1] == "1"
    counted = prometheus.query("isoloss_attempts_ended_total")
    ended = {each["metric"]["class"]: each["value"][1] for each in counted}
    assert ended["OutOfMemory"] == "2", ended

    operator.kill()
    down = rules["IsolossOperatorDown"]["expr"]
    wait_until(lambda: prometheus.query(down), "the missing operator to be noticed")
