"""Accelerators that a pod of the trainer asks for. Pure."""

import difflib
import re
from typing import Any

from kubernetes.utils.quantity import parse_quantity

from isoloss_operator.cluster.template_fields import BadPodTemplate, Fields

CONTAINER = "trainer"
ACCELERATOR = re.compile(r"^[^/]*gpu[^/]*/.|/(.*gpu|mig-|tpu|neuron|gaudi|npu|ascend)")
"""Names of device plugins' resources: nvidia.com/gpu, amd.com/gpu, gpu.intel.com/i915, google.com/tpu, … All have a domain:
Kubernetes takes no other name for what it does not know itself."""
SHARE = re.compile(r"mem|(?<!neuron)core|percent|ratio|priority|monitor|tile")
"""In names beside those of devices: how much of its devices' memory and time a pod gets, as nvidia.com/gpumem of HAMi,
koordinator.sh/gpu-memory and gpu.intel.com/millicores."""
OWN_RESOURCES = ("cpu", "memory", "ephemeral-storage")
"""Of Kubernetes itself, which need none, as hugepages-SIZE."""
MOST_DEVICES = 2**20
"""More than any node has."""


def accelerators_of(template: Any) -> int:
    """What the container `trainer` of this template holds; 1 if it asks for none. Raises BadPodTemplate."""
    return max(1, _by_container(template).get(CONTAINER, 0))


def misplaced_accelerators(template: Any) -> str:
    """Why the accelerators of this template would not be the trainer's; empty: they are. Raises BadPodTemplate."""
    asked = (*_resources(template, "limits").values(), *_resources(template, "requests").values())
    for limits in asked:
        for name in limits.values:
            if "/" not in name and name not in OWN_RESOURCES and not name.startswith("hugepages-"):
                close = difflib.get_close_matches(name, OWN_RESOURCES, n=1)
                remedy = (
                    f"did you mean {close[0]}?"
                    if close and "gpu" not in name
                    else "write it with its domain, as in nvidia.com/gpu"
                )
                return f"{limits.where(name)}: Kubernetes knows no such resource: {remedy}"
    counts = _by_container(template)
    if counts.get(CONTAINER):
        return ""
    return next(
        (
            f"podTemplate.spec.containers[{name}]: requests {count} accelerators, but the container {CONTAINER}, which trains, "
            f"requests none: name it {CONTAINER}"
            for name, count in counts.items()
            if count
        ),
        "",
    )


def _by_container(template: Any) -> dict[str, int]:
    return {
        container: sum(_number(limits, name) for name in limits.values if _is_device(name.lower()))
        for container, limits in _resources(template, "limits").items()
    }


def _is_device(name: str) -> bool:
    return bool(ACCELERATOR.search(name)) and not SHARE.search(name.partition("/")[2])


def _resources(template: Any, kind: str) -> dict[str, Fields]:
    """Limits or requests, by the container's name."""
    containers = Fields.of(template, "podTemplate").fields("spec").objects("containers")
    return {str(each.value("name")): each.fields("resources").fields(kind) for each in containers}


def _number(limits: Fields, name: str) -> int:
    value = limits.value(name)
    try:
        number = parse_quantity(value)
        # Before it is an integer: all digits of 1e1000000 take 46 s, in which no other thread runs.
        is_possible = 0 <= number <= MOST_DEVICES
    except (ValueError, ArithmeticError) as error:
        raise BadPodTemplate(f"{limits.where(name)}: {value!r:.60} is not a quantity") from error
    if not is_possible or number % 1:
        raise BadPodTemplate(
            f"{limits.where(name)}: {value!r:.60} is not a whole number of devices, 0 to {MOST_DEVICES}"
        )
    return int(number)
