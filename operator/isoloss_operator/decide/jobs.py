"""The Jobs of a task: how each is asked for and how it goes; what keeps one from running; why one ended without a result, and
which field of the manifest is to blame; how long the next attempt waits. One table of delays serves all three tasks;
operator/README.md shows it, and a test compares the two.

Decided by conditions, reasons and exit codes, never by the wording of a message.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any, Final

from pydantic import ValidationError
from pydantic.alias_generators import to_camel

import isoloss
from isoloss.formatting import shortened
from isoloss_contract import layout, records
from isoloss_contract.ledger import Attempts, ConfigurationError
from isoloss_contract.records import BAD_TASK, STORE_UNAVAILABLE, ExitCode, TerminationMessage
from isoloss_operator.api import Checkpoint, Jobs, ScalingSweepSpec
from isoloss_operator.decide import observation
from isoloss_operator.decide.observation import ObservedJob, ObservedPod
from isoloss_operator.decide.plans import JobDeletion, JobExpiry, JobRequest
from isoloss_operator.decide.reasons import Finding, Reason
from isoloss_operator.planning.points import PlannedPoint

# ---------------------------------------------------------------------------------- how one is asked for


MAX_LABEL = 63
MAX_JOB_NAME = 63
"""A Job's name is also a label of its pods, of at most 63 characters."""

PodTemplates = Iterable[Mapping[str, Any] | None]


def store_uri(spec: ScalingSweepSpec) -> str:
    """Store URI of a sweep, without a trailing slash."""
    return spec.storage.uri.rstrip("/")


def store_label(uri: str) -> str:
    """LABEL_STORE of Jobs that write to a store."""
    return records.content_key(uri)[:16]


def template_label(operator_template: str, spec: ScalingSweepSpec, template: str) -> str:
    """LABEL_TEMPLATE of Jobs whose pods the operator's configuration shapes as the first digest says, and the resources as
    `template` does."""
    queue = spec.queue.model_dump() if spec.queue else None
    return records.content_key([operator_template, template, queue])[:16]


def prepare_request(
    observed: observation.ObservedSweep,
    spec: ScalingSweepSpec,
    attempt: int,
    key: str,
    config: records.PrepareConfig,
    label: str,
    new_sweep: str = "",
) -> JobRequest:
    """The Job that tokenizes the corpus; `new_sweep` as PrepareTask.sweep_uid, `label` as LABEL_TEMPLATE. Its label has the
    `key` of what the spec asks for, whichever corpus that comes to."""
    task = records.PrepareTask(
        config=config, store_uri=store_uri(spec), pods=spec.data.parallelism, sweep_uid=new_sweep
    )
    templates = (spec.pod_template, spec.data.pod_template)
    return _request(observed, spec, task, "prepare", key, attempt, templates, label)


def train_request(
    observed: observation.ObservedResource,
    spec: ScalingSweepSpec,
    point: PlannedPoint,
    attempts: Attempts,
    attempt: int,
    corpus: records.DataManifest,
    label: str,
) -> JobRequest:
    """The Job that trains a point on a corpus; `label` is its LABEL_TEMPLATE."""
    task = records.TrainTask(
        point=point.config,
        tokens=point.wanted_tokens,
        store_uri=store_uri(spec),
        data_uri=_data_uri(spec, corpus),
        claimant=records.Claimant(sweep_uid=observed.uid, attempt=attempt),
        nodes=point.proxy.nodes,
        micro_batch_halvings=attempts.halvings(point.proxy.template_digest),
        deterministic=spec.training.deterministic,
        checkpoint_seconds=spec.training.checkpoint_seconds,
        preemptions_per_day=spec.training.preemptions_per_day,
        # One that stops early for now is to be continued.
        release_checkpoints_when_done=spec.training.release_checkpoints
        and point.wanted_tokens >= point.proxy.tokens,
    )
    templates, secret = (spec.pod_template, point.proxy.pod_template), point.proxy.secret_name
    return _request(observed, spec, task, point.name, point.key, attempt, templates, label, secret)


def evaluate_request(
    observed: observation.ObservedPrediction,
    sweep: ScalingSweepSpec,
    checkpoint: Checkpoint,
    config: records.EvaluateConfig,
    attempt: int,
    corpus: records.DataManifest,
    label: str,
) -> JobRequest:
    """The Job that measures a checkpoint's initial loss on a corpus; `label` is its LABEL_TEMPLATE."""
    data_uri = _data_uri(sweep, corpus)
    task = records.EvaluateTask(config=config, store_uri=store_uri(sweep), data_uri=data_uri)
    templates = (sweep.pod_template, checkpoint.pod_template)
    secret = checkpoint.secret_name
    return _request(
        observed, sweep, task, "evaluate", config.key, attempt, templates, label, secret
    )


def _data_uri(spec: ScalingSweepSpec, corpus: records.DataManifest) -> str:
    return f"{store_uri(spec)}/{layout.data_folder(corpus.prepare_key)}"


def _request(
    parent: observation.ObservedResource,
    spec: ScalingSweepSpec,
    task: records.PrepareTask | records.TrainTask | records.EvaluateTask,
    what: str,
    key: str,
    attempt: int,
    pod_templates: PodTemplates,
    label: str,
    own_secret: str | None = None,
) -> JobRequest:
    """`what` is the task's part of the Job's name, `label` its LABEL_TEMPLATE, `own_secret` one it needs besides the
    store's."""
    uri, queue = store_uri(spec), spec.queue
    labels = {
        observation.LABEL_OWNER_UID: parent.uid,
        observation.LABEL_KIND: task.kind,
        observation.LABEL_KEY: key,
        observation.LABEL_ATTEMPT: str(attempt),
        observation.LABEL_STORE: store_label(uri),
        observation.LABEL_GENERATION: str(parent.generation),
        observation.LABEL_TEMPLATE: label,
        # A label holds 63 characters, a name up to 253.
        **({observation.LABEL_SWEEP: parent.name} if len(parent.name) <= MAX_LABEL else {}),
    }
    return JobRequest(
        name=job_name(parent.name, what, [parent.uid, uri, key], attempt),
        kind=task.kind,
        attempt=attempt,
        task=task,
        labels=labels,
        pod_templates=tuple(template for template in pod_templates if template),
        secret_names=tuple(name for name in (spec.storage.secret_name, own_secret) if name),
        local_queue=queue.local_queue_name if queue else "",
        priority_class=(queue.workload_priority_class_name or "") if queue else "",
        managed_by=(queue.managed_by or "") if queue else "",
        deadline_seconds=spec.failure_policy.attempt_deadline_seconds,
    )


def job_name(owner: str, what: str, identity: Sequence[str], attempt: int) -> str:
    """`<owner>-<what>-<8 hex of identity>`, with `-a<n>` from the second attempt on.

    At most 63 characters: the owner is cut first. `identity` distinguishes Jobs of one spelling (owner's
    uid, store, content key).
    """
    suffix = (
        "-" + records.content_key(list(identity))[:8] + (f"-a{attempt}" if attempt > 1 else "")
    )
    room = MAX_JOB_NAME - len(suffix)
    label = _slug(what)[: room - 2]
    stem = _slug(owner)[: room - len(label) - 1].strip("-") or "x"
    return f"{stem}-{label}".strip("-")[:room].rstrip("-") + suffix


def _slug(text: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")


def next_attempt(attempts: Attempts, jobs: Iterable[ObservedJob]) -> int:
    """Number of the next attempt: one after everything that ended, recorded or in the cluster."""
    return max([attempts.ended, *(job.attempt for job in jobs if job.is_finished)]) + 1


# ----------------------------------------------------------------------------------------- what goes


def by_attempt(jobs: Iterable[ObservedJob]) -> tuple[ObservedJob, ...]:
    """Jobs in order of their attempts."""
    return tuple(sorted(jobs, key=lambda job: job.attempt))


def deletions(jobs: Iterable[ObservedJob]) -> tuple[JobDeletion, ...]:
    """Deletions of the unfinished among `jobs` that are not being deleted already."""
    return tuple(JobDeletion(job.name, job.uid) for job in jobs if job.may_be_deleted)


def lost_deletions(jobs: Iterable[ObservedJob]) -> tuple[JobDeletion, ...]:
    """Deletions of those among `jobs` that Kubernetes will not end. Only recorded Jobs may be given, as with
    expiries."""
    return deletions(job for job in jobs if job.must_be_deleted)


def expiries(spec: ScalingSweepSpec | None, jobs: Iterable[ObservedJob]) -> tuple[JobExpiry, ...]:
    """Expiries of the finished among `jobs` whose pods have ended. Only recorded Jobs may expire, and those of a sweep
    that is gone (None), without which nothing can be recorded: as spec.jobs says where nobody sets it."""
    ttl = (Jobs() if spec is None else spec.jobs).ttl_seconds_after_finished
    return tuple(
        JobExpiry(job.name, ttl.succeeded if job.complete else ttl.failed)
        for job in jobs
        if job.is_finished
        and not job.unfinished_pods
        and not job.must_be_deleted
        and not job.deleting
    )


# ----------------------------------------------------------------------- why one ended without a result


SIGTERM_EXIT: Final = 143
SIGKILL_EXIT: Final = 137
MAX_CAUSE: Final = 200
RESULT_SECONDS: Final = 60.0
"""How long after a Job's end its result may take to be seen. S3 shows it at once; an NFS client may keep an old
listing of the folder for as long as this (acdirmax)."""


class FailureClass(StrEnum):
    """Why an attempt ended without a result. The value is what ledger, status and metrics show."""

    INTERRUPTED = "Interrupted"
    """Preempted, drained, evicted, suspended or deleted: runs again, never charged."""
    POD_VANISHED = "PodVanished"
    """The Job failed and its pod is gone: most likely a lost node. Not charged until it has happened 20 times."""
    NODE_LOST = "NodeLost"
    """Its node never reported the end of the pod: runs again elsewhere, never charged."""
    NODE_FAILURE = "NodeFailure"
    """Its node was rebooted, lost track of the pod, refused it or could not start its container: runs again. Not charged
    until it has happened 10 times in a row."""
    CLAIMED_ELSEWHERE = "ClaimedElsewhere"
    """Another sweep or attempt is training this point: wait, then look again; never charged."""
    OUT_OF_MEMORY = "OutOfMemory"
    """No micro-batch fits: final under this pod template."""
    HOST_OUT_OF_MEMORY = "HostOutOfMemory"
    """The kernel killed the process: runs again, on a CPU and in several pods with half the micro-batch."""
    MEMORY_REFUSED = "MemoryRefused"
    """One of several pods ran out of memory: all run again with half the micro-batch."""
    BAD_CONFIGURATION = "BadConfiguration"
    """The task itself cannot work: the sweep stops and names the field."""
    BAD_DATA = "BadData"
    """Corpus, tokenizer, prepared data or checkpoint is unusable."""
    STORE_UNAVAILABLE = "StoreUnavailable"
    """The store did not answer the trainer for five minutes. Not charged until it has happened 20 times in a row."""
    STORAGE = "StorageError"
    """The store refused what the trainer asked for, or a disk is full."""
    DEADLINE = "DeadlineExceeded"
    """activeDeadlineSeconds of the Job, or of its pod, passed."""
    STALLED = "NoProgress"
    """failurePolicy.stallSeconds passed without progress: the operator ended the attempt."""
    RESULT_MISSING = "ResultMissing"
    """The Job succeeded without writing a result."""
    RESULT_UNREADABLE = "ResultUnreadable"
    """The result is truncated, tampered with or another point's."""
    TRAJECTORY_UNREADABLE = "TrajectoryUnreadable"
    """The trajectory is missing or does not match the digest in the result."""
    CRASHED = "Crashed"
    """Anything else."""


UNCHARGED = frozenset(
    {
        FailureClass.INTERRUPTED,
        FailureClass.POD_VANISHED,
        FailureClass.NODE_LOST,
        FailureClass.NODE_FAILURE,
        FailureClass.CLAIMED_ELSEWHERE,
        FailureClass.STORE_UNAVAILABLE,
    }
)
MAX_VANISHED = 20
"""Vanished pods of one task before they are charged, and attempts in a row without an answer of the store: neither
nodes nor stores are lost that often."""
MAX_NODE_FAILURES = 10
"""Attempts in a row that their nodes ended before these are charged: an image that no runtime can start looks the same."""

_NODE_FAILURES = frozenset(
    {"Unknown", "ContainerStatusUnknown", "StartError", "ContainerCannotRun", "RunContainerError"}
)
"""Reasons that the kubelet gives for a container when its node was rebooted (exit code 255), when it lost track of it
(137), and when the runtime could not start it (128, 127), as where a GPU has failed."""
# Pod status reasons with which the kubelet or a controller removes a pod, or never admits it.
_INTERRUPTING_POD_REASONS = frozenset(
    {
        "NodeAffinity",
        "NodeLost",
        "NodeShutdown",
        "Preempted",
        "Preempting",
        "Shutdown",
        "Terminated",
    }
)
_EVICTED: Final = "Evicted"
_DEADLINE: Final = "DeadlineExceeded"
"""Of a Job, or of a pod with a deadline of its own."""
_BY_EXIT_CODE: Mapping[int, FailureClass] = {
    ExitCode.INTERRUPTED: FailureClass.INTERRUPTED,
    SIGTERM_EXIT: FailureClass.INTERRUPTED,
    ExitCode.OUT_OF_MEMORY: FailureClass.OUT_OF_MEMORY,
    ExitCode.MEMORY_REFUSED: FailureClass.MEMORY_REFUSED,
    ExitCode.BAD_CONFIGURATION: FailureClass.BAD_CONFIGURATION,
    ExitCode.BAD_DATA: FailureClass.BAD_DATA,
    ExitCode.CLAIMED_ELSEWHERE: FailureClass.CLAIMED_ELSEWHERE,
    ExitCode.STORAGE: FailureClass.STORAGE,
    ExitCode.DIVERGED: FailureClass.RESULT_MISSING,
}


@dataclass(frozen=True)
class Failure:
    """What became of one attempt that has no result."""

    kind: FailureClass
    message: str
    code: str = ""
    """CamelCase code of the trainer's termination message, if it left one."""
    field: str = ""
    """Field of the task to blame, if the trainer named one."""

    @property
    def is_charged(self) -> bool:
        """Whether it counts against failurePolicy.retriesPerPoint."""
        return self.kind not in UNCHARGED

    @property
    def halves_micro_batch(self) -> bool:
        """Whether the next attempt should run with half the micro-batch."""
        return self.kind in (FailureClass.HOST_OUT_OF_MEMORY, FailureClass.MEMORY_REFUSED)

    def in_words(self, field: str, limit: int) -> str:
        """The message, led by the manifest's field if one is to blame, in at most `limit` bytes."""
        return shortened(f"{field}: {self.message}" if field else self.message, limit)


def classify(job: ObservedJob) -> Failure:
    """Why a finished Job has no usable result (absent, or not read yet: the caller knows)."""
    pod = job.pod
    if job.complete or (pod is not None and pod.exit_code == ExitCode.SUCCEEDED):
        return Failure(FailureClass.RESULT_MISSING, "the pod succeeded but wrote no result")
    if job.lost:
        return Failure(FailureClass.NODE_LOST, job.message)
    left = termination_message(pod)
    kind = _failure_class(job, pod)
    if kind is FailureClass.NODE_FAILURE and pod is not None:
        return Failure(kind, _node_failure(pod))
    if left is None:
        return Failure(kind, _describe(job, pod))
    if left.code == BAD_TASK:
        return Failure(kind, _of_another_version(left.message), left.code)
    if kind is FailureClass.STORAGE and left.code == STORE_UNAVAILABLE:
        kind = FailureClass.STORE_UNAVAILABLE
    return Failure(kind, left.message or _describe(job, pod), left.code, left.field)


def awaits_result(job: ObservedJob, now: datetime) -> bool:
    """Whether a Job ended as one with a result, so lately that the result may not be visible yet."""
    if job.ended is None or (now - job.ended).total_seconds() >= RESULT_SECONDS:
        return False
    return job.is_finished and classify(job).kind is FailureClass.RESULT_MISSING


def termination_message(pod: ObservedPod | None) -> TerminationMessage | None:
    """The trainer's termination message; None if there is none or something else wrote it."""
    if pod is None or not pod.termination_message:
        return None
    try:
        return TerminationMessage.model_validate_json(pod.termination_message)
    except ValidationError:
        return None


def _failure_class(job: ObservedJob, pod: ObservedPod | None) -> FailureClass:
    if job.suspended:
        return FailureClass.INTERRUPTED
    if job.reason == _DEADLINE:
        return FailureClass.DEADLINE
    if pod is None:
        # Of a Job that another cluster ran, its own conditions are all there is to see.
        return FailureClass.CRASHED if job.managed_externally else FailureClass.POD_VANISHED
    # The cause before the symptom: a preempted trainer may exit with any code.
    if pod.disruption:
        return FailureClass.INTERRUPTED
    # For its own limits of disk: for its node's it is a disruption.
    if pod.reason == _EVICTED and pod.exit_code is not None:
        return FailureClass.STORAGE
    if pod.reason in _INTERRUPTING_POD_REASONS:
        return FailureClass.INTERRUPTED
    if pod.reason == _DEADLINE and pod.exit_code != ExitCode.INTERRUPTED:
        return FailureClass.DEADLINE
    # Of a pod that the kubelet refuses (OutOfnvidia.com/gpu, TopologyAffinityError, Evicted for the pressure on a node's disk
    # or memory, ...) no container has a status.
    is_refused = pod.phase == "Failed" and pod.exit_code is None and bool(pod.reason)
    if (is_refused or pod.reason in _NODE_FAILURES) and not pod.deleting:
        return FailureClass.NODE_FAILURE
    if pod.init_container:
        return FailureClass.CRASHED
    if pod.reason == "OOMKilled":
        return FailureClass.HOST_OUT_OF_MEMORY
    return _exit_code_class(pod)


def _exit_code_class(pod: ObservedPod) -> FailureClass:
    if pod.exit_code is None:
        # Never terminated properly: deleted while it ran, or its node was lost.
        return FailureClass.INTERRUPTED if pod.deleting else FailureClass.POD_VANISHED
    if pod.exit_code == SIGKILL_EXIT and pod.deleting:
        return FailureClass.INTERRUPTED
    return _BY_EXIT_CODE.get(pod.exit_code, FailureClass.CRASHED)


def _node_failure(pod: ObservedPod) -> str:
    node, words = pod.node or "unknown", pod.message or pod.termination_message or "no message"
    code = "" if pod.exit_code is None else f" (exit code {pod.exit_code})"
    return (
        f"{pod.reason} on node {node}{code}: {shortened(words.strip(), MAX_CAUSE).rstrip('.')}. "
        f"If it goes on, cordon the node: kubectl cordon {node}"
    )


def _of_another_version(words: str) -> str:
    """The operator writes no task that a trainer of its own version refuses, whatever the spec says."""
    return (
        f"the trainer image is of another version than this operator, isoloss {isoloss.__version__}, and refuses its task "
        f"({words}): build both images from one version, and set trainer.image of the chart, or the image in the podTemplate"
    )


def _describe(job: ObservedJob, pod: ObservedPod | None) -> str:
    if pod is None and job.managed_externally:
        return f"the Job failed elsewhere ({job.reason or 'no reason given'}): {job.message}"
    if pod is None:
        why = f": {job.message}" if job.reason == _DEADLINE and job.message else ""
        return f"the Job failed ({job.reason or 'no reason given'}{why}) and its pod is gone"
    code = f"exit code {pod.exit_code}" if pod.exit_code is not None else "no exit code"
    parts = [
        f"init container {pod.init_container}: {code}" if pod.init_container else code,
        pod.disruption or pod.reason,
        (pod.message or pod.termination_message).strip(),
        # What the Job says else is that its only pod has failed.
        job.message if job.reason == _DEADLINE else "",
        f"on node {pod.node}" if pod.node else "",
    ]
    return ", ".join(part for part in parts if part)


# -------------------------------------------------------------------------------- which field


_SPEC_FIELDS: Final[Mapping[str, str]] = {
    "tokenizer": "spec.data.tokenizer",
    "sequence_length": "spec.data.sequenceLength",
    "validation_documents_per_thousand": "spec.data.validation.documentsPerThousand",
    "validation": "spec.data.validation",
    "data": "spec.data",
    "checkpoint": "spec.checkpoint",
    "optimizer": "spec.optimizer",
    "deterministic": "spec.training.deterministic",
    "evaluation": "spec.evaluation",
}


def spec_field(
    field: str, *, domains: Sequence[str] = (), proxy: int | None = None, model: str = "config"
) -> str:
    """The manifest's field behind a field of the trainer's task, such as `domains.math.text_field`.

    `domains` are the names in the spec's order, `proxy` the index of the size at fault and `model` what gives it its
    model: config or checkpoint. A field that has no counterpart is passed on as it is.
    """
    head, _, rest = field.partition(".")
    if head in ("domains", "mixture"):
        name, _, leaf = rest.partition(".")
        if name in domains:
            return _joined(f"spec.data.domains[{domains.index(name)}]", leaf)
    if head in ("initial_weights", "checkpoint") and model == "checkpoint":
        return f"spec.proxies[{proxy}].checkpoint"
    if head == "model" and proxy is not None:
        if model == "checkpoint":
            return f"spec.proxies[{proxy}].checkpoint"
        given = f"spec.proxies[{proxy}].model"
        return f"{given}.config.{rest}" if rest else given
    return _joined(_SPEC_FIELDS[head], rest) if head in _SPEC_FIELDS else field


def _joined(parent: str, leaf: str) -> str:
    return f"{parent}.{to_camel(leaf)}" if leaf else parent


def configuration_error(
    failure: Failure, job: ObservedJob, generation: int, where: str, field: str, template: str
) -> ConfigurationError | None:
    """What a Job refused about the present generation of the spec; a Job of an earlier one, or one whose LABEL_TEMPLATE is
    not the `template` that is asked for by now, cannot blame it."""
    if failure.kind is not FailureClass.BAD_CONFIGURATION:
        return None
    if job.generation not in (0, generation) or job.template not in ("", template):
        return None
    return ConfigurationError(
        generation=generation,
        where=where,
        field=field,
        code=failure.code or str(failure.kind),
        message=shortened(failure.message, 1000),
    )


# ------------------------------------------------------------------------------------ Jobs that wait


_CONFIG_ERRORS = frozenset({"CreateContainerConfigError"})
_IMAGE_ERRORS = frozenset(
    {"ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull"}
)
_STARTING = frozenset({"", "ContainerCreating", "PodInitializing"})


def waits_for(job: ObservedJob) -> Finding | None:
    """Why a Job does not run, although nothing about it has failed; None: it does, it has ended, or nothing is known yet."""
    pod = job.pod
    held_up = Finding(Reason.POD_WAITING, job.held_up) if job.held_up else None
    if job.is_finished:
        return None
    if job.deleting and held_up is not None:
        return held_up
    if job.suspended:
        return _waits_for_its_queue(job)
    if pod is None:
        return held_up
    if pod.deleting:
        return None
    if pod.waiting_reason in _CONFIG_ERRORS:
        return Finding(Reason.SECRET_MISSING, pod.waiting_message or pod.waiting_reason)
    if pod.waiting_reason in _IMAGE_ERRORS:
        return Finding(Reason.IMAGE_PULL_FAILED, pod.waiting_message or pod.waiting_reason)
    if pod.waiting_reason not in _STARTING:
        return Finding(Reason.POD_WAITING, f"{pod.waiting_reason}: {pod.waiting_message}")
    if pod.unschedulable:
        return Finding(Reason.UNSCHEDULABLE, pod.unschedulable)
    return held_up


def named_wait(job: ObservedJob) -> Finding | None:
    """`waits_for` of one among many, with its name unless the message has it, or it is one of many in a queue."""
    wait = waits_for(job)
    if wait is None or wait.reason is Reason.QUEUED or job.name in wait.message:
        return wait
    return replace(wait, message=f"{job.name}: {wait.message}")


def _waits_for_its_queue(job: ObservedJob) -> Finding:
    workload = job.workload
    if workload is None:
        return Finding(Reason.QUEUED, job.held_up or "waiting for Kueue to admit it")
    if not workload.name:
        return Finding(Reason.POD_WAITING, workload.message)
    if not workload.active:
        message = f"Kueue's Workload {workload.name} is deactivated: set its spec.active to true"
        return Finding(Reason.WORKLOAD_DEACTIVATED, message)
    if workload.evicted:
        message = f"evicted by Kueue ({workload.evicted}): {workload.message}"
        return Finding(Reason.QUEUED, message)
    return Finding(Reason.QUEUED, workload.message or "waiting for Kueue to admit it")


def is_outdated(job: ObservedJob, asked: str) -> bool:
    """Whether its trainer has never started, and what is `asked` for by now is not what was: another takes its place."""
    if not job.template or job.template == asked or job.is_finished:
        return False
    if job.working_since is not None or job.worked_seconds:
        return False
    if job.pod is None:
        # The pod of a Job that is about to succeed is not listed either, nor is any in another cluster.
        is_held_up = bool(job.held_up) and not job.managed_externally
        return job.suspended or is_held_up
    return job.pod.phase == "Pending"


# ---------------------------------------------------------------------- how long the next attempt waits


@dataclass(frozen=True)
class Delay:
    """Seconds before the next attempt: first, first * factor, … up to limit."""

    first: float
    factor: float = 2.0
    limit: float = 300.0
    free: int = 0
    """So many failures in a row delay nothing."""

    def seconds(self, count: int) -> float:
        """After `count` failures of this class."""
        exponent = count - self.free - 1
        # Above 2**16 every delay has met its limit; a larger power would overflow in the end.
        return (
            0.0 if exponent < 0 else min(self.limit, self.first * self.factor ** min(exponent, 16))
        )


_INTERRUPTION: Final = Delay(10.0, free=1)
"""Counts the interruptions in a row that left no time to work: being preempted every hour is no
reason to wait, being preempted every second is."""
_STORE: Final = Delay(15.0, factor=4.0, limit=600.0)
DELAYS: Final[Mapping[str, Delay]] = {
    FailureClass.INTERRUPTED: _INTERRUPTION,
    FailureClass.POD_VANISHED: _INTERRUPTION,
    FailureClass.NODE_LOST: _INTERRUPTION,
    FailureClass.NODE_FAILURE: Delay(10.0, limit=600.0),
    FailureClass.CLAIMED_ELSEWHERE: Delay(60.0, factor=1.0),
    FailureClass.HOST_OUT_OF_MEMORY: Delay(0.0),
    FailureClass.MEMORY_REFUSED: Delay(0.0),
    FailureClass.STORE_UNAVAILABLE: _STORE,
    FailureClass.STORAGE: _STORE,
    FailureClass.BAD_DATA: Delay(30.0, limit=600.0),
}
_IN_A_ROW: Final = UNCHARGED - {FailureClass.CLAIMED_ELSEWHERE}
"""Counted since an attempt last had time to work; all others by their charges."""
CLOCK_SKEW: Final = timedelta(seconds=30)
"""Two machines' clocks may differ so much."""
OTHERS: Final = Delay(5.0)
"""Delay after every other failure."""


def delay_seconds(attempts: Attempts) -> float:
    """How long the next attempt waits after the last one ended."""
    failure = attempts.last_failure
    if not failure:
        return 0.0
    in_a_row = attempts.idle_interruptions
    count = in_a_row if failure in _IN_A_ROW else max(1, attempts.charged.get(failure, 0))
    return DELAYS.get(failure, OTHERS).seconds(count)


def not_before(attempts: Attempts, template: str, now: datetime) -> datetime | None:
    """When the next attempt may start; None: at once.

    A charged failure under another pod template delays nothing: the change is taken for a fix. Nor does
    one that ended in the future: another process wrote it, by a clock that is wrong or differs from ours.
    """
    if attempts.last_failure in attempts.charged and attempts.template != template:
        return None
    ended_at, seconds = attempts.ended_at, delay_seconds(attempts)
    if ended_at is None or seconds <= 0 or ended_at > now + CLOCK_SKEW:
        return None
    return ended_at + timedelta(seconds=seconds)
