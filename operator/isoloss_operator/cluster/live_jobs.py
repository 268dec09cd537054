"""Reads a resource's Jobs and pods, and finds the pods that no node will ever end.

Pages are reduced as they come: of 10,000 Jobs as the API server returns them nothing is kept but what
decisions need.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

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
from isoloss_operator.decide.labels import LABEL_OWNER_UID
from isoloss_operator.decide.observation import ObservedJob

JOB_NAME_LABEL = "batch.kubernetes.io/job-name"
JOBS_PER_LIST = 50
"""Names that one request selects by: they are part of its URL."""


@dataclass(frozen=True)
class LiveJobs:
    """A resource's Jobs and pods, read live."""

    jobs: tuple[ObservedJob, ...]
    orphaned_pods: tuple[str, ...]
    versions: Mapping[str, str]
    """resourceVersion of every Job by uid."""


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
        self._ending: dict[str, dict[str, float]] = {}
        """By owner uid, then pod uid: since when the pod has been seen to be deleted.

        By our own clock: another's may be hours off, and a pod that still runs must not be taken for lost."""

    def read(self, owner: Owner) -> LiveJobs:
        """LIST the Jobs, then the pods: a Job seen as ended cannot have an unseen running pod."""
        versions: dict[str, str] = {}
        labels = f"{LABEL_OWNER_UID}={owner.uid}"
        listed = self._cluster.list(JOB, owner.namespace, labels=labels)
        jobs = self._with_workloads(owner, tuple(_reduced_jobs(listed, owner, versions)))
        # Succeeded pods are most of all pods; all they tell is how long they ran, and that once.
        unsuccessful = "status.phase!=Succeeded"
        unfinished = self._cluster.list(POD, owner.namespace, labels=labels, fields=unsuccessful)
        pods = [*self._reduced_pods(unfinished, owner), *self._pods_of_newly_complete(owner, jobs)]
        return LiveJobs(with_pods(jobs, pods), orphaned_pods(versions, pods), versions)

    def forget(self, owner_uid: str) -> None:
        """Drop what is remembered of a resource that is gone."""
        self._ending.pop(owner_uid, None)

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

    def _pods_of_newly_complete(
        self, owner: Owner, jobs: Sequence[ObservedJob]
    ) -> Iterator[PodFacts]:
        """The pods of train Jobs that succeeded and are not in the ledger yet: recorded ones expire."""
        names = [
            job.name for job in jobs if job.complete and not job.expires and job.kind == "train"
        ]
        for start in range(0, len(names), JOBS_PER_LIST):
            some = ",".join(names[start : start + JOBS_PER_LIST])
            labels = f"{LABEL_OWNER_UID}={owner.uid},{JOB_NAME_LABEL} in ({some})"
            pods = self._cluster.list(
                POD, owner.namespace, labels=labels, fields="status.phase=Succeeded"
            )
            yield from (observe_pod(pod) for pod in pods)


def _reduced_jobs(
    listed: Iterable[Object], owner: Owner, versions: dict[str, str]
) -> Iterator[ObservedJob]:
    """The Jobs of `owner`; the versions of all, also of those without our labels, go to `versions`."""
    for job in listed:
        if not is_owned_by(job, owner.uid):
            continue
        versions[job["metadata"]["uid"]] = job["metadata"]["resourceVersion"]
        observed = observe_job(job)
        if observed is not None:
            yield observed
