"""A control plane that knows the two resources."""

import pytest
from kubernetes import client

from devcluster.control_plane import ControlPlane
from tests.support.cluster import Kubectl
from tests.support.crds import install_crds


@pytest.fixture(scope="session")
def isoloss_api(api_client: client.ApiClient) -> client.ApiClient:
    """An administrator's client of a control plane with the CRDs."""
    install_crds(api_client)
    return api_client


@pytest.fixture(scope="session")
def kubectl(control_plane: ControlPlane) -> Kubectl:
    """kubectl as administrator."""
    return Kubectl(control_plane)
