"""Kueue's Workloads as the operator reads them. With a real Kueue: tests/controllers/test_kueue.py."""

from typing import Any

import pytest
from kubernetes import client

from isoloss_operator.cluster.client import Cluster
from isoloss_operator.cluster.rbac import KUEUE_RULES, NAME, RBAC_GROUP
from isoloss_operator.cluster.workloads import (
    GROUP,
    JOB_UID_LABEL,
    WorkloadReader,
    observe_workload,
)
from isoloss_operator.decide.observation import ObservedWorkload
from tests.isoloss_operator.conftest import Json
from tests.support.cluster import wait_until
from tests.support.operator_process import User, wait_for_right

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


def workload(*conditions: tuple[str, str, str, str], active: bool = True) -> Json:
    """Of the Job with the uid "u"; conditions as (type, status, reason, message)."""
    names = ("type", "status", "reason", "message")
    return {
        "apiVersion": f"{GROUP}/v1beta1",
        "kind": "Workload",
        "metadata": {"name": "job-a", "labels": {JOB_UID_LABEL: "u"}},
        "spec": {"active": active},
        "status": {"conditions": [dict(zip(names, each, strict=True)) for each in conditions]},
    }


@pytest.mark.parametrize(
    ("found", "seen"),
    [
        (workload(), {}),
        (workload(("QuotaReserved", "False", "Pending", NO_QUOTA)), {"message": NO_QUOTA}),
        (workload(("Admitted", "True", "Admitted", "said")), {}),
        (
            workload(("Evicted", "True", "Preempted", "for another")),
            {"evicted": "Preempted", "message": "for another"},
        ),
        (
            workload(("Evicted", "True", "Deactivated", "by somebody"), active=False),
            {"evicted": "Deactivated", "message": "by somebody", "active": False},
        ),
    ],
    ids=["new", "without quota", "admitted", "evicted", "deactivated"],
)
def test_a_workload_is_what_kueue_says_of_it(found: Json, seen: Json) -> None:
    nothing = {"name": "job-a", "active": True, "evicted": "", "message": ""}
    assert observe_workload(found) == ObservedWorkload(**{**nothing, **seen})


@pytest.mark.cluster
@pytest.mark.s3
def test_workloads_are_read_with_the_rights_that_the_chart_adds(
    cluster: Cluster, user: User
) -> None:
    """By the uid of their Job; without the right nothing is known of them."""
    definition: Any = workload_crd()
    try:
        client.ApiextensionsV1Api(user.api_client).create_custom_resource_definition(definition)
    except client.ApiException as error:
        if error.status != 409:
            raise
    place = (GROUP, "v1beta1", user.namespace, "workloads")

    def is_made() -> bool:
        try:
            user.custom.create_namespaced_custom_object(*place, workload())
        except client.ApiException:
            return False
        return True

    wait_until(is_made, "Workloads to be served")
    reader = WorkloadReader(cluster)
    assert reader.of_jobs(user.namespace, frozenset({"u"})) == {}
    grant_workloads(user)
    assert reader.of_jobs(user.namespace, frozenset({"u", "v"})).keys() == {"u"}
    assert reader.of_jobs(user.namespace, frozenset({"v"})) == {}


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


@pytest.mark.cluster
@pytest.mark.s3
def test_a_cluster_without_kueue_says_nothing(user: User) -> None:
    """The kind is not served in a group that nobody installed."""
    reader = WorkloadReader(Cluster(user.api_client))
    assert reader.of_jobs("a namespace that is not there", frozenset({"uid"})) == {}
