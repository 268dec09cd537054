"""Pods are preempted, again and again: nothing is charged, and every trajectory is what it would have been."""

from __future__ import annotations

from typing import Any

from kubernetes import client

from tests.faults.rows import Row
from tests.faults.scene import WIDE, Scene
from tests.faults.verdict import Expectation

PREEMPTIONS = 100
WIDE_POINTS = 30
TRAIN_SECONDS = 1.5
LABELS = "isoloss.dev/task=train"
KEY = "isoloss.dev/key"


def preempted(scene: Scene, count: int = PREEMPTIONS) -> Expectation:
    """Evict running pods until there were so many, then let the sweep end.

    Points are taken in turn: one that is interrupted over and over waits longer each time.
    """
    core = client.CoreV1Api(scene.stage.api_client)
    scene.seconds = TRAIN_SECONDS
    scene.start()
    fewest = -(-count // WIDE_POINTS)
    while scene.trainings.counted("interrupted").total() < count and not scene.is_finished():
        scene.wait(lambda: running(scene) or scene.is_finished(), "pods to run", 300)
        so_far = scene.trainings.counted("interrupted")
        for pod in running(scene):
            if so_far[pod.metadata.labels[KEY]] < fewest:
                core.delete_namespaced_pod(pod.metadata.name, scene.namespace)
        scene.rest(0.3)
    scene.finish(600)
    scene.notes.append(f"{scene.trainings.counted('interrupted').total()} preemptions")
    return Expectation(charged=0)


def running(scene: Scene) -> list[Any]:
    """Pods that train and that nobody has asked to end."""
    listed = client.CoreV1Api(scene.stage.api_client).list_namespaced_pod(
        scene.namespace, label_selector=LABELS, field_selector="status.phase=Running"
    )
    return [pod for pod in listed.items if pod.metadata.deletion_timestamp is None]


def preemption_row(count: int = PREEMPTIONS) -> Row:
    """The row, with so many preemptions."""
    return Row(
        f"job/preempted-{count}-times",
        f"{count} running pods of 30 points are evicted: nothing is charged",
        lambda scene: preempted(scene, count),
        options={"spec": WIDE},
        reference="kills",
    )
