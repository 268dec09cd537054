"""Conditions as metav1 defines them; what those of a sweep say once its points are known: what holds them up, or how far they
are, and of its laws; what to watch out for.

Ready is what `kubectl wait --for=condition=Ready` waits for. Reconciling and Stalled follow kstatus:
Reconciling=True while work is under way, Stalled=True when nothing will happen until a user changes
something.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Final

from isoloss.formatting import are, counted, shortened
from isoloss_contract.ledger import DONE, Ledger, PointRecord, PointState
from isoloss_contract.reading import is_unknown, timestamp
from isoloss_contract.records import DataManifest
from isoloss_operator import api
from isoloss_operator.api import Condition, ScalingSweepSpec
from isoloss_operator.api.statuses import MAX_ENTRIES, MAX_ENTRY
from isoloss_operator.decide import reasons
from isoloss_operator.decide.choose import Chosen, slots_taken
from isoloss_operator.decide.fits import FEWEST_FOR_PROVISIONAL, FitOutcome
from isoloss_operator.decide.jobs import FailureClass
from isoloss_operator.decide.law_status import laws_finding
from isoloss_operator.decide.observation import ObservedJob, ObservedResource, ObservedSweep
from isoloss_operator.decide.plans import Event
from isoloss_operator.decide.reasons import NOT_CHECKED, Finding, Reason
from isoloss_operator.planning.points import repeated_domains

MAX_MESSAGE = 800
"""Bytes of a condition's message: several together must stay far below the status limit."""


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
    ready = previous.get(reasons.READY)
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
    shown = [shortened(message, MAX_ENTRY) for message in messages[:MAX_ENTRIES]]
    if len(messages) > MAX_ENTRIES:
        shown[-1] = f"and {len(messages) - MAX_ENTRIES + 1} more"
    return tuple(shown)


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
        is_bad = stalled or (condition.type == reasons.ACCEPTED and condition.status == "False")
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
            reasons.ACCEPTED: self.accepted,
            reasons.DATA_READY: self.data,
            reasons.PROGRESSING: progressing,
            reasons.FIT_READY: self.fit,
            reasons.READY: ready,
            reasons.SUSPENDED: suspended,
            reasons.STALLED: stalled(ready),
            reasons.RECONCILING: reconciling(ready, self.changes),
        }


def data_prepared(corpus: DataManifest, asked: str, spec: ScalingSweepSpec) -> Finding:
    """DataReady once the corpus is tokenized. `asked` is the key of what the spec asks for."""
    sentences = [f"Corpus ready (digest {corpus.digest[:16]})."]
    if corpus.prepare_key != asked:
        sentences.append(
            f"It is in data/{corpus.prepare_key}/: the files of its sources, or the tokenizer, are not those that "
            f"data/{asked}/ was prepared from."
        )
    sentences += corpus.remarks(spec.data.validation.documents_per_thousand)
    return Finding(Reason.DATA_PREPARED, " ".join(sentences), "True")


def previous_findings(previous: Mapping[str, Condition], generation: int) -> Findings | None:
    """What the conditions said of a sweep that is ready under its present spec; None: it is not."""
    if not was_ready(previous, generation):
        return None
    found = {kind: Finding.of(condition) for kind, condition in previous.items()}
    return Findings(
        ready=found[reasons.READY],
        accepted=found.get(reasons.ACCEPTED, ALL_ACCEPTED),
        data=found.get(reasons.DATA_READY, NOT_CHECKED),
        fit=found.get(reasons.FIT_READY, NOT_CHECKED),
        progressing=found.get(reasons.PROGRESSING),
    )


_ANNOUNCED: Final = (
    reasons.ACCEPTED,
    reasons.DATA_READY,
    reasons.FIT_READY,
    reasons.READY,
    reasons.SUSPENDED,
    reasons.STALLED,
)
"""Conditions whose changes are worth an event; the others change all the time."""
MAX_NAMED: Final = 5


def stated(
    observed: ObservedSweep, findings: Findings, numbers: api.ScalingSweepStatus | None = None
) -> tuple[api.ScalingSweepStatus, tuple[Event, ...]]:
    """The status with its conditions, and the events of those that changed.

    Without `numbers` those of the status stay as they were, but for Jobs that ended.
    """
    numbers = numbers or _previous_numbers(observed.previous_status, observed.jobs)
    previous = observed.previous_conditions
    current = dated(
        findings.by_condition(suspension(observed)),
        previous,
        generation=observed.generation,
        now=observed.now,
    )
    news = changed(current, previous)
    status = numbers.model_copy(
        update={"observed_generation": observed.generation, "conditions": current}
    )
    return status, condition_events(news, _ANNOUNCED, stalled=findings.ready.stalled)


def _previous_numbers(
    previous: api.ScalingSweepStatus, jobs: Iterable[ObservedJob]
) -> api.ScalingSweepStatus:
    """The numbers of the status while nothing is known of the points: Jobs that ended train none of them."""
    names = {job.name for job in jobs if job.kind == "train" and not job.is_finished}
    points, active = previous.points, min(previous.points.active, len(names))
    pending = points.pending + points.active - active
    return previous.model_copy(
        update={
            "points": points.model_copy(update={"active": active, "pending": pending}),
            "active": tuple(point for point in previous.active if point.name in names),
            "estimated_completion": previous.estimated_completion if names else "",
        }
    )


def sweep_findings(chosen: Chosen, left: str) -> Findings:
    """What they say after a pass over the points; `left` is what deleted Jobs left behind."""
    exhausted = _budget_exhausted(chosen) or _least_unaffordable(chosen)
    fit = _fit(chosen, exhausted)
    return Findings(
        ready=_ready(chosen, fit, left),
        accepted=_accepted(chosen),
        data=data_prepared(chosen.tasks.corpus, chosen.ledger.prepare_key, chosen.tasks.spec),
        progressing=_finished(chosen, exhausted),
        fit=fit,
        changes=_changes(chosen, chosen.tasks.observed),
    )


def _accepted(chosen: Chosen) -> Finding:
    observed = chosen.tasks.observed
    # Once no Job is wanted none will be created, which alone would take the refusal of one back.
    of_jobs = None if chosen.is_over else observed.job_refused
    refused = observed.storage_not_writable or _bad_configuration(chosen.ledger) or of_jobs
    refused = refused or observed.write_refused
    return Finding(refused.reason, refused.message) if refused else ALL_ACCEPTED


def _changes(chosen: Chosen, observed: ObservedSweep) -> str:
    changes = []
    if not observed.store_write_error:
        for count, change in ((len(chosen.starts), "started"), (len(chosen.delete), "stopped")):
            changes += [f"{counted(count, 'Job')} {are(count)} being {change}"] if count else []
    if _report_pending(observed, chosen.search.inputs):
        changes.append("the report is being drawn")
    return "; ".join(changes)


def _report_pending(observed: ObservedSweep, inputs: str) -> bool:
    """Whether the final laws are known and their report is still to come."""
    fit, running = observed.fit, observed.fit_running
    if fit is None or fit.report_written or fit.inputs != inputs:
        return False
    is_drawn = running is not None and running.inputs == fit.inputs
    return is_drawn or observed.report_missing


# --------------------------------------------------------------------------------------------- Ready


def _ready(chosen: Chosen, fit: Finding, left: str) -> Finding:
    """The first that speaks, in the order of the state table in operator/README.md. `fit` is what FitReady says, `left` what
    deleted Jobs left behind."""
    observed, spec, ledger = chosen.tasks.observed, chosen.tasks.spec, chosen.ledger
    jobs = [job for job in chosen.tasks.active if not job.is_finished]
    waits = chosen.admission.waits
    return (
        # Final laws are kept all the same: what a ledger learns after them is of none of their points.
        (observed.storage_not_writable if chosen.final_laws is None else None)
        or _bad_configuration(ledger)
        or _too_many_failed(chosen.failed, spec.failure_policy.max_failed_points)
        # No point is running and none will: the laws decide, also while the sweep is suspended.
        or (fit if chosen.is_over else None)
        or (replace(suspension(observed), status="False") if spec.suspend else None)
        or _budget_spent(chosen.budget_spent, len(chosen.tasks.active))
        or observed.job_refused
        or _all_jobs_wait(jobs, waits, starts=bool(chosen.starts))
        or _all_wait_to_retry(chosen, jobs)
        or _searching(chosen)
        or _training(chosen, jobs, waits, left)
    )


def _bad_configuration(ledger: Ledger) -> Finding | None:
    """A pod refused what the spec says; nothing starts until it changes."""
    error = ledger.configuration_error
    if error is None:
        return None
    where = f"{error.field}: " if error.field else ""
    message = f"{where}{error.message} (found by {error.where})"
    return Finding(Reason.BAD_CONFIGURATION, message, stalled=True)


def _too_many_failed(failed: Sequence[PointRecord], allowed: int) -> Finding | None:
    """More points failed for good than the failure policy allows."""
    if len(failed) <= allowed:
        return None
    message = (
        f"{counted(len(failed), 'point')} failed for good, more than the {allowed} of "
        f"failurePolicy.maxFailedPoints: {failed_in_words(failed)}"
    )
    return Finding(Reason.TOO_MANY_FAILED_POINTS, message, stalled=True)


def _budget_spent(spent: str, active: int) -> Finding | None:
    """Running attempts are stopped with a checkpoint: a larger budget continues them."""
    if not spent or not active:
        return None
    message = f"{spent}: {counted(active, 'running point')} {are(active)} stopped."
    return Finding(Reason.BUDGET_EXHAUSTED, message)


def _all_jobs_wait(
    jobs: Sequence[ObservedJob], waits: Sequence[Finding], *, starts: bool
) -> Finding | None:
    """Nothing trains: every Job waits for its queue, a node, an image or a Secret."""
    if not jobs or starts or len(waits) < len(jobs):
        return None
    troubles = _troubles(waits)
    deactivated = [w for w in troubles if w.reason is Reason.WORKLOAD_DEACTIVATED]
    queued = [wait for wait in waits if wait.reason is Reason.QUEUED]
    if troubles and not (queued and len(deactivated) == len(troubles)):
        message = _in_trouble(troubles, len(jobs))
        is_hopeless = len(deactivated) == len(waits)
        return Finding(troubles[0].reason, message, stalled=is_hopeless)
    # Those in the queue are admitted by themselves: the others do not hold the sweep up.
    message = (
        f"{counted(len(queued), 'Job')} {are(len(queued))} waiting for Kueue: {queued[0].message}"
    )
    message += f" {_in_trouble(troubles, len(jobs))}" if troubles else ""
    return Finding(Reason.QUEUED, message)


def _all_wait_to_retry(chosen: Chosen, jobs: Sequence[ObservedJob]) -> Finding | None:
    """How long a point waits that was preempted twice, or crashed: jobs.py."""
    waiting = chosen.admission.waiting
    if not waiting or jobs or chosen.starts:
        return None
    records = chosen.ledger.points
    message = f"{_done_in_words(records)}; {waiting} {are(waiting)} retried after a delay."
    message += "".join(f" {cause}." for cause in node_failures(records))
    return Finding(Reason.WAITING_TO_RETRY, message)


def _searching(chosen: Chosen) -> Finding | None:
    """Every point has reached its target: the search decides in the process of a fit, the next pass follows it."""
    search, fit = chosen.search, chosen.tasks.observed.fit
    if search.request is None:
        return None
    if fit is not None and search.step is None and fit.inputs == search.inputs:
        message = f"The search cannot go on: {fit.error or 'its process gave no answer'}."
        return Finding(Reason.FIT_FAILED, message)
    done = _done_in_words(chosen.ledger.points)
    return Finding(Reason.SEARCHING, f"{done}; the search decides which train next.")


def _training(
    chosen: Chosen, jobs: Sequence[ObservedJob], waits: Sequence[Finding], left: str
) -> Finding:
    """How far the points are; `left` is what deleted Jobs left behind."""
    queued = sum(wait.reason is Reason.QUEUED for wait in waits)
    training = sum(job.is_at_work for job in jobs)
    starting = len(jobs) - len(waits) - training
    if chosen.tasks.spec.queue is None:
        starting += len(chosen.starts)
    else:  # its Jobs are created suspended
        queued += len(chosen.starts)
    message = f"{_done_in_words(chosen.ledger.points)}, {training} {are(training)} training"
    message += f", {starting} {are(starting)} starting" if starting > 0 else ""
    message += f", {queued} {are(queued)} queued." if queued else "."
    if troubles := _troubles(waits):
        message += f" {_in_trouble(troubles, len(jobs))}"
    elif not jobs and not chosen.starts and left:
        message += f" {left}"
    return Finding(Reason.TRAINING, message)


def _done_in_words(records: Sequence[PointRecord]) -> str:
    """Such as "3 of 8 points are done", without a full stop."""
    count = sum(record.state in DONE for record in records)
    return f"{count} of {counted(len(records), 'point')} {are(count)} done"


def failed_in_words(failed: Sequence[PointRecord]) -> str:
    """A few of the failed points by name and class."""
    named = [f"{r.name} ({r.attempts.last_failure or r.state})" for r in failed[:MAX_NAMED]]
    more = f" and {len(failed) - MAX_NAMED} more" if len(failed) > MAX_NAMED else ""
    return ", ".join(named) + more


def node_failures(records: Sequence[PointRecord]) -> tuple[str, ...]:
    """What nodes did to the last attempts of unfinished points, each cause once, no more than MAX_NAMED."""
    causes = (
        record.attempts.last_message
        for record in records
        if record.state is PointState.PENDING
        and record.attempts.last_failure == FailureClass.NODE_FAILURE
    )
    return tuple(dict.fromkeys(causes))[:MAX_NAMED]


def _troubles(waits: Sequence[Finding]) -> list[Finding]:
    return [wait for wait in waits if wait.reason is not Reason.QUEUED]


def _in_trouble(troubles: Sequence[Finding], jobs: int) -> str:
    return f"{len(troubles)} of {counted(jobs, 'Job')} cannot start: {troubles[0].message}"


# ------------------------------------------------------------------------- FitReady, and Progressing


def _fit(chosen: Chosen, exhausted: Finding | None) -> Finding:
    """FitReady: final once the sweep is over, else of what is done so far. `exhausted`: what of the budget was too little."""
    spec, fit, final = chosen.tasks.spec, chosen.tasks.observed.fit, chosen.is_over
    if not spec.fitted_proxies:
        return _nothing_to_fit(chosen, exhausted)
    done = len(chosen.fitted)
    if not done:
        message = _why_no_results(chosen, exhausted) if final else "No point has a result yet."
        return Finding(Reason.NO_RESULTS, message, stalled=final)
    if final and (fit is None or fit.inputs != chosen.search.inputs):
        says = "wait to be fitted" if chosen.tasks.observed.fit_waits else "are being fitted"
        message = f"The laws {says} to {counted(done, 'point')}"
        if chosen.tasks.observed.fit_waits:
            message += ": all fit processes (the setting fits) work for other resources"
        return Finding(Reason.FITTING, f"{message}.")
    found = _fitted(fit, done, final=final)
    if exhausted is None or not found.stalled:
        return found
    return replace(found, message=f"{exhausted.message} {found.message}")


def _fitted(fit: FitOutcome | None, done: int, *, final: bool) -> Finding:
    """Of the newest fit, once `done` points have a result."""
    if fit is None or (fit.laws is None and not fit.points and not fit.error):
        lack = "too few for a first fit" if done < FEWEST_FOR_PROVISIONAL else "not fitted yet"
        message = f"{counted(done, 'point')} {'has' if done == 1 else 'have'} a result: {lack}."
        return Finding(Reason.NO_RESULTS, message)
    if fit.laws is None:
        message = fit.error or "The fit could not run."
        return Finding(Reason.FIT_FAILED, message, stalled=final and not fit.may_pass)
    return laws_finding(fit.laws, fit.points, final=final)


def _nothing_to_fit(chosen: Chosen, exhausted: Finding | None) -> Finding:
    """Of a sweep all of whose points lie around answers."""
    done = sum(record.is_fitted for record in chosen.ledger.points)
    if not chosen.is_over:
        return Finding(
            Reason.NOTHING_TO_FIT, "No laws will be fitted: the points lie around answers."
        )
    if not done:
        return Finding(Reason.NO_RESULTS, _why_no_results(chosen, exhausted), stalled=True)
    names = dict.fromkeys(each.prediction for each in chosen.ledger.neighbourhoods)
    message = (
        f"{counted(done, 'point')} around the answer of HyperparamPrediction {', '.join(names)} "
        f"{'is' if done == 1 else 'are'} done; no laws are fitted to them."
    )
    return Finding(Reason.NOTHING_TO_FIT, message, "True")


def _why_no_results(chosen: Chosen, exhausted: Finding | None) -> str:
    """Once nothing runs and nothing will."""
    if exhausted is not None:
        return f"No point produced a result. {exhausted.message}"
    if chosen.failed:
        return f"No point produced a result: {failed_in_words(chosen.failed)}."
    return "No point produced a result."


def _finished(chosen: Chosen, exhausted: Finding | None) -> Finding | None:
    """Progressing once the sweep is over; None: as Ready."""
    if not chosen.is_over:
        return None
    message = f"All {counted(len(chosen.ledger.points), 'point')} finished."
    return exhausted or Finding(
        Reason.FINISHED, (chosen.search.ended and chosen.search_message) or message
    )


def _budget_exhausted(chosen: Chosen) -> Finding | None:
    """Once nothing runs: the remaining points do not fit into the budget, see `account` for what counts."""
    unaffordable = chosen.admission.unaffordable
    if chosen.budget_spent:
        left = sum(record.state is PointState.PENDING for record in chosen.ledger.points)
        message = f"{chosen.budget_spent}: {counted(left, 'point')} {are(left)} not finished."
        return Finding(Reason.BUDGET_EXHAUSTED, message) if left else None
    if not unaffordable:
        return None
    count, why = len(unaffordable), chosen.admission.budget_message
    message = f"{counted(count, 'point')} {are(count)} not started: {why}. Raise the budget."
    return Finding(Reason.BUDGET_EXHAUSTED, message)


def _least_unaffordable(chosen: Chosen) -> Finding | None:
    """The search ended before it chose any point: less than it must train would tell nothing."""
    step = chosen.search.step
    if step is None or step.least_flops is None:
        return None
    return Finding(Reason.BUDGET_EXHAUSTED, chosen.search_message)


# ----------------------------------------------------------------------------- what to watch out for


def warnings(chosen: Chosen, left: str) -> tuple[str, ...]:
    """One sentence each; `left` is what deleted Jobs left behind."""
    found, tasks, ledger = [], chosen.tasks, chosen.ledger
    observed = tasks.observed
    if chosen.failed:
        failed = failed_in_words(chosen.failed)
        found.append(f"{counted(len(chosen.failed), 'point')} failed for good: {failed}")
    if chosen.budget_spent:
        found.append(chosen.budget_spent)
    elif chosen.admission.unaffordable:
        found.append(chosen.admission.budget_message)
    repeated = repeated_domains(tasks.spec, tasks.corpus)
    if repeated:
        named = ", ".join(f"{name} {times:.1f} times" for name, times in repeated.items())
        found.append(f"The longest runs see some domains more than once: {named}.")
    again = sum(
        r.taken_back > 0 and r.state is PointState.PENDING and not r.trained_for
        for r in ledger.points
    )
    if again:
        found.append(
            f"{counted(again, 'point')} that had finished must be trained again, charged to spec.budget: "
            "the fit found their trajectories missing or damaged."
        )
    if mixed := _mixed_versions(ledger):
        found.append(f"Points were trained with different versions: {mixed}.")
    if lost := [job for job in observed.jobs if job.lost]:
        found.append(f"{counted(len(lost), 'attempt')} given up, such as: {lost[0].message}.")
    found += node_failures(ledger.points)
    if left:
        found.append(left)
    found += _unread(chosen, observed)
    over = slots_taken(observed.jobs, observed.orphaned_pods) - tasks.spec.parallelism
    if over > 0:
        found.append(
            f"{counted(over, 'more Job')} {are(over)} running than spec.parallelism allows; none is started."
        )
    return tuple(found)


def _unread(chosen: Chosen, observed: ObservedSweep) -> list[str]:
    """What the store has yet to say."""
    found, awaited, unknown = [], chosen.unread.awaited, chosen.unread.unknown
    if awaited:
        found.append(
            f"{counted(len(awaited), 'Job')} succeeded without a result in the store yet."
        )
    if unknown:
        reads = (observed.results[key] for key in unknown)
        message = min(read.message for read in reads if is_unknown(read))
        found.append(f"{counted(len(unknown), 'result')} cannot be read for now: {message}")
    return found


def _mixed_versions(ledger: Ledger) -> str:
    """Versions in which the points done differ, such as "torch 2.8.0 and 2.9.0"; empty: none."""
    used = {r.versions for r in ledger.points if r.state in DONE and r.versions is not None}
    sets = [ledger.versions[index] for index in sorted(used)]
    names = dict.fromkeys(name for each in sets for name in each)
    found = {name: sorted({each.get(name, "unknown") for each in sets}) for name in names}
    return ", ".join(f"{n} {' and '.join(each)}" for n, each in found.items() if len(each) > 1)
