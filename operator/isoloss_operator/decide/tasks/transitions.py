"""Everything that can happen to a point, each as one pure change of its record."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Final

from isoloss_contract.ledger import MAX_VERSIONS, Attempts, Intent, PointRecord, PointState
from isoloss_contract.reading import Read
from isoloss_contract.records import Outcome, PointProgress, PointResult
from isoloss_operator.decide.conditions import shortened
from isoloss_operator.decide.jobs.attempts import (
    after_result,
    after_stop,
    charged,
    charged_as,
    charges,
)
from isoloss_operator.decide.jobs.failures import Failure, FailureClass
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
    return result.outcome is Outcome.SUCCEEDED and result.wanted_tokens >= point.wanted_tokens


def is_done(record: PointRecord, point: PlannedPoint) -> bool:
    """Whether a point needs no further training under the present spec."""
    # A diverged run has no state worth continuing; more tokens reopen a success only.
    return record.state is PointState.DIVERGED or (
        record.state is PointState.SUCCEEDED and record.trained_for >= point.wanted_tokens
    )


def fitted_records(records: Sequence[PointRecord]) -> tuple[PointRecord, ...]:
    """Points whose trajectories the fit uses."""
    return tuple(record for record in records if record.is_fitted)


# ---------------------------------------------------------------------------------- transitions


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
    if found == (name, proxy, tokens, per_token):
        return known
    return replace(known, name=name, proxy=proxy, wanted_tokens=tokens, flops_per_token=per_token)


def dropped(
    record: PointRecord,
    jobs: Sequence[ObservedJob],
    progress: PointProgress | None,
    result: Read[PointResult],
    now: datetime,
) -> PointRecord:
    """The record of a point that is no longer planned: its Jobs, ended, still to be stopped or gone, cost something."""
    attempts = record.attempts
    for job in jobs:
        attempts = after_stop(attempts, job, now)
    ended = last_reported(replace(record, attempts=attempts, intent=Intent()), progress)
    if isinstance(result, PointResult) and any(job.complete for job in jobs):
        return last_reported(ended, result)
    return ended


def last_reported(
    record: PointRecord, progress: PointProgress | PointResult | None
) -> PointRecord:
    """The record with the work that an attempt of its own reported, whatever became of its Job."""
    flops = 0.0 if progress is None else record.flops_per_token * progress.trained_tokens
    return record if flops <= record.spent_flops else replace(record, unfinished_flops=flops)


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
    found = partial_result_found(record, result)
    return replace(found, state=_STATES[result.outcome], adopted=adopted)


def partial_result_found(record: PointRecord, result: PointResult) -> PointRecord:
    """The facts of a result are known, whether or not it trained far enough."""
    return replace(
        record,
        trained_for=result.wanted_tokens,
        tokens=result.tokens,
        loss=result.loss,
        averaged_loss=result.averaged_loss,
        cooled_tokens=result.cooled_tokens,
        cooled_loss=result.cooled_loss,
        flops=six_nd(result.parameters, result.trained_tokens),
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
    point: PlannedPoint,
    job: ObservedJob,
    progress: PointProgress | None,
) -> PointRecord:
    """`job` ended or was stopped without a result, which makes `attempts` of the record's; its
    `progress` says how far it got."""
    ended = replace(record, attempts=attempts)
    if progress is None or progress.claimant.attempt != job.attempt:
        return ended
    flops = six_nd(point.proxy.parameters, progress.trained_tokens)
    return replace(ended, unfinished_flops=max(flops, record.unfinished_flops))


def taken_back(record: PointRecord, failure: Failure, template: str) -> PointRecord:
    """A fit could not read the trajectory of a done point: pending again, one failure charged."""
    attempt = max(1, record.attempts.ended)
    return replace(
        record,
        state=PointState.PENDING,
        adopted=False,
        # What another sweep spent on an adopted result must not become this sweep's own cost.
        flops=0.0 if record.adopted else record.flops,
        accelerator_seconds=0.0 if record.adopted else record.accelerator_seconds,
        trained_for=0,
        trajectory_sha256="",
        versions=None,
        taken_back=record.taken_back + 1,
        attempts=charged(record.attempts, failure, template, job_uid="", attempt=attempt),
    )
