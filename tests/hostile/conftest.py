"""A whole operator that serves two tenants, with the chart's limits of memory and lease."""

import json
import resource
from collections.abc import Iterator
from pathlib import Path

import pytest

from devcluster.control_plane import ControlPlane
from tests.hostile.neighbour import chart_memory_bytes
from tests.isoloss_operator.conftest import (  # noqa: F401 (fixtures are found by name)
    Place,
    node,
    place,
    second_namespace,
    user,
)
from tests.support.operator_process import OperatorProcess, User, apply_account, grant_in

CHART_LEASE = {
    "ISOLOSS_LEASE_SECONDS": "15",
    "ISOLOSS_RENEW_DEADLINE_SECONDS": "10",
    "ISOLOSS_RENEW_PERIOD_SECONDS": "2",
}
"""The chart sets none of them: these are the operator's own values."""


class LimitedOperator(OperatorProcess):
    """An operator that gets no more memory than a pod of the chart."""

    def start(self) -> None:
        """Start it without waiting."""
        super().start()
        assert self.process is not None
        # Of its data, which an allocation beyond it is refused; a pod's cgroup would kill it.
        limit = chart_memory_bytes()
        resource.prlimit(self.process.pid, resource.RLIMIT_DATA, (limit, limit))


@pytest.fixture
def tenant(second_namespace: User) -> User:  # noqa: F811
    """Whoever may create sweeps in a namespace, and nothing else."""
    return second_namespace


@pytest.fixture
def limited(
    control_plane: ControlPlane,
    user: User,  # noqa: F811
    tenant: User,
    place: Place,  # noqa: F811
    tmp_path: Path,
) -> Iterator[LimitedOperator]:
    """An operator for both namespaces."""
    environment = {
        **place.storage.environment(),
        **CHART_LEASE,
        "ISOLOSS_ALLOWED_STORAGE": json.dumps({"*": [f"s3://{place.bucket}"]}),
    }
    apply_account(user.api_client, tenant.namespace)
    grant_in(user, tenant.namespace)
    namespaces = [tenant.namespace, user.namespace]
    process = LimitedOperator(control_plane, namespaces, tmp_path, environment)
    yield process
    process.end()
