"""Merges partial pod templates. Pure."""

from collections.abc import Mapping
from typing import Any

from isoloss_operator.cluster.template_fields import BadPodTemplate

Json = Any
MERGE_KEYS = {
    "containers": "name",
    "initContainers": "name",
    "volumes": "name",
    "env": "name",
    "imagePullSecrets": "name",
    "volumeMounts": "mountPath",
    "volumeDevices": "devicePath",
    "resourceClaims": "name",
    "hostAliases": "ip",
}
"""Lists whose items are merged by this field, as in a strategic merge patch. Others are replaced."""
APPENDED = frozenset({"envFrom"})
"""Lists that are appended to: a template's own sources must not drop the storage's Secret."""
STRING_MAPS = frozenset({"annotations", "labels", "nodeSelector", "limits", "requests"})
"""Objects whose names people choose: one named env is no list of variables."""


def merge(base: Json, change: Json, path: str = "podTemplate") -> Json:
    """`change` merged into `base` like a strategic merge patch; null removes a field.

    Raises BadPodTemplate if the two have different types.
    """
    if isinstance(base, Mapping):
        if not isinstance(change, Mapping):
            raise BadPodTemplate(f"{path}: must be an object")
        return _merge_objects(base, change, path)
    return change


def _merge_objects(base: Mapping[str, Json], change: Mapping[str, Json], path: str) -> Json:
    merged = dict(base)
    for name, value in change.items():
        where = f"{path}.{name}"
        if value is None:
            merged.pop(name, None)
        elif name in STRING_MAPS:
            merged[name] = _merge_maps(base.get(name, {}), value, where)
        elif name in MERGE_KEYS:
            merged[name] = _merge_lists(base.get(name, []), value, MERGE_KEYS[name], where)
        elif name in APPENDED:
            merged[name] = [*_list(base.get(name, []), where), *_list(value, where)]
        elif name in base:
            merged[name] = merge(base[name], value, where)
        else:
            merged[name] = value
    return merged


def _merge_maps(base: Json, change: Json, path: str) -> Json:
    for value in (base, change):
        if not isinstance(value, Mapping):
            raise BadPodTemplate(f"{path}: must be an object: write NAME: VALUE below it")
    return {name: value for name, value in {**base, **change}.items() if value is not None}


def _merge_lists(base: Json, change: Json, key: str, path: str) -> Json:
    merged: dict[str, Json] = {}
    # What is there already may come from another template as it was written.
    for items in (_list(base, path), _list(change, path)):
        for number, item in enumerate(items):
            where = f"{path}[{number}]"
            if not isinstance(item, Mapping) or not isinstance(item.get(key), str):
                raise BadPodTemplate(f"{where}: needs {key}")
            merged[item[key]] = merge(merged.get(item[key], {}), item, where)
    return list(merged.values())


def _list(value: Json, path: str) -> list[Json]:
    if not isinstance(value, list):
        raise BadPodTemplate(f"{path}: must be a list")
    return value
