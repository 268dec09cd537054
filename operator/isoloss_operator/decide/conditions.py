"""Conditions as metav1 defines them.

Ready is what `kubectl wait --for=condition=Ready` waits for. Reconciling and Stalled follow kstatus:
Reconciling=True while work is under way, Stalled=True when nothing will happen until a user changes
something.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

from isoloss.formatting import are, counted
from isoloss_contract.records import DataManifest
from isoloss_operator.api import Condition
from isoloss_operator.api.statuses import parse_conditions
from isoloss_operator.decide.observation import ObservedResource
from isoloss_operator.decide.plans import Event
from isoloss_operator.decide.reasons import Finding, Reason

MAX_MESSAGE = 800
"""Bytes of a condition's message: several together must stay far below the status limit."""

ACCEPTED = "Accepted"
DATA_READY = "DataReady"
PROGRESSING = "Progressing"
FIT_READY = "FitReady"
EVALUATED = "Evaluated"
READY = "Ready"
STALE = "Stale"
VALIDATED = "Validated"
SUSPENDED = "Suspended"
STALLED = "Stalled"
RECONCILING = "Reconciling"


NOT_CHECKED: Final = Finding(Reason.NOT_YET_KNOWN, "Not checked yet.", "Unknown")


def stalled(ready: Finding) -> Finding:
    """The condition Stalled behind a finding for Ready."""
    if ready.stalled:
        return Finding(ready.reason, ready.message, "True")
    return Finding(Reason.NOTHING_WRONG, "Nothing needs attention.")


def reconciling(ready: Finding, changes: str) -> Finding:
    """The condition Reconciling: True until Ready or Stalled, and while `changes` are under way."""
    # kstatus looks at Reconciling before Stalled, so the two must never both be True.
    if ready.stalled:
        return Finding(Reason.UP_TO_DATE, "Nothing is left to do until something changes.")
    if changes:
        return Finding(Reason.CONVERGING, changes, "True")
    if ready.holds or ready.reason is Reason.SUSPENDED:
        return Finding(Reason.UP_TO_DATE, "Up to date.")
    return Finding(ready.reason, ready.message, "True")


def was_ready(previous: Mapping[str, Condition], generation: int) -> bool:
    """Whether Ready was True under this very generation: what was ready is not withdrawn lightly."""
    ready = previous.get(READY)
    return ready is not None and ready.status == "True" and ready.observed_generation == generation


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
                reason=str(finding.reason),
                message=shortened(finding.message, MAX_MESSAGE),
                observed_generation=generation,
                last_transition_time=before.last_transition_time
                if before is not None and unchanged
                else timestamp(now),
            )
        )
    return tuple(conditions)


def changed(
    conditions: Iterable[Condition], previous: Mapping[str, Condition]
) -> tuple[Condition, ...]:
    """Conditions whose status or reason changed: worth an event."""
    return tuple(
        c
        for c in conditions
        if (before := previous.get(c.type)) is None
        or (before.status, before.reason) != (c.status, c.reason)
    )


def shortened(text: str, limit: int) -> str:
    """`text` in one printable line, cut with an ellipsis if it is longer than `limit` bytes of UTF-8."""
    line = text[: limit + 1]  # a character takes a byte at least: the rest cannot matter
    if not line.isprintable():
        line = "".join(c if c.isprintable() else " " for c in line)
    content = line.encode(errors="replace")
    if len(content) <= limit:
        return content.decode()
    return content[: limit - 3].decode(errors="ignore") + "…"


def timestamp(moment: datetime) -> str:
    """RFC 3339 in UTC to the second, as metav1.Time."""
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


_NO_NEWS: Final = (Reason.NOTHING_WRONG, Reason.NOT_SUSPENDED, Reason.UP_TO_DATE_WITH_SWEEP)
_NO_NEWS_UNLESS_STALLED: Final = (Reason.NO_RESULTS,)


def condition_events(
    conditions: Iterable[Condition], announced: Sequence[str], *, stalled: bool
) -> tuple[Event, ...]:
    """One event per changed condition of the `announced` types that is news."""
    found: dict[tuple[str, str], Event] = {}
    for condition in conditions:
        if condition.type not in announced or condition.status == "Unknown":
            continue
        if condition.reason in _NO_NEWS:
            continue
        if condition.reason in _NO_NEWS_UNLESS_STALLED and not stalled:
            continue
        is_bad = stalled or (condition.type == ACCEPTED and condition.status == "False")
        event = Event("Warning" if is_bad else "Normal", condition.reason, condition.message)
        found.setdefault((event.reason, event.message), event)
    return tuple(found.values())


NOT_SUSPENDED: Final = Finding(Reason.NOT_SUSPENDED, "spec.suspend is false.")


def left_behind(observed: ObservedResource) -> str:
    """What a deleted Job left behind, and what to do about it; empty: nothing.

    Most pods end by themselves; one that has no node yet never does.
    """
    count = len(observed.orphaned_pods)
    if not count:
        return ""
    named = f", such as {observed.orphans[0]}" if observed.orphans else ""
    return (
        f"Waiting for {counted(count, 'pod')} without a Job to end{named}: "
        "delete what does not end by itself."
    )


def suspension(observed: ObservedResource) -> Finding:
    """The condition Suspended of a resource."""
    if not observed.spec.suspend:
        return NOT_SUSPENDED
    running = sum(job.holds_a_slot for job in observed.jobs)
    if running:
        return Finding(
            Reason.SUSPENDING, f"{counted(running, 'Job')} {are(running)} being stopped.", "True"
        )
    message = "spec.suspend is true: no Job is running."
    if left := left_behind(observed):
        message += f" {left}"
    return Finding(Reason.SUSPENDED, message, "True")


# --------------------------------------------------------------------------------- those of a sweep


_UNDER_WAY: Final = (Reason.PREPARING_DATA, Reason.TRAINING, Reason.WAITING_TO_RETRY)
"""Reasons with which Progressing is True."""
ALL_ACCEPTED: Final = Finding(
    Reason.ACCEPTED, "The spec is valid and its storage may be used.", "True"
)


@dataclass(frozen=True)
class Findings:
    """What the conditions of a sweep are to say; Stalled, Progressing and Reconciling follow from Ready."""

    ready: Finding
    accepted: Finding = ALL_ACCEPTED
    data: Finding = NOT_CHECKED
    fit: Finding = NOT_CHECKED
    progressing: Finding | None = None
    """None: as Ready."""
    changes: str = ""
    """What is being started or stopped right now; empty: nothing."""

    def by_condition(self, suspended: Finding) -> dict[str, Finding]:
        """All conditions of a sweep, in order."""
        ready = self.ready
        is_under_way = ready.reason in _UNDER_WAY
        progressing = self.progressing or Finding(
            ready.reason, ready.message, "True" if is_under_way else "False"
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


def data_prepared(corpus: DataManifest, asked: str) -> Finding:
    """DataReady once the corpus is tokenized. `asked` is the key of what the spec asks for."""
    sentences = [f"Corpus ready (digest {corpus.digest[:16]})."]
    if corpus.prepare_key != asked:
        sentences.append(
            f"It is in data/{corpus.prepare_key}/: the files of its sources, or the tokenizer, are not those that "
            f"data/{asked}/ was prepared from."
        )
    return Finding(Reason.DATA_PREPARED, " ".join([*sentences, *corpus.remarks]), "True")


def previous_findings(previous: Mapping[str, Condition], generation: int) -> Findings | None:
    """What the conditions said of a sweep that is ready under its present spec; None: it is not."""
    if not was_ready(previous, generation):
        return None
    found = {kind: Finding.of(condition) for kind, condition in previous.items()}
    return Findings(
        ready=found[READY],
        accepted=found.get(ACCEPTED, ALL_ACCEPTED),
        data=found.get(DATA_READY, NOT_CHECKED),
        fit=found.get(FIT_READY, NOT_CHECKED),
        progressing=found.get(PROGRESSING),
    )


# -------------------------------------------------------------------------------- passes that failed


def internal_error(error: Exception) -> Finding:
    """An exception that nobody foresaw."""
    message = (
        f"{type(error).__name__}: {error}. This is a bug in the operator, whose log has the trace; "
        "it tries again."
    )
    return Finding(Reason.INTERNAL_ERROR, message)


def tried_again(reason: Reason, error: Exception) -> Finding:
    """The API server refuses what a pass needs, or passes fail one after another for want of its answer."""
    return Finding(reason, f"{error}; tried again.")


def failed_pass(
    status: Mapping[str, Any], generation: int, now: datetime, finding: Finding
) -> dict[str, Any]:
    """The status as it was, with conditions that say why the pass failed.

    What was Ready under this generation stays so: the failure says nothing about the answer. Of what the other
    conditions say, no pass has looked at a new generation: each keeps its own.
    """
    previous = parse_conditions(status)
    found = {kind: Finding.of(condition) for kind, condition in previous.items()}
    if not was_ready(previous, generation):
        found[READY] = finding
    found[STALLED] = finding
    found[RECONCILING] = Finding(finding.reason, finding.message, "True")
    rewritten = (READY, STALLED, RECONCILING)
    conditions = [
        condition.document()
        for kind, each in found.items()
        for condition in dated(
            {kind: each},
            previous,
            generation=generation if kind in rewritten else previous[kind].observed_generation,
            now=now,
        )
    ]
    return {**status, "observedGeneration": generation, "conditions": conditions}
