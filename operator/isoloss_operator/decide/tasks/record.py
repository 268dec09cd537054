"""What ended, was stopped or stalled enters the ledger, once each: which outcomes there are, and what each does to a record."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import cached_property
from typing import Final

from isoloss_contract import layout
from isoloss_contract.ledger import (
    DONE,
    MAX_VERSIONS,
    Attempts,
    ConfigurationError,
    Intent,
    IntentAction,
    Ledger,
    PointRecord,
    PointState,
    Spend,
)
from isoloss_contract.reading import Absent, Newer, Read, Unanswered, Unreadable, is_unknown
from isoloss_contract.records import Outcome, PointProgress, PointResult
from isoloss_operator.decide.conditions import shortened
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
    spec_field,
)
from isoloss_operator.decide.jobs.requests import aside
from isoloss_operator.decide.observation import ObservedJob
from isoloss_operator.decide.plans import SetAside
from isoloss_operator.decide.tasks.task_set import Recorded, TaskSet, configuration_error
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
    ledger = end_recorded(recorded.ledger, tasks.world.stopped, tasks)
    recorded = replace(recorded, ledger=ledger)
    if complaints := tasks.complaints(ledger):
        recorded = _take_back_unreadable(recorded, complaints, tasks)
    stalled = _stalled(recorded.ledger, tasks)
    message = f"no progress for {tasks.policy.stall_seconds} s (failurePolicy.stallSeconds)"
    failure = Failure(FailureClass.STALLED, message)
    return replace(recorded, ledger=end_recorded(recorded.ledger, stalled, tasks, failure))


def _record_points(tasks: TaskSet) -> Recorded:
    """The ledger of the planned points with every result and every ended Job in it.

    Points that are no longer planned are kept apart if they cost something; their results stay in the store.
    """
    known, retries = tasks.known, tasks.policy.retries
    records, set_aside = [], list(known.set_aside)
    error, versions = known.ledger.configuration_error, known.ledger.versions
    for point in tasks.points.values():
        before = settled(planned(point, known.ledger.by_key.get(point.key)), point, retries)
        seen = _SeenPoint(tasks, point, tasks.jobs.get(point.key, ()), before)
        recorded = seen.recorded()
        if isinstance(seen.result, PointResult):
            recorded, versions = with_versions(recorded, seen.result, versions)
        records.append(settled(recorded, point, retries))
        set_aside += seen.set_aside()
        error = seen.configuration_error() or error
    ledger = known.ledger.replace(
        points=tuple(records),
        former=_former(tasks),
        data_digest=tasks.data_digest,
        configuration_error=error,
        versions=versions,
    )
    return Recorded(ledger, tuple(set_aside))


def _former(tasks: TaskSet) -> tuple[PointRecord, ...]:
    """The points that are no longer planned, with what they cost until they are stopped."""
    ledger = tasks.known.ledger
    found = (
        dropped(
            record,
            tasks.jobs.get(record.key, ()),
            tasks.progress.get(record.key),
            tasks.result(record.key),
            tasks.world.now,
            unread=record.key in tasks.stored.unread,
        )
        for record in (*ledger.former, *ledger.points)
        if record.key not in tasks.points
    )
    return tuple(record for record in found if record.has_history or record.unread)


@dataclass(frozen=True)
class _SeenPoint:
    """A point as the ledger knows it, and everything observed of it since."""

    tasks: TaskSet
    point: PlannedPoint
    jobs: tuple[ObservedJob, ...]
    """In order of attempts."""
    record: PointRecord

    @cached_property
    def ended(self) -> tuple[ObservedJob, ...]:
        """Finished Jobs whose end is not in the ledger yet."""
        known = self.record.attempts.ended
        return tuple(job for job in self.jobs if job.is_finished and job.attempt > known)

    @cached_property
    def result(self) -> Read[PointResult]:
        """What is stored as its result; Unreadable also if it is another point's, Unanswered also while
        a Job that has just ended may have one."""
        found = self.tasks.result(self.point.key)
        if isinstance(found, Absent) and self.record.state not in DONE:
            awaited = [job for job in self.ended if awaits_result(job, self.tasks.world.now)]
            return Unanswered(f"no result of Job {awaited[-1].name} yet") if awaited else found
        if isinstance(found, PointResult) and (problem := unusable(self.point, found)):
            return Unreadable(problem)
        return found

    @cached_property
    def failures(self) -> tuple[tuple[ObservedJob, Failure], ...]:
        """Why the Jobs that ended have no result; empty if they have one."""
        if self.record.state in DONE:
            return ()
        match self.result:
            case Newer() | Unanswered():
                return ()
            case PointResult() as result if is_enough(self.point, result) or self._goes_on(result):
                return ()
            case Unreadable(message):
                failure = Failure(FailureClass.RESULT_UNREADABLE, message)
                return tuple((job, failure) for job in self.ended)
            case _:
                return tuple((job, classify(job)) for job in self.ended)

    def recorded(self) -> PointRecord:
        """The record brought up to date."""
        now, progress = self.tasks.world.now, self.tasks.progress.get(self.point.key)
        if self.failures:
            return self._failed()
        if is_unknown(self.result):
            return self.record
        record = started_over(self.record, progress)
        if not self.jobs:
            # What its own attempt reported is not the work of others, whoever finished it.
            record = last_reported(record, progress)
        match self.result:
            case PointResult() as result if record.state not in DONE:
                if is_enough(self.point, result):
                    record = result_found(record, result, adopted=self._is_adopted())
                    enough = min(result.tokens, self.point.wanted_tokens)
                    record = replace(record, trained_for=max(record.trained_for, enough))
                elif self.ended:
                    record = partial_result_found(record, result, adopted=self._is_adopted())
        return ended_with_result(record, self.ended, now)

    def set_aside(self) -> tuple[SetAside, ...]:
        """Its result, if it cannot be used and no running attempt is about to overwrite it."""
        is_running = any(job.holds_a_slot for job in self.jobs) and not self.ended
        if self.record.state in DONE or is_running or not isinstance(self.result, Unreadable):
            return ()
        suffix = f"unreadable-{self.record.attempts.ended + 1}"
        return (aside(layout.point_result(self.point.key), suffix),)

    def configuration_error(self) -> ConfigurationError | None:
        """What its last attempt refused about the present spec."""
        if not self.failures:
            return None
        job, failure = self.failures[-1]
        index = self.point.proxy.index
        field = spec_field(
            failure.field,
            domains=list(self.point.config.mixture),
            proxy=index,
            model=self.tasks.models[index],
        )
        asked = self.tasks.asked(self.point.proxy.template_digest)
        return configuration_error(failure, job, self.tasks.world, self.point.name, field, asked)

    def _goes_on(self, result: PointResult) -> bool:
        """The spec asked for more tokens while this attempt ran: its work counts and is continued."""
        return bool(self.ended) and result.wanted_tokens > self.record.trained_for

    def _is_adopted(self) -> bool:
        """Whether the result is not the work of this sweep's Jobs.

        Of a Job that was deleted by hand the result may be all that is left. What a lost ledger had counted is carried
        on as a sum, and must not be counted again.
        """
        result, carried = self.result, self.tasks.known.ledger.carried
        if isinstance(result, PointResult) and result.claimant and carried == Spend():
            return result.claimant.sweep_uid != self.tasks.world.uid
        if any(not job.is_finished for job in self.jobs):
            return False
        if self.ended:
            return classify(self.ended[-1]).kind is FailureClass.CLAIMED_ELSEWHERE
        attempts = self.record.attempts
        return not attempts.ended or attempts.last_failure == FailureClass.CLAIMED_ELSEWHERE

    def _failed(self) -> PointRecord:
        attempts = self.record.attempts
        for job, failure in self.failures:
            attempts = after_failure(
                attempts,
                job,
                failure,
                template=self.point.proxy.template_digest,
                now=self.tasks.world.now,
                halvable=(self.point.batch_size - 1).bit_length(),
            )
        progress = self.tasks.progress.get(self.point.key)
        return ended_without_result(self.record, attempts, self.ended[-1], progress)


def _take_back_unreadable(
    recorded: Recorded, unreadable: Iterable[tuple[str, str]], tasks: TaskSet
) -> Recorded:
    """Done points whose trajectory a fit could not read run again; what is stored is set aside."""
    problems = dict(unreadable)
    records, set_aside = [], list(recorded.set_aside)
    for record in recorded.ledger.points:
        if record.key not in problems or not record.is_fitted:
            records.append(record)
            continue
        problem, point = problems[record.key], tasks.points[record.key]
        failure = Failure(FailureClass.TRAJECTORY_UNREADABLE, problem)
        pending = taken_back(record, failure, point.proxy.template_digest)
        records.append(settled(pending, point, tasks.policy.retries))
        suffix = f"unreadable-{record.attempts.ended + 1}"
        trajectory = layout.finished_trajectory(record.key, record.trajectory_sha256)
        paths = (layout.point_result(record.key), trajectory, layout.point_trajectory(record.key))
        set_aside += [aside(path, suffix) for path in paths]
    return Recorded(recorded.ledger.replace(points=tuple(records)), tuple(set_aside))


def end_recorded(
    ledger: Ledger, jobs: Iterable[ObservedJob], tasks: TaskSet, failure: Failure | None = None
) -> Ledger:
    """The ledger once the operator ends these unfinished Jobs of planned points, each recorded once: for a failure, which
    is charged, or as an interruption."""
    now, ended = tasks.world.now, dict[str, PointRecord]()
    for job in {job.key: job for job in jobs if job.key in tasks.points}.values():
        record, point = ledger.by_key[job.key], tasks.points[job.key]
        if job.attempt <= record.attempts.ended:
            continue
        if failure is None:
            attempts = after_stop(record.attempts, job, now)
        else:
            template = point.proxy.template_digest
            attempts = after_failure(record.attempts, job, failure, template=template, now=now)
        stopped = ended_without_result(record, attempts, job, tasks.progress.get(job.key))
        ended[job.key] = settled(stopped, point, tasks.policy.retries)
    if not ended:
        return ledger
    return ledger.replace(points=tuple(ended.get(each.key, each) for each in ledger.points))


def _stalled(ledger: Ledger, tasks: TaskSet) -> tuple[ObservedJob, ...]:
    """Jobs whose point is unfinished and that have reported no progress for as long as the policy allows."""
    seconds, since = tasks.policy.stall_seconds, tasks.stored.unchanged_since
    done = {record.key for record in ledger.points if record.state in DONE}
    return tuple(
        job
        for job in tasks.active
        if seconds is not None
        and job.key not in done
        and not job.deleting
        and job.uid in since
        and (tasks.world.now - since[job.uid]).total_seconds() >= seconds
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
    # A diverged run has no state worth continuing; more tokens reopen a success only.
    return record.state is PointState.DIVERGED or (
        record.state is PointState.SUCCEEDED and record.trained_for >= point.wanted_tokens
    )


def fitted_records(records: Sequence[PointRecord]) -> tuple[PointRecord, ...]:
    """Points whose trajectories the fit uses."""
    return tuple(record for record in records if record.is_fitted)


# ------------------------------------------------------------------ what an outcome does to a record


def planned(point: PlannedPoint, known: PointRecord | None) -> PointRecord:
    """What is known of a planned point's key, under its present name and tokens."""
    if known is None:
        return PointRecord(
            key=point.key,
            name=point.name,
            proxy=point.proxy.name,
            batch_size=point.batch_size,
            learning_rate=point.learning_rate,
            wanted_tokens=point.proxy.tokens,
            flops_per_token=six_nd(point.proxy.parameters, 1),
        )
    name, proxy, tokens = point.name, point.proxy.name, point.proxy.tokens
    per_token = six_nd(point.proxy.parameters, 1)
    found = (known.name, known.proxy, known.wanted_tokens, known.flops_per_token)
    if found == (name, proxy, tokens, per_token) and not known.unread:
        return known
    known = replace(known, unread=False)
    return replace(known, name=name, proxy=proxy, wanted_tokens=tokens, flops_per_token=per_token)


def dropped(
    record: PointRecord,
    jobs: Sequence[ObservedJob],
    progress: PointProgress | None,
    result: Read[PointResult],
    now: datetime,
    *,
    unread: bool,
) -> PointRecord:
    """The record of a point that is no longer planned: its Jobs, ended, still to be stopped or gone, cost something.

    `unread`: the store did not give its progress out.
    """
    attempts = record.attempts
    for job in jobs:
        attempts = after_stop(attempts, job, now)
    ended = replace(
        started_over(record, progress), attempts=attempts, intent=Intent(), unread=unread
    )
    ended = last_reported(ended, progress)
    if isinstance(result, PointResult) and any(job.complete for job in jobs):
        return last_reported(ended, result)
    return ended


def last_reported(
    record: PointRecord, progress: PointProgress | PointResult | None
) -> PointRecord:
    """The record with the work that an attempt of its own reported, whatever became of its Job."""
    flops = 0.0 if progress is None else record.flops_per_token * progress.trained_tokens
    return record if flops <= record.reached_flops else replace(record, unfinished_flops=flops)


def started_over(record: PointRecord, progress: PointProgress | None) -> PointRecord:
    """The record without what others trained, if the attempt that is under way does not continue that: its checkpoints
    were released."""
    if progress is None or progress.claimant.attempt <= record.attempts.ended:
        return record
    flops = record.flops_per_token * progress.trained_tokens
    if flops < (1.0 - 1e-9) * record.doubtful_flops:
        record = doubtful_lost(record)
    if not _is_behind_others(record, flops):
        return record
    return replace(
        record,
        adopted=False,
        others=Spend(),
        flops=record.own_flops,
        accelerator_seconds=record.spent_accelerator_seconds,
    )


def doubtful_lost(record: PointRecord) -> PointRecord:
    """The record once an attempt has begun anew what was behind a lost trajectory."""
    return replace(
        record, doubtful_flops=0.0, lost_flops=record.lost_flops + record.doubtful_flops
    )


def _is_behind_others(record: PointRecord, flops: float) -> bool:
    return flops < (1.0 - 1e-9) * record.others.flops


def settled(record: PointRecord, point: PlannedPoint, retries: int) -> PointRecord:
    """The record in the state that its result and its charges give it now."""
    state = _state(record, point, retries)
    return record if state is record.state else replace(record, state=state)


def _state(record: PointRecord, point: PlannedPoint, retries: int) -> PointState:
    if is_done(record, point):
        return record.state
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
    flops, others = six_nd(result.parameters, result.trained_tokens), record.others
    if not adopted and _is_behind_others(record, flops):
        others = Spend()
    if adopted:
        seconds = result.accelerator_seconds - record.spent_accelerator_seconds
        others = Spend(max(0.0, flops - record.own_flops), max(0.0, seconds))
    return replace(
        record,
        adopted=adopted and others.flops > 0,
        others=others,
        trained_for=result.wanted_tokens,
        tokens=result.tokens,
        loss=result.loss,
        averaged_loss=result.averaged_loss,
        cooled_tokens=result.cooled_tokens,
        cooled_loss=result.cooled_loss,
        flops=flops,
        accelerator_seconds=result.accelerator_seconds,
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


def ended_with_result(
    record: PointRecord, ended: Sequence[ObservedJob], now: datetime
) -> PointRecord:
    """Jobs of a point that has its result ended."""
    attempts = record.attempts
    for job in ended:
        attempts = after_result(attempts, job, now)
    return record if attempts is record.attempts else replace(record, attempts=attempts)


def ended_without_result(
    record: PointRecord,
    attempts: Attempts,
    job: ObservedJob,
    progress: PointProgress | None,
) -> PointRecord:
    """`job` ended or was stopped without a result, which makes `attempts` of the record's; its
    `progress` says how far it got."""
    ended = replace(started_over(record, progress), attempts=attempts)
    if progress is None or progress.claimant.attempt != job.attempt:
        return ended
    return last_reported(ended, progress)


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
        others=Spend() if record.adopted else record.others,
        # What another sweep spent on an adopted result must not become this sweep's own cost.
        doubtful_flops=max(record.doubtful_flops, record.own_flops),
        flops=0.0,
        unfinished_flops=0.0,
        tokens=0,
        accelerator_seconds=0.0 if record.adopted else record.accelerator_seconds,
        trained_for=0,
        trajectory_sha256="",
        versions=None,
        taken_back=record.taken_back + 1,
        attempts=charged(record.attempts, failure, template, job_uid="", attempt=attempt),
    )
