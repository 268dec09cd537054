"""How Jobs and unusable objects go: deletion, expiry, setting aside."""

from __future__ import annotations

from collections.abc import Iterable

from isoloss_operator.api import ScalingSweepSpec
from isoloss_operator.decide.conditions import shortened
from isoloss_operator.decide.observation import ObservedJob
from isoloss_operator.decide.plans import JobDeletion, JobExpiry, SetAside


def by_attempt(jobs: Iterable[ObservedJob]) -> tuple[ObservedJob, ...]:
    """Jobs in order of their attempts."""
    return tuple(sorted(jobs, key=lambda job: job.attempt))


def deletions(jobs: Iterable[ObservedJob], why: str) -> tuple[JobDeletion, ...]:
    """Deletions of the unfinished among `jobs` that are not being deleted already."""
    return tuple(
        JobDeletion(job.name, job.uid, why)
        for job in jobs
        if (job.must_be_deleted or not job.is_finished) and not job.deleting
    )


def lost_deletions(jobs: Iterable[ObservedJob]) -> tuple[JobDeletion, ...]:
    """Deletions of those among `jobs` that Kubernetes will not end. Only recorded Jobs may be given, as with
    expiries."""
    ended = [job for job in jobs if job.must_be_deleted]
    lost = deletions((job for job in ended if job.lost), "the node of its pod is lost")
    others = (job for job in ended if not job.lost)
    return lost + deletions(others, "another container of its pod outlives the trainer")


def expiries(spec: ScalingSweepSpec, jobs: Iterable[ObservedJob]) -> tuple[JobExpiry, ...]:
    """Expiries of the finished among `jobs` that have none yet. Only recorded Jobs may expire."""
    ttl = spec.jobs.ttl_seconds_after_finished
    return tuple(
        JobExpiry(job.name, ttl.succeeded if job.complete else ttl.failed)
        for job in jobs
        if job.is_finished and not job.must_be_deleted and not job.expires and not job.deleting
    )


def aside(path: str, suffix: str, why: str) -> SetAside:
    """Rename an unusable object to `<path>.<suffix>`: never deleted, so that people can look at it."""
    return SetAside(path=path, aside=f"{path}.{suffix}", why=shortened(why, 500))
