"""What stands around a spec, and what a prediction points at: labels, finalizers, sizes, and ConfigMaps of others."""

import contextlib
from typing import Any

import pytest
from kubernetes import client

from devcluster.process_node import ProcessNode
from tests.hostile.neighbour import Neighbour
from tests.hostile.test_hostile_stores import tenants_sweep
from tests.isoloss_operator.conftest import Place
from tests.support.cluster import wait_until
from tests.support.operator_process import (
    OperatorProcess,
    User,
    conditions,
    prediction_manifest,
    sweep_manifest,
)

pytestmark = [pytest.mark.cluster, pytest.mark.s3]

LARGEST_REQUEST = 1_572_864
"""Bytes that etcd takes at once: 1.5 MiB."""
Json = dict[str, Any]
PREDICTIONS = {
    "takes": ("dense", "foreign"),
    "takes-the-ca": ("dense", "kube-root-ca.crt"),
    "fixed": ("dense", "fixed"),
    "own": ("own", "own"),
}
"""The sweep that each is about, which for one is its own name, and its ConfigMap."""
METADATA: dict[str, Json] = {
    "labels": {"labels": {f"tenant/{'k' * 50}{n}": "v" * 63 for n in range(4000)}},
    "annotations": {"annotations": {"tenant/text": "\\u202e" * 43_000}},
    "finalizers": {"finalizers": [f"tenant/{n}" for n in range(20_000)]},
}


def suspended(place: Place, name: str, metadata: Json) -> Json:
    body = tenants_sweep(place, name)
    body["metadata"] |= metadata
    body["spec"]["suspend"] = True
    return body


def create_as_large_as_may_be(tenant: User, place: Place) -> int:
    """The largest sweep that the API server takes, in bytes of its padding: no status has room beside it."""
    for size in range(LARGEST_REQUEST, LARGEST_REQUEST - 60_000, -500):
        body = suspended(place, "largest", {})
        container = body["spec"]["podTemplate"]["spec"]["containers"][0]
        container["env"] = [{"name": "PADDING", "value": "x" * size}]
        with contextlib.suppress(client.ApiException):
            tenant.create_sweep(body)
            return size
    raise AssertionError("the API server took none")


@pytest.mark.whole
def test_nothing_around_a_spec_takes_the_operator_from_its_neighbours(
    limited: OperatorProcess, user: User, tenant: User, node: ProcessNode, place: Place
) -> None:
    with Neighbour(user, limited, place) as neighbour:
        size = create_as_large_as_may_be(tenant, place)
        for name, metadata in METADATA.items():
            tenant.create_sweep(suspended(place, name, metadata))
        for name in METADATA:
            tenant.wait_for(lambda name=name: tenant.sweep(name), "Suspended", seconds=60)
        tenant.delete_sweep("finalizers")
        neighbour.asks_again()
        neighbour.judge()
    assert tenant.sweep("finalizers")["metadata"]["deletionTimestamp"]
    assert size > LARGEST_REQUEST * 0.96
    largest = tenant.sweep("largest")
    reported = conditions(largest)
    assert "Suspended" in reported or "too large" in limited.log.read_text(), reported
    # With them the namespace could not be deleted.
    tenant.patch_sweep("finalizers", {"metadata": {"finalizers": []}})


def test_a_prediction_takes_no_config_map_of_others_and_mends_its_own(
    limited: OperatorProcess, user: User, tenant: User, node: ProcessNode, place: Place
) -> None:
    """Nor does a prediction that names itself, or a sweep that is not there, keep anybody busy."""
    limited.environment["ISOLOSS_RESYNC_SECONDS"] = "2"
    core = client.CoreV1Api(tenant.api_client)
    foreign: Any = {"metadata": {"name": "foreign"}, "data": {"learningRate": "mine"}}
    core.create_namespaced_config_map(tenant.namespace, foreign)
    before = data_of(core, tenant, "kube-root-ca.crt")

    with Neighbour(user, limited, place) as neighbour:
        tenant.apply_sweep(sweep_manifest("dense", f"s3://{place.bucket}/lab"))
        for name, (about, config_map) in PREDICTIONS.items():
            publish = {"configMapName": config_map}
            body = prediction_manifest(name, about, publish=publish, initialLoss="2.6")
            del body["spec"]["checkpoint"]
            tenant.apply_prediction(body)

        wait_until(lambda: "reason" in data_of(core, tenant, "own"), "the prediction's own")
        published = data_of(core, tenant, "own")
        assert published["reason"] == "SweepNotFound"
        forged: Any = {"data": {"ready": "true", "learningRate": "1e9", "reason": None}}
        # One that may not be changed is made again if it has numbers that nobody answered.
        for forgery in (forged, {**forged, "immutable": True}):
            core.patch_namespaced_config_map("own", tenant.namespace, forgery)
            wait_until(
                lambda: data_of(core, tenant, "own") == published, "the forgery to be undone", 30
            )

        wait_until(lambda: "reason" in data_of(core, tenant, "fixed"), "the other one")
        core.patch_namespaced_config_map("fixed", tenant.namespace, {"immutable": True})
        refused = stalled(tenant, "fixed", "ConfigMapRefused")
        assert "immutable" in refused
        for name in ("takes", "takes-the-ca"):
            taken = (
                f"spec.publish.configMapName: ConfigMap {PREDICTIONS[name][1]} belongs to another"
            )
            assert taken in stalled(tenant, name, "ConfigMapTaken")
        neighbour.asks_again()
        neighbour.judge()
    assert data_of(core, tenant, "foreign") == foreign["data"]
    assert data_of(core, tenant, "kube-root-ca.crt") == before


def stalled(tenant: User, name: str, reason: str) -> str:
    """The message of a prediction once its sweep has laws, and only its ConfigMap is in the way."""
    found = tenant.wait_for(lambda: tenant.prediction(name), "Stalled", "True", reason, 150)
    return str(conditions(found)["Stalled"]["message"])


def data_of(core: client.CoreV1Api, tenant: User, name: str) -> dict[str, str]:
    """Empty where there is none."""
    try:
        found: Any = core.read_namespaced_config_map(name, tenant.namespace)
    except client.ApiException:
        return {}
    return dict(found.data or {})
