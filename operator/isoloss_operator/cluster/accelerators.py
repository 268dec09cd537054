"""Accelerators that a pod of the trainer asks for. Pure."""

from __future__ import annotations

import re
from typing import Any

from kubernetes.utils.quantity import parse_quantity

from isoloss_operator.cluster.template_fields import BadPodTemplate, Fields

CONTAINER = "trainer"
ACCELERATOR = re.compile(r"^[^/]*gpu[^/]*/.|/(.*gpu|mig-|tpu|neuron|gaudi|npu|ascend)")
"""Names of device plugins' resources: nvidia.com/gpu, amd.com/gpu, gpu.intel.com/i915, google.com/tpu, … All have a domain:
Kubernetes takes no other name for what it does not know itself."""
MOST_DEVICES = 2**20
"""More than any node has."""


def accelerators_of(template: Any) -> int:
    """What the container `trainer` of this template holds; 1 if it asks for none. Raises BadPodTemplate."""
    return max(1, _by_container(template).get(CONTAINER, 0))


def misplaced_accelerators(template: Any) -> str:
    """Why the accelerators of this template would not be the trainer's; empty: they are. Raises BadPodTemplate."""
    counts = _by_container(template)
    if counts.get(CONTAINER):
        return ""
    return next(
        (
            f"podTemplate.spec.containers[{name}]: asks for {count} accelerators, and the container {CONTAINER}, which is the one "
            f"that trains, for none: name it {CONTAINER}"
            for name, count in counts.items()
            if count
        ),
        "",
    )


def _by_container(template: Any) -> dict[str, int]:
    counts = {}
    for container in Fields.of(template, "podTemplate").fields("spec").objects("containers"):
        limits = container.fields("resources").fields("limits")
        names = (name for name in limits.values if ACCELERATOR.search(name.lower()))
        counts[str(container.value("name"))] = sum(_number(limits, name) for name in names)
    return counts


def _number(limits: Fields, name: str) -> int:
    value = limits.value(name)
    try:
        number = parse_quantity(value)
        # Before it is an integer: all digits of 1e1000000 take 46 s, in which no other thread runs.
        is_possible = 0 <= number <= MOST_DEVICES
    except (ValueError, ArithmeticError) as error:
        raise BadPodTemplate(f"{limits.where(name)}: {value!r:.60} is not a quantity") from error
    if not is_possible:
        raise BadPodTemplate(
            f"{limits.where(name)}: {value!r:.60} is not a number of devices, 0 to {MOST_DEVICES}"
        )
    return int(number)
