"""What an attempt that ends does to its task: what is charged, and, of a point, what it cost and in which state it is.

Charges and halvings belong to one pod template, so that a user who fixes the image, the memory limit or
the Secret gives every failed task a fresh start without deleting anything. What an outcome does to a record does nothing
when repeated.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Final

from isoloss.formatting import shortened
from isoloss_contract import layout, ledger, reading
from isoloss_contract.ledger import (
    DONE,
    MAX_VERSIONS,
    Attempts,
    Ledger,
    PointRecord,
    PointState,
    Spend,
)
from isoloss_contract.reading import timestamp
from isoloss_contract.records import Outcome, PointProgress, PointResult
from isoloss_operator.decide.jobs import (
    MAX_NODE_FAILURES,
    MAX_VANISHED,
    Failure,
    FailureClass,
    awaits_result,
    classify,
)
from isoloss_operator.decide.observation import ObservedJob, ObservedSweep
from isoloss_operator.decide.plans import Quarantine
from isoloss_operator.decide.tasks import TaskSet
from isoloss_operator.planning.flops import six_nd
from isoloss_operator.planning.points import PlannedPoint


def charges(attempts: Attempts, template: str) -> int:
    """Failures that count against the retries under a pod template.

    A bad configuration is recorded but does not count: the sweep stops until the spec changes.
    """
    if attempts.template != template:
        return 0
    return sum(
        n for failure, n in attempts.charged.items() if failure != FailureClass.BAD_CONFIGURATION
    )


# ------------------------------------------------------------------- what an ending does to attempts


BUSY_SECONDS: Final = 600.0
"""An attempt that ran this long before it was interrupted did some work: no need to slow the next."""
MAX_HALVINGS: Final = 20
_MOST_IN_A_ROW: Final[Mapping[FailureClass, tuple[float, FailureClass]]] = {
    FailureClass.NODE_FAILURE: (MAX_NODE_FAILURES, FailureClass.CRASHED),
    FailureClass.STORE_UNAVAILABLE: (MAX_VANISHED, FailureClass.STORAGE),
}
"""Attempts in a row that are not charged, and what one more of them is charged as."""


def after_failure(
    attempts: Attempts,
    job: ObservedJob,
    failure: Failure,
    *,
    template: str,
    now: datetime,
    halvable: int = 0,
) -> Attempts:
    """The attempts once `job` ended without a result; unchanged if that is recorded already.

    `halvable` is how often the micro-batch can be halved; beyond it, refused memory is final.
    """
    if job.attempt <= attempts.ended:
        return attempts
    failure = _exhausted(attempts, failure, template, halvable)
    if not failure.is_charged:
        attempts = _interrupted(attempts, job, failure, now)
    elif failure.halves_micro_batch:
        fresh = under_template(attempts, template)
        attempts = replace(fresh, micro_batch_halvings=fresh.micro_batch_halvings + 1)
    else:
        attempts = charged(attempts, failure, template, job_uid=job.uid, attempt=job.attempt)
    return replace(
        _ended(attempts, job, now),
        last_failure=str(failure.kind),
        last_code=failure.code,
        # Of an uncharged failure nothing else is kept, and people must see which node it was.
        last_message=failure.message if failure.kind is FailureClass.NODE_FAILURE else "",
    )


def after_stop(attempts: Attempts, job: ObservedJob, now: datetime) -> Attempts:
    """The attempts once the operator itself stops an unfinished Job: an interruption without delay."""
    if job.attempt <= attempts.ended:
        return attempts
    return replace(
        _ended(attempts, job, now),
        interruptions=attempts.interruptions + 1,
        idle_interruptions=0,
        last_failure=str(FailureClass.INTERRUPTED),
    )


def after_result(attempts: Attempts, job: ObservedJob, now: datetime) -> Attempts:
    """The attempts once a Job of a task that has its result ended."""
    if job.attempt <= attempts.ended:
        return attempts
    ended = _ended(attempts, job, now)
    return replace(ended, last_failure="", last_code="", idle_interruptions=0)


def charged(
    attempts: Attempts, failure: Failure, template: str, *, job_uid: str, attempt: int
) -> Attempts:
    """The attempts with one more charged failure under `template`."""
    fresh = under_template(attempts, template)
    kind = str(failure.kind)
    message = shortened(failure.message, ledger.MAX_FAILURE_MESSAGE)
    record = ledger.FailureRecord(attempt=attempt, job_uid=job_uid, failure=kind, message=message)
    return replace(
        fresh,
        charged={**fresh.charged, kind: fresh.charged.get(kind, 0) + 1},
        failures=(*fresh.failures, record)[-ledger.MAX_FAILURES_KEPT :],
        idle_interruptions=0,
    )


def under_template(attempts: Attempts, template: str) -> Attempts:
    """The same attempts with charges and halvings of another template dropped."""
    if attempts.template == template:
        return attempts
    return replace(attempts, template=template, charged={}, micro_batch_halvings=0)


def _ended(attempts: Attempts, job: ObservedJob, now: datetime) -> Attempts:
    """With the Job's own end, if the API server knows one: a pass that is repeated, as the store did not take what it
    wrote, then writes the same again."""
    ended = now
    if job.is_finished and not job.must_be_deleted and job.ended is not None:
        ended = min(now, max(job.created, job.ended))
    return replace(attempts, ended=job.attempt, last_ended_at=timestamp(ended))


def _exhausted(attempts: Attempts, failure: Failure, template: str, halvable: int) -> Failure:
    """The failure, made final or charged if what was tolerated has happened too often."""
    used_up = min(halvable, MAX_HALVINGS)
    if failure.halves_micro_batch and attempts.halvings(template) >= used_up:
        message = f"the micro-batch cannot be halved again: {failure.message}"
        return Failure(FailureClass.OUT_OF_MEMORY, message)
    if failure.kind is FailureClass.POD_VANISHED and attempts.vanished >= MAX_VANISHED:
        message = f"{attempts.vanished + 1} pods vanished: {failure.message}"
        return Failure(FailureClass.CRASHED, message)
    most, charged_as = _MOST_IN_A_ROW.get(failure.kind, (math.inf, failure.kind))
    if attempts.idle_interruptions < most:
        return failure
    message = f"{attempts.idle_interruptions + 1} attempts in a row: {failure.message}"
    return Failure(charged_as, message, failure.code)


def _interrupted(
    attempts: Attempts, job: ObservedJob, failure: Failure, now: datetime
) -> Attempts:
    if failure.kind is FailureClass.CLAIMED_ELSEWHERE:
        return attempts
    was_busy = job.started is not None and (now - job.started).total_seconds() >= BUSY_SECONDS
    return replace(
        attempts,
        interruptions=attempts.interruptions + 1,
        idle_interruptions=1 if was_busy else attempts.idle_interruptions + 1,
        vanished=attempts.vanished + (failure.kind is FailureClass.POD_VANISHED),
    )


# ------------------------------------------------------------------ what an attempt of a point costs


@dataclass(frozen=True)
class Reports:
    """What attempts of this sweep have said of a point by `now`."""

    progress: PointProgress | None
    result: PointResult | None
    """What is stored as the point's, if an attempt of this sweep may have written it."""
    now: datetime


Costs = Sequence[tuple[str, Spend]]
"""Each with the size that it was paid for."""


def reports_of(observed: ObservedSweep, key: str) -> Reports:
    """Of a point, unless the reports say that they are another sweep's."""
    progress = observed.progress.get(key)
    result = reading.value_of(observed.results.get(key, reading.ABSENT))
    if progress is not None and progress.claimant.sweep_uid != observed.uid:
        progress = None
    if result and result.claimant and result.claimant.sweep_uid != observed.uid:
        result = None
    return Reports(progress, result, observed.now)


def unrecorded(
    jobs: Iterable[ObservedJob], records: Mapping[str, PointRecord]
) -> list[ObservedJob]:
    """Those that train a point of these records, and whose end is not in them."""
    return [
        job
        for job in jobs
        if job.kind == "train"
        and job.key in records
        and job.attempt > records[job.key].attempts.ended
    ]


def running_costs(observed: ObservedSweep, ledger: Ledger) -> Costs:
    """What attempts have cost by now whose end is not in the ledger."""
    records = ledger.by_key
    return tuple(
        (records[job.key].proxy, cost_of(records[job.key], job, reports_of(observed, job.key)))
        for job in unrecorded(observed.jobs, records)
    )


def accelerator_seconds(job: ObservedJob, now: datetime) -> float:
    """Seconds times devices that its pods held until `now`, according to the API server.

    Pods that are gone count until they were last seen, if this process saw them. If a failed Job has no pod left,
    its own times stand in if they are longer; part of them may have been spent waiting for a node.
    """
    seconds = pod_seconds(job, now)
    if job.failed and job.pod is None and job.started is not None and job.ended is not None:
        seconds = max(seconds, job.pods * (job.ended - job.started).total_seconds())
    return job.accelerators * max(0.0, seconds)


def pod_seconds(job: ObservedJob, now: datetime) -> float:
    """How long its trainer containers ran until `now`, added up."""
    over = job.worked_seconds + job.gone_seconds
    if job.working_since is None:
        return over
    return over + job.pods_at_work * (now - job.working_since).total_seconds()


def cost_of(record: PointRecord, job: ObservedJob, reports: Reports) -> Spend:
    """What an attempt has cost by now: the tokens that it trained, as far as it reported them, and its hours."""
    began, reached = _tokens_of(record, job.attempt, reports)
    flops = record.flops_per_token * max(0, reached - began)
    return Spend(flops, accelerator_seconds(job, reports.now))


def _paid(record: PointRecord, job: ObservedJob, reports: Reports) -> PointRecord:
    """The record with what an attempt cost that has ended or is stopped; unchanged if its end is recorded already."""
    if job.attempt <= record.attempts.ended:
        return record
    _, reached = _tokens_of(record, job.attempt, reports)
    spent = record.spent + cost_of(record, job, reports)
    return replace(record, spent=spent, reached_tokens=reached)


def _paid_late(record: PointRecord, reports: Reports) -> PointRecord:
    """The record with what its last attempt trained after its end was recorded: a Job that is stopped goes on until its pod
    has ended."""
    ended, lost = record.attempts.ended, FailureClass.TRAJECTORY_UNREADABLE
    # What was paid and then taken back is not paid again: its report is still there.
    is_taken_back = any(
        each.failure == lost and each.attempt == ended for each in record.attempts.failures
    )
    if not ended or is_taken_back:
        return record
    began, reached = _tokens_of(record, ended, reports)
    if reached <= record.reached_tokens:
        return record
    # One of which nothing was known by then may have begun where a checkpoint of others ended.
    late = Spend(record.flops_per_token * max(0, reached - max(began, record.reached_tokens)))
    return replace(record, spent=record.spent + late, reached_tokens=reached)


def _vanished(record: PointRecord, reports: Reports) -> PointRecord:
    """The record once an attempt is gone with its Job before its end was recorded: somebody deleted it. What it had
    reported is paid; its hours are not known any more."""
    written = (reports.progress, reports.result)
    claims = [each.claimant.attempt for each in written if each is not None and each.claimant]
    attempt, attempts = max(claims, default=0), record.attempts
    if attempt <= attempts.ended:
        return record
    began, reached = _tokens_of(record, attempt, reports)
    return replace(
        record,
        spent=record.spent + Spend(record.flops_per_token * max(0, reached - began)),
        reached_tokens=reached,
        attempts=replace(
            attempts,
            ended=attempt,
            interruptions=attempts.interruptions + 1,
            last_failure="" if reports.result is not None else str(FailureClass.INTERRUPTED),
            last_ended_at=timestamp(reports.now),
        ),
    )


def _tokens_of(record: PointRecord, attempt: int, reports: Reports) -> tuple[int, int]:
    """Tokens behind the point when an attempt began, and those that it reached.

    An attempt that reported nothing reached nothing. One that does not say where it began did so where the last one
    ended, or anew if it is not that far: others' result, which is further, may have come while it trained.
    """
    began = reached = record.reached_tokens
    progress, result = reports.progress, reports.result
    if progress is not None and progress.claimant.attempt == attempt:
        reached = progress.tokens
        if progress.began_tokens is not None:
            began = progress.began_tokens
        elif reached < began:
            began = 0
    claimant = None if result is None else result.claimant
    if result is not None and (claimant is None or claimant.attempt == attempt):
        reached = max(reached, result.tokens)
    return began, reached


# ---------------------------------------------------------------------------------- what a result is


def unusable(point: PlannedPoint, result: PointResult) -> str:
    """Why a result that parses is not this point's; empty: it is."""
    if result.key != point.key:
        return f"it is the result of {result.key}"
    expected, found = point.proxy.parameters.active, result.parameters.active
    if found != expected:
        return f"it counts {found} active parameters, but this model has {expected}"
    return ""


def is_enough(point: PlannedPoint, result: PointResult) -> bool:
    """Whether a result ends the point: diverged, or trained for at least the wanted tokens."""
    if result.outcome is Outcome.DIVERGED:
        return True
    # What it has, as the trainer judges: whole steps, so up to one more than was wanted of it.
    return result.outcome is Outcome.SUCCEEDED and result.tokens >= point.wanted_tokens


def is_done(record: PointRecord, point: PlannedPoint) -> bool:
    """Whether a point needs no further training under the present spec."""
    # A diverged run has no state worth continuing; more tokens reopen a success only, until they are taken back.
    return record.state is PointState.DIVERGED or record.trained_for >= point.wanted_tokens


# ---------------------------------------------------- what is observed does to the record of a point


def planned(point: PlannedPoint, known: PointRecord | None) -> PointRecord:
    """What is known of a planned point's key, under its present name and tokens."""
    present: dict[str, Any] = {
        "name": point.name,
        "proxy": point.proxy.name,
        "wanted_tokens": point.proxy.tokens,
        "flops_per_token": six_nd(point.proxy.parameters, 1),
    }
    if known is None:
        rate = point.learning_rate
        return PointRecord(
            key=point.key, batch_size=point.batch_size, learning_rate=rate, **present
        )
    is_same = all(getattr(known, name) == value for name, value in present.items())
    return known if is_same else replace(known, **present)


@dataclass(frozen=True)
class Seen:
    """What is observed of a point since its record was written."""

    before: PointRecord
    jobs: tuple[ObservedJob, ...]
    """In order of attempts."""
    ended: tuple[tuple[ObservedJob, Failure], ...]
    """Those that have finished and whose end is not in the ledger yet, each with why it has no result if there is none."""
    result: reading.Read[PointResult]
    """What is stored as its result; Unreadable also if it is another point's, Unanswered also while a Job that has just
    ended may have one."""
    failures: tuple[tuple[ObservedJob, Failure], ...]
    """Why the Jobs that ended have no result; empty if they have one."""
    progress: PointProgress | None


def brought_up_to_date(point: PlannedPoint, seen: Seen, uid: str, now: datetime) -> PointRecord:
    """The record with what is observed since; `uid` is the sweep's."""
    before = record = seen.before
    if seen.failures:
        return _failed(record, point, seen, now)
    if reading.is_unknown(seen.result):
        return record
    adopted = _is_adopted(record, seen, uid)
    reports = Reports(seen.progress, None if adopted else reading.value_of(seen.result), now)
    record = _paid_late(record, reports)
    if not seen.jobs and before.state not in DONE:
        record = _vanished(record, reports)
    for job, _ in seen.ended:
        record = _paid(record, job, reports)
    match seen.result:
        case PointResult() as result if before.state not in DONE:
            if is_enough(point, result):
                record = result_found(record, result, adopted=adopted)
                enough = min(result.tokens, point.wanted_tokens)
                record = replace(record, trained_for=max(record.trained_for, enough))
            elif seen.ended:
                record = partial_result_found(record, result, adopted=adopted)
    attempts = record.attempts
    for job, _ in seen.ended:  # what they cost was paid before
        attempts = after_result(attempts, job, now)
    return record if attempts is record.attempts else replace(record, attempts=attempts)


def seen_since(
    record: PointRecord,
    point: PlannedPoint,
    jobs: tuple[ObservedJob, ...],
    result: reading.Read[PointResult],
    progress: PointProgress | None,
    now: datetime,
) -> Seen:
    """What became of a point since its record was written; `result` is what is stored as its own."""
    is_done, known = record.state in DONE, record.attempts.ended
    ended = tuple((job, classify(job)) for job in jobs if job.is_finished and job.attempt > known)
    awaited = [job for job, _ in ended if awaits_result(job, now)]
    if isinstance(result, reading.Absent) and awaited and not is_done:
        result = reading.Unanswered(f"no result of Job {awaited[-1].name} yet")
    elif isinstance(result, PointResult) and (problem := unusable(point, result)):
        result = reading.Unreadable(problem)
    failures = () if is_done else _failures(record, point, ended, result)
    return Seen(record, jobs, ended, result, failures, progress)


def _failures(
    record: PointRecord,
    point: PlannedPoint,
    ended: tuple[tuple[ObservedJob, Failure], ...],
    result: reading.Read[PointResult],
) -> tuple[tuple[ObservedJob, Failure], ...]:
    """Why the Jobs that ended have no result; empty if they have one, or nothing is known of it."""
    match result:
        case reading.Newer() | reading.Unanswered():
            return ()
        case PointResult() if is_enough(point, result):
            return ()
        case PointResult(outcome=Outcome.SUCCEEDED) if result.wanted_tokens > record.trained_for:
            return ()  # the spec asked for more tokens while it ran: its work counts and is continued
        case reading.Unreadable(message):
            failure = Failure(FailureClass.RESULT_UNREADABLE, message)
            return tuple((job, failure) for job, _ in ended)
        case _:
            return ended


def _is_adopted(record: PointRecord, seen: Seen, uid: str) -> bool:
    """Whether the result is not the work of the Jobs of the sweep with this uid."""
    if isinstance(seen.result, PointResult) and seen.result.claimant:
        return seen.result.claimant.sweep_uid != uid
    if any(not job.is_finished for job in seen.jobs):
        return False
    if seen.ended:
        return seen.ended[-1][1].kind is FailureClass.CLAIMED_ELSEWHERE
    attempts = record.attempts
    return not attempts.ended or attempts.last_failure == FailureClass.CLAIMED_ELSEWHERE


def _failed(record: PointRecord, point: PlannedPoint, seen: Seen, now: datetime) -> PointRecord:
    for job, failure in seen.failures:
        record = ended_without_result(
            record,
            job,
            Reports(seen.progress, None, now),
            failure,
            template=point.proxy.template_digest,
            halvable=(point.batch_size - 1).bit_length(),
        )
    return record


def ended_without_result(
    record: PointRecord,
    job: ObservedJob,
    reports: Reports,
    failure: Failure | None,
    *,
    template: str = "",
    halvable: int = 0,
) -> PointRecord:
    """The record once `job` ended without a result, for a failure under `template`, or is stopped, which is an
    interruption."""
    now = reports.now
    if failure is None:
        attempts = after_stop(record.attempts, job, now)
    else:
        attempts = after_failure(
            record.attempts, job, failure, template=template, now=now, halvable=halvable
        )
    return replace(_paid(record, job, reports), attempts=attempts)


def end_recorded(
    points: tuple[PointRecord, ...],
    jobs: Iterable[ObservedJob],
    tasks: TaskSet,
    failure: Failure | None = None,
) -> tuple[PointRecord, ...]:
    """The records once the operator ends these unfinished Jobs of planned points, each recorded once: for a failure, which
    is charged, or as an interruption."""
    ending = {job.key: job for job in jobs if job.key in tasks.points}
    if not ending:
        return points
    records = []
    for record in points:
        job = ending.get(record.key)
        if job is not None and job.attempt > record.attempts.ended:
            point, progress = tasks.points[job.key], tasks.progress.get(job.key)
            reports = Reports(progress, None, tasks.observed.now)
            template = point.proxy.template_digest
            record = ended_without_result(record, job, reports, failure, template=template)
        records.append(record)
    return tuple(records)


def ended_unplanned(
    record: PointRecord, jobs: Iterable[ObservedJob], reports: Reports, *, is_gone: bool
) -> PointRecord:
    """The record with what these Jobs cost, whatever they ended with, and what was trained since the last that is recorded;
    `is_gone`: no Job is left that could tell of more."""
    record = _paid_late(record, reports)
    for job in jobs:
        record = ended_without_result(record, job, reports, None)
    if is_gone and record.state not in DONE:
        record = _vanished(record, reports)
    return record


def unplanned_recorded(
    ledger: Ledger, stopped: Iterable[ObservedJob], observed: ObservedSweep
) -> Ledger:
    """The ledger while nothing is planned, once these train Jobs of its points are stopped: each an interruption that is
    paid once, of points that will be dropped, too."""
    jobs, busy = dict[str, list[ObservedJob]](), {job.key for job in observed.jobs}
    for job in sorted(stopped, key=lambda job: job.attempt):
        jobs.setdefault(job.key, []).append(job)
    changed = {
        each.key: ended_unplanned(
            each,
            jobs.get(each.key, ()),
            reports_of(observed, each.key),
            is_gone=each.key not in busy,
        )
        for each in (*ledger.points, *ledger.former)
    }
    points, former = (
        tuple(changed[each.key] for each in records) for records in (ledger.points, ledger.former)
    )
    if (points, former) == (ledger.points, ledger.former):
        return ledger
    return ledger.replace(points=points, former=former)


def settled(record: PointRecord, point: PlannedPoint, retries: int) -> PointRecord:
    """The record in the state that its result and its charges give it now."""
    state = _state(record, point, retries)
    return record if state is record.state else replace(record, state=state)


def _state(record: PointRecord, point: PlannedPoint, retries: int) -> PointState:
    if is_done(record, point):
        is_diverged = record.state is PointState.DIVERGED
        return PointState.DIVERGED if is_diverged else PointState.SUCCEEDED
    template = point.proxy.template_digest
    is_present = record.attempts.template == template
    if is_present and record.attempts.charged.get(FailureClass.OUT_OF_MEMORY):
        return PointState.OUT_OF_MEMORY
    if charges(record.attempts, template) > retries:
        return PointState.FAILED
    return PointState.PENDING


def result_found(record: PointRecord, result: PointResult, *, adopted: bool) -> PointRecord:
    """A result that is enough is in the store; `adopted`: another sweep's Jobs made it."""
    found = partial_result_found(record, result, adopted=adopted)
    return replace(found, state=PointState(result.outcome.value))


def partial_result_found(
    record: PointRecord, result: PointResult, *, adopted: bool
) -> PointRecord:
    """The facts of a result are known, whether or not it trained far enough."""
    spent = record.spent
    if not (adopted or record.adopted):
        # Kueue deletes the pods of a Job that it evicts; their checkpoints have carried their time on.
        seconds = max(spent.accelerator_seconds, result.accelerator_seconds)
        spent = replace(spent, accelerator_seconds=seconds)
    return replace(
        record,
        adopted=adopted,
        spent=spent,
        reached_tokens=result.tokens if adopted else record.reached_tokens,
        trained_for=result.wanted_tokens,
        tokens=result.tokens,
        loss=result.loss,
        averaged_loss=result.averaged_loss,
        trajectory_sha256=result.trajectory_sha256,
    )


def taken_back(record: PointRecord, failure: Failure, template: str) -> PointRecord:
    """A fit could not read the trajectory of a done point: pending again, one failure charged."""
    attempt = max(1, record.attempts.ended)
    return replace(
        record,
        state=PointState.PENDING,
        adopted=False,
        reached_tokens=0,
        tokens=0,
        trained_for=0,
        trajectory_sha256="",
        versions=None,
        taken_back=record.taken_back + 1,
        attempts=charged(record.attempts, failure, template, job_uid="", attempt=attempt),
    )


def taken_back_points(
    points: Sequence[PointRecord], unreadable: Mapping[str, str], tasks: TaskSet
) -> tuple[tuple[PointRecord, ...], tuple[Quarantine, ...]]:
    """Done points whose trajectory a fit could not read run again; what is stored is quarantined. `unreadable` has the
    problem of each by key."""
    if not unreadable:
        return tuple(points), ()
    records, quarantined = [], list[Quarantine]()
    for record in points:
        if record.key in unreadable and record.is_fitted:
            point, key = tasks.points[record.key], record.key
            suffix = f"unreadable-{record.attempts.ended + 1}"
            trajectory = layout.finished_trajectory(key, record.trajectory_sha256)
            paths = (layout.point_result(key), trajectory, layout.point_trajectory(key))
            quarantined += [Quarantine(path, suffix) for path in paths]
            failure = Failure(FailureClass.TRAJECTORY_UNREADABLE, unreadable[key])
            record = taken_back(record, failure, point.proxy.template_digest)
        records.append(record)
    return tuple(records), tuple(quarantined)


# ------------------------------------------------------------------------------ what trained a point


VERSIONED: Final = ("isoloss", "torch", "transformers")
"""What may change a result in addition to its configuration: a pod may report any other version too."""
MAX_VERSION: Final = 40


def with_versions(
    record: PointRecord, result: PointResult, known: tuple[dict[str, str], ...]
) -> tuple[PointRecord, tuple[dict[str, str], ...]]:
    """The record with what trained its result, and the table of versions that it points into."""
    found = {"contract": str(result.contract_version)}
    found |= {
        name: shortened(result.versions[name], MAX_VERSION)
        for name in VERSIONED
        if name in result.versions
    }
    if found not in known:
        if len(known) >= MAX_VERSIONS:
            return record, known
        known = (*known, found)
    return replace(record, versions=known.index(found)), known
