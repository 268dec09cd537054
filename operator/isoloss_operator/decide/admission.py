"""Which Jobs to start now: within parallelism and budget, cheapest points first, retries after their delay."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from isoloss_contract import layout
from isoloss_contract.ledger import DONE, Attempts, PointRecord, PointState
from isoloss_contract.records import (
    Claimant,
    EvaluateTask,
    PrepareConfig,
    PrepareTask,
    TrainTask,
    content_key,
)
from isoloss_operator.api import ScalingSweepSpec
from isoloss_operator.decide.bookkeeping import halvings, not_before
from isoloss_operator.decide.observation import (
    LABEL_ATTEMPT,
    LABEL_GENERATION,
    LABEL_KEY,
    LABEL_KIND,
    LABEL_OWNER_UID,
    LABEL_STORE,
    LABEL_SWEEP,
    JobKind,
    JobRequest,
    ObservedJob,
    ObservedPrediction,
    ObservedSweep,
)
from isoloss_operator.planning.flops import six_nd
from isoloss_operator.planning.points import PlannedPoint, job_name
from isoloss_operator.planning.specs import prepare_config

MAX_LABEL = 63


@dataclass(frozen=True)
class Admission:
    """What may start now, and what keeps the rest."""

    starts: tuple[PlannedPoint, ...] = ()
    waiting: int = 0
    """Points that start again after a delay."""
    next_start: datetime | None = None
    """When the first of those is due."""
    unaffordable: tuple[PlannedPoint, ...] = ()
    """Pending points that do not fit into the budget."""
    budget_message: str = ""


@dataclass(frozen=True)
class Spending:
    """FLOPs and accelerator seconds of a sweep: its own, adopted results cost it nothing."""

    flops: float
    accelerator_seconds: float
    seconds_per_flop: float | None
    """Measured on the points done, with what was lost on the way to them; None before the first."""


def spending(records: Sequence[PointRecord]) -> Spending:
    """What all attempts of this sweep that ended cost, those in vain included."""
    done = [record for record in records if record.state in DONE and not record.adopted]
    seconds, flops = _sums(done)
    all_seconds, all_flops = _sums(records)
    return Spending(all_flops, all_seconds, seconds / flops if flops > 0 else None)


def _sums(records: Sequence[PointRecord]) -> tuple[float, float]:
    """Accelerator seconds and FLOPs."""
    seconds = sum(record.spent_accelerator_seconds for record in records)
    return seconds, sum(record.spent_flops for record in records)


def slots_taken(observed: ObservedSweep) -> int:
    """Jobs and loose pods that count toward parallelism; Jobs being deleted count until they are gone."""
    return sum(job.holds_a_slot for job in observed.jobs) + len(observed.loose_pods)


def admit(
    observed: ObservedSweep,
    spec: ScalingSweepSpec,
    points: Sequence[PlannedPoint],
    records: Mapping[str, PointRecord],
    unknown: frozenset[str],
) -> Admission:
    """Pending points to start now, at most as many as there are free slots."""
    busy = {job.key for job in observed.jobs if job.kind == "train" and job.holds_a_slot}
    busy |= unknown | set(observed.loose_pods)
    pending = [
        point
        for point in points
        if records[point.key].state is PointState.PENDING and point.key not in busy
    ]
    pending.sort(key=lambda point: point.flops)  # stable: planned order among equals
    running = [point for point in points if point.key in busy]
    affordable, unaffordable, message = _within_budget(spec, pending, running, records)
    due, later = [], []
    for point in affordable:
        start = not_before(records[point.key].attempts, point.proxy.template_digest)
        if start is None or start <= observed.now:
            due.append(point)
        else:
            later.append(start)
    free = max(0, spec.parallelism - slots_taken(observed))
    if observed.create_error:
        free = min(
            free, 1
        )  # one at a time, to find out whether the API server thinks better of it
    return Admission(
        starts=tuple(due[:free]),
        waiting=len(later),
        next_start=min(later, default=None),
        unaffordable=tuple(unaffordable),
        budget_message=message,
    )


def remaining_flops(point: PlannedPoint, record: PointRecord) -> float:
    """FLOPs that a point still needs; a continued run has some behind it.

    Work that was interrupted counts as kept: a checkpoint nearly always holds it, and a point that was
    preempted at its end must not look as expensive as a new one.
    """
    if record.state in DONE:
        return 0.0
    behind = max(six_nd(point.proxy.parameters, record.tokens), record.unfinished_flops)
    return max(0.0, point.flops - behind)


def _within_budget(
    spec: ScalingSweepSpec,
    pending: Sequence[PlannedPoint],
    running: Sequence[PlannedPoint],
    records: Mapping[str, PointRecord],
) -> tuple[list[PlannedPoint], list[PlannedPoint], str]:
    """Pending points, cheapest first, split at the first that does not fit; and why, in words."""
    budget = spec.budget
    if budget is None:
        return list(pending), [], ""
    spent = spending(tuple(records.values()))
    rate = spent.seconds_per_flop or 0.0
    flops_left = float(budget.flops) - spent.flops if budget.flops else float("inf")
    seconds_left = (
        budget.accelerator_hours * 3600.0 - spent.accelerator_seconds
        if budget.accelerator_hours
        else float("inf")
    )
    committed = sum(remaining_flops(point, records[point.key]) for point in running)
    affordable: list[PlannedPoint] = []
    for index, point in enumerate(pending):
        wanted = committed + remaining_flops(point, records[point.key])
        over_flops, over_time = wanted > flops_left, wanted * rate > seconds_left
        # Before the first result no one knows how long a point takes: only a spent budget stops it.
        if over_flops or over_time or seconds_left <= 0:
            hours = f"acceleratorHours {budget.accelerator_hours}"
            cap = f"flops {budget.flops}" if over_flops else hours
            return (
                affordable,
                list(pending[index:]),
                f"budget.{cap} leaves no room for {point.name}",
            )
        affordable.append(point)
        committed = wanted
    return affordable, [], ""


# ---------------------------------------------------------------------------------------- requests


def store_label(store_uri: str) -> str:
    """LABEL_STORE of Jobs that write to a store."""
    return content_key(store_uri)[:16]


def job_request(
    observed: ObservedSweep | ObservedPrediction,
    spec: ScalingSweepSpec,
    task: PrepareTask | TrainTask | EvaluateTask,
    *,
    what: str,
    key: str,
    attempt: int,
    pod_templates: Iterable[Mapping[str, Any] | None],
    own_secret: str | None = None,
) -> JobRequest:
    """The Job of a task: named, labelled and queued as all are. `what` is its part of the name.

    `own_secret`: a Secret that the task needs besides the store's.
    """
    uri = spec.storage.uri.rstrip("/")
    return JobRequest(
        name=job_name(observed.name, what, [observed.uid, uri, key], attempt),
        kind=task.kind,
        attempt=attempt,
        task=task,
        labels=_labels(observed, task.kind, key=key, attempt=attempt, store_uri=uri),
        pod_templates=tuple(template for template in pod_templates if template),
        secret_names=tuple(name for name in (spec.storage.secret_name, own_secret) if name),
        local_queue=spec.queue.local_queue_name if spec.queue else "",
        priority_class=(spec.queue.workload_priority_class_name or "") if spec.queue else "",
        deadline_seconds=spec.failure_policy.attempt_deadline_seconds,
    )


def _labels(
    owner: ObservedSweep | ObservedPrediction,
    kind: JobKind,
    *,
    key: str,
    attempt: int,
    store_uri: str,
) -> dict[str, str]:
    """All labels by which Jobs are found again."""
    found = {
        LABEL_OWNER_UID: owner.uid,
        LABEL_KIND: kind,
        LABEL_KEY: key,
        LABEL_ATTEMPT: str(attempt),
        LABEL_STORE: store_label(store_uri),
        LABEL_GENERATION: str(owner.generation),
    }
    return found | ({LABEL_SWEEP: owner.name} if len(owner.name) <= MAX_LABEL else {})


def next_attempt(attempts: Attempts, jobs: Iterable[ObservedJob]) -> int:
    """Number of the next attempt: one after everything that ended, on record or in the cluster."""
    return max([attempts.ended, *(job.attempt for job in jobs if job.is_finished)]) + 1


def train_request(
    observed: ObservedSweep,
    spec: ScalingSweepSpec,
    point: PlannedPoint,
    record: PointRecord,
    jobs: Iterable[ObservedJob],
) -> JobRequest:
    """The Job of a point's next attempt."""
    attempt = next_attempt(record.attempts, jobs)
    uri = spec.storage.uri.rstrip("/")
    task = TrainTask(
        point=point.config,
        tokens=point.proxy.tokens,
        store_uri=uri,
        data_uri=f"{uri}/{_data_folder(spec)}",
        claimant=Claimant(sweep_uid=observed.uid, attempt=attempt),
        micro_batch_halvings=halvings(record.attempts, point.proxy.template_digest),
        checkpoint_seconds=spec.training.checkpoint_seconds,
        release_checkpoints_when_done=spec.training.release_checkpoints,
    )
    return job_request(
        observed,
        spec,
        task,
        what=point.name,
        key=point.key,
        attempt=attempt,
        pod_templates=(spec.pod_template, point.proxy.pod_template),
    )


def prepare_request(
    observed: ObservedSweep, spec: ScalingSweepSpec, config: PrepareConfig, attempt: int
) -> JobRequest:
    """The Job that tokenises the corpus."""
    return job_request(
        observed,
        spec,
        PrepareTask(config=config, store_uri=spec.storage.uri.rstrip("/")),
        what="prepare",
        key=config.key,
        attempt=attempt,
        pod_templates=(spec.pod_template, spec.data.pod_template),
    )


def _data_folder(spec: ScalingSweepSpec) -> str:
    return layout.data_folder(prepare_config(spec).key)
