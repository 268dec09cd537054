"""Builds the manifests of Jobs and ConfigMaps. Pure: no I/O, no clock, no random names."""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from isoloss_contract import records
from isoloss_contract.checkpointing import (
    STORE_BYTES_PER_SECOND,
    checkpoint_bytes,
    needed_grace,
)
from isoloss_operator.cluster.accelerators import (
    CONTAINER,
    accelerators_of,
    misplaced_accelerators,
)
from isoloss_operator.cluster.client import CONFIG_MAP, JOB, ResourceKey
from isoloss_operator.cluster.pod_security import violations
from isoloss_operator.cluster.pod_templates import merge
from isoloss_operator.cluster.pod_values import malformed_value
from isoloss_operator.cluster.template_fields import BadPodTemplate, Fields
from isoloss_operator.decide.observation import LABEL_OWNER_UID
from isoloss_operator.decide.plans import ConfigMapRequest, JobRequest
from isoloss_operator.planning.models import UnsupportedModel, parameter_counts
from isoloss_operator.settings import Settings

MANAGED_BY = {
    "app.kubernetes.io/managed-by": "isoloss-operator",
    "app.kubernetes.io/name": "isoloss",
}
OWNER_ANNOTATION = "isoloss.dev/owner"
"""Kind/name of the resource. An annotation, because a name may be too long for a label."""
PODS_ANNOTATION = "isoloss.dev/pods"
"""How many pods train a point together. Kueue may lower parallelism and completions."""
QUEUE_LABEL = "kueue.x-k8s.io/queue-name"
PRIORITY_LABEL = "kueue.x-k8s.io/priority-class"
INDEXED = "Indexed"
"""completionMode of a Job whose pods have numbers."""
MAX_TASK_BYTES = 100 * 1024
"""Linux takes at most 128 KiB for one environment variable."""
SCRATCH = "/scratch"
SHARED_MEMORY = "/dev/shm"
TERMINATION_LOG = "/dev/termination-log"
FINAL_EXIT_CODES = (
    records.ExitCode.DIVERGED,
    records.ExitCode.OUT_OF_MEMORY,
    records.ExitCode.BAD_CONFIGURATION,
    records.ExitCode.BAD_DATA,
    # A replaced pod would find the claim again, and start without the delay between attempts.
    records.ExitCode.CLAIMED_ELSEWHERE,
    # The other pods wait for the one that has ended.
    records.ExitCode.MEMORY_REFUSED,
)
"""The Job ends at once; whether and when another attempt follows is the operator's decision."""

Json = dict[str, Any]


@dataclass(frozen=True)
class Owner(ResourceKey):
    """The resource that a Job or ConfigMap belongs to."""

    uid: str

    def reference(self) -> Json:
        """A controller reference: Kubernetes deletes the object with the resource."""
        return {
            "apiVersion": self.kind.api_version,
            "kind": self.kind.kind,
            "name": self.name,
            "uid": self.uid,
            "controller": True,
            "blockOwnerDeletion": True,
        }


def job_manifest(request: JobRequest, owner: Owner, settings: Settings) -> Json:
    """The Job of a request.

    Raises BadPodTemplate if a template cannot be merged, violates the restricted Pod Security Standard,
    or the task is too large for an environment variable.
    """
    labels, deadline = {**request.labels, **MANAGED_BY}, request.deadline_seconds
    count = _pods(request)
    return {
        "apiVersion": JOB.api_version,
        "kind": JOB.kind,
        "metadata": {
            "name": request.name,
            "namespace": owner.namespace,
            "labels": {**labels, **_queue_labels(request)},
            "annotations": {
                **_annotations(owner),
                **({PODS_ANNOTATION: str(count)} if request.kind == "train" and count > 1 else {}),
            },
            "ownerReferences": [owner.reference()],
        },
        "spec": {
            "backoffLimit": 0,
            "completions": count,
            "parallelism": count,
            **({"completionMode": INDEXED} if count > 1 else {}),
            # A second pod must not start while the first may still write.
            "podReplacementPolicy": "Failed",
            "podFailurePolicy": _pod_failure_policy(),
            **({"activeDeadlineSeconds": deadline} if deadline is not None else {}),
            # Kueue admits a Job by clearing suspend. Only Kueue may write it from then on.
            **({"suspend": True} if request.local_queue else {}),
            **({"managedBy": request.managed_by} if request.managed_by else {}),
            "template": _template(request, owner, settings, labels),
        },
    }


def _pods(request: JobRequest) -> int:
    """How many pods share the work of a preparation or train a point together, by their index."""
    task = request.task
    if isinstance(task, records.PrepareTask):
        return task.pods
    return task.nodes if isinstance(task, records.TrainTask) else 1


def config_map_manifest(request: ConfigMapRequest, owner: Owner) -> Json:
    """The ConfigMap that publishes an answer, for server-side apply."""
    return {
        "apiVersion": CONFIG_MAP.api_version,
        "kind": CONFIG_MAP.kind,
        "metadata": {
            "name": request.name,
            "namespace": owner.namespace,
            "labels": {**MANAGED_BY, LABEL_OWNER_UID: owner.uid},
            "ownerReferences": [owner.reference()],
        },
        "data": dict(request.data),
    }


def _pod_failure_policy() -> Json:
    """Replace interrupted pods without counting a failure; end the Job at once on a final exit code."""
    codes = {"containerName": CONTAINER, "operator": "In"}
    return {
        "rules": [
            {
                "action": "Ignore",
                "onExitCodes": {**codes, "values": [int(records.ExitCode.INTERRUPTED)]},
            },
            # The server's own default, but the schemas of 1.31 to 1.34 require it.
            {
                "action": "Ignore",
                "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}],
            },
            {"action": "FailJob", "onExitCodes": {**codes, "values": sorted(FINAL_EXIT_CODES)}},
        ]
    }


def _queue_labels(request: JobRequest) -> dict[str, str]:
    if not request.local_queue:
        return {}
    queue = {QUEUE_LABEL: request.local_queue}
    return {**queue, PRIORITY_LABEL: request.priority_class} if request.priority_class else queue


def _annotations(owner: Owner) -> dict[str, str]:
    return {OWNER_ANNOTATION: f"{owner.kind.kind}/{owner.name}"}


def _template(
    request: JobRequest, owner: Owner, settings: Settings, labels: Mapping[str, str]
) -> Json:
    container = _default_container(request.kind, request.secret_names, settings)
    grace_seconds = _grace_seconds(request, settings)
    template = _merged(container, grace_seconds, request.pod_templates, settings)
    fixed = _fixed_template(request, owner, labels, grace_of(template))
    template = _with_shared_memory(merge(template, fixed))
    if refused := _pod_problem(template):
        raise BadPodTemplate(refused)
    if settings.enforce_restricted_pods and (
        refused := _security_problem(template, request.pod_templates)
    ):
        raise BadPodTemplate(refused)
    return template


def security_problem(templates: Sequence[Mapping[str, Any]], settings: Settings) -> str:
    """What Pod Security 'restricted' refuses of a trainer's pod with these templates, merged in this order; empty: nothing.

    Raises BadPodTemplate if no pod can be made of them.
    """
    container = _default_container("train", (), settings)
    template = _merged(container, settings.termination_grace_seconds, templates, settings)
    if refused := _pod_problem(template):
        raise BadPodTemplate(refused)
    return _security_problem(template, templates)


def _merged(
    container: Json,
    grace_seconds: int,
    templates: Sequence[Mapping[str, Any]],
    settings: Settings,
) -> Json:
    """The defaults with the operator's own template and these, in this order."""
    template = _default_template(grace_seconds, container)
    for change in (settings.pod_template, *templates):
        template = merge(template, change)
    return template


def _pod_problem(template: Json) -> str:
    return _own_restarts(template) or misplaced_accelerators(template) or malformed_value(template)


def _security_problem(template: Json, own: Sequence[Mapping[str, Any]]) -> str:
    """`own` are the resource's templates among those that were merged."""
    found = violations(template)
    if not found:
        return ""
    return f"podTemplate: not allowed by Pod Security 'restricted': {', '.join(found[:3])}{_misnamed(own)}"


def _own_restarts(template: Json) -> str:
    """Which container restarts by rules of its own; empty: none. Kubernetes 1.35 and newer would restart the trainer in
    place, and neither its exit code nor its message would be seen. A sidecar, an init container that always restarts,
    may."""
    pod = Fields.of(template, "podTemplate").fields("spec")
    for name in ("containers", "initContainers"):
        for container in pod.objects(name):
            if container.has("restartPolicyRules"):
                return f"{container.where('restartPolicyRules')}: must be left out: the exit code of the trainer ends an attempt"
            if not container.has("restartPolicy"):
                continue
            if name == "containers" or container.value("restartPolicy") != "Always":
                return f"{container.where('restartPolicy')}: must be left out: the exit code of the trainer ends an attempt"
    return ""


def _with_shared_memory(template: Json) -> Json:
    """NCCL passes data between the processes of several accelerators through /dev/shm, of which a container has 64 MiB."""
    containers = Fields.of(template, "podTemplate").fields("spec").objects("containers")
    mounts = [mount for each in containers for mount in each.objects("volumeMounts")]
    is_mounted = any(mount.value("mountPath") == SHARED_MEMORY for mount in mounts)
    if is_mounted or accelerators_of(template) < 2:
        return template
    volume = {"name": "shared-memory", "emptyDir": {"medium": "Memory"}}
    mount = {"name": "shared-memory", "mountPath": SHARED_MEMORY}
    trainer = {"name": CONTAINER, "volumeMounts": [mount]}
    merged: Json = merge(template, {"spec": {"volumes": [volume], "containers": [trainer]}})
    return merged


def _misnamed(templates: Sequence[Mapping[str, Any]]) -> str:
    """Advice to whoever names a container that may be meant for the trainer's."""
    names = [
        str(container.value("name"))
        for template in templates
        for container in Fields.of(template, "podTemplate").fields("spec").objects("containers")
    ]
    if not names or CONTAINER in names:
        return ""
    return f". The trainer's container must be named {CONTAINER}: {names[0]} would run as a second container"


def _default_template(grace_seconds: int, container: Json) -> Json:
    """Defaults that a podTemplate may override."""
    return {
        "metadata": {},
        "spec": {
            "automountServiceAccountToken": False,
            "enableServiceLinks": False,
            "terminationGracePeriodSeconds": grace_seconds,
            "securityContext": {
                "runAsNonRoot": True,
                "runAsUser": 1000,
                "runAsGroup": 1000,
                "fsGroup": 1000,
                "seccompProfile": {"type": "RuntimeDefault"},
            },
            "volumes": [
                {"name": "tmp", "emptyDir": {}},
                {"name": "scratch", "emptyDir": {}},
            ],
            "containers": [container],
        },
    }


def _grace_seconds(request: JobRequest, settings: Settings) -> int:
    if not isinstance(request.task, records.TrainTask):
        return settings.termination_grace_seconds
    try:
        counts = parameter_counts(request.task.point.model)
    except UnsupportedModel:
        return settings.termination_grace_seconds
    return default_grace(counts.total, settings.termination_grace_seconds)


def default_grace(parameters: int, least: int) -> int:
    """Seconds enough to finish a micro-batch and write a checkpoint: of a mixture of three billion parameters 48 GB."""
    written = checkpoint_bytes(parameters) / STORE_BYTES_PER_SECOND
    return max(least, math.ceil(needed_grace(written)))


def grace_of(template: Any) -> int | None:
    """Seconds from SIGTERM to SIGKILL that a template gives its pods; None if it does not say. Raises BadPodTemplate."""
    spec = Fields.of(template, "podTemplate").fields("spec")
    value = spec.value("terminationGracePeriodSeconds")
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        where = spec.where("terminationGracePeriodSeconds")
        raise BadPodTemplate(f"{where}: {value!r:.60} is not a number of seconds")
    return value


def _default_container(kind: str, secret_names: Sequence[str], settings: Settings) -> Json:
    policy = settings.image_pull_policy
    secrets = [{"secretRef": {"name": name}} for name in secret_names]
    return {
        "name": CONTAINER,
        "image": settings.trainer_image,
        **({"imagePullPolicy": policy} if policy else {}),
        "command": [*settings.trainer_command, kind],
        **({"envFrom": secrets} if secrets else {}),
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
            "readOnlyRootFilesystem": True,
        },
        "volumeMounts": [
            {"name": "tmp", "mountPath": "/tmp"},
            {"name": "scratch", "mountPath": SCRATCH},
        ],
    }


def _fixed_template(
    request: JobRequest, owner: Owner, labels: Mapping[str, str], grace_seconds: int | None
) -> Json:
    """The contract of operator and trainer, which no podTemplate can override."""
    return {
        "metadata": {"labels": dict(labels), "annotations": _annotations(owner)},
        "spec": {
            "restartPolicy": "Never",
            "containers": [
                {
                    "name": CONTAINER,
                    "terminationMessagePath": TERMINATION_LOG,
                    "terminationMessagePolicy": "FallbackToLogsOnError",
                    "env": [
                        {"name": records.TASK_VARIABLE, "value": task_text(request)},
                        {"name": records.SCRATCH_VARIABLE, "value": SCRATCH},
                        {"name": records.TERMINATION_VARIABLE, "value": TERMINATION_LOG},
                        {"name": records.GRACE_VARIABLE, "value": str(grace_seconds or 0)},
                        *_address(request),
                    ],
                }
            ],
        },
    }


def _address(request: JobRequest) -> list[Json]:
    """By which the pods of a point find one another."""
    if request.kind != "train" or _pods(request) == 1:
        return []
    return [
        {
            "name": records.POD_ADDRESS_VARIABLE,
            "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}},
        }
    ]


def task_text(request: JobRequest) -> str:
    """The task as JSON. Raises BadPodTemplate if it is too long for Linux to start the process.

    Settings at their defaults are left out: a trainer image without them, which refuses what it does not know, takes the task.
    """
    task = request.task
    stated = {
        name
        for name, setting in type(task).model_fields.items()
        if name == "kind" or getattr(task, name) != setting.default
    }
    text = task.model_dump_json(include=stated)
    if len(text.encode()) > MAX_TASK_BYTES:
        raise BadPodTemplate(
            f"{request.name}: the task has {len(text.encode())} bytes, at most {MAX_TASK_BYTES} fit "
            "into a pod's environment; shorten model.config or the list of domains"
        )
    return json.dumps(json.loads(text), separators=(",", ":"), sort_keys=True)
