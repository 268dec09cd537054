"""Pods are preempted, again and again: nothing is charged, and every trajectory is what it would have been."""

from __future__ import annotations

import random

from kubernetes import client

from tests.faults.rows import Row
from tests.faults.scene import Scene
from tests.faults.verdict import Expectation

PREEMPTIONS = 100
TRAIN_SECONDS = 1.5


def preempted(scene: Scene, count: int = PREEMPTIONS, seed: int = 0) -> Expectation:
    """Evict running pods at random until there were so many, then let the sweep end."""
    chance = random.Random(seed)
    core = client.CoreV1Api(scene.stage.api_client)
    scene.seconds = TRAIN_SECONDS
    scene.start()

    def interrupted() -> int:
        return int(scene.trainings.counted("interrupted").total())

    while interrupted() < count and not scene.is_finished():
        scene.wait(lambda: _running(scene) or scene.is_finished(), "pods to run", 120)
        for pod in _running(scene):
            # Most of them, so that few points end before there were enough.
            if chance.random() < 0.8 and interrupted() < count:
                core.delete_namespaced_pod(pod, scene.namespace)
        scene.rest(0.5)
    scene.finish(300)
    scene.notes.append(f"{interrupted()} preemptions")
    records = scene.ledger_points().values()
    told = sum(record.attempts.interruptions for record in records)
    scene.notes.append(f"{told} interruptions in the ledger")
    return Expectation(charged=0)


def _running(scene: Scene) -> list[str]:
    return [
        pod.metadata.name
        for pod in scene.user.pods()
        if pod.status.phase == "Running" and pod.metadata.deletion_timestamp is None
    ]


PREEMPTION_ROW = Row(
    "job/preempted-100-times",
    f"{PREEMPTIONS} running pods are evicted: nothing is charged",
    preempted,
)
