"""What the chart renders and the operator creates is valid on the oldest supported, a middle and the newest Kubernetes."""

import json
from typing import Any

import pytest

from devcluster.openapi import NEWEST, SUMS, openapi_definitions
from tests.deploy.chart import EVERYTHING_ON, ROOT, render
from tests.deploy.kubeconform import Kubeconform

pytestmark = pytest.mark.cluster
VERSIONS = (*SUMS, NEWEST)
JOB = ROOT / "tests" / "isoloss_operator" / "cluster" / "golden" / "train_job.json"


@pytest.fixture(scope="module", params=VERSIONS)
def kubeconform(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Kubeconform:
    """With the schemas of one version."""
    folder = tmp_path_factory.mktemp(request.param)
    return Kubeconform(openapi_definitions(request.param), folder / "schemas")


@pytest.mark.parametrize(
    "values", [pytest.param({}, id="defaults"), pytest.param(EVERYTHING_ON, id="everything on")]
)
def test_the_chart_is_valid(values: dict[str, Any], kubeconform: Kubeconform) -> None:
    answer = kubeconform(*render(values))
    assert answer.returncode == 0, answer.stdout
    assert "Invalid: 0, Errors: 0, Skipped: 0" in answer.stdout


def test_a_jobs_manifest_is_valid(kubeconform: Kubeconform) -> None:
    answer = kubeconform(json.loads(JOB.read_text()))
    assert answer.returncode == 0, answer.stdout


def test_a_mistake_would_be_found(kubeconform: Kubeconform) -> None:
    job = json.loads(JOB.read_text())
    job["spec"]["template"]["spec"]["container"] = []
    answer = kubeconform(job)
    assert answer.returncode != 0
    assert "'container' not allowed" in answer.stdout
