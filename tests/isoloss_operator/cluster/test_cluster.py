"""Every call of cluster.py and jobs.py against a real API server, with the operator's own rights."""

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from kubernetes import client, config

from devcluster.control_plane import ControlPlane
from isoloss_operator.cluster.client import (
    CONFIG_MAP,
    FIELD_MANAGER,
    JOB,
    PAGE,
    PREDICTION,
    SWEEP,
    Cluster,
    Conflict,
    NotFound,
    Refused,
    Unavailable,
    _message,
)
from isoloss_operator.cluster.config_maps import publish_config_map
from isoloss_operator.cluster.events import send_events
from isoloss_operator.cluster.jobs import CreateRefused, JobWriter
from isoloss_operator.cluster.manifests import Owner
from isoloss_operator.cluster.observe import is_owned_by
from isoloss_operator.cluster.rbac import NAME
from isoloss_operator.decide.plans import (
    ConfigMapRequest,
    Event,
    JobDeletion,
    JobExpiry,
    JobRequest,
)
from isoloss_operator.settings import Settings
from tests.isoloss_operator.cluster.test_manifests import PREPARE
from tests.support.cluster import wait_until
from tests.support.operator_process import User, sweep_manifest

pytestmark = pytest.mark.cluster


@pytest.fixture
def owner(user: User) -> Owner:
    """A sweep to own things."""
    body = user.apply_sweep(sweep_manifest("owner", "s3://bucket/owner"))
    return Owner(SWEEP, user.namespace, "owner", body["metadata"]["uid"])


@pytest.fixture
def writer(cluster: Cluster) -> Iterator[JobWriter]:
    writer = JobWriter(cluster, Settings(trainer_image="synthetic"), writers=8)
    yield writer
    writer.close()


def request(name: str, **changes: Any) -> JobRequest:
    values: dict[str, Any] = {
        "name": name,
        "kind": "prepare",
        "attempt": 1,
        "task": PREPARE,
        "labels": {"isoloss.dev/task": "prepare"},
    }
    return JobRequest(**{**values, **changes})


def job_named(cluster: Cluster, owner: Owner, name: str) -> dict[str, Any] | None:
    """Found by LIST: the operator has no right to GET a Job."""
    return next(cluster.list(JOB, owner.namespace, fields=f"metadata.name={name}"), None)


def names(cluster: Cluster, namespace: str) -> list[str]:
    return sorted(job["metadata"]["name"] for job in cluster.list(JOB, namespace))


def test_discovery_lists_both_kinds_and_nothing_for_an_unknown_group(cluster: Cluster) -> None:
    served = cluster.served_kinds("isoloss.dev", "v1alpha1")
    assert {SWEEP.plural, PREDICTION.plural} <= served
    assert cluster.served_kinds("isoloss.dev", "v9") == frozenset()


def test_a_list_longer_than_a_page_is_whole(
    cluster: Cluster, owner: Owner, writer: JobWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("isoloss_operator.cluster.client.PAGE", 7)
    assert PAGE > 7
    wanted = [f"job-{number:02}" for number in range(23)]
    writer.create(owner, [request(name) for name in wanted])
    assert names(cluster, owner.namespace) == wanted


def test_creating_twice_creates_once(cluster: Cluster, owner: Owner, writer: JobWriter) -> None:
    writer.create(owner, [request("same")])
    writer.create(owner, [request("same"), request("other")])
    assert names(cluster, owner.namespace) == ["other", "same"]


@pytest.mark.parametrize(
    ("template", "message"),
    [
        # The client library's own models would refuse it before the API server can.
        (
            {"spec": {"containers": [{"name": "trainer", "fieldOfTheFuture": 1}]}},
            "unknown field.*fieldOfTheFuture",
        ),
        (
            {
                "spec": {
                    "containers": [{"name": "trainer", "resources": {"limits": {"cpu": "many"}}}]
                }
            },
            "quantit",
        ),
        ({"spec": {"priorityClassName": "UPPER_case"}}, "priorityClassName"),
        ({"spec": {"hostNetwork": True}}, "hostNetwork"),
    ],
)
def test_a_bad_template_is_refused_with_the_field_and_stops_the_rest(
    cluster: Cluster, owner: Owner, writer: JobWriter, template: Any, message: str
) -> None:
    bad = [request(f"bad-{number}", pod_templates=(template,)) for number in range(20)]
    with pytest.raises(CreateRefused, match=message) as refusal:
        writer.create(owner, bad)
    assert not refusal.value.may_pass
    assert names(cluster, owner.namespace) == []


def test_what_is_forbidden_now_may_be_allowed_later(owner: Owner, writer: JobWriter) -> None:
    """As a full quota is, which also answers 403."""
    with pytest.raises(CreateRefused, match="forbidden") as refusal:
        writer.create(replace(owner, namespace="default"), [request("elsewhere")])
    assert refusal.value.may_pass


def test_a_deletion_is_of_one_uid_only(cluster: Cluster, owner: Owner, writer: JobWriter) -> None:
    writer.create(owner, [request("job")])
    job = job_named(cluster, owner, "job")
    assert job is not None
    writer.delete(owner, [JobDeletion("job", "22222222-0000-4000-8000-000000000000")])
    assert "deletionTimestamp" not in (job_named(cluster, owner, "job") or {})["metadata"]
    writer.delete(owner, [JobDeletion("job", job["metadata"]["uid"])])
    after = job_named(cluster, owner, "job")
    assert after is None or "deletionTimestamp" in after["metadata"]
    writer.delete(owner, [JobDeletion("never", "x")])


def test_an_expiry_sets_only_the_time_to_live(
    cluster: Cluster, owner: Owner, writer: JobWriter
) -> None:
    writer.create(owner, [request("job")])
    writer.expire(owner, [JobExpiry("job", 600), JobExpiry("gone", 600)])
    job = job_named(cluster, owner, "job")
    assert job is not None
    assert job["spec"]["ttlSecondsAfterFinished"] == 600


def read(cluster: Cluster, owner: Owner) -> dict[str, Any]:
    found = cluster.get(SWEEP, owner.namespace, owner.name)
    assert found is not None
    metadata: dict[str, Any] = found["metadata"]
    return metadata


def test_a_status_is_applied_whole_and_again_without_a_trace(
    cluster: Cluster, owner: Owner
) -> None:
    status = {"progress": "1/2", "dataDigest": "x"}
    first = cluster.apply_status(SWEEP, read(cluster, owner), status)
    again = cluster.apply_status(SWEEP, read(cluster, owner), status)
    assert first["metadata"]["resourceVersion"] == again["metadata"]["resourceVersion"]
    fewer = cluster.apply_status(SWEEP, read(cluster, owner), {"progress": "2/2"})
    assert fewer["status"] == {"progress": "2/2", "observedGeneration": -1}
    managers = {entry["manager"] for entry in fewer["metadata"]["managedFields"]}
    assert FIELD_MANAGER in managers


def test_a_status_decided_for_an_older_spec_is_not_written(
    cluster: Cluster, owner: Owner, user: User
) -> None:
    before = read(cluster, owner)
    user.apply_sweep(sweep_manifest("owner", "s3://bucket/owner", parallelism=1))
    with pytest.raises(Conflict):
        cluster.apply_status(SWEEP, before, {"progress": "x"})


def test_a_status_never_lands_on_a_namesake_or_makes_a_new_object(
    cluster: Cluster, owner: Owner, user: User
) -> None:
    before = read(cluster, owner)
    user.delete_sweep("owner")
    with pytest.raises((Conflict, NotFound)):
        cluster.apply_status(SWEEP, before, {"progress": "x"})
    assert cluster.get(SWEEP, owner.namespace, "owner") is None
    user.apply_sweep(sweep_manifest("owner", "s3://bucket/owner"))
    with pytest.raises(Conflict):
        cluster.apply_status(SWEEP, before, {"progress": "x"})


ANSWER = ConfigMapRequest("answer", {"ready": "true", "batchSize": "512"})
WITHDRAWN = ConfigMapRequest("answer", {"ready": "false"})


def published(cluster: Cluster, owner: Owner) -> Any:
    return cluster.get(CONFIG_MAP, owner.namespace, "answer")


def test_an_answer_is_published_owned_and_replaced_whole(cluster: Cluster, owner: Owner) -> None:
    """A step that reads a number cannot continue with a withdrawn one."""
    publish_config_map(cluster, owner, ANSWER, None)
    first = published(cluster, owner)
    assert first["data"] == ANSWER.data
    assert is_owned_by(first, owner.uid)
    publish_config_map(cluster, owner, WITHDRAWN, first)
    second = published(cluster, owner)
    assert second["data"] == WITHDRAWN.data
    publish_config_map(cluster, owner, WITHDRAWN, second)
    assert published(cluster, owner)["metadata"] == second["metadata"], "nothing to write"


THEIRS: Any = {"metadata": {"name": "answer"}, "data": {"theirs": "1"}}


@pytest.mark.parametrize("change", ["made", "edited", "made again", "deleted"])
def test_a_config_map_that_changed_since_it_was_read_is_left_alone(
    cluster: Cluster, owner: Owner, user: User, change: str
) -> None:
    core, read = client.CoreV1Api(user.api_client), None
    if change != "made":
        publish_config_map(cluster, owner, ANSWER, None)
        read = published(cluster, owner)
    if change in ("made again", "deleted"):
        core.delete_namespaced_config_map("answer", user.namespace)
    if change in ("made", "made again"):
        core.create_namespaced_config_map(user.namespace, THEIRS)
    if change == "edited":
        core.patch_namespaced_config_map("answer", user.namespace, THEIRS)
    with pytest.raises(NotFound if change == "deleted" else Conflict):
        publish_config_map(cluster, owner, WITHDRAWN, read)
    left = published(cluster, owner)
    assert left["data"]["theirs"] == "1" if change != "deleted" else left is None


def test_a_config_map_that_is_refused_says_so_in_one_kind_of_error(
    cluster: Cluster, owner: Owner, user: User
) -> None:
    """A full quota, a name that the CRD's pattern lets through, no right to write there."""
    with pytest.raises(Refused, match="Invalid value"):
        publish_config_map(cluster, owner, ConfigMapRequest("a..b", {}), None)
    with pytest.raises(Refused, match="forbidden"):
        publish_config_map(cluster, replace(owner, namespace="default"), ANSWER, None)
    quota: Any = {"metadata": {"name": "none"}, "spec": {"hard": {"count/configmaps": "0"}}}
    core = client.CoreV1Api(user.api_client)
    core.create_namespaced_resource_quota(user.namespace, quota)

    def is_full() -> bool:
        try:
            publish_config_map(cluster, owner, ANSWER, None)
        except Refused as error:
            return error.status == 403 and "quota" in str(error)
        core.delete_namespaced_config_map("answer", user.namespace)
        return False

    wait_until(is_full, "the quota to count")


def test_events_are_sent_and_repetitions_are_one(
    cluster: Cluster, owner: Owner, user: User
) -> None:
    event = Event("Normal", "Finished", "All done.")
    send_events(cluster, owner, "test", [event, event])
    assert user.events(owner.name) == ["Finished"]
    # 1,024 bytes are the most that the API server takes.
    send_events(cluster, owner, "test", [Event("Warning", "Crashed", "é" * 1000)])
    assert sorted(user.events(owner.name)) == ["Crashed", "Finished"]


def test_an_unreachable_api_server_is_unavailable_not_a_traceback() -> None:
    configuration = client.Configuration(host="https://127.0.0.1:1")
    cluster = Cluster(client.ApiClient(configuration))
    with pytest.raises(Unavailable, match=r"127\.0\.0\.1"):
        cluster.get(SWEEP, "x", "y")


def test_once_stopped_nothing_is_sent(cluster: Cluster, owner: Owner) -> None:
    cluster.stop()
    with pytest.raises(Unavailable, match="no longer leads"):
        cluster.get(SWEEP, owner.namespace, owner.name)


def test_calls_are_counted_by_status(
    control_plane: ControlPlane, user: User, tmp_path: Path
) -> None:
    seen: list[tuple[str, int, bool]] = []
    kubeconfig = control_plane.kubeconfig_for_service_account(user.namespace, NAME)
    counted = Cluster(
        config.new_client_from_config(config_file=str(kubeconfig)),
        on_call=lambda method, status, seconds: seen.append((method, status, seconds > 0)),
    )
    counted.get(SWEEP, user.namespace, "nobody")
    assert seen == [("GET", 404, True)]


GO = 'core.PodTemplateSpec{ObjectMeta:v1.ObjectMeta{Name:"", Labels:map[string]string{}}}, ' * 60


@pytest.mark.parametrize("has_causes", [False, True])
def test_of_a_long_refusal_the_fields_name_and_the_end_are_kept(*, has_causes: bool) -> None:
    """The middle is a template in Go's notation."""
    wrong = f"Invalid value: {GO}: field is immutable"
    status: dict[str, Any] = {"message": f'Job.batch "x" is invalid: spec.template: {wrong}'}
    if has_causes:
        causes = [
            {"reason": "FieldValueInvalid", "field": f"spec.{name}", "message": wrong}
            for name in ("template", "completions")
        ]
        status["details"] = {"causes": causes}
    words = _message(json.dumps(status).encode())
    assert len(words) < 700
    assert "spec.template: Invalid value" in words
    assert words.endswith(": field is immutable")
    assert ("spec.completions" in words) == has_causes


def test_a_short_refusal_is_said_as_it_is() -> None:
    assert _message(b'{"message": "exceeded quota"}') == "exceeded quota"
    assert _message(b"<html>" + b"x" * 1000).startswith("<html>xxx")
    assert _message(b'{"message": "' + b"x" * 700 + b'", "details": 3}').startswith('{"message"')
