"""What happens next with a prediction. Pure. Read downwards: the first check that speaks decides.

An answer is given only from final laws. Once given it is kept, marked stale, while its sweep changes; it
is withdrawn as soon as the prediction's own spec asks something else, or the new laws do not answer that.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from isoloss.laws import RefusalReason
from isoloss.validation import is_verdict
from isoloss_contract import layout
from isoloss_operator.api import Condition, HyperparamPredictionStatus
from isoloss_operator.decide.answer_page import answer_page
from isoloss_operator.decide.conditions import (
    ACCEPTED,
    EVALUATED,
    READY,
    RECONCILING,
    STALE,
    STALLED,
    SUSPENDED,
    VALIDATED,
    Finding,
    changed,
    dated,
    reconciling,
    stalled,
    storage_not_writable,
    write_refused,
)
from isoloss_operator.decide.evaluation import EvaluationStep
from isoloss_operator.decide.events import condition_events
from isoloss_operator.decide.fits import FitOutcome
from isoloss_operator.decide.jobs.requests import store_uri
from isoloss_operator.decide.observation import ObservedPrediction
from isoloss_operator.decide.plans import PredictionPlan
from isoloss_operator.decide.prediction_status import (
    has_previous_answer,
    is_of_present_spec,
    predicted_in_words,
    publication,
    question_digest,
    with_measurement,
    withdrawals,
)
from isoloss_operator.decide.prediction_view import (
    PredictionView,
    prediction_view,
    unanswered,
)
from isoloss_operator.decide.reasons import Reason
from isoloss_operator.decide.suspension import suspension
from isoloss_operator.decide.sweep_reference import sweep_not_ready
from isoloss_operator.decide.validation import ValidationStep, validation_step
from isoloss_operator.planning.specs import InvalidSpec

_ANNOUNCED: Final = (ACCEPTED, EVALUATED, READY, STALE, VALIDATED, STALLED)
_WAITING: Final = frozenset({Reason.SWEEP_NOT_READY, Reason.PROVISIONAL})
"""Both mean a sweep that is still running: as its provisional laws come and go, so do these."""
_PREVIEW: Final = "The numbers shown are provisional and will change: wait for Ready."
ALL_ACCEPTED: Final = Finding.true(
    Reason.ACCEPTED, "The spec is valid and everything it names may be used."
)
FRESH: Final = Finding.false(
    Reason.UP_TO_DATE_WITH_SWEEP, "The answer is computed from the sweep's current laws."
)
KEPT: Final = Finding.true(Reason.PREDICTED, "The status holds the answer.")
NO_NUMBERS: Final = HyperparamPredictionStatus()
NO_ANSWER: Final = Finding.false(
    Reason.NOTHING_WRONG, "There is no answer that could be out of date."
)


# ------------------------------------------------------------------------------------ the decision


@dataclass(frozen=True)
class State:
    """What a pass comes to."""

    ready: Finding
    accepted: Finding = ALL_ACCEPTED
    evaluated: Finding = field(default_factory=Finding.unknown)
    stale: Finding = NO_ANSWER
    measurement: HyperparamPredictionStatus | None = NO_NUMBERS
    """Of this status the initial loss; None: as the status has it."""
    answer: HyperparamPredictionStatus | None = NO_NUMBERS
    """Of this status the answer; None: as the status has it (only if it is still kept)."""
    step: EvaluationStep | None = None
    requeue_after: float | None = None
    """None: as the evaluation asks for."""


def decide_prediction(observed: ObservedPrediction) -> PredictionPlan:
    """What is to be done about a prediction now, and what its status says."""
    view = prediction_view(observed)
    state = _without_view(observed) if view is None else _decided(view)
    return _plan(observed, view, state, validation_step(observed, view))


def _decided(view: PredictionView) -> State:
    return next(state for check in STATES if (state := check(view)) is not None)


def _without_view(observed: ObservedPrediction) -> State:
    """Before the sweep, its store and its corpus are known."""
    spec, reference = observed.spec, observed.sweep
    if isinstance(spec, InvalidSpec):
        return _not_accepted(Reason.INVALID_SPEC, str(spec))
    if observed.storage_refusal:
        return _not_accepted(Reason.STORAGE_NOT_ALLOWED, observed.storage_refusal)
    if reference is None:
        message = f"There is no ScalingSweep {spec.sweep_ref.name} in this namespace."
        found = Finding.false(Reason.SWEEP_NOT_FOUND, message)
    elif isinstance(reference.spec, InvalidSpec):
        found = Finding.false(Reason.SWEEP_INVALID, str(reference.spec))
    elif message := unanswered(observed):
        return _without_store(observed, Finding.false(Reason.STORAGE_UNREACHABLE, message))
    else:  # before the corpus is prepared nothing can be measured
        found = sweep_not_ready(reference)
    return _keep_previous(observed, found)


def _without_store(observed: ObservedPrediction, finding: Finding) -> State:
    """An answer that was given is kept as it was: nothing is known to have changed."""
    if not has_previous_answer(observed):
        return _keep_previous(observed, finding)
    before = observed.previous_conditions
    found = {kind: Finding.of(condition) for kind, condition in before.items()}
    return State(
        ready=_previous_ready(observed),
        accepted=finding,
        evaluated=found.get(EVALUATED, Finding.unknown()),
        stale=found.get(STALE, NO_ANSWER),
        measurement=None,
        answer=None,
        requeue_after=30.0,
    )


def _previous_ready(observed: ObservedPrediction) -> Finding:
    """Ready of an answer that is kept: what was Ready stays so, and Accepted says if it cannot be published by now."""
    ready = observed.previous_conditions.get(READY)
    if ready is not None and ready.status == "True":
        return Finding.of(ready)
    return _publication_problem(observed) or KEPT


def _not_accepted(reason: Reason, message: str) -> State:
    finding = Finding.false(reason, message, stalled=True)
    return State(ready=finding, accepted=finding, requeue_after=300.0)


def _keep_previous(
    observed: ObservedPrediction,
    finding: Finding,
    *,
    evaluated: Finding | None = None,
    measurement: HyperparamPredictionStatus | None = None,
    step: EvaluationStep | None = None,
    preview: HyperparamPredictionStatus | None = None,
    former: str = "former laws",
) -> State:
    """The former answer, marked stale for what `finding` says, if it is kept; else no answer for that.

    `preview` is shown without vouching for it (a provisional answer).
    """
    previous = observed.previous_conditions
    before = previous.get(EVALUATED)
    if evaluated is None:
        is_known = before is not None and is_of_present_spec(observed)
        evaluated = Finding.of(before) if before and is_known else Finding.unknown()
    requeue = None if step else 30.0
    if not has_previous_answer(observed):
        return State(
            ready=finding,
            evaluated=evaluated,
            measurement=measurement or NO_NUMBERS,
            answer=preview or NO_NUMBERS,
            step=step,
            requeue_after=requeue,
        )
    message = f"The answer is computed from {former}: {finding.message}"
    return State(
        ready=_previous_ready(observed),
        evaluated=evaluated,
        stale=Finding("True", finding.reason, message, stalled=finding.stalled),
        measurement=measurement,
        answer=None,
        step=step,
        requeue_after=requeue,
    )


def _known_loss(
    view: PredictionView,
    ready: Finding,
    *,
    accepted: Finding = ALL_ACCEPTED,
    stale: Finding = NO_ANSWER,
    answer: HyperparamPredictionStatus = NO_NUMBERS,
) -> State:
    """A state in which the initial loss is known."""
    step = view.step
    return State(ready, accepted, step.finding, stale, view.measurement, answer, step)


def _initial_loss_unknown(view: PredictionView) -> State | None:
    """Before the checkpoint is measured, however far the sweep is."""
    step, checkpoint, found = view.step, view.spec.checkpoint, view.step.finding
    if checkpoint is None or found.status == "True":
        return None
    if not view.checkpoint_gone:
        former = f"a former initial loss of {checkpoint.uri}"
        return _keep_previous(view.observed, found, evaluated=found, step=step, former=former)
    before = view.observed.previous_status
    if isinstance(view.fit, FitOutcome) and view.fit.laws_sha256 == before.laws_sha256:
        as_it_was = _without_store(view.observed, found)
        return replace(as_it_was, stale=FRESH, step=step, requeue_after=math.inf)
    return _keep_previous(view.observed, found, step=step)


def _laws_refused(view: PredictionView) -> State | None:
    """More data withdrew the laws: so is an answer that was computed from the former ones."""
    if not isinstance(view.fit, Finding) or not isinstance(view.fit.reason, RefusalReason):
        return None
    return _known_loss(view, view.fit)


def _laws_not_final(view: PredictionView) -> State | None:
    """The sweep is still running, or its laws cannot be read."""
    if not isinstance(view.fit, Finding):
        return None
    problem, preview = view.fit, view.preview
    if preview is not None:
        problem = Finding.false(Reason.PROVISIONAL, f"{_PREVIEW} {problem.message}")
    return _keep_previous(
        view.observed,
        problem,
        evaluated=view.step.finding,
        measurement=view.measurement,
        step=view.step,
        preview=preview,
    )


def _prediction_refused(view: PredictionView) -> State | None:
    found = view.prediction
    return _known_loss(view, found) if isinstance(found, Finding) else None


def _not_published(view: PredictionView) -> State | None:
    problem = _publication_problem(view.observed)
    if problem is None:
        return None
    return _known_loss(view, problem, accepted=problem, stale=FRESH, answer=view.answer)


def _publication_problem(observed: ObservedPrediction) -> Finding | None:
    """Why the ConfigMap that the spec asks for does not say what it should; None: it does."""
    publish = None if isinstance(observed.spec, InvalidSpec) else observed.spec.publish
    if publish is None:
        return None
    if observed.config_map_foreign:
        taken = f"spec.publish.configMapName: ConfigMap {publish.config_map_name} belongs to "
        if observed.config_map_goes:
            message = (
                f"{taken}a deleted prediction of this name: Kubernetes is about to remove it."
            )
            return Finding.false(Reason.CONFIG_MAP_TAKEN, message)
        message = f"{taken}another owner: choose another name or delete it."
        return Finding.false(Reason.CONFIG_MAP_TAKEN, message, stalled=True)
    error, stalled = observed.publish_error, not observed.publish_error_may_pass
    if not error:
        return None
    return Finding.false(Reason.CONFIG_MAP_REFUSED, f"spec.publish: {error}", stalled=stalled)


def _predicted(view: PredictionView) -> State | None:
    if isinstance(view.prediction, Finding):
        return None
    ready = Finding.true(Reason.PREDICTED, predicted_in_words(view.prediction))
    answered = _known_loss(view, ready, stale=FRESH, answer=view.answer)
    return replace(answered, requeue_after=math.inf)


Check = Callable[[PredictionView], State | None]

STATES: Final[Sequence[Check]] = (
    _initial_loss_unknown,
    _laws_refused,
    _laws_not_final,
    _prediction_refused,
    _not_published,
    _predicted,
)


# -------------------------------------------------------------------------------------- the plan


def _plan(
    observed: ObservedPrediction,
    view: PredictionView | None,
    state: State,
    validation: ValidationStep,
) -> PredictionPlan:
    refused = storage_not_writable(observed.store_write_error) or write_refused(
        observed.write_error
    )
    refused = refused or _publication_problem(observed)
    if refused and state.accepted.holds:
        state = replace(state, accepted=refused)
    previous = observed.previous_conditions
    conditions = dated(
        _findings(observed, state, validation.finding),
        previous,
        generation=observed.generation,
        now=observed.now,
    )
    before = observed.previous_status
    judged, asked = validation.status, question_digest(observed.spec, judged=True)
    if judged is not None:
        judged = judged.model_copy(update={"question_digest": asked})
    status = with_measurement(state.answer or before, state.measurement or before).model_copy(
        update={
            "observed_generation": observed.generation,
            "conditions": conditions,
            "question_digest": question_digest(observed.spec) or before.question_digest,
            "validation": judged,
            "refined": validation.refined,
            "report_uri": _report_uri(observed, view, before),
        }
    )
    step = state.step or EvaluationStep(state.evaluated)
    page, page_seconds = None, math.inf
    if view is not None and state.stale != NO_ANSWER:
        page, page_seconds = answer_page(view, status)
    news = _news(conditions, previous)
    return PredictionPlan(
        status=status,
        **vars(step.writes),
        publish=publication(observed, status),
        withdraw=withdrawals(observed, status),
        page=page,
        events=condition_events(news, _ANNOUNCED, stalled=_holds_up(state).stalled),
        requeue_after=min(
            state.requeue_after or step.requeue_after,
            _validation_seconds(validation),
            page_seconds,
        ),
    )


def _validation_seconds(validation: ValidationStep) -> float:
    """Until the next look at the sweep that judges: what it says most often comes as an event."""
    found = validation.finding
    return math.inf if found is None or is_verdict(found.status, found.reason) else 60.0


def _report_uri(
    observed: ObservedPrediction, view: PredictionView | None, before: HyperparamPredictionStatus
) -> str:
    """Empty before a page was drawn."""
    if view is None:
        return before.report_uri
    folder = layout.prediction_folder(observed.name, observed.uid)
    uri = f"{store_uri(view.sweep)}/{layout.report_in(folder)}"
    return uri if observed.has_page(uri) else ""


def _news(
    conditions: Sequence[Condition], previous: Mapping[str, Condition]
) -> tuple[Condition, ...]:
    """Conditions that changed, but for those that waited for their sweep before and still do."""

    def waits_on(condition: Condition) -> bool:
        before = previous.get(condition.type)
        return before is not None and {before.reason, condition.reason} <= _WAITING

    return tuple(c for c in changed(conditions, previous) if not waits_on(c))


def _findings(
    observed: ObservedPrediction, state: State, validated: Finding | None
) -> dict[str, Finding]:
    creates = state.step is not None and state.step.writes.create
    changes = "The evaluate Job is being started." if creates else ""
    holds_up = _holds_up(state)
    return {
        ACCEPTED: state.accepted,
        EVALUATED: state.evaluated,
        READY: state.ready,
        STALE: state.stale,
        **({VALIDATED: validated} if validated else {}),
        SUSPENDED: suspension(observed, suspend=observed.spec.suspend),
        STALLED: stalled(holds_up),
        RECONCILING: reconciling(holds_up, changes),
    }


def _holds_up(state: State) -> Finding:
    """What only a person can help: that there is no answer, or that there is no newer one."""
    return state.stale if state.stale.stalled else state.ready
