"""The API server as the operator sees it."""

from __future__ import annotations

import pytest
from kubernetes import config

from devcluster.control_plane import ControlPlane
from isoloss_operator.cluster.client import Cluster
from isoloss_operator.cluster.rbac import NAME
from tests.support.operator_process import User


@pytest.fixture
def cluster(control_plane: ControlPlane, user: User) -> Cluster:
    """With the rights of the operator's service account."""
    kubeconfig = control_plane.kubeconfig_for_service_account(user.namespace, NAME)
    return Cluster(config.new_client_from_config(config_file=str(kubeconfig)))
