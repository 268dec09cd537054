"""Accelerators that a pod asks for. Pure."""

from __future__ import annotations

import re
from typing import Any

from kubernetes.utils.quantity import parse_quantity

from isoloss_operator.cluster.template_fields import BadPodTemplate, Fields

ACCELERATOR = re.compile(r"gpu|/(mig-|tpu|neuron|gaudi|npu|ascend)")
"""Names of device plugins' resources: nvidia.com/gpu, amd.com/gpu, gpu.intel.com/i915, google.com/tpu, …"""


def accelerators_of(template: Any) -> int:
    """What a pod of this template holds; 1 if it asks for none. Raises BadPodTemplate."""
    count = 0
    for container in Fields.of(template, "podTemplate").fields("spec").objects("containers"):
        limits = container.fields("resources").fields("limits")
        names = (name for name in limits.values if ACCELERATOR.search(name.lower()))
        count += sum(_number(limits, name) for name in names)
    return max(1, count)


def _number(limits: Fields, name: str) -> int:
    try:
        return int(parse_quantity(limits.value(name)))
    except ValueError as error:
        value = limits.value(name)
        raise BadPodTemplate(f"{limits.where(name)}: {value!r} is not a quantity") from error
