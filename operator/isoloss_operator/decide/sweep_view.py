"""A sweep as the decision sees it, and the plan as it leaves: what every branch of the decision shares."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from isoloss_contract.ledger import Ledger
from isoloss_contract.records import PrepareConfig
from isoloss_operator.api import Condition, ScalingSweepSpec
from isoloss_operator.decide.admission import store_label
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
    Reason,
    dated,
    parse_conditions,
    shortened,
    turned,
)
from isoloss_operator.decide.observation import (
    Event,
    FitRequest,
    JobDeletion,
    JobExpiry,
    JobRequest,
    ObservedJob,
    ObservedSweep,
    SetAside,
    SweepPlan,
)
from isoloss_operator.decide.sweep_events import MAX_EVENT_MESSAGE
from isoloss_operator.decide.sweep_status import previous_status
from isoloss_operator.planning.specs import prepare_config

_ANNOUNCED = (ACCEPTED, DATA_READY, FIT_READY, READY, SUSPENDED, STALLED)
"""Conditions whose turns are worth an event; the others turn all the time."""
_NO_NEWS_YET = (Reason.NO_RESULTS,)
"""News only once nothing more will come."""
_NO_NEWS = (Reason.NOTHING_WRONG, Reason.NOT_SUSPENDED, Reason.UP_TO_DATE_WITH_SWEEP)


@dataclass(frozen=True)
class SweepView:
    """A sweep with a valid spec, in which no model is a `like` any more."""

    observed: ObservedSweep
    spec: ScalingSweepSpec

    @cached_property
    def config(self) -> PrepareConfig:
        """What determines its corpus."""
        return prepare_config(self.spec)

    @property
    def store_uri(self) -> str:
        """Without a trailing slash."""
        return self.spec.storage.uri.rstrip("/")

    @cached_property
    def own_jobs(self) -> tuple[ObservedJob, ...]:
        """Jobs that write to this sweep's present store."""
        label = store_label(self.store_uri)
        return tuple(job for job in self.observed.jobs if job.store == label)

    @cached_property
    def prepare_jobs(self) -> tuple[ObservedJob, ...]:
        """Jobs that prepare the present corpus."""
        return tuple(
            job for job in self.own_jobs if job.kind == "prepare" and job.key == self.config.key
        )

    @cached_property
    def train_jobs(self) -> dict[str, tuple[ObservedJob, ...]]:
        """Train Jobs by point key, planned or not."""
        by_key: dict[str, tuple[ObservedJob, ...]] = {}
        for job in self.own_jobs:
            if job.kind == "train":
                by_key[job.key] = (*by_key.get(job.key, ()), job)
        return by_key

    @cached_property
    def running(self) -> tuple[ObservedJob, ...]:
        """Jobs of any kind that hold a slot."""
        return tuple(job for job in self.observed.jobs if job.holds_a_slot)

    @property
    def stored_ledger(self) -> Ledger | None:
        """The ledger as it lies in the store: what is in it survives us."""
        ledger = self.observed.ledger
        return ledger if isinstance(ledger, Ledger) else None


@dataclass(frozen=True)
class Assessment:
    """What the conditions are to say."""

    accepted: Finding
    data: Finding = field(default_factory=Finding.unknown)
    progressing: Finding = field(default_factory=Finding.unknown)
    fit: Finding = field(default_factory=Finding.unknown)
    ready: Finding | None = None
    """None: not ready, for the reason that Progressing gives."""
    suspended: Finding = field(
        default_factory=lambda: Finding.false(Reason.NOT_SUSPENDED, "spec.suspend is false.")
    )
    stalled: bool = False
    """Whether nothing will happen until someone changes something."""
    converging: str = ""
    """What is being started or stopped right now, in words; empty: nothing."""

    def findings(self) -> dict[str, Finding]:
        """All conditions of a sweep, in order."""
        ready = self.ready or Finding.false(self.progressing.reason, self.progressing.message)
        stalled = (
            Finding.true(ready.reason, ready.message)
            if self.stalled
            else Finding.false(Reason.NOTHING_WRONG, "Nothing stands in the way.")
        )
        reconciling = (
            Finding.true(Reason.CONVERGING, self.converging)
            if self.converging
            else Finding.false(Reason.UP_TO_DATE, "All that can run does.")
        )
        return {
            ACCEPTED: self.accepted,
            DATA_READY: self.data,
            PROGRESSING: self.progressing,
            FIT_READY: self.fit,
            READY: ready,
            SUSPENDED: self.suspended,
            STALLED: stalled,
            RECONCILING: reconciling,
        }


ALL_ACCEPTED = Finding.true(Reason.ACCEPTED, "The spec is valid and its storage may be used.")


def suspension(view: SweepView) -> Finding:
    """The condition Suspended."""
    if not view.spec.suspend:
        return Finding.false(Reason.NOT_SUSPENDED, "spec.suspend is false.")
    if view.running:
        return Finding.true(Reason.SUSPENDING, f"{len(view.running)} Jobs are being stopped.")
    return Finding.true(Reason.SUSPENDED, "spec.suspend is true: no Job runs.")


def plan(
    observed: ObservedSweep,
    assessment: Assessment,
    *,
    ledger: Ledger | None = None,
    set_aside: Sequence[SetAside] = (),
    delete: Sequence[JobDeletion] = (),
    expire: Sequence[JobExpiry] = (),
    create: Sequence[JobRequest] = (),
    fit: FitRequest | None = None,
    numbers: Mapping[str, Any] | None = None,
    happened: Sequence[Event] = (),
    requeue_after: float = 60.0,
) -> SweepPlan:
    """The plan with its status; numbers that are not given stay as they were.

    `happened` are events besides those of conditions that turned.
    """
    previous = parse_conditions(observed.status)
    conditions = dated(
        assessment.findings(), previous, generation=observed.generation, now=observed.now
    )
    status = previous_status(observed.status).model_copy(
        update={
            **(numbers or {}),
            "conditions": conditions,
            "observed_generation": observed.generation,
        }
    )
    return SweepPlan(
        status=status,
        ledger=None if ledger is None or ledger == observed.ledger else ledger,
        set_aside=tuple(set_aside),
        delete=tuple(delete),
        expire=tuple(expire),
        create=tuple(create),
        fit=fit,
        events=(
            *happened,
            *events(turned(conditions, previous), _ANNOUNCED, stalled=assessment.stalled),
        ),
        requeue_after=requeue_after,
    )


def events(
    conditions: Iterable[Condition], announced: Sequence[str], *, stalled: bool
) -> tuple[Event, ...]:
    """One event per turned condition that is news: not those that only say what is not known yet."""
    found: dict[tuple[str, str], Event] = {}
    for condition in conditions:
        if condition.type not in announced or condition.status == "Unknown":
            continue
        if condition.reason in _NO_NEWS or (condition.reason in _NO_NEWS_YET and not stalled):
            continue
        is_bad = stalled or (condition.type == ACCEPTED and condition.status == "False")
        event = Event(
            "Warning" if is_bad else "Normal",
            condition.reason,
            shortened(condition.message, MAX_EVENT_MESSAGE),
        )
        found.setdefault((event.reason, event.message), event)
    return tuple(found.values())


def deletions(jobs: Iterable[ObservedJob], why: str) -> tuple[JobDeletion, ...]:
    """Deletions of the unfinished among `jobs` that are not being deleted already."""
    return tuple(
        JobDeletion(job.name, job.uid, why)
        for job in jobs
        if not job.is_finished and not job.deleting
    )


def expiries(spec: ScalingSweepSpec, jobs: Iterable[ObservedJob]) -> tuple[JobExpiry, ...]:
    """Expiries of recorded, finished Jobs that have none yet."""
    ttl = spec.jobs.ttl_seconds_after_finished
    return tuple(
        JobExpiry(job.name, ttl.succeeded if job.complete else ttl.failed)
        for job in jobs
        if job.is_finished and not job.expires and not job.deleting
    )
