"""Pods are preempted, again and again: nothing is charged, and every trajectory is what it would have been."""

from typing import Any

from kubernetes import client

from tests.faults.fixture import FaultFixture
from tests.faults.rows import Row, row_beside
from tests.faults.verdict import Expectation

PREEMPTIONS = 100
WIDE_POINTS = 30
TRAIN_SECONDS = 1.5
LABELS = "isoloss.dev/task=train"
KEY = "isoloss.dev/key"


def preempted(fixture: FaultFixture, count: int = PREEMPTIONS) -> Expectation:
    """Evict running pods until there were so many, then let the sweep end.

    Points are taken in turn: one that is interrupted over and over waits longer each time.
    """
    core = client.CoreV1Api(fixture.harness.api_client)
    fixture.seconds = TRAIN_SECONDS
    fixture.start()
    fewest = -(-count // WIDE_POINTS)
    while fixture.trainings.counted("interrupted").total() < count and not fixture.is_finished():
        fixture.wait(lambda: running(fixture) or fixture.is_finished(), "pods to run", 300)
        so_far = fixture.trainings.counted("interrupted")
        for pod in running(fixture):
            if so_far[pod.metadata.labels[KEY]] < fewest:
                core.delete_namespaced_pod(pod.metadata.name, fixture.namespace)
        fixture.rest(0.3)
    fixture.finish(600)
    fixture.notes.append(f"{fixture.trainings.counted('interrupted').total()} preemptions")
    return Expectation(charged=0)


def running(fixture: FaultFixture) -> list[Any]:
    """Pods that train and that nobody has asked to end."""
    listed = client.CoreV1Api(fixture.harness.api_client).list_namespaced_pod(
        fixture.namespace, label_selector=LABELS, field_selector="status.phase=Running"
    )
    return [pod for pod in listed.items if pod.metadata.deletion_timestamp is None]


def preemption_row(count: int = PREEMPTIONS) -> Row:
    """The row, with so many preemptions."""
    return row_beside(
        "preemptions",
        f"job/preempted-{count}-times",
        f"{count} running pods of 30 points are evicted: nothing is charged",
        lambda fixture: preempted(fixture, count),
    )
