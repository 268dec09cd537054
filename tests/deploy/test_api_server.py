"""A real API server accepts the CRDs, refuses bad manifests with a helpful message and explains."""

import json
import re
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from kubernetes import client

from isoloss.cli.application import run
from isoloss.yaml_text import read_documents, to_yaml
from isoloss_operator.api import GROUP, PREDICTION_PLURAL, SWEEP_PLURAL, VERSION
from isoloss_operator.cluster.pod_templates import merge
from isoloss_operator.cluster.pod_values import malformed_value
from isoloss_operator.commands.derived_proxies import derive_proxy
from isoloss_operator.generate.crdgen import definitions
from tests.support import kubernetes_yaml
from tests.support.cluster import Kubectl
from tests.support.crds import create
from tests.support.models import example_model
from tests.support.published_configs import (
    LLAMA_3_8B,
    NEIGHBOURS,
    PUBLISHED,
    QWEN3_8B,
    SMALL_DEEPSEEK,
    write_checkpoint,
)
from tests.support.refused_manifests import ACCEPTED, REFUSED, Refused, prediction, sweep

pytestmark = pytest.mark.cluster
ROOT = Path(__file__).parents[2]
EXAMPLES = sorted((ROOT / "crds" / "examples").glob("*.yaml"))
SAMPLE = ROOT / "gitops" / "repository" / "research" / "sweep" / "sweep.yaml"


def dry_run(api: client.ApiClient, manifest: dict[str, Any]) -> dict[str, Any]:
    """What would be stored, with the API server's defaults."""
    return create(api, "default", manifest, dry_run="All")


@pytest.mark.parametrize("row", REFUSED, ids=str)
def test_the_api_server_refuses(row: Refused, isoloss_api: client.ApiClient) -> None:
    with pytest.raises(client.ApiException) as refusal:
        dry_run(isoloss_api, row.manifest)
    assert refusal.value.status in {400, 422}
    message = json.loads(refusal.value.body or "")["message"]
    assert row.says in message
    assert "rule evaluation error" not in message


@pytest.mark.parametrize("manifest", ACCEPTED.values(), ids=ACCEPTED.keys())
def test_the_api_server_accepts(manifest: dict[str, Any], isoloss_api: client.ApiClient) -> None:
    dry_run(isoloss_api, manifest)


@pytest.mark.parametrize("path", [*EXAMPLES, SAMPLE], ids=lambda path: path.name)
def test_a_second_client_side_apply_of_an_example_changes_nothing(
    path: Path, isoloss_api: client.ApiClient, kubectl: Kubectl, namespace: str
) -> None:
    """What the API server fills in inside a list reads as a change every time: the examples have it written out."""
    documents = read_documents(path.read_text())
    for each in documents:
        each["metadata"].pop("namespace", None)
    text = "---\n".join(to_yaml(each) for each in documents)
    first, second = (
        kubectl("apply", "-n", namespace, "-f", "-", stdin=text).stdout.splitlines()
        for _ in range(2)
    )
    assert [line.split()[-1] for line in first] == ["created"] * len(documents)
    assert [line.split()[-1] for line in second] == ["unchanged"] * len(documents)


@pytest.mark.parametrize("grid", [(), ("--grid",)], ids=["search", "grid"])
@pytest.mark.parametrize(
    "config",
    [LLAMA_3_8B, QWEN3_8B, SMALL_DEEPSEEK, *(NEIGHBOURS[n] for n in ("Gemma-2-9B", "Mamba-2.8B"))],
    ids=lambda c: c["model_type"],
)
def test_what_isoloss_init_writes_is_accepted_and_a_second_apply_changes_nothing(
    config: dict[str, Any],
    grid: tuple[str, ...],
    isoloss_api: client.ApiClient,
    kubectl: Kubectl,
    namespace: str,
    tmp_path: Path,
) -> None:
    assert isoloss_api
    checkpoint, path = write_checkpoint(tmp_path / "checkpoint", config), tmp_path / "both.yaml"
    corpora = ("--corpus", "s3://corpora/pile/", "--corpus", "s3://corpora/code/*.jsonl.zst")
    asked = ("--checkpoint", checkpoint, *corpora, "--tokens", "55B", "--out", str(path), *grid)
    assert run(["init", *asked]) == 0
    first, second = (
        kubectl("apply", "-n", namespace, "-f", str(path)).stdout.splitlines() for _ in range(2)
    )
    assert [line.split()[-1] for line in first] == ["created", "created"]
    assert [line.split()[-1] for line in second] == ["unchanged", "unchanged"]


def test_the_api_server_accepts_a_proxy_of_each_family(isoloss_api: client.ApiClient) -> None:
    proxies = [
        {
            "name": f"of-{number}",
            "model": {"config": {k: v for k, v in derived.items() if v is not None}},
            "tokens": 4_000_000_000,
        }
        for number, config in enumerate(PUBLISHED.values())
        for derived in (derive_proxy(config, 200_000_000),)
    ]
    stored = dry_run(isoloss_api, sweep({"proxies": proxies}))["spec"]["proxies"]
    assert [each["model"] for each in stored] == [each["model"] for each in proxies]


def test_the_api_server_fills_in_the_defaults_of_the_types(isoloss_api: client.ApiClient) -> None:
    manifest = sweep({"optimizer": {"beta2": "0.95"}})
    spec = dry_run(isoloss_api, manifest)["spec"]
    assert spec["optimizer"]["beta2"] == "0.95"
    assert spec["optimizer"]["epsilon"] == "1e-8"
    assert "warmupTokens" not in spec["optimizer"]  # each size has its own
    assert spec["failurePolicy"] == {
        "retriesPerPoint": 3,
        "maxFailedPoints": 2,
        "stallSeconds": 3600,
    }
    assert spec["jobs"] == {"ttlSecondsAfterFinished": {"succeeded": 600, "failed": 86_400}}
    assert spec["fit"] == {"weights": "Averaged", "form": "PowerLawOfLoss"}
    assert spec["evaluation"] == {"firstTokens": 10_000, "perDecade": 24, "averagingTokens": 0}


def test_the_content_of_a_pod_template_is_kept_whatever_its_fields(
    isoloss_api: client.ApiClient,
) -> None:
    template = {
        "metadata": {"labels": {"team": "a"}, "annotations": {"b": "c"}},
        "spec": {"nodeSelector": {"gpu": "h100"}, "aFieldOfTheFuture": [{"x": 1}]},
    }
    assert (
        dry_run(isoloss_api, sweep({"podTemplate": template}))["spec"]["podTemplate"] == template
    )


def of_trainer(**resources: Any) -> dict[str, Any]:
    return {"spec": {"containers": [{"name": "trainer", "resources": {"requests": resources}}]}}


POD_TEMPLATES = [
    *(of_trainer(memory=given) for given in ("16Gi", "1e9", "1.5G", ".5Gi", "5.", 2**30, "12E2")),
    *(of_trainer(memory=given) for given in ("16GB", "16 Gi", "16gi", "", "1,5Gi", "1e", "0x10")),
    *(of_trainer(cpu=given) for given in ("two", "500m", "2.5", "1u", "2 cores")),
    *({"metadata": {"labels": {"team": given}}} for given in ("", "a_b.c-D", "pre training", "-a", "x" * 64)),
    *({"spec": {"nodeSelector": {"gpu": given}}} for given in ("h100", "H100 80GB", True, 8)),
    *(
        {"spec": {"tolerations": [{"key": "gpu", **given}]}}
        for given in (
            {"operator": "Exists", "effect": "NoSchedule"},
            {"operator": "Equal", "effect": ""},
            {"operator": "Exist"},
            {"operator": "Exists", "effect": "NoScheduling"},
        )
    ),
]  # fmt: skip


@pytest.mark.parametrize("template", POD_TEMPLATES, ids=json.dumps)
def test_the_api_server_and_isoloss_agree_about_the_values_of_a_pod_template(
    template: dict[str, Any], isoloss_api: client.ApiClient
) -> None:
    image = {"name": "trainer", "image": "trainer"}
    base = {"metadata": {}, "spec": {"restartPolicy": "Never", "containers": [image]}}
    job = {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": "values"},
        "spec": {"template": merge(base, template)},
    }
    # As it is: the client's own classes refuse values of other types before they are sent.
    api = client.CustomObjectsApi(isoloss_api)
    refuses = pytest.raises(client.ApiException, match=r"\((400|422)\)")
    with refuses if malformed_value(template) else nullcontext():
        api.create_namespaced_custom_object("batch", "v1", "default", "jobs", job, dry_run="All")


def test_kubectl_is_told_to_quote_a_number(
    isoloss_api: client.ApiClient, kubectl: Kubectl
) -> None:
    assert isoloss_api
    manifest = to_yaml(sweep()).replace("'5e-4'", "5e-4")
    answer = kubectl("apply", "--dry-run=server", "-f", "-", stdin=manifest)
    assert answer.returncode != 0
    output = 'supported values: "the same number in quotes, such as '
    assert f"spec.grid.learningRates[0]: Unsupported value: 0.0005: {output}" in answer.stderr
    page = (ROOT / "docs" / "guides" / "troubleshooting.md").read_text()
    assert f"`{output}...`" in page, "what readers will look for"


def test_kubectl_reads_words_without_quotes_as_isoloss_does(
    isoloss_api: client.ApiClient, kubectl: Kubectl
) -> None:
    assert isoloss_api
    words = {"values": "VALUES", "keys": "KEYS", "texts": list(kubernetes_yaml.SCALARS)}
    text = to_yaml(sweep({"podTemplate": {"spec": words}}))
    text = text.replace("VALUES", kubernetes_yaml.as_values())
    text = text.replace("KEYS", kubernetes_yaml.as_keys())
    answer = kubectl("apply", "--dry-run=server", "-o", "json", "-f", "-", stdin=text)
    assert answer.returncode == 0, answer.stderr
    read: dict[str, Any] = json.loads(answer.stdout)["spec"]["podTemplate"]["spec"]
    assert read == {
        "values": kubernetes_yaml.values(),
        "keys": kubernetes_yaml.keys(),
        "texts": list(kubernetes_yaml.SCALARS),
    }
    (planned,) = read_documents(text)
    assert planned["spec"]["podTemplate"]["spec"] == read


def test_two_owners_can_each_apply_a_proxy(isoloss_api: client.ApiClient, namespace: str) -> None:
    """Proxies are a list by name, so that server-side apply does not replace it whole."""
    create(isoloss_api, namespace, sweep())
    proxy = {
        "name": "larger",
        "model": {"config": example_model("dense-100m")},
        "tokens": 3_000_000,
    }
    body = sweep() | {"spec": {"proxies": [proxy]}}
    applied: Any = client.CustomObjectsApi(isoloss_api).patch_namespaced_custom_object(
        GROUP,
        VERSION,
        namespace,
        SWEEP_PLURAL,
        "sweep",
        body,
        field_manager="another",
        _content_type="application/apply-patch+yaml",
    )
    assert [p["name"] for p in applied["spec"]["proxies"]] == ["small", "large", "larger"]


@pytest.mark.parametrize("plural", [SWEEP_PLURAL, PREDICTION_PLURAL])
def test_a_resource_that_no_operator_has_seen_is_not_current(
    isoloss_api: client.ApiClient, namespace: str, plural: str
) -> None:
    """kstatus takes an observedGeneration that equals the generation for a finished reconciliation.

    A status that comes with a spec is passed over.
    """
    manifest = sweep() if plural == SWEEP_PLURAL else prediction()
    status = {"observedGeneration": 1, "conditions": []}
    assert create(isoloss_api, namespace, manifest | {"status": status})["status"] == {
        "observedGeneration": -1
    }


def test_the_columns_show_the_status(
    isoloss_api: client.ApiClient, namespace: str, kubectl: Kubectl
) -> None:
    create(isoloss_api, namespace, sweep())
    create(isoloss_api, namespace, prediction())
    set_status(isoloss_api, namespace, "scalingsweeps", "sweep", SWEEP_STATUS)
    set_status(isoloss_api, namespace, "hyperparampredictions", "prediction", PREDICTION_STATUS)
    sweeps = kubectl("get", "ssweep", "-n", namespace).stdout.splitlines()
    assert re.split(r"\s{2,}", sweeps[0])[1:] == [
        "POINTS",
        "FAILED",
        "FIT",
        "READY",
        "REASON",
        "AGE",
    ]
    assert sweeps[1].split()[:6] == ["sweep", "17/18", "1", "True", "False", "PointsRunning"]
    predictions = kubectl("get", "hpred", "-n", namespace).stdout.splitlines()
    assert re.split(r"\s{2,}", predictions[0])[1:] == [
        "LR",
        "BATCH",
        "STALE",
        "VALIDATED",
        "READY",
        "REASON",
        "AGE",
    ]
    assert predictions[1].split()[:7] == [
        "prediction",
        "1.2e-4",
        "512",
        "True",
        "False",
        "True",
        "Predicted",
    ]
    wide = kubectl("get", "hpred", "-n", namespace, "-o", "wide").stdout
    assert "12.5" in wide
    wide = kubectl("get", "ssweep", "-n", namespace, "-o", "wide").stdout
    assert "3.5" in wide
    assert "2026-01-01T00:00:00Z" in wide


def test_one_category_lists_both_kinds(
    isoloss_api: client.ApiClient, namespace: str, kubectl: Kubectl
) -> None:
    create(isoloss_api, namespace, sweep())
    create(isoloss_api, namespace, prediction())
    listed = kubectl("get", "isoloss", "-n", namespace, "-o", "name").stdout.split()
    assert listed == [
        "hyperparamprediction.isoloss.dev/prediction",
        "scalingsweep.isoloss.dev/sweep",
    ]


@pytest.mark.parametrize("crd", definitions(), ids=lambda crd: crd["spec"]["names"]["kind"])
def test_kubectl_explains_every_field(
    crd: dict[str, Any], isoloss_api: client.ApiClient, kubectl: Kubectl
) -> None:
    assert isoloss_api
    root = crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    explained = kubectl("explain", crd["spec"]["names"]["plural"], "--recursive").stdout
    assert root["description"] in " ".join(explained.split())
    for part in ("spec", "status"):
        path = f"{crd['spec']['names']['plural']}.{part}"
        output = " ".join(kubectl("explain", path).stdout.split())
        for name, field in root["properties"][part]["properties"].items():
            # After each field's name and type is what the field's own page says.
            assert re.search(
                rf" {name} <[^>]+>( -required-)?( enum: [^:]+)? {re.escape(field['description'])}",
                output,
            ), name


def condition(kind: str, status: str, reason: str) -> dict[str, Any]:
    return {
        "type": kind,
        "status": status,
        "reason": reason,
        "message": "",
        "lastTransitionTime": "2026-01-01T00:00:00Z",
    }


SWEEP_STATUS = {
    "progress": "17/18",
    "points": {"failed": 1, "active": 1},
    "acceleratorHours": "3.5",
    "estimatedCompletion": "2026-01-01T00:00:00Z",
    # The order is the operator's business: a column reads its condition by name.
    "conditions": [
        condition("Ready", "False", "PointsRunning"),
        condition("FitReady", "True", "Fitted"),
    ],
}
PREDICTION_STATUS = {
    "learningRate": {"value": "1.2e-4", "low": "1e-4", "high": "1.5e-4"},
    "batchSize": {"value": "512"},
    "extrapolation": {"computeFactor": "12.5"},
    "conditions": [
        condition("Ready", "True", "Predicted"),
        condition("Stale", "True", "SweepChanged"),
        condition("Validated", "False", "BetterAnswerNearby"),
    ],
}


def set_status(
    api: client.ApiClient, namespace: str, plural: str, name: str, status: dict[str, Any]
) -> None:
    client.CustomObjectsApi(api).patch_namespaced_custom_object_status(
        GROUP, VERSION, namespace, plural, name, {"status": status}
    )
