"""How the ledger changes: pure updates that do nothing when repeated.

Charges and halvings belong to one pod template, so that a user who mends the image, the memory or the
secret gives every failed point a fresh start without deleting anything.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Final

from isoloss_contract.ledger import (
    DONE,
    MAX_FAILURE_MESSAGE,
    MAX_FAILURES_KEPT,
    Attempts,
    FailureRecord,
    PointRecord,
    PointState,
)
from isoloss_contract.records import Outcome, PointProgress, PointResult
from isoloss_operator.decide.conditions import parse_timestamp, shortened, timestamp
from isoloss_operator.decide.observation import ObservedJob
from isoloss_operator.decide.outcomes import MAX_VANISHED, FailureClass, Verdict
from isoloss_operator.planning.flops import six_nd
from isoloss_operator.planning.points import PlannedPoint

BUSY_SECONDS: Final = 600.0
"""An attempt that ran this long before it was interrupted did some work: no need to slow the next."""
MAX_HALVINGS: Final = 20

_NONE_YET: Final = Attempts()
_OUTCOMES: Mapping[Outcome, PointState] = {
    Outcome.SUCCEEDED: PointState.SUCCEEDED,
    Outcome.DIVERGED: PointState.DIVERGED,
}


# ------------------------------------------------------------------------------------- attempts


def charges(attempts: Attempts, template: str) -> int:
    """Failures that count against the retries under a pod template.

    A bad configuration is recorded but does not count: the sweep stops until the spec changes.
    """
    if attempts.template != template:
        return 0
    return sum(
        n for failure, n in attempts.charged.items() if failure != FailureClass.BAD_CONFIGURATION
    )


def charged_as(attempts: Attempts, template: str, failure: FailureClass) -> int:
    """Charged failures of one class under a pod template."""
    return attempts.charged.get(failure, 0) if attempts.template == template else 0


def halvings(attempts: Attempts, template: str) -> int:
    """Halvings of the micro-batch that the next attempt starts with."""
    return attempts.micro_batch_halvings if attempts.template == template else 0


def under_template(attempts: Attempts, template: str) -> Attempts:
    """The same attempts with charges and halvings of another template dropped."""
    if attempts.template == template:
        return attempts
    return attempts.model_copy(
        update={"template": template, "charged": {}, "micro_batch_halvings": 0}
    )


def after_failure(
    attempts: Attempts,
    job: ObservedJob,
    verdict: Verdict,
    *,
    template: str,
    now: datetime,
    halvable: int = 0,
) -> Attempts:
    """The attempts once `job` ended without a result; unchanged where it is recorded already.

    `halvable` is how often the micro-batch can be halved at all; beyond it a host out of memory is final.
    """
    if job.attempt <= attempts.ended:
        return attempts
    verdict = _exhausted(attempts, verdict, template, halvable)
    if not verdict.is_charged:
        ended = _interrupted(attempts, job, verdict, now)
    elif verdict.halves_micro_batch:
        fresh = under_template(attempts, template)
        ended = fresh.model_copy(update={"micro_batch_halvings": fresh.micro_batch_halvings + 1})
    else:
        ended = charged(attempts, verdict, template=template, job_uid=job.uid, attempt=job.attempt)
    return ended.model_copy(
        update={
            "ended": job.attempt,
            "last_failure": str(verdict.failure),
            "last_code": verdict.code,
            "last_ended_at": timestamp(now),
            "accelerator_seconds": _seconds_with(attempts, job, now),
        }
    )


def _seconds_with(attempts: Attempts, job: ObservedJob, now: datetime) -> float:
    """Accelerator seconds of all attempts up to and including `job`."""
    return attempts.accelerator_seconds + job.accelerator_seconds(now)


def _exhausted(attempts: Attempts, verdict: Verdict, template: str, halvable: int) -> Verdict:
    """The verdict, made final or charged where patience has run out."""
    if verdict.halves_micro_batch and halvings(attempts, template) >= min(halvable, MAX_HALVINGS):
        return Verdict(
            FailureClass.OUT_OF_MEMORY, f"no smaller micro-batch is left: {verdict.message}"
        )
    if verdict.failure is FailureClass.POD_VANISHED and attempts.vanished >= MAX_VANISHED:
        return Verdict(
            FailureClass.CRASHED, f"{attempts.vanished + 1} pods vanished: {verdict.message}"
        )
    return verdict


def _interrupted(
    attempts: Attempts, job: ObservedJob, verdict: Verdict, now: datetime
) -> Attempts:
    if verdict.failure is FailureClass.CLAIMED_ELSEWHERE:
        return attempts
    was_busy = job.started is not None and (now - job.started).total_seconds() >= BUSY_SECONDS
    vanished = verdict.failure is FailureClass.POD_VANISHED
    return attempts.model_copy(
        update={
            "interruptions": attempts.interruptions + 1,
            "idle_interruptions": 1 if was_busy else attempts.idle_interruptions + 1,
            "vanished": attempts.vanished + vanished,
        }
    )


def charged(
    attempts: Attempts, verdict: Verdict, *, template: str, job_uid: str, attempt: int
) -> Attempts:
    """The attempts with one more charged failure under `template`."""
    fresh = under_template(attempts, template)
    name = str(verdict.failure)
    failure = FailureRecord(
        attempt=attempt,
        job_uid=job_uid,
        failure=name,
        message=shortened(verdict.message, MAX_FAILURE_MESSAGE),
    )
    return fresh.model_copy(
        update={
            "charged": {**fresh.charged, name: fresh.charged.get(name, 0) + 1},
            "failures": (*fresh.failures, failure)[-MAX_FAILURES_KEPT:],
            "idle_interruptions": 0,
        }
    )


def after_stop(attempts: Attempts, job: ObservedJob, now: datetime) -> Attempts:
    """The attempts once the operator itself stops an unfinished Job: an interruption that is no one's fault."""
    if job.attempt <= attempts.ended:
        return attempts
    return attempts.model_copy(
        update={
            "ended": job.attempt,
            "interruptions": attempts.interruptions + 1,
            "idle_interruptions": 0,
            "last_failure": str(FailureClass.INTERRUPTED),
            "last_ended_at": timestamp(now),
            "accelerator_seconds": _seconds_with(attempts, job, now),
        }
    )


def not_before(attempts: Attempts, template: str) -> datetime | None:
    """When the next attempt may start; None: at once.

    A charged failure under another pod template delays nothing: whoever changed it mended something.
    """
    if attempts.last_failure in attempts.charged and attempts.template != template:
        return None
    ended_at = parse_timestamp(attempts.last_ended_at)
    seconds = delay_seconds(attempts)
    return None if ended_at is None or seconds <= 0 else ended_at + timedelta(seconds=seconds)


def delay_seconds(attempts: Attempts) -> float:
    """How long the next attempt waits after the last one ended."""
    failure = attempts.last_failure
    count = attempts.charged.get(failure, 0)
    if failure in ("", FailureClass.HOST_OUT_OF_MEMORY):
        return 0.0
    if failure in (FailureClass.INTERRUPTED, FailureClass.POD_VANISHED):
        idle = attempts.idle_interruptions
        return 0.0 if idle <= 1 else _growing(10.0, 2.0, idle - 1, 300.0)
    if failure == FailureClass.CLAIMED_ELSEWHERE:
        return 60.0
    if failure == FailureClass.STORAGE:
        return _growing(15.0, 4.0, count, 600.0)
    if failure == FailureClass.BAD_DATA:
        return _growing(30.0, 2.0, count, 600.0)
    return _growing(5.0, 2.0, count, 300.0)


def _growing(first: float, factor: float, count: int, limit: float) -> float:
    return float(min(limit, first * factor ** min(max(0, count - 1), 16)))


# --------------------------------------------------------------------------------------- points


def planned_record(point: PlannedPoint, known: PointRecord | None) -> PointRecord:
    """The record of a planned point: what is known of its key, under its present name and tokens."""
    fresh = {
        "name": point.name,
        "proxy": point.proxy.name,
        "wanted_tokens": point.proxy.tokens,
    }
    if known is None:
        return PointRecord(
            key=point.key,
            batch_size=point.batch_size,
            learning_rate=point.learning_rate,
            name=point.name,
            proxy=point.proxy.name,
            wanted_tokens=point.proxy.tokens,
            attempts=_NONE_YET,
        )
    if all(getattr(known, name) == value for name, value in fresh.items()):
        return known
    return known.model_copy(update=fresh)


def settled(record: PointRecord, point: PlannedPoint, retries: int) -> PointRecord:
    """The record in the state that its result and its charges give it now."""
    state = _state(record, point, retries)
    if state is record.state:
        return record
    return record.model_copy(update={"state": state})


def _state(record: PointRecord, point: PlannedPoint, retries: int) -> PointState:
    if record.state is PointState.DIVERGED:
        return record.state
    if record.state is PointState.SUCCEEDED and record.trained_for >= point.proxy.tokens:
        return record.state
    template = point.proxy.template_digest
    if charged_as(record.attempts, template, FailureClass.OUT_OF_MEMORY):
        return PointState.OUT_OF_MEMORY
    if charges(record.attempts, template) > retries:
        return PointState.FAILED
    return PointState.PENDING


def unusable(point: PlannedPoint, result: PointResult) -> str:
    """Why a result that parses is not this point's; empty: it is."""
    if result.key != point.key:
        return f"it is the result of {result.key}"
    expected, found = point.proxy.parameters.active, result.parameters.active
    if found != expected:
        return f"it counts {found} active parameters where this model has {expected}"
    return ""


def is_enough(point: PlannedPoint, result: PointResult) -> bool:
    """Whether a result ends the point: diverged, or trained for at least the wanted tokens."""
    if result.outcome is Outcome.DIVERGED:
        return True
    return result.outcome is Outcome.SUCCEEDED and result.wanted_tokens >= point.proxy.tokens


def with_result(record: PointRecord, result: PointResult, *, adopted: bool) -> PointRecord:
    """The record of a point whose result is enough."""
    return with_partial_result(record, result).model_copy(
        update={"state": _OUTCOMES[result.outcome], "adopted": adopted}
    )


def with_partial_result(record: PointRecord, result: PointResult) -> PointRecord:
    """The record with the facts of a result, whether or not it trained far enough."""
    return record.model_copy(
        update={
            "trained_for": result.wanted_tokens,
            "tokens": result.tokens,
            "loss": result.loss,
            "averaged_loss": result.averaged_loss,
            "flops": six_nd(result.parameters, result.tokens),
            "accelerator_seconds": result.accelerator_seconds,
            "trajectory_sha256": result.trajectory_sha256,
        }
    )


def with_unfinished_work(
    record: PointRecord, job: ObservedJob, point: PlannedPoint, progress: PointProgress | None
) -> PointRecord:
    """The record once `job` ended without a result, with the FLOPs that it reported last."""
    if progress is None or progress.claimant.attempt != job.attempt:
        return record
    flops = six_nd(point.proxy.parameters, progress.tokens)
    if flops <= record.unfinished_flops:
        return record
    return record.model_copy(update={"unfinished_flops": flops})


def ended_with_result(record: PointRecord, job: ObservedJob, now: datetime) -> PointRecord:
    """The record once a Job of a point with a result has ended."""
    attempts = record.attempts
    if job.attempt <= attempts.ended:
        return record
    return record.model_copy(
        update={
            "attempts": attempts.model_copy(
                update={
                    "ended": job.attempt,
                    "last_failure": "",
                    "last_code": "",
                    "last_ended_at": timestamp(now),
                    "accelerator_seconds": _seconds_with(attempts, job, now),
                    "idle_interruptions": 0,
                }
            )
        }
    )


def taken_back(record: PointRecord, verdict: Verdict, template: str) -> PointRecord:
    """A done point whose trajectory turned out unreadable: pending again, one failure charged."""
    attempts = charged(
        record.attempts,
        verdict,
        template=template,
        job_uid="",
        attempt=max(1, record.attempts.ended),
    )
    return record.model_copy(
        update={
            "state": PointState.PENDING,
            "adopted": False,
            # What others spent on it is not to become this sweep's own.
            **({"flops": 0.0, "accelerator_seconds": 0.0} if record.adopted else {}),
            "trained_for": 0,
            "trajectory_sha256": "",
            "taken_back": record.taken_back + 1,
            "attempts": attempts,
        }
    )


def done_records(records: Sequence[PointRecord]) -> tuple[PointRecord, ...]:
    """Points whose results the fit uses."""
    return tuple(record for record in records if record.state in DONE)
