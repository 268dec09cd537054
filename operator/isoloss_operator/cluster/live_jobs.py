"""Reads a resource's Jobs and pods, and finds the pods that no node will ever end.

Pages are reduced as they come: of 10,000 Jobs as the API server returns them nothing is kept but what
decisions need. Jobs whose outcome is recorded, most of a large sweep's, change no more until their time to
live is over: they are listed once in FULL_SECONDS and remembered in between.

So in between a Job is believed in that was not listed, and it may be gone. That is safe because of what is asked:

    listed without the label "recorded"     as it is now
    not listed, had not ended before        gone: nobody labels a Job that goes on
    not listed, had ended before            taken for recorded: labelled by this operator, or collected since

A recorded Job holds no slot and its attempt is in the stored ledger, so that believing in one too many starts and
stops nothing. The next full LIST forgets it. If another process has labelled a Job that this one has not recorded,
the ledger's epoch ends one of the two.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime

from isoloss_operator.cluster.client import JOB, POD, Cluster
from isoloss_operator.cluster.event_reader import EventReader
from isoloss_operator.cluster.manifests import Owner
from isoloss_operator.cluster.observe import (
    Object,
    PodFacts,
    has_ended,
    is_abandoned,
    is_owned_by,
    observe_job,
    observe_pod,
    orphaned_pods,
    with_pods,
)
from isoloss_operator.cluster.workloads import WorkloadReader
from isoloss_operator.decide.observation import LABEL_OWNER_UID, LABEL_RECORDED, ObservedJob

JOB_NAME_LABEL = "batch.kubernetes.io/job-name"
JOBS_PER_LIST = 50
"""Names that one request selects by: they are part of its URL."""
FULL_SECONDS = 60.0
"""Between two LISTs of everything."""
OUTLIVED_SECONDS = 10.0
"""So long may the other containers of a pod go on once its trainer container has ended."""
ASKED_ABOUT = 4
"""Jobs of a resource whose events are read: what holds up one mostly holds up all."""
NOT_SUCCEEDED = "status.phase!=Succeeded"
NOT_ENDED = "status.phase!=Succeeded,status.phase!=Failed"


@dataclass(frozen=True)
class LiveJobs:
    """A resource's Jobs and pods, read live."""

    jobs: tuple[ObservedJob, ...]
    orphaned_pods: tuple[str, ...]
    """LABEL_KEY of each."""
    orphans: tuple[str, ...]
    """Their names."""
    versions: Mapping[str, str]
    """resourceVersion by uid of the Jobs that were listed now and that are watched: of all but recorded ones."""


@dataclass(frozen=True)
class _Sighting:
    """A pod that was at work when last listed."""

    job_uid: str
    seconds: float
    """How long its trainer container had run by then."""


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
    working_pods: dict[str, _Sighting] = field(default_factory=dict)
    """By name."""
    vanished_seconds: dict[str, float] = field(default_factory=dict)
    """What pods had worked that are gone before their end was seen, by the uid of their Job. Kueue deletes the pods of a
    Job that it evicts, and the Job goes on as the same attempt."""
    since: dict[str, float] = field(default_factory=dict)
    """Since when what `_Seen` counts has been so."""

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

    def count_vanished(self, pods: Iterable[_Sighting], jobs: Mapping[str, ObservedJob]) -> None:
        """Take in the pods that are gone. Of Jobs that are gone or recorded nothing more is asked."""
        # A new dict: a read that fails later must leave what the last one remembered as it was.
        counted = dict(self.vanished_seconds)
        for pod in pods:
            counted[pod.job_uid] = counted.get(pod.job_uid, 0.0) + pod.seconds
        self.vanished_seconds = {
            uid: seconds
            for uid, seconds in counted.items()
            if uid in jobs and not jobs[uid].expires
        }

    def with_vanished(self, jobs: Iterable[ObservedJob]) -> tuple[ObservedJob, ...]:
        """The Jobs with the work of their vanished pods."""
        vanished = self.vanished_seconds
        return tuple(
            replace(job, worked_seconds=job.worked_seconds + vanished[job.uid])
            if job.uid in vanished
            else job
            for job in jobs
        )

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
        self._remembered: dict[str, _Remembered] = {}
        """Keyed by owner uid."""
        self._events = EventReader(cluster, clock=clock)

    def read(self, owner: Owner) -> LiveJobs:
        """LIST the Jobs, then the pods: a Job seen as ended cannot have an unseen running pod."""
        known, is_full = self._recall(owner)
        seen = _Seen(self._clock(), known.since)
        versions: dict[str, str] = {}
        uids: set[str] = set()
        labels = f"{LABEL_OWNER_UID}={owner.uid}"
        unrecorded = labels if is_full else f"{labels},!{LABEL_RECORDED}"
        listed = self._cluster.list(JOB, owner.namespace, labels=unrecorded)
        reduced = {job.uid: job for job in _reduced_jobs(listed, owner, uids, versions)}
        pods = self._pods(owner, labels, known, reduced, seen, is_full=is_full)
        known.see(reduced, is_full=is_full)
        self._remembered[owner.uid] = known
        jobs = self._with_workloads(owner, known.jobs, seen)
        orphaned = orphaned_pods(uids | known.recorded.keys(), pods)
        found = self._with_events(owner, with_pods(jobs, pods), pods, seen)
        known.since = seen.kept
        return LiveJobs(
            known.with_vanished(found),
            tuple(pod.key for pod in orphaned),
            tuple(pod.name for pod in orphaned),
            versions,
        )

    def forget(self, owner_uid: str) -> None:
        """Drop what is remembered of a resource that is gone."""
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
        since: _Seen,
        *,
        is_full: bool,
    ) -> list[PodFacts]:
        """Succeeded and failed pods are most of all pods; all they tell is how they ended, and that once."""
        fields = NOT_SUCCEEDED if is_full else NOT_ENDED
        listed = self._cluster.list(POD, owner.namespace, labels=labels, fields=fields)
        seen = {pod.name: pod for pod in self._reduced_pods(listed, since)}
        gone = {name: pod for name, pod in known.working_pods.items() if name not in seen}
        left = {pod.job_uid for pod in gone.values()}
        asked = [job.name for job in jobs.values() if _has_newly_ended(job) or job.uid in left]
        ended = {pod.name: pod for pod in self._ended_pods(owner, asked)}
        known.count_vanished((pod for name, pod in gone.items() if name not in ended), jobs)
        found = {**known.ended_pods, **seen, **ended}
        is_open = {uid for uid, job in jobs.items() if not job.is_finished}
        known.ended_pods = {
            name: pod for name, pod in found.items() if pod.has_ended and pod.job_uid in is_open
        }
        now = self._cluster.clock.now()
        known.working_pods = {
            name: _Sighting(pod.job_uid, _worked(pod.start, pod.end or now))
            for name, pod in seen.items()
            if pod.start and not pod.has_ended
        }
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
                workload=found.get(job.uid),
                held_up=_without_workload(job, self._starting_seconds) if job.uid in late else "",
            )
            for job in jobs
        )

    def _reduced_pods(self, pods: Iterable[Object], since: _Seen) -> Iterator[PodFacts]:
        for pod in pods:
            metadata = pod["metadata"]
            is_lost = is_outlived = False
            if "deletionTimestamp" in metadata and not has_ended(pod):
                grace = float(metadata.get("deletionGracePeriodSeconds") or 0)
                is_lost = since.seconds(f"ending {metadata['uid']}") > grace + self._lost_seconds
            if is_abandoned(pod):
                is_outlived = since.seconds(f"abandoned {metadata['uid']}") > OUTLIVED_SECONDS
            yield observe_pod(pod, is_lost=is_lost, is_outlived=is_outlived)

    def _with_events(
        self,
        owner: Owner,
        jobs: tuple[ObservedJob, ...],
        pods: Iterable[PodFacts],
        since: _Seen,
    ) -> tuple[ObservedJob, ...]:
        """The Jobs, those whose trainer container has not started for a while with the reason."""
        late = [
            job
            for job in jobs
            if job.should_be_starting
            and since.seconds(f"starting {job.uid}") > self._starting_seconds
        ]
        if not late:
            return jobs
        newest = {pod.job_uid: pod.name for pod in sorted(pods, key=lambda pod: pod.created)}
        held = {job.uid: _still_starting(job, self._starting_seconds) for job in late}
        for job in late[:ASKED_ABOUT]:
            names = (newest[job.uid], job.name) if job.uid in newest else (job.name,)
            said = self._events.newest_warning(owner.namespace, names)
            held[job.uid] = said or held[job.uid]
        return tuple(
            replace(job, held_up=held[job.uid]) if job.uid in held else job for job in jobs
        )

    def _ended_pods(self, owner: Owner, job_names: Sequence[str]) -> Iterator[PodFacts]:
        """The pods of these Jobs that have ended."""
        for start in range(0, len(job_names), JOBS_PER_LIST):
            some = ",".join(job_names[start : start + JOBS_PER_LIST])
            labels = f"{LABEL_OWNER_UID}={owner.uid},{JOB_NAME_LABEL} in ({some})"
            pods = self._cluster.list(POD, owner.namespace, labels=labels)
            yield from (observe_pod(pod) for pod in pods if has_ended(pod))


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
    if job.pod is None:
        return f"Job {job.name} has had no pod for over {seconds:.0f} s"
    said = job.pod.waiting_message or job.pod.waiting_reason
    words = f"the trainer of Job {job.name} has not started for over {seconds:.0f} s"
    return f"{words}: {said}" if said else words


def _without_workload(job: ObservedJob, seconds: float) -> str:
    return (
        f"Job {job.name} has had no Workload for over {seconds:.0f} s: check that Kueue is installed, that it manages "
        "batch/job in this namespace, and that the operator may list workloads.kueue.x-k8s.io"
    )


def _worked(start: datetime, end: datetime) -> float:
    return max(0.0, (end - start).total_seconds())


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
