"""A prediction as its decision sees it: every fact that more than one check asks for, each worked out once."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from isoloss.laws import Prediction, RefusalReason
from isoloss_contract.reading import Read, is_unknown, value_of
from isoloss_contract.records import DataManifest, EvaluationResult
from isoloss_operator.api import HyperparamPredictionSpec, ScalingSweepSpec
from isoloss_operator.decide.answers import predicted
from isoloss_operator.decide.conditions import READY, Finding, parse_conditions, stands
from isoloss_operator.decide.evaluation import EvaluationStep, evaluation_step, given_loss_step
from isoloss_operator.decide.fits import FitOutcome
from isoloss_operator.decide.observation import ObservedPrediction, ObservedReference
from isoloss_operator.decide.prediction_status import (
    Answer,
    Measurement,
    answered,
    given,
    measured,
)
from isoloss_operator.decide.reasons import Reason
from isoloss_operator.decide.sweep_status import previous_status
from isoloss_operator.planning.specs import InvalidSpec


@dataclass(frozen=True)
class PredictionView:
    """A prediction whose sweep has its corpus: what the checks below ask for, worked out once."""

    observed: ObservedPrediction
    spec: HyperparamPredictionSpec
    reference: ObservedReference
    sweep: ScalingSweepSpec
    manifest: DataManifest

    @cached_property
    def step(self) -> EvaluationStep:
        """What to do about the initial loss."""
        if self.spec.checkpoint is None:
            return given_loss_step(self.observed, self.sweep, self.spec.initial_loss or "")
        return evaluation_step(
            self.observed,
            self.sweep,
            self.manifest,
            self.spec.checkpoint,
            suspended=self.spec.suspend,
        )

    @property
    def result(self) -> EvaluationResult | None:
        """The measured loss; None where the spec states one, or nothing is measured yet."""
        return self.step.result

    @property
    def measurement(self) -> Measurement:
        """The initial loss as the status shows it."""
        if self.result is not None:
            return measured(self.result, self.sweep)
        return given(self.spec.initial_loss or "")

    @cached_property
    def fit(self) -> FitOutcome | Finding:
        """The final fit of the sweep's present generation, or why there is none."""
        return _final_fit(self.observed, self.reference)

    @cached_property
    def prediction(self) -> Prediction | Finding:
        """The answer of the final laws, or why there is none."""
        if isinstance(self.fit, Finding):
            return self.fit
        return self._predicted_by(self.fit)

    @property
    def answer(self) -> Answer:
        """The answer of the final laws; an empty one where there is none."""
        if isinstance(self.prediction, Finding) or isinstance(self.fit, Finding):
            return Answer()
        return self._answered(self.prediction, self.fit)

    @property
    def answer_stands(self) -> bool:
        """Whether the former answer is kept, marked stale, as there is no new one and none is refused."""
        is_unmeasured = self.step.finding.status != "True"
        waits = isinstance(self.fit, Finding) and not isinstance(self.fit.reason, RefusalReason)
        return (is_unmeasured or waits) and stands(
            parse_conditions(self.observed.status), self.observed.generation
        )

    @property
    def preview(self) -> Answer | None:
        """The answer of provisional laws, to look at while the sweep runs; None without one."""
        fit = value_of(self.observed.fit)
        if fit is None or fit.laws is None or fit.laws.status != "provisional":
            return None
        prediction = self._predicted_by(fit)
        return None if isinstance(prediction, Finding) else self._answered(prediction, fit)

    def _predicted_by(self, fit: FitOutcome) -> Prediction | Finding:
        """The answer of a fit's laws, or why they give none."""
        if fit.laws is None:
            return Finding.false(Reason.LAWS_UNREADABLE, "laws.json is missing.")
        return predicted(fit.laws, self.spec, self.sweep, self.result)

    def _answered(self, prediction: Prediction, fit: FitOutcome) -> Answer:
        """The answer as the status shows it."""
        return answered(prediction, self.spec, self.sweep, self.reference, fit, self.result)


def prediction_view(observed: ObservedPrediction) -> PredictionView | None:
    """The view of a prediction; None where its spec, its sweep or its store is not as it should be, or the corpus is
    not prepared yet."""
    spec, reference, manifest = observed.spec, observed.sweep, value_of(observed.manifest)
    if isinstance(spec, InvalidSpec) or observed.storage_refusal or unanswered(observed):
        return None
    if reference is None or isinstance(reference.spec, InvalidSpec) or manifest is None:
        return None
    return PredictionView(observed, spec, reference, reference.spec, manifest)


def unanswered(observed: ObservedPrediction) -> str:
    """What the store said instead of an answer; empty: it answered."""
    reads: tuple[Read[object], ...] = (observed.manifest, observed.evaluation, observed.fit)
    said = next((read.message for read in reads if is_unknown(read)), "")
    return observed.store_error or said


def sweep_not_ready(reference: ObservedReference) -> Finding:
    """Why a sweep gives no answer yet, in the words of its own Ready."""
    name, ready = reference.name, parse_conditions(reference.status).get(READY)
    if ready is None:
        return Finding.false(
            Reason.SWEEP_NOT_READY, f"The operator has not processed ScalingSweep {name} yet."
        )
    found = Finding.of(ready)
    if found.status == "False" and isinstance(found.reason, RefusalReason):
        message = f"The laws of ScalingSweep {name} were refused: {ready.message}"
        return Finding.false(found.reason, message, stalled=True)
    message = f"ScalingSweep {name} is not ready ({ready.reason}): {ready.message}"
    return Finding.false(Reason.SWEEP_NOT_READY, message)


def _final_fit(observed: ObservedPrediction, reference: ObservedReference) -> FitOutcome | Finding:
    ready = parse_conditions(reference.status).get(READY)
    if ready is None or ready.status != "True":
        return sweep_not_ready(reference)
    if ready.observed_generation != reference.generation:
        message = f"The operator has not processed the changed ScalingSweep {reference.name} yet."
        return Finding.false(Reason.SWEEP_CHANGED, message)
    fit = value_of(observed.fit)
    if fit is None or fit.laws is None:
        return Finding.false(Reason.LAWS_UNREADABLE, "laws.json is missing or cannot be read.")
    if fit.laws_sha256 != previous_status(reference.status).laws_sha256:
        message = "laws.json is not the one that the sweep's status names."
        return Finding.false(Reason.LAWS_UNREADABLE, message)
    return fit
