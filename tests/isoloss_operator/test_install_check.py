"""What `helm test` runs, against a real API server and a real store."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from kubernetes import client

from devcluster.control_plane import ControlPlane
from isoloss_operator.cluster.rbac import NAME
from tests.isoloss_operator.conftest import Place
from tests.support.operator_process import OperatorProcess, User

pytestmark = [pytest.mark.cluster, pytest.mark.s3]


def check(
    kubeconfig: Path, *arguments: str, **environment: str
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "isoloss_operator.install_check", *arguments],
        env={
            "PATH": os.defpath,
            "PYTHONPATH": os.environ.get("PYTHONPATH", ""),
            "KUBECONFIG": str(kubeconfig),
            **environment,
        },
        capture_output=True,
        text=True,
        check=False,
    )


def environment(operator: OperatorProcess, user: User) -> dict[str, str]:
    return {
        **operator.environment,
        "ISOLOSS_TRAINER_IMAGE": "any",
        "ISOLOSS_NAMESPACES": user.namespace,
        "ISOLOSS_LEASE_NAMESPACE": user.namespace,
    }


def test_nothing_is_wrong_with_the_rights_of_the_chart_and_a_store_that_answers(
    operator: OperatorProcess, user: User, place: Place
) -> None:
    allowed = {"ISOLOSS_ALLOWED_STORAGE": json.dumps({user.namespace: [place.uri]})}
    answer = check(operator.log_in(), "operator", **environment(operator, user) | allowed)
    assert (answer.returncode, answer.stdout) == (0, "nothing is wrong\n"), answer.stderr


def test_a_missing_right_and_a_bucket_that_is_not_there_are_named(
    operator: OperatorProcess, user: User
) -> None:
    kubeconfig = operator.log_in()
    rbac = client.RbacAuthorizationV1Api(user.api_client)
    role = rbac.read_namespaced_role(NAME, user.namespace)
    role.rules = [rule for rule in role.rules if "jobs" not in rule.resources]
    rbac.replace_namespaced_role(NAME, user.namespace, role)
    allowed = {"ISOLOSS_ALLOWED_STORAGE": json.dumps({"*": ["s3://no-such-bucket"]})}
    answer = check(kubeconfig, "operator", **environment(operator, user) | allowed)
    assert answer.returncode == 1
    assert f"the operator may not create jobs in namespace {user.namespace}" in answer.stdout
    assert "pods" not in answer.stdout
    assert "storage s3://no-such-bucket: " in answer.stdout


@pytest.mark.whole
def test_a_sweep_is_accepted_from_who_may_create_one_and_nothing_is_left(
    operator: OperatorProcess, user: User, control_plane: ControlPlane
) -> None:
    answer = check(control_plane.admin_kubeconfig, "sweep", user.namespace)
    assert answer.returncode == 0, answer.stdout + answer.stderr
    with pytest.raises(client.ApiException, match="404"):
        user.sweep("helm-test")
    refused = check(operator.log_in(), "sweep", user.namespace)
    assert refused.returncode == 1
    assert "403" in refused.stdout
