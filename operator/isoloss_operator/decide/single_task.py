"""A task that one Job at a time works on: the preparation of a corpus, and the evaluation of a checkpoint, which measures its
initial loss.

A pass over it records what ended, admits the next attempt, and says what the task's condition is: an ordered list of
checks, of which the first that speaks decides.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from isoloss.formatting import loss
from isoloss.laws import Interval
from isoloss_contract import layout, reading
from isoloss_contract.ledger import Attempts, ConfigurationError, Ledger
from isoloss_contract.records import DataManifest, EvaluateConfig, EvaluationResult, content_key
from isoloss_operator import api
from isoloss_operator.api import statuses
from isoloss_operator.decide import jobs
from isoloss_operator.decide.attempts import (
    Costs,
    after_failure,
    after_result,
    after_stop,
    charges,
    running_costs,
    unplanned_recorded,
)
from isoloss_operator.decide.checks import (
    AcceptedSweep,
    corpus_of_ledger,
    known_ledger,
    outdated_fields,
)
from isoloss_operator.decide.choose import account, slots_taken
from isoloss_operator.decide.conditions import ALL_ACCEPTED, Findings, left_behind, stated
from isoloss_operator.decide.law_status import interval_status
from isoloss_operator.decide.observation import ObservedJob, ObservedResource, ObservedSweep
from isoloss_operator.decide.plans import JobRequest, Quarantine, SweepPlan, TaskWrites
from isoloss_operator.decide.prediction_checks import AcceptedPrediction
from isoloss_operator.decide.reasons import DATA_READY, EVALUATED, TRAINER_REASONS, Finding, Reason
from isoloss_operator.decide.status import numbers_of
from isoloss_operator.decide.tasks import reporting_tasks
from isoloss_operator.planning.points import (
    PRECISIONS,
    mixture,
    plan_points,
    prepare_config,
    template_digest,
)

MAX_LAST_MESSAGE: Final = 1000
_INTERRUPTIONS: Final = (
    jobs.FailureClass.INTERRUPTED,
    jobs.FailureClass.POD_VANISHED,
    jobs.FailureClass.NODE_LOST,
)


@dataclass(frozen=True)
class Labels:
    """How the task is called."""

    name: str
    """Name of the Job, as in "The prepare Job"."""
    condition: str
    """Which is True while the result is there."""
    doing: str
    """As in "Job x is tokenizing the corpus"."""
    active: Reason
    """While its Job is running or about to start."""
    failed: Reason
    """Once its retries are used up."""
    unreadable: Reason
    """While what it made is unusable and made again."""


@dataclass(frozen=True)
class SingleTask:
    """What a pass knows at its beginning."""

    labels: Labels
    observed: ObservedResource
    jobs: tuple[ObservedJob, ...]
    """Its own, in order of attempts."""
    stopped: tuple[ObservedJob, ...]
    """Those of them that a suspension stopped and that may be gone."""
    attempts: Attempts
    """As the ledger has them."""
    refused: ConfigurationError | None
    """What the ledger says that its pod refused about the present spec."""
    template: str
    """Digest of the pod template that the next attempt gets."""
    asked: str
    """LABEL_TEMPLATE of that attempt's Job."""
    outdated: Sequence[ObservedJob]
    """Those of `jobs` that wait in vain for what is no longer asked for."""
    domains: Sequence[str]
    """Domains of the corpus, under which a pod names fields of the spec."""
    retries: int
    suspend: bool
    is_missing: bool
    """Whether nothing is stored as its result: an attempt that has just succeeded may have written it."""
    problem: str = ""
    """Why what is stored as its result cannot be used; empty: it can, or nothing is there."""
    bad_data_counts: bool = False
    """Whether bad data use up the retries as well: nothing waits for the result."""
    has_room: bool = True
    """Whether a slot is free for it."""


@dataclass(frozen=True)
class SinglePass:
    """What a pass found out about the task, and what it does."""

    attempts: Attempts
    """With every end that is observed, and those of the Jobs that this pass stops."""
    refused: ConfigurationError | None
    finding: Finding
    """What the task's condition says while there is no result."""
    starts: int | None
    """Number of the attempt that starts now; None: none does."""
    stop: tuple[ObservedJob, ...]
    """Jobs that a suspension stops, and those that wait in vain for what is no longer asked for."""
    is_active: bool
    """Whether a Job may still run a pod."""
    seconds_until_due: float | None
    """Until the next attempt may start, at least 1; None: nothing delays it, or no more."""


def run(task: SingleTask) -> SinglePass:
    """The stages in order: record what ended, stop what is suspended or asked for otherwise, admit the next attempt."""
    attempts, refused = _with_ends(task)
    unfinished = [job for job in task.jobs if not job.is_finished and not job.deleting]
    stop = tuple(job for job in unfinished if task.suspend or job in task.outdated)
    now = task.observed.now
    for job in (*task.stopped, *stop):
        attempts = after_stop(attempts, job, now)
    counted = charges(attempts, task.template)
    starts = jobs.next_attempt(attempts, task.jobs)
    due = jobs.not_before(attempts, task.template, now)
    active = next((job for job in reversed(task.jobs) if job.holds_a_slot), None)
    wait = None if active is None else jobs.waits_for(active)
    # A Job that has just succeeded and whose result is not there yet.
    ended = () if task.problem else task.jobs
    awaited = next((job for job in ended if jobs.awaits_result(job, now)), None)
    # Bad data mostly do not count: the corpus or checkpoint may be fixed where it is stored.
    bad_data = 0 if task.bad_data_counts else attempts.charged.get(jobs.FailureClass.BAD_DATA, 0)
    is_used_up = counted > 0 and counted - bad_data > task.retries
    if active is not None:
        at_work = _at_work(task.labels, active, wait)
    elif awaited is not None:
        message = f"Job {awaited.name} has succeeded; its result is not in the store yet."
        at_work = Finding(task.labels.active, message)
    else:
        at_work = None
    is_held = task.suspend or at_work or refused or is_used_up
    is_due = not is_held and task.has_room and (due is None or due <= now)
    return SinglePass(
        attempts=attempts,
        refused=refused,
        finding=_finding(task, attempts, refused, at_work, is_used_up=is_used_up),
        starts=starts if is_due else None,
        stop=stop,
        is_active=active is not None,
        seconds_until_due=None
        if due is None or due <= now
        else max(1.0, (due - now).total_seconds()),
    )


def _at_work(labels: Labels, job: ObservedJob, wait: Finding | None) -> Finding:
    """Of a Job that may still run a pod; `wait` is what it waits for."""
    if wait is not None:
        return Finding(wait.reason, f"Job {job.name}: {wait.message}")
    return Finding(labels.active, f"Job {job.name} is {labels.doing}.")


def _finding(
    task: SingleTask,
    attempts: Attempts,
    refused: ConfigurationError | None,
    at_work: Finding | None,
    *,
    is_used_up: bool,
) -> Finding:
    """What the task's condition says while there is no result: the first that speaks. `at_work` is what its Job says."""
    labels, failure = task.labels, attempts.last_failure
    message = attempts.last_message or "no reason was given"
    if refused is not None:
        where = f"{refused.field}: " if refused.field else ""
        return Finding(Reason.BAD_CONFIGURATION, f"{where}{refused.message}", stalled=True)
    if task.suspend:
        return Finding(Reason.SUSPENDED, f"spec.suspend is true: the {labels.name} Job waits.")
    if at_work is not None:
        return at_work
    if refusal := task.observed.job_refused:
        return refusal
    if is_used_up:
        message = f"{message} (attempt {attempts.ended}, the last one allowed)"
        return Finding(labels.failed, message, stalled=True)
    if failure == jobs.FailureClass.BAD_DATA:
        # Retried forever, but only in case the data have been replaced: nothing changes by itself.
        code = attempts.last_code
        reason = Reason(code) if code in TRAINER_REASONS else Reason.BAD_DATA
        prefix = f"{code}: " if code and reason is Reason.BAD_DATA else ""
        return Finding(reason, f"{prefix}{message}", stalled=True)
    if not task.has_room:
        waits = "waits for a slot, which other Jobs or their pods still hold."
        message = f"The {labels.name} Job {waits} {left_behind(task.observed)}"
        return Finding(labels.active, message.rstrip())
    if failure:
        return Finding(Reason.WAITING_TO_RETRY, f"The {labels.name} Job {_retried(attempts)}")
    if task.problem:
        message = f"The {labels.name} Job runs again: {task.problem}"
        return Finding(labels.unreadable, message)
    return Finding(labels.active, f"The {labels.name} Job is about to start.")


def _retried(attempts: Attempts) -> str:
    """Why it is, after a failure that is neither final nor of the data."""
    if attempts.last_failure in _INTERRUPTIONS:
        return "was interrupted and is retried."
    if attempts.last_failure == jobs.FailureClass.STORE_UNAVAILABLE:
        return "is retried: the store did not answer it."
    message = attempts.last_message or "no reason was given"
    return f"is retried after attempt {attempts.ended}: {message}"


def _with_ends(task: SingleTask) -> tuple[Attempts, ConfigurationError | None]:
    """The attempts with every Job that ended without a result, and what the last of them refused."""
    attempts, refused, observed = task.attempts, task.refused, task.observed
    # Once the condition has said that the result is there, it can have been deleted since.
    condition = observed.previous_conditions.get(task.labels.condition)
    had_result = condition.since if condition and condition.status == "True" else None
    for job in task.jobs:
        if not job.is_finished or job.attempt <= attempts.ended:
            continue
        if task.is_missing and jobs.awaits_result(job, observed.now):
            break
        failure = jobs.classify(job)
        is_missing = failure.kind is jobs.FailureClass.RESULT_MISSING
        if is_missing and had_result and job.ended is not None and job.ended <= had_result:
            attempts = after_result(attempts, job, observed.now)
            continue
        if is_missing and job.template not in ("", task.asked):
            attempts = after_stop(attempts, job, observed.now)
            continue  # another version's, which may have written something else
        field = jobs.spec_field(failure.field, domains=task.domains)
        ended = after_failure(attempts, job, failure, template=task.template, now=observed.now)
        attempts = replace(ended, last_message=failure.in_words(field, MAX_LAST_MESSAGE))
        where, asked = task.labels.name, task.asked
        refused = (
            jobs.configuration_error(failure, job, observed.generation, where, field, asked)
            or refused
        )
    return attempts, refused


# ------------------------------------------------------------------- the preparation of a sweep's corpus


PREPARING: Final = Labels(
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
    obsolete, recorded = _obsolete(sweep), _recorded_preparations(sweep)
    stopped = _stopped_training(sweep, obsolete)
    task = _preparation(sweep)
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
    findings = _preparation_findings(observed, data, starts=starts is not None)
    numbers = _numbers_meanwhile(sweep, ledger, running)
    status, events = stated(observed, findings, numbers)
    create = tuple[JobRequest, ...]()
    if starts is not None:
        # A sweep that has begun keeps its corpus; the Job of any other sees which corpus is of the sources as they are.
        corpus, key = corpus_of_ledger(spec, ledger), sweep.prepare_key
        config, new_sweep = corpus or prepare_config(spec), "" if corpus else observed.uid
        create = (
            jobs.prepare_request(observed, spec, starts, key, config, task.asked, new_sweep),
        )
    return SweepPlan(
        status=status,
        ledger=None if ledger == observed.ledger else ledger,
        quarantined=quarantined,
        delete=(
            *jobs.deletions(obsolete),
            *jobs.lost_deletions(recorded),
            *jobs.deletions(prepared.stop),
        ),
        expire=jobs.expiries(spec, [*obsolete, *recorded]),
        create=create,
        events=events,
        requeue_after=requeue_after,
    )


def _preparation(sweep: AcceptedSweep) -> SingleTask:
    observed, spec, ledger = sweep.observed, sweep.spec, sweep.known.ledger
    has_room = _has_room(observed, sweep.prepare_key, spec.parallelism)
    template = template_digest(spec, spec.data.pod_template)
    label = jobs.template_label(observed.operator_template, spec, template)
    return SingleTask(
        labels=PREPARING,
        observed=observed,
        jobs=sweep.prepare_jobs,
        stopped=tuple(job for job in observed.stopped if job.key == sweep.prepare_key),
        attempts=ledger.preparation,
        refused=ledger.configuration_error,
        template=template,
        asked=label,
        outdated=[job for job in sweep.prepare_jobs if jobs.is_outdated(job, label)],
        domains=[domain.name for domain in spec.data.domains],
        retries=spec.failure_policy.retries_per_point,
        suspend=spec.suspend,
        is_missing=isinstance(observed.manifest, reading.Absent),
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
    observed, stored = sweep.observed, reading.value_of(sweep.observed.ledger)
    wanted = {job.uid for job in sweep.prepare_jobs}
    if stored is not None and stored.prepare_key == sweep.prepare_key:
        store = jobs.store_label(jobs.store_uri(sweep.spec))
        wanted = {job.uid for job in observed.jobs if job.store == store}
    return [job for job in observed.jobs if job.uid not in wanted]


def _stopped_training(sweep: AcceptedSweep, obsolete: Sequence[ObservedJob]) -> list[ObservedJob]:
    """Train Jobs that a suspension stopped, as they were then, and those that go with the former corpus: they may be gone
    before there is another one, and what they cost with them."""
    stopped, store = sweep.observed.stopped, jobs.store_label(jobs.store_uri(sweep.spec))
    ended = {job.uid: job for job in (*obsolete, *stopped)}.values()
    return [job for job in ended if job.kind == "train" and job.store == store]


def _recorded_preparations(sweep: AcceptedSweep) -> list[ObservedJob]:
    """Those whose outcome the stored ledger knows, not just the one about to be written."""
    stored = reading.value_of(sweep.observed.ledger)
    ended = stored.preparation.ended if stored is not None else 0
    return [job for job in sweep.prepare_jobs if job.attempt <= ended]


def _preparation_findings(observed: ObservedSweep, data: Finding, *, starts: bool) -> Findings:
    accepted = unwritable = observed.storage_not_writable
    if accepted is None and data.reason in (Reason.BAD_CONFIGURATION, Reason.JOB_REFUSED):
        accepted = Finding(data.reason, data.message)
    return Findings(
        ready=unwritable or data,
        accepted=accepted or observed.write_refused or ALL_ACCEPTED,
        data=data,
        changes="The prepare Job is being started." if starts and not unwritable else "",
    )


def _numbers_meanwhile(
    sweep: AcceptedSweep, ledger: Ledger, running: Costs
) -> api.ScalingSweepStatus:
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
        search=None if tasks is None else observed.previous_status.search,
    )


# ----------------------------------------------------------------------- the evaluation of a checkpoint


EVALUATING: Final = Labels(
    name="evaluate",
    condition=EVALUATED,
    doing="measuring the initial loss",
    active=Reason.EVALUATING,
    failed=Reason.EVALUATION_FAILED,
    unreadable=Reason.EVALUATING,
)
EIGHTY_PERCENT: Final = 1.2816
"""Standard errors to either side that hold 80% of a normal distribution."""


@dataclass(frozen=True)
class Measurement:
    """What is known of an initial loss, what to do about it, and what the condition Evaluated says."""

    finding: Finding
    """True once it is known."""
    result: EvaluationResult | None = None
    """The measured loss, once it is there and right; None also if the spec has it."""
    status: api.HyperparamPredictionStatus = field(default_factory=api.HyperparamPredictionStatus)
    """As the status shows it, without an answer."""
    writes: TaskWrites = field(default_factory=TaskWrites)
    requeue_after: float = 60.0


def measure(asked: AcceptedPrediction) -> Measurement:
    """Measure the initial loss, wait or explain."""
    observed, sweep, checkpoint = asked.observed, asked.sweep, asked.spec.checkpoint
    if checkpoint is None:
        return _given(asked.spec.initial_loss or "", sweep, observed.jobs)
    stamp, result = observed.checkpoint_stamp, observed.evaluation
    if asked.is_checkpoint_gone and isinstance(stamp, reading.Unreadable):
        # What was measured is no longer there, and so cannot be measured again.
        message = f"{stamp.message}: put them back, or give spec.initialLoss"
        found = Finding(Reason.NOT_A_CHECKPOINT, message)
        return Measurement(found, writes=TaskWrites(delete=jobs.deletions(observed.jobs)))
    config = evaluate_config(sweep, asked.manifest, checkpoint, stamp)
    store = jobs.store_label(jobs.store_uri(sweep))
    own = jobs.by_attempt(
        job for job in observed.jobs if (job.key, job.store) == (config.key, store)
    )
    # Of evaluations that are no longer asked for, or that write to the store of a former sweep.
    others = [job for job in observed.jobs if job not in own]
    if isinstance(result, EvaluationResult):
        if result.key == config.key:
            return _measured(result, sweep, own, others)
        result = reading.Unreadable(f"it is the result of {result.key}")
    if reading.is_unknown(observed.ledger):
        # Nothing may start: what failed for good or is in the ledger would be tried again.
        is_newer = isinstance(observed.ledger, reading.Newer)
        reason = Reason.LEDGER_NEWER if is_newer else Reason.STORAGE_UNREACHABLE
        unknown = Finding(reason, observed.ledger.message)
        return Measurement(unknown, writes=TaskWrites(delete=jobs.deletions(others)))
    return _under_way(asked, checkpoint, config, result, own, others)


def evaluate_config(
    sweep: api.ScalingSweepSpec,
    manifest: DataManifest,
    checkpoint: api.Checkpoint,
    stamp: reading.Read[str],
) -> EvaluateConfig:
    """What determines the initial loss: the sweep's own validation sequences, weighted as there.

    `stamp` is of the checkpoint's files; without it their URI stands for them.
    """
    return EvaluateConfig(
        data_digest=manifest.digest,
        mixture=mixture(sweep),
        checkpoint=checkpoint.uri.rstrip("/"),
        checkpoint_stamp=reading.value_of(stamp) or "",
        sequence_length=sweep.data.sequence_length,
        sequences_per_domain=sweep.data.validation.sequences_per_domain,
        precision=PRECISIONS[sweep.training.precision],
    )


def _given(
    initial_loss: str, sweep: api.ScalingSweepSpec, former: Sequence[ObservedJob]
) -> Measurement:
    """Nothing to measure: the spec has the initial loss, which comes without an interval."""
    message = f"spec.initialLoss {initial_loss} is used as given; nothing is measured."
    return Measurement(
        Finding(Reason.INITIAL_LOSS_GIVEN, message, "True"),
        status=api.HyperparamPredictionStatus(
            initial_loss=statuses.IntervalStatus(value=initial_loss)
        ),
        writes=TaskWrites(delete=jobs.deletions(former), expire=jobs.expiries(sweep, former)),
    )


def _measured(
    result: EvaluationResult,
    sweep: api.ScalingSweepSpec,
    own: Sequence[ObservedJob],
    others: Sequence[ObservedJob],
) -> Measurement:
    """There is nothing left to measure."""
    message = f"Initial loss {result.loss:.4f} over {result.evaluated_tokens} tokens."
    margin = EIGHTY_PERCENT * result.loss_standard_error
    interval = Interval(result.loss, result.loss - margin, result.loss + margin)
    domains = {name: loss(domain.loss) for name, domain in sorted(result.domains.items())}
    return Measurement(
        Finding(Reason.EVALUATED, message, "True"),
        result,
        api.HyperparamPredictionStatus(
            initial_loss=interval_status(interval, loss),
            domain_losses=domains or None,
            evaluation_uri=f"{jobs.store_uri(sweep)}/{layout.evaluation_result(result.key)}",
        ),
        writes=TaskWrites(
            delete=(*jobs.deletions(others), *jobs.lost_deletions(own)),
            expire=jobs.expiries(sweep, [*own, *others]),
        ),
    )


def _under_way(
    asked: AcceptedPrediction,
    checkpoint: api.Checkpoint,
    config: EvaluateConfig,
    stored: reading.Read[EvaluationResult],
    own: tuple[ObservedJob, ...],
    others: Sequence[ObservedJob],
) -> Measurement:
    """What follows from a pass over the Job that measures; `stored` is no result."""
    observed, sweep = asked.observed, asked.sweep
    template = _ledger_template(observed.operator_template, sweep)
    path = layout.ledger_in(layout.prediction_folder(observed.name, observed.uid))
    known = known_ledger(observed, observed.ledger, path, template, has_spent=False)
    max_failed = sweep.failure_policy.max_failed_points
    changes = outdated_fields(known.ledger, observed.generation, template, max_failed)
    before = known.ledger.replace(**changes) if changes else known.ledger
    task = _evaluation(asked, checkpoint, config, stored, own, before)
    measuring = run(task)
    ledger = _with_attempts(before, measuring, config)
    # Only the Jobs of later attempts tell how those ended.
    ended = _attempts(known.ledger, config).ended
    recorded = [job for job in own if job.attempt <= ended]
    quarantined = known.quarantined if ledger != known.ledger else ()
    if isinstance(stored, reading.Unreadable) and not measuring.is_active:
        suffix = f"unreadable-{measuring.attempts.ended + 1}"
        quarantined += (Quarantine(layout.evaluation_result(config.key), suffix),)
    finding, starts = measuring.finding, measuring.starts
    if asked.removed_data and not measuring.is_active:
        message = f"{asked.removed_data}, or give spec.initialLoss."
        finding, starts = Finding(Reason.DATA_REMOVED, message, stalled=True), None
    create = tuple[JobRequest, ...]()
    if starts is not None:
        create = (
            jobs.evaluate_request(
                observed, sweep, checkpoint, config, starts, asked.manifest, task.asked
            ),
        )
    writes = TaskWrites(
        ledger=ledger if ledger != known.ledger else None,
        quarantined=quarantined,
        delete=(
            *jobs.deletions(others),
            *jobs.lost_deletions(recorded),
            *jobs.deletions(measuring.stop),
        ),
        expire=jobs.expiries(sweep, [*others, *recorded]),
        create=create,
    )
    return Measurement(
        finding,
        writes=writes,
        requeue_after=30.0
        if measuring.is_active
        else max(30.0, measuring.seconds_until_due or 0.0),
    )


def _evaluation(
    asked: AcceptedPrediction,
    checkpoint: api.Checkpoint,
    config: EvaluateConfig,
    stored: reading.Read[EvaluationResult],
    own: tuple[ObservedJob, ...],
    ledger: Ledger,
) -> SingleTask:
    """What is to be done by one Job at a time."""
    observed, sweep = asked.observed, asked.sweep
    template = template_digest(sweep, checkpoint.pod_template, secret=checkpoint.secret_name)
    store = jobs.store_label(jobs.store_uri(sweep))
    stopped = (job for job in observed.stopped if (job.key, job.store) == (config.key, store))
    label = jobs.template_label(observed.operator_template, sweep, template)
    return SingleTask(
        labels=EVALUATING,
        observed=observed,
        jobs=own,
        stopped=tuple(stopped),
        attempts=_attempts(ledger, config),
        # What it refused about its configuration itself: that of other files is another one.
        refused=_own_error(ledger) if ledger.evaluate_key == config.key else None,
        # Changes with all that a person can change about the pod: charges under another one start at zero.
        template=f"{observed.generation}-{template}",
        asked=label,
        outdated=[job for job in own if jobs.is_outdated(job, label)],
        domains=list(config.mixture),
        retries=sweep.failure_policy.retries_per_point,
        suspend=asked.spec.suspend,
        is_missing=isinstance(stored, reading.Absent),
        problem=stored.message if isinstance(stored, reading.Unreadable) else "",
        bad_data_counts=asked.question.is_answered,
    )


def _ledger_template(operator_template: str, sweep: api.ScalingSweepSpec) -> str:
    """Ledger.template as it is now: of the operator's configuration, and of what a prediction has of its sweep."""
    training = sweep.training.model_dump(mode="json", exclude_defaults=True)
    return content_key([operator_template, template_digest(sweep), training])[:16]


def _attempts(ledger: Ledger, config: EvaluateConfig) -> Attempts:
    return ledger.evaluation if ledger.evaluate_key == config.key else Attempts()


def _with_attempts(ledger: Ledger, measured: SinglePass, config: EvaluateConfig) -> Ledger:
    """Unchanged as long as no attempt has ended: a checkpoint that is measured at once needs no ledger."""
    if measured.attempts == _attempts(ledger, config):
        return ledger
    others = None if _own_error(ledger) else ledger.configuration_error
    return ledger.replace(
        evaluate_key=config.key,
        evaluation=measured.attempts,
        configuration_error=measured.refused or others,
    )


def _own_error(ledger: Ledger) -> ConfigurationError | None:
    error = ledger.configuration_error
    return error if error is not None and error.where == EVALUATING.name else None
