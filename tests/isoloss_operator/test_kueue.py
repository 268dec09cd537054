"""Sweeps in a queue: what Kueue says about a Job is what the sweep says.

Kueue is played by the tests, from its documented API: it makes a Workload for every queued Job, admits a
Job by clearing suspend, evicts it by setting it again, and never admits a Workload that is not active.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest
from kubernetes import client

from devcluster.process_node import ProcessNode
from isoloss_operator.cluster.client import Cluster
from isoloss_operator.cluster.rbac import KUEUE_RULES, NAME, RBAC_GROUP
from isoloss_operator.cluster.workloads import GROUP, JOB_UID_LABEL, WorkloadReader
from tests.isoloss_operator.conftest import Json, Place, finished, sweep
from tests.support.cluster import wait_until
from tests.support.operator_process import OperatorProcess, User, wait_for_right

pytestmark = [pytest.mark.cluster, pytest.mark.s3]

QUEUE = {"localQueueName": "research"}
NO_QUOTA = "couldn't assign flavors to pod set main: insufficient unused quota for cpu"


def workload_crd() -> Json:
    """As much of Kueue's as is read here."""
    schema = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    names = {"kind": "Workload", "plural": "workloads", "singular": "workload"}
    version = {
        "name": "v1beta1",
        "served": True,
        "storage": True,
        "schema": {"openAPIV3Schema": schema},
    }
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {
            "name": f"workloads.{GROUP}",
            "annotations": {"api-approved.kubernetes.io": "unapproved, for tests"},
        },
        "spec": {"group": GROUP, "names": names, "scope": "Namespaced", "versions": [version]},
    }


class PlayedKueue:
    """Kueue, one decision at a time."""

    def __init__(self, user: User) -> None:
        self._user = user
        self._batch = client.BatchV1Api(user.api_client)
        self._objects = client.CustomObjectsApi(user.api_client)

    def install(self) -> None:
        """Serve Workloads."""
        definitions = client.ApiextensionsV1Api(self._user.api_client)
        try:
            definitions.create_custom_resource_definition(body=workload_crd())
        except client.ApiException as error:
            if error.status != 409:
                raise
        wait_until(self._is_served, "Workloads to be served")

    def queue(self, job: Any) -> None:
        """Make the Workload of a new Job, without room for it."""
        status = condition("QuotaReserved", "False", "Pending", NO_QUOTA)
        self._put(job, {"active": True}, [status])

    def admit(self, job: Any) -> None:
        """Reserve quota and let it run."""
        self._put(job, {"active": True}, [condition("Admitted", "True", "Admitted", "")])
        self._suspend(job, False)

    def evict(self, job: Any, reason: str, message: str) -> None:
        """Take it back."""
        self._suspend(job, True)
        self._put(job, {"active": True}, [condition("Evicted", "True", reason, message)])

    def deactivate(self, job: Any) -> None:
        """As somebody does who sets spec.active to false."""
        evicted = condition("Evicted", "True", "Deactivated", "The workload is deactivated")
        self._put(job, {"active": False}, [evicted])

    def _is_served(self) -> bool:
        try:
            self._list()
        except client.ApiException:
            return False
        return True

    def _list(self) -> Any:
        return self._objects.list_namespaced_custom_object(
            GROUP, "v1beta1", self._user.namespace, "workloads"
        )

    def _suspend(self, job: Any, suspend: bool) -> None:
        self._batch.patch_namespaced_job(
            job.metadata.name, self._user.namespace, {"spec": {"suspend": suspend}}
        )

    def _put(self, job: Any, spec: Json, conditions: list[Json]) -> None:
        body = {
            "apiVersion": f"{GROUP}/v1beta1",
            "kind": "Workload",
            "metadata": {
                "name": f"job-{job.metadata.name}",
                "labels": {JOB_UID_LABEL: job.metadata.uid},
            },
            "spec": spec,
            "status": {"conditions": conditions},
        }
        place = (GROUP, "v1beta1", self._user.namespace, "workloads")
        try:
            self._objects.create_namespaced_custom_object(*place, body)
        except client.ApiException as error:
            if error.status != 409:
                raise
            self._objects.patch_namespaced_custom_object(*place, body["metadata"]["name"], body)


def condition(kind: str, status: str, reason: str, message: str) -> Json:
    moment = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    return {
        "type": kind,
        "status": status,
        "reason": reason,
        "message": message,
        "lastTransitionTime": moment,
    }


@pytest.fixture
def kueue(user: User) -> PlayedKueue:
    played = PlayedKueue(user)
    played.install()
    grant_workloads(user)
    return played


def grant_workloads(user: User) -> None:
    """What the chart adds with kueue.enabled."""
    roles = client.RbacAuthorizationV1Api(user.api_client)
    name = {"metadata": {"name": "workloads"}}
    account = {"kind": "ServiceAccount", "name": NAME, "namespace": user.namespace}
    role: Any = {**name, "rules": [*KUEUE_RULES]}
    reference = {"apiGroup": RBAC_GROUP, "kind": "Role", "name": "workloads"}
    binding: Any = {**name, "roleRef": reference, "subjects": [account]}
    roles.create_namespaced_role(user.namespace, role)
    roles.create_namespaced_role_binding(user.namespace, binding)
    who, workloads = (user.namespace, NAME), ("kueue.x-k8s.io", "workloads")
    wait_for_right(user.api_client, who, user.namespace, workloads, "list")


def test_a_sweep_says_what_kueue_says_and_goes_on_when_it_admits(
    operator: OperatorProcess,
    user: User,
    node: ProcessNode,
    place: Place,
    kueue: PlayedKueue,
) -> None:
    operator.environment["ISOLOSS_KUEUE"] = "true"
    operator.start()
    user.apply_sweep(sweep(place, queue=QUEUE, parallelism=2))

    def waiting() -> list[Any]:
        return [job for job in user.jobs() if job.spec.suspend]

    (prepare,) = found(waiting, 1, "the prepare Job")
    kueue.admit(prepare)
    first, second = found(waiting, 2, "two train Jobs")
    kueue.queue(first)
    kueue.queue(second)
    queued = user.wait_for(lambda: user.sweep("dense"), "Ready", "False", "Queued")
    wait_until(lambda: NO_QUOTA in ready_message(user), "Kueue's own words")
    assert queued["status"]["points"]["active"] == 2

    kueue.evict(first, "Preempted", "to accommodate a workload of higher priority")
    kueue.evict(second, "Preempted", "to accommodate a workload of higher priority")
    wait_until(lambda: "evicted by Kueue (Preempted)" in ready_message(user), "the eviction")

    kueue.deactivate(first)
    kueue.deactivate(second)
    user.wait_for(lambda: user.sweep("dense"), "Stalled", "True", "WorkloadDeactivated")

    def admit_everything() -> bool:
        for job in waiting():
            kueue.admit(job)
        points = user.sweep("dense")["status"]["points"]
        return bool(points["succeeded"] == points["total"])

    wait_until(admit_everything, "every point", seconds=180)
    finished(user)


def found(jobs: Callable[[], list[Any]], count: int, what: str) -> list[Any]:
    """So many Jobs, once they are there."""
    seen: list[Any] = []

    def are_there() -> bool:
        seen[:] = jobs()
        return len(seen) == count

    wait_until(are_there, what)
    return seen


def ready_message(user: User) -> str:
    found = user.sweep("dense")["status"]["conditions"]
    return next(str(each["message"]) for each in found if each["type"] == "Ready")


def test_a_cluster_without_kueue_says_nothing(user: User) -> None:
    """The kind is not served in a group that nobody installed."""
    reader = WorkloadReader(Cluster(user.api_client))
    assert reader.of_jobs("a namespace that is not there", frozenset({"uid"})) == {}
