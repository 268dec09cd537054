"""Reads a resource's Jobs and pods, and finds the pods that no node will ever end.

Pages are reduced as they come: of 10,000 Jobs as the API server returns them nothing is kept but what
decisions need. A Job whose outcome is recorded has the label "recorded" and is nobody's business any more: it is not
listed. Were all listed, a pass over 10,000 points would read 60 MB.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from isoloss_operator.cluster import observe
from isoloss_operator.cluster.client import JOB, POD, Cluster
from isoloss_operator.cluster.event_reader import EventReader
from isoloss_operator.cluster.manifests import Owner
from isoloss_operator.cluster.observe import Object, PodFacts, orphaned_pods
from isoloss_operator.cluster.workloads import WorkloadReader
from isoloss_operator.decide.observation import LABEL_OWNER_UID, LABEL_RECORDED, ObservedJob

JOB_NAME_LABEL = "batch.kubernetes.io/job-name"
JOBS_PER_LIST = 50
"""Names that one request selects by: they are part of its URL."""
OUTLIVED_SECONDS = 10.0
"""So long may the other containers of a pod go on once its trainer container has ended."""
ASKED_ABOUT = 4
"""Jobs of a resource whose events are read: what holds up one mostly holds up all."""
NOT_SUCCEEDED = "status.phase!=Succeeded"
"""Pods that failed are listed as well: their Job may have replaced them and go on, and they cost something."""


@dataclass(frozen=True)
class LiveJobs:
    """A resource's Jobs and pods, read live."""

    jobs: tuple[ObservedJob, ...]
    orphaned_pods: tuple[str, ...]
    """LABEL_KEY of each."""
    orphans: tuple[str, ...]
    """Their names."""
    versions: Mapping[str, str]
    """resourceVersion by uid of the Jobs."""


class JobReader:
    """Reads the Jobs of resources. Thread-safe as long as one thread at a time reads one resource's."""

    def __init__(
        self,
        cluster: Cluster,
        *,
        lost_seconds: float,
        starting_seconds: float,
        workloads: WorkloadReader | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """A pod that ends `lost_seconds` after its grace period has not ended is taken for lost. A Job whose trainer
        container has not started after `starting_seconds` is asked about.

        Without `workloads` nothing is known of why Kueue does not admit a Job.
        """
        self._cluster = cluster
        self._lost_seconds, self._starting_seconds = lost_seconds, starting_seconds
        self._workloads = workloads
        self._clock = clock
        self._since: dict[str, Mapping[str, float]] = {}
        """Since when what `_Seen` counts has been so, by owner uid."""
        self._worked: dict[str, Mapping[str, tuple[str, float]]] = {}
        """The Job's uid, and how long its trainer container had run when it was last listed, of each pod of the Jobs that are
        listed, by owner uid. Evicted and preempted pods are deleted, and their Job goes on as the same attempt."""
        self._events = EventReader(cluster, clock=clock)

    def read(self, owner: Owner) -> LiveJobs:
        """LIST the Jobs, then the pods: a Job seen as ended cannot have an unseen running pod."""
        seen = _Seen(self._clock(), self._since.get(owner.uid, {}))
        versions: dict[str, str] = {}
        labels = f"{LABEL_OWNER_UID}={owner.uid}"
        listed = self._cluster.list(JOB, owner.namespace, labels=f"{labels},!{LABEL_RECORDED}")
        reduced = tuple(_reduced_jobs(listed, owner, versions))
        pods = self._pods(owner, labels, reduced, seen)
        jobs = self._with_workloads(owner, reduced, seen)
        orphaned = orphaned_pods(versions, pods)
        found = self._with_events(owner, observe.with_pods(jobs, pods), pods, seen)
        found = self._with_work_of_gone(owner, found, pods)
        self._since[owner.uid] = seen.kept
        return LiveJobs(
            found,
            tuple(pod.key for pod in orphaned),
            tuple(pod.name for pod in orphaned),
            versions,
        )

    def forget(self, owner_uid: str) -> None:
        """Drop what is remembered of a resource that is gone."""
        self._since.pop(owner_uid, None)
        self._worked.pop(owner_uid, None)

    def _with_work_of_gone(
        self, owner: Owner, jobs: tuple[ObservedJob, ...], pods: Iterable[PodFacts]
    ) -> tuple[ObservedJob, ...]:
        """The Jobs with what pods of theirs had worked that are not listed any more."""
        now, uids = self._cluster.clock.now(), {job.uid for job in jobs}
        seen = {
            pod.name: (pod.job_uid, max(0.0, ((pod.end or now) - pod.start).total_seconds()))
            for pod in pods
            if pod.start and (pod.end or not pod.has_ended)
        }
        before = self._worked.get(owner.uid, {})
        gone = {n: each for n, each in before.items() if n not in seen and each[0] in uids}
        self._worked[owner.uid] = gone | seen
        worked = dict.fromkeys((uid for uid, _ in gone.values()), 0.0)
        for uid, seconds in gone.values():
            worked[uid] += seconds
        return tuple(replace(job, gone_seconds=worked.get(job.uid, 0.0)) for job in jobs)

    def _pods(
        self, owner: Owner, labels: str, jobs: Iterable[ObservedJob], since: _Seen
    ) -> list[PodFacts]:
        """All but those that succeeded, which are most: what these tell is asked once, of Jobs that have just ended."""
        listed = self._cluster.list(POD, owner.namespace, labels=labels, fields=NOT_SUCCEEDED)
        found = {pod.name: pod for pod in self._reduced_pods(listed, since)}
        # Pods of other Jobs that have ended tell nothing about them.
        ended = [j.name for j in jobs if j.failed or (j.complete and j.kind == "train")]
        found |= {pod.name: pod for pod in self._ended_pods(owner, ended)}
        return list(found.values())

    def _with_workloads(
        self, owner: Owner, jobs: tuple[ObservedJob, ...], since: _Seen
    ) -> tuple[ObservedJob, ...]:
        """The Jobs, suspended ones with their Workload: nobody else waits for Kueue. If there is none for a while,
        nobody may ever admit them."""
        suspended = frozenset(job.uid for job in jobs if job.suspended and not job.is_finished)
        if self._workloads is None or not suspended:
            return jobs
        found = self._workloads.of_jobs(owner.namespace, suspended)
        late = {
            uid
            for uid in suspended - found.keys()
            if since.seconds(f"queued {uid}") > self._starting_seconds
        }
        return tuple(
            replace(
                job,
                workload=found.get(job.uid, job.workload),
                held_up=_without_workload(job, self._starting_seconds)
                if job.uid in late and job.workload is None
                else job.held_up,
            )
            for job in jobs
        )

    def _reduced_pods(self, pods: Iterable[Object], since: _Seen) -> Iterator[PodFacts]:
        for pod in pods:
            metadata = pod["metadata"]
            is_lost = is_outlived = False
            if "deletionTimestamp" in metadata and not observe.has_ended(pod):
                grace = float(metadata.get("deletionGracePeriodSeconds") or 0)
                is_lost = since.seconds(f"ending {metadata['uid']}") > grace + self._lost_seconds
            if observe.is_abandoned(pod):
                is_outlived = since.seconds(f"abandoned {metadata['uid']}") > OUTLIVED_SECONDS
            yield observe.observe_pod(pod, is_lost=is_lost, is_outlived=is_outlived)

    def _with_events(
        self,
        owner: Owner,
        jobs: tuple[ObservedJob, ...],
        pods: Iterable[PodFacts],
        since: _Seen,
    ) -> tuple[ObservedJob, ...]:
        """The Jobs, those whose trainer container has not started for a while with the reason."""
        waits = [job for job in jobs if job.should_be_starting or (job.deleting and job.held_up)]
        late = [
            job for job in waits if since.seconds(f"starting {job.uid}") > self._starting_seconds
        ]
        if not waits:
            return jobs
        newest = {pod.job_uid: pod.name for pod in sorted(pods, key=lambda pod: pod.created)}
        # What the Job itself says is not said of one that has just begun.
        held = {job.uid: "" for job in waits if job not in late}
        held |= {job.uid: _still_starting(job, self._starting_seconds) for job in late}
        for job in [job for job in late if not job.held_up][:ASKED_ABOUT]:
            names = (newest[job.uid], job.name) if job.uid in newest else (job.name,)
            reason = self._events.newest_warning(owner.namespace, names)
            held[job.uid] = reason or held[job.uid]
        return tuple(
            replace(job, held_up=held[job.uid]) if job.uid in held else job for job in jobs
        )

    def _ended_pods(self, owner: Owner, job_names: Sequence[str]) -> Iterator[PodFacts]:
        """The pods of these Jobs that have ended."""
        for start in range(0, len(job_names), JOBS_PER_LIST):
            some = ",".join(job_names[start : start + JOBS_PER_LIST])
            labels = f"{LABEL_OWNER_UID}={owner.uid},{JOB_NAME_LABEL} in ({some})"
            pods = self._cluster.list(POD, owner.namespace, labels=labels)
            yield from (observe.observe_pod(pod) for pod in pods if observe.has_ended(pod))


@dataclass
class _Seen:
    """Since when something has been so, by our own clock: another's may be hours off.

    Whatever is not asked about in a read is forgotten.
    """

    now: float
    before: Mapping[str, float]
    kept: dict[str, float] = field(default_factory=dict)

    def seconds(self, what: str) -> float:
        """How long `what` has been seen in every read."""
        self.kept[what] = self.before.get(what, self.now)
        return self.now - self.kept[what]


def _still_starting(job: ObservedJob, seconds: float) -> str:
    """Reason to give if no event says more."""
    if job.held_up:
        return job.held_up
    if job.pod is None:
        return f"Job {job.name} has had no pod for over {seconds:.0f} s"
    reason = job.pod.waiting_message or job.pod.waiting_reason
    words = f"the trainer of Job {job.name} has not started for over {seconds:.0f} s"
    return f"{words}: {reason}" if reason else words


def _without_workload(job: ObservedJob, seconds: float) -> str:
    return (
        f"Job {job.name} has had no Workload for over {seconds:.0f} s: check that Kueue is installed, that it manages "
        "batch/job in this namespace, and that the operator may list workloads.kueue.x-k8s.io"
    )


def _reduced_jobs(
    listed: Iterable[Object], owner: Owner, versions: dict[str, str]
) -> Iterator[ObservedJob]:
    """The Jobs of `owner`. The versions of all, also of those without our labels, go to `versions` by uid."""
    for job in listed:
        if not observe.is_owned_by(job, owner.uid):
            continue
        metadata = job["metadata"]
        versions[metadata["uid"]] = metadata["resourceVersion"]
        observed = observe.observe_job(job)
        if observed is not None:
            yield observed
