"""How Jobs and unusable objects go: deletion, expiry, setting aside."""

from __future__ import annotations

from collections.abc import Iterable

from isoloss_operator.decide.conditions import shortened
from isoloss_operator.decide.observation import ObservedJob
from isoloss_operator.decide.plans import JobDeletion, JobExpiry, SetAside

KEEP_SUCCEEDED_SECONDS = 600
"""How long a recorded Job that succeeded stays, for people who read its log."""
KEEP_FAILED_SECONDS = 86_400


def by_attempt(jobs: Iterable[ObservedJob]) -> tuple[ObservedJob, ...]:
    """Jobs in order of their attempts."""
    return tuple(sorted(jobs, key=lambda job: job.attempt))


def deletions(jobs: Iterable[ObservedJob], why: str) -> tuple[JobDeletion, ...]:
    """Deletions of the unfinished among `jobs` that are not being deleted already."""
    return tuple(
        JobDeletion(job.name, job.uid, why)
        for job in jobs
        if not job.is_finished and not job.deleting
    )


def expiries(jobs: Iterable[ObservedJob]) -> tuple[JobExpiry, ...]:
    """Expiries of the finished among `jobs` that have none yet. Only recorded Jobs may expire."""
    return tuple(
        JobExpiry(job.name, KEEP_SUCCEEDED_SECONDS if job.complete else KEEP_FAILED_SECONDS)
        for job in jobs
        if job.is_finished and not job.expires and not job.deleting
    )


def aside(path: str, suffix: str, why: str) -> SetAside:
    """Rename an unusable object to `<path>.<suffix>`: never deleted, so that people can look at it."""
    return SetAside(path=path, aside=f"{path}.{suffix}", why=shortened(why, 500))
