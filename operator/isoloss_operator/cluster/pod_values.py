"""Values in a pod template that the API server would refuse of every pod: quantities, labels and tolerations. Pure.

The resources keep templates without a schema, so that nothing else reads them before a Job is created.
"""

import difflib
import re
from collections.abc import Iterator
from typing import Any

from isoloss_operator.cluster.template_fields import Fields

QUANTITY = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+|[numkMGTPE]|[KMGTPE]i)?")
"""The grammar of apimachinery's resource.Quantity."""
LABEL_VALUE = re.compile(r"([A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?)?")
WHOLE, RESOURCES = "metadata spec", "limits requests claims"
POD = (
    "activeDeadlineSeconds affinity automountServiceAccountToken containers dnsConfig dnsPolicy enableServiceLinks ephemeralContainers evictionResponders "
    "hostAliases hostIPC hostNetwork hostPID hostUsers hostname hostnameOverride imagePullSecrets initContainers nodeName nodeSelector "
    "os overhead preemptionPolicy priority priorityClassName readinessGates resourceClaims resources restartPolicy runtimeClassName "
    "schedulerName schedulingGates schedulingGroup securityContext serviceAccount serviceAccountName setHostnameAsFQDN shareProcessNamespace "
    "subdomain terminationGracePeriodSeconds tolerations topologySpreadConstraints volumes workloadRef"
)
CONTAINER = (
    "args command env envFrom image imagePullPolicy lifecycle livenessProbe name ports readinessProbe resizePolicy resources "
    "restartPolicy restartPolicyRules securityContext startupProbe stdin stdinOnce terminationMessagePath terminationMessagePolicy "
    "tty volumeDevices volumeMounts workingDir"
)
"""Fields of Kubernetes 1.37."""
TOLERATION = {
    "operator": ("Exists", "Equal", "Lt", "Gt"),
    "effect": ("NoSchedule", "PreferNoSchedule", "NoExecute"),
}


def malformed_value(template: Any) -> str:
    """The first such value with its place and what to write; empty: there is none. Raises BadPodTemplate."""
    whole = Fields.of(template, "podTemplate")
    pod = whole.fields("spec")
    labels = (whole.fields("metadata").fields("labels"), pod.fields("nodeSelector"))
    found = (*_misspelt(whole, pod), *_quantities(pod), *_labels(labels), *_tolerations(pod))
    return next(iter(found), "")


def _containers(pod: Fields) -> tuple[Fields, ...]:
    return (*pod.objects("containers"), *pod.objects("initContainers"))


def _misspelt(whole: Fields, pod: Fields) -> Iterator[str]:
    """Fields that look like one of Kubernetes: others may be of a newer one, and the API server decides."""
    objects = [(whole, WHOLE), (pod, POD)]
    for container in _containers(pod):
        objects += [(container, CONTAINER), (container.fields("resources"), RESOURCES)]
    for fields, known in objects:
        names = known.split()
        # Only what is not known is compared: each Job comes by here, and comparing all was most of what making it took.
        for name in fields.values:
            if name in names:
                continue
            if close := difflib.get_close_matches(name, names, n=1, cutoff=0.8):
                yield f"{fields.where(name)}: is not a field: did you mean {close[0]}?"


def _quantities(pod: Fields) -> Iterator[str]:
    for container in _containers(pod):
        for kind in ("limits", "requests"):
            resources = container.fields("resources").fields(kind)
            for name in resources.values:
                given = str(resources.value(name))
                if not QUANTITY.fullmatch(given):
                    digits = re.match(r"[\d.]*", given)
                    number = (digits[0] if digits else "") or "16"
                    instead = f"{number}Gi or {number}G" if name != "cpu" else "2 or 500m"
                    yield f"{resources.where(name)}: {given!r:.60} is not a quantity: write {instead}"


def _labels(maps: tuple[Fields, ...]) -> Iterator[str]:
    for labels in maps:
        for name in labels.values:
            given = labels.value(name)
            if given is not None and not isinstance(given, str):
                yield f"{labels.where(name)}: {given!r} is not text: put it into quotes"
            elif given is not None and not LABEL_VALUE.fullmatch(given):
                yield (
                    f"{labels.where(name)}: {given!r:.80} must be at most 63 letters, digits, -, _ and ., with a letter or "
                    "digit at both ends"
                )


def _tolerations(pod: Fields) -> Iterator[str]:
    for toleration in pod.objects("tolerations"):
        for field, known in TOLERATION.items():
            given = toleration.value(field)
            if given and given not in known:
                yield f"{toleration.where(field)}: {given!r:.60} must be {', '.join(known[:-1])} or {known[-1]}"
