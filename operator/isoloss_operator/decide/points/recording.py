"""From what is observed of points to an up-to-date ledger: results adopted, ended Jobs classified, once each."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from isoloss_contract import layout
from isoloss_contract.ledger import DONE, ConfigurationError, Ledger, PointRecord
from isoloss_contract.reading import ABSENT, Absent, Newer, Read, Unanswered, Unreadable
from isoloss_contract.records import PointProgress, PointResult
from isoloss_operator.api import FailurePolicy, ScalingSweepSpec
from isoloss_operator.decide.jobs.attempts import after_failure, after_stop
from isoloss_operator.decide.jobs.failures import (
    Failure,
    FailureClass,
    awaits_result,
    classify,
    spec_field,
)
from isoloss_operator.decide.jobs.removal import aside, by_attempt
from isoloss_operator.decide.observation import ObservedJob, ObservedSweep
from isoloss_operator.decide.plans import SetAside
from isoloss_operator.decide.points.ledgers import Recorded, configuration_error
from isoloss_operator.decide.points.transitions import (
    dropped,
    ended_with_result,
    ended_without_result,
    is_enough,
    last_reported,
    partial_result_found,
    planned,
    result_found,
    settled,
    taken_back,
    unusable,
    with_versions,
)
from isoloss_operator.planning.points import PlannedPoint


def record_points(
    known: Recorded,
    observed: ObservedSweep,
    spec: ScalingSweepSpec,
    points: Sequence[PlannedPoint],
    jobs: Mapping[str, Sequence[ObservedJob]],
    data_digest: str,
) -> Recorded:
    """The ledger of the planned points with every result and every ended Job in it.

    `spec` is as its user wrote it, `jobs` are this sweep's train Jobs by point key. Points that are no
    longer planned are kept apart where they cost something; their results stay in the store.
    """
    retries = spec.failure_policy.retries_per_point
    records, set_aside = [], list(known.set_aside)
    error, versions = known.ledger.configuration_error, known.ledger.versions
    for point in points:
        record = settled(planned(point, known.by_key.get(point.key)), point, retries)
        seen = _SeenPoint(observed, point, by_attempt(jobs.get(point.key, ())), record)
        recorded = seen.recorded()
        if isinstance(seen.result, PointResult):
            recorded, versions = with_versions(recorded, seen.result, versions)
        records.append(settled(recorded, point, retries))
        set_aside += seen.set_aside()
        error = seen.configuration_error(spec) or error
    ledger = known.ledger.replace(
        points=tuple(records),
        former=_former(known, observed, {point.key for point in points}, jobs),
        data_digest=data_digest,
        configuration_error=error,
        versions=versions,
    )
    return Recorded(ledger, tuple(set_aside))


def _former(
    known: Recorded,
    observed: ObservedSweep,
    planned_keys: Container[str],
    jobs: Mapping[str, Sequence[ObservedJob]],
) -> tuple[PointRecord, ...]:
    """The points that are no longer planned, with what they cost until they are stopped."""
    found = (
        dropped(
            record,
            by_attempt(jobs.get(record.key, ())),
            own_progress(observed, record.key),
            observed.results.get(record.key, ABSENT),
            observed.now,
        )
        for record in (*known.ledger.former, *known.ledger.points)
        if record.key not in planned_keys
    )
    return tuple(record for record in found if record.has_history)


@dataclass(frozen=True)
class _SeenPoint:
    """A point as the ledger knows it, and everything observed of it since."""

    observed: ObservedSweep
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
        """What is stored as its result; Unreadable also where it is another point's, Unanswered also while
        a Job that has just ended may have one."""
        found = self.observed.results.get(self.point.key, ABSENT)
        if isinstance(found, Absent) and self.record.state not in DONE:
            awaited = [job for job in self.ended if awaits_result(job, self.observed.now)]
            return Unanswered(f"no result of Job {awaited[-1].name} yet") if awaited else found
        if isinstance(found, PointResult) and (problem := unusable(self.point, found)):
            return Unreadable(problem)
        return found

    @cached_property
    def failures(self) -> tuple[tuple[ObservedJob, Failure], ...]:
        """Why the Jobs that ended have no result; empty where they have one."""
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
        record, now = self.record, self.observed.now
        if self.failures:
            return self._failed()
        match self.result:
            case Newer() | Unanswered():
                return record
            case PointResult() as result if record.state not in DONE:
                if is_enough(self.point, result):
                    record = result_found(record, result, adopted=self._is_adopted())
                elif self.ended:
                    record = partial_result_found(record, result)
        if not self.jobs:
            record = last_reported(record, own_progress(self.observed, self.point.key))
        return ended_with_result(record, self.ended, now)

    def set_aside(self) -> tuple[SetAside, ...]:
        """Its result, where it cannot be used and no running attempt is about to overwrite it."""
        is_running = any(job.holds_a_slot for job in self.jobs) and not self.ended
        if self.record.state in DONE or is_running or not isinstance(self.result, Unreadable):
            return ()
        suffix = f"unreadable-{self.record.attempts.ended + 1}"
        return (aside(layout.point_result(self.point.key), suffix, self.result.message),)

    def configuration_error(self, spec: ScalingSweepSpec) -> ConfigurationError | None:
        """What its last attempt refused about the present spec."""
        if not self.failures:
            return None
        job, failure = self.failures[-1]
        index = self.point.proxy.index
        field = spec_field(
            failure.field,
            domains=list(self.point.config.mixture),
            proxy=index,
            model=_model_is_given_by(spec, index),
        )
        return configuration_error(failure, job, self.observed, self.point.name, field)

    def _goes_on(self, result: PointResult) -> bool:
        """The spec asked for more tokens while this attempt ran: its work counts and is continued."""
        return bool(self.ended) and result.wanted_tokens > self.record.trained_for

    def _is_adopted(self) -> bool:
        """Whether the result is not the work of this sweep's Jobs."""
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
                now=self.observed.now,
                halvable=(self.point.batch_size - 1).bit_length(),
            )
        progress = own_progress(self.observed, self.point.key)
        return ended_without_result(self.record, attempts, self.point, self.ended[-1], progress)


def _model_is_given_by(spec: ScalingSweepSpec, proxy: int) -> str:
    """preset, config or like, as the manifest has it."""
    model = spec.proxies[proxy].model
    return "like" if model.like else "config" if model.config else "preset"


def take_back_unreadable(
    recorded: Recorded,
    unreadable: Iterable[tuple[str, str]],
    points: Mapping[str, PlannedPoint],
    *,
    retries: int,
) -> Recorded:
    """Done points whose trajectory a fit could not read run again; what is stored is set aside."""
    problems = dict(unreadable)
    records, set_aside = [], list(recorded.set_aside)
    for record in recorded.ledger.points:
        if record.key not in problems or not record.is_fitted:
            records.append(record)
            continue
        problem, point = problems[record.key], points[record.key]
        failure = Failure(FailureClass.TRAJECTORY_UNREADABLE, problem)
        pending = taken_back(record, failure, point.proxy.template_digest)
        records.append(settled(pending, point, retries))
        suffix = f"unreadable-{record.attempts.ended + 1}"
        trajectory = layout.finished_trajectory(record.key, record.trajectory_sha256)
        paths = (layout.point_result(record.key), trajectory, layout.point_trajectory(record.key))
        set_aside += [aside(path, suffix, problem) for path in paths]
    return Recorded(recorded.ledger.replace(points=tuple(records)), tuple(set_aside))


def record_stopped_points(
    ledger: Ledger,
    stopped: Iterable[ObservedJob],
    observed: ObservedSweep,
    points: Mapping[str, PlannedPoint],
) -> Ledger:
    """The ledger once the operator stops these unfinished train Jobs of planned points, each recorded once."""
    by_key = {job.key: job for job in stopped}

    def stop(record: PointRecord) -> PointRecord:
        job = by_key.get(record.key)
        if job is None or job.attempt <= record.attempts.ended:
            return record
        attempts = after_stop(record.attempts, job, observed.now)
        progress = own_progress(observed, record.key)
        return ended_without_result(record, attempts, points[record.key], job, progress)

    return ledger.replace(points=tuple(stop(record) for record in ledger.points))


def record_stalled_points(
    ledger: Ledger,
    stalled: Iterable[ObservedJob],
    observed: ObservedSweep,
    points: Mapping[str, PlannedPoint],
    policy: FailurePolicy,
) -> Ledger:
    """The ledger once the operator ends these train Jobs for lack of progress: failures, charged."""
    by_key = {job.key: job for job in stalled}
    message = f"no progress for {policy.stall_seconds} s (failurePolicy.stallSeconds)"
    failure = Failure(FailureClass.STALLED, message)

    def end(record: PointRecord) -> PointRecord:
        job = by_key.get(record.key)
        if job is None:
            return record
        point, progress = points[record.key], own_progress(observed, record.key)
        template = point.proxy.template_digest
        attempts = after_failure(
            record.attempts, job, failure, template=template, now=observed.now
        )
        ended = ended_without_result(record, attempts, point, job, progress)
        return settled(ended, point, policy.retries_per_point)

    return ledger.replace(points=tuple(end(record) for record in ledger.points))


def own_progress(observed: ObservedSweep, key: str) -> PointProgress | None:
    """What an attempt of this very sweep last reported of a point."""
    progress = observed.progress.get(key)
    is_own = progress is not None and progress.claimant.sweep_uid == observed.uid
    return progress if is_own else None
