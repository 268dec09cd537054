"""`isoloss watch` beside a running operator, as its user calls it: with a kubeconfig and the store's keys."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from devcluster.build import kubectl_path
from devcluster.control_plane import ControlPlane
from devcluster.process_node import ProcessNode
from tests.isoloss_operator.conftest import Place
from tests.support.operator_process import (
    OperatorProcess,
    User,
    prediction_manifest,
    sweep_manifest,
)

pytestmark = [pytest.mark.cluster, pytest.mark.s3]
PREDICTION = "hyperparamprediction/target"


@pytest.fixture
def watch(control_plane: ControlPlane, place: Place, user: User, tmp_path: Path) -> list[str]:
    """The command, with nothing of this process's environment."""
    programs = tmp_path / "programs"
    programs.mkdir()
    (programs / "kubectl").symlink_to(kubectl_path())
    environment = {
        **place.storage.environment(),
        "KUBECONFIG": str(control_plane.admin_kubeconfig),
        "PATH": f"{programs}:{os.defpath}",
        "HOME": str(tmp_path),
        "PYTHONPATH": os.pathsep.join(sys.path),
        "COLUMNS": "100",
    }
    variables = [f"{name}={value}" for name, value in environment.items()]
    isoloss = [sys.executable, "-m", "isoloss", "watch", "--namespace", user.namespace]
    return ["env", "-i", *variables, *isoloss]


def ended(command: list[str], *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*command, *arguments], capture_output=True, text=True, check=False, timeout=300
    )


def test_watching_a_sweep_and_a_prediction_ends_when_they_are_ready(
    operator: OperatorProcess, user: User, node: ProcessNode, place: Place, watch: list[str]
) -> None:
    """Every change is a line, the last of which says what there is now."""
    user.apply_sweep(sweep_manifest("dense", place.uri))
    user.apply_prediction(prediction_manifest("target", "dense"))
    operator.start()
    last = {"scalingsweep/dense": "laws fitted", PREDICTION: "laws fitted; learning rate "}
    watching = {
        what: subprocess.Popen(
            [*watch, what, "--every", "1"],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for what in last
    }
    for what, process in watching.items():
        out, problems = process.communicate(timeout=300)
        assert process.returncode == 0, (out, problems)
        assert len(out.splitlines()) > 1
        assert last[what] in out.splitlines()[-1]
        assert "not read" not in out
    picture = ended(watch, PREDICTION, "--once").stdout
    found = json.loads(ended(watch, PREDICTION, "--json").stdout)
    assert "points 18/18, laws fitted" in picture
    assert found["ready"] is True
    assert f"learning rate {found['prediction']['learningRate']['value']}, batch size" in picture


def test_watching_what_is_not_there_says_so(user: User, watch: list[str]) -> None:
    missing = ended(watch, "scalingsweep/dense")
    assert missing.returncode == 2
    assert '"dense" not found' in missing.stderr
