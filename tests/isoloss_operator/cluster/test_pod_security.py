"""Every control of the restricted Pod Security Standard: ours, and beside it the API server's own."""

import uuid
from collections.abc import Iterator
from typing import Any

import pytest
from kubernetes import client
from kubernetes.client.exceptions import ApiException

from isoloss_operator.cluster.manifests import job_manifest
from isoloss_operator.cluster.pod_security import violations
from isoloss_operator.cluster.pod_templates import merge
from isoloss_operator.cluster.template_fields import BadPodTemplate
from isoloss_operator.settings import Settings
from tests.isoloss_operator.cluster.test_manifests import OWNER, request, trainer_template

Json = dict[str, Any]
ANNOTATION = "container.apparmor.security.beta.kubernetes.io/trainer"
ELSEWHERE = {"httpGet": {"host": "10.0.0.1", "port": 80}}
HOOK = {"tcpSocket": {"host": "10.0.0.1", "port": 80}}
EXEC = {"exec": {"command": ["true"]}}


def pod(**spec: Any) -> Json:
    return {"spec": spec}


def context(**changes: Any) -> Json:
    """A change of the trainer container's securityContext."""
    return trainer_template(securityContext=changes)


def pod_context(**changes: Any) -> Json:
    return pod(securityContext=changes)


def annotated(profile: str) -> Json:
    return {"metadata": {"annotations": {ANNOTATION: profile}}}


def volume(**source: Any) -> Json:
    return pod(volumes=[{"name": "v", **source}])


SAFE: Json = {
    "allowPrivilegeEscalation": False,
    "capabilities": {"drop": ["ALL"]},
}
INIT = {"name": "init", "image": "x", "securityContext": SAFE}

BY_FIELD: dict[str, dict[str, Json]] = {
    "hostNetwork": {"host network": pod(hostNetwork=True)},
    "hostPID": {"host processes": pod(hostPID=True)},
    "hostIPC": {"host ipc": pod(hostIPC=True)},
    "hostProcess": {
        "host process": pod_context(windowsOptions={"hostProcess": True}),
        "host process of a container": context(windowsOptions={"hostProcess": True}),
    },
    "privileged": {"privileged": context(privileged=True, allowPrivilegeEscalation=None)},
    "capabilities.add": {"capability": context(capabilities={"add": ["SYS_ADMIN"]})},
    "capabilities.drop": {"capabilities kept": context(capabilities={"drop": ["NET_RAW"]})},
    "hostPath": {"host path": volume(hostPath={"path": "/"})},
    "nfs": {"nfs": volume(nfs={"server": "s", "path": "/"})},
    "hostPort": {"host port": trainer_template(ports=[{"hostPort": 80, "containerPort": 80}])},
    "livenessProbe.httpGet.host": {"probe elsewhere": trainer_template(livenessProbe=ELSEWHERE)},
    "readinessProbe": {"readiness elsewhere": trainer_template(readinessProbe=HOOK)},
    "startupProbe": {"startup elsewhere": trainer_template(startupProbe=ELSEWHERE)},
    "preStop.tcpSocket.host": {"hook elsewhere": trainer_template(lifecycle={"preStop": HOOK})},
    "postStart.httpGet.host": {
        "other hook elsewhere": trainer_template(lifecycle={"postStart": ELSEWHERE})
    },
    "appArmorProfile": {
        "AppArmor off": pod_context(appArmorProfile={"type": "Unconfined"}),
        "AppArmor off for a container": context(appArmorProfile={"type": "Unconfined"}),
    },
    "apparmor": {"AppArmor off by annotation": annotated("unconfined")},
    "seLinuxOptions": {
        "SELinux type": pod_context(seLinuxOptions={"type": "spc_t"}),
        "SELinux user": context(seLinuxOptions={"user": "root"}),
        "SELinux role": context(seLinuxOptions={"role": "sysadm_r"}),
    },
    "procMount": {"unmasked proc": merge(context(procMount="Unmasked"), pod(hostUsers=False))},
    "seccompProfile": {
        "no seccomp": pod_context(seccompProfile={"type": "Unconfined"}),
        "no seccomp for a container": context(seccompProfile={"type": "Unconfined"}),
        "no seccomp at first sight": merge(
            pod_context(seccompProfile={"type": "Unconfined"}),
            context(seccompProfile={"type": "RuntimeDefault"}),
        ),
        "seccomp left out": pod_context(seccompProfile=None),
    },
    "sysctls": {"sysctl": pod_context(sysctls=[{"name": "kernel.msgmax", "value": "1"}])},
    "allowPrivilegeEscalation": {
        "escalation": context(allowPrivilegeEscalation=True),
        "escalation left open": context(allowPrivilegeEscalation=None),
    },
    "runAsNonRoot": {
        "root": pod_context(runAsNonRoot=False, runAsUser=None),
        "root container": context(runAsNonRoot=False),
        "root at first sight": merge(pod_context(runAsNonRoot=False), context(runAsNonRoot=True)),
        "root left open": pod_context(runAsNonRoot=None),
    },
    "runAsUser": {
        "user 0": pod_context(runAsUser=0),
        "user 0 of a container": context(runAsUser=0),
    },
    "init": {"an init container": pod(initContainers=[{"name": "init", "image": "x"}])},
}
REFUSED = {
    name: (change, field)
    for field, changes in BY_FIELD.items()
    for name, change in changes.items()
}
ALLOWED: dict[str, Json] = {
    "nothing special": {},
    "network bind": context(capabilities={"drop": ["ALL"], "add": ["NET_BIND_SERVICE"]}),
    "volumes": pod(
        volumes=[
            {"name": "a", "configMap": {"name": "x"}},
            {"name": "b", "secret": {"secretName": "x"}},
            {"name": "c", "persistentVolumeClaim": {"claimName": "x"}},
            {"name": "d", "projected": {"sources": []}},
            {"name": "e", "downwardAPI": {}},
            {"name": "f", "csi": {"driver": "x"}},
        ]
    ),
    "a port": trainer_template(ports=[{"containerPort": 80}]),
    "probes and hooks of its own": trainer_template(
        livenessProbe={"httpGet": {"port": 80}}, lifecycle={"preStop": EXEC}
    ),
    "AppArmor": context(appArmorProfile={"type": "RuntimeDefault"}),
    "AppArmor by annotation": annotated("runtime/default"),
    "AppArmor of the node": pod_context(
        appArmorProfile={"type": "Localhost", "localhostProfile": "x"}
    ),
    "SELinux": pod_context(seLinuxOptions={"type": "container_t", "level": "s0:c1,c2"}),
    "seccomp of the node": context(seccompProfile={"type": "Localhost", "localhostProfile": "x"}),
    "sysctl": pod_context(sysctls=[{"name": "net.ipv4.tcp_syncookies", "value": "1"}]),
    "another user": context(runAsUser=65532),
    "root denied by the container": merge(
        pod_context(runAsNonRoot=None), context(runAsNonRoot=True)
    ),
    "an init container": pod(initContainers=[INIT]),
}
STRICTER = {
    "a sysctl of 1.32": pod_context(sysctls=[{"name": "net.ipv4.tcp_rmem", "value": "1 2 3"}]),
    "a volume from an image": volume(image={"reference": "x"}),
}
"""What newer API servers admit, and 1.31 does not."""


def template(change: Json, *, enforce: bool) -> Json:
    settings = Settings(trainer_image="x", enforce_restricted_pods=enforce)
    job = job_manifest(request(pod_templates=(change,)), OWNER, settings)
    found: Json = job["spec"]["template"]
    return found


@pytest.mark.parametrize("name", REFUSED)
def test_what_leaves_the_standard_is_refused_by_field(name: str) -> None:
    change, field = REFUSED[name]
    with pytest.raises(BadPodTemplate, match=field.replace(".", r"\.")):
        template(change, enforce=True)


@pytest.mark.parametrize("name", ALLOWED)
def test_what_keeps_to_the_standard_is_allowed(name: str) -> None:
    assert template(ALLOWED[name], enforce=True)


@pytest.mark.parametrize("name", STRICTER)
def test_what_only_newer_versions_allow_is_refused(name: str) -> None:
    assert violations(template(STRICTER[name], enforce=False))


@pytest.fixture(scope="module")
def restricted(api_client: client.ApiClient) -> Iterator[str]:
    """A namespace that enforces the standard."""
    # A name of its own: the last one may still be terminating when a worker comes back to this module.
    name = f"test-restricted-{uuid.uuid4().hex[:8]}"
    core = client.CoreV1Api(api_client)
    labels = {"pod-security.kubernetes.io/enforce": "restricted"}
    core.create_namespace({"metadata": {"name": name, "labels": labels}})
    yield name
    core.delete_namespace(name)


def refusal(api_client: client.ApiClient, namespace: str, change: Json) -> str:
    """What the API server's own admission says about a pod of that template; empty: nothing."""
    found = template(change, enforce=False)
    body = {"metadata": {**found["metadata"], "name": "pod"}, "spec": found["spec"]}
    try:
        client.CoreV1Api(api_client).create_namespaced_pod(namespace, body, dry_run="All")
    except ApiException as error:
        return str(error.body)
    return ""


REFUSED_SINCE = {
    "unmasked proc": 33,
    **dict.fromkeys(("probe elsewhere", "readiness elsewhere", "startup elsewhere"), 34),
    **dict.fromkeys(("hook elsewhere", "other hook elsewhere"), 34),
}
"""Minor versions of Kubernetes whose own admission is the first to refuse these; the operator always does."""


@pytest.mark.cluster
@pytest.mark.parametrize("name", REFUSED)
def test_the_api_server_refuses_it_too(
    api_client: client.ApiClient, restricted: str, name: str
) -> None:
    message = refusal(api_client, restricted, REFUSED[name][0])
    served = int(client.VersionApi(api_client).get_code().minor)
    if served < REFUSED_SINCE.get(name, 0):
        assert message == ""
        return
    # Of host processes the API server says first that they need the host's network.
    assert "violates PodSecurity" in message or "hostProcess" in message


@pytest.mark.cluster
@pytest.mark.parametrize("name", ALLOWED)
def test_the_api_server_admits_it_too(
    api_client: client.ApiClient, restricted: str, name: str
) -> None:
    assert refusal(api_client, restricted, ALLOWED[name]) == ""
