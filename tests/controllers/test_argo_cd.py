"""Sweeps and predictions under Argo CD itself, with the sample's Application and health checks."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from devcluster.control_plane import ControlPlane
from devcluster.process_node import ProcessNode
from tests.controllers.argo_cd import Application, ArgoCD, add_health_checks
from tests.controllers.git_repository import GitRepository
from tests.controllers.sample import TRAINING, research, succeeded
from tests.isoloss_operator.conftest import Place
from tests.support.operator_process import OperatorProcess, User

pytestmark = [pytest.mark.cluster, pytest.mark.s3]


@pytest.fixture(scope="module")
def argo_cd(
    control_plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ArgoCD]:
    running = ArgoCD(control_plane, tmp_path_factory.mktemp("argo-cd"))
    add_health_checks(running.api_client)
    yield running
    running.end()


@pytest.fixture
def application(argo_cd: ArgoCD, user: User, tmp_path: Path) -> Iterator[Application]:
    """Of a repository that has nothing yet, and not applied yet."""
    made = Application(argo_cd, user.namespace, GitRepository(tmp_path / "pretraining"))
    yield made
    made.delete()


def test_a_repository_goes_from_sweep_to_training_and_shows_no_drift(
    application: Application,
    operator: OperatorProcess,
    user: User,
    node: ProcessNode,
    place: Place,
) -> None:
    """In the sample's order; ten further looks of Argo CD find nothing to do, and change no object and no manager."""
    operator.start()
    revision = application.repository.commit(research(user, place))
    application.apply()
    application.wait_for_operation(
        "Running", "waiting for healthy state of isoloss.dev/ScalingSweep/dense"
    )
    assert application.health() in ("Progressing", "Missing")
    application.wait_until_healthy(revision)
    assert succeeded(user, TRAINING)
