"""What a finished Job means: the table of DESIGN section 5 as a pure function.

Decided by conditions, reasons and exit codes, never by the wording of a message.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from pydantic import ValidationError

from isoloss_contract.records import CLAIMED_ELSEWHERE_CODE, ExitCode, TerminationMessage
from isoloss_operator.decide.observation import ObservedJob, ObservedPod

SIGTERM_EXIT: Final = 143
SIGKILL_EXIT: Final = 137


class FailureClass(StrEnum):
    """Why an attempt ended without a result. The value is what ledger, status and metrics show."""

    INTERRUPTED = "Interrupted"
    """Preempted, drained, evicted, suspended or deleted: runs again, never charged."""
    POD_VANISHED = "PodVanished"
    """The Job failed and its pod is gone, exit code and all: a lost node, most likely. Not charged
    until it happened MAX_VANISHED times."""
    CLAIMED_ELSEWHERE = "ClaimedElsewhere"
    """Another sweep or attempt trains this very point: wait, then look again; never charged."""
    OUT_OF_MEMORY = "OutOfMemory"
    """No micro-batch fits: final under this pod template."""
    HOST_OUT_OF_MEMORY = "HostOutOfMemory"
    """The kernel killed the process: runs again with half the micro-batch."""
    BAD_CONFIGURATION = "BadConfiguration"
    """The task itself can not work: the sweep stops and says which field."""
    BAD_DATA = "BadData"
    """Corpus, tokenizer, prepared data or checkpoint is unusable."""
    STORAGE = "StorageError"
    """The store failed the trainer after its own retries."""
    DEADLINE = "DeadlineExceeded"
    """activeDeadlineSeconds of the Job passed."""
    RESULT_MISSING = "ResultMissing"
    """The Job says it succeeded, but wrote no result."""
    RESULT_UNREADABLE = "ResultUnreadable"
    """The result is truncated, tampered with or another point's."""
    TRAJECTORY_UNREADABLE = "TrajectoryUnreadable"
    """The trajectory is missing or does not match the digest in the result."""
    CRASHED = "Crashed"
    """Anything else."""


UNCHARGED = frozenset(
    {FailureClass.INTERRUPTED, FailureClass.POD_VANISHED, FailureClass.CLAIMED_ELSEWHERE}
)
MAX_VANISHED = 20
"""Vanished pods of one task before they are charged: a node is not lost so often."""

_INTERRUPTING_POD_REASONS = frozenset(
    {
        "Evicted",
        "NodeAffinity",
        "NodeLost",
        "NodeShutdown",
        "Preempted",
        "Preempting",
        "Shutdown",
        "Terminated",
        "UnexpectedAdmissionError",
    }
)
"""Pod status reasons with which kubelet or a controller takes a pod away, or never let it in."""


@dataclass(frozen=True)
class Verdict:
    """What became of one attempt."""

    failure: FailureClass
    message: str
    code: str = ""
    """CamelCase code of the trainer's termination message, where it left one."""
    field: str = ""
    """Spec field to blame, where the trainer named one."""

    @property
    def is_charged(self) -> bool:
        """Whether it counts against failurePolicy.retriesPerPoint."""
        return self.failure not in UNCHARGED

    @property
    def halves_micro_batch(self) -> bool:
        """Whether the next attempt should try with half the micro-batch."""
        return self.failure is FailureClass.HOST_OUT_OF_MEMORY

    @property
    def is_final(self) -> bool:
        """Whether another attempt under the same spec and template can not help."""
        return self.failure in (FailureClass.OUT_OF_MEMORY, FailureClass.BAD_CONFIGURATION)


def classify(job: ObservedJob) -> Verdict:
    """Why a finished Job ended without a usable result (absent, or not read yet: the caller knows)."""
    pod = job.pod
    last_words = termination_message(pod)
    said = last_words.message if last_words else ""
    if job.complete or (pod is not None and pod.exit_code == ExitCode.SUCCEEDED):
        return Verdict(FailureClass.RESULT_MISSING, "the pod succeeded but wrote no result")
    failure = _failure_class(job, pod, last_words)
    return Verdict(
        failure=failure,
        message=said or _describe(job, pod),
        code=last_words.code if last_words else "",
        field=last_words.field if last_words else "",
    )


def termination_message(pod: ObservedPod | None) -> TerminationMessage | None:
    """The trainer's last words; None where it left none or they are not ours."""
    if pod is None or not pod.termination_message:
        return None
    try:
        return TerminationMessage.model_validate_json(pod.termination_message)
    except ValidationError:
        return None


def _failure_class(
    job: ObservedJob, pod: ObservedPod | None, last_words: TerminationMessage | None
) -> FailureClass:
    if job.suspended:
        return FailureClass.INTERRUPTED
    if job.reason == "DeadlineExceeded":
        return FailureClass.DEADLINE
    if pod is None:
        return FailureClass.POD_VANISHED
    if last_words is not None and last_words.code == CLAIMED_ELSEWHERE_CODE:
        return FailureClass.CLAIMED_ELSEWHERE
    if pod.disruption or pod.reason in _INTERRUPTING_POD_REASONS:
        return FailureClass.INTERRUPTED
    if pod.reason.startswith("OutOf") and pod.exit_code is None:
        return FailureClass.INTERRUPTED  # kubelet had no room: OutOfnvidia.com/gpu and the like
    if pod.reason == "OOMKilled":
        return FailureClass.HOST_OUT_OF_MEMORY
    return _exit_code_class(pod)


def _exit_code_class(pod: ObservedPod) -> FailureClass:
    known = {
        ExitCode.INTERRUPTED: FailureClass.INTERRUPTED,
        SIGTERM_EXIT: FailureClass.INTERRUPTED,
        ExitCode.OUT_OF_MEMORY: FailureClass.OUT_OF_MEMORY,
        ExitCode.BAD_CONFIGURATION: FailureClass.BAD_CONFIGURATION,
        ExitCode.BAD_DATA: FailureClass.BAD_DATA,
        ExitCode.STORAGE: FailureClass.STORAGE,
        ExitCode.DIVERGED: FailureClass.RESULT_MISSING,
    }
    if pod.exit_code is None:
        # Never terminated properly: deleted while it ran, or its node went away.
        return FailureClass.INTERRUPTED if pod.deleting else FailureClass.POD_VANISHED
    if pod.exit_code == SIGKILL_EXIT and pod.deleting:
        return FailureClass.INTERRUPTED
    return known.get(pod.exit_code, FailureClass.CRASHED)


def _describe(job: ObservedJob, pod: ObservedPod | None) -> str:
    if pod is None:
        return f"the Job failed ({job.reason or 'no reason given'}) and its pod is gone"
    parts = [
        f"exit code {pod.exit_code}" if pod.exit_code is not None else "no exit code",
        pod.disruption or pod.reason,
        pod.message or pod.termination_message or job.message,
    ]
    return ", ".join(part for part in parts if part)


@dataclass(frozen=True)
class PodTrouble:
    """Why a pod that should run does not."""

    reason: str
    """conditions.Reason."""
    message: str


_CONFIG_ERRORS = frozenset({"CreateContainerConfigError"})
_IMAGE_ERRORS = frozenset(
    {"ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull"}
)
_HARMLESS = frozenset({"", "ContainerCreating", "PodInitializing"})


def pod_trouble(job: ObservedJob) -> PodTrouble | None:
    """What keeps an unfinished Job's pod from starting; None: nothing, or nothing known."""
    pod = job.pod
    if pod is None or job.is_finished or pod.deleting:
        return None
    if pod.waiting_reason in _CONFIG_ERRORS:
        return PodTrouble("SecretMissing", pod.waiting_message or pod.waiting_reason)
    if pod.waiting_reason in _IMAGE_ERRORS:
        return PodTrouble("ImagePullFailed", pod.waiting_message or pod.waiting_reason)
    if pod.waiting_reason not in _HARMLESS:
        return PodTrouble("PodWaiting", f"{pod.waiting_reason}: {pod.waiting_message}")
    if pod.unschedulable:
        return PodTrouble("Unschedulable", pod.unschedulable)
    return None
