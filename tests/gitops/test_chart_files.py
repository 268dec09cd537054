"""The files by which Argo CD and Flux install the chart: the same release, of values that the chart takes."""

from typing import Any

import pytest

import isoloss
from isoloss.yaml_text import read_documents
from tests.deploy.chart import CHART, NAMESPACE, ROOT, environment
from tests.gitops.health import GITOPS

(APPLICATION,) = read_documents((GITOPS / "argocd" / "chart.yaml").read_text())
SOURCE, RELEASE = read_documents((GITOPS / "flux" / "chart.yaml").read_text())
VALUES: dict[str, Any] = RELEASE["spec"]["values"]


def test_both_install_the_same_release_of_this_version_from_the_chart_of_this_repository() -> None:
    argo, flux = APPLICATION["spec"], RELEASE["spec"]
    helm_source = argo["source"]["helm"]
    assert helm_source["valuesObject"] == VALUES
    assert helm_source["releaseName"] == flux["releaseName"] == RELEASE["metadata"]["name"]
    assert argo["destination"]["namespace"] == flux["targetNamespace"] == NAMESPACE
    assert flux["storageNamespace"] == NAMESPACE
    chart = flux["chart"]["spec"]
    assert (ROOT / argo["source"]["path"]).samefile(ROOT / chart["chart"])
    assert (ROOT / chart["chart"]).samefile(CHART)
    assert chart["sourceRef"] == {"kind": SOURCE["kind"], "name": SOURCE["metadata"]["name"]}
    assert argo["source"]["repoURL"] == SOURCE["spec"]["url"]
    tag = f"v{isoloss.__version__}"
    assert argo["source"]["targetRevision"] == SOURCE["spec"]["ref"]["tag"] == tag


@pytest.mark.cluster
def test_the_chart_takes_their_values_and_the_operator_reads_them() -> None:
    variables = environment(VALUES)
    assert variables["ISOLOSS_TRAINER_IMAGE"].startswith("registry.example.com/isoloss/trainer:")
    (prefixes,) = VALUES["storage"]["allowedPrefixes"].values()
    assert all(prefix in variables["ISOLOSS_ALLOWED_STORAGE"] for prefix in prefixes)
