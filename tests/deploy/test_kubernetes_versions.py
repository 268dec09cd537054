"""What the chart renders and the operator creates is valid on the oldest supported, a middle and the newest Kubernetes."""

import json
import tempfile
from pathlib import Path
from typing import Any

import pytest

from devcluster.build import TOOLS, print_line
from devcluster.toolchain import download
from tests.deploy.chart import EVERYTHING_ON, ROOT, render
from tests.deploy.kubeconform import Kubeconform

pytestmark = pytest.mark.cluster
MODULE = "k8s.io/kubernetes"
SUMS = {
    "v1.31.0": "h1:sYAB12TTWexXKp4RxqJMm/7EC+P0mNOgn4Xdj5eu7HM=",
    "v1.34.0": "h1:NvUrwPAVB4W3mSOpJ/RtNGHWWYyUP/xPaX5rUSpzA0w=",
}
"""By version, as in a go.sum."""
NEWEST = TOOLS["kube-apiserver"].version
"""That of the development control plane, whose sum is in its own go.sum."""
VERSIONS = (*SUMS, NEWEST)
JOB = ROOT / "tests" / "isoloss_operator" / "cluster" / "golden" / "train_job.json"


def openapi_definitions(version: str) -> dict[str, Any]:
    """Schemas by definition name. Raises RuntimeError where the module cannot be had or differs from its sum."""
    with tempfile.TemporaryDirectory() as empty:  # outside of any module
        answer = download(f"{MODULE}@{version}", Path(empty), print_line)
    if version != NEWEST and answer["Sum"] != SUMS[version]:
        message = f"{MODULE}@{version} has the sum {answer['Sum']}, not {SUMS[version]}"
        raise RuntimeError(message)
    document = Path(answer["Dir"], "api", "openapi-spec", "swagger.json")
    definitions: dict[str, Any] = json.loads(document.read_text())["definitions"]
    return definitions


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
