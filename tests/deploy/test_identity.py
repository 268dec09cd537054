"""Which fields of a sweep may be edited, asked of a real API server for every field of the spec."""

import copy
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from kubernetes import client

from isoloss_operator.api import GROUP, SWEEP_PLURAL, VERSION
from isoloss_operator.api.fields import IDENTITY
from isoloss_operator.generate.crdgen import definitions
from tests.support.crds import create
from tests.support.models import example_model
from tests.support.refused_manifests import ABSENT, grid, sweep

pytestmark = pytest.mark.cluster
NAME = f"identity-{secrets.token_hex(4)}"

TEMPLATE = {"metadata": {"labels": {"a": "b"}, "annotations": {"c": "d"}}, "spec": {"priority": 1}}
CONFIG = {"model_type": "llama", "hidden_size": 64, "num_hidden_layers": 2}
COMPLETE = sweep(
    {
        "suspend": False,
        "storage.secretName": "s3",
        "data.domains.0.textField": "text",
        "data.badDocuments": "Skip",
        "data.validation": {"documentsPerThousand": 5, "sequencesPerDomain": 64},
        "data.podTemplate": TEMPLATE,
        "proxies": [
            {
                "name": "small",
                "model": {"config": example_model("dense-tiny")},
                "tokens": 1_000_000,
            },
            {"name": "large", "model": {"config": CONFIG}, "tokens": 2_000_000},
        ],
        "proxies.0.grid": grid(3, 3),
        "proxies.0.nodes": 2,
        "proxies.0.podTemplate": TEMPLATE,
        "optimizer.warmupTokens": 1000,
        "fit.irreducibleLoss": "1.69",
        "search.target": {"parameters": 10**10, "tokens": 10**12},
        "budget": {"flops": "1e20", "acceleratorHours": 100},
        "failurePolicy": {"stallSeconds": 600, "attemptDeadlineSeconds": 7200},
        "queue": {"localQueueName": "research", "workloadPriorityClassName": "low"},
        "podTemplate": TEMPLATE,
    }
)
"""Every field is set."""

IMMUTABLE: dict[str, Any] = {
    "storage.uri": "s3://bucket/other",
    "data.tokenizer": "s3://bucket/other",
    "data.sequenceLength": 64,
    "data.domains.0.name": "other",
    "data.domains.0.uri": "s3://bucket/other/*.parquet",
    "data.domains.0.textField": "content",
    "data.domains.0.weight": 7,
    "data.badDocuments": "Refuse",
    "data.validation.documentsPerThousand": 6,
    "data.validation.sequencesPerDomain": 65,
    "proxies.1.model.config.model_type": "mistral",
    "optimizer.beta1": "0.8",
    "optimizer.beta2": "0.95",
    "optimizer.epsilon": "1e-9",
    "optimizer.weightDecay": "0.1",
    "optimizer.gradientClip": "2.0",
    "optimizer.warmupTokens": 2000,
    "optimizer.secondMomentTokens": 1_000_000,
    "optimizer.weightDecayTokens": 1_000_000_000,
    "optimizer.zLoss": "1e-4",
    "evaluation.firstTokens": 20_000,
    "evaluation.perDecade": 12,
    "evaluation.averagingTokens": 5000,
    "training.precision": "Float32",
    "training.seed": 1,
}
EDITABLE: dict[str, Any] = {
    "suspend": True,
    "storage.secretName": "other",
    "data.parallelism": 4,
    "data.podTemplate.metadata.labels": {"a": "c"},
    "data.podTemplate.metadata.annotations": {"c": "e"},
    "data.podTemplate.spec": {"priority": 2},
    "proxies.0.name": "tiny",
    "proxies.0.tokens": 3_000_000,
    "proxies.0.grid.batchSizes": [2, 4, 8],
    "proxies.0.grid.learningRates": ["1e-3", "2e-3", "4e-3"],
    "proxies.0.nodes": 3,
    "proxies.0.podTemplate.metadata.labels": {"a": "c"},
    "proxies.0.podTemplate.metadata.annotations": {"c": "e"},
    "proxies.0.podTemplate.spec": {"priority": 2},
    "grid.batchSizes": [2, 4, 8, 16],
    "grid.learningRates": ["1e-3", "2e-3", "4e-3"],
    "design": "Unchecked",
    "training.additionalSeeds": [1, 2],
    "training.checkpointSeconds": 60,
    "training.preemptionsPerDay": 6,
    "training.deterministic": True,
    "training.releaseCheckpoints": True,
    "fit.weights": "Raw",
    "fit.irreducibleLoss": "1.7",
    "fit.form": "LinearInLogCompute",
    "parallelism": 9,
    "search.extendGrid.maxPoints": 3,
    "search.target.parameters": 10**9,
    "search.target.tokens": 10**11,
    "search.placement.lines": 5,
    "search.placement.learningRateFactor": "3",
    "search.placement.batchSizeFactor": "4",
    "budget.flops": "2e20",
    "budget.acceleratorHours": 200,
    "failurePolicy.retriesPerPoint": 1,
    "failurePolicy.maxFailedPoints": 1,
    "failurePolicy.stallSeconds": 900,
    "failurePolicy.attemptDeadlineSeconds": 3600,
    "jobs.ttlSecondsAfterFinished.succeeded": 0,
    "jobs.ttlSecondsAfterFinished.failed": 0,
    "queue.localQueueName": "other",
    "queue.workloadPriorityClassName": "high",
    "queue.managedBy": "kueue.x-k8s.io/multikueue",
    "podTemplate.metadata.labels": {"a": "c"},
    "podTemplate.metadata.annotations": {"c": "e"},
    "podTemplate.spec": {"priority": 2},
}
EDITABLE_ELSEWHERE: dict[str, tuple[dict[str, Any], Any]] = {
    "search.strategy": ({}, "Sequential"),
}
"""Fields with a value that this sweep is refused: what it is to be changed by for them, and the value."""
FIXED = {
    "optimizer.schedule": "Constant is the only value",
    "proxies.1.checkpoint.uri": "in place of a model: tests/support/refused_manifests.py",
    "proxies.1.checkpoint.secretName": "the same",
    "proxies.1.grid.around.prediction": "in place of lines, and of a checkpoint alone",
    "proxies.1.grid.around.factor": "the same",
}
"""Fields without a second value."""

IMMUTABLE_EDITS = {
    **{path: {path: value} for path, value in IMMUTABLE.items()},
    "a key of a model's config": {"proxies.1.model.config.hidden_size": 128},
    "a key added to a model's config": {"proxies.1.model.config.num_attention_heads": 4},
    "a key dropped from a model's config": {"proxies.1.model.config.hidden_size": ABSENT},
    "a model of another kind": {"proxies.1.model": {"config": example_model("dense-small")}},
    "an optimizer left out": {"optimizer": ABSENT},
    "a validation left out": {"data.validation": ABSENT},
    "domains in another order": {"data.domains": COMPLETE["spec"]["data"]["domains"][::-1]},
    "a domain fewer": {"data.domains": COMPLETE["spec"]["data"]["domains"][:1]},
}
EDITS = {
    **{path: {path: value} for path, value in EDITABLE.items()},
    "a proxy fewer": {"proxies": COMPLETE["spec"]["proxies"][:1], "design": "Unchecked"},
    "proxies in another order": {"proxies": COMPLETE["spec"]["proxies"][::-1]},
    "a proxy more": {
        "proxies": [
            *COMPLETE["spec"]["proxies"],
            {
                "name": "new",
                "model": {"config": example_model("dense-small")},
                "tokens": 3_000_000,
            },
        ]
    },
    "a proxy without its grid": {"proxies.0.grid": ABSENT},
    "no Secret": {"storage.secretName": ABSENT},
    "no queue": {"queue": ABSENT},
    "no budget": {"budget": ABSENT},
    "no pod template": {"podTemplate": ABSENT},
    "no pod template for the preparation": {"data.podTemplate": ABSENT},
    "a free irreducible loss": {"fit.irreducibleLoss": ABSENT},
    "defaults left out": {"training": ABSENT, "failurePolicy": ABSENT, "jobs": ABSENT},
}


def leaves(schema: dict[str, Any], path: str) -> Iterator[str]:
    """Paths of the fields that hold values, list items as `[]`."""
    inner = schema.get("items", schema)
    if "properties" not in inner:
        yield path
        return
    here = f"{path}[]" if "items" in schema else path
    for name, child in inner["properties"].items():
        yield from leaves(child, f"{here}.{name}".lstrip("."))


def without_numbers(path: str) -> str:
    return "".join("[]" if part.isdigit() else f".{part}" for part in path.split(".")).lstrip(".")


@pytest.fixture(scope="module")
def created(isoloss_api: client.ApiClient) -> Iterator[dict[str, Any]]:
    """A sweep in which every field is set, as it is stored."""
    with stored(isoloss_api, NAME, COMPLETE["spec"]) as sweep:
        yield sweep


@contextmanager
def stored(api: client.ApiClient, name: str, spec: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """A sweep of that name and spec on the server, for the block."""
    yield create(api, "default", COMPLETE | {"metadata": {"name": name}, "spec": spec})
    client.CustomObjectsApi(api).delete_namespaced_custom_object(
        GROUP, VERSION, "default", SWEEP_PLURAL, name
    )


def edit(api: client.ApiClient, created: dict[str, Any], changes: dict[str, Any]) -> None:
    """Send the sweep as created but for `changes`. Raises ApiException."""
    changed = {**created, "spec": sweep_with(created["spec"], changes)}
    client.CustomObjectsApi(api).replace_namespaced_custom_object(
        GROUP,
        VERSION,
        "default",
        SWEEP_PLURAL,
        changed["metadata"]["name"],
        changed,
        dry_run="All",
    )


def sweep_with(spec: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    changed = copy.deepcopy(spec)
    for path, value in changes.items():
        node: Any = changed
        *parents, last = [int(part) if part.isdigit() else part for part in path.split(".")]
        for part in parents:
            node = node[part]
        if value is ABSENT:
            del node[last]
        else:
            assert node.get(last) != value, f"{path} does not change"
            node[last] = value
    return changed


def test_each_field_of_the_spec_is_either_editable_or_part_of_the_identity() -> None:
    root = definitions()[0]["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    fields = set(leaves(root["properties"]["spec"], ""))
    editable = (*EDITABLE, *EDITABLE_ELSEWHERE)
    assert fields == {without_numbers(path) for path in (*editable, *IMMUTABLE, *FIXED)}


@pytest.mark.parametrize("changes", EDITS.values(), ids=EDITS.keys())
def test_it_may_be_edited(
    changes: dict[str, Any], isoloss_api: client.ApiClient, created: dict[str, Any]
) -> None:
    edit(isoloss_api, created, changes)


@pytest.mark.parametrize("path", EDITABLE_ELSEWHERE)
def test_it_may_be_edited_where_it_may_be_set(path: str, isoloss_api: client.ApiClient) -> None:
    changes, value = EDITABLE_ELSEWHERE[path]
    spec = sweep_with(COMPLETE["spec"], changes)
    with stored(isoloss_api, f"{NAME}-other", spec) as sweep:
        edit(isoloss_api, sweep, {path: value})


@pytest.mark.parametrize("changes", IMMUTABLE_EDITS.values(), ids=IMMUTABLE_EDITS.keys())
def test_it_is_part_of_the_identity(
    changes: dict[str, Any], isoloss_api: client.ApiClient, created: dict[str, Any]
) -> None:
    with pytest.raises(client.ApiException) as refusal:
        edit(isoloss_api, created, changes)
    assert refusal.value.status == 422
    assert IDENTITY.message in str(refusal.value.body)
