"""What the ending of an attempt does to a task: to its attempts, and to the record of its point. Nothing when repeated."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Final

from isoloss_contract.ledger import (
    MAX_FAILURE_MESSAGE,
    MAX_FAILURES_KEPT,
    MAX_VERSIONS,
    Attempts,
    FailureRecord,
    Intent,
    IntentAction,
    PointRecord,
    PointState,
    Spend,
)
from isoloss_contract.records import Outcome, PointProgress, PointResult
from isoloss_operator.decide.conditions import shortened, timestamp
from isoloss_operator.decide.jobs.attempts import charged_as, charges, halvings
from isoloss_operator.decide.jobs.failures import (
    MAX_NODE_FAILURES,
    MAX_VANISHED,
    Failure,
    FailureClass,
)
from isoloss_operator.decide.observation import ObservedJob
from isoloss_operator.planning.flops import six_nd
from isoloss_operator.planning.points import PlannedPoint

VERSIONED: Final = ("isoloss", "torch", "transformers")
"""What may change a result in addition to its configuration: a pod may report any other version too."""
MAX_VERSION: Final = 40
_STATES: Final[Mapping[Outcome, PointState]] = {
    Outcome.SUCCEEDED: PointState.SUCCEEDED,
    Outcome.DIVERGED: PointState.DIVERGED,
}
BUSY_SECONDS: Final = 600.0
"""An attempt that ran this long before it was interrupted did some work: no need to slow the next."""
MAX_HALVINGS: Final = 20


# -------------------------------------------------------------------- what an ending does to attempts


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
    message = shortened(failure.message, MAX_FAILURE_MESSAGE)
    record = FailureRecord(attempt=attempt, job_uid=job_uid, failure=kind, message=message)
    return replace(
        fresh,
        charged={**fresh.charged, kind: fresh.charged.get(kind, 0) + 1},
        failures=(*fresh.failures, record)[-MAX_FAILURES_KEPT:],
        idle_interruptions=0,
    )


def under_template(attempts: Attempts, template: str) -> Attempts:
    """The same attempts with charges and halvings of another template dropped."""
    if attempts.template == template:
        return attempts
    return replace(attempts, template=template, charged={}, micro_batch_halvings=0)


def _ended(attempts: Attempts, job: ObservedJob, now: datetime) -> Attempts:
    return replace(attempts, ended=job.attempt, last_ended_at=timestamp(now))


def _exhausted(attempts: Attempts, failure: Failure, template: str, halvable: int) -> Failure:
    """The failure, made final or charged if what was tolerated has happened too often."""
    used_up = min(halvable, MAX_HALVINGS)
    if failure.halves_micro_batch and halvings(attempts, template) >= used_up:
        message = f"the micro-batch cannot be halved again: {failure.message}"
        return Failure(FailureClass.OUT_OF_MEMORY, message)
    if failure.kind is FailureClass.POD_VANISHED and attempts.vanished >= MAX_VANISHED:
        message = f"{attempts.vanished + 1} pods vanished: {failure.message}"
        return Failure(FailureClass.CRASHED, message)
    if (
        failure.kind is FailureClass.NODE_FAILURE
        and attempts.idle_interruptions >= MAX_NODE_FAILURES
    ):
        message = f"{attempts.idle_interruptions + 1} attempts in a row: {failure.message}"
        return Failure(FailureClass.CRASHED, message)
    is_away = failure.kind is FailureClass.STORE_UNAVAILABLE
    if is_away and attempts.idle_interruptions >= MAX_VANISHED:
        message = f"{attempts.idle_interruptions + 1} attempts in a row: {failure.message}"
        return Failure(FailureClass.STORAGE, message, failure.code)
    return failure


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
    if (known.name, known.proxy, known.wanted_tokens, known.flops_per_token) == (
        name,
        proxy,
        tokens,
        per_token,
    ):
        return known
    return replace(known, name=name, proxy=proxy, wanted_tokens=tokens, flops_per_token=per_token)


def dropped(
    record: PointRecord,
    jobs: Sequence[ObservedJob],
    progress: PointProgress | None,
    result: PointResult | None,
    now: datetime,
) -> PointRecord:
    """The record of a point that is no longer planned: its Jobs, ended, still to be stopped or gone, cost something."""
    for job in jobs:
        record = paid(record, job, progress, now, result)
        record = replace(record, attempts=after_stop(record.attempts, job, now))
    if not jobs:
        record = vanished(record, progress, now)
    return replace(record, intent=Intent())


# ------------------------------------------------------------------------------ what an attempt costs


def cost_of(
    record: PointRecord,
    job: ObservedJob,
    progress: PointProgress | None,
    now: datetime,
    result: PointResult | None = None,
) -> Spend:
    """What an attempt has cost by `now`: the tokens that it trained, as far as it reported them, and its hours."""
    began, reached = _tokens_of(record, job.attempt, progress, result)
    flops = record.flops_per_token * max(0, reached - began)
    return Spend(flops, job.accelerator_seconds(now))


def paid(
    record: PointRecord,
    job: ObservedJob,
    progress: PointProgress | None,
    now: datetime,
    result: PointResult | None = None,
) -> PointRecord:
    """The record with what an attempt cost that has ended or is stopped; unchanged if its end is recorded already.

    `result`: what is stored as the point's, if an attempt of this sweep may have written it.
    """
    if job.attempt <= record.attempts.ended:
        return record
    _, reached = _tokens_of(record, job.attempt, progress, result)
    cost = cost_of(record, job, progress, now, result)
    return replace(record, spent=record.spent + cost, reached_tokens=reached)


def vanished(
    record: PointRecord,
    progress: PointProgress | None,
    now: datetime,
    result: PointResult | None = None,
) -> PointRecord:
    """The record once an attempt is gone with its Job before its end was recorded: somebody deleted it. What it had
    reported is paid; its hours are not known any more."""
    reports = (progress, result)
    claims = [each.claimant.attempt for each in reports if each is not None and each.claimant]
    attempt, attempts = max(claims, default=0), record.attempts
    if attempt <= attempts.ended:
        return record
    began, reached = _tokens_of(record, attempt, progress, result)
    return replace(
        record,
        spent=record.spent + Spend(record.flops_per_token * max(0, reached - began)),
        reached_tokens=reached,
        attempts=replace(
            attempts,
            ended=attempt,
            interruptions=attempts.interruptions + 1,
            last_failure="" if result is not None else str(FailureClass.INTERRUPTED),
            last_ended_at=timestamp(now),
        ),
    )


def _tokens_of(
    record: PointRecord,
    attempt: int,
    progress: PointProgress | None,
    result: PointResult | None,
) -> tuple[int, int]:
    """Tokens behind the point when an attempt began, and those that it reached.

    An attempt that reported nothing reached nothing. One that does not say where it began did so where the last one
    ended.
    """
    began = reached = record.reached_tokens
    if progress is not None and progress.claimant.attempt == attempt:
        reached = progress.tokens
        began = began if progress.began_tokens is None else progress.began_tokens
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


def ended_with_result(
    record: PointRecord, ended: Sequence[ObservedJob], now: datetime
) -> PointRecord:
    """Jobs of a point that has its result ended; what they cost is `paid` before that is found."""
    attempts = record.attempts
    for job in ended:
        attempts = after_result(attempts, job, now)
    return record if attempts is record.attempts else replace(record, attempts=attempts)


def ended_without_result(
    record: PointRecord,
    job: ObservedJob,
    progress: PointProgress | None,
    now: datetime,
    failure: Failure | None = None,
    *,
    template: str = "",
    halvable: int = 0,
) -> PointRecord:
    """The record once `job` ended without a result, for a failure under `template`, or is stopped, which is an
    interruption; its `progress` says how far it got."""
    if failure is None:
        attempts = after_stop(record.attempts, job, now)
    else:
        attempts = after_failure(
            record.attempts, job, failure, template=template, now=now, halvable=halvable
        )
    return replace(paid(record, job, progress, now), attempts=attempts)


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
