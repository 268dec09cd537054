"""Conditions as metav1 defines them, and the events of what changed.

Ready is what `kubectl wait --for=condition=Ready` waits for. Reconciling and Stalled follow kstatus:
Reconciling=True while work is under way, Stalled=True when nothing will happen until a user changes
something.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

from isoloss.formatting import are, counted, number, shortened
from isoloss.formatting import flops as flops_in_words
from isoloss_contract.ledger import IntentAction, Ledger, LostLedger, PointRecord
from isoloss_contract.records import DataManifest
from isoloss_operator.api import Condition
from isoloss_operator.api.statuses import parse_conditions
from isoloss_operator.decide.failures import UNCHARGED, FailureClass
from isoloss_operator.decide.fits import PointDecision, SearchStep
from isoloss_operator.decide.observation import ObservedResource
from isoloss_operator.decide.plans import Event
from isoloss_operator.decide.reasons import Finding, Reason
from isoloss_operator.planning.specs import FIRST_JUDGED_SHARE

MAX_MESSAGE = 800
"""Bytes of a condition's message: several together must stay far below the status limit."""
MAX_TEXT = 300
"""Bytes of one text in a status."""
MAX_ENTRIES = 8
"""Of a list in a status."""

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
        return Finding(Reason.UP_TO_DATE, "Nothing to do until something changes.")
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


def texts(messages: Sequence[str]) -> tuple[str, ...]:
    """At most eight messages, each cut to size; the last says how many are left out."""
    shown = [shortened(message, MAX_TEXT) for message in messages[:MAX_ENTRIES]]
    if len(messages) > MAX_ENTRIES:
        shown[-1] = f"and {len(messages) - MAX_ENTRIES + 1} more"
    return tuple(shown)


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


# ----------------------------------------------- events about attempts that ended, and steps of a search


MAX_EVENT_MESSAGE = 900
NAMED = 3
"""Points named in an event."""
LEDGER_LOST: Final = "LedgerLost"
AWAY: Final = (
    FailureClass.NODE_LOST,
    FailureClass.NODE_FAILURE,
    FailureClass.STORE_UNAVAILABLE,
)
"""Not charged, and yet for somebody to look at."""


def attempt_events(before: Ledger | None, after: Ledger) -> tuple[Event, ...]:
    """One event per class of failure among the attempts that ended between two ledgers, and one if the latter had to
    be begun anew."""
    by_failure: dict[str, list[PointRecord]] = {}
    for record in failed_between(before, after):
        by_failure.setdefault(record.attempts.last_failure, []).append(record)
    lost = after.lost if before is None or before.lost != after.lost else None
    news = () if lost is None else (Event("Warning", LEDGER_LOST, lost_in_words(lost)),)
    return news + tuple(
        _event(failure, records) for failure, records in sorted(by_failure.items())
    )


def failed_between(before: Ledger | None, after: Ledger) -> list[PointRecord]:
    """The points whose last attempt ended without a result between two ledgers, as `after` has them."""
    records = () if before is None else before.by_key.values()  # dropped ones return as they were
    known = {record.key: record.attempts.ended for record in records}
    return [
        record
        for record in after.points
        if record.attempts.last_failure and record.attempts.ended > known.get(record.key, 0)
    ]


def lost_in_words(lost: LostLedger) -> str:
    """What is not known any more, and why."""
    name = lost.kept_as.rpartition("/")[2]
    kept = f" (the old one is {name})" if name else ""
    return shortened(
        f"A new ledger was begun at {lost.at}{kept}: earlier spend, failures and decisions are unknown. {lost.problem}",
        MAX_EVENT_MESSAGE,
    )


def _event(failure: str, records: list[PointRecord]) -> Event:
    is_charged = failure not in UNCHARGED
    more = f" and {len(records) - NAMED} more" if len(records) > NAMED else ""
    names = ", ".join(record.name for record in records[:NAMED]) + more
    failures = records[0].attempts.failures
    cause = failures[-1].message if is_charged and failures else records[0].attempts.last_message
    message = f": {cause}" if cause else ""
    return Event(
        "Warning" if is_charged or failure in AWAY else "Normal",
        failure,
        shortened(f"An attempt of {names} ended{message}", MAX_EVENT_MESSAGE),
    )


ENDINGS: Final[Mapping[str, str]] = {
    "PrecisionReached": "the optimum is known to search.precision",
    "RegretNegligible": "the remaining uncertainty about the optimum costs almost nothing",
    "NothingLeft": "no point near the optima is left to train",
    "LearningRateAtEdge": (
        "the best point of the cheaper size is at an edge of the learning rates, far from those of the larger one, and "
        "spec.search.extendGrid.maxPoints allows no more points: move learningRates, or raise it"
    ),
    "BatchSizeAtEdge": (
        "the best point of the cheaper size is at an edge of the batch sizes, far from those of the larger one, and "
        "spec.search.extendGrid.maxPoints allows no more points: move batchSizes, or raise it"
    ),
    "AllDiverged": (
        "every point of the cheapest size diverged, and spec.search.extendGrid.maxPoints allows no smaller learning "
        "rate: lower learningRates, or raise it"
    ),
    "BudgetExhausted": "no further point fits into spec.budget",
}
"""isoloss.search.StopReason in words."""


RUN_ON, ADDED, REPEATED, PRUNED = "run on", "added", "repeated with other seeds", "pruned"


def ended_in_words(ended: str) -> str:
    """Why the search is over, by one of isoloss.search.StopReason."""
    return f"The search is over ({ended}): {ENDINGS.get(ended, ended)}."


def step_ended_in_words(step: SearchStep) -> str:
    """Why the search is over by its last step, which says what it begins with if the budget does not cover that."""
    message = ended_in_words(step.ended)
    if step.first_rung_flops is None:
        return message
    first = first_rung_in_words(step.first_rung_flops, step.first_rung_seconds)
    return f"{message} It begins with {first}: raise spec.budget above that and what is spent."


def first_rung_in_words(flops: float, seconds: float | None) -> str:
    """What a search trains first; `seconds` of accelerators if those are what the budget lacks."""
    hours = "" if seconds is None else f", about {number(seconds / 3600)} accelerator hours"
    return (
        f"the whole grid of the cheapest size, to {FIRST_JUDGED_SHARE:.0%} of its tokens, which takes "
        f"{flops_in_words(flops)} FLOPs{hours}"
    )


def search_events(ledger: Ledger, step: SearchStep | None, previous: str) -> tuple[Event, ...]:
    """One event about a step: its points, named as in the ledger, or that the search is over.

    `previous` is why it ended by the status as observed.
    """
    if step is None or (step.ended and step.ended == previous):
        return ()
    if step.ended:
        message = step_ended_in_words(step)
        return (Event("Normal", Reason.SEARCH_STEP, message),)
    names: dict[tuple[str, int, float], str] = {}
    for r in ledger.points:  # replicates come after the point that they repeat
        names.setdefault((r.proxy, r.batch_size, r.learning_rate), r.name)
    groups: dict[str, list[PointDecision]] = {
        words: [] for words in (RUN_ON, ADDED, REPEATED, PRUNED)
    }
    for decision in step.decisions:
        groups[_group(decision)].append(decision)
    parts = (_part(found, words, names) for words, found in groups.items())
    message = shortened("; ".join(part for part in parts if part), MAX_EVENT_MESSAGE)
    return (Event("Normal", Reason.SEARCH_STEP, message),)


def _group(decision: PointDecision) -> str:
    if decision.action is IntentAction.PRUNE:
        return PRUNED
    if decision.replicate:
        return REPEATED
    return ADDED if decision.added else RUN_ON


def _part(
    decisions: Sequence[PointDecision], words: str, names: dict[tuple[str, int, float], str]
) -> str:
    if not decisions:
        return ""
    flops = sum(decision.flops for decision in decisions)
    verb = "saving" if words == PRUNED else "for"
    more = f" and {len(decisions) - NAMED} more" if len(decisions) > NAMED else ""
    shown = ", ".join(_named(d, names) for d in decisions[:NAMED])
    return f"{len(decisions)} {words}, {verb} {flops_in_words(flops)} FLOPs: {shown}{more}"


def _named(decision: PointDecision, names: dict[tuple[str, int, float], str]) -> str:
    place = decision.size, decision.batch_size, decision.learning_rate
    facts: Iterable[str] = [decision.reason]
    if decision.bound is not None:
        facts = [decision.reason, f"by {decision.bound:.2g} nats", f"risk {decision.risk:.1e}"]
    return f"{names.get(place, decision.size)} ({', '.join(facts)})"
