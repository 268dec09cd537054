"""Reads a resource's Jobs and pods, and finds the pods that no node will ever end.

Pages are reduced as they come: of 10,000 Jobs as the API server returns them nothing is kept but what
decisions need. Jobs whose outcome is recorded, most of a large sweep's, change no more until their time to
live is over: they are listed once in FULL_SECONDS and remembered in between.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from isoloss_operator.cluster.client import JOB, POD, Cluster
from isoloss_operator.cluster.manifests import Owner
from isoloss_operator.cluster.observe import (
    Object,
    PodFacts,
    has_ended,
    is_owned_by,
    observe_job,
    observe_pod,
    orphaned_pods,
    with_pods,
)
from isoloss_operator.cluster.workloads import WorkloadReader
from isoloss_operator.decide.labels import LABEL_OWNER_UID, LABEL_RECORDED
from isoloss_operator.decide.observation import ObservedJob

JOB_NAME_LABEL = "batch.kubernetes.io/job-name"
JOBS_PER_LIST = 50
"""Names that one request selects by: they are part of its URL."""
FULL_SECONDS = 60.0
"""Between two LISTs of everything."""
NOT_SUCCEEDED = "status.phase!=Succeeded"
NOT_ENDED = "status.phase!=Succeeded,status.phase!=Failed"


@dataclass(frozen=True)
class LiveJobs:
    """A resource's Jobs and pods, read live."""

    jobs: tuple[ObservedJob, ...]
    orphaned_pods: tuple[str, ...]
    versions: Mapping[str, str]
    """resourceVersion by uid of the Jobs that were listed now and that are watched: of all but recorded ones."""


@dataclass
class _Remembered:
    """What is known of a resource between two LISTs of everything."""

    full_at: float
    recorded: dict[str, ObservedJob] = field(default_factory=dict)
    """Jobs whose outcome is recorded, by uid."""
    open: dict[str, ObservedJob] = field(default_factory=dict)
    """All others, as they were last listed."""
    ended_pods: dict[str, PodFacts] = field(default_factory=dict)
    """Pods that ended while their Job goes on, by name: it replaced them, or has yet to notice."""
    working_pods: dict[str, str] = field(default_factory=dict)
    """The Job's uid by the name of each pod that was at work when last listed."""

    def see(self, listed: Mapping[str, ObservedJob], *, is_full: bool) -> None:
        """Take in a LIST. A Job that had ended and is not listed any more was recorded meanwhile."""
        if is_full:
            self.recorded = {}
        else:
            self.recorded |= {
                uid: replace(job, expires=True)
                for uid, job in self.open.items()
                if uid not in listed and job.is_finished
            }
        self.recorded |= {uid: job for uid, job in listed.items() if job.expires}
        self.open = {uid: job for uid, job in listed.items() if not job.expires}

    @property
    def jobs(self) -> tuple[ObservedJob, ...]:
        """All Jobs."""
        return (*self.open.values(), *self.recorded.values())


class JobReader:
    """Reads the Jobs of resources. Thread-safe as long as one thread at a time reads one resource's."""

    def __init__(
        self,
        cluster: Cluster,
        *,
        lost_seconds: float,
        workloads: WorkloadReader | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """A pod that ends `lost_seconds` after its grace period has not ended is taken for lost.

        Without `workloads` nothing is known of why Kueue does not admit a Job.
        """
        self._cluster = cluster
        self._lost_seconds = lost_seconds
        self._workloads = workloads
        self._clock = clock
        self._remembered: dict[str, _Remembered] = {}
        """By owner uid."""
        self._ending: dict[str, dict[str, float]] = {}
        """By owner uid, then pod uid: since when the pod has been seen to be deleted.

        By our own clock: another's may be hours off, and a pod that still runs must not be taken for lost."""

    def read(self, owner: Owner) -> LiveJobs:
        """LIST the Jobs, then the pods: a Job seen as ended cannot have an unseen running pod."""
        known, is_full = self._recall(owner)
        versions: dict[str, str] = {}
        uids: set[str] = set()
        labels = f"{LABEL_OWNER_UID}={owner.uid}"
        unrecorded = labels if is_full else f"{labels},!{LABEL_RECORDED}"
        listed = self._cluster.list(JOB, owner.namespace, labels=unrecorded)
        reduced = {job.uid: job for job in _reduced_jobs(listed, owner, uids, versions)}
        pods = self._pods(owner, labels, known, reduced, is_full=is_full)
        known.see(reduced, is_full=is_full)
        self._remembered[owner.uid] = known
        jobs = self._with_workloads(owner, known.jobs)
        orphaned = orphaned_pods(uids | known.recorded.keys(), pods)
        return LiveJobs(with_pods(jobs, pods), orphaned, versions)

    def forget(self, owner_uid: str) -> None:
        """Drop what is remembered of a resource that is gone."""
        self._ending.pop(owner_uid, None)
        self._remembered.pop(owner_uid, None)

    def _recall(self, owner: Owner) -> tuple[_Remembered, bool]:
        """What is known of a resource, and whether everything is to be listed again."""
        known, now = self._remembered.get(owner.uid), self._clock()
        if known is None:
            return _Remembered(now), True
        if now - known.full_at >= FULL_SECONDS:
            return replace(known, full_at=now), True
        return known, False

    def _pods(
        self,
        owner: Owner,
        labels: str,
        known: _Remembered,
        jobs: Mapping[str, ObservedJob],
        *,
        is_full: bool,
    ) -> list[PodFacts]:
        """Succeeded and failed pods are most of all pods; all they tell is how they ended, and that once."""
        fields = NOT_SUCCEEDED if is_full else NOT_ENDED
        listed = self._cluster.list(POD, owner.namespace, labels=labels, fields=fields)
        seen = {pod.name: pod for pod in self._reduced_pods(listed, owner)}
        gone = {uid for name, uid in known.working_pods.items() if name not in seen}
        asked = [job.name for job in jobs.values() if _has_newly_ended(job) or job.uid in gone]
        ended = {pod.name: pod for pod in self._ended_pods(owner, asked)}
        found = {**known.ended_pods, **seen, **ended}
        is_open = {uid for uid, job in jobs.items() if not job.is_finished}
        known.ended_pods = {
            name: pod for name, pod in found.items() if pod.has_ended and pod.job_uid in is_open
        }
        known.working_pods = {
            name: pod.job_uid for name, pod in seen.items() if pod.start and not pod.has_ended
        }
        return list(found.values())

    def _with_workloads(
        self, owner: Owner, jobs: tuple[ObservedJob, ...]
    ) -> tuple[ObservedJob, ...]:
        """The Jobs, suspended ones with their Workload: nobody else waits for Kueue."""
        suspended = frozenset(job.uid for job in jobs if job.suspended and not job.is_finished)
        if self._workloads is None or not suspended:
            return jobs
        found = self._workloads.of_jobs(owner.namespace, suspended)
        return tuple(
            replace(job, workload=found[job.uid]) if job.uid in found else job for job in jobs
        )

    def _reduced_pods(self, pods: Iterable[Object], owner: Owner) -> Iterator[PodFacts]:
        before, ending = self._ending.get(owner.uid, {}), {}
        now = self._clock()
        for pod in pods:
            metadata = pod["metadata"]
            is_lost = False
            if "deletionTimestamp" in metadata and not has_ended(pod):
                uid = metadata["uid"]
                ending[uid] = before.get(uid, now)
                grace = float(metadata.get("deletionGracePeriodSeconds") or 0)
                is_lost = now - ending[uid] > grace + self._lost_seconds
            yield observe_pod(pod, is_lost=is_lost)
        self._ending[owner.uid] = ending

    def _ended_pods(self, owner: Owner, job_names: Sequence[str]) -> Iterator[PodFacts]:
        """The pods of these Jobs that have ended."""
        for start in range(0, len(job_names), JOBS_PER_LIST):
            some = ",".join(job_names[start : start + JOBS_PER_LIST])
            labels = f"{LABEL_OWNER_UID}={owner.uid},{JOB_NAME_LABEL} in ({some})"
            pods = self._cluster.list(POD, owner.namespace, labels=labels)
            yield from (observe_pod(pod) for pod in pods if has_ended(pod))


def _has_newly_ended(job: ObservedJob) -> bool:
    """Whether a Job ended that is not recorded yet, and its pods tell something about it."""
    return not job.expires and (job.failed or (job.complete and job.kind == "train"))


def _reduced_jobs(
    listed: Iterable[Object], owner: Owner, uids: set[str], versions: dict[str, str]
) -> Iterator[ObservedJob]:
    """The Jobs of `owner`. The uids of all, also of those without our labels, go to `uids`, and the versions of
    those that are watched to `versions`."""
    for job in listed:
        if not is_owned_by(job, owner.uid):
            continue
        metadata = job["metadata"]
        uids.add(metadata["uid"])
        if LABEL_RECORDED not in (metadata.get("labels") or {}):
            versions[metadata["uid"]] = metadata["resourceVersion"]
        observed = observe_job(job)
        if observed is not None:
            yield observed
