"""Renders the chart with the real helm."""

import functools
import json
import os
import pickle
import re
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from devcluster.build import tool_path
from isoloss.yaml_text import read_documents

ROOT = Path(__file__).parents[2]
CHART = ROOT / "helm" / "isoloss"
NAMESPACE = "isoloss-system"
EVERYTHING_ON: dict[str, Any] = {
    "watchNamespaces": ["teaching", "products"],
    "storage": {
        "allowedPrefixes": {"teaching": ["s3://lm-sweeps", "file:///mnt"], "*": ["gs://shared/a"]},
        "existingSecret": "operator-s3",
    },
    "image": {"digest": "sha256:" + "0" * 64},
    "imagePullSecrets": [{"name": "registry"}],
    "trainer": {
        "image": {"repository": "registry/trainer", "tag": "2", "pullPolicy": "Always"},
        "podTemplate": {
            "metadata": {"labels": {"cost-centre": "teaching"}},
            "spec": {"tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists"}]},
        },
    },
    "serviceAccount": {"annotations": {"eks.amazonaws.com/role-arn": "arn:aws:iam::1:role/a"}},
    "replicas": 2,
    "extraEnv": [{"name": "AWS_ENDPOINT_URL", "value": "https://s3.example.com"}],
    "extraVolumes": [{"name": "sweeps", "persistentVolumeClaim": {"claimName": "sweeps"}}],
    "extraVolumeMounts": [{"name": "sweeps", "mountPath": "/mnt", "readOnly": True}],
    "podLabels": {"team": "platform"},
    "podAnnotations": {"note": "1"},
    "nodeSelector": {"kubernetes.io/os": "linux"},
    "tolerations": [{"key": "a", "operator": "Exists"}],
    "affinity": {"nodeAffinity": {}},
    "priorityClassName": "system-cluster-critical",
    "networkPolicy": {"metricsFrom": [{"podSelector": {}}]},
    "podDisruptionBudget": {"enabled": True},
    "commonLabels": {"cost-centre": "teaching"},
    "crds": {"annotations": {"argocd.argoproj.io/sync-wave": "-1"}},
    "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1}},
    "topologySpreadConstraints": [
        {
            "maxSkew": 1,
            "topologyKey": "kubernetes.io/hostname",
            "whenUnsatisfiable": "ScheduleAnyway",
            "labelSelector": {"matchLabels": {"app.kubernetes.io/name": "isoloss-operator"}},
        }
    ],
    "metrics": {"dashboard": {"enabled": True, "annotations": {"grafana_folder": "ML"}}},
    "extraObjects": [
        {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": "{{ .Release.Name }}-a", "namespace": NAMESPACE},
        },
        "apiVersion: v1\nkind: ConfigMap\n"
        "metadata: {name: '{{ .Release.Name }}-b', namespace: '{{ .Release.Namespace }}'}",
    ],
}
"""Every optional part but those of the Prometheus Operator, whose kinds no plain cluster knows."""
IMAGES: dict[str, Any] = {
    "image": {"repository": "isoloss/operator"},
    "trainer": {"image": {"repository": "isoloss/trainer"}},
}
"""What the chart has no defaults for."""


def helm(*arguments: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
    """Run helm, off the user's own configuration."""
    with tempfile.TemporaryDirectory() as home:
        homes = {f"HELM_{kind}_HOME": home for kind in ("CACHE", "CONFIG", "DATA")}
        return subprocess.run(
            [str(tool_path("helm")), *arguments],
            input=stdin,
            capture_output=True,
            text=True,
            check=False,
            env={"PATH": os.defpath, **homes},
        )


def template(
    values: Mapping[str, Any] | None = None, *options: str
) -> subprocess.CompletedProcess[str]:
    """The answer of `helm template` for the release `isoloss`."""
    return _templated(json.dumps(with_images(values or {})), *options)


@functools.cache
def _templated(values: str, *options: str) -> subprocess.CompletedProcess[str]:
    arguments = ["template", "isoloss", str(CHART), "--namespace", NAMESPACE, "--values", "-"]
    return helm(*arguments, *options, stdin=values)


def manifests_of(text: str) -> list[Any]:
    """The documents that helm printed. Most of it are the CRDs, which are the same nearly every time."""
    parts = re.split(r"^---$", text, flags=re.MULTILINE)
    return [document for part in parts for document in pickle.loads(_documents(part))]


@functools.cache
def _documents(text: str) -> bytes:
    """Pickled: the tests change what they get."""
    return pickle.dumps(read_documents(text))


def with_images(values: Mapping[str, Any]) -> dict[str, Any]:
    """The values with IMAGES below them."""
    return _merged(IMAGES, values)


def _merged(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    both = [key for key in below if key in above]
    nested = {
        key: _merged(below[key], above[key])
        for key in both
        if isinstance(below[key], Mapping) and isinstance(above[key], Mapping)
    }
    return {**below, **above, **nested}


def render(values: Mapping[str, Any] | None = None) -> list[dict[str, Any]]:
    """The manifests for these values, without what `helm test` runs."""
    answer = template(values, "--skip-tests")
    assert answer.returncode == 0, answer.stderr
    return manifests_of(answer.stdout)


def of_kind(manifests: list[dict[str, Any]], *kinds: str) -> list[dict[str, Any]]:
    """Those of these kinds."""
    return [manifest for manifest in manifests if manifest["kind"] in kinds]


def one(kind: str, values: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """The only manifest of a kind for these values."""
    (found,) = of_kind(render(values), kind)
    return found


def operator_pod(values: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Specification of the operator's pod."""
    found: dict[str, Any] = one("Deployment", values)["spec"]["template"]["spec"]
    return found


def operator_container(values: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """The only container of the operator's pod."""
    found: dict[str, Any]
    (found,) = operator_pod(values)["containers"]
    return found


def environment(values: Mapping[str, Any] | None = None) -> dict[str, str]:
    """The operator's variables, without those that refer to something else."""
    entries = operator_container(values)["env"]
    return {entry["name"]: entry["value"] for entry in entries if "value" in entry}
