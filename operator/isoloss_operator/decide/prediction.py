"""What happens next with a prediction. Pure; early returns from top to bottom.

An answer is given only from final laws. Once given it stands, marked stale, while its sweep changes; it
is withdrawn as soon as the prediction's own spec changes or the new laws say something else.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from isoloss.laws import Laws, Prediction, PredictionQuery, RefusalReason
from isoloss_contract import layout
from isoloss_contract.records import DataManifest, EvaluationResult
from isoloss_contract.store import BadRecord, StoreError
from isoloss_operator.api import Condition, HyperparamPredictionSpec, ScalingSweepSpec
from isoloss_operator.decide.conditions import (
    ACCEPTED,
    EVALUATED,
    READY,
    RECONCILING,
    STALE,
    STALLED,
    Finding,
    Reason,
    dated,
    parse_conditions,
    turned,
)
from isoloss_operator.decide.evaluating import (
    Evaluation,
    EvaluationStep,
    evaluate_config,
    evaluation_step,
)
from isoloss_operator.decide.law_status import rate
from isoloss_operator.decide.observation import (
    FitOutcome,
    ObservedPrediction,
    ObservedReference,
    PredictionPlan,
    PredictionReads,
)
from isoloss_operator.decide.prediction_status import (
    ANSWER,
    MEASUREMENT,
    answered,
    given,
    measured,
    previous_prediction,
    route_words,
)
from isoloss_operator.decide.publication import publication, withdrawals
from isoloss_operator.decide.sweep_status import previous_status
from isoloss_operator.decide.sweep_view import deletions, events
from isoloss_operator.planning.specs import (
    InvalidSpec,
    parse_prediction_spec,
    parse_sweep_spec,
    prepare_config,
)

_ANNOUNCED = (ACCEPTED, EVALUATED, READY, STALE, STALLED)
_WAITING = frozenset({Reason.SWEEP_NOT_READY, Reason.PROVISIONAL})
"""Two sides of one thing, a sweep that still runs: as its provisional laws come and go, so do these."""
_REFUSALS = frozenset(reason.value for reason in RefusalReason)
ALL_ACCEPTED = Finding.true(
    Reason.ACCEPTED, "The spec is valid and everything it names may be used."
)
FRESH = Finding.false(
    Reason.UP_TO_DATE_WITH_SWEEP, "The answer rests on the sweep's present laws."
)
NO_ANSWER = Finding.false(Reason.NOTHING_WRONG, "There is no answer that could be stale.")


# ------------------------------------------------------------------------------- what to read first


def prediction_reads(observed: ObservedPrediction) -> PredictionReads | None:
    """Where the sweep's manifest and laws lie; None where there is no (valid) sweep."""
    sweep = _sweep_spec(observed.sweep)
    if sweep is None or observed.sweep is None:
        return None
    return PredictionReads(
        store_uri=sweep.storage.uri.rstrip("/"),
        manifest=layout.data_manifest(prepare_config(sweep).key),
        laws=layout.sweep_laws(observed.sweep.name, observed.sweep.uid),
    )


def evaluation_path(observed: ObservedPrediction) -> str | None:
    """Where the evaluation's result lies, once the manifest is read; None: nothing is measured."""
    sweep = _sweep_spec(observed.sweep)
    try:
        spec = parse_prediction_spec(observed.spec)
    except InvalidSpec:
        return None
    manifest = observed.manifest
    if sweep is None or spec.checkpoint is None or not isinstance(manifest, DataManifest):
        return None
    return layout.evaluation_result(evaluate_config(sweep, manifest, spec.checkpoint).key)


def _sweep_spec(reference: ObservedReference | None) -> ScalingSweepSpec | None:
    if reference is None:
        return None
    try:
        return parse_sweep_spec(reference.spec)
    except InvalidSpec:
        return None


# ------------------------------------------------------------------------------------- the decision


@dataclass(frozen=True)
class _Verdict:
    """What a pass comes to."""

    accepted: Finding = ALL_ACCEPTED
    evaluated: Finding = field(default_factory=Finding.unknown)
    ready: Finding = field(default_factory=Finding.unknown)
    stale: Finding = NO_ANSWER
    stalled: bool = False
    measurement: dict[str, Any] | None = None
    """Fields of the initial loss; None: as they were."""
    answer: dict[str, Any] | None = None
    """Fields of the answer; None: as they were (only where it still stands)."""
    step: EvaluationStep | None = None
    requeue_after: float = 60.0


def decide_prediction(observed: ObservedPrediction) -> PredictionPlan:
    """What is to be done about a prediction now, and what its status says."""
    return _plan(observed, _decide(observed))


def _decide(observed: ObservedPrediction) -> _Verdict:
    try:
        spec = parse_prediction_spec(observed.spec)
    except InvalidSpec as error:
        return _not_accepted(Reason.INVALID_SPEC, str(error))
    if observed.storage_refusal:
        return _not_accepted(Reason.STORAGE_NOT_ALLOWED, observed.storage_refusal)
    if observed.sweep is None:
        message = f"There is no ScalingSweep {spec.sweep_ref.name} in this namespace."
        return _standing_or(observed, Finding.false(Reason.SWEEP_NOT_FOUND, message))
    try:
        sweep = parse_sweep_spec(observed.sweep.spec)
    except InvalidSpec as error:
        return _standing_or(observed, Finding.false(Reason.SWEEP_INVALID, str(error)))
    if store_error := observed.store_error or _unasked(observed):
        return _standing_or(observed, Finding.false(Reason.STORAGE_UNREACHABLE, store_error))
    if not isinstance(observed.manifest, DataManifest):
        return _standing_or(observed, _sweep_not_ready(observed.sweep))
    return _decide_evaluation(observed, spec, sweep, observed.sweep, observed.manifest)


def _unasked(observed: ObservedPrediction) -> str:
    for found in (observed.manifest, observed.evaluation):
        if isinstance(found, StoreError) and not isinstance(found, BadRecord):
            return str(found)
    return ""


def _not_accepted(reason: Reason, message: str) -> _Verdict:
    finding = Finding.false(reason, message)
    return _Verdict(
        accepted=finding,
        ready=finding,
        stalled=True,
        measurement=dict(MEASUREMENT),
        answer=dict(ANSWER),
        requeue_after=300.0,
    )


def _standing_or(
    observed: ObservedPrediction,
    finding: Finding,
    *,
    evaluated: Finding | None = None,
    measurement: dict[str, Any] | None = None,
    step: EvaluationStep | None = None,
    answer: dict[str, Any] | None = None,
    stalled: bool = False,
) -> _Verdict:
    """The former answer, marked stale for what `finding` says, where it stands; else no answer for that.

    `answer` are fields to show without vouching for them (a provisional answer).
    """
    previous = parse_conditions(observed.status)
    ready = previous.get(READY)
    stands = (
        ready is not None
        and ready.status == "True"
        and ready.observed_generation == observed.generation
    )
    before = previous.get(EVALUATED)
    if evaluated is None:
        evaluated = (
            Finding(before.status, before.reason, before.message) if before else Finding.unknown()
        )
    requeue = step.requeue_after if step else 30.0
    if stands and ready is not None:
        stale = Finding.true(finding.reason, f"The answer is of former laws: {finding.message}")
        return _Verdict(
            evaluated=evaluated,
            ready=Finding.true(ready.reason, ready.message),
            stale=stale,
            measurement=measurement,
            step=step,
            requeue_after=requeue,
        )
    return _Verdict(
        evaluated=evaluated,
        ready=finding,
        measurement=dict(MEASUREMENT) if measurement is None else measurement,
        answer=dict(ANSWER) if answer is None else answer,
        stalled=stalled,
        step=step,
        requeue_after=requeue,
    )


def _decide_evaluation(
    observed: ObservedPrediction,
    spec: HyperparamPredictionSpec,
    sweep: ScalingSweepSpec,
    reference: ObservedReference,
    manifest: DataManifest,
) -> _Verdict:
    if spec.checkpoint is None:
        loss = spec.initial_loss or ""
        message = f"spec.initialLoss {loss} is used as it is; nothing is measured."
        step = EvaluationStep(
            Finding.true(Reason.INITIAL_LOSS_GIVEN, message),
            delete=deletions(observed.jobs, "the spec states the initial loss"),
        )
        return _decide_answer(observed, spec, sweep, reference, None, given(loss), step)
    config = evaluate_config(sweep, manifest, spec.checkpoint)
    evaluation = Evaluation(observed, sweep, spec.checkpoint, config)
    step = evaluation_step(evaluation)
    if evaluation.result is None:
        return _standing_or(
            observed, step.finding, evaluated=step.finding, step=step, stalled=step.stalled
        )
    result = evaluation.result
    return _decide_answer(observed, spec, sweep, reference, result, measured(result, sweep), step)


def _decide_answer(
    observed: ObservedPrediction,
    spec: HyperparamPredictionSpec,
    sweep: ScalingSweepSpec,
    reference: ObservedReference,
    result: EvaluationResult | None,
    measurement: dict[str, Any],
    step: EvaluationStep,
) -> _Verdict:
    fit, problem = _final_fit(observed, reference)
    if fit is None or fit.laws is None:
        if problem.reason in _REFUSALS:  # more data withdrew the laws: so is the answer
            return _Verdict(
                evaluated=step.finding,
                ready=problem,
                measurement=measurement,
                answer=dict(ANSWER),
                stalled=True,
                step=step,
            )
        preview = _preview(observed, spec, sweep, reference, result)
        if preview is not None:
            problem = Finding.false(Reason.PROVISIONAL, f"{_PREVIEW} {problem.message}")
        return _standing_or(
            observed,
            problem,
            evaluated=step.finding,
            measurement=measurement,
            step=step,
            answer=preview,
        )
    outcome = _predict(fit.laws, spec, sweep, result)
    common: dict[str, Any] = {
        "evaluated": step.finding,
        "measurement": measurement,
        "step": step,
    }
    if isinstance(outcome, Finding):
        return _Verdict(ready=outcome, answer=dict(ANSWER), stalled=True, **common)
    answer = _answer_fields(outcome, sweep, reference, fit, spec, result)
    if observed.config_map_foreign and spec.publish is not None:
        message = f"ConfigMap {spec.publish.config_map_name} belongs to someone else."
        taken = Finding.false(Reason.CONFIG_MAP_TAKEN, message)
        return _Verdict(accepted=taken, ready=taken, answer=answer, stalled=True, **common)
    return _Verdict(
        ready=Finding.true(Reason.PREDICTED, _in_words(outcome)),
        stale=FRESH,
        answer=answer,
        **common,
    )


_PREVIEW = "The numbers shown are provisional: the sweep still runs, and they will change. Wait for Ready."


# ------------------------------------------------------------------------------------- the laws


def _sweep_not_ready(reference: ObservedReference) -> Finding:
    ready = parse_conditions(reference.status).get(READY)
    if ready is None:
        return Finding.false(
            Reason.SWEEP_NOT_READY, f"ScalingSweep {reference.name} has not been looked at yet."
        )
    if ready.status == "False" and ready.reason in _REFUSALS:
        return Finding.false(
            ready.reason,
            f"The laws of ScalingSweep {reference.name} were refused: {ready.message}",
        )
    return Finding.false(
        Reason.SWEEP_NOT_READY,
        f"ScalingSweep {reference.name} is not ready ({ready.reason}): {ready.message}",
    )


def _final_fit(
    observed: ObservedPrediction, reference: ObservedReference
) -> tuple[FitOutcome | None, Finding]:
    """The final fit of the sweep's present generation, or why there is none."""
    ready = parse_conditions(reference.status).get(READY)
    if ready is None or ready.status != "True":
        return None, _sweep_not_ready(reference)
    if ready.observed_generation != reference.generation:
        message = f"ScalingSweep {reference.name} changed and is being looked at."
        return None, Finding.false(Reason.SWEEP_CHANGED, message)
    fit = observed.fit
    if fit is None or fit.laws is None:
        message = "laws.json is missing or can not be read."
        return None, Finding.false(Reason.LAWS_UNREADABLE, message)
    if fit.laws_sha256 != previous_status(reference.status).laws_sha256:
        message = "laws.json is not the one that the sweep's status names."
        return None, Finding.false(Reason.LAWS_UNREADABLE, message)
    return fit, FRESH


def _predict(
    laws: Laws,
    spec: HyperparamPredictionSpec,
    sweep: ScalingSweepSpec,
    result: EvaluationResult | None,
) -> Prediction | Finding:
    """The answer, or why there is none."""
    from isoloss.laws import predict

    try:
        outcome = predict(laws, _query(spec, sweep, result))
    except ValueError as error:
        return Finding.false(Reason.INVALID_SPEC, str(error))
    if isinstance(outcome, Prediction):
        return outcome
    first = outcome.refusals[0]
    reason = str(first.figures.get("law_reason", first.reason.value))
    return Finding.false(reason, " ".join(refusal.message for refusal in outcome.refusals))


def _query(
    spec: HyperparamPredictionSpec, sweep: ScalingSweepSpec, result: EvaluationResult | None
) -> PredictionQuery:
    budget = spec.budget
    return PredictionQuery(
        initial_loss=result.loss if result else float(spec.initial_loss or "nan"),
        initial_loss_standard_error=result.loss_standard_error if result else 0.0,
        cpt_flops=float(budget.flops) if budget.flops else None,
        cpt_tokens=float(budget.tokens) if budget.tokens else None,
        params=_params(spec, result),
        pretraining_tokens=float(spec.pretraining_tokens) if spec.pretraining_tokens else None,
        round_to=spec.batch_size_multiple_of,
        max_extrapolation=float(spec.max_extrapolation),
        sequence_length=sweep.data.sequence_length,
    )


def _params(spec: HyperparamPredictionSpec, result: EvaluationResult | None) -> float | None:
    if result is not None:
        return float(result.parameters.active)
    return float(spec.target_parameters) if spec.target_parameters else None


def _answer_fields(
    prediction: Prediction,
    sweep: ScalingSweepSpec,
    reference: ObservedReference,
    fit: FitOutcome,
    spec: HyperparamPredictionSpec,
    result: EvaluationResult | None,
) -> dict[str, Any]:
    warnings: tuple[str, ...] = ()
    if result is not None and not result.same_tokenizer:
        warnings = (
            "The checkpoint has another tokenizer than the sweep: its loss was converted to the sweep's "
            "tokens through nats per byte.",
        )
    return answered(
        prediction,
        sweep=reference,
        spec=sweep,
        fit=fit,
        params=_params(spec, result),
        warnings=warnings,
    )


def _preview(
    observed: ObservedPrediction,
    spec: HyperparamPredictionSpec,
    sweep: ScalingSweepSpec,
    reference: ObservedReference,
    result: EvaluationResult | None,
) -> dict[str, Any] | None:
    """The answer of provisional laws, to look at while the sweep runs; None without one."""
    fit = observed.fit
    if fit is None or fit.laws is None or fit.laws.status != "provisional":
        return None
    outcome = _predict(fit.laws, spec, sweep, result)
    if isinstance(outcome, Finding):
        return None
    return _answer_fields(outcome, sweep, reference, fit, spec, result)


def _in_words(prediction: Prediction) -> str:
    lr, batch = prediction.learning_rate, prediction.batch_size
    return (
        f"Learning rate {rate(lr.value)} ({rate(lr.low)} to {rate(lr.high)}), batch size "
        f"{batch.value:.0f} ({batch.low:.0f} to {batch.high:.0f}) sequences, by the "
        f"{route_words(prediction)}."
    )


# ------------------------------------------------------------------------------------- the plan


def _plan(observed: ObservedPrediction, verdict: _Verdict) -> PredictionPlan:
    previous = parse_conditions(observed.status)
    conditions = dated(
        _findings(verdict), previous, generation=observed.generation, now=observed.now
    )
    status = previous_prediction(observed.status).model_copy(
        update={
            **(verdict.measurement or {}),
            **(verdict.answer or {}),
            "conditions": conditions,
            "observed_generation": observed.generation,
        }
    )
    step = verdict.step
    return PredictionPlan(
        status=status,
        set_aside=step.set_aside if step else (),
        delete=step.delete if step else (),
        expire=step.expire if step else (),
        create=step.create if step else (),
        publish=publication(observed, status),
        withdraw=withdrawals(observed),
        events=events(_news(conditions, previous), _ANNOUNCED, stalled=verdict.stalled),
        requeue_after=verdict.requeue_after if step is None else step.requeue_after,
    )


def _news(
    conditions: Sequence[Condition], previous: Mapping[str, Condition]
) -> tuple[Condition, ...]:
    """Conditions that turned, but for those that waited for their sweep before and still do."""

    def waits_on(condition: Condition) -> bool:
        before = previous.get(condition.type)
        return before is not None and {before.reason, condition.reason} <= _WAITING

    return tuple(c for c in turned(conditions, previous) if not waits_on(c))


def _findings(verdict: _Verdict) -> dict[str, Finding]:
    creates = verdict.step is not None and verdict.step.create
    return {
        ACCEPTED: verdict.accepted,
        EVALUATED: verdict.evaluated,
        READY: verdict.ready,
        STALE: verdict.stale,
        STALLED: Finding.true(verdict.ready.reason, verdict.ready.message)
        if verdict.stalled
        else Finding.false(Reason.NOTHING_WRONG, "Nothing stands in the way."),
        RECONCILING: Finding.true(Reason.CONVERGING, "The evaluate Job is being started.")
        if creates
        else Finding.false(Reason.UP_TO_DATE, "All that can run does."),
    }
