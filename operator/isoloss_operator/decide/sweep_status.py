"""A sweep's status from the ledger, the Jobs and the laws: constant in size, every number traceable."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from pydantic import ValidationError

from isoloss_contract import layout
from isoloss_contract.ledger import Ledger, PointRecord, PointState
from isoloss_operator.api import (
    ActivePoint,
    FailedPoint,
    LedgerReference,
    PointCounts,
    ScalingSweepStatus,
)
from isoloss_operator.decide.admission import remaining_flops, spending
from isoloss_operator.decide.conditions import shortened, timestamp
from isoloss_operator.decide.law_status import (
    MAX_ENTRIES,
    MAX_TEXT,
    law_statuses,
    loss_text,
    number,
    optimum_statuses,
    texts,
)
from isoloss_operator.decide.observation import FitOutcome, ObservedJob, ObservedSweep
from isoloss_operator.planning.flops import six_nd
from isoloss_operator.planning.points import PlannedPoint

FAILED = (PointState.FAILED, PointState.OUT_OF_MEMORY)
FARTHEST_COMPLETION = timedelta(days=3650)


@dataclass(frozen=True)
class SweepFacts:
    """What the numbers of a status are computed from."""

    store_uri: str
    points: Sequence[PlannedPoint]
    ledger: Ledger
    active: Sequence[ObservedJob]
    """Train Jobs that hold a slot."""
    fit: FitOutcome | None
    fit_is_final: bool
    warnings: Sequence[str] = ()


def previous_status(raw: Mapping[str, Any]) -> ScalingSweepStatus:
    """The status as observed; an empty one where it can not be read."""
    try:
        return ScalingSweepStatus.model_validate(raw)
    except ValidationError:
        return ScalingSweepStatus()


def numbers(observed: ObservedSweep, facts: SweepFacts) -> dict[str, Any]:
    """The fields of a ScalingSweepStatus that are neither conditions nor generation."""
    records = facts.ledger.points
    counts = point_counts(records, {job.key for job in facts.active})
    spent = spending(records)
    uri = facts.store_uri
    return {
        "points": counts,
        "progress": f"{counts.succeeded + counts.diverged}/{counts.total}",
        "planned_flops": number(sum(point.flops for point in facts.points)),
        "spent_flops": number(spent.flops),
        "accelerator_hours": number(spent.accelerator_seconds / 3600),
        "estimated_completion": estimated_completion(observed, facts),
        "active": _active(observed, facts.active),
        "failures": _failures(records),
        "data_digest": facts.ledger.data_digest,
        "ledger": LedgerReference(
            uri=f"{uri}/{layout.sweep_ledger(observed.name, observed.uid)}",
            sha256=facts.ledger.digest,
        ),
        **_laws(observed, facts),
    }


def point_counts(records: Sequence[PointRecord], active_keys: set[str]) -> PointCounts:
    """Points by state; a pending point with a Job is active."""
    active = sum(r.key in active_keys for r in records if r.state is PointState.PENDING)
    succeeded = sum(r.state is PointState.SUCCEEDED for r in records)
    diverged = sum(r.state is PointState.DIVERGED for r in records)
    failed = sum(r.state in FAILED for r in records)
    return PointCounts(
        total=len(records),
        pending=len(records) - active - succeeded - diverged - failed,
        active=active,
        succeeded=succeeded,
        diverged=diverged,
        failed=failed,
        adopted=sum(r.adopted for r in records),
    )


def estimated_completion(observed: ObservedSweep, facts: SweepFacts) -> str:
    """When the remaining FLOPs are done at the speed that the running points report; empty if unknown."""
    points = {point.key: point for point in facts.points}
    records = {record.key: record for record in facts.ledger.points}
    speed, left, reporting = 0.0, 0.0, 0
    for job in facts.active:
        progress, point = observed.progress.get(job.key), points.get(job.key)
        if progress is None or point is None or not progress.tokens_per_second:
            continue
        reporting += 1
        speed += six_nd(point.proxy.parameters, max(0.0, progress.tokens_per_second))
        left -= six_nd(point.proxy.parameters, progress.tokens - records[job.key].tokens)
    if not speed or not reporting:
        return ""
    left += sum(
        remaining_flops(point, records[point.key])
        for point in facts.points
        if records[point.key].state is PointState.PENDING
    )
    speed *= len(facts.active) / reporting  # those that have not reported yet run as well
    seconds = max(0.0, left) / speed
    if seconds > FARTHEST_COMPLETION.total_seconds():
        return ""
    return timestamp(observed.now + timedelta(seconds=seconds))


def _active(observed: ObservedSweep, jobs: Sequence[ObservedJob]) -> tuple[ActivePoint, ...]:
    rows = []
    for job in sorted(jobs, key=lambda job: job.name)[:MAX_ENTRIES]:
        progress = observed.progress.get(job.key)
        rows.append(
            ActivePoint(
                name=job.name,
                tokens=progress.tokens if progress else 0,
                loss=loss_text(progress.loss) if progress else "",
            )
        )
    return tuple(rows)


def _failures(records: Sequence[PointRecord]) -> tuple[FailedPoint, ...]:
    failed = [record for record in records if record.state in FAILED][:MAX_ENTRIES]
    return tuple(
        FailedPoint(
            name=record.name,
            reason=record.attempts.last_failure or str(record.state),
            message=record.attempts.failures[-1].message if record.attempts.failures else "",
        )
        for record in failed
    )


def _laws(observed: ObservedSweep, facts: SweepFacts) -> dict[str, Any]:
    fit, uri = facts.fit, facts.store_uri
    laws = fit.laws if fit is not None else None
    if fit is None or laws is None:
        return {
            "learning_rate_law": None,
            "batch_size_law": None,
            "loss_compute_law": None,
            "optima": (),
            "warnings": texts(facts.warnings),
            "laws_uri": "",
            "laws_sha256": "",
            "report_uri": "",
        }
    sizes = {point.proxy.parameters.active: point.proxy.name for point in facts.points}
    report = f"{uri}/{layout.sweep_report(observed.name, observed.uid)}"
    return {
        **law_statuses(laws, provisional=not facts.fit_is_final),
        "optima": optimum_statuses(laws.frontier, sizes),
        "warnings": texts([*facts.warnings, *laws.warnings]),
        "laws_uri": f"{uri}/{layout.sweep_laws(observed.name, observed.uid)}",
        "laws_sha256": fit.laws_sha256,
        "report_uri": report if fit.report_written else "",
    }


def failed_in_words(records: Sequence[PointRecord]) -> str:
    """The failed points by name and class, in one bounded sentence."""
    failed = [record for record in records if record.state in FAILED]
    named = [f"{r.name} ({r.attempts.last_failure or r.state})" for r in failed[:5]]
    more = f" and {len(failed) - 5} more" if len(failed) > 5 else ""
    return shortened(", ".join(named) + more, MAX_TEXT)
