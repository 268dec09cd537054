"""The pipelines of gitops/pipelines, whose scripts are run as they stand there, with the rights that stand there."""

import os
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from devcluster.build import kubectl_path
from devcluster.control_plane import ControlPlane
from devcluster.process_node import ProcessNode
from isoloss.yaml_text import read_documents
from tests.isoloss_operator.conftest import Place
from tests.support import operator_process
from tests.support.cluster import Kubectl
from tests.support.pages import CHECKOUT, commands_run_by_tests

PIPELINES = CHECKOUT / "gitops" / "pipelines"
READER = "hyperparameter-reader"
Json = dict[str, Any]
GUIDE = CHECKOUT / "docs" / "guides" / "gitops.md"
FILES = ("learning-rate", "batch-size")


def pipeline(name: str) -> Json:
    (found,) = read_documents((PIPELINES / f"{name}.yaml").read_text())
    return found


def scripts(folder: Path) -> dict[str, str]:
    """Each pipeline's script, its files in a folder of its own: what Tekton and Argo put in place of the names."""
    task = pipeline("tekton")["spec"]["pipelineSpec"]["tasks"][0]["taskSpec"]
    tekton = task["steps"][0]["script"]
    for result in task["results"]:
        path = folder / "tekton" / result["name"]
        tekton = tekton.replace(f"$(results.{result['name']}.path)", str(path))
    template = pipeline("argo-workflow")["spec"]["templates"][1]
    argo = template["script"]["source"]
    for output in template["outputs"]["parameters"]:
        path = folder / "argo-workflow" / output["name"]
        argo = argo.replace(output["valueFrom"]["path"], str(path))
    return {"tekton": tekton, "argo-workflow": argo}


def test_both_pipelines_wait_as_the_guide_says(tmp_path: Path) -> None:
    commands = commands_run_by_tests(GUIDE)
    (shown,) = (block for block in commands if "kubectl wait" in block.text)
    for name, script in scripts(tmp_path).items():
        *waits, read = [line for line in script.splitlines() if "kubectl" in line]
        assert waits == shown.text.splitlines(), name
        assert ".status.learningRate.value" in read


def test_the_training_of_each_pipeline_gets_what_its_script_writes() -> None:
    """And neither the wait nor the training is ended after a time."""
    task, train = pipeline("tekton")["spec"]["pipelineSpec"]["tasks"]
    # Before 1.11 Tekton hands that of the whole down to none, which then have an hour.
    assert task["timeout"] == train["timeout"] == "0"
    assert {each["name"]: each["value"] for each in train["params"]} == {
        each["name"]: f"$(tasks.{task['name']}.results.{each['name']})"
        for each in task["taskSpec"]["results"]
    }
    main, script, _ = pipeline("argo-workflow")["spec"]["templates"]
    given = main["steps"][1][0]["arguments"]["parameters"]
    assert {each["name"]: each["value"] for each in given} == {
        each["name"]: f"{{{{steps.{script['name']}.outputs.parameters.{each['name']}}}}}"
        for each in script["outputs"]["parameters"]
    }


@pytest.fixture
def environment(
    control_plane: ControlPlane, user: operator_process.User, tmp_path: Path
) -> Mapping[str, str]:
    """Of a pod that runs as the pipelines' account."""
    kubectl = Kubectl(control_plane)
    applied = kubectl("apply", "-n", user.namespace, "-f", str(PIPELINES / "reader.yaml"))
    assert applied.returncode == 0, applied.stderr
    account = (user.namespace, READER)
    for resource in ("scalingsweeps", "hyperparampredictions"):
        operator_process.wait_for_right(
            user.api_client, account, user.namespace, ("isoloss.dev", resource), "watch"
        )
    programs = tmp_path / "programs"
    programs.mkdir()
    (programs / "kubectl").symlink_to(kubectl_path())
    return {
        "KUBECONFIG": str(control_plane.kubeconfig_for_service_account(*account)),
        "PATH": f"{programs}:{os.defpath}",
        "HOME": str(tmp_path),
    }


@pytest.mark.whole
@pytest.mark.cluster
@pytest.mark.s3
def test_a_pipeline_gets_the_answer_to_the_sweep_that_was_edited_before_it_started(
    operator: operator_process.OperatorProcess,
    user: operator_process.User,
    node: ProcessNode,
    place: Place,
    environment: Mapping[str, str],
    tmp_path: Path,
) -> None:
    """Also where the operator has not seen the edit yet, and Ready still speaks of the former answer."""
    operator.start()
    dense = operator_process.sweep_manifest("dense", place.uri)
    user.apply_sweep(dense)
    user.apply_prediction(operator_process.prediction_manifest("dense-8b", "dense"))
    user.wait_for(lambda: user.prediction("dense-8b"), "Ready")
    user.wait_for(lambda: user.sweep("dense"), "Reconciling", "False")
    operator.stop()

    dense["spec"]["proxies"][0]["tokens"] = 5_000_000
    user.apply_sweep(dense)
    ready = ["kubectl", "wait", "hpred/dense-8b", "--for=condition=Ready", "--timeout=1s"]
    subprocess.run(ready, env=environment, check=True, capture_output=True)
    assert user.prediction("dense-8b")["status"]["sweepGeneration"] == 1, (
        "Ready alone is not enough"
    )

    found = scripts(tmp_path)
    for name in found:
        (tmp_path / name).mkdir()
    waiting = {
        name: subprocess.Popen(
            ["sh", "-c", script], env=environment, stderr=subprocess.PIPE, text=True
        )
        for name, script in found.items()
    }
    try:
        operator.start()
        for name, process in waiting.items():
            _, problems = process.communicate(timeout=300)
            assert process.returncode == 0, problems
            body = user.prediction("dense-8b")
            assert body["status"]["sweepGeneration"] == 2
            assert operator_process.conditions(body)["Stale"]["status"] == "False"
            status = body["status"]
            assert [(tmp_path / name / file).read_text() for file in FILES] == [
                status["learningRate"]["value"],
                status["batchSize"]["value"],
            ]
    finally:
        for process in waiting.values():
            process.kill()
