"""What happens next with a prediction, a value to a value:

    observed -> checks -> measurement -> answer -> state -> validation -> plan

An answer is given only from final laws. Once given it is kept, marked stale, while its sweep changes; it
is withdrawn as soon as the prediction's own spec asks something else, or the new laws do not answer that.
"""

import math
from dataclasses import dataclass, replace
from typing import Final

from isoloss.laws import RefusalReason
from isoloss.validation import is_verdict
from isoloss_contract import layout
from isoloss_operator.api import HyperparamPredictionStatus
from isoloss_operator.decide import conditions, reasons
from isoloss_operator.decide.answer import (
    NO_NUMBERS,
    Answer,
    answer_page,
    answer_to,
    provisional_answer,
    publication,
    withdrawals,
)
from isoloss_operator.decide.conditions import condition_events, suspension
from isoloss_operator.decide.fits import FitOutcome
from isoloss_operator.decide.jobs import store_uri
from isoloss_operator.decide.observation import ObservedPrediction
from isoloss_operator.decide.plans import PredictionPlan, TaskWrites
from isoloss_operator.decide.prediction_checks import (
    AcceptedPrediction,
    Question,
    check_prediction,
    present_question,
)
from isoloss_operator.decide.reasons import NOT_CHECKED, Finding, Reason
from isoloss_operator.decide.single_task import Measurement, measure
from isoloss_operator.decide.validation import ValidationStep, validate_answer, validation_kept
from isoloss_operator.planning.specs import InvalidSpec

_ANNOUNCED: Final = (
    reasons.ACCEPTED,
    reasons.EVALUATED,
    reasons.READY,
    reasons.STALE,
    reasons.VALIDATED,
    reasons.STALLED,
)
_WAITING: Final = frozenset({Reason.SWEEP_NOT_READY, Reason.PROVISIONAL})
"""Both mean a sweep that is still running: as its provisional laws come and go, so do these."""
_PREVIEW: Final = "The numbers shown are provisional and will change: wait for Ready."
ALL_ACCEPTED: Final = Finding(
    Reason.ACCEPTED, "The spec is valid and everything it names may be used.", "True"
)
FRESH: Final = Finding(
    Reason.UP_TO_DATE_WITH_SWEEP, "The answer is computed from the sweep's current laws."
)
KEPT: Final = Finding(Reason.PREDICTED, "The status holds the answer.", "True")
NO_ANSWER: Final = Finding(Reason.NOTHING_WRONG, "There is no answer that could be out of date.")


@dataclass(frozen=True)
class State:
    """What a pass comes to."""

    ready: Finding
    accepted: Finding = ALL_ACCEPTED
    evaluated: Finding = NOT_CHECKED
    stale: Finding = NO_ANSWER
    measurement: HyperparamPredictionStatus | None = NO_NUMBERS
    """Of this status the initial loss; None: as the status has it."""
    answer: HyperparamPredictionStatus | None = NO_NUMBERS
    """Of this status the answer; None: as the status has it (only if it is still kept)."""
    requeue_after: float | None = None
    """None: as the measurement asks for."""


def decide_prediction(observed: ObservedPrediction) -> PredictionPlan:
    """What is to be done about a prediction now, and what its status says."""
    question = present_question(observed)
    found = check_prediction(observed, question)
    if isinstance(found, Finding):
        asked, measured, answer = None, None, None
        state = _held_up(observed, question, found)
        validation = validation_kept(observed, is_judged=question.is_judged)
    else:
        asked, measured = found, measure(found)
        answer, preview = answer_to(asked, measured), provisional_answer(asked, measured)
        state = _state(asked, measured, answer, preview)
        validation = validate_answer(asked, measured.result, answer, is_kept=state.answer is None)
    return _plan(observed, question, state, validation, asked, measured, answer)


# --------------------------------------------------------------------- before its sweep and store are known


def _held_up(observed: ObservedPrediction, question: Question, found: Finding) -> State:
    """The prediction cannot be answered for what was found."""
    if found.reason in (Reason.INVALID_SPEC, Reason.STORAGE_NOT_ALLOWED):
        return State(ready=found, accepted=found, requeue_after=300.0)
    if found.reason is Reason.STORAGE_UNREACHABLE and question.is_answered:
        return _as_it_was(observed, found)
    return _nothing_measured(observed, question, found)


def _as_it_was(observed: ObservedPrediction, found: Finding) -> State:
    """An answer that was given is kept as it was: nothing is known to have changed."""
    before = {
        kind: Finding.of(condition) for kind, condition in observed.previous_conditions.items()
    }
    return State(
        ready=_previous_ready(observed),
        accepted=found,
        evaluated=before.get(reasons.EVALUATED, NOT_CHECKED),
        stale=before.get(reasons.STALE, NO_ANSWER),
        measurement=None,
        answer=None,
        requeue_after=30.0,
    )


def _nothing_measured(observed: ObservedPrediction, question: Question, found: Finding) -> State:
    """The previous answer, if there is one, with what was measured for it."""
    before = observed.previous_conditions.get(reasons.EVALUATED)
    evaluated = Finding.of(before) if before and question.is_of_status else NOT_CHECKED
    state = State(ready=found, evaluated=evaluated, requeue_after=30.0)
    if not question.is_answered:
        return state
    return _kept(observed, found, replace(state, measurement=None))


def _kept(
    observed: ObservedPrediction, found: Finding, state: State, former: str = "former laws"
) -> State:
    """The state with the previous answer, marked stale for what was found."""
    message = f"The answer is computed from {former}: {found.message}"
    return replace(
        state,
        ready=_previous_ready(observed),
        stale=Finding(found.reason, message, "True", stalled=found.stalled),
        answer=None,
    )


def _previous_ready(observed: ObservedPrediction) -> Finding:
    """Ready of an answer that is kept: what was Ready stays so, and Accepted says if it cannot be published by now."""
    ready = observed.previous_conditions.get(reasons.READY)
    if ready is not None and ready.status == "True":
        return Finding.of(ready)
    return _publication_problem(observed) or KEPT


# ---------------------------------------------------------------------------------- once they are known


def _state(
    asked: AcceptedPrediction,
    measured: Measurement,
    answer: Answer | Finding,
    preview: Answer | None,
) -> State:
    """The first that applies."""
    observed, fit, evaluated = asked.observed, asked.fit, measured.finding
    if not evaluated.holds:
        return _unmeasured(asked, measured)
    known = State(ready=evaluated, evaluated=evaluated, measurement=measured.status)
    if isinstance(fit, Finding) and isinstance(fit.reason, RefusalReason):
        # More data withdrew the laws: so is an answer that was computed from the former ones.
        return replace(known, ready=fit)
    if isinstance(fit, Finding):  # the sweep is still running, or its laws cannot be read
        if preview is not None:  # shown without vouching for it
            fit = Finding(Reason.PROVISIONAL, f"{_PREVIEW} {fit.message}")
        if asked.question.is_answered:
            return _kept(observed, fit, known)
        return replace(known, ready=fit, answer=preview.status if preview else NO_NUMBERS)
    if isinstance(answer, Finding):
        return replace(known, ready=answer)
    answered = replace(known, stale=FRESH, answer=answer.status)
    if (problem := _publication_problem(observed)) is not None:
        return replace(answered, ready=problem, accepted=problem)
    ready = Finding(Reason.PREDICTED, answer.message, "True")
    return replace(answered, ready=ready, requeue_after=math.inf)


def _unmeasured(asked: AcceptedPrediction, measured: Measurement) -> State:
    """Before the checkpoint is measured, however far the sweep is."""
    observed, found, checkpoint = asked.observed, measured.finding, asked.spec.checkpoint
    fit = asked.fit
    assert checkpoint is not None  # a given loss needs no measuring
    if not asked.is_checkpoint_gone:
        state = State(ready=found, evaluated=found)
        if not asked.question.is_answered:
            return state
        former = f"a former initial loss of {checkpoint.uri}"
        return _kept(observed, found, replace(state, measurement=None), former)
    laws = observed.previous_status.laws_sha256
    if isinstance(fit, FitOutcome) and fit.laws_sha256 == laws:
        as_it_was = _as_it_was(observed, found)
        return replace(as_it_was, stale=FRESH, requeue_after=math.inf)
    kept = _nothing_measured(observed, asked.question, found)
    return replace(kept, requeue_after=None)


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
            return Finding(Reason.CONFIG_MAP_TAKEN, message)
        message = f"{taken}another owner: choose another name or delete it."
        return Finding(Reason.CONFIG_MAP_TAKEN, message, stalled=True)
    if not observed.publish_error:
        return None
    message = f"spec.publish: {observed.publish_error}"
    is_final = not observed.publish_error_may_pass
    return Finding(Reason.CONFIG_MAP_REFUSED, message, stalled=is_final)


# -------------------------------------------------------------------------------------- the plan


def _plan(
    observed: ObservedPrediction,
    question: Question,
    state: State,
    validation: ValidationStep,
    asked: AcceptedPrediction | None,
    measured: Measurement | None,
    answer: Answer | Finding | None,
) -> PredictionPlan:
    """`asked`, `measured` and `answer` are None before its sweep and store are known."""
    refused = observed.storage_not_writable or observed.write_refused
    refused = refused or _publication_problem(observed)
    if refused and state.accepted.holds:
        state = replace(state, accepted=refused)
    previous, before = observed.previous_conditions, observed.previous_status
    report_uri = _report_uri(observed, asked, before)
    writes = TaskWrites() if measured is None else measured.writes
    findings = _findings(observed, state, validation.finding, creates=bool(writes.create))
    current = conditions.dated(
        findings, previous, generation=observed.generation, now=observed.now
    )
    changed = conditions.changed(current, previous)
    waited = {kind for kind, each in previous.items() if each.reason in _WAITING}
    # Those that waited for their sweep before and still do are no news.
    news = [c for c in changed if not (c.type in waited and c.reason in _WAITING)]
    events = condition_events(news, _ANNOUNCED, stalled=_holds_up(state).stalled)
    judged = validation.status
    if judged is not None:
        judged = judged.model_copy(update={"question_digest": question.judged_digest})
    loss = state.measurement or before
    status = (state.answer or before).model_copy(
        update={
            "initial_loss": loss.initial_loss,
            "domain_losses": loss.domain_losses,
            "evaluation_uri": loss.evaluation_uri,
            "observed_generation": observed.generation,
            "conditions": current,
            "question_digest": question.digest or before.question_digest,
            "validation": judged,
            "refined": validation.refined,
            "report_uri": report_uri,
        }
    )
    # What the sweep that judges says most often comes as an event.
    found = validation.finding
    judged_again = math.inf if found is None or is_verdict(found.status, found.reason) else 60.0
    publish, withdraw = publication(observed, status), withdrawals(observed, status)
    page, page_seconds = None, math.inf
    if asked is not None and isinstance(answer, Answer):
        page, page_seconds = answer_page(asked, answer, status)
    return PredictionPlan(
        status=status,
        **vars(writes),
        publish=publish,
        withdraw=withdraw,
        page=page,
        events=events,
        requeue_after=min(
            state.requeue_after or (60.0 if measured is None else measured.requeue_after),
            judged_again,
            page_seconds,
        ),
    )


def _report_uri(
    observed: ObservedPrediction,
    asked: AcceptedPrediction | None,
    before: HyperparamPredictionStatus,
) -> str:
    """Empty before a page was drawn."""
    if asked is None:
        return before.report_uri
    folder = layout.prediction_folder(observed.name, observed.uid)
    uri = f"{store_uri(asked.sweep)}/{layout.report_in(folder)}"
    return uri if observed.has_page(uri) else ""


def _findings(
    observed: ObservedPrediction, state: State, validated: Finding | None, *, creates: bool
) -> dict[str, Finding]:
    changes = "The evaluate Job is being started." if creates else ""
    holds_up = _holds_up(state)
    return {
        reasons.ACCEPTED: state.accepted,
        reasons.EVALUATED: state.evaluated,
        reasons.READY: state.ready,
        reasons.STALE: state.stale,
        **({reasons.VALIDATED: validated} if validated else {}),
        reasons.SUSPENDED: suspension(observed),
        reasons.STALLED: conditions.stalled(holds_up),
        reasons.RECONCILING: conditions.reconciling(holds_up, changes),
    }


def _holds_up(state: State) -> Finding:
    """What only a person can help: that there is no answer, or that there is no newer one."""
    return state.stale if state.stale.stalled else state.ready
