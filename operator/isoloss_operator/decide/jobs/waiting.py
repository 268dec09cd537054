"""What keeps an unfinished Job from running: its queue, a quota, its node, its image, its Secret, its volumes."""

from __future__ import annotations

from dataclasses import dataclass

from isoloss_operator.decide.observation import ObservedJob
from isoloss_operator.decide.reasons import Reason

_CONFIG_ERRORS = frozenset({"CreateContainerConfigError"})
_IMAGE_ERRORS = frozenset(
    {"ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull"}
)
_STARTING = frozenset({"", "ContainerCreating", "PodInitializing"})


@dataclass(frozen=True)
class Wait:
    """Why a Job does not run, although nothing about it has failed."""

    reason: Reason
    message: str


def waits_for(job: ObservedJob) -> Wait | None:
    """What a Job waits for; None: it runs, it has ended, or nothing is known yet."""
    pod = job.pod
    if job.is_finished:
        return None
    if job.suspended:
        return _waits_for_its_queue(job)
    if pod is None:
        return Wait(Reason.POD_WAITING, job.held_up) if job.held_up else None
    if pod.deleting:
        return None
    if pod.waiting_reason in _CONFIG_ERRORS:
        return Wait(Reason.SECRET_MISSING, pod.waiting_message or pod.waiting_reason)
    if pod.waiting_reason in _IMAGE_ERRORS:
        return Wait(Reason.IMAGE_PULL_FAILED, pod.waiting_message or pod.waiting_reason)
    if pod.waiting_reason not in _STARTING:
        return Wait(Reason.POD_WAITING, f"{pod.waiting_reason}: {pod.waiting_message}")
    if pod.unschedulable:
        return Wait(Reason.UNSCHEDULABLE, pod.unschedulable)
    return Wait(Reason.POD_WAITING, job.held_up) if job.held_up else None


def _waits_for_its_queue(job: ObservedJob) -> Wait:
    workload = job.workload
    if workload is None:
        return Wait(Reason.QUEUED, job.held_up or "waiting for Kueue to admit it")
    if not workload.active:
        message = f"Kueue's Workload {workload.name} is deactivated: set its spec.active to true"
        return Wait(Reason.WORKLOAD_DEACTIVATED, message)
    if workload.evicted:
        message = f"evicted by Kueue ({workload.evicted}): {workload.message}"
        return Wait(Reason.QUEUED, message)
    return Wait(Reason.QUEUED, workload.message or "waiting for Kueue to admit it")
