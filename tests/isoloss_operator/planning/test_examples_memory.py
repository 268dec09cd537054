"""The example sweeps give their pods the host memory that `isoloss plan` says they take."""

from pathlib import Path
from typing import Any

import pytest
import yaml
from kubernetes.utils.quantity import parse_quantity

from isoloss_operator.cluster.pod_templates import merge
from isoloss_operator.commands.costs import planned
from isoloss_operator.planning.specs import parse_sweep_spec

EXAMPLES = Path(__file__).parents[3] / "crds" / "examples"


@pytest.mark.parametrize("name", ["dense-sweep", "first-sweep", "moe-sweep", "search-sweep"])
def test_an_examples_limit_holds_what_training_and_resuming_take(name: str) -> None:
    spec = parse_sweep_spec(yaml.safe_load((EXAMPLES / f"{name}.yaml").read_text())["spec"])
    for size in planned(spec).sizes:
        (own,) = (proxy.pod_template for proxy in spec.proxies if proxy.name == size.name)
        template: dict[str, Any] = merge(spec.pod_template or {}, own or {})
        (container,) = template["spec"]["containers"]
        limit = parse_quantity(container["resources"]["limits"]["memory"])
        needed = max(size.memory.host_build, *size.memory.host_train)
        assert needed <= limit <= 3 * needed, size.name
