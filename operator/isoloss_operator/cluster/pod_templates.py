"""Merges partial pod templates and checks them against the restricted Pod Security Standard. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

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

HOST_FIELDS = ("hostNetwork", "hostPID", "hostIPC")
ALLOWED_VOLUMES = frozenset(
    {
        "configMap",
        "csi",
        "downwardAPI",
        "emptyDir",
        "ephemeral",
        "persistentVolumeClaim",
        "projected",
        "secret",
    }
)
"""Volume types of the restricted Pod Security Standard."""
ALLOWED_SECCOMP = ("RuntimeDefault", "Localhost")
ALLOWED_APPARMOR = (None, "RuntimeDefault", "Localhost")
ALLOWED_SYSCTLS = frozenset(
    {
        "kernel.shm_rmid_forced",
        "net.ipv4.ip_local_port_range",
        "net.ipv4.ip_unprivileged_port_start",
        "net.ipv4.tcp_syncookies",
        "net.ipv4.ping_group_range",
        "net.ipv4.ip_local_reserved_ports",
        "net.ipv4.tcp_keepalive_time",
        "net.ipv4.tcp_fin_timeout",
        "net.ipv4.tcp_keepalive_intvl",
        "net.ipv4.tcp_keepalive_probes",
    }
)
ALLOWED_SELINUX_TYPES = (
    None,
    "",
    "container_t",
    "container_init_t",
    "container_kvm_t",
    "container_engine_t",
)


class BadPodTemplate(ValueError):
    """A pod template that cannot be used; the message names the field."""


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
        elif name in MERGE_KEYS:
            merged[name] = _merge_lists(base.get(name, []), value, MERGE_KEYS[name], where)
        elif name in APPENDED and isinstance(value, list):
            merged[name] = [*base.get(name, []), *value]
        elif name in base:
            merged[name] = merge(base[name], value, where)
        else:
            merged[name] = value
    return merged


def _merge_lists(base: Json, change: Json, key: str, path: str) -> Json:
    if not isinstance(change, list):
        raise BadPodTemplate(f"{path}: must be a list")
    merged = {item[key]: item for item in base}
    for number, item in enumerate(change):
        where = f"{path}[{number}]"
        if not isinstance(item, Mapping) or not isinstance(item.get(key), str):
            raise BadPodTemplate(f"{where}: needs {key}")
        merged[item[key]] = merge(merged.get(item[key], {}), item, where)
    return list(merged.values())


def violations(spec: Mapping[str, Json]) -> list[str]:
    """Violations of the restricted Pod Security Standard, each as `field: reason`."""
    return [*_pod_violations(spec), *_volume_violations(spec), *_container_violations(spec)]


def _pod_violations(spec: Mapping[str, Json]) -> Iterator[str]:
    for name in HOST_FIELDS:
        if spec.get(name):
            yield f"spec.{name}: must not be true"
    context = _object(spec, "securityContext")
    if context.get("runAsUser") == 0:
        yield "spec.securityContext.runAsUser: must not be 0"
    for sysctl in context.get("sysctls") or ():
        if sysctl.get("name") not in ALLOWED_SYSCTLS:
            yield f"spec.securityContext.sysctls: {sysctl.get('name')} is not allowed"
    if context.get("windowsOptions", {}).get("hostProcess"):
        yield "spec.securityContext.windowsOptions.hostProcess: must not be true"
    yield from _context_violations(context, "spec.securityContext")


def _volume_violations(spec: Mapping[str, Json]) -> Iterator[str]:
    for volume in spec.get("volumes") or ():
        for kind in sorted(set(volume) - {"name"} - ALLOWED_VOLUMES):
            yield f"spec.volumes[{volume.get('name')}].{kind}: this type of volume is not allowed"


def _container_violations(spec: Mapping[str, Json]) -> Iterator[str]:
    pod = _object(spec, "securityContext")
    for group in ("containers", "initContainers", "ephemeralContainers"):
        for container in spec.get(group) or ():
            where = f"spec.{group}[{container.get('name')}]"
            context = _object(container, "securityContext")
            yield from _context_violations(context, f"{where}.securityContext")
            yield from _privilege_violations(context, pod, f"{where}.securityContext")
            for port in container.get("ports") or ():
                if port.get("hostPort"):
                    yield f"{where}.ports.hostPort: must not be set"


def _privilege_violations(
    context: Mapping[str, Json], pod: Mapping[str, Json], where: str
) -> Iterator[str]:
    if context.get("privileged"):
        yield f"{where}.privileged: must not be true"
    if context.get("allowPrivilegeEscalation") is not False:
        yield f"{where}.allowPrivilegeEscalation: must be false"
    capabilities = _object(context, "capabilities")
    if "ALL" not in (capabilities.get("drop") or ()):
        yield f"{where}.capabilities.drop: must include ALL"
    if set(capabilities.get("add") or ()) - {"NET_BIND_SERVICE"}:
        yield f"{where}.capabilities.add: must be empty"
    if not context.get("runAsNonRoot", pod.get("runAsNonRoot")):
        yield f"{where}.runAsNonRoot: must be true"
    if context.get("runAsUser") == 0:
        yield f"{where}.runAsUser: must not be 0"
    if context.get("procMount") not in (None, "Default"):
        yield f"{where}.procMount: must be Default"
    seccomp = _object(context, "seccompProfile") or _object(pod, "seccompProfile")
    if seccomp.get("type") not in ALLOWED_SECCOMP:
        yield f"{where}.seccompProfile.type: must be RuntimeDefault or Localhost"


def _context_violations(context: Mapping[str, Json], where: str) -> Iterator[str]:
    if _object(context, "appArmorProfile").get("type") not in ALLOWED_APPARMOR:
        yield f"{where}.appArmorProfile.type: must be RuntimeDefault or Localhost"
    labels = _object(context, "seLinuxOptions")
    if labels.get("type") not in ALLOWED_SELINUX_TYPES or labels.get("user") or labels.get("role"):
        yield f"{where}.seLinuxOptions: only the container types are allowed"


def _object(value: Mapping[str, Json], name: str) -> Mapping[str, Json]:
    found = value.get(name) or {}
    if not isinstance(found, Mapping):
        raise BadPodTemplate(f"{name}: must be an object")
    return found
