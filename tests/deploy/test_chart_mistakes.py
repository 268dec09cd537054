"""Mistakes that people make in the chart's values: none renders, and each is told with its place and what is wanted there."""

import json
from typing import Any

import pytest

from isoloss_operator.cluster.accelerators import misplaced_accelerators
from tests.deploy.chart import template

pytestmark = pytest.mark.cluster
PREFIXES = "s3://BUCKET/PATH, gs://BUCKET/PATH or file:///PATH"


def nested(path: str, value: Any) -> dict[str, Any]:
    for name in reversed(path.split(".")):
        value = {name: value}
    return dict(value)


MISTAKES: list[tuple[str, Any, str, str]] = [
    # The value's path, what stands there; the place that is named, and what is wanted.
    ("watchNamespace", ["a"], "'watchNamespace'", "not allowed"),
    ("metrics.rule.enabled", True, "at '/metrics': additional properties 'rule'", "not allowed"),
    ("watchNamespaces", "research", "/watchNamespaces", "want array"),
    ("watchNamespaces", ["Research"], "/watchNamespaces/0", "[a-z0-9]"),
    ("storage.allowedPrefixes.research", ["https://x"], "allowedPrefixes.research", PREFIXES),
    ("storage.allowedPrefixes.research", ["lm-sweeps"], "allowedPrefixes.research", PREFIXES),
    ("storage.allowedPrefixes.research", ["s3://b/*"], "allowedPrefixes.research", "without .. and wildcards"),
    ("storage.allowedPrefixes.research", ["s3://b/../c"], "allowedPrefixes.research", "without .. and wildcards"),
    ("storage.allowedPrefixes.research", "s3://b", "/storage/allowedPrefixes/research", "want array"),
    ("storage.allowedPrefixes", ["s3://b"], "/storage/allowedPrefixes", "want object"),
    ("image.repository", "", "image.repository", "build and push them first"),
    ("image.repository", "registry:5000/operator:1.0", "image.repository", "write it in image.tag"),
    ("image", "registry/operator:1", "/image", "want object"),
    ("image.tag", 1.1, "/image/tag", "want string"),
    ("image.digest", "0123", "/image/digest", "sha256:"),
    ("image.pullPolicy", "always", "/image/pullPolicy", "'Always'"),
    ("replicas", "two", "/replicas", "want integer"),
    ("logLevel", "verbose", "/logLevel", "'DEBUG'"),
    ("fits", 4, "resources.limits.memory", "raise the limit, or lower fits"),
    ("resources.limits.memory", "2 GB", "resources.limits.memory", "write 2Gi"),
    ("fitMemoryMiB", "1Gi", "/fitMemoryMiB", "want integer"),
    ("passSeconds", "5m", "/passSeconds", "want number"),
    ("kueue", True, "/kueue", "want object"),
    ("imagePullSecrets", ["registry"], "/imagePullSecrets/0", "want object"),
    ("trainer.podTemplate.containers", [], "/trainer/podTemplate", "'containers' not allowed"),
    ("trainer.podTemplate.spec.containers", [{"name": "main", "resources": {"limits": {"nvidia.com/gpu": 8}}}],
     "trainer.podTemplate.spec.containers", "is named trainer"),
    ("metrics", {"serviceMonitor": {"enabled": True}, "podMonitor": {"enabled": True}},
     "metrics.serviceMonitor and metrics.podMonitor", "enable one of both"),
    ("metrics.podMonitor", {"enabled": True, "interval": "30"}, "/metrics/podMonitor/interval", "(ms|s|m|h)"),
    ("metrics.rules", {"enabled": True, "queuedSeconds": "1h"}, "/metrics/rules/queuedSeconds", "want integer"),
    ("metrics.rules", {"enabled": True, "budgetUsedRatio": 90}, "/metrics/rules/budgetUsedRatio", "maximum: got 90, want 1"),
    ("extraEnv", {"A": "b"}, "/extraEnv", "want array"),
    ("extraEnv", [{"name": "ISOLOSS_WORKERS", "value": "9"}], "extraEnv: ISOLOSS_WORKERS", "is set by the chart itself"),
    ("extraEnv", [{"name": "A", "value": "1"}, {"name": "A", "value": "2"}], "extraEnv: A is set by the chart itself", "or given twice"),
    ("serviceAccount.create", False, "serviceAccount.name", "is needed"),
    ("replicas", 20, "/replicas", "maximum"),
    ("storage.existingSecret", "Operator_S3", "/storage/existingSecret", "[a-z0-9]"),
    ("image.repository", "https://registry/operator", "image.repository: https://registry/operator", "leave out the scheme"),
    ("image.tag", "latest:1", "/image/tag", "[A-Za-z0-9_]"),
    ("trainer.image.tag", "a b", "/trainer/image/tag", "[A-Za-z0-9_]"),
    ("trainer.podTemplate.spec.hostNetwork", True, "trainer.podTemplate.spec.hostNetwork", "must not be true"),
    ("trainer.podTemplate.spec.nodeSelector", ["gpu"], "/trainer/podTemplate/spec/nodeSelector", "want object"),
    ("trainer.podTemplate.spec.tolerations", [{"key": "gpu", "effect": "NoSched"}], "/tolerations/0/effect", "'NoSchedule'"),
    ("tolerations", [{"key": "a", "operator": "exists"}], "/tolerations/0/operator", "'Exists'"),
    ("strategy.type", "Rolling", "/strategy/type", "'RollingUpdate'"),
    ("resources.limits.cpu", "two", "resources.limits.cpu: two", "write 2 or 500m"),
    ("resources.limits.memory", "2048", "resources.limits.memory: 2048 is in bytes", "write 2048Mi"),
    ("resources.requests.memory", "512MB", "resources.requests.memory: 512MB", "write 2Gi or 2G"),
    ("resources.request", {"cpu": 1}, "resources.request", "must be limits, requests or claims"),
    ("extraVolumeMounts", [{"name": "sweeps", "mountPath": "/mnt"}], "extraVolumeMounts: sweeps", "add it"),
    ("extraEnv", [{"name": "A", "value": 1}], "/extraEnv/0/value", "want string"),
    ("priorityClassName", "High Priority", "/priorityClassName", "[a-z0-9]"),
    ("networkPolicy.egressPorts", ["https"], "/networkPolicy/egressPorts/0", "want integer"),
    ("metrics.rules.disabled", ["NoSuchAlert"], "/metrics/rules/disabled/0", "'OperatorDown'"),
    ("passSeconds", 900, "/passSeconds", "aximum"),
    ("crds.install", "yes", "/crds/install", "want boolean"),
    ("storage.allowedPrefixes.Research", ["s3://b"], "at '/storage/allowedPrefixes'", "properties 'Research' not allowed"),
    *(("storage.allowedPrefixes.a", [uri], "allowedPrefixes.a", "without .. and wildcards")
      for uri in ("s3://b/..", "gs://b/../c", "file:///mnt/../etc")),
    *(("commonLabels", {label: "true"}, "the chart itself sets", label)
      for label in ("app.kubernetes.io/name", "rbac.authorization.k8s.io/aggregate-to-admin")),
    ("podLabels", {"app.kubernetes.io/instance": "mine"}, "the chart itself sets", "app.kubernetes.io/instance"),
    *(("resources.limits.memory", limit, f"{limit} is {has} MiB", "fitMemoryMiB 512 need 812 MiB")
      for limit, has in {"0.5Gi": 512, "811Mi": 811, "850M": 810, "800000k": 762}.items()),
]  # fmt: skip


@pytest.mark.parametrize(
    ("path", "value", "place", "wanted"),
    MISTAKES,
    ids=[f"{row[0]}={json.dumps(row[1])}" for row in MISTAKES],
)
def test_a_mistake_in_the_charts_values_is_told_with_its_place(
    path: str, value: Any, place: str, wanted: str
) -> None:
    answer = template(nested(path, value))
    assert answer.returncode != 0, "silently accepted"
    assert place in answer.stderr
    assert wanted in answer.stderr


@pytest.mark.parametrize(
    ("path", "value", "others"),
    [
        ("image.repository", "registry.example:5000/isoloss/operator", {}),
        # What holds the fits, and what the chart cannot read.
        *(("resources.limits.memory", each, {}) for each in ("2Gi", "2e9", "2000000k", 2147483648, "500P")),
        *(("resources.limits.memory", each, {"fits": 2, "fitMemoryMiB": 1062})
          for each in ("2424Mi", "2.5Gi", "2542M", 2_600_000_000)),
        # Without a limit there is nothing to exceed.
        ("resources.limits", None, {"fits": 16}),
        ("resources", {"limits": None, "requests": {"memory": "1Gi"}}, {"fits": 16}),
        ("storage.allowedPrefixes.research", ["s3://a.b-c", "gs://a/b/", "file:///mnt/a..b"], {}),
        ("trainer.podTemplate.spec.containers",
         [{"name": "mount", "resources": {"limits": {"smarter-devices/fuse": 1}}}], {}),
    ],
)  # fmt: skip
def test_what_looks_like_a_mistake_and_is_none_renders(
    path: str, value: Any, others: dict[str, Any]
) -> None:
    answer = template({**nested(path, value), **others})
    assert answer.returncode == 0, answer.stderr


def containers(**limits: dict[str, Any]) -> list[dict[str, Any]]:
    return [{"name": name, "resources": {"limits": each}} for name, each in limits.items()]


@pytest.mark.parametrize(
    "asked",
    [
        containers(trainer={"nvidia.com/gpu": 8}),
        containers(trainer={"nvidia.com/gpu": 8}, decoder={"nvidia.com/gpu": 1}),
        containers(trainer={"cpu": 8}, decoder={"nvidia.com/gpu": 1}),
        containers(trainer={"nvidia.com/gpu": 0}, decoder={"nvidia.com/gpu": "1"}),
        containers(trainer={"nvidia.com/gpu": 0}, decoder={"nvidia.com/gpu": 0}),
        containers(main={"nvidia.com/gpu": "0"}),
        containers(main={"amd.com/gpu": 2}),
        containers(decoder={"cpu": 1, "hugepages-2Mi": "4Mi"}),
        containers(trainer={"gpu": 8}),
        containers(trainer={"nvidia.com/gpu": 1}, decoder={"GPU": 1}),
        [{"name": "trainer"}, *containers(decoder={"google.com/tpu": 4})],
        [{"name": "trainer", "resources": {"requests": {"cpu": 1}}}],
    ],
    ids=json.dumps,
)
def test_chart_and_operator_agree_whose_accelerators_are_misplaced(
    asked: list[dict[str, Any]],
) -> None:
    """What the chart renders, no sweep without a template of its own is refused for."""
    answer = template(nested("trainer.podTemplate.spec.containers", asked))
    refused = misplaced_accelerators({"spec": {"containers": asked}})
    assert (answer.returncode != 0) == bool(refused), answer.stderr
    assert not refused or "trainer.podTemplate.spec.containers" in answer.stderr
