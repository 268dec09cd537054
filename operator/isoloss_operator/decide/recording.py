"""From what is observed to an up-to-date ledger: results adopted, ended Jobs classified, once each."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from types import MappingProxyType

from isoloss_contract import layout
from isoloss_contract.ledger import DONE, Attempts, ConfigurationError, Ledger, PointRecord
from isoloss_contract.records import PointProgress, PointResult
from isoloss_contract.store import BadRecord, StoreError
from isoloss_operator.decide.blame import in_words, spec_field
from isoloss_operator.decide.bookkeeping import (
    after_failure,
    after_stop,
    ended_with_result,
    is_enough,
    planned_record,
    settled,
    taken_back,
    unusable,
    with_partial_result,
    with_result,
    with_unfinished_work,
)
from isoloss_operator.decide.conditions import shortened
from isoloss_operator.decide.observation import ObservedJob, ObservedSweep, SetAside
from isoloss_operator.decide.outcomes import FailureClass, Verdict, classify
from isoloss_operator.planning.points import PlannedPoint


@dataclass(frozen=True)
class Books:
    """The ledger after all that was observed is recorded, and what that asks for."""

    ledger: Ledger
    set_aside: tuple[SetAside, ...] = ()
    unknown: frozenset[str] = frozenset()
    """Keys whose result could not be asked for: nothing may be concluded about them now."""

    @cached_property
    def by_key(self) -> dict[str, PointRecord]:
        """Records by point key."""
        return {record.key: record for record in self.ledger.points}


def known_ledger(observed: ObservedSweep) -> tuple[Ledger, tuple[SetAside, ...]]:
    """The sweep's ledger; a fresh one where there is none or where what lies there is not its own.

    Nothing is lost with an unreadable ledger but the memory of failures: results are found again.
    """
    fresh = Ledger(sweep=observed.name, namespace=observed.namespace, uid=observed.uid)
    ledger = observed.ledger
    if ledger is None:
        return fresh, ()
    path = layout.sweep_ledger(observed.name, observed.uid)
    if isinstance(ledger, StoreError):
        return fresh, (_aside(path, "unreadable", str(ledger)),)
    if ledger.uid != observed.uid:
        return fresh, (
            _aside(path, "foreign", f"it is the ledger of another sweep, {ledger.uid}"),
        )
    return ledger, ()


def for_generation(ledger: Ledger, generation: int, prepare_key: str) -> Ledger:
    """The ledger with what an earlier spec left behind forgotten."""
    error = ledger.configuration_error
    if error is not None and error.generation != generation:
        ledger = ledger.model_copy(update={"configuration_error": None})
    if ledger.prepare_key != prepare_key:
        ledger = ledger.model_copy(
            update={"prepare_key": prepare_key, "preparation": Attempts(), "data_digest": ""}
        )
    return ledger


# ---------------------------------------------------------------------------------- preparation


def record_preparation(
    ledger: Ledger,
    observed: ObservedSweep,
    jobs: Iterable[ObservedJob],
    *,
    template: str,
    domains: Sequence[str],
) -> Ledger:
    """The ledger with every ended prepare Job in it (the manifest is not there)."""
    for job in by_attempt(jobs):
        if not job.is_finished or job.attempt <= ledger.preparation.ended:
            continue
        verdict = classify(job)
        field = spec_field(verdict.field, domains=domains)
        attempts = after_failure(
            ledger.preparation, job, verdict, template=template, now=observed.now
        ).model_copy(update={"last_message": in_words(verdict, field, 1000)})
        ledger = ledger.model_copy(
            update={
                "preparation": attempts,
                "configuration_error": _configuration_error(
                    ledger, observed.generation, "prepare", verdict, field
                )
                if _is_of_present_spec(job, observed)
                else ledger.configuration_error,
            }
        )
    return ledger


def _model_is_given_by(observed: ObservedSweep, proxy: int) -> str:
    """preset, config or like, as the manifest has it: the spec was found valid before."""
    given: str = next(iter(observed.spec["proxies"][proxy]["model"]))
    return given


def _is_of_present_spec(job: ObservedJob, observed: ObservedSweep) -> bool:
    """Whether a complaint about the configuration can be about the spec as it is now."""
    return job.generation in (0, observed.generation)


def _configuration_error(
    ledger: Ledger, generation: int, where: str, verdict: Verdict, field: str
) -> ConfigurationError | None:
    if verdict.failure is not FailureClass.BAD_CONFIGURATION:
        return ledger.configuration_error
    return ConfigurationError(
        generation=generation,
        where=where,
        field=field,
        code=verdict.code or str(verdict.failure),
        message=shortened(verdict.message, 1000),
    )


# --------------------------------------------------------------------------------------- points


def record_points(
    ledger: Ledger,
    observed: ObservedSweep,
    points: Sequence[PlannedPoint],
    jobs: Mapping[str, Sequence[ObservedJob]],
    *,
    data_digest: str,
    retries: int,
) -> Books:
    """The ledger of the planned points with every result and every ended Job in it.

    `jobs` are this sweep's train Jobs by point key. Points that are planned no more leave the ledger;
    their results stay in the store.
    """
    known = {record.key: record for record in ledger.points}
    set_aside: list[SetAside] = []
    unknown: set[str] = set()
    records = []
    error = ledger.configuration_error
    for point in points:
        record = settled(planned_record(point, known.get(point.key)), point, retries)
        recorder = _PointRecorder(observed, point, tuple(by_attempt(jobs.get(point.key, ()))))
        outcome = recorder.recorded(record)
        if outcome is None:
            unknown.add(point.key)
            records.append(record)
            continue
        set_aside.extend(outcome.set_aside)
        if outcome.verdict is not None and outcome.verdict.is_final:
            error = _configuration_error(
                ledger.model_copy(update={"configuration_error": error}),
                observed.generation,
                point.name,
                outcome.verdict,
                spec_field(
                    outcome.verdict.field,
                    domains=list(point.config.mixture),
                    proxy=point.proxy.index,
                    model=_model_is_given_by(observed, point.proxy.index),
                ),
            )
        records.append(settled(outcome.record, point, retries))
    return Books(
        ledger=ledger.model_copy(
            update={
                "points": tuple(records),
                "data_digest": data_digest,
                "configuration_error": error,
            }
        ),
        set_aside=tuple(set_aside),
        unknown=frozenset(unknown),
    )


@dataclass(frozen=True)
class _Outcome:
    record: PointRecord
    set_aside: tuple[SetAside, ...] = ()
    verdict: Verdict | None = None


@dataclass(frozen=True)
class _PointRecorder:
    """Everything observed of one point."""

    observed: ObservedSweep
    point: PlannedPoint
    jobs: tuple[ObservedJob, ...]
    """In order of attempts."""

    def recorded(self, record: PointRecord) -> _Outcome | None:
        """The record brought up to date; None where the store could not say."""
        ended = tuple(j for j in self.jobs if j.is_finished and j.attempt > record.attempts.ended)
        found = self.observed.results.get(self.point.key)
        if isinstance(found, StoreError) and not isinstance(found, BadRecord):
            return None
        if record.state in DONE:
            return _Outcome(self._with_ended(record, ended))
        problem = self._problem(found)
        if problem:
            return self._unreadable(record, ended, problem)
        if isinstance(found, PointResult) and is_enough(self.point, found):
            adopted = self._is_anothers(record, ended)
            return _Outcome(self._with_ended(with_result(record, found, adopted=adopted), ended))
        if not ended:
            return _Outcome(record)
        if isinstance(found, PointResult) and found.wanted_tokens > record.trained_for:
            # The spec asked for more tokens while this attempt ran: its work counts, and goes on.
            return _Outcome(self._with_ended(with_partial_result(record, found), ended))
        return self._failed(record, ended, None)

    def _is_anothers(self, record: PointRecord, ended: Sequence[ObservedJob]) -> bool:
        """Whether the result that is there now is not the work of this sweep's Jobs."""
        if any(not job.is_finished for job in self.jobs):
            return False
        if ended:
            return classify(ended[-1]).failure is FailureClass.CLAIMED_ELSEWHERE
        attempts = record.attempts
        return not attempts.ended or attempts.last_failure == FailureClass.CLAIMED_ELSEWHERE

    def _problem(self, found: PointResult | StoreError | None) -> str:
        if isinstance(found, StoreError):
            return str(found)
        return unusable(self.point, found) if found is not None else ""

    def _with_ended(self, record: PointRecord, ended: Sequence[ObservedJob]) -> PointRecord:
        for job in ended:
            record = ended_with_result(record, job, self.observed.now)
        return record

    def _unreadable(
        self, record: PointRecord, ended: Sequence[ObservedJob], problem: str
    ) -> _Outcome:
        if any(job.holds_a_slot for job in self.jobs) and not ended:
            return _Outcome(record)  # the running attempt writes it anew
        path = layout.point_result(self.point.key)
        aside = (_aside(path, f"unreadable-{record.attempts.ended + 1}", problem),)
        if not ended:
            return _Outcome(record, aside)
        verdict = Verdict(FailureClass.RESULT_UNREADABLE, problem)
        outcome = self._failed(record, ended, verdict)
        return _Outcome(outcome.record, aside, outcome.verdict)

    def _failed(
        self, record: PointRecord, ended: Sequence[ObservedJob], verdict: Verdict | None
    ) -> _Outcome:
        attempts = record.attempts
        last = verdict
        for job in ended:
            last = verdict or classify(job)
            attempts = after_failure(
                attempts,
                job,
                last,
                template=self.point.proxy.template_digest,
                now=self.observed.now,
                halvable=(self.point.batch_size - 1).bit_length(),
            )
        if not _is_of_present_spec(ended[-1], self.observed):
            last = None
        record = with_unfinished_work(
            record, ended[-1], self.point, own_progress(self.observed, self.point.key)
        )
        return _Outcome(record.model_copy(update={"attempts": attempts}), (), last)


def take_back_unreadable(
    books: Books,
    unreadable: Iterable[tuple[str, str]],
    points: Mapping[str, PlannedPoint],
    *,
    retries: int,
) -> Books:
    """Done points whose trajectory a fit could not read run again; what lies there is set aside."""
    problems = dict(unreadable)
    records, set_aside = [], list(books.set_aside)
    for record in books.ledger.points:
        if record.key not in problems or record.state not in DONE:
            records.append(record)
            continue
        problem = problems[record.key]
        verdict = Verdict(FailureClass.TRAJECTORY_UNREADABLE, problem)
        point = points[record.key]
        pending = taken_back(record, verdict, point.proxy.template_digest)
        records.append(settled(pending, point, retries))
        suffix = f"unreadable-{record.attempts.ended + 1}"
        paths = (layout.point_result(record.key), layout.point_trajectory(record.key))
        set_aside.extend(_aside(path, suffix, problem) for path in paths)
    ledger = books.ledger.model_copy(update={"points": tuple(records)})
    return Books(ledger, tuple(set_aside), books.unknown)


def own_progress(observed: ObservedSweep, key: str) -> PointProgress | None:
    """What an attempt of this very sweep reported last of a point."""
    progress = observed.progress.get(key)
    is_own = progress is not None and progress.claimant.sweep_uid == observed.uid
    return progress if is_own else None


def record_stops(
    ledger: Ledger,
    stopped: Iterable[ObservedJob],
    observed: ObservedSweep,
    points: Mapping[str, PlannedPoint] = MappingProxyType({}),
) -> Ledger:
    """The ledger once the operator stops these unfinished Jobs; `points` are the planned ones by key."""
    by_key = {job.key: job for job in stopped if job.kind == "train" and job.key in points}
    records = tuple(
        record
        if record.key not in by_key
        else _stopped(record, by_key[record.key], observed, points[record.key])
        for record in ledger.points
    )
    preparation = ledger.preparation
    for job in stopped:
        if job.kind == "prepare" and job.key == ledger.prepare_key:
            preparation = after_stop(preparation, job, observed.now)
    return ledger.model_copy(update={"points": records, "preparation": preparation})


def _stopped(
    record: PointRecord, job: ObservedJob, observed: ObservedSweep, point: PlannedPoint
) -> PointRecord:
    attempts = after_stop(record.attempts, job, observed.now)
    record = with_unfinished_work(record, job, point, own_progress(observed, record.key))
    return record.model_copy(update={"attempts": attempts})


def by_attempt(jobs: Iterable[ObservedJob]) -> list[ObservedJob]:
    """Jobs in order of their attempts."""
    return sorted(jobs, key=lambda job: job.attempt)


def _aside(path: str, suffix: str, why: str) -> SetAside:
    return SetAside(path=path, aside=f"{path}.{suffix}", why=shortened(why, 500))
