"""A sweep's status from the ledger, the Jobs and the laws: constant in size, every number traceable."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import datetime, timedelta
from typing import Any

from pydantic import ValidationError

from isoloss.formatting import loss
from isoloss_contract import layout
from isoloss_contract.ledger import FAILED_FOR_GOOD, Ledger, PointRecord, PointState, Spend
from isoloss_operator.api import (
    ActivePoint,
    Condition,
    FailedPoint,
    LawStatus,
    LedgerReference,
    OptimumStatus,
    PointCounts,
    ScalingSweepStatus,
    SearchStatus,
)
from isoloss_operator.decide.completion import Work, seconds_left
from isoloss_operator.decide.conditions import timestamp
from isoloss_operator.decide.fits import FitOutcome
from isoloss_operator.decide.law_status import (
    MAX_ENTRIES,
    hyperparameter_law,
    loss_compute_law,
    optimum_statuses,
    precise,
    texts,
)
from isoloss_operator.decide.observation import ObservedJob, ObservedTasks, PointFiles
from isoloss_operator.decide.tasks.account import Spending
from isoloss_operator.planning.points import PlannedPoint

FARTHEST_COMPLETION = timedelta(days=3650)


@dataclass(frozen=True)
class Numbers:
    """The fields of a ScalingSweepStatus that are neither conditions nor generation."""

    points: PointCounts
    progress: str
    planned_flops: str
    spent_flops: str
    accelerator_hours: str
    estimated_completion: str
    learning_rate_law: LawStatus | None
    batch_size_law: LawStatus | None
    loss_compute_law: LawStatus | None
    optima: tuple[OptimumStatus, ...]
    active: tuple[ActivePoint, ...]
    failures: tuple[FailedPoint, ...]
    warnings: tuple[str, ...]
    data_digest: str
    ledger: LedgerReference | None
    search: SearchStatus | None
    laws_uri: str
    laws_sha256: str
    report_uri: str

    @classmethod
    def of(cls, status: ScalingSweepStatus) -> Numbers:
        """Those of a status as observed."""
        return cls(**{field.name: getattr(status, field.name) for field in fields(cls)})


def sweep_status(
    numbers: Numbers, conditions: tuple[Condition, ...], generation: int
) -> ScalingSweepStatus:
    """The whole status."""
    return ScalingSweepStatus(
        observed_generation=generation, conditions=conditions, **vars(numbers)
    )


def previous_status(raw: Mapping[str, Any]) -> ScalingSweepStatus:
    """The status as observed; an empty one if it cannot be read."""
    try:
        return ScalingSweepStatus.model_validate(raw)
    except ValidationError:
        return ScalingSweepStatus()


@dataclass(frozen=True)
class SweepFacts:
    """What the numbers of a status are computed from."""

    store_uri: str
    folder: str
    """Folder of the ledger in the store."""
    points: Sequence[PlannedPoint]
    ledger: Ledger
    active: Sequence[ObservedJob] = ()
    """Train Jobs that hold a slot."""
    fit: FitOutcome | None = None
    fit_is_final: bool = False
    has_page: bool = False
    """Whether a page of the sweep on the way is in the store."""
    warnings: Sequence[str] = ()
    spent: Spending | Spend | None = None
    """None: what the ledger's attempts that ended cost."""
    search: SearchStatus | None = None
    parallelism: int = 1
    added: int = 0
    """How many of `points`, the last ones, a search added to those of the spec."""


def numbers_of(world: ObservedTasks, stored: PointFiles, facts: SweepFacts) -> Numbers:
    """The numbers of a status, from the facts."""
    records, uri, fit = facts.ledger.points, facts.store_uri, facts.fit
    counts = _counts(facts)
    spent = facts.spent or facts.ledger.spent
    laws = fit.laws if fit is not None else None
    provisional = not facts.fit_is_final
    sizes = {point.proxy.parameters.active: point.proxy.name for point in facts.points}
    report_uri = f"{uri}/{layout.sweep_report(world.name, world.uid)}"
    laws_uri = f"{uri}/{layout.sweep_laws(world.name, world.uid)}"
    ledger_uri = f"{uri}/{layout.ledger_in(facts.folder)}"
    return Numbers(
        points=counts,
        progress=f"{counts.succeeded + counts.diverged}/{counts.total}",
        planned_flops=precise(
            sum(point.flops for point in facts.points[: len(facts.points) - facts.added])
        ),
        spent_flops=precise(spent.flops),
        accelerator_hours=precise(spent.accelerator_seconds / 3600),
        estimated_completion=_estimated_completion(world.now, stored, facts),
        learning_rate_law=hyperparameter_law(laws.learning_rate, provisional=provisional)
        if laws
        else None,
        batch_size_law=hyperparameter_law(laws.batch_size, provisional=provisional)
        if laws
        else None,
        loss_compute_law=loss_compute_law(laws, provisional=provisional) if laws else None,
        optima=optimum_statuses(laws.frontier, sizes) if laws else (),
        active=_active(stored, facts.active),
        failures=_failures(records),
        warnings=texts([*facts.warnings, *(laws.warnings if laws else ())]),
        data_digest=facts.ledger.data_digest,
        ledger=LedgerReference(uri=ledger_uri, sha256=facts.ledger.digest),
        search=facts.search,
        laws_uri=laws_uri if laws else "",
        laws_sha256=fit.laws_sha256 if fit and laws else "",
        report_uri=report_uri
        if facts.has_page or (fit is not None and laws and fit.report_written)
        else "",
    )


def _counts(facts: SweepFacts) -> PointCounts:
    """Points by state; a pending point with a Job is active.

    Before the corpus is prepared the points have no keys and no records, but are counted.
    """
    records = facts.ledger.points
    if not all(point.key for point in facts.points):
        return PointCounts(total=len(facts.points), pending=len(facts.points))
    with_job = {job.key for job in facts.active}
    active = sum(r.key in with_job for r in records if r.state is PointState.PENDING)
    pending = sum(r.state is PointState.PENDING for r in records)
    return PointCounts(
        total=len(records),
        pending=pending - active,
        active=active,
        succeeded=sum(r.state is PointState.SUCCEEDED for r in records),
        diverged=sum(r.state is PointState.DIVERGED for r in records),
        failed=sum(r.state in FAILED_FOR_GOOD for r in records),
        adopted=sum(r.adopted for r in records),
    )


def _estimated_completion(now: datetime, stored: PointFiles, facts: SweepFacts) -> str:
    """When everything that is wanted is trained; empty if unknown."""
    searches = facts.search is not None and not facts.search.ended
    work = Work(facts.points, facts.ledger, facts.active, facts.parallelism, searches)
    seconds = seconds_left(stored, work)
    if seconds is None or seconds > FARTHEST_COMPLETION.total_seconds():
        return ""
    return timestamp(now + timedelta(seconds=seconds))


def _active(stored: PointFiles, jobs: Sequence[ObservedJob]) -> tuple[ActivePoint, ...]:
    rows = []
    for job in sorted(jobs, key=lambda job: job.name)[:MAX_ENTRIES]:
        progress = stored.progress.get(job.key)
        tokens, newest = (progress.tokens, progress.loss) if progress else (0, None)
        rows.append(ActivePoint(name=job.name, tokens=tokens, loss=loss(newest)))
    return tuple(rows)


def _failures(records: Sequence[PointRecord]) -> tuple[FailedPoint, ...]:
    failed = [record for record in records if record.state in FAILED_FOR_GOOD][:MAX_ENTRIES]
    return tuple(
        FailedPoint(
            name=record.name,
            reason=record.attempts.last_failure or str(record.state),
            message=record.attempts.failures[-1].message if record.attempts.failures else "",
        )
        for record in failed
    )
