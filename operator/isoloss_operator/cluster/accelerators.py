"""Accelerators that a pod asks for. Pure."""

from __future__ import annotations

import re
from typing import Any

from kubernetes.utils.quantity import parse_quantity

from isoloss_operator.cluster.template_fields import BadPodTemplate, Fields

ACCELERATOR = re.compile(r"gpu|/(mig-|tpu|neuron|gaudi|npu|ascend)")
"""Names of device plugins' resources: nvidia.com/gpu, amd.com/gpu, gpu.intel.com/i915, google.com/tpu, …"""
MOST_DEVICES = 2**20
"""More than any node has."""


def accelerators_of(template: Any) -> int:
    """What a pod of this template holds; 1 if it asks for none. Raises BadPodTemplate."""
    count = 0
    for container in Fields.of(template, "podTemplate").fields("spec").objects("containers"):
        limits = container.fields("resources").fields("limits")
        names = (name for name in limits.values if ACCELERATOR.search(name.lower()))
        count += sum(_number(limits, name) for name in names)
    return max(1, count)


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
