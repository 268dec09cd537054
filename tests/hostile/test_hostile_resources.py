"""What a tenant who may create sweeps tries against the operator that serves other namespaces, too.

The operator runs with the memory limit of the chart. Each attempt ends in a condition of the tenant's own object, and
a neighbour's sweep, begun before the attempts, comes to its end with the same process.
"""

import json
from collections.abc import Callable
from typing import Any

import pytest

from devcluster.control_plane import ControlPlane
from devcluster.process_node import ProcessNode
from tests.hostile.neighbour import Neighbour
from tests.isoloss_operator.conftest import Place, sweep
from tests.support.cluster import Kubectl, wait_until
from tests.support.operator_process import OperatorProcess, User

pytestmark = [pytest.mark.cluster, pytest.mark.s3]

Json = dict[str, Any]


def nested(depth: int) -> str:
    """As a text in place of DEEP: nothing here walks it by recursion."""
    return '{"a":' * depth + "{}" + "}" * depth


def deep_template(depth: int) -> Callable[[Json], str]:
    def change(spec: Json) -> str:
        spec["podTemplate"]["spec"]["deep"] = "DEEP"
        return nested(depth)

    return change


def huge_model(deep: int = 0, **config: Any) -> Callable[[Json], str]:
    def change(spec: Json) -> str:
        model = {
            "model_type": "llama",
            "vocab_size": 1024,
            "hidden_size": 64,
            "intermediate_size": 96,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "num_key_value_heads": 4,
            "max_position_embeddings": 128,
            **config,
        }
        spec["proxies"] = [{"name": "huge", "model": {"config": model}, "tokens": 4_000_000}]
        return nested(deep)

    return change


def longest_uri(spec: Json) -> str:
    spec["storage"]["uri"] += "/" + "é" * ((512 - len(spec["storage"]["uri"]) - 1) // 2)
    return "{}"


def every_environment_variable(spec: Json) -> str:
    container = spec["podTemplate"]["spec"]["containers"][0]
    container["env"] = [{"name": f"V{n}", "value": "\u202e\u0001" * 20} for n in range(3000)]
    return "{}"


ATTEMPTS: dict[str, Callable[[Json], str]] = {
    "a pod template nested 1,500 levels deep": deep_template(1500),
    "a pod template as deep as the API server takes": deep_template(9900),
    "a pod template just too deep": deep_template(110),
    "four hundred million layers": huge_model(num_hidden_layers=400_000_000),
    "a number beyond every count": huge_model(hidden_size=10**18),
    "a URI of as many bytes as may be": longest_uri,
    "3,000 environment variables of control characters": every_environment_variable,
    "a model setting of 200 kB": huge_model(rope_scaling="\u202e\u0001x" * 40_000),
    "a model setting nested 2,000 levels deep": huge_model(2000, rope_scaling="DEEP"),
}


def test_no_resource_of_a_tenant_takes_the_operator_from_its_neighbours(
    control_plane: ControlPlane,
    limited: OperatorProcess,
    user: User,
    tenant: User,
    node: ProcessNode,
    place: Place,
) -> None:
    kubectl = Kubectl(control_plane)
    with Neighbour(user, limited, place) as neighbour:
        for number, change in enumerate(ATTEMPTS.values()):
            manifest = sweep(place)
            manifest["metadata"] = {"name": f"attempt-{number}", "namespace": tenant.namespace}
            manifest["spec"]["storage"]["uri"] = f"{place.uri}-{number}"
            manifest["spec"]["suspend"] = True  # its pods are nothing to learn from
            deep = change(manifest["spec"])
            text = json.dumps(manifest).replace('"DEEP"', deep)
            created = kubectl("create", "--validate=false", "-f", "-", stdin=text)
            assert created.returncode == 0, created.stderr
        refused = {name: accepted(kubectl, tenant, number) for number, name in enumerate(ATTEMPTS)}
        neighbour.judge()

    reported = {
        name: message["message"]
        for name, message in refused.items()
        if message["status"] == "False"
    }
    assert "spec: is nested more than 100 levels deep" in reported["a pod template just too deep"]
    for name in ATTEMPTS:
        if "levels deep" in name or "as deep" in name:
            assert "deep" in reported[name]
    assert "hidden_size" in reported["a number beyond every count"]

    limited.kill()
    limited.start()
    limited.url()
    again = sweep(place)
    again["metadata"]["name"] = "after-a-restart"
    user.create_sweep(again)
    user.wait_for(lambda: user.sweep("after-a-restart"), "Progressing", "False", "Finished")


def accepted(kubectl: Kubectl, tenant: User, number: int) -> Json:
    """The condition Accepted of an attempt. kubectl reads what this process cannot."""
    path = "jsonpath={.status.conditions}"
    found: dict[str, Json] = {}

    def is_reported() -> bool:
        read = kubectl(
            "get", "scalingsweep", f"attempt-{number}", "-n", tenant.namespace, "-o", path
        )
        conditions = json.loads(read.stdout or "[]")
        found.update({each["type"]: each for each in conditions})
        return "Accepted" in found and found["Accepted"]["status"] != "Unknown"

    wait_until(is_reported, f"attempt {number} to be answered", 90)
    return found["Accepted"]
