"""Sweeps in the queue of a real Kueue: quota, preemption, deactivation."""

from collections.abc import Iterator
from typing import Any

import pytest
from kubernetes import client

from devcluster.control_plane import ControlPlane
from devcluster.process_node import ProcessNode
from tests.controllers.kueue import (
    GROUP,
    VERSION,
    Kueue,
    lower_counts,
    make_priority,
    make_queue,
)
from tests.isoloss_operator.conftest import SMALL_POINTS, Json, Place, finished, sweep
from tests.isoloss_operator.test_kueue import grant_workloads
from tests.support.cluster import wait_until
from tests.support.operator_process import OperatorProcess, User

pytestmark = [pytest.mark.cluster, pytest.mark.s3, pytest.mark.xdist_group("kueue")]

QUOTA = 3
"""CPUs, and so pods: each asks for one."""
QUEUE_LABEL = "kueue.x-k8s.io/queue-name"
PRIORITY_LABEL = "kueue.x-k8s.io/priority-class"


@pytest.fixture(scope="module")
def kueue(
    control_plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Kueue]:
    running = Kueue(control_plane, tmp_path_factory.mktemp("kueue"))
    yield running
    running.end()


@pytest.fixture
def queue(kueue: Kueue, user: User, operator: OperatorProcess) -> str:
    """A LocalQueue with room for three pods; the operator may read its Workloads."""
    grant_workloads(user)
    operator.environment["ISOLOSS_KUEUE"] = "true"
    return make_queue(user.api_client, user.namespace, QUOTA)


def queued(place: Place, queue: str, seconds: float, **spec: Any) -> Json:
    """A sweep whose pods ask for a CPU each."""
    found = sweep(place, seconds=seconds, queue={"localQueueName": queue}, **spec)
    for container in found["spec"]["podTemplate"]["spec"]["containers"]:
        container["resources"] = {"requests": {"cpu": "1"}, "limits": {"cpu": "1"}}
    return found


def admitted(user: User) -> int:
    """Jobs that Kueue lets run now."""
    return sum(not job.spec.suspend and not _has_ended(job) for job in user.jobs())


def _has_ended(job: Any) -> bool:
    ended = ("Complete", "Failed", "SuccessCriteriaMet", "FailureTarget")
    conditions = (job.status and job.status.conditions) or ()
    return any(each.type in ended and each.status == "True" for each in conditions)


def test_a_sweep_stays_within_its_quota_and_a_preempted_point_is_not_charged(
    operator: OperatorProcess, user: User, node: ProcessNode, place: Place, queue: str
) -> None:
    """Of twelve CPUs asked for, three are ever admitted; with no retries left every point succeeds."""
    policy = {"retriesPerPoint": 0, "maxFailedPoints": 0}
    operator.start()
    user.apply_sweep(queued(place, queue, 2.0, parallelism=6, failurePolicy=policy))
    most = 0

    def three_train() -> bool:
        nonlocal most
        most = max(most, admitted(user))
        return sum(not job.spec.suspend for job in training(user)) == QUOTA

    state = lambda: f"{user.sweep('dense')['status']}, {workloads(user)}"  # noqa: E731
    wait_until(three_train, lambda: f"three Jobs to be admitted: {state()}", 120)
    urgent = make_priority(user.api_client, f"urgent-{user.namespace}", 1000)
    client.BatchV1Api(user.api_client).create_namespaced_job(user.namespace, other(queue, urgent))

    def was_preempted() -> bool:
        nonlocal most
        most = max(most, admitted(user))
        return any(_evicted(each) == "Preempted" for each in workloads(user))

    wait_until(was_preempted, "Kueue to preempt a point", 60)

    def is_done() -> bool:
        nonlocal most
        most = max(most, admitted(user))
        points = user.sweep("dense")["status"]["points"]
        return bool(points["succeeded"] == SMALL_POINTS)

    wait_until(is_done, "every point", 240)
    ended = finished(user)
    assert most <= QUOTA
    assert ended["status"]["points"]["failed"] == 0
    charged = [record.attempts.charged for record in place.ledger(ended).points]
    assert not any(charged), charged


def test_the_pods_that_train_a_point_together_are_admitted_together(
    operator: OperatorProcess, user: User, node: ProcessNode, place: Place, queue: str
) -> None:
    """There is room for three pods: one Job of two, and none of the next."""
    manifest = queued(place, queue, 0.3, parallelism=2)
    for proxy in manifest["spec"]["proxies"]:
        proxy["nodes"] = 2
    operator.start()
    user.apply_sweep(manifest)
    most = 0

    def is_done() -> bool:
        nonlocal most
        # Kueue gives a pod's room away once it has succeeded, before the other has.
        whole = [job for job in training(user) if not (job.spec.suspend or job.status.succeeded)]
        most = max(most, len(whole))
        return bool(user.sweep("dense")["status"]["points"]["succeeded"] == SMALL_POINTS)

    wait_until(lambda: training(user), "the first points", 120)
    assert {job.spec.parallelism for job in training(user)} == {2}
    wait_until(is_done, "every point", 240)
    assert most == 1


def test_a_point_that_is_admitted_in_part_says_what_it_lacks(
    operator: OperatorProcess, user: User, node: ProcessNode, place: Place, queue: str
) -> None:
    """Of four pods three fit. Kueue lowers both counts, so that Kubernetes would call three a whole Job."""
    lower_counts(user.api_client, user.namespace, 2)
    manifest = queued(place, queue, 600.0, parallelism=1)
    for proxy in manifest["spec"]["proxies"]:
        proxy["nodes"] = 4
    operator.start()
    user.apply_sweep(manifest)

    def counts() -> list[tuple[int, int]]:
        specs = [job.spec for job in training(user) if not job.spec.suspend]
        return [(spec.parallelism, spec.completions) for spec in specs]

    wait_until(lambda: counts() == [(QUOTA, QUOTA)], lambda: f"three of four: {workloads(user)}")

    def words() -> str:
        status = user.sweep("dense").get("status") or {}
        return " ".join(each["message"] for each in status.get("conditions", ()))

    wait_until(lambda: "its 4 pods train together" in words(), words, 120)


def test_a_deactivated_workload_stalls_the_sweep_until_it_is_activated(
    operator: OperatorProcess, user: User, node: ProcessNode, place: Place, queue: str
) -> None:
    operator.start()
    user.apply_sweep(queued(place, queue, 0.3, parallelism=1))
    wait_until(lambda: training(user) and admitted(user) == 1, "a point to train", 120)
    (workload,) = [each for each in workloads(user) if not _is_finished(each)]
    _activate(user, workload, False)
    user.wait_for(lambda: user.sweep("dense"), "Stalled", "True", "WorkloadDeactivated")
    _activate(user, workload, True)
    ended = finished(user)
    assert ended["status"]["points"]["succeeded"] == SMALL_POINTS


def test_a_queue_without_room_is_named_in_kueues_own_words(
    operator: OperatorProcess, user: User, node: ProcessNode, place: Place, queue: str
) -> None:
    manifest = queued(place, queue, 0.02)
    for container in manifest["spec"]["podTemplate"]["spec"]["containers"]:
        container["resources"] = {"requests": {"cpu": "9"}, "limits": {"cpu": "9"}}
    operator.start()
    user.apply_sweep(manifest)
    found = user.wait_for(lambda: user.sweep("dense"), "Ready", "False", "PreparingData")

    def message() -> str:
        conditions = user.sweep("dense")["status"]["conditions"]
        return " ".join(each["message"] for each in conditions if each["type"] == "Ready")

    wait_until(lambda: "insufficient quota" in message(), "Kueue's words")
    assert found["status"]["points"]["active"] == 0


def training(user: User) -> list[Any]:
    """Unfinished Jobs of points."""
    labels = lambda job: job.metadata.labels or {}  # noqa: E731
    jobs = [job for job in user.jobs() if not _has_ended(job)]
    return [job for job in jobs if "train" in labels(job).values()]


def workloads(user: User) -> list[Json]:
    listed: Any = user.custom.list_namespaced_custom_object(
        GROUP, VERSION, user.namespace, "workloads"
    )
    return list(listed["items"])


def _conditions(workload: Json) -> dict[str, Json]:
    return {each["type"]: each for each in workload.get("status", {}).get("conditions", ())}


def _evicted(workload: Json) -> str:
    return str(_conditions(workload).get("Evicted", {}).get("reason", ""))


def _is_finished(workload: Json) -> bool:
    return _conditions(workload).get("Finished", {}).get("status") == "True"


def _activate(user: User, workload: Json, active: bool) -> None:
    place = (GROUP, VERSION, user.namespace, "workloads", workload["metadata"]["name"])
    user.custom.patch_namespaced_custom_object(*place, {"spec": {"active": active}})


def other(queue: str, priority: str) -> Any:
    """Somebody's Job of a higher priority that wants one CPU for a few seconds."""
    container = {
        "name": "main",
        "image": "synthetic",
        "command": ["sleep", "3"],
        "resources": {"requests": {"cpu": "1"}, "limits": {"cpu": "1"}},
    }
    labels = {QUEUE_LABEL: queue, PRIORITY_LABEL: priority}
    spec = {"restartPolicy": "Never", "containers": [container]}
    return {
        "metadata": {"name": "urgent", "labels": labels},
        "spec": {"suspend": True, "backoffLimit": 0, "template": {"spec": spec}},
    }
