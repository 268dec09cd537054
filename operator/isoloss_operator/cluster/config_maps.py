"""Publishes an answer in a ConfigMap: exactly over what was read, never over another owner's."""

from collections.abc import Mapping
from typing import Any

from isoloss_operator.cluster.client import CONFIG_MAP, Cluster
from isoloss_operator.cluster.manifests import Owner, config_map_manifest
from isoloss_operator.decide.plans import ConfigMapRequest

Object = Mapping[str, Any]


def publish_config_map(
    cluster: Cluster, owner: Owner, wanted: ConfigMapRequest, found: Object | None
) -> None:
    """Make the ConfigMap of `owner` say what is wanted; `found` is what was read under its name.

    Raises Conflict if it has been created, changed or replaced since, NotFound if it is gone by now, and
    Refused if the API server does not take it (quota, rights, an invalid name, immutable).
    """
    body = config_map_manifest(wanted, owner)
    if found is None:
        cluster.create(CONFIG_MAP, owner.namespace, body)
    elif change := _change(found, body):
        read = found["metadata"]
        # Either could be another's object by now that merely has the name.
        change["metadata"] |= {"uid": read["uid"], "resourceVersion": read["resourceVersion"]}
        cluster.patch(CONFIG_MAP, owner.namespace, wanted.name, change)


def _change(found: Object, wanted: Object) -> dict[str, Any]:
    """The merge patch that leaves the wanted data and nothing else; empty: it has them already.

    The label is the one by which it is found again under a former name.
    """
    data: Mapping[str, str] = found.get("data") or {}
    labels: Mapping[str, str] = found["metadata"].get("labels") or {}
    wanted_labels = wanted["metadata"]["labels"]
    if data == wanted["data"] and wanted_labels.items() <= labels.items():
        return {}
    gone = dict.fromkeys(data.keys() - wanted["data"].keys())
    return {"metadata": {"labels": wanted_labels}, "data": {**gone, **wanted["data"]}}
