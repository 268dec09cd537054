"""The whole operator, as its own process with its own rights, against real servers.

Pods run on a process node and train by a synthetic loss surface (tests/support/synthetic_trainer.py).
"""

import functools
import json
import time
from pathlib import Path

import pytest
from kubernetes import client

from devcluster.control_plane import ControlPlane
from devcluster.object_storage import ObjectStorage
from devcluster.process_node import ProcessNode
from isoloss.status import View
from isoloss_contract.ledger import PointState
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
from tests.support.operator_process import (
    OperatorProcess,
    User,
    apply_account,
    conditions,
    grant_in,
    prediction_manifest,
    sweep_manifest,
)
from tests.support.synthetic_trainer import SOURCES

pytestmark = [pytest.mark.cluster, pytest.mark.s3]

POINTS = 18
MAX_STATUS_BYTES = 32 * 2**10


def test_from_apply_to_prediction_and_then_silence(
    operator: OperatorProcess, user: User, node: ProcessNode, place: Place
) -> None:
    operator.draws = True
    operator.start()
    user.apply_sweep(sweep(place, grid=sweep_manifest("x", place.uri)["spec"]["grid"]))
    publish = {"configMapName": "answer"}
    user.apply_prediction(prediction_manifest("target", "dense", publish=publish))
    predicted = user.wait_for(lambda: user.prediction("target"), "Ready")
    user.wait_for(lambda: user.sweep("dense"), "Ready")
    fitted = user.wait_for(lambda: user.sweep("dense"), "Reconciling", "False")

    status = fitted["status"]
    assert status["points"]["succeeded"] == status["points"]["total"] == POINTS
    assert len(json.dumps(status)) < MAX_STATUS_BYTES
    assert "annotations" not in fitted["metadata"]
    assert "finalizers" not in fitted["metadata"]
    assert set(place.traces.starts().values()) == {1}
    assert len(place.traces.starts()) == POINTS
    assert place.traces.most_at_once() <= 6

    ledger = place.ledger(fitted)
    assert ledger.digest == status["ledger"]["sha256"]
    assert {record.state for record in ledger.points} == {PointState.SUCCEEDED}
    folder = place.folder / "sweeps" / f"dense-{fitted['metadata']['uid']}"
    assert (folder / "report.html").stat().st_size > 100_000
    rate = float(predicted["status"]["learningRate"]["value"])
    low, high = (float(predicted["status"]["learningRate"][end]) for end in ("low", "high"))
    assert low <= rate <= high
    assert predicted["status"]["ledgerSha256"] == ledger.digest
    target = place.folder / "predictions" / f"target-{predicted['metadata']['uid']}"
    wait_until(lambda: user.prediction("target")["status"]["reportUri"], "the answer's page", 180)
    assert (target / "report.html").stat().st_size > 100_000
    beside = json.loads((folder / "report.json").read_text())
    assert View(beside).is_ready
    assert beside["status"]["points"] == status["points"]
    assert beside["status"]["sizes"] == status["sizes"]
    assert beside["status"]["learningRateLaw"] == status["learningRateLaw"]
    assert beside["metadata"].items() <= fitted["metadata"].items()
    core = client.CoreV1Api(user.api_client)
    answer = core.read_namespaced_config_map("answer", user.namespace)
    assert float(answer.data["learningRate"]) == rate

    assert get(operator, "/healthz")[0] == get(operator, "/readyz")[0] == 200
    assert get(operator, "/nothing")[0] == 404
    shown = metrics(operator)
    points = {labels["state"]: value for labels, value in shown["isoloss_scalingsweep_points"]}
    assert points == {"pending": 0, "active": 0, "succeeded": POINTS, "diverged": 0, "failed": 0}
    assert shown["isoloss_leader"] == [({}, 1.0)]
    ours = [labels for labels, _ in shown["isoloss_api_calls_total"]]
    assert not [labels for labels in ours if labels["status"] in ("0", "403", "422", "500")]

    reported = user.events("dense", "target")
    assert 3 <= len(reported) <= 25, reported

    version = user.sweep("dense")["metadata"]["resourceVersion"]
    time.sleep(3)
    assert user.sweep("dense")["metadata"]["resourceVersion"] == version, "it writes without need"

    assert operator.stop() == 0
    lease = client.CoordinationV1Api(user.api_client).read_namespaced_lease(NAME, user.namespace)
    assert not lease.spec.holder_identity
    assert not [line for line in operator.lines() if line["level"] in ("WARNING", "ERROR")]

    operator.start()
    operator.url()
    wait_until(lambda: get(operator, "/readyz")[0] == 200, "the second start")
    time.sleep(2)
    assert user.sweep("dense")["status"] == status, "a restart changes nothing"
    assert len(place.traces.read("start")) == POINTS
    user.delete_sweep("dense")
    wait_until(
        lambda: "isoloss_scalingsweep_points" not in metrics(operator), "its gauges to vanish"
    )


def test_a_sweep_on_a_corpus_that_was_replaced_at_its_address_adopts_nothing(
    operator: OperatorProcess, user: User, node: ProcessNode, place: Place
) -> None:
    """It says so; the sweep before it keeps its corpus, and one after it adopts the new one's points."""
    operator.start()
    user.apply_sweep(sweep(place))
    former = finished(user)
    sources = place.folder / SOURCES
    sources.parent.mkdir(parents=True, exist_ok=True)
    sources.write_text("another text at the same address")
    for name in ("replaced", "again"):
        body = sweep(place)
        body["metadata"]["name"] = name
        user.apply_sweep(body)
        look = functools.partial(user.sweep, name)
        user.wait_for(look, "Progressing", "False", "Finished")
    assert len(place.traces.starts()) == 2 * SMALL_POINTS
    found, again = user.sweep("replaced"), user.sweep("again")
    assert found["status"]["dataDigest"] != former["status"]["dataDigest"]
    assert again["status"]["dataDigest"] == found["status"]["dataDigest"]
    says = conditions(found)["DataReady"]["message"]
    assert "the files of its sources, or the tokenizer, are not those that data/" in says
    assert "It is in data/" not in conditions(former)["DataReady"]["message"]
    assert (
        conditions(user.sweep("dense"))["DataReady"]["message"]
        == (conditions(former)["DataReady"]["message"])
    )


def test_a_sweep_deleted_while_it_runs_takes_its_pods_along(
    operator: OperatorProcess, user: User, node: ProcessNode, place: Place
) -> None:
    operator.start()
    user.apply_sweep(sweep(place, seconds=60))
    wait_until(lambda: len(place.traces.read("start")) >= 6, "points to train")
    user.delete_sweep("dense")
    wait_until(lambda: not user.jobs() and not user.pods(), "Jobs and pods to go", 30)
    assert len(place.traces.read("interrupted")) == 6
    user.apply_sweep(sweep(place, seconds=0.02))
    finished(user)
    resumed = [trace for trace in place.traces.read("start") if trace["from"] > 0]
    assert resumed, "the checkpoints of the deleted sweep are used"


def test_laws_that_are_lost_while_the_operator_runs_are_fitted_again(
    operator: OperatorProcess, user: User, node: ProcessNode, place: Place
) -> None:
    operator.environment |= {"ISOLOSS_RESYNC_SECONDS": "2", "ISOLOSS_IDLE_SECONDS": "2"}
    operator.start()
    user.apply_sweep(sweep(place))
    metadata = finished(user)["metadata"]
    # The laws of all points, not provisional ones.
    user.wait_for(lambda: user.sweep("dense"), "Reconciling", "False", "UpToDate")
    folder = place.folder / "sweeps" / f"{metadata['name']}-{metadata['uid']}"
    before = (folder / "laws.json").read_bytes()
    time.sleep(5)  # some passes without a loss
    (folder / "laws.json").unlink()
    wait_until(lambda: (folder / "laws.json").exists(), "the laws to be fitted again", 60)
    wait_until(lambda: (folder / "laws.json").read_bytes() == before, "the same laws", 30)
    (folder / "fit.json").write_bytes(b"{")
    wait_until(lambda: (folder / "fit.json").read_bytes() != b"{", "the record again", 60)
    assert operator.starts == 1


def test_a_suspended_sweep_stops_its_pods_and_resumes_from_their_checkpoints(
    operator: OperatorProcess, user: User, node: ProcessNode, place: Place
) -> None:
    operator.start()
    user.apply_sweep(sweep(place, seconds=8))
    wait_until(lambda: len(place.traces.read("start")) >= 6, "points to train")
    time.sleep(2)
    user.apply_sweep(sweep(place, seconds=8, suspend=True))
    user.wait_for(lambda: user.sweep("dense"), "Suspended", "True", "Suspended")
    assert not [pod for pod in user.pods() if pod.status.phase in ("Running", "Pending")]
    started = len(place.traces.read("start"))
    time.sleep(2)
    assert len(place.traces.read("start")) == started
    user.apply_sweep(sweep(place, seconds=0.1))
    ended = finished(user)
    assert {trace["from"] > 0 for trace in place.traces.read("start")[started:]} >= {True}
    records = place.ledger(ended).points
    assert not any(record.attempts.charged for record in records), "nobody's fault"
    assert set(place.traces.ends().values()) == {1}


def test_two_namespaces_do_not_disturb_each_other(
    control_plane: ControlPlane,
    user: User,
    node: ProcessNode,
    object_storage: ObjectStorage,
    tmp_path: Path,
    second_namespace: User,
) -> None:
    places = [new_place(object_storage), new_place(object_storage)]
    users = [user, second_namespace]
    allowed = {u.namespace: [p.uri, "s3://models"] for u, p in zip(users, places, strict=True)}
    environment = {
        **object_storage.environment(),
        "ISOLOSS_ALLOWED_STORAGE": json.dumps(allowed),
    }
    apply_account(user.api_client, second_namespace.namespace)
    namespaces = [second_namespace.namespace, user.namespace]
    operator = OperatorProcess(control_plane, namespaces, tmp_path, environment)
    grant_in(user, second_namespace.namespace)
    try:
        operator.start()
        for each, place in zip(users, places, strict=True):
            each.apply_sweep(sweep(place))
            each.apply_prediction(prediction_manifest("target", "dense"))
        ended = [finished(each) for each in users]
        for body, place in zip(ended, places, strict=True):
            assert body["status"]["points"]["succeeded"] == SMALL_POINTS
            assert set(place.traces.starts().values()) == {1}
            assert len(place.traces.starts()) == SMALL_POINTS
        for each in users:
            wait_until(
                lambda each=each: "initialLoss" in each.prediction("target")["status"], "L_init"
            )
        stolen = sweep(places[1])
        stolen["metadata"]["name"] = "stolen"
        user.apply_sweep(stolen)
        user.wait_for(lambda: user.sweep("stolen"), "Accepted", "False", "StorageNotAllowed")
    finally:
        operator.end()


def test_a_second_operator_waits_and_takes_over(
    operator: OperatorProcess,
    control_plane: ControlPlane,
    user: User,
    node: ProcessNode,
    place: Place,
    tmp_path: Path,
) -> None:
    folder = tmp_path / "second"
    folder.mkdir()
    second = OperatorProcess(control_plane, [user.namespace], folder, operator.environment)
    operator.start()
    operator.url()
    wait_until(lambda: metrics(operator)["isoloss_leader"] == [({}, 1.0)], "the first to lead")
    try:
        second.start()
        wait_until(lambda: get(second, "/readyz")[0] == 200, "the second to stand by")
        user.apply_sweep(sweep(place, seconds=1, parallelism=2))
        wait_until(lambda: place.traces.read("start"), "points to train")
        assert metrics(second)["isoloss_leader"] == [({}, 0.0)]
        operator.kill()
        assert finished(user)["status"]["points"]["succeeded"] == SMALL_POINTS
        assert metrics(second)["isoloss_leader"] == [({}, 1.0)]
        assert set(place.traces.starts().values()) == {1}
        assert place.traces.most_at_once() <= 2
    finally:
        second.end()


@pytest.mark.whole
def test_bad_settings_end_it_with_the_variables_name(
    control_plane: ControlPlane, user: User, tmp_path: Path
) -> None:
    environment = {"ISOLOSS_WORKERS": "none"}
    operator = OperatorProcess(control_plane, [user.namespace], tmp_path, environment)
    operator.start()
    assert operator.process is not None
    assert operator.process.wait(30) == 2
    assert "ISOLOSS_WORKERS" in operator.log.read_text()


@pytest.mark.whole
def test_a_namespace_that_takes_the_operators_rights_away_is_told_and_others_are_served(
    control_plane: ControlPlane,
    user: User,
    second_namespace: User,
    place: Place,
    tmp_path: Path,
) -> None:
    """It is asked on, and served again once it gives them back."""
    lost = second_namespace
    apply_account(user.api_client, lost.namespace)
    grant_in(lost, user.namespace)
    environment = {**place.storage.environment(), "ISOLOSS_WATCH_SECONDS": "2"}
    namespaces = [user.namespace, lost.namespace]
    operator = OperatorProcess(control_plane, namespaces, tmp_path, environment)
    rbac = client.RbacAuthorizationV1Api(user.api_client)

    def is_refused() -> bool:
        shown = metrics(operator)["isoloss_watch_refused"]
        refused = {labels["namespace"]: value for labels, value in shown}
        assert refused[user.namespace] == 0
        return refused[lost.namespace] == 1

    try:
        operator.start()
        wait_until(lambda: "isoloss_watch_refused" in metrics(operator), "the operator to watch")
        rbac.delete_collection_namespaced_role_binding(lost.namespace)
        wait_until(is_refused, "the refused watch to be told")
        user.apply_sweep(sweep(place))
        user.wait_for(lambda: user.sweep("dense"), "Accepted", "False", "StorageNotAllowed")
        lost.apply_sweep(sweep(place))
        time.sleep(8)  # further refusals, on which nothing more is said
        assert get(operator, "/healthz")[0] == get(operator, "/readyz")[0] == 200
        grant_in(lost, user.namespace)
        wait_until(lambda: not is_refused(), "the watches to be allowed")
        lost.wait_for(lambda: lost.sweep("dense"), "Accepted", "False", "StorageNotAllowed")
        assert operator.starts == 1
        assert operator.is_running()
        reported = [line["message"] for line in operator.lines() if line["level"] != "INFO"]
        assert len([each for each in reported if "refuses the watch of" in each]) == 1, reported
        assert len([each for each in reported if "APIForbiddenError" in each]) <= 2, reported
    finally:
        operator.end()
