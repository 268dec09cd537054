"""A sweep's conditions: what its findings say, and what follows from them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from isoloss_operator.api import ScalingSweepStatus
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
    parse_conditions,
    reconciling,
    stalled,
    stands,
    turned,
)
from isoloss_operator.decide.events import condition_events
from isoloss_operator.decide.observation import ObservedSweep
from isoloss_operator.decide.plans import Event
from isoloss_operator.decide.reasons import Reason
from isoloss_operator.decide.suspension import suspension
from isoloss_operator.decide.sweep_status import Numbers, previous_status, sweep_status

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
    before = parse_conditions(observed.status)
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
    observed: ObservedSweep, findings: Findings, numbers: Numbers | None = None
) -> tuple[ScalingSweepStatus, tuple[Event, ...]]:
    """The status, and the events of conditions that turned.

    Without `numbers` those of the status stay as they were.
    """
    previous = parse_conditions(observed.status)
    suspended = suspension(observed.jobs, suspend=observed.spec.suspend)
    conditions = dated(
        findings.by_condition(suspended),
        previous,
        generation=observed.generation,
        now=observed.now,
    )
    numbers = numbers or Numbers.of(previous_status(observed.status))
    status = sweep_status(numbers, conditions, observed.generation)
    is_stalled = findings.ready.stalled
    return status, condition_events(turned(conditions, previous), _ANNOUNCED, stalled=is_stalled)
