"""What happens before the corpus is tokenized: one prepare Job at a time."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from isoloss_contract import layout
from isoloss_contract.ledger import Ledger
from isoloss_contract.reading import Absent, value_of
from isoloss_operator.decide.conditions import Finding
from isoloss_operator.decide.jobs.requests import (
    aside,
    asked,
    by_attempt,
    deletions,
    expiries,
    lost_deletions,
    prepare_request,
    prepare_template,
)
from isoloss_operator.decide.observation import ObservedJob
from isoloss_operator.decide.owners import for_spec
from isoloss_operator.decide.plans import SetAside, SweepPlan
from isoloss_operator.decide.reasons import Reason
from isoloss_operator.decide.sweep_status import (
    ALL_ACCEPTED,
    Findings,
    SweepFacts,
    numbers_of,
    stated,
)
from isoloss_operator.decide.sweep_view import SweepView, known_tasks
from isoloss_operator.decide.tasks.findings import request_refused, storage_not_writable
from isoloss_operator.decide.tasks.single_task import SinglePass, SingleTask, Wording, run
from isoloss_operator.decide.tasks.task_pass import account, slots_taken
from isoloss_operator.planning.points import plan_points

WORDS: Final = Wording(
    name="prepare",
    doing="tokenizing the corpus",
    active=Reason.PREPARING_DATA,
    failed=Reason.PREPARATION_FAILED,
    unreadable=Reason.MANIFEST_UNREADABLE,
)


def decide_preparation(view: SweepView) -> SweepPlan:
    """The plan while there is no usable manifest. Raises InvalidSpec if the points cannot be planned."""
    observed, spec, known = view.observed, view.spec, view.known
    ledger = for_spec(known.ledger, observed, spec)
    prepared = run(_task(view, ledger))
    ledger = ledger.replace(preparation=prepared.attempts, configuration_error=prepared.refused)
    obsolete, recorded = _obsolete(view), _recorded_jobs(view)
    starts = prepared.starts
    facts = _facts(view, ledger)
    findings = _findings(view, prepared.finding(), starts=starts is not None)
    status, events = stated(observed, findings, numbers_of(observed, observed, facts))
    return SweepPlan(
        status=status,
        ledger=None if ledger == observed.ledger else ledger,
        set_aside=(*known.set_aside, *_manifest_aside(view, ledger)),
        delete=(*deletions(obsolete), *lost_deletions(recorded), *prepared.delete),
        expire=expiries(spec, [*obsolete, *recorded]),
        create=() if starts is None else (prepare_request(observed, spec, starts),),
        events=events,
        requeue_after=_requeue_after(view, prepared),
    )


def _facts(view: SweepView, ledger: Ledger) -> SweepFacts:
    """If the corpus was there before, its points have keys, and those that train go on."""
    observed, spec = view.observed, view.spec
    facts = SweepFacts(
        store_uri=view.store_uri,
        folder=layout.sweep_folder(observed.name, observed.uid),
        points=(),
        ledger=ledger,
        fit=observed.fit,
    )
    tasks = known_tasks(view)
    if tasks is None:
        planned = () if view.unplaced else plan_points(spec, continued=view.continued)
        return replace(facts, points=planned)
    return replace(
        facts,
        points=tuple(tasks.points.values()),
        active=tasks.active,
        spent=account(tasks, ledger),
        search=observed.told.search,
        added=len(tasks.points) - spec.points,
    )


def _task(view: SweepView, ledger: Ledger) -> SingleTask:
    observed = view.observed
    return SingleTask(
        words=WORDS,
        world=observed,
        jobs=by_attempt(view.prepare_jobs),
        stopped=tuple(job for job in observed.stopped if job.key == view.config.key),
        attempts=ledger.preparation,
        refused=ledger.configuration_error,
        template=prepare_template(view.spec),
        asked=asked(observed, view.spec, prepare_template(view.spec)),
        domains=[domain.name for domain in view.spec.data.domains],
        retries=view.spec.failure_policy.retries_per_point,
        suspend=view.spec.suspend,
        is_missing=isinstance(observed.manifest, Absent),
        problem=view.manifest_problem,
        has_room=_has_room(view),
    )


def _has_room(view: SweepView) -> bool:
    """Whether no other preparation, not even an obsolete one, holds a slot, and one is free."""
    observed = view.observed
    if any(job.kind == "prepare" for job in view.running):
        return False
    if view.config.key in observed.orphaned_pods:
        return False
    # A Job whose trainer has ended is deleted once that is recorded, which takes the corpus.
    at_work = tuple(job for job in observed.jobs if not job.must_be_deleted)
    taken = slots_taken(replace(observed, jobs=at_work))
    return taken < view.spec.parallelism


def _obsolete(view: SweepView) -> list[ObservedJob]:
    """Jobs on another corpus. If only the manifest is damaged, points continue training."""
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
    return (aside(path, suffix),)


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


def _requeue_after(view: SweepView, prepared: SinglePass) -> float:
    if prepared.not_before is None or view.running:
        return 30.0
    return min(300.0, prepared.seconds_until_due)
