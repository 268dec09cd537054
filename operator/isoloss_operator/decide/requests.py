"""Jobs to create, and how Jobs go."""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from isoloss_contract import layout, records
from isoloss_contract.ledger import Attempts
from isoloss_operator.api import Checkpoint, Jobs, ScalingSweepSpec
from isoloss_operator.decide import observation
from isoloss_operator.decide.plans import JobDeletion, JobExpiry, JobRequest
from isoloss_operator.planning.points import PlannedPoint

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


# ----------------------------------------------------------------------------------------- what goes


def by_attempt(jobs: Iterable[observation.ObservedJob]) -> tuple[observation.ObservedJob, ...]:
    """Jobs in order of their attempts."""
    return tuple(sorted(jobs, key=lambda job: job.attempt))


def is_outdated(job: observation.ObservedJob, asked: str) -> bool:
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


def deletions(jobs: Iterable[observation.ObservedJob]) -> tuple[JobDeletion, ...]:
    """Deletions of the unfinished among `jobs` that are not being deleted already."""
    return tuple(JobDeletion(job.name, job.uid) for job in jobs if job.may_be_deleted)


def lost_deletions(jobs: Iterable[observation.ObservedJob]) -> tuple[JobDeletion, ...]:
    """Deletions of those among `jobs` that Kubernetes will not end. Only recorded Jobs may be given, as with
    expiries."""
    return deletions(job for job in jobs if job.must_be_deleted)


def expiries(
    spec: ScalingSweepSpec | None, jobs: Iterable[observation.ObservedJob]
) -> tuple[JobExpiry, ...]:
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
