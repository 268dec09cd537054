"""What the operator does while its API server is away, or does not know its kinds yet."""

import json
import secrets
import shutil
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from kubernetes import client

from devcluster.cluster import DevCluster
from devcluster.control_plane import ControlPlane
from devcluster.kubelet.settings import NodeOptions
from devcluster.object_storage import ObjectStorage
from devcluster.process_node import ProcessNode
from isoloss_operator.cluster.rbac import NAME
from tests.isoloss_operator.conftest import (
    SMALL_POINTS,
    Place,
    finished,
    get,
    metrics,
    new_place,
    sweep,
)
from tests.support.cluster import wait_until
from tests.support.crds import install_crds
from tests.support.operator_process import STORE_SECRET, OperatorProcess, User, apply_account
from tests.support.proxy import Call, Forward, Proxy, pass_on

pytestmark = [pytest.mark.cluster, pytest.mark.s3, pytest.mark.xdist_group("outage")]

OUTAGE_SECONDS = 20


@pytest.fixture(scope="module")
def plane(dev_cluster: DevCluster) -> Iterator[ControlPlane]:
    """A control plane of these tests alone, at first without CRDs."""
    plane = ControlPlane(dev_cluster.directory / "own" / f"plane-{secrets.token_hex(4)}")
    plane.start()
    yield plane
    plane.stop()
    shutil.rmtree(plane.directory, ignore_errors=True)


def new_user(plane: ControlPlane, storage: ObjectStorage) -> User:
    """A user in a namespace of the plane, with the operator's account."""
    api_client = plane.api_client()
    namespace = f"test-{secrets.token_hex(4)}"
    body: Any = {"metadata": {"name": namespace}}
    client.CoreV1Api(api_client).create_namespace(body)
    apply_account(api_client, namespace)
    user = User(api_client, namespace)
    user.create_secret(STORE_SECRET, storage.environment())
    return user


def new_operator(
    plane: ControlPlane, user: User, place: Place, folder: Path, **environment: str
) -> OperatorProcess:
    """An operator of its own for one user."""
    folder.mkdir()
    allowed = json.dumps({user.namespace: [place.uri]})
    settings = {"ISOLOSS_ALLOWED_STORAGE": allowed, **environment}
    return OperatorProcess(
        plane, [user.namespace], folder, {**place.storage.environment(), **settings}
    )


def test_without_the_crds_it_ends_with_a_code_of_its_own_and_says_what_to_do(
    plane: ControlPlane, object_storage: ObjectStorage, tmp_path: Path
) -> None:
    user = new_user(plane, object_storage)
    operator = new_operator(plane, user, new_place(object_storage), tmp_path / "operator")
    operator.start()
    assert operator.process is not None
    assert operator.process.wait(60) == 3
    last = operator.lines()[-1]
    assert last["level"] == "ERROR"
    assert "scalingsweeps.isoloss.dev" in last["message"]
    assert "hyperparampredictions.isoloss.dev" in last["message"]
    assert "install the CRDs" in last["message"]


def supervise(operator: OperatorProcess) -> int | None:
    """Start it again where it has ended, as Kubernetes does; its exit code then."""
    assert operator.process is not None
    code = operator.process.poll()
    if code is not None:
        operator.start()
    return code


@pytest.mark.whole
@pytest.mark.slow
def test_an_api_server_that_goes_away_for_a_while_costs_no_point(
    plane: ControlPlane, object_storage: ObjectStorage, tmp_path: Path
) -> None:
    """One operator's lease is shorter than the outage: it ends once and waits. The other's is longer, and it stays."""
    install_crds(plane.api_client())
    node = ProcessNode(plane, tmp_path / "node", options=NodeOptions(cpu="64"))
    users = [new_user(plane, object_storage) for _ in range(2)]
    places = [new_place(object_storage) for _ in users]
    longer = {"ISOLOSS_LEASE_SECONDS": "600", "ISOLOSS_RENEW_DEADLINE_SECONDS": "500"}
    environments = [{}, longer]
    made = zip(users, places, environments, strict=True)
    operators = [
        new_operator(plane, user, place, tmp_path / user.namespace, **environment)
        for user, place, environment in made
    ]
    try:
        node.start()
        for operator, user, place in zip(operators, users, places, strict=True):
            operator.start()
            user.apply_sweep(sweep(place, seconds=2, parallelism=4))
        wait_until(lambda: all(place.traces.read("start") for place in places), "points to train")
        plane.component("kube-apiserver").kill()
        codes = endure(operators)
        plane.start_component("kube-apiserver")
        # Left alone, these two wait for up to another minute before they ask again.
        for name in ("kube-controller-manager", "kube-scheduler"):
            plane.component(name).kill()
            plane.start_component(name)
        for user, place in zip(users, places, strict=True):
            ended = finished(user)
            assert ended["status"]["points"]["succeeded"] == SMALL_POINTS
            assert set(place.traces.starts().values()) == {1}
            assert len(place.traces.starts()) == SMALL_POINTS
            assert place.traces.most_at_once() <= 4
            assert {record.attempts.ended for record in place.ledger(ended).points} == {1}
        assert codes == [[1], []]
        assert [operator.starts for operator in operators] == [2, 1]
        assert all(operator.is_running() for operator in operators)
    finally:
        for operator in operators:
            operator.end()
        node.stop()


def endure(operators: list[OperatorProcess]) -> list[list[int]]:
    """An outage under supervision: every probe is answered with 200; exit codes per operator."""
    codes: list[list[int]] = [[] for _ in operators]
    until = time.monotonic() + OUTAGE_SECONDS
    while time.monotonic() < until:
        for found, operator in zip(codes, operators, strict=True):
            if (code := supervise(operator)) is not None:
                found.append(code)
            else:
                assert_is_healthy(operator)
        time.sleep(0.5)
    return codes


def assert_is_healthy(operator: OperatorProcess) -> None:
    """A probe gets 200, or nothing from a process that ends just now."""
    try:
        assert get(operator, "/healthz")[0] == 200
    except OSError:
        wait_until(lambda: not operator.is_running(), "a silent operator to have ended", 5)


def test_a_leader_whose_api_server_hangs_ends_before_its_lease_does(
    plane: ControlPlane, object_storage: ObjectStorage, tmp_path: Path
) -> None:
    """Connections are taken and never answered: another could lead after the lease's eight seconds."""
    install_crds(plane.api_client())
    user = new_user(plane, object_storage)
    quick = {"ISOLOSS_LEASE_SECONDS": "8", "ISOLOSS_RENEW_DEADLINE_SECONDS": "4"}
    operator = new_operator(plane, user, new_place(object_storage), tmp_path / "operator", **quick)
    server = plane.component("kube-apiserver")
    operator.start()
    assert operator.process is not None
    try:
        # /readyz is 200 as well for one that stands by.
        wait_until(lambda: metrics(operator)["isoloss_leader"] == [({}, 1.0)], "it to lead")
        server.signal(signal.SIGSTOP)
        assert operator.process.wait(8) == 1
        assert "Lost the lease" in operator.lines()[-1]["message"]
    finally:
        server.signal(signal.SIGCONT)
        operator.end()


@pytest.mark.whole
def test_one_whose_watch_is_refused_ends_at_once_and_leaves_its_lease_to_the_next(
    plane: ControlPlane, object_storage: ObjectStorage, tmp_path: Path
) -> None:
    """Several times: whether kopf ends its other watch is a matter of chance."""
    install_crds(plane.api_client())
    user = new_user(plane, object_storage)
    operator = new_operator(plane, user, new_place(object_storage), tmp_path / "operator")
    proxy = Proxy(plane.url, plane.keys.ca).start()

    async def refuse_lists_of_sweeps(call: Call, forward: Forward) -> Any:
        if call.path.endswith("/scalingsweeps") and not call.is_watch:
            return web.json_response({"kind": "Status", "code": 409}, status=409)
        return await pass_on(call, forward)

    proxy.handler = refuse_lists_of_sweeps
    operator.log_in().write_text(operator.log_in().read_text().replace(plane.url, proxy.url))
    leases = client.CoordinationV1Api(plane.api_client())
    try:
        for _ in range(4):
            operator.start()
            assert operator.process is not None
            assert operator.process.wait(20) == 1
            lease = leases.read_namespaced_lease(NAME, user.namespace)
            assert not lease.spec.holder_identity
    finally:
        operator.end()
        proxy.close()


@pytest.mark.whole
def test_one_that_waits_for_the_api_server_ends_when_asked_to(
    plane: ControlPlane, object_storage: ObjectStorage, tmp_path: Path
) -> None:
    user = new_user(plane, object_storage)
    operator = new_operator(plane, user, new_place(object_storage), tmp_path / "operator")
    operator.log_in()
    plane.component("kube-apiserver").kill()
    try:
        operator.start()
        wait_until(lambda: "Waiting for the API server" in operator.log.read_text(), "it to wait")
        assert get(operator, "/healthz")[0] == 200
        assert get(operator, "/readyz")[0] == 500
        assert operator.stop() == 0
    finally:
        operator.end()
        plane.start_component("kube-apiserver")
