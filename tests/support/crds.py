"""Puts the CRDs of this tree into a control plane, as `kubectl apply --server-side` does."""

from functools import partial
from typing import Any, cast

from kubernetes import client

from isoloss_operator.api import GROUP, PREDICTION_KIND, PREDICTION_PLURAL, SWEEP_PLURAL, VERSION
from isoloss_operator.generate.crdgen import definitions
from tests.support.cluster import wait_until

MANAGER = "isoloss-tests"


_served: set[str] = set()
"""Addresses of the servers that have them already. Each time, hundreds of fields are merged and checked."""


def install_crds(api_client: client.ApiClient) -> None:
    """Apply both CRDs, once for each server, and wait until they are served; may run twice concurrently."""
    api = client.ApiextensionsV1Api(api_client)
    server = api_client.configuration.host
    if server in _served:
        return
    for crd in definitions():
        api.patch_custom_resource_definition(
            crd["metadata"]["name"],
            crd,
            field_manager=MANAGER,
            force=True,
            _content_type="application/apply-patch+yaml",
        )
        name = crd["metadata"]["name"]
        wait_until(partial(_is_served, api, name), f"{name} to be served")
    _served.add(server)


def _is_served(api: client.ApiextensionsV1Api, name: str) -> bool:
    status = api.read_custom_resource_definition(name).status
    conditions = (status and status.conditions) or []
    return any(c.type == "Established" and c.status == "True" for c in conditions)


def create(
    api_client: client.ApiClient, namespace: str, manifest: dict[str, Any], **options: Any
) -> dict[str, Any]:
    """Create a sweep or prediction as kubectl does: unknown fields are refused.

    Raises kubernetes.client.ApiException.
    """
    plural = PREDICTION_PLURAL if manifest["kind"] == PREDICTION_KIND else SWEEP_PLURAL
    api = client.CustomObjectsApi(api_client)
    created = api.create_namespaced_custom_object(
        GROUP, VERSION, namespace, plural, manifest, field_validation="Strict", **options
    )
    return cast("dict[str, Any]", created)
