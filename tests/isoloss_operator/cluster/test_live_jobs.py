"""A resource's Jobs and pods, read page by page: which pods are lost, what is kept of a page."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator
from typing import Any

from isoloss_operator.cluster.client import JOB, SWEEP, Kind
from isoloss_operator.cluster.live_jobs import JobReader
from isoloss_operator.cluster.manifests import Owner
from isoloss_operator.decide.observation import ObservedJob
from tests.isoloss_operator.cluster.test_observe import ended, job, pod

OWNER = Owner(SWEEP, "research", "dense", "owner")
GRACE = {"deletionTimestamp": "2020-01-01T00:00:00Z", "deletionGracePeriodSeconds": 30}
"""Deleted years ago, by the clock of an API server that is wrong."""


class Raw(dict[str, Any]):
    """An object of a page, whose end can be watched."""

    __hash__ = object.__hash__  # type: ignore[assignment]
    __eq__ = object.__eq__


class Cluster:
    """Lists what it was given."""

    def __init__(self, jobs: list[Any], pods: list[Any]) -> None:
        self.jobs, self.pods = jobs, pods
        self.alive: weakref.WeakSet[Raw] = weakref.WeakSet()
        self.most_alive = 0

    def list(self, kind: Kind, *_: object, fields: str = "", **__: object) -> Iterator[Raw]:
        if fields == "status.phase=Succeeded":
            return
        for each in self.jobs if kind == JOB else self.pods:
            raw = Raw(each)
            raw["metadata"] = {"resourceVersion": "1", **each["metadata"]}
            self.alive.add(raw)
            self.most_alive = max(self.most_alive, len(self.alive))
            yield raw
            del raw


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def reader(cluster: Cluster, clock: Clock) -> JobReader:
    return JobReader(cluster, lost_seconds=60, clock=clock)  # type: ignore[arg-type]


def deleted(name: str = "p1", **changes: Any) -> dict[str, Any]:
    return pod(name=name, metadata={"uid": name, **GRACE}, **changes)


def seen_after(seconds: float, *pods: Any, **of_job: Any) -> ObservedJob:
    """The Job as seen so long after its pods were first seen."""
    clock = Clock()
    reads = reader(Cluster([job(**of_job)], list(pods)), clock)
    reads.read(OWNER)
    clock.now += seconds
    (seen,) = reads.read(OWNER).jobs
    return seen


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
    clock = Clock()
    reads = reader(Cluster([], [deleted()]), clock)
    assert len(reads.read(OWNER).orphaned_pods) == 1
    clock.now += 91
    assert reads.read(OWNER).orphaned_pods == ()


def test_nothing_of_a_page_is_kept() -> None:
    """10,000 Jobs as the API server returns them are 200 MB."""
    many = [job(uid=f"j{number}") for number in range(1000)]
    cluster = Cluster(many, [pod(f"j{number}", name=f"p{number}") for number in range(1000)])
    gc.collect()
    live = reader(cluster, Clock()).read(OWNER)
    assert len(live.jobs) == len(live.versions) == 1000
    assert cluster.most_alive <= 2
