"""Jobs and pods of the API server, reduced to what the core decides by."""

from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any

import pytest

from isoloss_operator.cluster import observe
from isoloss_operator.cluster.manifests import QUEUE_LABEL
from isoloss_operator.cluster.observe import is_of_namesake, is_owned_by
from isoloss_operator.decide.attempts import accelerator_seconds
from isoloss_operator.decide.observation import (
    LABEL_ATTEMPT,
    LABEL_KEY,
    LABEL_KIND,
    LABEL_STORE,
    ObservedJob,
    ObservedPod,
)


def job(uid: str = "j1", *, conditions: Any = (), **changes: Any) -> dict[str, Any]:
    labels = {LABEL_KIND: "train", LABEL_KEY: "k" * 32, LABEL_ATTEMPT: "3", LABEL_STORE: "s"}
    metadata = {
        "name": f"job-{uid}",
        "uid": uid,
        "labels": labels,
        "creationTimestamp": "2026-01-02T03:04:05Z",
        "ownerReferences": [{"uid": "owner", "controller": True}],
    }
    status = {"conditions": list(conditions), **changes.pop("status", {})}
    return {
        "metadata": {**metadata, **changes.pop("metadata", {})},
        "spec": changes,
        "status": status,
    }


def pod(
    job_uid: str = "j1", *, name: str = "p1", created: str = "05", **changes: Any
) -> dict[str, Any]:
    return {
        "metadata": {
            "name": name,
            "labels": {"batch.kubernetes.io/controller-uid": job_uid, LABEL_KEY: "k" * 32},
            "creationTimestamp": f"2026-01-02T03:04:{created}Z",
            **changes.pop("metadata", {}),
        },
        "status": {"phase": "Running", **changes},
    }


def observe_jobs(jobs: Iterable[Any], pods: Iterable[Any]) -> tuple[ObservedJob, ...]:
    """The Jobs with their pods, none of them lost."""
    seen = [each for job in jobs if (each := observe.observe_job(job)) is not None]
    return observe.with_pods(seen, [observe.observe_pod(pod) for pod in pods])


def speaks(of: Any, *pods: Any) -> ObservedPod:
    """The pod that tells how a Job stands."""
    (seen,) = observe_jobs([of], pods)
    assert seen.pod is not None
    return seen.pod


def orphaned_pods(jobs: Iterable[Any], pods: Iterable[Any]) -> tuple[str, ...]:
    known = {job["metadata"]["uid"] for job in jobs}
    found = observe.orphaned_pods(known, [observe.observe_pod(pod) for pod in pods])
    return tuple(pod.key for pod in found)


def ended(code: int, **more: Any) -> dict[str, Any]:
    return {
        "phase": "Failed",
        "containerStatuses": [
            {"name": "sidecar", "state": {"terminated": {"exitCode": 9}}},
            {"name": "trainer", "state": {"terminated": {"exitCode": code, **more}}},
        ],
    }


def test_a_running_job_keeps_its_names_and_times() -> None:
    (seen,) = observe_jobs([job(status={"startTime": "2026-01-02T03:04:06Z"})], [pod()])
    assert (seen.kind, seen.key, seen.attempt, seen.store) == ("train", "k" * 32, 3, "s")
    assert seen.created == datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
    assert seen.started == datetime(2026, 1, 2, 3, 4, 6, tzinfo=UTC)
    assert not seen.is_finished
    assert seen.unfinished_pods == 1
    assert seen.holds_a_slot


def test_a_pod_that_has_ended_is_not_at_work_whatever_its_container_says() -> None:
    """As the pod garbage collector leaves the pods of a node that is gone."""
    running = {"running": {"startedAt": "2026-01-02T03:04:05Z"}}
    left = pod(phase="Failed", containerStatuses=[{"name": "trainer", "state": running}])
    (seen,) = observe_jobs([job()], [left])
    assert (seen.working_since, seen.worked_seconds) == (None, 0)


def test_conditions_tell_how_a_job_ended() -> None:
    failed = {"type": "Failed", "status": "True", "reason": "PodFailurePolicy", "message": "m"}
    target = {"type": "FailureTarget", "status": "True", "reason": "x"}
    (seen,) = observe_jobs([job(conditions=[target, failed])], [])
    assert (seen.failed, seen.complete, seen.reason, seen.message) == (
        True,
        False,
        "PodFailurePolicy",
        "m",
    )
    (seen,) = observe_jobs([job(conditions=[{**failed, "type": "Complete"}])], [])
    assert seen.complete
    (seen,) = observe_jobs([job(conditions=[{**failed, "status": "False"}])], [])
    assert not seen.is_finished


def test_the_trainers_own_exit_counts_not_a_sidecars() -> None:
    seen = speaks(job(), pod(**ended(43, reason="Error", message='{"code":"x"}')))
    assert (seen.exit_code, seen.reason) == (43, "Error")
    assert seen.termination_message == '{"code":"x"}'


def test_of_several_pods_the_newest_speaks() -> None:
    old, new = pod(name="a", created="05", **ended(75)), pod(name="b", created="06")
    for order in ([old, new], [new, old]):
        assert speaks(job(), *order).phase == "Running"
        assert observe_jobs([job()], order)[0].unfinished_pods == 1


def test_of_two_pods_of_one_second_the_one_at_work_speaks() -> None:
    assert speaks(job(), pod(name="z", **ended(75)), pod(name="a")).phase == "Running"


def _finished(code: int, second: int, **more: Any) -> dict[str, Any]:
    return ended(code, finishedAt=f"2026-01-02T03:05:{second:02}Z", **more)


def test_of_the_pods_that_share_a_preparation_the_first_to_fail_speaks() -> None:
    shared = job(completionMode="Indexed", completions=3)
    pods = [
        pod(name="p0", created="07", **_finished(75, 30)),
        pod(name="p1", created="05", **_finished(45, 20)),
        pod(name="p2", created="06", **_finished(1, 25)),
    ]
    for order in (pods, pods[::-1]):
        assert speaks(shared, *order).exit_code == 45


def test_of_the_pods_that_share_a_preparation_one_at_work_speaks_before_those_that_are_done() -> (
    None
):
    shared = job(completionMode="Indexed", completions=3)
    (seen,) = observe_jobs(
        [shared], [pod(name="p0", created="05"), pod(name="p1", created="06", **_finished(0, 9))]
    )
    assert seen.pod is not None
    assert seen.pod.phase == "Running"
    assert seen.unfinished_pods == 1


DISRUPTED = {"type": "DisruptionTarget", "status": "True"}


def test_of_the_pods_that_train_together_the_one_that_says_why_it_failed_speaks() -> None:
    """The others crash when it leaves them, in the same second or before its container is seen to end."""
    together = job(completionMode="Indexed", completions=2, parallelism=2)
    failed = {"conditions": [{"type": "Failed", "status": "True"}]}
    causes = (
        ended(47),
        ended(137, reason="OOMKilled"),
        ended(137) | {"conditions": [DISRUPTED]},
    )
    for cause in causes:
        pods = [pod(name="p0", **_finished(1, 20)), pod(name="p1", **cause)]
        over = {**together, "status": {**together["status"], **failed}}
        assert speaks(over, *pods).exit_code != 1


def test_pods_that_train_together_are_at_work_once_all_are() -> None:
    running = {"name": "trainer", "state": {"running": {"startedAt": "2026-01-02T03:05:00Z"}}}
    full = {
        "type": "PodScheduled",
        "status": "False",
        "reason": "Unschedulable",
        "message": "full",
    }
    together = job(completionMode="Indexed", completions=2, parallelism=2)
    first = pod(name="p0", containerStatuses=[running])
    waits = pod(name="p1", phase="Pending", conditions=[full], containerStatuses=[])
    (seen,) = observe_jobs([together], [first, waits])
    assert not seen.is_at_work
    assert seen.pod is not None
    assert seen.pod.unschedulable == "full"
    (seen,) = observe_jobs([together], [first, pod(name="p1", containerStatuses=[running])])
    assert seen.is_at_work
    assert accelerator_seconds(seen, datetime(2026, 1, 2, 3, 5, 10, tzinfo=UTC)) == 20


def test_a_preempted_pod_of_several_does_not_speak_while_its_job_goes_on() -> None:
    together = job(completionMode="Indexed", completions=2, parallelism=2)
    gone = ended(137) | {"conditions": [DISRUPTED]}
    pods = [pod(name="p0"), pod(name="p1", **gone), pod(name="p1-again", created="09")]
    assert speaks(together, *pods).phase == "Running"


def test_a_shared_preparation_is_lost_with_any_of_its_pods() -> None:
    """The first pod would wait for the lost one's units: Kubernetes starts no other in its place."""
    for mode, lost in (({"completionMode": "Indexed"}, True), ({}, False)):
        seen = observe.observe_job(job(**mode))
        assert seen is not None
        facts = [
            observe.observe_pod(pod(name="p0")),
            observe.observe_pod(pod(name="p1"), is_lost=True),
        ]
        (found,) = observe.with_pods([seen], facts)
        assert found.lost is lost


@pytest.mark.parametrize("kind", ["train", "prepare", "evaluate"])
@pytest.mark.parametrize("code", [0, 1])
def test_a_trainer_that_another_container_outlives_has_ended_its_attempt(
    kind: str, code: int
) -> None:
    labels = {LABEL_KIND: kind, LABEL_KEY: "k" * 32, LABEL_ATTEMPT: "3", LABEL_STORE: "s"}
    seen = observe.observe_job(job(metadata={"labels": labels}))
    assert seen is not None
    pods = [observe.observe_pod(pod(**ended(code) | {"phase": "Running"}), is_outlived=True)]
    (found,) = observe.with_pods([seen], pods)
    assert (found.complete, found.failed) == (code == 0, code != 0)
    assert found.must_be_deleted


def test_an_ended_job_holds_its_slot_while_a_pod_runs_that_is_listed_or_counted() -> None:
    failed = {"type": "Failed", "status": "True"}
    for pods, status in (([pod()], {}), ([], {"terminating": 1})):
        (seen,) = observe_jobs([job(conditions=[failed], status=status)], pods)
        assert seen.is_finished
        assert (seen.unfinished_pods, seen.holds_a_slot) == (1, True)


def test_what_keeps_a_pod_waiting_is_told() -> None:
    waiting = {"reason": "CreateContainerConfigError", "message": 'secret "x" not found'}
    status = [{"name": "trainer", "state": {"waiting": waiting}}]
    seen = speaks(job(), pod(phase="Pending", containerStatuses=status))
    assert seen.waiting_reason == "CreateContainerConfigError"
    assert "secret" in seen.waiting_message


def test_an_init_container_that_can_not_start_is_told() -> None:
    status = [{"name": "init", "state": {"waiting": {"reason": "ImagePullBackOff"}}}]
    seen = speaks(job(), pod(phase="Pending", initContainerStatuses=status))
    assert seen.waiting_reason == "ImagePullBackOff"


def test_what_the_kubelet_says_of_the_pod_goes_before_what_it_says_of_the_container() -> None:
    """An eviction looks like any crash from within."""
    evicted = ended(137, reason="ContainerStatusUnknown") | {
        "reason": "Evicted",
        "message": "full",
    }
    seen = speaks(job(), pod(**evicted))
    assert (seen.reason, seen.message, seen.exit_code) == ("Evicted", "full", 137)


def test_an_init_container_that_failed_tells_how_its_pod_ended() -> None:
    def init(code: int) -> dict[str, Any]:
        state = {"terminated": {"exitCode": code, "reason": "Error", "message": "no hub"}}
        waits = {"waiting": {"reason": "PodInitializing"}}
        return {
            "initContainerStatuses": [{"name": "fetch", "state": state}],
            "containerStatuses": [{"name": "trainer", "state": waits}],
        }

    seen = speaks(job(), pod(phase="Failed", **init(1)))
    assert (seen.init_container, seen.exit_code, seen.termination_message) == (
        "fetch",
        1,
        "no hub",
    )
    assert speaks(job(), pod(phase="Failed", **init(0))).exit_code is None
    assert speaks(job(), pod(**{**init(1), **ended(43)})).init_container == ""


def test_a_job_that_a_policy_gave_to_another_controller_says_so_until_that_starts_it() -> None:
    """Nobody here starts it: it used to be starting, or tokenizing the corpus, for ever."""

    def held_up(**more: Any) -> str:
        (seen,) = observe_jobs([job(managedBy="example.com/other", **more)], [])
        return seen.held_up

    assert held_up().startswith("spec.managedBy of Job job-j1 was set to example.com/other")
    assert held_up(status={"startTime": "2026-01-02T03:04:06Z"}) == ""
    assert held_up(metadata={"labels": {**job()["metadata"]["labels"], QUEUE_LABEL: "q"}}) == ""


def test_disruption_and_unschedulability_come_from_conditions() -> None:
    conditions = [
        {"type": "DisruptionTarget", "status": "True", "reason": "PreemptionByScheduler"},
        {
            "type": "PodScheduled",
            "status": "False",
            "reason": "Unschedulable",
            "message": "no gpu",
        },
    ]
    seen = speaks(job(), pod(phase="Pending", conditions=conditions))
    assert (seen.disruption, seen.unschedulable) == ("PreemptionByScheduler", "no gpu")
    gated = {**conditions[1], "reason": "SchedulingGated", "message": "scheduling gates"}
    assert speaks(job(), pod(conditions=[gated])).unschedulable == "scheduling gates"


def test_a_deleted_jobs_pod_is_orphaned_while_it_runs() -> None:
    assert orphaned_pods([job("j1")], [pod("gone"), pod("j1")]) == ("k" * 32,)
    assert orphaned_pods([job("j1")], [pod("gone", **ended(0))]) == ()


def test_a_job_without_our_labels_is_not_ours_to_judge() -> None:
    foreign = job()
    foreign["metadata"]["labels"] = {LABEL_KIND: "dance"}
    assert observe_jobs([foreign], []) == ()


def test_ownership_goes_by_uid_and_controller() -> None:
    assert is_owned_by(job(), "owner")
    assert not is_owned_by(job(), "other")
    assert not is_owned_by(job(metadata={"ownerReferences": [{"uid": "owner"}]}), "owner")


def test_what_a_deleted_namesake_controls_is_known_by_its_uid() -> None:
    owner = {"kind": "HyperparamPrediction", "name": "dense-8b", "controller": True}
    for uid, name, goes in (("old", "dense-8b", True), ("new", "dense-8b", False)):
        left = job(metadata={"ownerReferences": [{**owner, "uid": uid}]})
        assert is_of_namesake(left, "HyperparamPrediction", name, "new") is goes
        assert not is_of_namesake(left, "HyperparamPrediction", "dense-70b", "new")
        assert not is_of_namesake(left, "ScalingSweep", name, "new")


@pytest.mark.parametrize("attempt", ["0", "-1", "1" * 10, "9" * 63, "٣", "1.5", "x", ""])
def test_a_job_with_the_number_of_no_attempt_is_none_of_ours(attempt: str) -> None:
    """It used to be written into the ledger, which could then not be read any more."""
    body = job()
    body["metadata"]["labels"] = {**body["metadata"]["labels"], LABEL_ATTEMPT: attempt}
    assert observe_jobs([body], []) == ()


def test_suspension_and_deletion_are_seen() -> None:
    (seen,) = observe_jobs([job(suspend=True, metadata={"deletionTimestamp": "x"})], [])
    assert (seen.suspended, seen.deleting) == (True, True)


def ran(seconds: int, **more: Any) -> dict[str, Any]:
    times = {
        "startedAt": "2026-01-02T03:04:10Z",
        "finishedAt": f"2026-01-02T03:04:{10 + seconds}Z",
    }
    return ended(0, **times) | more


def test_the_time_of_all_pods_that_ended_is_summed_and_that_of_the_running_one_told_apart() -> (
    None
):
    running = {"name": "trainer", "state": {"running": {"startedAt": "2026-01-02T03:05:00Z"}}}
    pods = [
        pod(name="a", **ran(20)),
        pod(name="b", **ran(30)),
        pod(name="c", containerStatuses=[running]),
    ]
    (seen,) = observe_jobs([job()], pods)
    assert seen.worked_seconds == 50
    assert seen.working_since == datetime(2026, 1, 2, 3, 5, tzinfo=UTC)
    assert accelerator_seconds(seen, datetime(2026, 1, 2, 3, 5, 10, tzinfo=UTC)) == 60


def test_unknown_times_are_not_counted() -> None:
    lost = ended(137, startedAt=None, finishedAt=None, reason="ContainerStatusUnknown")
    (seen,) = observe_jobs([job()], [pod(**lost)])
    assert (seen.worked_seconds, seen.working_since) == (0, None)


def test_a_failed_job_without_a_pod_is_told_by_its_own_times() -> None:
    failed = {"type": "Failed", "status": "True", "lastTransitionTime": "2026-01-02T03:04:36Z"}
    status = {"startTime": "2026-01-02T03:04:06Z"}
    (seen,) = observe_jobs([job(conditions=[failed], status=status)], [])
    assert accelerator_seconds(seen, datetime.now(UTC)) == 30
    (seen,) = observe_jobs([job(conditions=[failed], status=status)], [pod(**ran(20))])
    assert accelerator_seconds(seen, datetime.now(UTC)) == 20
