"""People, controllers and machines take away what the operator made."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Callable
from typing import Any

from kubernetes import client

from tests.faults.rows import Play, Row
from tests.faults.scene import Failed, Scene
from tests.faults.servers import kill_all
from tests.faults.stage import Player
from tests.faults.verdict import Expectation
from tests.support.operator_process import User, conditions, sweep_manifest
from tests.support.proxy import wait_for

TRAIN_SECONDS = 2.0
WATCH_SECONDS = 5
"""In which each watch is begun again, and then refused where its namespace is gone."""
EVICTED_SECONDS = 75
"""The node controller's grace period, the pods' tolerations and grace, the operator's own, and some more."""


def cluster_rows() -> list[Row]:
    """All rows about objects and nodes that go."""
    rows = [Row(f"job/{name}", words, _midway(harm)) for name, (words, harm) in HARMS.items()]
    return [
        *rows,
        Row("job/ttl", "finished Jobs vanish while the operator is down", _ttl),
        Row(
            "job/all-deleted",
            "all Jobs are deleted while the operator is down",
            _all_deleted_while_down,
        ),
        Row(
            "node/lost",
            "a node falls silent for good; its Node object is deleted after a while",
            _node_lost,
            options={"own_player": True},
            environment={"ISOLOSS_TERMINATION_GRACE_SECONDS": "5"},
        ),
        Row(
            "namespace/terminating",
            "the namespace is deleted under a running sweep; the operator serves others on",
            _namespace_terminating,
            options={"own_home": True},
            environment={"ISOLOSS_WATCH_SECONDS": str(WATCH_SECONDS)},
        ),
    ]


def _batch(scene: Scene) -> client.BatchV1Api:
    return client.BatchV1Api(scene.stage.api_client)


def _core(scene: Scene) -> client.CoreV1Api:
    return client.CoreV1Api(scene.stage.api_client)


def _midway(harm: Callable[[Scene], None]) -> Play:
    def play(scene: Scene) -> Expectation:
        scene.seconds = TRAIN_SECONDS
        scene.start()
        for done in (2, 6):
            scene.wait_trained(done)
            harm(scene)
        scene.finish(180)
        return Expectation(charged=0)

    return play


def running_jobs(scene: Scene) -> list[str]:
    """Names of the Jobs that have a pod."""
    jobs = _batch(scene).list_namespaced_job(scene.namespace).items
    return [job.metadata.name for job in jobs if job.status.active]


def delete_jobs(policy: str) -> Callable[[Scene], None]:
    """Deletes two running Jobs."""

    def harm(scene: Scene) -> None:
        for name in running_jobs(scene)[:2]:
            _batch(scene).delete_namespaced_job(
                name, scene.namespace, propagation_policy=policy, _preload_content=False
            )

    return harm


def _delete_pods(**options: Any) -> Callable[[Scene], None]:
    def harm(scene: Scene) -> None:
        pods = [pod for pod in scene.user.pods() if pod.status.phase == "Running"]
        for pod in pods[:3]:
            _core(scene).delete_namespaced_pod(pod.metadata.name, scene.namespace, **options)

    return harm


def _suspend_jobs(scene: Scene) -> None:
    """As Kueue does when it takes a workload's admission back, and gives it again."""
    names = running_jobs(scene)[:2]
    for suspend in (True, False):
        for name in names:
            body = {"spec": {"suspend": suspend}}
            _batch(scene).patch_namespaced_job(name, scene.namespace, body)
        scene.rest(3)


HARMS: dict[str, tuple[str, Callable[[Scene], None]]] = {
    "deleted-background": (
        "two running Jobs are deleted by hand, twice",
        delete_jobs("Background"),
    ),
    "deleted-foreground": (
        "the same in the foreground",
        delete_jobs("Foreground"),
    ),
    "deleted-orphan": (
        "the same, and their pods go on alone",
        delete_jobs("Orphan"),
    ),
    "pod-deleted": ("three running pods are deleted by hand, twice", _delete_pods()),
    "pod-forced": (
        "the same by force: no kubelet says how they ended",
        _delete_pods(grace_period_seconds=0),
    ),
    "suspended": ("two running Jobs are suspended from outside and resumed", _suspend_jobs),
}


def _ttl(scene: Scene) -> Expectation:
    scene.seconds = TRAIN_SECONDS
    scene.start()
    scene.wait_trained(5)
    kill_all(scene.operator)
    for name in running_jobs(scene):
        body = {"spec": {"ttlSecondsAfterFinished": 0}}
        _batch(scene).patch_namespaced_job(name, scene.namespace, body)
    _wait_down(scene, lambda: not running_jobs(scene))
    scene.operator.start()
    scene.finish(120)
    return Expectation()


def _all_deleted_while_down(scene: Scene) -> Expectation:
    scene.seconds = TRAIN_SECONDS
    scene.start()
    scene.wait_trained(5)
    kill_all(scene.operator)
    _batch(scene).delete_collection_namespaced_job(
        scene.namespace, propagation_policy="Background", _preload_content=False
    )
    _wait_down(scene, lambda: not scene.user.pods())
    scene.operator.start()
    scene.finish(120)
    return Expectation()


def _wait_down(scene: Scene, holds: Callable[[], bool]) -> None:
    """Wait while the operator stays down."""
    if not wait_for(holds, 60):
        raise Failed("the cluster did not get there while the operator was down")


def _node_lost(scene: Scene) -> Expectation:
    scene.seconds = TRAIN_SECONDS
    scene.start()
    scene.wait_trained(6)
    scene.wait(lambda: scene.trainings.counted("start").total() >= 8, "points to train")
    assert scene.player is not None
    lost, log = scene.player, scene.player.trainings(scene.namespace)
    lost.end()
    stranded = len(running_jobs(scene))
    scene.rest(EVICTED_SECONDS)
    scene.player = _Successor(scene.stage, scene.namespace, log.lines)
    _core(scene).delete_node(lost.node)
    scene.finish(240)
    return Expectation(speaks=True, given_up=stranded)


class _Successor(Player):
    """A player in place of one that was lost; its log goes on where the other's ended."""

    def __init__(self, stage: Any, namespace: str, lines: Any) -> None:
        super().__init__(stage, namespace, f"{namespace}-b")
        with self._log.open("a") as log:
            log.writelines(json.dumps(line) + "\n" for line in lines)


def _namespace_terminating(scene: Scene) -> Expectation:
    """The sweep goes with its namespace. Its operator must neither crash nor train on, and serve others."""
    scene.seconds = TRAIN_SECONDS
    scene.start()
    scene.wait_trained(6)
    _core(scene).delete_namespace(scene.namespace)
    scene.wait(lambda: not _exists(scene), "the namespace to go", 120)
    refused = f'isoloss_watch_refused{{namespace="{scene.namespace}"}} 1.0'
    scene.wait(lambda: refused in _metrics(scene), "the refused watch to be told")
    home = User(scene.stage.api_client, scene.operator.namespaces[0])
    home.apply_sweep(sweep_manifest("other", "s3://not-allowed"))
    scene.wait(
        lambda: conditions(home.sweep("other")).get("Stalled"), "a sweep elsewhere to be served"
    )
    if scene.restarts or not scene.operator.is_running():
        raise Failed("the operator ended with the namespace")
    return Expectation(compares=False, charged=None)


def _metrics(scene: Scene) -> str:
    with urllib.request.urlopen(f"{scene.operator.url()}/metrics", timeout=5) as answer:
        return str(answer.read().decode())


def _exists(scene: Scene) -> bool:
    names = {each.metadata.name for each in _core(scene).list_namespace().items}
    return scene.namespace in names
