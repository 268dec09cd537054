"""Conditions as metav1 has them, and every reason they can give.

Ready is what `kubectl wait --for=condition=Ready` waits for. Reconciling and Stalled follow kstatus:
Reconciling=True while the operator still has something to start or stop, Stalled=True where nothing will
happen until someone changes something.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any, Literal

from pydantic import ValidationError

from isoloss_operator.api import Condition

ConditionStatus = Literal["True", "False", "Unknown"]
MAX_MESSAGE = 800
"""Bytes of a condition's message: several together must stay far below the status limit."""

ACCEPTED = "Accepted"
DATA_READY = "DataReady"
PROGRESSING = "Progressing"
FIT_READY = "FitReady"
EVALUATED = "Evaluated"
READY = "Ready"
STALE = "Stale"
SUSPENDED = "Suspended"
STALLED = "Stalled"
RECONCILING = "Reconciling"


class Reason(StrEnum):
    """Why a condition has its status. Refusals of the law engine add their own (RefusalReason)."""

    NOT_YET_KNOWN = "NotYetKnown"
    """What it depends on has not been looked at yet."""
    NOTHING_WRONG = "NothingWrong"
    """The bad thing that this condition reports is not there."""

    # Accepted
    ACCEPTED = "Accepted"
    """The spec is valid and everything it names may be used."""
    INVALID_SPEC = "InvalidSpec"
    """The spec contradicts itself or the corpus; the message names each field."""
    STORAGE_NOT_ALLOWED = "StorageNotAllowed"
    """The operator's configuration does not allow this storage to this namespace."""
    STORAGE_UNREACHABLE = "StorageUnreachable"
    """The store could not be asked; tried again."""
    BAD_CONFIGURATION = "BadConfiguration"
    """A pod refused its configuration; nothing starts until the spec changes."""
    JOB_REFUSED = "JobRefused"
    """The API server refused a Job (pod template, quota, policy); tried again."""

    # DataReady
    DATA_PREPARED = "DataPrepared"
    """The tokenised corpus is complete."""
    PREPARING_DATA = "PreparingData"
    """The prepare Job runs or is about to."""
    BAD_DATA = "BadData"
    """Corpus, tokenizer or checkpoint is unusable; the trainer's own code replaces this where it gave one."""
    PREPARATION_FAILED = "PreparationFailed"
    """The prepare Job failed more often than failurePolicy.retriesPerPoint allows."""
    MANIFEST_UNREADABLE = "ManifestUnreadable"
    """The manifest of the prepared data was damaged; it is set aside and written anew."""

    # Progressing, and through it Ready
    TRAINING = "Training"
    """Points train or are about to."""
    FITTING = "Fitting"
    """All points are done and the laws are being fitted."""
    FINISHED = "Finished"
    """All points are done."""
    WAITING_TO_RETRY = "WaitingToRetry"
    """Nothing runs; failed or interrupted points start again after a delay."""
    QUEUED = "Queued"
    """All Jobs wait for Kueue to admit them."""
    SECRET_MISSING = "SecretMissing"
    """Pods wait for a Secret or ConfigMap that does not exist."""
    IMAGE_PULL_FAILED = "ImagePullFailed"
    """Pods wait for an image that can not be pulled."""
    UNSCHEDULABLE = "Unschedulable"
    """No node has room for the pods."""
    POD_WAITING = "PodWaiting"
    """Pods can not start for another reason; the message says which."""
    BUDGET_EXHAUSTED = "BudgetExhausted"
    """The remaining points do not fit into spec.budget; the laws use what is done."""
    TOO_MANY_FAILED_POINTS = "TooManyFailedPoints"
    """More points failed for good than failurePolicy.maxFailedPoints allows; nothing starts."""

    # FitReady
    FITTED = "Fitted"
    """The laws are fitted to all points."""
    PROVISIONAL = "Provisional"
    """The laws are fitted to the points done so far."""
    NO_RESULTS = "NoResults"
    """No point has a result yet, or none ever got one."""
    FIT_FAILED = "FitFailed"
    """The fit could not run; tried again when the points change."""
    LAWS_REFUSED = "LawsRefused"
    """The data do not support the laws; the message says why."""

    # Suspended
    SUSPENDED = "Suspended"
    """spec.suspend is true: no Job runs."""
    SUSPENDING = "Suspending"
    """spec.suspend is true: Jobs are being stopped."""
    NOT_SUSPENDED = "NotSuspended"
    """spec.suspend is false."""

    # Reconciling
    UP_TO_DATE = "UpToDate"
    """All that can run does."""
    CONVERGING = "Converging"
    """Jobs are being started or stopped."""

    # HyperparamPrediction
    PREDICTED = "Predicted"
    """The answer stands in the status."""
    SWEEP_NOT_FOUND = "SweepNotFound"
    """spec.sweepRef names no ScalingSweep in this namespace."""
    SWEEP_NOT_READY = "SweepNotReady"
    """The sweep has no final laws yet."""
    SWEEP_INVALID = "SweepInvalid"
    """The sweep's own spec is refused."""
    LAWS_UNREADABLE = "LawsUnreadable"
    """The sweep's laws could not be read from the store."""
    EVALUATING = "Evaluating"
    """The checkpoint's initial loss is being measured."""
    EVALUATED = "Evaluated"
    """The checkpoint's initial loss is known."""
    INITIAL_LOSS_GIVEN = "InitialLossGiven"
    """spec.initialLoss is used; nothing is measured."""
    EVALUATION_FAILED = "EvaluationFailed"
    """The evaluate Job failed for good."""
    UP_TO_DATE_WITH_SWEEP = "UpToDateWithSweep"
    """The answer rests on the sweep's present laws."""
    SWEEP_CHANGED = "SweepChanged"
    """The sweep changed since; the answer is that of its former laws."""
    CONFIG_MAP_TAKEN = "ConfigMapTaken"
    """A ConfigMap of the wanted name belongs to someone else; nothing is published."""


@dataclass(frozen=True)
class Finding:
    """What a condition says, before it is dated."""

    status: ConditionStatus
    reason: str
    message: str

    @classmethod
    def true(cls, reason: str, message: str) -> Finding:
        """It holds."""
        return cls("True", str(reason), message)

    @classmethod
    def false(cls, reason: str, message: str) -> Finding:
        """It does not hold."""
        return cls("False", str(reason), message)

    @classmethod
    def unknown(
        cls, reason: str = Reason.NOT_YET_KNOWN, message: str = "Not looked at yet."
    ) -> Finding:
        """It can not be told yet."""
        return cls("Unknown", str(reason), message)

    @property
    def holds(self) -> bool:
        """Whether the condition is True."""
        return self.status == "True"


def parse_conditions(status: Mapping[str, Any]) -> dict[str, Condition]:
    """The conditions of an observed status by type; what can not be read counts as absent."""
    found: dict[str, Condition] = {}
    entries = status.get("conditions")
    for entry in entries if isinstance(entries, list) else ():
        try:
            condition = Condition.model_validate(entry)
        except ValidationError:
            continue
        found[condition.type] = condition
    return found


def dated(
    findings: Mapping[str, Finding],
    previous: Mapping[str, Condition],
    *,
    generation: int,
    now: datetime,
) -> tuple[Condition, ...]:
    """Conditions for the findings; lastTransitionTime changes with the status alone."""
    conditions = []
    for kind, finding in findings.items():
        before = previous.get(kind)
        unchanged = before is not None and before.status == finding.status
        conditions.append(
            Condition(
                type=kind,
                status=finding.status,
                reason=finding.reason,
                message=shortened(finding.message, MAX_MESSAGE),
                observed_generation=generation,
                last_transition_time=before.last_transition_time
                if before is not None and unchanged
                else timestamp(now),
            )
        )
    return tuple(conditions)


def turned(
    conditions: Iterable[Condition], previous: Mapping[str, Condition]
) -> tuple[Condition, ...]:
    """Conditions whose status or reason is not what it was: worth an event."""
    return tuple(
        c
        for c in conditions
        if (before := previous.get(c.type)) is None
        or (before.status, before.reason) != (c.status, c.reason)
    )


def shortened(text: str, limit: int) -> str:
    """`text` in one printable line, cut with an ellipsis where it is longer than `limit` bytes of UTF-8."""
    line = text[: limit + 1]  # a character takes a byte at least: the rest can not matter
    if not line.isprintable():
        line = "".join(c if c.isprintable() else " " for c in line)
    content = line.encode(errors="replace")
    if len(content) <= limit:
        return content.decode()
    return content[: limit - 3].decode(errors="ignore") + "…"


def timestamp(moment: datetime) -> str:
    """RFC 3339 in UTC to the second, as metav1.Time."""
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def parse_timestamp(text: str) -> datetime | None:
    """The moment behind an RFC 3339 text; None where it is none."""
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        return None
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)
