"""A resource's Jobs and pods, read page by page: which pods are lost, what is kept of a page."""

import gc
import re
import weakref
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from isoloss_operator.cluster.client import JOB, POD, SWEEP, Kind
from isoloss_operator.cluster.live_jobs import JobReader, LiveJobs
from isoloss_operator.cluster.manifests import PODS_ANNOTATION, QUEUE_LABEL, Owner
from isoloss_operator.cluster.transport import ServerClock
from isoloss_operator.cluster.workloads import WorkloadReader
from isoloss_operator.decide.attempts import accelerator_seconds, pod_seconds
from isoloss_operator.decide.jobs import waits_for
from isoloss_operator.decide.observation import LABEL_RECORDED, ObservedJob
from isoloss_operator.decide.reasons import Finding, Reason
from tests.isoloss_operator.cluster.test_observe import ended, job, pod
from tests.support.chance import Clock

OWNER = Owner(SWEEP, "research", "dense", "owner")
GRACE = {"deletionTimestamp": "2020-01-01T00:00:00Z", "deletionGracePeriodSeconds": 30}
"""Deleted years ago, by the clock of an API server that is wrong."""


NOW = datetime(2026, 1, 2, 4, tzinfo=UTC)


class Raw(dict[str, Any]):
    """An object of a page, whose end can be watched."""

    __hash__ = object.__hash__  # type: ignore[assignment]
    __eq__ = object.__eq__


class Cluster:
    """Lists what it was given, to a reader with a clock of its own."""

    def __init__(self, jobs: list[Any], pods: list[Any], *, kueue: bool = False) -> None:
        self.jobs, self.pods = jobs, pods
        self.time = Clock()
        self.reader = JobReader(
            self,  # type: ignore[arg-type]
            lost_seconds=60,
            starting_seconds=60,
            workloads=WorkloadReader(self) if kueue else None,  # type: ignore[arg-type]
            clock=self.time,
        )
        self.alive: weakref.WeakSet[Raw] = weakref.WeakSet()
        self.most_alive = 0
        self.lists: list[tuple[str, str, str]] = []
        self.now = NOW
        self.clock = ServerClock(lambda: self.now)

    def read(self) -> LiveJobs:
        return self.reader.read(OWNER)

    def read_one(self) -> ObservedJob:
        """The only Job."""
        (seen,) = self.read().jobs
        return seen

    def list(self, kind: Kind, _: str, *, labels: str = "", fields: str = "") -> Iterator[Raw]:
        self.lists.append((kind.plural, labels, fields))
        listed = {JOB.plural: self.jobs, POD.plural: self.pods}
        for each in listed.get(kind.plural, []):  # no events
            if not selected(each, labels, fields):
                continue
            raw = Raw(each)
            raw["metadata"] = {"resourceVersion": "1", **each["metadata"]}
            self.alive.add(raw)
            self.most_alive = max(self.most_alive, len(self.alive))
            yield raw
            del raw


def selected(body: dict[str, Any], labels: str, fields: str) -> bool:
    """As the API server selects by what the reader asks for."""
    found = body["metadata"].get("labels") or {}
    if f"!{LABEL_RECORDED}" in labels and LABEL_RECORDED in found:
        return False
    if names := re.search(r"job-name in \((.*)\)", labels):
        return found.get("batch.kubernetes.io/job-name") in names[1].split(",")
    return body.get("status", {}).get("phase", "") not in re.findall(r"phase!=(\w+)", fields)


def deleted(name: str = "p1", **changes: Any) -> dict[str, Any]:
    return pod(name=name, metadata={"uid": name, **GRACE}, **changes)


def seen_after(seconds: float, *pods: Any, **of_job: Any) -> ObservedJob:
    """The Job as seen so long after its pods were first seen."""
    cluster = Cluster([job(**of_job)], list(pods))
    cluster.read()
    cluster.time.now += seconds
    return cluster.read_one()


def test_a_pod_that_does_not_end_after_its_grace_period_is_lost_by_our_own_clock() -> None:
    in_time = seen_after(90, deleted())
    assert (in_time.lost, in_time.holds_a_slot) == (False, True)
    late = seen_after(91, deleted())
    assert (late.lost, late.failed, late.holds_a_slot) == (True, True, False)
    assert late.reason == "NodeLost"
    assert "p1" in late.message


def test_a_job_with_another_pod_at_work_is_not_lost() -> None:
    seen = seen_after(999, deleted(), pod(name="p2", metadata={"uid": "p2"}))
    assert (seen.lost, seen.unfinished_pods) == (False, 1)


def test_a_pod_that_ended_while_it_was_deleted_is_not_lost() -> None:
    assert not seen_after(999, deleted(**ended(143))).lost


def test_a_failed_job_does_not_wait_for_its_lost_pod() -> None:
    """As Kubernetes does: it counts the pod as terminating for ever."""
    failed = {"type": "Failed", "status": "True", "reason": "DeadlineExceeded"}
    status = {"conditions": [failed], "terminating": 1}
    seen = seen_after(999, deleted(), status=status)
    assert (seen.reason, seen.holds_a_slot, seen.lost) == ("DeadlineExceeded", False, False)


def test_a_lost_pod_without_its_job_takes_no_slot() -> None:
    cluster = Cluster([], [deleted()])
    assert len(cluster.read().orphaned_pods) == 1
    assert cluster.read().orphans == ("p1",)
    cluster.time.now += 91
    assert cluster.read().orphaned_pods == ()


def test_nothing_of_a_page_is_kept() -> None:
    """10,000 Jobs as the API server returns them are 200 MB."""
    many = [job(uid=f"j{number}") for number in range(1000)]
    cluster = Cluster(many, [pod(f"j{number}", name=f"p{number}") for number in range(1000)])
    gc.collect()
    live = cluster.read()
    assert len(live.jobs) == len(live.versions) == 1000
    assert cluster.most_alive <= 2


COMPLETE = {"type": "Complete", "status": "True"}
FAILED = {"type": "Failed", "status": "True", "reason": "BackoffLimitExceeded"}


def recorded(body: dict[str, Any]) -> None:
    """What JobWriter.expire does to a Job."""
    body["metadata"]["labels"][LABEL_RECORDED] = "true"
    body["spec"]["ttlSecondsAfterFinished"] = 600


def of_job(uid: str, name: str, **changes: Any) -> dict[str, Any]:
    body = pod(uid, name=name, **changes)
    body["metadata"]["labels"]["batch.kubernetes.io/job-name"] = f"job-{uid}"
    return body


def test_a_recorded_job_is_listed_no_more() -> None:
    """Whatever the ledger knows of is nobody's business any more, its pods included."""
    done, running = job("done", conditions=[COMPLETE]), job("running")
    cluster = Cluster([done, running], [of_job("done", "p1", **ended(0))])
    assert [each.uid for each in cluster.read().jobs] == ["done", "running"]
    recorded(done)
    live = cluster.read()
    assert [each.uid for each in live.jobs] == ["running"]
    assert set(live.versions) == {"running"}, "no watch delivers recorded Jobs"
    assert live.orphaned_pods == ()


def test_what_pods_worked_that_are_gone_counts_until_they_were_last_seen() -> None:
    """Evicted and preempted pods are deleted, and their Job goes on: with each the attempt's hours fell back to zero, so
    that budget.acceleratorHours capped nothing until there was a result."""
    running = {"name": "trainer", "state": {"running": {"startedAt": "2026-01-02T03:00:00Z"}}}
    first, second = (of_job("j1", name, containerStatuses=[running]) for name in ("p1", "p2"))
    cluster = Cluster([job("j1")], [first])
    cluster.read()
    cluster.now = NOW + timedelta(minutes=5)
    assert accelerator_seconds(cluster.read_one(), cluster.now) == 65 * 60
    cluster.pods = []
    for _ in range(2):
        assert accelerator_seconds(cluster.read_one(), NOW + timedelta(hours=9)) == 65 * 60
    cluster.pods = [second]
    assert accelerator_seconds(cluster.read_one(), cluster.now) == 2 * 65 * 60
    # Its end is read once its Job has ended, and counts instead of what was seen last.
    cluster.jobs = [job("j1", conditions=[COMPLETE])]
    times = {"startedAt": "2026-01-02T03:00:00Z", "finishedAt": "2026-01-02T03:10:00Z"}
    cluster.pods = [of_job("j1", "p2", **ended(0, **times))]
    assert pod_seconds(cluster.read_one(), cluster.now) == (65 + 10) * 60
    cluster.jobs = [job("j2")]
    assert pod_seconds(cluster.read_one(), cluster.now) == 0.0
    cluster.reader.forget(OWNER.uid)


def test_a_running_job_that_is_deleted_is_gone_at_once() -> None:
    cluster = Cluster([job("j1"), job("j2")], [])
    cluster.read()
    del cluster.jobs[0]
    assert [each.uid for each in cluster.read().jobs] == ["j2"]


@pytest.mark.parametrize("by_a_policy", [{}, {"ttlSecondsAfterFinished": 3600}])
def test_the_pod_of_a_job_that_has_just_failed_is_read(
    by_a_policy: dict[str, int],
) -> None:
    failing, its_pod = job("j1", **by_a_policy), of_job("j1", "p1")
    cluster = Cluster([failing], [its_pod])
    cluster.read()
    failing["status"]["conditions"] = [FAILED]
    its_pod["status"] = ended(43)
    seen = cluster.read_one()
    assert seen.pod is not None
    assert (seen.failed, seen.pod.exit_code) == (True, 43)


MINUTE = {"startedAt": "2026-01-02T03:04:05Z", "finishedAt": "2026-01-02T03:05:05Z"}
RUNNING = {"running": {"startedAt": MINUTE["startedAt"]}}
AT_WORK = {"containerStatuses": [{"name": "trainer", "state": RUNNING}]}


def test_the_work_of_a_pod_that_fails_counts_at_once_where_its_job_replaces_it() -> None:
    failing = of_job("j1", "p1", **AT_WORK)
    cluster = Cluster([job("j1")], [failing])
    cluster.read()
    failing["status"] = ended(75, **MINUTE)
    cluster.pods.append(of_job("j1", "p2", created="59"))
    for _ in range(2):
        seen = cluster.read_one()
        assert seen.worked_seconds == 60
        assert seen.pod is not None
        assert seen.pod.phase == "Running"


# ------------------------------------------------------------------- pods that do not start or end


def trainer_ended(code: int, **changes: Any) -> dict[str, Any]:
    """A pod that runs on after its trainer container has exited."""
    end = {
        "exitCode": code,
        "startedAt": "2026-01-02T03:05:00Z",
        "finishedAt": "2026-01-02T03:06:00Z",
    }
    return pod(
        name="p1",
        metadata={"uid": "p1", **changes},
        containerStatuses=[
            {"name": "trainer", "state": {"terminated": end}},
            {"name": "proxy", "state": {"running": {}}},
        ],
    )


def test_the_trainers_exit_ends_its_attempt_though_another_container_goes_on() -> None:
    """After a moment, as most other containers notice and end, too; its pod takes its slot until it is gone."""
    early = seen_after(10, trainer_ended(0))
    assert (early.is_finished, early.outlived) == (False, False)
    late = seen_after(11, trainer_ended(0))
    assert (late.complete, late.failed, late.outlived) == (True, False, True)
    assert (late.holds_a_slot, accelerator_seconds(late, NOW)) == (True, 60.0)
    failed = seen_after(11, trainer_ended(3))
    assert (failed.complete, failed.failed, failed.outlived) == (False, True, True)
    assert failed.pod is not None
    assert failed.pod.exit_code == 3


def test_a_pod_that_is_being_deleted_ends_by_itself() -> None:
    assert not seen_after(80, trainer_ended(0, **GRACE)).outlived


def test_a_job_that_does_not_start_is_held_up_after_a_while() -> None:
    """Also one whose pod waits without a reason, but not one that says what it waits for, runs or is queued."""
    waiting = {"state": {"waiting": {"reason": "ContainerCreating"}}}
    mounting = {"phase": "Pending", "containerStatuses": [{"name": "trainer", **waiting}]}
    assert seen_after(60).held_up == ""
    assert seen_after(61).held_up == "Job job-j1 has had no pod for over 60 s"
    words = "the trainer of Job job-j1 has not started for over 60 s: ContainerCreating"
    assert seen_after(61, pod(**mounting)).held_up == words
    no_room = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}
    assert seen_after(61, pod(**{**mounting, "conditions": [no_room]})).held_up == ""
    running = {"state": {"running": {"startedAt": "2026-01-02T03:05:00Z"}}}
    assert seen_after(61, pod(containerStatuses=[{"name": "trainer", **running}])).held_up == ""
    assert seen_after(61, suspend=True).held_up == ""


def in_queue() -> dict[str, Any]:
    found = job(suspend=True)
    found["metadata"]["labels"][QUEUE_LABEL] = "research"
    return found


@pytest.mark.parametrize("kueue", [False, True])
def test_a_job_that_somebody_suspended_in_a_sweep_without_a_queue_does_not_wait_for_kueue(
    *, kueue: bool
) -> None:
    """Which may not even be installed."""
    cluster = Cluster([job(suspend=True)], [], kueue=kueue)
    for seconds in (0, 61):
        cluster.time.now = seconds
        waits = waits_for(cluster.read_one())
        assert waits is not None
        assert waits.reason is Reason.POD_WAITING
        assert waits.message.startswith("spec.suspend of Job job-j1 was set to true")


def test_a_job_in_a_queue_waits_for_kueue_whoever_may_read_workloads() -> None:
    waits = waits_for(Cluster([in_queue()], []).read_one())
    assert waits == Finding(Reason.QUEUED, "waiting for Kueue to admit it")


def test_a_deleted_job_that_a_finalizer_keeps_names_it_after_a_while() -> None:
    """It takes a slot for ever."""
    going = {"deletionTimestamp": "2026-01-02T03:05:00Z"}
    kept = {**going, "finalizers": ["foregroundDeletion", "example.com/audit"]}
    assert waits_for(seen_after(60, metadata=kept)) is None
    waits = waits_for(seen_after(61, metadata=kept))
    assert waits is not None
    assert waits.reason is Reason.POD_WAITING
    assert "finalizers keep it (example.com/audit): remove them" in waits.message
    ours = {**going, "finalizers": ["foregroundDeletion"]}
    assert waits_for(seen_after(61, metadata=ours)) is None


def test_a_job_without_parallelism_says_so() -> None:
    assert seen_after(60, parallelism=0).held_up == ""
    waits = waits_for(seen_after(61, parallelism=0))
    assert waits is not None
    assert waits.message.startswith("spec.parallelism of Job job-j1 was set to 0")


@pytest.mark.parametrize("completions", [4, 2])
def test_a_job_that_was_admitted_in_part_is_not_at_work_and_says_so(completions: int) -> None:
    """Kueue lowers parallelism, and completions with it if an annotation says so; the pods that run wait for the others."""
    running = {"name": "trainer", "state": {"running": {"startedAt": "2026-01-02T03:05:00Z"}}}
    pods = [pod(name=f"p{number}", containerStatuses=[running]) for number in range(4)]
    made = {"completionMode": "Indexed", "metadata": {"annotations": {PODS_ANNOTATION: "4"}}}
    part = {**made, "parallelism": 2, "completions": completions}
    seen = seen_after(0, *pods[:2], **part)
    assert not seen.is_at_work
    assert seen.pods == 2, "what never ran is not charged"
    waits = waits_for(seen)
    assert waits is not None
    assert waits.message.startswith("spec.parallelism of Job job-j1 was set to 2, but its 4 pods")
    whole = seen_after(0, *pods, **made, parallelism=4, completions=4)
    assert whole.is_at_work
    assert waits_for(whole) is None


@pytest.mark.parametrize("pods", [None, "", "many", "0", "9" * 30])
def test_a_job_that_does_not_say_how_many_pods_it_takes_has_its_completions(
    pods: str | None,
) -> None:
    """One that an older operator made, or whose annotation somebody wrote."""
    annotations = {} if pods is None else {PODS_ANNOTATION: pods}
    part = {"completionMode": "Indexed", "parallelism": 1, "completions": 3}
    seen = seen_after(61, pod(), metadata={"annotations": annotations}, **part)
    assert seen.pods_together == 3
    waits = waits_for(seen)
    assert waits is not None
    assert waits.message.startswith("spec.parallelism of Job job-j1 was set to 1, but its 3 pods")


def test_a_queued_job_of_which_kueue_makes_no_workload_says_what_to_check() -> None:
    cluster = Cluster([in_queue()], [], kueue=True)
    waits = waits_for(cluster.read_one())
    assert waits == Finding(Reason.QUEUED, "waiting for Kueue to admit it")
    cluster.time.now = 61
    late = waits_for(cluster.read_one())
    assert late is not None
    assert late.reason is Reason.QUEUED
    assert "has had no Workload for over 60 s: check that Kueue is installed" in late.message
