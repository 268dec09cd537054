"""What a tenant puts into a store of its own against the operator that serves other namespaces, too.

Each object is the largest that its limit lets through and costs its own sweep alone: a neighbour's comes to its end
with the same process, which never loses its lease.
"""

import json
from typing import Any

import pytest

from devcluster.process_node import ProcessNode
from isoloss_contract import layout
from isoloss_operator.planning.points import prepare_config
from isoloss_operator.planning.specs import parse_sweep_spec
from tests.hostile.neighbour import Neighbour, planned, prepared
from tests.isoloss_operator.conftest import Place, sweep
from tests.support.hostile_objects import hostile
from tests.support.operator_process import OperatorProcess, User
from tests.support.published_configs import TOY_CHECKPOINT

pytestmark = [pytest.mark.cluster, pytest.mark.s3]

Json = dict[str, Any]
WORST = (
    ("manifest", "bad items"),
    ("corpus", "unknown fields"),
    ("result", "bad members"),
    ("ledger head", "bad items"),
    ("laws", "bad items"),
    ("fit", "bad items"),
    ("fit", "nested"),
)
"""Kinds, and what is wrong with them. What any other costs a process is bounded in store/test_hostile_objects."""
CONFIGS: dict[str, str] = {
    "16,384 heads": json.dumps({**TOY_CHECKPOINT, "num_attention_heads": 16_384}),
    "minus one head": json.dumps({**TOY_CHECKPOINT, "num_attention_heads": -1}),
    "a size of 1e308": json.dumps({**TOY_CHECKPOINT, "hidden_size": 1e308}),
    "a size that is no number": json.dumps({**TOY_CHECKPOINT, "hidden_size": float("nan")}),
    "a size of 4,000 digits": json.dumps({**TOY_CHECKPOINT, "hidden_size": 10**4000}),
    "half a character": json.dumps({**TOY_CHECKPOINT, "model_type": "\ud800"}),
    "nested": '{"a":' * 20_000,
    "one key many times": "{" + '"hidden_size":1,' * 40_000 + '"model_type":"llama"}',
}
"""config.json of a checkpoint that a size continues."""


def paths(kind: str, spec: Json, uid: str, folder: str) -> list[str]:
    """Where the operator looks for it; `uid` and `folder` are the sweep's."""
    if kind == "result":
        return [layout.point_result(point.key) for point in planned(spec)]
    if kind == "manifest":
        return [layout.data_manifest(prepare_config(parse_sweep_spec(spec)).key)]
    if kind == "corpus":
        return [layout.corpus_of(prepare_config(parse_sweep_spec(spec)).key, uid)]
    named = {
        "ledger head": layout.ledger_in(folder),
        "laws": layout.laws_in(folder),
        "fit": layout.fit_in(folder),
    }
    return [named[kind]]


def attack(tenant: User, place: Place, number: int, kind: str, what: str) -> None:
    """A sweep whose pods never start, and what its store holds against the operator."""
    name = f"object-{number}"
    body = tenants_sweep(place, name)
    body["spec"]["suspend"] = True
    made = tenant.apply_sweep(body)
    uid = made["metadata"]["uid"]
    store = prepared(place, name, body["spec"], "" if kind == "corpus" else uid)
    for path in paths(kind, body["spec"], uid, layout.sweep_folder(name, uid)):
        store.write(path, hostile(kind)[what]())
    tenant.apply_sweep(tenants_sweep(place, name))


def named(place: Place, name: str, store: str, **spec: Any) -> Json:
    body = sweep(place, **spec)
    body["metadata"]["name"] = name
    body["spec"]["storage"]["uri"] = f"s3://{place.bucket}/{store}"
    return body


def tenants_sweep(place: Place, name: str) -> Json:
    body = named(place, name, name, parallelism=1)
    body["spec"]["podTemplate"]["spec"]["nodeSelector"] = {"nowhere": "true"}
    return body


def continued(tenant: User, place: Place, number: int, text: str) -> None:
    """A sweep of a size that continues a checkpoint with this config.json."""
    name = f"continued-{number}"
    folder = place.storage.buckets / place.bucket / name / "checkpoint"
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(text)
    (folder / "model.safetensors").write_text("weights")
    body = tenants_sweep(place, name)
    checkpoint = {"uri": f"s3://{place.bucket}/{name}/checkpoint"}
    body["spec"]["proxies"] = [
        {"name": "continued", "checkpoint": checkpoint, "tokens": 4_000_000}
    ]
    tenant.apply_sweep(body)


def answered(tenant: User, name: str) -> str:
    """The reason of Ready once the operator has looked at the sweep as it is now; never its own failure."""
    body = tenant.wait_for(lambda: tenant.sweep(name), "Ready", "False")
    reason = next(c["reason"] for c in body["status"]["conditions"] if c["type"] == "Ready")
    assert reason not in ("InternalError", "StorageUnreachable"), (name, body["status"])
    return str(reason)


def test_no_object_in_a_tenants_store_takes_the_operator_from_its_neighbours(
    limited: OperatorProcess, user: User, tenant: User, node: ProcessNode, place: Place
) -> None:
    with Neighbour(user, limited, place) as neighbour:
        for number, (kind, what) in enumerate(WORST):
            attack(tenant, place, number, kind, what)
        for number, text in enumerate(CONFIGS.values()):
            continued(tenant, place, number, text)
        for number, _ in enumerate(WORST):
            answered(tenant, f"object-{number}")
        message = {what: answered(tenant, f"continued-{n}") for n, what in enumerate(CONFIGS)}
        assert {reason for reason in message.values() if reason != "InvalidSpec"} == set(), message
        neighbour.judge()
