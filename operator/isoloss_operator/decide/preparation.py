"""What happens before the corpus is tokenized: one prepare Job at a time."""

from collections.abc import Sequence
from typing import Final

from isoloss_contract import layout
from isoloss_contract.ledger import Ledger
from isoloss_contract.reading import Absent, value_of
from isoloss_operator.api import ScalingSweepStatus
from isoloss_operator.decide import requests
from isoloss_operator.decide.attempts import Costs, running_costs, unplanned_recorded
from isoloss_operator.decide.checks import AcceptedSweep, corpus_of_ledger
from isoloss_operator.decide.choose import account, slots_taken
from isoloss_operator.decide.conditions import ALL_ACCEPTED, DATA_READY, Findings
from isoloss_operator.decide.findings import stated
from isoloss_operator.decide.observation import ObservedJob, ObservedSweep
from isoloss_operator.decide.plans import JobRequest, Quarantine, SweepPlan
from isoloss_operator.decide.reasons import Finding, Reason
from isoloss_operator.decide.single_task import Labels, SingleTask, run
from isoloss_operator.decide.status import numbers_of
from isoloss_operator.decide.tasks import TaskSet, plan_tasks
from isoloss_operator.planning.points import plan_points, prepare_config, template_digest

LABELS: Final = Labels(
    name="prepare",
    condition=DATA_READY,
    doing="tokenizing the corpus",
    active=Reason.PREPARING_DATA,
    failed=Reason.PREPARATION_FAILED,
    unreadable=Reason.MANIFEST_UNREADABLE,
)


def decide_preparation(sweep: AcceptedSweep) -> SweepPlan:
    """The plan while there is no usable manifest. Raises InvalidSpec if the points cannot be planned."""
    observed, spec, known = sweep.observed, sweep.spec, sweep.known
    obsolete, recorded = _obsolete(sweep), _recorded(sweep.prepare_jobs, value_of(observed.ledger))
    stopped = _stopped_training(sweep, obsolete)
    task = _task(sweep)
    prepared = run(task)
    data, starts = prepared.finding, prepared.starts
    ledger = unplanned_recorded(known.ledger, stopped, observed)
    running = running_costs(observed, ledger)
    ledger = ledger.replace(preparation=prepared.attempts, configuration_error=prepared.refused)
    quarantined = known.quarantined
    if sweep.manifest_problem:
        suffix = f"unreadable-{prepared.attempts.ended + 1}"
        path = layout.data_manifest(observed.corpus_key or sweep.prepare_key)
        quarantined = (*quarantined, Quarantine(path, suffix))
    requeue_after = 30.0
    if prepared.seconds_until_due is not None and not any(
        job.holds_a_slot for job in observed.jobs
    ):
        requeue_after = min(300.0, prepared.seconds_until_due)
    findings = _findings(observed, data, starts=starts is not None)
    numbers = _numbers(sweep, ledger, running)
    status, events = stated(observed, findings, numbers)
    create = tuple[JobRequest, ...]()
    if starts is not None:
        # A sweep that has begun keeps its corpus; the Job of any other sees which corpus is of the sources as they are.
        corpus, key = corpus_of_ledger(spec, ledger), sweep.prepare_key
        config, new_sweep = corpus or prepare_config(spec), "" if corpus else observed.uid
        create = (
            requests.prepare_request(observed, spec, starts, key, config, task.asked, new_sweep),
        )
    return SweepPlan(
        status=status,
        ledger=None if ledger == observed.ledger else ledger,
        quarantined=quarantined,
        delete=(
            *requests.deletions(obsolete),
            *requests.lost_deletions(recorded),
            *requests.deletions(prepared.stop),
        ),
        expire=requests.expiries(spec, [*obsolete, *recorded]),
        create=create,
        events=events,
        requeue_after=requeue_after,
    )


def _task(sweep: AcceptedSweep) -> SingleTask:
    observed, spec, ledger = sweep.observed, sweep.spec, sweep.known.ledger
    has_room = _has_room(observed, sweep.prepare_key, spec.parallelism)
    template = template_digest(spec, spec.data.pod_template)
    label = requests.template_label(observed.operator_template, spec, template)
    return SingleTask(
        labels=LABELS,
        observed=observed,
        jobs=sweep.prepare_jobs,
        stopped=tuple(job for job in observed.stopped if job.key == sweep.prepare_key),
        attempts=ledger.preparation,
        refused=ledger.configuration_error,
        template=template,
        asked=label,
        outdated=[job for job in sweep.prepare_jobs if requests.is_outdated(job, label)],
        domains=[domain.name for domain in spec.data.domains],
        retries=spec.failure_policy.retries_per_point,
        suspend=spec.suspend,
        is_missing=isinstance(observed.manifest, Absent),
        problem=sweep.manifest_problem,
        has_room=has_room,
    )


def _has_room(observed: ObservedSweep, key: str, parallelism: int) -> bool:
    """Whether no other preparation, not even an obsolete one, holds a slot, and one is free."""
    if key in observed.orphaned_pods:
        return False
    if any(job.kind == "prepare" and job.holds_a_slot for job in observed.jobs):
        return False
    # A Job whose trainer has ended is deleted once that is recorded, which takes the corpus.
    at_work = (job for job in observed.jobs if not job.must_be_deleted)
    return slots_taken(at_work, observed.orphaned_pods) < parallelism


def _obsolete(sweep: AcceptedSweep) -> list[ObservedJob]:
    """Jobs on another corpus. If only the manifest is damaged, points continue training."""
    observed, stored = sweep.observed, value_of(sweep.observed.ledger)
    wanted = {job.uid for job in sweep.prepare_jobs}
    if stored is not None and stored.prepare_key == sweep.prepare_key:
        store = requests.store_label(requests.store_uri(sweep.spec))
        wanted = {job.uid for job in observed.jobs if job.store == store}
    return [job for job in observed.jobs if job.uid not in wanted]


def _stopped_training(sweep: AcceptedSweep, obsolete: Sequence[ObservedJob]) -> list[ObservedJob]:
    """Train Jobs that a suspension stopped, as they were then, and those that go with the former corpus: they may be gone
    before there is another one, and what they cost with them."""
    stopped, store = sweep.observed.stopped, requests.store_label(requests.store_uri(sweep.spec))
    jobs = {job.uid: job for job in (*obsolete, *stopped)}.values()
    return [job for job in jobs if job.kind == "train" and job.store == store]


def _recorded(jobs: tuple[ObservedJob, ...], stored: Ledger | None) -> list[ObservedJob]:
    """Those whose outcome the stored ledger knows, not just the one about to be written."""
    ended = stored.preparation.ended if stored is not None else 0
    return [job for job in jobs if job.attempt <= ended]


def _findings(observed: ObservedSweep, data: Finding, *, starts: bool) -> Findings:
    accepted = unwritable = observed.storage_not_writable
    if accepted is None and data.reason in (Reason.BAD_CONFIGURATION, Reason.JOB_REFUSED):
        accepted = Finding(data.reason, data.message)
    return Findings(
        ready=unwritable or data,
        accepted=accepted or observed.write_refused or ALL_ACCEPTED,
        data=data,
        changes="The prepare Job is being started." if starts and not unwritable else "",
    )


def reporting_tasks(sweep: AcceptedSweep) -> TaskSet | None:
    """The points as the ledger knows them, for the numbers of a sweep whose corpus is prepared again; None: it has no
    corpus, or the spec asks for other points by now.

    Raises InvalidSpec if the corpus does not fit the spec.
    """
    ledger = sweep.known.ledger
    if sweep.unplaced or ledger.corpus is None:
        return None
    tasks = plan_tasks(sweep, ledger.corpus)
    return tasks if tasks.points.keys() == {record.key for record in ledger.points} else None


def _numbers(sweep: AcceptedSweep, ledger: Ledger, running: Costs) -> ScalingSweepStatus:
    """If the corpus was there before, its points have keys, and those that train go on."""
    observed, spec, tasks = sweep.observed, sweep.spec, reporting_tasks(sweep)
    if tasks is not None:
        points = tuple(tasks.points.values())
    else:
        points = () if sweep.unplaced else plan_points(spec, continued=sweep.continued)
    spent = account(ledger, running, tasks)
    return numbers_of(
        observed,
        points,
        ledger,
        spent,
        active=() if tasks is None else tasks.active,
        added=0 if tasks is None else len(points) - spec.points,
        search=None if tasks is None else observed.previous_status.search,
    )
