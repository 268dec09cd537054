"""Namespaces take turns at the threads that write Jobs."""

import threading
from types import SimpleNamespace
from typing import Any

import pytest

from isoloss_operator.cluster import jobs
from isoloss_operator.cluster.client import SWEEP, Unavailable
from isoloss_operator.cluster.jobs import JobWriter
from isoloss_operator.cluster.manifests import Owner
from isoloss_operator.cluster.transport import pass_deadline, within
from isoloss_operator.decide.plans import JobDeletion

WRITERS = 4
SLOW, OTHER = Owner(SWEEP, "slow", "a", "ua"), Owner(SWEEP, "other", "b", "ub")


class Cluster:
    """An admission webhook of the namespace `slow` holds up what is created there, but for the first."""

    def __init__(self) -> None:
        self.created: list[str] = []
        self.most = 0
        self.deadlines: set[float] = set()
        self.waiting = threading.Semaphore(0)
        """One for each call that waits for the webhook."""
        self.answer = threading.Event()
        self.refuse = False
        self._under_way = 0
        self._lock = threading.Lock()

    def create(self, _kind: object, namespace: str, body: dict[str, Any]) -> dict[str, Any]:
        with self._lock:
            self.deadlines.add(pass_deadline())
            self._under_way += 1
            self.most = max(self.most, self._under_way)
        if namespace == "slow" and body["name"] != "0":
            self.waiting.release()
            assert self.answer.wait(30)
        with self._lock:
            self._under_way -= 1
            self.created.append(body["name"])
        if self.refuse and body["name"] != "0":
            raise Unavailable("down")
        return {"spec": {}}

    def delete(self, *_: object) -> None:
        pass


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Cluster:
    monkeypatch.setattr(jobs, "job_manifest", lambda request, *_: {"name": request.name})
    return Cluster()


def writer(cluster: Cluster) -> JobWriter:
    return JobWriter(cluster, SimpleNamespace(), writers=WRITERS)  # type: ignore[arg-type]


def created(writer: JobWriter, count: int) -> threading.Thread:
    requests: list[Any] = [SimpleNamespace(name=str(n), kind="train") for n in range(count)]
    thread = threading.Thread(target=lambda: writer.create(SLOW, requests), daemon=True)
    thread.start()
    return thread


def test_a_slow_webhook_of_one_namespace_leaves_a_writer_to_the_others(cluster: Cluster) -> None:
    """A suspended sweep must not go on computing until a neighbour's whole plan is admitted."""
    jobs = writer(cluster)
    creating = created(jobs, 20)
    for _ in range(WRITERS - 1):
        assert cluster.waiting.acquire(timeout=30)
    deletions = [JobDeletion(name=str(n), uid="u") for n in range(20)]
    deleting = threading.Thread(target=lambda: jobs.delete(OTHER, deletions), daemon=True)
    deleting.start()
    deleting.join(10)
    was_held_up = deleting.is_alive()
    cluster.answer.set()
    creating.join(30)
    assert not was_held_up
    assert sorted(cluster.created, key=int) == [str(n) for n in range(20)]
    assert cluster.most == WRITERS - 1


def test_a_refusal_ends_the_plan_and_gives_the_turns_back(cluster: Cluster) -> None:
    jobs = writer(cluster)
    cluster.answer.set()
    cluster.refuse = True
    requests: list[Any] = [SimpleNamespace(name=str(n), kind="train") for n in range(20)]
    for _ in range(2):
        cluster.created.clear()
        with pytest.raises(Unavailable):
            jobs.create(SLOW, requests)
        assert len(cluster.created) <= WRITERS


def test_all_threads_keep_to_the_deadline_of_the_pass(cluster: Cluster) -> None:
    cluster.answer.set()
    requests: list[Any] = [SimpleNamespace(name=str(n), kind="train") for n in range(5)]
    with within(50):
        writer(cluster).create(SLOW, requests)
        assert cluster.deadlines == {pass_deadline()}
