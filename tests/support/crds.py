"""Puts CRDs and objects of their kinds into a control plane, as `kubectl apply --server-side` does."""

from collections.abc import Sequence
from typing import Any, cast

from kubernetes import client

from isoloss_operator.api import GROUP, PREDICTION_KIND, PREDICTION_PLURAL, SWEEP_PLURAL, VERSION
from isoloss_operator.generate.crdgen import definitions
from tests.support.cluster import wait_until

Json = dict[str, Any]
MANAGER = "isoloss-tests"
_served: set[str] = set()
"""Addresses of the servers that have ours already. Each time, hundreds of fields are merged and checked."""


def install_crds(api_client: client.ApiClient) -> None:
    """Apply both CRDs of this tree, once for each server; may run twice concurrently."""
    server = api_client.configuration.host
    if server not in _served:
        install(api_client, definitions())
        _served.add(server)


def install(api_client: client.ApiClient, definitions: Sequence[Json]) -> None:
    """Apply CRDs, and wait until their kinds are served."""
    api = client.ApiextensionsV1Api(api_client)
    for crd in definitions:
        api.patch_custom_resource_definition(
            crd["metadata"]["name"],
            crd,
            field_manager=MANAGER,
            force=True,
            _content_type="application/apply-patch+yaml",
        )
    custom = client.CustomObjectsApi(api_client)
    for crd in definitions:
        spec = crd["spec"]
        # Others would have to be converted, by a controller that is yet to start.
        (stored,) = (each["name"] for each in spec["versions"] if each["storage"])
        place = (spec["group"], stored, spec["names"]["plural"])

        def is_served(place: tuple[str, str, str] = place) -> bool:
            try:
                custom.list_cluster_custom_object(*place, limit=1)
            except client.ApiException:
                return False
            return True

        wait_until(is_served, f"{crd['metadata']['name']} to be served")


def apply(api_client: client.ApiClient, plural: str, body: Json, *, status: bool = False) -> None:
    """Server-side apply of one object of any group, or of its status."""
    group, version = body["apiVersion"].split("/")
    api, metadata = client.CustomObjectsApi(api_client), body["metadata"]
    options: Json = {
        "field_manager": MANAGER,
        "force": True,
        "_content_type": "application/apply-patch+yaml",
    }
    if "namespace" in metadata:
        place = (group, version, metadata["namespace"], plural, metadata["name"], body)
        patch = (
            api.patch_namespaced_custom_object_status
            if status
            else api.patch_namespaced_custom_object
        )
        patch(*place, **options)
    else:
        api.patch_cluster_custom_object(group, version, plural, metadata["name"], body, **options)


def create(api_client: client.ApiClient, namespace: str, manifest: Json, **options: Any) -> Json:
    """Create a sweep or prediction as kubectl does: unknown fields are refused.

    Raises kubernetes.client.ApiException.
    """
    plural = PREDICTION_PLURAL if manifest["kind"] == PREDICTION_KIND else SWEEP_PLURAL
    api = client.CustomObjectsApi(api_client)
    created = api.create_namespaced_custom_object(
        GROUP, VERSION, namespace, plural, manifest, field_validation="Strict", **options
    )
    return cast("Json", created)
