"""The restricted Pod Security Standard, those parts that a pod template can violate. Pure.

Checked before a Job is created: the API server's own admission looks at pods, so that a Job that violates it
would exist and never get one. No looser than the standard of any supported version (1.31 to 1.37); if those
differ (sysctls, volumes of images), the strictest counts.
https://kubernetes.io/docs/concepts/security/pod-security-standards/
"""

from collections.abc import Iterator, Mapping
from typing import Any

from isoloss_operator.cluster.template_fields import Fields

HOST_FIELDS = ("hostNetwork", "hostPID", "hostIPC")
CONTAINER_LISTS = ("containers", "initContainers", "ephemeralContainers")
PROBES = ("livenessProbe", "readinessProbe", "startupProbe")
HOOKS = ("postStart", "preStop")
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
ALLOWED_PROFILES = ("RuntimeDefault", "Localhost")
"""Allowed profiles of seccomp and AppArmor."""
APPARMOR_ANNOTATION = "container.apparmor.security.beta.kubernetes.io/"
"""Prefix of the older form, which kubelets still obey."""
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


def violations(template: Mapping[str, Any]) -> list[str]:
    """Violations of the standard by a PodTemplateSpec, each as `field: reason`.

    Raises BadPodTemplate if a field has the wrong shape.
    """
    whole = Fields(template, "podTemplate")
    pod = whole.fields("spec")
    found = [*_annotations(whole.fields("metadata")), *_pod(pod), *_volumes(pod)]
    for name in CONTAINER_LISTS:
        for container in pod.objects(name):
            found += _container(container, pod.fields("securityContext"))
    return found


def _annotations(metadata: Fields) -> Iterator[str]:
    annotations = metadata.fields("annotations")
    for name in annotations.values:
        value = annotations.value(name)
        if not name.startswith(APPARMOR_ANNOTATION) or value in (None, "", "runtime/default"):
            continue
        if not str(value).startswith("localhost/"):
            yield f"{annotations.where(name)}: must be runtime/default or localhost/..."


def _pod(pod: Fields) -> Iterator[str]:
    for name in HOST_FIELDS:
        if pod.value(name):
            yield f"{pod.where(name)}: must not be true"
    context = pod.fields("securityContext")
    for sysctl in context.objects("sysctls"):
        if sysctl.value("name") not in ALLOWED_SYSCTLS:
            yield f"{context.where('sysctls')}: {sysctl.value('name')} is not allowed"
    if context.has("runAsNonRoot") and context.value("runAsNonRoot") is not True:
        yield f"{context.where('runAsNonRoot')}: must be true"
    if context.has("seccompProfile"):
        yield from _seccomp(context.fields("seccompProfile"))
    yield from _any_context(context)


def _volumes(pod: Fields) -> Iterator[str]:
    for volume in pod.objects("volumes"):
        for kind in sorted(set(volume.values) - {"name"} - ALLOWED_VOLUMES):
            if volume.has(kind):
                yield f"{volume.where(kind)}: this type of volume is not allowed"


def _container(container: Fields, pod: Fields) -> Iterator[str]:
    """`pod` is the pod's securityContext, whose values count if the container has none."""
    context = container.fields("securityContext")
    yield from _any_context(context)
    yield from _privileges(context)
    if (context if context.has("runAsNonRoot") else pod).value("runAsNonRoot") is not True:
        yield f"{context.where('runAsNonRoot')}: must be true"
    own = context if context.has("seccompProfile") else pod
    yield from _seccomp(own.fields("seccompProfile"))
    for port in container.objects("ports"):
        if port.value("hostPort"):
            yield f"{port.where('hostPort')}: must not be set"
    yield from _hosts(container)


def _any_context(context: Fields) -> Iterator[str]:
    """Controls of pods and containers alike."""
    if context.value("runAsUser") == 0:
        yield f"{context.where('runAsUser')}: must not be 0"
    if context.fields("windowsOptions").value("hostProcess"):
        yield f"{context.where('windowsOptions.hostProcess')}: must not be true"
    profile = context.fields("appArmorProfile")
    if context.has("appArmorProfile") and profile.value("type") not in ALLOWED_PROFILES:
        yield f"{profile.where('type')}: must be RuntimeDefault or Localhost"
    labels = context.fields("seLinuxOptions")
    is_usual = labels.value("type") in ALLOWED_SELINUX_TYPES
    if not is_usual or labels.value("user") or labels.value("role"):
        yield f"{labels.path}: only the container types are allowed, no user and no role"


def _seccomp(profile: Fields) -> Iterator[str]:
    if profile.value("type") not in ALLOWED_PROFILES:
        yield f"{profile.where('type')}: must be RuntimeDefault or Localhost"


def _privileges(context: Fields) -> Iterator[str]:
    if context.value("privileged"):
        yield f"{context.where('privileged')}: must not be true"
    if context.value("allowPrivilegeEscalation") is not False:
        yield f"{context.where('allowPrivilegeEscalation')}: must be false"
    capabilities = context.fields("capabilities")
    if "ALL" not in capabilities.items("drop"):
        yield f"{capabilities.where('drop')}: must include ALL"
    if any(name != "NET_BIND_SERVICE" for name in capabilities.items("add")):
        yield f"{capabilities.where('add')}: must be empty"
    if context.value("procMount") not in (None, "", "Default"):
        yield f"{context.where('procMount')}: must be Default"


def _hosts(container: Fields) -> Iterator[str]:
    """Probes and hooks may ask the pod itself, and nothing else in the network."""
    lifecycle = container.fields("lifecycle")
    handlers = [container.fields(name) for name in PROBES]
    handlers += [lifecycle.fields(name) for name in HOOKS]
    for handler in handlers:
        for kind in ("httpGet", "tcpSocket"):
            action = handler.fields(kind)
            if action.value("host"):
                yield f"{action.where('host')}: must not be set"
