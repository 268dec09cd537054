"""What happens before the corpus is tokenized: one prepare Job at a time."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Final

from isoloss_contract import layout
from isoloss_contract.ledger import Ledger
from isoloss_contract.reading import Absent, value_of
from isoloss_operator.decide.conditions import Finding
from isoloss_operator.decide.jobs.attempts import after_failure, after_stop, next_attempt
from isoloss_operator.decide.jobs.failures import awaits_result, classify, spec_field
from isoloss_operator.decide.jobs.removal import (
    aside,
    by_attempt,
    deletions,
    expiries,
    lost_deletions,
)
from isoloss_operator.decide.jobs.requests import prepare_request
from isoloss_operator.decide.jobs.single import SingleTask, Wording
from isoloss_operator.decide.known_ledgers import sweep_ledger
from isoloss_operator.decide.observation import ObservedJob, ObservedSweep
from isoloss_operator.decide.plans import SetAside, SweepPlan
from isoloss_operator.decide.policies import policy_of
from isoloss_operator.decide.reasons import Reason
from isoloss_operator.decide.sweep_conditions import ALL_ACCEPTED, Findings, stated
from isoloss_operator.decide.sweep_status import SweepFacts, numbers_of
from isoloss_operator.decide.sweep_view import SweepView
from isoloss_operator.decide.tasks.admit import slots_taken
from isoloss_operator.decide.tasks.findings import request_refused, storage_not_writable
from isoloss_operator.decide.tasks.ledgers import configuration_error, for_spec
from isoloss_operator.planning.points import plan_points, template_digest

WORDS: Final = Wording(
    name="prepare",
    doing="tokenizing the corpus",
    active=Reason.PREPARING_DATA,
    failed=Reason.PREPARATION_FAILED,
    unreadable=Reason.MANIFEST_UNREADABLE,
)


def decide_preparation(view: SweepView) -> SweepPlan:
    """The plan while there is no usable manifest. Raises InvalidSpec where the points cannot be planned."""
    observed, spec = view.observed, view.spec
    known = sweep_ledger(observed)
    ledger = for_spec(known.ledger, observed.generation, view.config.key)
    domains = [domain.name for domain in spec.data.domains]
    ledger = record_preparation(
        ledger,
        observed,
        view.prepare_jobs,
        template=_template(view),
        domains=domains,
    )
    task = _task(view, ledger)
    obsolete = _obsolete(view)
    delete = deletions(obsolete, "the corpus it works on is no longer the spec's")
    delete = (*delete, *lost_deletions(_recorded_jobs(view)))
    starts = task.is_due and _has_room(view)
    create = (
        (prepare_request(observed, spec, next_attempt(ledger.preparation, view.prepare_jobs)),)
        if starts
        else ()
    )
    forgotten = [job for job in observed.stopped if job.key == view.config.key]
    ledger = record_stopped_preparation(ledger, forgotten, observed)
    if spec.suspend:
        stopped = [job for job in view.prepare_jobs if not job.is_finished and not job.deleting]
        ledger = record_stopped_preparation(ledger, stopped, observed)
        delete = (*delete, *deletions(stopped, "the sweep is suspended"))
    points = () if view.unplaced else plan_points(spec)
    folder = layout.sweep_folder(observed.name, observed.uid)
    facts = SweepFacts(view.store_uri, folder, points, ledger, fit=observed.fit)
    findings = _findings(view, task.finding(), starts=starts)
    status, events = stated(observed, findings, numbers_of(observed, observed, facts))
    return SweepPlan(
        status=status,
        ledger=None if ledger == observed.ledger else ledger,
        set_aside=(*known.set_aside, *_manifest_aside(view, ledger)),
        delete=delete,
        expire=expiries(spec, [*obsolete, *_recorded_jobs(view)]),
        create=create,
        events=events,
        requeue_after=_requeue_after(view, task),
    )


def _task(view: SweepView, ledger: Ledger) -> SingleTask:
    error = ledger.configuration_error
    where = f"{error.field}: " if error and error.field else ""
    return SingleTask(
        words=WORDS,
        now=view.observed.now,
        jobs=by_attempt(view.prepare_jobs),
        attempts=ledger.preparation,
        message=ledger.preparation.last_message or "no reason was given",
        template=_template(view),
        retries=view.spec.failure_policy.retries_per_point,
        suspended=view.spec.suspend,
        configuration_error=f"{where}{error.message}" if error else "",
        create_error=view.observed.create_error,
        refusal_may_pass=view.observed.refusal_may_pass,
        problem=view.manifest_problem,
    )


def _template(view: SweepView) -> str:
    return template_digest(view.spec, view.spec.data.pod_template)


def _has_room(view: SweepView) -> bool:
    """Whether no other preparation, not even an obsolete one, holds a slot, and one is free."""
    observed = view.observed
    if any(job.kind == "prepare" for job in view.running):
        return False
    if view.config.key in observed.orphaned_pods:
        return False
    return slots_taken(observed, policy_of(view.spec)) < view.spec.parallelism


def _obsolete(view: SweepView) -> list[ObservedJob]:
    """Jobs on another corpus. Where only the manifest is damaged, points continue training."""
    stored = value_of(view.observed.ledger)
    same_corpus = stored is not None and stored.prepare_key == view.config.key
    wanted = {job.uid for job in (view.own_jobs if same_corpus else view.prepare_jobs)}
    return [job for job in view.observed.jobs if job.uid not in wanted]


def _recorded_jobs(view: SweepView) -> list[ObservedJob]:
    """Prepare Jobs whose outcome the stored ledger knows, not just the one about to be written."""
    stored = value_of(view.observed.ledger)
    ended = stored.preparation.ended if stored else 0
    return [job for job in view.prepare_jobs if job.attempt <= ended]


def _manifest_aside(view: SweepView, ledger: Ledger) -> tuple[SetAside, ...]:
    if not view.manifest_problem:
        return ()
    path = layout.data_manifest(view.config.key)
    suffix = f"unreadable-{ledger.preparation.ended + 1}"
    return (aside(path, suffix, view.manifest_problem),)


def _findings(view: SweepView, data: Finding, *, starts: bool) -> Findings:
    unwritable = storage_not_writable(view.observed)
    accepted = unwritable
    if accepted is None and data.reason in (Reason.BAD_CONFIGURATION, Reason.JOB_REFUSED):
        accepted = Finding.false(data.reason, data.message)
    return Findings(
        ready=unwritable or data,
        accepted=accepted or request_refused(view.observed) or ALL_ACCEPTED,
        data=data,
        changes="The prepare Job is being started." if starts and not unwritable else "",
    )


def _requeue_after(view: SweepView, task: SingleTask) -> float:
    if task.not_before is None or view.running:
        return 30.0
    return min(300.0, task.seconds_until_due)


# --------------------------------------------------------------------------------- its record


def record_preparation(
    ledger: Ledger,
    observed: ObservedSweep,
    jobs: Iterable[ObservedJob],
    *,
    template: str,
    domains: Sequence[str],
) -> Ledger:
    """The ledger with every ended prepare Job in it (there is no manifest)."""
    for job in by_attempt(jobs):
        if not job.is_finished or job.attempt <= ledger.preparation.ended:
            continue
        if isinstance(observed.manifest, Absent) and awaits_result(job, observed.now):
            break
        failure = classify(job)
        field = spec_field(failure.field, domains=domains)
        attempts = after_failure(
            ledger.preparation, job, failure, template=template, now=observed.now
        )
        error = configuration_error(failure, job, observed, "prepare", field)
        ledger = ledger.replace(
            preparation=replace(attempts, last_message=failure.in_words(field, 1000)),
            configuration_error=error or ledger.configuration_error,
        )
    return ledger


def record_stopped_preparation(
    ledger: Ledger, stopped: Iterable[ObservedJob], observed: ObservedSweep
) -> Ledger:
    """The ledger once the operator stops these prepare Jobs."""
    attempts = ledger.preparation
    for job in stopped:
        attempts = after_stop(attempts, job, observed.now)
    return ledger.replace(preparation=attempts)
