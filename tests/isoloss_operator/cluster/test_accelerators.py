"""Accelerators that a pod asks for."""

from typing import Any

import pytest

from isoloss_operator.cluster.accelerators import accelerators_of, misplaced_accelerators
from isoloss_operator.cluster.template_fields import BadPodTemplate


def template(limits: dict[str, Any] | None = None, **others: dict[str, Any]) -> dict[str, Any]:
    """With limits of the trainer, and of other containers by name."""
    asked = ({} if limits is None else {"trainer": limits}) | others
    containers = [{"name": name, "resources": {"limits": each}} for name, each in asked.items()]
    return {"spec": {"containers": containers}}


COUNTED: dict[str, tuple[dict[str, Any], int]] = {
    "an empty template": ({}, 1),
    "no container": (template(), 1),
    "no accelerator": (template({"cpu": "8", "rdma/hca": "1"}), 1),
    "a number": (template({"nvidia.com/gpu": 8}), 8),
    "a quantity": (template({"google.com/tpu": "4"}), 4),
    "another vendor": (template({"gpu.intel.com/i915": "1"}), 1),
    "a slice": (template({"nvidia.com/mig-3g.40gb": "1"}), 1),
    "a sidecar's are its own": (template({"amd.com/gpu": 2}, decoder={"amd.com/gpu": 1}), 2),
    "a name without a domain": (template({"gpu": 8}), 1),
    "shared": (template({"example.com/vgpu": 2}), 2),
    "what a share of a device has": (
        template({"nvidia.com/gpu": 2, "nvidia.com/gpumem": 3000, "nvidia.com/gpucores": 30}),
        2,
    ),
    "a share alone": (template({"koordinator.sh/gpu-memory": "16Gi"}), 1),
    "cores that are devices": (template({"aws.amazon.com/neuroncore": 4}), 4),
    "another container": (template(decoder={"cpu": 8}), 1),
}


@pytest.mark.parametrize(("asked", "count"), COUNTED.values(), ids=COUNTED)
def test_accelerators_are_the_limits_of_device_plugins(asked: dict[str, Any], count: int) -> None:
    assert accelerators_of(asked) == count


REFUSED: dict[str, dict[str, Any]] = {
    "spec.containers: must be a list": {"spec": {"containers": 7}},
    r"containers\[0\]: must be an object": {"spec": {"containers": [7]}},
    r"containers\[trainer\].resources: must be an object": {
        "spec": {"containers": [{"name": "trainer", "resources": "x"}]}
    },
    r"containers\[trainer\].resources.limits.nvidia.com/gpu: 'many' is not a quantity": template(
        {"nvidia.com/gpu": "many"}
    ),
    "limits.nvidia.com/gpu: None is not a quantity": template({"nvidia.com/gpu": None}),
    **{
        f"limits.nvidia.com/gpu: '{quantity}' is not a ": template({"nvidia.com/gpu": quantity})
        for quantity in ("1e1000000", "1e999999999999", "-1", "Infinity", "NaN", "sNaN")
    },
}


@pytest.mark.parametrize("message", REFUSED)
def test_a_template_that_cannot_be_read_is_refused_by_its_field(message: str) -> None:
    with pytest.raises(BadPodTemplate, match=message):
        accelerators_of(REFUSED[message])


def test_accelerators_of_another_container_alone_are_misplaced() -> None:
    asked = template(main={"nvidia.com/gpu": 8})
    assert accelerators_of(asked) == 1
    found = misplaced_accelerators(asked)
    assert "containers[main]: requests 8 accelerators" in found
    assert found.endswith("name it trainer")
    assert not misplaced_accelerators(template({"nvidia.com/gpu": 1}, decoder={"amd.com/gpu": 1}))
    assert not misplaced_accelerators(template({}, decoder={"cpu": 1}))
