"""The ledger with everything observed in it: results, and Jobs that ended, were stopped or stalled, once each. What an
outcome does to the record of a point does nothing when repeated.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Final

from isoloss_contract import layout, reading
from isoloss_contract.ledger import (
    DONE,
    MAX_VERSIONS,
    NOT_CHOSEN,
    ConfigurationError,
    Intent,
    IntentAction,
    Ledger,
    PointRecord,
    PointState,
    Spend,
)
from isoloss_contract.records import Outcome, PointProgress, PointResult
from isoloss_operator.decide.conditions import shortened, timestamp
from isoloss_operator.decide.fits import fit_inputs
from isoloss_operator.decide.jobs.attempts import (
    after_failure,
    after_result,
    after_stop,
    charged,
    charged_as,
    charges,
)
from isoloss_operator.decide.jobs.failures import (
    Failure,
    FailureClass,
    awaits_result,
    classify,
    configuration_error,
    spec_field,
)
from isoloss_operator.decide.jobs.requests import by_attempt, quarantine
from isoloss_operator.decide.known_ledger import Recorded
from isoloss_operator.decide.observation import ObservedJob, ObservedSweep
from isoloss_operator.decide.plans import Quarantine
from isoloss_operator.decide.tasks import TaskSet
from isoloss_operator.planning.flops import six_nd
from isoloss_operator.planning.points import PlannedPoint

VERSIONED: Final = ("isoloss", "torch", "transformers")
"""What may change a result in addition to its configuration: a pod may report any other version too."""
MAX_VERSION: Final = 40
_STATES: Final[Mapping[Outcome, PointState]] = {
    Outcome.SUCCEEDED: PointState.SUCCEEDED,
    Outcome.DIVERGED: PointState.DIVERGED,
}


def record(tasks: TaskSet) -> Recorded:
    """The ledger with everything observed in it: results, ended Jobs, stopped ones, unreadable trajectories, stalls."""
    recorded = _record_points(tasks)
    ledger = end_recorded(recorded.ledger, tasks.observed.stopped, tasks)
    recorded = replace(recorded, ledger=ledger)
    if unreadable := _unreadable(tasks, ledger):
        recorded = _take_back_unreadable(recorded, unreadable, tasks)
    stalled = _stalled(recorded.ledger, tasks)
    message = (
        f"no progress for {tasks.spec.failure_policy.stall_seconds} s (failurePolicy.stallSeconds)"
    )
    failure = Failure(FailureClass.STALLED, message)
    return replace(recorded, ledger=end_recorded(recorded.ledger, stalled, tasks, failure))


def _record_points(tasks: TaskSet) -> Recorded:
    """The ledger of the planned points with every result and every ended Job in it.

    Points that are no longer planned are kept apart if they cost something; their results stay in the store.
    """
    known, retries = tasks.known, tasks.spec.failure_policy.retries_per_point
    uid, now = tasks.observed.uid, tasks.observed.now
    records, quarantined = [], list(known.quarantined)
    error, versions = known.ledger.configuration_error, known.ledger.versions
    for point in tasks.points.values():
        before = settled(planned(point, known.ledger.by_key.get(point.key)), point, retries)
        seen = _seen(tasks, point, before)
        recorded = _brought_up_to_date(before, point, seen, uid, now)
        if isinstance(seen.result, PointResult):
            recorded, versions = with_versions(recorded, seen.result, versions)
        records.append(settled(recorded, point, retries))
        quarantined += _quarantined(before, seen)
        if seen.failures:
            error = _refused(tasks, point, *seen.failures[-1]) or error
    ledger = known.ledger.replace(
        points=tuple(records),
        former=_former(tasks),
        data_digest=tasks.corpus.digest,
        configuration_error=error,
        versions=versions,
    )
    return Recorded(ledger, tuple(quarantined))


def _former(tasks: TaskSet) -> tuple[PointRecord, ...]:
    """The points that are no longer planned, with what they cost until they are stopped."""
    ledger = tasks.known.ledger
    unplanned = (r for r in (*ledger.former, *ledger.points) if r.key not in tasks.points)
    found = (_dropped(record, tasks) for record in unplanned)
    return tuple(record for record in found if record.has_history or record.intent == STOPPING)


@dataclass(frozen=True)
class _Seen:
    """What is observed of a point since its record was written."""

    jobs: tuple[ObservedJob, ...]
    """In order of attempts."""
    ended: tuple[ObservedJob, ...]
    """Those that have finished and whose end is not in the ledger yet."""
    result: reading.Read[PointResult]
    """What is stored as its result; Unreadable also if it is another point's, Unanswered also while a Job that has just
    ended may have one."""
    failures: tuple[tuple[ObservedJob, Failure], ...]
    """Why the Jobs that ended have no result; empty if they have one."""
    progress: PointProgress | None


def _seen(tasks: TaskSet, point: PlannedPoint, record: PointRecord) -> _Seen:
    jobs, known = tasks.jobs.get(point.key, ()), record.attempts.ended
    ended = tuple(job for job in jobs if job.is_finished and job.attempt > known)
    result = tasks.result(point.key)
    if isinstance(result, reading.Absent) and record.state not in DONE:
        awaited = [job for job in ended if awaits_result(job, tasks.observed.now)]
        if awaited:
            result = reading.Unanswered(f"no result of Job {awaited[-1].name} yet")
    elif isinstance(result, PointResult) and (problem := unusable(point, result)):
        result = reading.Unreadable(problem)
    failures = () if record.state in DONE else _failures(record, point, ended, result)
    return _Seen(jobs, ended, result, failures, tasks.progress.get(point.key))


def _failures(
    record: PointRecord,
    point: PlannedPoint,
    ended: Sequence[ObservedJob],
    result: reading.Read[PointResult],
) -> tuple[tuple[ObservedJob, Failure], ...]:
    match result:
        case reading.Newer() | reading.Unanswered():
            return ()
        case PointResult() if is_enough(point, result):
            return ()
        case PointResult(outcome=Outcome.SUCCEEDED) if result.wanted_tokens > record.trained_for:
            return ()  # the spec asked for more tokens while it ran: its work counts and is continued
        case reading.Unreadable(message):
            failure = Failure(FailureClass.RESULT_UNREADABLE, message)
            return tuple((job, failure) for job in ended)
        case _:
            return tuple((job, classify(job)) for job in ended)


def _brought_up_to_date(
    record: PointRecord, point: PlannedPoint, seen: _Seen, uid: str, now: datetime
) -> PointRecord:
    """The record with what is observed since; `uid` is the sweep's."""
    if seen.failures:
        return _failed(record, point, seen, now)
    if reading.is_unknown(seen.result):
        return record
    before, adopted = record, _is_adopted(record, seen, uid)
    reports = Reports(seen.progress, None if adopted else reading.value_of(seen.result), now)
    record = _paid_late(record, reports)
    if not seen.jobs and before.state not in DONE:
        record = _vanished(record, reports)
    for job in seen.ended:
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
    for job in seen.ended:  # what they cost was paid before
        attempts = after_result(attempts, job, now)
    return record if attempts is record.attempts else replace(record, attempts=attempts)


def _failed(record: PointRecord, point: PlannedPoint, seen: _Seen, now: datetime) -> PointRecord:
    for job, failure in seen.failures:
        record = _ended_without_result(
            record,
            job,
            Reports(seen.progress, None, now),
            failure,
            template=point.proxy.template_digest,
            halvable=(point.batch_size - 1).bit_length(),
        )
    return record


def _is_adopted(record: PointRecord, seen: _Seen, uid: str) -> bool:
    """Whether the result is not the work of the Jobs of the sweep with this uid."""
    if isinstance(seen.result, PointResult) and seen.result.claimant:
        return seen.result.claimant.sweep_uid != uid
    if any(not job.is_finished for job in seen.jobs):
        return False
    if seen.ended:
        return classify(seen.ended[-1]).kind is FailureClass.CLAIMED_ELSEWHERE
    attempts = record.attempts
    return not attempts.ended or attempts.last_failure == FailureClass.CLAIMED_ELSEWHERE


def _quarantined(record: PointRecord, seen: _Seen) -> tuple[Quarantine, ...]:
    """Its result, if it cannot be used and no running attempt is about to overwrite it."""
    is_running = any(job.holds_a_slot for job in seen.jobs) and not seen.ended
    if record.state in DONE or is_running or not isinstance(seen.result, reading.Unreadable):
        return ()
    suffix = f"unreadable-{record.attempts.ended + 1}"
    return (quarantine(layout.point_result(record.key), suffix),)


def _refused(
    tasks: TaskSet, point: PlannedPoint, job: ObservedJob, failure: Failure
) -> ConfigurationError | None:
    """What its last attempt refused about the present spec."""
    index = point.proxy.index
    field = spec_field(
        failure.field,
        domains=list(point.config.mixture),
        proxy=index,
        model="config" if tasks.spec.proxies[index].checkpoint is None else "checkpoint",
    )
    asked, generation = tasks.templates[point.proxy.template_digest], tasks.observed.generation
    return configuration_error(failure, job, generation, point.name, field, asked)


def _unreadable(tasks: TaskSet, ledger: Ledger) -> Sequence[tuple[str, str]]:
    """Key and problem of what the newest fit could not read, if it is a fit of just these points: an outcome of others
    may complain of a trajectory that has been written again since."""
    fit, spec = tasks.observed.fit, tasks.spec
    if fit is None or not fit.unreadable:
        return ()
    inputs = [fit_inputs(spec, ledger.points, final=final) for final in (True, False)]
    if spec.searches:
        inputs.append(fit_inputs(spec, ledger.points, final=True, search=True))
    return fit.unreadable if fit.inputs in inputs else ()


def _take_back_unreadable(
    recorded: Recorded, unreadable: Iterable[tuple[str, str]], tasks: TaskSet
) -> Recorded:
    """Done points whose trajectory a fit could not read run again; what is stored is quarantined."""
    problems = dict(unreadable)
    records, quarantined = [], list(recorded.quarantined)
    for record in recorded.ledger.points:
        if record.key not in problems or not record.is_fitted:
            records.append(record)
            continue
        problem, point = problems[record.key], tasks.points[record.key]
        failure = Failure(FailureClass.TRAJECTORY_UNREADABLE, problem)
        pending = taken_back(record, failure, point.proxy.template_digest)
        records.append(settled(pending, point, tasks.spec.failure_policy.retries_per_point))
        suffix = f"unreadable-{record.attempts.ended + 1}"
        trajectory = layout.finished_trajectory(record.key, record.trajectory_sha256)
        paths = (layout.point_result(record.key), trajectory, layout.point_trajectory(record.key))
        quarantined += [quarantine(path, suffix) for path in paths]
    return Recorded(recorded.ledger.replace(points=tuple(records)), tuple(quarantined))


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


def end_recorded(
    ledger: Ledger, jobs: Iterable[ObservedJob], tasks: TaskSet, failure: Failure | None = None
) -> Ledger:
    """The ledger once the operator ends these unfinished Jobs of planned points, each recorded once: for a failure, which
    is charged, or as an interruption."""
    ended = dict[str, PointRecord]()
    for job in {job.key: job for job in jobs if job.key in tasks.points}.values():
        record, point = ledger.by_key[job.key], tasks.points[job.key]
        if job.attempt <= record.attempts.ended:
            continue
        reports = Reports(tasks.progress.get(job.key), None, tasks.observed.now)
        template = point.proxy.template_digest
        stopped = _ended_without_result(record, job, reports, failure, template=template)
        ended[job.key] = settled(stopped, point, tasks.spec.failure_policy.retries_per_point)
    if not ended:
        return ledger
    return ledger.replace(points=tuple(ended.get(each.key, each) for each in ledger.points))


def unplanned_recorded(
    ledger: Ledger, stopped: Iterable[ObservedJob], observed: ObservedSweep
) -> Ledger:
    """The ledger while nothing is planned, once these train Jobs of its points are stopped: each an interruption that is
    paid once, of points that will be dropped, too."""
    jobs, busy = dict[str, list[ObservedJob]](), {job.key for job in observed.jobs}
    for job in by_attempt(stopped):
        jobs.setdefault(job.key, []).append(job)
    changed = {
        each.key: _ended_unplanned(
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


def _stalled(ledger: Ledger, tasks: TaskSet) -> tuple[ObservedJob, ...]:
    """Jobs whose point is unfinished and that have reported no progress for as long as the policy allows."""
    seconds, since = tasks.spec.failure_policy.stall_seconds, tasks.observed.unchanged_since
    done = {record.key for record in ledger.points if record.state in DONE}
    return tuple(
        job
        for job in tasks.active
        if seconds is not None
        and job.key not in done
        and not job.deleting
        and job.uid in since
        and (tasks.observed.now - since[job.uid]).total_seconds() >= seconds
    )


# ------------------------------------------------------------------------------- what a result is


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


# ------------------------------------------------------------------ what an outcome does to a record


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


STOPPING: Final = Intent(IntentAction.PAUSE, reason=NOT_CHOSEN)
"""Of a point that is no longer planned, until its pods are gone and the store has said what they left: what is stopped goes
on until its pod has ended. A point that is planned again meanwhile is one that no search has chosen."""


def _dropped(record: PointRecord, tasks: TaskSet) -> PointRecord:
    """The record of a point that is no longer planned: its Jobs, ended, still to be stopped or gone, cost something."""
    key, observed, jobs = record.key, tasks.observed, tasks.jobs.get(record.key, ())
    record = _ended_unplanned(record, jobs, reports_of(observed, key), is_gone=not jobs)
    is_going = jobs or key in observed.orphaned_pods or reading.is_unknown(tasks.result(key))
    is_over = record.state in DONE or not is_going
    return replace(record, intent=Intent() if is_over else STOPPING)


def _ended_unplanned(
    record: PointRecord, jobs: Iterable[ObservedJob], reports: Reports, *, is_gone: bool
) -> PointRecord:
    """The record with what these Jobs cost, whatever they ended with, and what was trained since the last that is recorded;
    `is_gone`: no Job is left that could tell of more."""
    record = _paid_late(record, reports)
    for job in jobs:
        record = _paid(record, job, reports)
        record = replace(record, attempts=after_stop(record.attempts, job, reports.now))
    if is_gone and record.state not in DONE:
        record = _vanished(record, reports)
    return record


# ------------------------------------------------------------------------------ what an attempt costs


@dataclass(frozen=True)
class Reports:
    """What attempts of this sweep have said of a point by `now`."""

    progress: PointProgress | None
    result: PointResult | None
    """What is stored as the point's, if an attempt of this sweep may have written it."""
    now: datetime


def reports_of(observed: ObservedSweep, key: str) -> Reports:
    """Of a point, unless the reports say that they are another sweep's."""
    progress = observed.progress.get(key)
    result = reading.value_of(observed.results.get(key, reading.ABSENT))
    if progress is not None and progress.claimant.sweep_uid != observed.uid:
        progress = None
    if result and result.claimant and result.claimant.sweep_uid != observed.uid:
        result = None
    return Reports(progress, result, observed.now)


def cost_of(record: PointRecord, job: ObservedJob, reports: Reports) -> Spend:
    """What an attempt has cost by now: the tokens that it trained, as far as it reported them, and its hours."""
    began, reached = _tokens_of(record, job.attempt, reports)
    flops = record.flops_per_token * max(0, reached - began)
    return Spend(flops, job.accelerator_seconds(reports.now))


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


def settled(record: PointRecord, point: PlannedPoint, retries: int) -> PointRecord:
    """The record in the state that its result and its charges give it now."""
    state = _state(record, point, retries)
    return record if state is record.state else replace(record, state=state)


def _state(record: PointRecord, point: PlannedPoint, retries: int) -> PointState:
    if is_done(record, point):
        is_diverged = record.state is PointState.DIVERGED
        return PointState.DIVERGED if is_diverged else PointState.SUCCEEDED
    template = point.proxy.template_digest
    if charged_as(record.attempts, template, FailureClass.OUT_OF_MEMORY):
        return PointState.OUT_OF_MEMORY
    if charges(record.attempts, template) > retries:
        return PointState.FAILED
    return PointState.PENDING


def result_found(record: PointRecord, result: PointResult, *, adopted: bool) -> PointRecord:
    """A result that is enough is in the store; `adopted`: another sweep's Jobs made it."""
    found = partial_result_found(record, result, adopted=adopted)
    return replace(found, state=_STATES[result.outcome])


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


def _ended_without_result(
    record: PointRecord,
    job: ObservedJob,
    reports: Reports,
    failure: Failure | None,
    *,
    template: str,
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


def taken_back(record: PointRecord, failure: Failure, template: str) -> PointRecord:
    """A fit could not read the trajectory of a done point: pending again, one failure charged."""
    attempt = max(1, record.attempts.ended)
    is_pruned = record.intent.action is IntentAction.PRUNE
    return replace(
        record,
        # A pruned point never runs again by itself, and now it has nothing to be fitted by.
        intent=Intent(tokens=record.intent.tokens, reason=failure.kind)
        if is_pruned
        else record.intent,
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
