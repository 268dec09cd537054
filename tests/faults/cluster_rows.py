"""People, controllers and machines take away what the operator made."""

import json
import urllib.request
from collections.abc import Callable, Iterable
from typing import Any

from kubernetes import client

from isoloss_operator.cluster.live_jobs import JOB_NAME_LABEL
from tests.faults.fixture import Failed, FaultFixture
from tests.faults.harness import FakeKubelet
from tests.faults.rows import Play, Row
from tests.faults.servers import kill_all
from tests.faults.verdict import Expectation
from tests.support.operator_process import User, conditions, env_template, sweep_manifest
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
            "job/finalizer",
            "two running Jobs and their pods are deleted, and a finalizer of somebody else keeps the Jobs for a while",
            _foreign_finalizer,
            environment={
                "ISOLOSS_POD_STARTING_SECONDS": "2",
                "ISOLOSS_RESYNC_SECONDS": "2",
            },
        ),
        Row(
            "job/all-deleted",
            "all Jobs are deleted while the operator is down",
            _all_deleted_while_down,
        ),
        Row(
            "node/lost",
            "a node falls silent for good; its Node object is deleted after a while",
            _node_lost,
            options={"own_kubelet": True},
            environment={"ISOLOSS_TERMINATION_GRACE_SECONDS": "5"},
        ),
        *(
            Row(f"node/{name}", words, _with_failures(*failures))
            for name, (words, failures) in NODE_FAILURES.items()
        ),
        Row(
            "namespace/terminating",
            "the namespace is deleted under a running sweep; the operator serves others on",
            _namespace_terminating,
            options={"own_home": True},
            environment={"ISOLOSS_WATCH_SECONDS": str(WATCH_SECONDS)},
        ),
    ]


def _batch(fixture: FaultFixture) -> client.BatchV1Api:
    return client.BatchV1Api(fixture.harness.api_client)


def _core(fixture: FaultFixture) -> client.CoreV1Api:
    return client.CoreV1Api(fixture.harness.api_client)


def _midway(harm: Callable[[FaultFixture], None]) -> Play:
    def play(fixture: FaultFixture) -> Expectation:
        fixture.seconds = TRAIN_SECONDS
        fixture.start()
        for done in (2, 6):
            fixture.wait_trained(done)
            harm(fixture)
        fixture.finish(180)
        return Expectation(charged=0)

    return play


def running_jobs(fixture: FaultFixture) -> list[str]:
    """Names of the Jobs that have a pod."""
    jobs = _batch(fixture).list_namespaced_job(fixture.namespace).items
    return [job.metadata.name for job in jobs if job.status.active]


def delete_jobs(policy: str) -> Callable[[FaultFixture], None]:
    """Deletes two running Jobs."""

    def harm(fixture: FaultFixture) -> None:
        _delete(fixture, running_jobs(fixture)[:2], policy)

    return harm


def _delete(fixture: FaultFixture, names: Iterable[str], policy: str) -> None:
    for name in names:
        _batch(fixture).delete_namespaced_job(
            name, fixture.namespace, propagation_policy=policy, _preload_content=False
        )


def _delete_pods(**options: Any) -> Callable[[FaultFixture], None]:
    def harm(fixture: FaultFixture) -> None:
        pods = [pod for pod in fixture.user.pods() if pod.status.phase == "Running"]
        for pod in pods[:3]:
            _core(fixture).delete_namespaced_pod(pod.metadata.name, fixture.namespace, **options)

    return harm


def _suspend_jobs(fixture: FaultFixture) -> None:
    """As Kueue does when it takes a workload's admission back, and gives it again."""
    names = running_jobs(fixture)[:2]
    for suspend in (True, False):
        for name in names:
            body = {"spec": {"suspend": suspend}}
            _batch(fixture).patch_namespaced_job(name, fixture.namespace, body)
        fixture.rest(3)


HARMS: dict[str, tuple[str, Callable[[FaultFixture], None]]] = {
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


NODE_FAILURES: dict[str, tuple[str, tuple[dict[str, Any], ...]]] = {
    "rebooted": (
        "nodes are rebooted under the first attempts of eight points (exit code 255 Unknown, 137 ContainerStatusUnknown)",
        (
            {"exit": 255, "reason": "Unknown", "batch_size": 4, "attempts": [1]},
            {"exit": 137, "reason": "ContainerStatusUnknown", "batch_size": 8, "attempts": [1]},
        ),
    ),
    "start-error": (
        "the runtime cannot start the container of the first three attempts of four points (128 StartError)",
        ({"exit": 128, "reason": "StartError", "batch_size": 4, "attempts": [1, 2, 3]},),
    ),
}


def _with_failures(*failures: dict[str, Any]) -> Play:
    def play(fixture: FaultFixture) -> Expectation:
        wanted = json.dumps([{"kind": "train", **each} for each in failures])
        template = env_template(SYNTHETIC_SECONDS="1", SYNTHETIC_FAILURES=wanted)
        fixture.spec["podTemplate"] = template
        fixture.start()
        fixture.finish(180)
        return Expectation(speaks=True)

    return play


def _foreign_finalizer(fixture: FaultFixture) -> Expectation:
    """Two Jobs that are deleted stay until a controller that is away lets them go. With their pods they would end by themselves."""
    fixture.seconds = 2 * TRAIN_SECONDS
    fixture.start()
    fixture.wait_trained(4)
    # Those that have just begun: the others may end before they are deleted.
    fixture.wait(
        lambda: fixture.trainings.counted("start").total() >= 6, "further points to train"
    )
    held = running_jobs(fixture)[:2]
    for name in held:
        body: Any = {"metadata": {"finalizers": ["example.com/away"]}}
        _batch(fixture).patch_namespaced_job(name, fixture.namespace, body)
    _delete(fixture, held, "Background")
    for pod in fixture.user.pods():
        if pod.metadata.labels.get(JOB_NAME_LABEL) in held:
            _core(fixture).delete_namespaced_pod(
                pod.metadata.name, fixture.namespace, grace_period_seconds=0
            )
    fixture.wait(lambda: fixture.harness.journal.said(fixture.namespace), "a condition to say so")
    fixture.wait_trained(10)
    for name in held:
        body = {"metadata": {"finalizers": None}}
        _batch(fixture).patch_namespaced_job(name, fixture.namespace, body)
    fixture.finish(180)
    return Expectation(speaks=True)


def _ttl(fixture: FaultFixture) -> Expectation:
    fixture.seconds = TRAIN_SECONDS
    fixture.start()
    fixture.wait_trained(5)
    kill_all(fixture.operator)
    for name in running_jobs(fixture):
        body = {"spec": {"ttlSecondsAfterFinished": 0}}
        _batch(fixture).patch_namespaced_job(name, fixture.namespace, body)
    _wait_down(fixture, lambda: not running_jobs(fixture))
    fixture.operator.start()
    fixture.finish(120)
    return Expectation()


def _all_deleted_while_down(fixture: FaultFixture) -> Expectation:
    fixture.seconds = TRAIN_SECONDS
    fixture.start()
    fixture.wait_trained(5)
    kill_all(fixture.operator)
    _batch(fixture).delete_collection_namespaced_job(
        fixture.namespace, propagation_policy="Background", _preload_content=False
    )
    _wait_down(fixture, lambda: not fixture.user.pods())
    fixture.operator.start()
    fixture.finish(120)
    return Expectation()


def _wait_down(fixture: FaultFixture, holds: Callable[[], bool]) -> None:
    """Wait while the operator stays down."""
    if not wait_for(holds, 60):
        raise Failed("the cluster did not get there while the operator was down")


def _node_lost(fixture: FaultFixture) -> Expectation:
    fixture.seconds = TRAIN_SECONDS
    fixture.start()
    fixture.wait_trained(6)
    fixture.wait(lambda: fixture.trainings.counted("start").total() >= 8, "points to train")
    assert fixture.kubelet is not None
    lost, log = fixture.kubelet, fixture.kubelet.trainings(fixture.namespace)
    lost.end()
    stranded = len(running_jobs(fixture))
    fixture.rest(EVICTED_SECONDS)
    fixture.kubelet = _Successor(fixture.harness, fixture.namespace, log.lines)
    _core(fixture).delete_node(lost.node)
    fixture.finish(240)
    return Expectation(speaks=True, given_up=stranded)


class _Successor(FakeKubelet):
    """A kubelet in place of one that was lost; its log goes on where the other's ended."""

    def __init__(self, harness: Any, namespace: str, lines: Any) -> None:
        super().__init__(harness, namespace, f"{namespace}-b")
        with self._log.open("a") as log:
            log.writelines(json.dumps(line) + "\n" for line in lines)


def _namespace_terminating(fixture: FaultFixture) -> Expectation:
    """The sweep goes with its namespace. Its operator must neither crash nor train on, and serve others."""
    fixture.seconds = TRAIN_SECONDS
    fixture.start()
    fixture.wait_trained(6)
    _core(fixture).delete_namespace(fixture.namespace)
    fixture.wait(lambda: not _exists(fixture), "the namespace to go", 120)
    refused = f'isoloss_watch_refused{{namespace="{fixture.namespace}"}} 1.0'
    fixture.wait(lambda: refused in _metrics(fixture), "the refused watch to be told")
    home = User(fixture.harness.api_client, fixture.operator.namespaces[0])
    home.apply_sweep(sweep_manifest("other", "s3://not-allowed"))
    fixture.wait(
        lambda: conditions(home.sweep("other")).get("Stalled"), "a sweep elsewhere to be served"
    )
    if fixture.restarts or not fixture.operator.is_running():
        raise Failed("the operator ended with the namespace")
    return Expectation(compares=False, charged=None)


def _metrics(fixture: FaultFixture) -> str:
    with urllib.request.urlopen(f"{fixture.operator.url()}/metrics", timeout=5) as answer:
        return str(answer.read().decode())


def _exists(fixture: FaultFixture) -> bool:
    names = {each.metadata.name for each in _core(fixture).list_namespace().items}
    return fixture.namespace in names
