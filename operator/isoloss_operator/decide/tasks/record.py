"""What ended, was stopped or stalled enters the ledger, once each."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property

from isoloss_contract import layout
from isoloss_contract.ledger import (
    DONE,
    ConfigurationError,
    Ledger,
    PointRecord,
)
from isoloss_contract.reading import (
    Absent,
    Newer,
    Read,
    Unanswered,
    Unreadable,
    is_unknown,
    value_of,
)
from isoloss_contract.records import Outcome, PointProgress, PointResult
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
from isoloss_operator.decide.tasks.outcomes import (
    dropped,
    ended_with_result,
    ended_without_result,
    is_enough,
    paid,
    partial_result_found,
    planned,
    result_found,
    settled,
    taken_back,
    unusable,
    vanished,
    with_versions,
)
from isoloss_operator.decide.tasks.task_set import Recorded, TaskSet, configuration_error
from isoloss_operator.planning.points import PlannedPoint


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
            value_of(tasks.result(record.key)),
            tasks.world.now,
        )
        for record in (*ledger.former, *ledger.points)
        if record.key not in tasks.points
    )
    return tuple(record for record in found if record.has_history)


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
            return self._failed(progress)
        if is_unknown(self.result):
            return self.record
        record, adopted = self.record, self._is_adopted()
        own = None if adopted else value_of(self.result)
        if not self.jobs and record.state not in DONE:
            record = vanished(record, progress, now, own)
        for job in self.ended:
            record = paid(record, job, progress, now, own)
        match self.result:
            case PointResult() as result if record.state not in DONE:
                if is_enough(self.point, result):
                    record = result_found(record, result, adopted=adopted)
                    enough = min(result.tokens, self.point.wanted_tokens)
                    record = replace(record, trained_for=max(record.trained_for, enough))
                elif self.ended:
                    record = partial_result_found(record, result, adopted=adopted)
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
        is_success = result.outcome is Outcome.SUCCEEDED
        return bool(self.ended) and is_success and result.wanted_tokens > self.record.trained_for

    def _is_adopted(self) -> bool:
        """Whether the result is not the work of this sweep's Jobs."""
        result = self.result
        if isinstance(result, PointResult) and result.claimant:
            return result.claimant.sweep_uid != self.tasks.world.uid
        if any(not job.is_finished for job in self.jobs):
            return False
        if self.ended:
            return classify(self.ended[-1]).kind is FailureClass.CLAIMED_ELSEWHERE
        attempts = self.record.attempts
        return not attempts.ended or attempts.last_failure == FailureClass.CLAIMED_ELSEWHERE

    def _failed(self, progress: PointProgress | None) -> PointRecord:
        record = self.record
        for job, failure in self.failures:
            record = ended_without_result(
                record,
                job,
                progress,
                self.tasks.world.now,
                failure,
                template=self.point.proxy.template_digest,
                halvable=(self.point.batch_size - 1).bit_length(),
            )
        return record


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
        template, progress = point.proxy.template_digest, tasks.progress.get(job.key)
        stopped = ended_without_result(record, job, progress, now, failure, template=template)
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
