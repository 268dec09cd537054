"""A sweep's status from the ledger, the Jobs and the laws: constant in size, every number traceable. Its conditions: what
its findings say, and what follows from them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Final

from isoloss.formatting import loss
from isoloss_contract import layout
from isoloss_contract.ledger import (
    FAILED_FOR_GOOD,
    IntentAction,
    Ledger,
    PointRecord,
    PointState,
    Spend,
)
from isoloss_contract.records import PointProgress
from isoloss_operator.api import (
    ActivePoint,
    FailedPoint,
    LedgerReference,
    PointCounts,
    ScalingSweepStatus,
    SearchStatus,
)
from isoloss_operator.decide.conditions import (
    ACCEPTED,
    DATA_READY,
    FIT_READY,
    PROGRESSING,
    READY,
    RECONCILING,
    STALLED,
    SUSPENDED,
    Finding,
    dated,
    reconciling,
    stalled,
    stands,
    timestamp,
    turned,
)
from isoloss_operator.decide.events import condition_events, lost_in_words
from isoloss_operator.decide.fits import FitOutcome
from isoloss_operator.decide.law_status import (
    MAX_ENTRIES,
    hyperparameter_law,
    loss_compute_law,
    optimum_statuses,
    precise,
    texts,
)
from isoloss_operator.decide.observation import (
    ObservedJob,
    ObservedSweep,
    ObservedTasks,
    PointFiles,
)
from isoloss_operator.decide.plans import Event
from isoloss_operator.decide.reasons import Reason
from isoloss_operator.decide.size_status import size_statuses
from isoloss_operator.decide.suspension import suspension
from isoloss_operator.decide.tasks.task_pass import Spending, remaining_flops
from isoloss_operator.planning.points import PlannedPoint

FARTHEST_COMPLETION = timedelta(days=3650)


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
    added: int = 0
    """How many of `points`, the last ones, a search added to those of the spec."""


def numbers_of(world: ObservedTasks, stored: PointFiles, facts: SweepFacts) -> ScalingSweepStatus:
    """A status with its numbers, and without conditions."""
    records, uri, fit = facts.ledger.points, facts.store_uri, facts.fit
    counts = _counts(facts)
    spent = facts.spent or facts.ledger.spent
    laws = fit.laws if fit is not None else None
    provisional = not facts.fit_is_final
    sizes = {point.proxy.parameters.active: point.proxy.name for point in facts.points}
    folder = layout.sweep_folder(world.name, world.uid)
    report_uri, laws_uri = f"{uri}/{layout.report_in(folder)}", f"{uri}/{layout.laws_in(folder)}"
    ledger_uri = f"{uri}/{layout.ledger_in(facts.folder)}"
    return ScalingSweepStatus(
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
        sizes=size_statuses(records, _reports(stored, facts.active)),
        active=_active(stored, facts.active),
        failures=_failures(records),
        warnings=texts([*_lost(facts.ledger), *facts.warnings, *(laws.warnings if laws else ())]),
        data_digest=facts.ledger.data_digest,
        ledger=LedgerReference(uri=ledger_uri, sha256=facts.ledger.digest),
        search=facts.search,
        laws_uri=laws_uri if laws else "",
        laws_sha256=fit.laws_sha256 if fit and laws else "",
        report_uri=report_uri
        if facts.has_page or (fit is not None and laws and fit.report_written)
        else "",
    )


def _lost(ledger: Ledger) -> Sequence[str]:
    return () if ledger.lost is None else (lost_in_words(ledger.lost),)


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


def _reports(stored: PointFiles, jobs: Sequence[ObservedJob]) -> Mapping[str, PointProgress]:
    """What the points that have a Job reported last, by key."""
    return {job.key: stored.progress[job.key] for job in jobs if job.key in stored.progress}


def _estimated_completion(now: datetime, stored: PointFiles, facts: SweepFacts) -> str:
    """When everything that is wanted is trained; empty if unknown."""
    seconds = seconds_left(stored, facts)
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


# ---------------------------------------------------------------------- how long it will still train


def seconds_left(stored: PointFiles, facts: SweepFacts) -> float | None:
    """Seconds until all that is wanted by now is trained; None while nothing trains or nothing is measured.

    FLOPs left over FLOPs per second: of each size by its own pace, as the budget reckons it.
    """
    records, spent = facts.ledger.by_key, facts.spent
    devices = sum(job.accelerators * job.pods for job in facts.active)
    if not devices or not isinstance(spent, Spending) or not spent.accelerator_seconds:
        return None
    left = sum(
        spent.seconds_per_flop[point.proxy.name]
        * remaining_flops(point, records[point.key], stored.progress.get(point.key))
        for point in facts.points
        if _is_wanted(records[point.key])
    )
    return left / devices


def _is_wanted(record: PointRecord) -> bool:
    return record.state is PointState.PENDING and record.intent.action is IntentAction.RUN


# ---------------------------------------------------------------------------------------- conditions


_ANNOUNCED: Final = (ACCEPTED, DATA_READY, FIT_READY, READY, SUSPENDED, STALLED)
"""Conditions whose turns are worth an event; the others turn all the time."""
_UNDER_WAY: Final = (Reason.PREPARING_DATA, Reason.TRAINING, Reason.WAITING_TO_RETRY)
"""Reasons with which Progressing is True."""
ALL_ACCEPTED = Finding.true(Reason.ACCEPTED, "The spec is valid and its storage may be used.")


@dataclass(frozen=True)
class Findings:
    """What the conditions are to say; Stalled, Progressing and Reconciling follow from Ready."""

    ready: Finding
    accepted: Finding = ALL_ACCEPTED
    data: Finding = field(default_factory=Finding.unknown)
    fit: Finding = field(default_factory=Finding.unknown)
    progressing: Finding | None = None
    """None: as Ready."""
    changes: str = ""
    """What is being started or stopped right now; empty: nothing."""

    def by_condition(self, suspended: Finding) -> dict[str, Finding]:
        """All conditions of a sweep, in order."""
        ready = self.ready
        is_under_way = ready.reason in _UNDER_WAY
        progressing = self.progressing or Finding(
            "True" if is_under_way else "False", ready.reason, ready.message
        )
        return {
            ACCEPTED: self.accepted,
            DATA_READY: self.data,
            PROGRESSING: progressing,
            FIT_READY: self.fit,
            READY: ready,
            SUSPENDED: suspended,
            STALLED: stalled(ready),
            RECONCILING: reconciling(ready, self.changes),
        }


def standing(observed: ObservedSweep) -> Findings | None:
    """What the conditions said of a sweep that is ready under its present spec; None: it is not."""
    before = observed.said
    if not stands(before, observed.generation):
        return None
    found = {kind: Finding.of(condition) for kind, condition in before.items()}
    return Findings(
        ready=found[READY],
        accepted=found.get(ACCEPTED, ALL_ACCEPTED),
        data=found.get(DATA_READY, Finding.unknown()),
        fit=found.get(FIT_READY, Finding.unknown()),
        progressing=found.get(PROGRESSING),
    )


def stated(
    observed: ObservedSweep, findings: Findings, numbers: ScalingSweepStatus | None = None
) -> tuple[ScalingSweepStatus, tuple[Event, ...]]:
    """The status with its conditions, and the events of those that turned.

    Without `numbers` those of the status stay as they were, but for Jobs that ended.
    """
    suspended = suspension(observed.jobs, observed, suspend=observed.spec.suspend)
    previous = observed.said
    conditions = dated(
        findings.by_condition(suspended),
        previous,
        generation=observed.generation,
        now=observed.now,
    )
    news = turned(conditions, previous)
    status = (numbers or _as_told(observed)).model_copy(
        update={"observed_generation": observed.generation, "conditions": conditions}
    )
    return status, condition_events(news, _ANNOUNCED, stalled=findings.ready.stalled)


def _as_told(observed: ObservedSweep) -> ScalingSweepStatus:
    """The numbers of the status while nothing is known of the points: Jobs that ended train none of them."""
    told = observed.told
    names = {job.name for job in observed.jobs if job.kind == "train" and not job.is_finished}
    points, active = told.points, min(told.points.active, len(names))
    pending = points.pending + points.active - active
    return told.model_copy(
        update={
            "points": points.model_copy(update={"active": active, "pending": pending}),
            "active": tuple(point for point in told.active if point.name in names),
            "estimated_completion": told.estimated_completion if names else "",
        }
    )
