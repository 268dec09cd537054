"""Whether a prediction's answer holds: its probes trained as the points of a sweep, then judged. Pure.

The answer itself, Ready and what is published do not depend on anything here.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from isoloss.laws import Laws, Prediction, PredictionQuery
from isoloss.progress.resources import is_verdict
from isoloss.validation import Place, refuse_share
from isoloss_contract.reading import is_unknown, problem_of, value_of
from isoloss_operator.api import (
    AnswerValidation,
    Checkpoint,
    RefinedStatus,
    ScalingSweepSpec,
    ValidationStatus,
)
from isoloss_operator.decide.conditions import VALIDATED, Finding
from isoloss_operator.decide.evaluation import ledger_unknown
from isoloss_operator.decide.events import attempt_events
from isoloss_operator.decide.fits import FitOutcome
from isoloss_operator.decide.jobs.requests import expiries
from isoloss_operator.decide.observation import ObservedJob, ObservedPrediction
from isoloss_operator.decide.owners import (
    owned_tasks,
    prediction_ledger,
    task_writes,
)
from isoloss_operator.decide.plans import Event, TaskWrites
from isoloss_operator.decide.prediction_status import (
    is_of_present_spec,
    question,
    target_length,
)
from isoloss_operator.decide.prediction_view import PredictionView, unanswered
from isoloss_operator.decide.reasons import Reason
from isoloss_operator.decide.suspension import stop, suspension
from isoloss_operator.decide.tasks.findings import (
    all_jobs_wait,
    all_points_wait_to_retry,
    budget_exhausted,
    budget_spent,
    job_refused,
    ledger_not_taken,
    suspended,
    too_many_failed_points,
    training,
)
from isoloss_operator.decide.tasks.task_pass import TaskPass, has_unrecorded, next_look, run
from isoloss_operator.decide.tasks.task_set import TaskSet
from isoloss_operator.decide.validation_status import (
    Verdict,
    judge,
    numbers_only,
    refined_status,
    validation_status,
    without_jobs,
)
from isoloss_operator.planning.points import PlannedPoint
from isoloss_operator.planning.probes import (
    ANSWERS_PAID,
    NoProbes,
    default_budget,
    plan_probes,
    probe_model,
    probe_places,
    probe_sweep,
    probe_tokens,
    tokens_of_share,
)
from isoloss_operator.planning.specs import InvalidSpec


@dataclass(frozen=True)
class ValidationStep:
    """What to do about the probes now, and what the status says of them."""

    finding: Finding | None = None
    """The condition Validated; None: there is none."""
    status: ValidationStatus | None = None
    refined: RefinedStatus | None = None
    writes: TaskWrites | None = None
    stopped: tuple[ObservedJob, ...] = ()
    """See PredictionPlan.stopped."""
    events: tuple[Event, ...] = ()
    requeue_after: float = math.inf


@dataclass(frozen=True)
class PlannedProbes:
    """The probes of the present answer."""

    spec: ScalingSweepSpec
    """Spec of the sweep that trains them."""
    points: tuple[PlannedPoint, ...]
    query: PredictionQuery
    fit: FitOutcome
    flops_per_token: float
    """Counted as the budget is."""
    most_tokens: float
    """At which probes are compared, if they have seen more: those of the budget."""


NOT_NOW: Final = Finding.unknown(
    Reason.ANSWER_AWAITED,
    "No probe can be started or judged now: the other conditions say why.",
)


def validation_step(observed: ObservedPrediction, view: PredictionView | None) -> ValidationStep:
    """Train the probes of the answer, judge them, or say what they wait for.

    `view` is None if nothing is known of the sweep or its store.
    """
    unknown = ledger_unknown(observed)
    if view is None or (unknown is not None and view.spec.validation is None):
        return _without_view(observed)
    if unknown is not None:
        return _held_up(observed, Finding.unknown(unknown.reason, unknown.message))
    courses = observed.probes.courses.values()
    if away := next((course for course in courses if is_unknown(course)), None):
        return _held_up(observed, Finding.unknown(Reason.STORAGE_UNREACHABLE, away.message))
    if view.spec.validation is None:
        return _stopped(view) if observed.train_jobs else ValidationStep()
    planned = planned_probes(view)
    if isinstance(planned, Finding):
        return _without_probes(view, planned)
    return _trained(run(probe_tasks(view, planned)), planned, view)


# ----------------------------------------------------------------------------------- without probes


def _without_view(observed: ObservedPrediction) -> ValidationStep:
    """What was known stands, and probes go on by themselves, but for those that nobody wants or can judge any more.

    Also with a view whose ledger is not known.
    """
    spec, sweep = observed.spec, observed.sweep
    if isinstance(spec, InvalidSpec):
        return _as_it_was(observed)
    if spec.validation is None:
        step = ValidationStep()
    elif sweep is None:
        message = f"There is no ScalingSweep {spec.sweep_ref.name} in this namespace: no probe can be judged."
        step = _held_up(observed, Finding.unknown(Reason.SWEEP_NOT_FOUND, message))
    elif isinstance(sweep.spec, InvalidSpec) or observed.storage_refusal or unanswered(observed):
        return _as_it_was(observed)
    elif observed.told.sweep_uid == sweep.uid:
        return _as_it_was(observed)  # its corpus may be put back
    else:
        message = f"ScalingSweep {sweep.name} has no corpus yet: no probe can be judged."
        step = _held_up(observed, Finding.unknown(Reason.ANSWER_AWAITED, message))
    delete, stopped = stop(observed.train_jobs, observed.stopped, observed.now)
    expire = expiries(None, observed.jobs) if sweep is None else ()
    writes = TaskWrites(delete=delete, expire=expire)
    return replace(step, status=without_jobs(step.status, 0), writes=writes, stopped=stopped)


def _as_it_was(observed: ObservedPrediction) -> ValidationStep:
    """What was known stands, also of probes that train."""
    goes_on = bool(_unfinished(observed)) and not observed.spec.suspend
    return _told(observed, NOT_NOW, goes_on=goes_on)


def _held_up(observed: ObservedPrediction, finding: Finding) -> ValidationStep:
    """The store gives out too little to go on: a verdict stands, else `finding` says so."""
    return replace(_told(observed, finding), requeue_after=30.0)


def _told(
    observed: ObservedPrediction, finding: Finding, *, goes_on: bool = False
) -> ValidationStep:
    """What the status has told of the present question, if that is a verdict or `goes_on`; else `finding`, or that the
    prediction is suspended."""
    spec, before = observed.spec, observed.told
    said = observed.said.get(VALIDATED)
    if (said if isinstance(spec, InvalidSpec) else spec.validation) is None:
        return ValidationStep()
    if spec.suspend:
        found = suspension(observed.train_jobs, observed, suspend=True)
        finding = Finding.unknown(found.reason, found.message)
    told = without_jobs(before.validation, _unfinished(observed))
    if not is_of_present_spec(observed, judged=True):
        return ValidationStep(finding, numbers_only(told))
    if said is not None and (goes_on or is_verdict(said.status, said.reason)):
        finding = Finding.of(said)
    return ValidationStep(finding, told, before.refined)


def _unfinished(observed: ObservedPrediction) -> int:
    """Jobs of probes that may still train."""
    return sum(not job.is_finished for job in observed.train_jobs)


def _without_probes(view: PredictionView, finding: Finding) -> ValidationStep:
    """No probes can be planned. Running ones may fit the next answer and go on, unless they are not to, or something
    else is asked by now, such as another checkpoint."""
    observed = view.observed
    if finding.reason is Reason.STORAGE_UNREACHABLE:
        return _held_up(observed, finding)
    stops = view.spec.suspend or finding.reason is Reason.PROBES_NOT_POSSIBLE
    stops = stops or not is_of_present_spec(observed)
    step = _stopped(view) if stops else ValidationStep(requeue_after=60.0)
    known = _as_it_was(observed)
    if view.keeps_answer and finding.reason is Reason.ANSWER_AWAITED:
        return replace(step, finding=known.finding, status=known.status, refined=known.refined)
    return replace(step, finding=finding, status=numbers_only(known.status))


def _stopped(view: PredictionView) -> ValidationStep:
    """None of the Jobs is wanted; what they cost stays in the ledger."""
    if not view.observed.train_jobs:
        return ValidationStep(requeue_after=60.0)
    return _written(run(unplanned_tasks(view)), view.sweep)


# ------------------------------------------------------------------------------------- the probes


def planned_probes(view: PredictionView) -> PlannedProbes | Finding:
    """The probes of the present answer, or why there are none."""
    validation, checkpoint, result = view.spec.validation, view.spec.checkpoint, view.result
    if validation is None or checkpoint is None or result is None:
        return Finding.unknown(Reason.ANSWER_AWAITED, "The checkpoint is not measured yet.")
    answer, fit = view.prediction_in_sweep_sequences, view.fit
    if isinstance(answer, Finding) or isinstance(fit, Finding):
        message = "Probes are trained around the answer of final laws: there is none now."
        return Finding.unknown(Reason.ANSWER_AWAITED, message)
    config = view.observed.probes.config
    if is_unknown(config):
        return Finding.unknown(Reason.STORAGE_UNREACHABLE, config.message)
    try:
        return _planned(view, fit, answer, validation, checkpoint)
    except NoProbes as error:
        return Finding.unknown(Reason.PROBES_NOT_POSSIBLE, str(error))


def _planned(
    view: PredictionView,
    fit: FitOutcome,
    answer: Prediction,
    validation: AnswerValidation,
    checkpoint: Checkpoint,
) -> PlannedProbes:
    """Raises NoProbes."""
    laws, result = fit.laws, view.result
    assert laws is not None  # they gave the answer
    assert result is not None
    if not result.same_tokenizer:
        raise NoProbes(
            "spec.checkpoint: its tokenizer differs from the sweep's: it cannot be trained on the sweep's corpus"
        )
    query = question(laws, view.spec, view.sweep, result)
    assert answer.cpt_flops is not None
    per_token = query.flops_per_token or (
        laws.surface.flops_per_token_per_param * result.parameters.active
    )
    places = probe_places(
        answer.learning_rate.value,
        answer.batch_size.value,
        float(validation.factor),
        multiple_of=_multiple(view, query),
        raw_batch_size=answer.batch_size_raw,
        known=_known_places(view.observed),
    )
    if query.batch_size is not None:
        # Which batch size is best is not asked: its probes would tell nothing of the learning rate at the given one.
        places = tuple(place for place in places if place.batch_size == places[0].batch_size)
    largest_batch = max(place.batch_size for place in places)
    tokens = probe_tokens(
        answer.cpt_flops / per_token,
        float(validation.tokens_share),
        largest_batch,
        view.sweep.data.sequence_length,
    )
    model = probe_model(_config(view, checkpoint), result.parameters)
    spec = probe_sweep(view.sweep, validation, model, tokens, suspend=view.spec.suspend)
    stamp = value_of(view.observed.checkpoint_stamp) or ""
    points = plan_probes(spec, view.manifest, places, checkpoint, stamp)
    _check_length(view, laws, query, answer.cpt_flops, per_token, largest_batch)
    if validation.budget is None:
        budget = default_budget(point.flops for point in points)
        spec = spec.model_copy(update={"budget": budget})
    most = max(float(tokens), answer.cpt_flops / per_token)
    return PlannedProbes(spec, points, query, fit, flops_per_token=per_token, most_tokens=most)


def _check_length(
    view: PredictionView,
    laws: Laws,
    query: PredictionQuery,
    budget_flops: float,
    per_token: float,
    largest_batch: int,
) -> None:
    """Raises NoProbes for probes that could not be judged once they are trained."""
    validation, length = view.spec.validation, view.sweep.data.sequence_length
    assert validation is not None

    def flops_of(share: float) -> float:
        tokens = tokens_of_share(budget_flops / per_token, share, largest_batch, length)
        return min(tokens * per_token, budget_flops)

    short = refuse_share(laws, query, float(validation.tokens_share), flops_of)
    if short is not None:
        enough = "" if short.smallest is None else f" Set it to {short.smallest:g} or more."
        raise NoProbes(f"spec.validation.tokensShare: {short.message}{enough}")


def _multiple(view: PredictionView, query: PredictionQuery) -> int:
    """What batch sizes of probes are multiples of, in sequences of the sweep: 1 for a target with others.

    A batch size that is given is a multiple of itself alone: probes at a rounded one would be at another.
    """
    if query.batch_size is not None:
        return max(round(query.batch_size), 1)
    length = target_length(view.spec, view.sweep)
    return view.spec.batch_size_multiple_of if length == view.sweep.data.sequence_length else 1


def _known_places(observed: ObservedPrediction) -> tuple[Place, ...]:
    """Where probes were or are to be trained: the last answer's first, the newest of former ones next."""
    ledger = value_of(observed.probes.ledger)
    if ledger is None or ledger.uid != observed.uid:
        return ()
    records = (*ledger.points, *reversed(ledger.former))
    places = (Place(record.learning_rate, record.batch_size) for record in records)
    return tuple(dict.fromkeys(places))


def _config(view: PredictionView, checkpoint: Checkpoint) -> dict[str, object]:
    """Raises NoProbes."""
    config = value_of(view.observed.probes.config)
    if config is None:
        problem = problem_of(view.observed.probes.config)
        raise NoProbes(problem or f"{checkpoint.uri}/config.json: not found")
    return dict(config)


def probe_tasks(view: PredictionView, planned: PlannedProbes) -> TaskSet:
    """The planned probes."""
    return _tasks_of(view, planned.spec, planned.points)


def unplanned_tasks(view: PredictionView) -> TaskSet:
    """The same if no probes are planned."""
    return _tasks_of(view, view.sweep, ())


def _tasks_of(
    view: PredictionView, spec: ScalingSweepSpec, points: Sequence[PlannedPoint]
) -> TaskSet:
    observed, stored = view.observed, view.observed.probes
    written = view.step.writes.ledger
    if written is not None:  # before anything is done about the probes
        stored = replace(stored, ledger=written)
    world, known = replace(observed, jobs=observed.train_jobs), view.step.known
    known = known or prediction_ledger(observed)
    return owned_tasks(world, stored, known, spec, view.manifest, points)


def _trained(tasks: TaskPass, planned: PlannedProbes, view: PredictionView) -> ValidationStep:
    found, step = _judged(tasks, planned, view), _written(tasks, planned.spec)
    if view.removed_data and tasks.starts and step.writes is not None:
        step = replace(step, writes=replace(step.writes, create=()))
        found = Finding.unknown(Reason.DATA_REMOVED, f"{view.removed_data}.")
    if not isinstance(found, Verdict):
        finding = Finding.unknown(found.reason, found.message)
        return replace(step, finding=finding, status=validation_status(tasks, planned.spec, None))
    return replace(
        step,
        finding=found.finding,
        status=validation_status(tasks, planned.spec, found),
        refined=refined_status(found.validation, view.spec, view.sweep),
    )


def _written(tasks: TaskPass, spec: ScalingSweepSpec) -> ValidationStep:
    """What is done for the probes as for any tasks; `spec` is of the sweep that trains them."""
    writes, seconds = task_writes(tasks, spec), next_look(tasks)
    is_quiet = tasks.is_quiet and not has_unrecorded(tasks.task_set)
    if seconds == math.inf and not (is_quiet and writes == TaskWrites()):
        seconds = 60.0
    return ValidationStep(
        writes=writes,
        events=attempt_events(tasks.task_set.stored_ledger, tasks.ledger),
        requeue_after=seconds,
    )


Check = Callable[[TaskPass], Finding | None]


def _bad_configuration(tasks: TaskPass) -> Finding | None:
    error = tasks.ledger.configuration_error
    if error is None:
        return None
    message = f"{error.where} refused its configuration: {error.message}"
    return Finding.unknown(Reason.BAD_CONFIGURATION, message)


NO_BUDGET: Final = (
    f"Without spec.validation.budget all probes of a prediction may spend {ANSWERS_PAID} times what those of one "
    "answer cost: set it to train more."
)
BEFORE: Final[Sequence[Check]] = (ledger_not_taken, _bad_configuration, too_many_failed_points)
"""Checks that speak before a verdict; the first that speaks decides."""
MEANWHILE: Final[Sequence[Check]] = (
    suspended,
    budget_spent,
    job_refused,
    all_jobs_wait,
    all_points_wait_to_retry,
    training,
)
"""Those while probes are to be trained."""


def _judged(tasks: TaskPass, planned: PlannedProbes, view: PredictionView) -> Finding | Verdict:
    checks = (*BEFORE, budget_exhausted) if tasks.is_quiet else (*BEFORE, *MEANWHILE)
    validation = view.spec.validation
    assert validation is not None
    for check in checks:
        if (found := check(tasks)) is not None:
            is_ours = found.reason is Reason.BUDGET_EXHAUSTED and validation.budget is None
            return replace(found, message=f"{found.message} {NO_BUDGET}") if is_ours else found
    assert planned.fit.laws is not None
    return judge(
        planned.fit.laws,
        planned.query,
        tasks,
        planned.spec,
        view.observed.probes.courses,
        flops_per_token=planned.flops_per_token,
        most_tokens=planned.most_tokens,
        tolerance=float(validation.tolerance),
    )
