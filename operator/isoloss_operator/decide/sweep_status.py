"""A sweep's status from the ledger, the Jobs and the laws: constant in size, every number traceable. Its conditions: what
its findings say, and what follows from them.
"""

from __future__ import annotations

import math
from collections import defaultdict
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
from isoloss_operator.decide.events import condition_events
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
from isoloss_operator.decide.suspension import suspension
from isoloss_operator.decide.tasks.task_pass import Spending, recorded_flops, remaining_flops
from isoloss_operator.planning.flops import six_nd
from isoloss_operator.planning.points import PlannedPoint
from isoloss_operator.planning.search_cost import search_estimate

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
    parallelism: int = 1
    added: int = 0
    """How many of `points`, the last ones, a search added to those of the spec."""

    @property
    def searches(self) -> bool:
        """Whether a search goes on, which will want more than it wants now."""
        return self.search is not None and not self.search.ended


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


UNSEEN_EXPONENT: Final = 0.5
"""Exponent of active parameters in the assumed seconds per token of a size while only one size is measured. Small
models wait for the overhead of each step, whatever their size (0); large ones keep the device busy, and take time in
proportion to their FLOPs (1). Halfway errs by the square root of the ratio of both sizes at most."""


def seconds_left(stored: PointFiles, facts: SweepFacts) -> float | None:
    """Seconds until everything is trained; None while nothing trains or nothing is measured.

    What a search will still want is taken from what searches of grids of that size have cost, and how many Jobs
    they have kept at work (planning.search_cost). Fits between its steps are left out.
    """
    if not facts.active:  # nor are there any keys and records before the corpus is prepared
        return None
    paces = seconds_per_token(stored, facts)
    if not paces:
        return None
    records = facts.ledger.by_key
    by_key = {point.key: point for point in facts.points}
    training = [
        _point_seconds(by_key[job.key], records[job.key], stored.progress.get(job.key), paces)
        for job in facts.active
        if job.key in by_key and job.key in records
    ]
    running = {job.key for job in facts.active}
    waiting = [
        _point_seconds(point, records[point.key], None, paces)
        for point in facts.points
        if point.key not in running and _is_wanted(records[point.key])
    ]
    slots = max(min(facts.parallelism, len(training) + len(waiting)), len(training), 1)
    wanted = max((sum(training) + sum(waiting)) / slots, *training, 0.0)
    return wanted + (_seconds_of_later_rounds(facts, records, paces) if facts.searches else 0.0)


def seconds_per_token(stored: PointFiles, facts: SweepFacts) -> dict[str, float]:
    """Seconds of one slot for a token of each size, by the size's name; empty while nothing is measured.

    By pods from their start to their end if points have ended, else by the tokens per second that running
    ones report. A size of which nothing is known takes those of the nearest size in parameters: along the power
    law through the nearest two, and with UNSEEN_EXPONENT if there is only one.
    """
    measured = {**_reported(stored, facts), **_ended(facts)}
    sizes = {point.proxy.name: float(point.proxy.parameters.active) for point in facts.points}
    known = [(sizes[name], pace) for name, pace in measured.items()]
    if not known:
        return {}
    return {name: measured.get(name) or _unseen(size, known) for name, size in sizes.items()}


def _ended(facts: SweepFacts) -> dict[str, float]:
    """Pace by size, from points with a result of this sweep's own."""
    records = facts.ledger.by_key
    seconds, tokens = defaultdict[str, float](float), defaultdict[str, float](float)
    for point in facts.points:
        record = records[point.key]
        if record.tokens and record.spent_accelerator_seconds and not record.adopted:
            name = point.proxy.name
            seconds[name] += record.spent_accelerator_seconds / _devices(name, facts)
            own = recorded_flops(point, record) - record.others.flops
            tokens[name] += max(0.0, own) / _token_flops(point)
    return {name: seconds[name] / tokens[name] for name in seconds if tokens[name]}


def _devices(name: str, facts: SweepFacts) -> int:
    """Devices that a Job of a size holds, as observed on running ones."""
    names = {point.key: point.proxy.name for point in facts.points}
    held = [(job.key, job.accelerators * job.pods) for job in facts.active]
    own = [devices for key, devices in held if names.get(key) == name]
    return max(own or [devices for _, devices in held] or [1])


def _reported(stored: PointFiles, facts: SweepFacts) -> dict[str, float]:
    """Pace by size, from the mean speed of its running points."""
    names = {point.key: point.proxy.name for point in facts.points}
    speeds = defaultdict[str, list[float]](list)
    for job in facts.active:
        progress = stored.progress.get(job.key)
        if job.key in names and progress is not None and (progress.tokens_per_second or 0.0) > 0.0:
            speeds[names[job.key]].append(float(progress.tokens_per_second or 0.0))
    return {name: len(found) / sum(found) for name, found in speeds.items()}


def _unseen(size: float, known: Sequence[tuple[float, float]]) -> float:
    (nearest, pace), *others = sorted(known, key=lambda each: abs(math.log(each[0] / size)))
    exponent = UNSEEN_EXPONENT
    if others and others[0][0] != nearest:
        other, other_pace = others[0]
        exponent = math.log(other_pace / pace) / math.log(other / nearest)
    return pace * math.exp(min(max(exponent, 0.0), 1.0) * math.log(size / nearest))


def _point_seconds(
    point: PlannedPoint,
    record: PointRecord,
    progress: PointProgress | None,
    paces: Mapping[str, float],
) -> float:
    pace = paces[point.proxy.name]
    if progress is not None and (progress.tokens_per_second or 0.0) > 0.0:
        pace = 1.0 / float(progress.tokens_per_second or 1.0)
    return pace * remaining_flops(point, record, progress) / _token_flops(point)


def _seconds_of_later_rounds(
    facts: SweepFacts, records: Mapping[str, PointRecord], paces: Mapping[str, float]
) -> float:
    """For what the search is expected to want of each size beyond what it has wanted so far.

    A round begins when the slowest Job of the one before has ended, so that slots stay empty.
    """
    seconds = 0.0
    for size in search_estimate(tuple(facts.points), 0, 0).sizes:
        own = [point for point in facts.points if point.proxy.name == size.name]
        chosen = sum(_chosen_tokens(point, records[point.key]) for point in own)
        expected = size.measured.mean * sum(point.tokens for point in own)
        at_work = size.measured.jobs_at_work(facts.parallelism)
        seconds += paces[size.name] * max(0.0, expected - chosen) / at_work
    return seconds


def _chosen_tokens(point: PlannedPoint, record: PointRecord) -> float:
    return max(record.tokens, point.wanted_tokens if _is_wanted(record) else 0)


def _is_wanted(record: PointRecord) -> bool:
    return record.state is PointState.PENDING and record.intent.action is IntentAction.RUN


def _token_flops(point: PlannedPoint) -> float:
    return six_nd(point.proxy.parameters, 1)


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
