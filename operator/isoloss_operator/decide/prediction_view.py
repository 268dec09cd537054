"""A prediction as its decision sees it: every fact that more than one check asks for, each worked out once."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from isoloss.laws import Prediction, RefusalReason
from isoloss_contract import layout
from isoloss_contract.reading import ABSENT, Read, Unreadable, is_unknown, value_of
from isoloss_contract.records import DataManifest, EvaluationResult
from isoloss_operator.api import (
    Checkpoint,
    HyperparamPredictionSpec,
    HyperparamPredictionStatus,
    ScalingSweepSpec,
)
from isoloss_operator.decide.conditions import READY, Finding
from isoloss_operator.decide.evaluation import (
    EvaluationStep,
    checkpoint_gone_step,
    evaluation_step,
    given_loss_step,
)
from isoloss_operator.decide.fits import FitOutcome
from isoloss_operator.decide.law_status import texts
from isoloss_operator.decide.observation import ObservedPrediction, ObservedReference
from isoloss_operator.decide.prediction_status import (
    answered,
    for_target,
    given,
    has_previous_answer,
    measured,
    predicted,
)
from isoloss_operator.decide.reasons import Reason
from isoloss_operator.decide.sweep_reference import final_fit
from isoloss_operator.planning.specs import InvalidSpec


@dataclass(frozen=True)
class PredictionView:
    """A prediction whose sweep has its corpus: what the checks below ask for, worked out once."""

    observed: ObservedPrediction
    spec: HyperparamPredictionSpec
    reference: ObservedReference
    sweep: ScalingSweepSpec
    manifest: DataManifest
    removed_data: str = ""
    """Why nothing can be measured on the corpus any more; empty: it is in the store."""

    @cached_property
    def step(self) -> EvaluationStep:
        """What to do about the initial loss."""
        if self.spec.checkpoint is None:
            return given_loss_step(self.observed, self.sweep, self.spec.initial_loss or "")
        if self.checkpoint_gone:
            return checkpoint_gone_step(self.observed, self.checkpoint_gone)
        return evaluation_step(
            self.observed,
            self.sweep,
            self.manifest,
            self.spec.checkpoint,
            suspended=self.spec.suspend,
            removed_data=self.removed_data,
            is_answered=has_previous_answer(self.observed),
        )

    @property
    def checkpoint_gone(self) -> str:
        """What to do if the checkpoint of the answer that is kept is gone; empty: it is not."""
        found = self.observed.checkpoint_stamp
        if not isinstance(found, Unreadable) or not has_previous_answer(self.observed):
            return ""
        return f"{found.message}: put them back, or give spec.initialLoss"

    @property
    def result(self) -> EvaluationResult | None:
        """The measured loss; None if the spec has one, or nothing is measured yet."""
        return self.step.result

    @property
    def measurement(self) -> HyperparamPredictionStatus:
        """The initial loss as the status shows it."""
        if self.result is not None:
            return measured(self.result, self.sweep)
        return given(self.spec.initial_loss or "")

    @cached_property
    def fit(self) -> FitOutcome | Finding:
        """The final fit of the sweep's present generation, or why there is none."""
        return final_fit(self.reference, self.observed.fit)

    @cached_property
    def prediction_in_sweep_sequences(self) -> Prediction | Finding:
        """The answer of the final laws, or why there is none; batch sizes in sequences of the sweep's length."""
        if isinstance(self.fit, Finding):
            return self.fit
        return self._predicted_by(self.fit)

    @cached_property
    def prediction(self) -> Prediction | Finding:
        """The same in sequences of the target's length."""
        return self._for_target(self.prediction_in_sweep_sequences)

    @property
    def answer(self) -> HyperparamPredictionStatus:
        """The answer of the final laws; an empty one if there is none."""
        if isinstance(self.prediction, Finding) or isinstance(self.fit, Finding):
            return HyperparamPredictionStatus()
        return self._answered(self.prediction, self.fit)

    @property
    def keeps_answer(self) -> bool:
        """Whether the former answer is kept, marked stale, as there is no new one and none is refused."""
        is_unmeasured = self.step.finding.status != "True"
        waits = isinstance(self.fit, Finding) and not isinstance(self.fit.reason, RefusalReason)
        return (is_unmeasured or waits) and has_previous_answer(self.observed)

    @property
    def preview(self) -> HyperparamPredictionStatus | None:
        """The answer of provisional laws, to look at while the sweep runs; None without one."""
        fit = value_of(self.observed.fit)
        if fit is None or fit.laws is None or fit.laws.status != "provisional":
            return None
        prediction = self._for_target(self._predicted_by(fit))
        return None if isinstance(prediction, Finding) else self._answered(prediction, fit)

    def _predicted_by(self, fit: FitOutcome) -> Prediction | Finding:
        """The answer of a fit's laws in sequences of the sweep's length, or why they give none."""
        if fit.laws is None:
            return Finding.false(Reason.LAWS_UNREADABLE, "laws.json is missing.")
        return predicted(fit.laws, self.spec, self.sweep, self.result)

    def _for_target(self, prediction: Prediction | Finding) -> Prediction | Finding:
        if isinstance(prediction, Finding):
            return prediction
        return for_target(prediction, self.spec, self.sweep)

    def _answered(self, prediction: Prediction, fit: FitOutcome) -> HyperparamPredictionStatus:
        """The answer as the status shows it."""
        unnoticed = self._unnoticed
        return answered(
            prediction, self.spec, self.sweep, self.reference, fit, self.result, unnoticed
        )

    @property
    def _unnoticed(self) -> tuple[str, ...]:
        """What may change without an event."""
        checkpoint = self.spec.checkpoint
        if checkpoint is None or self.observed.checkpoint_stamp != ABSENT:
            return ()
        return (_unlisted(checkpoint),)


def prediction_view(observed: ObservedPrediction) -> PredictionView | None:
    """The view of a prediction; None if its spec, its sweep or its store is not as it should be, or the corpus is
    not prepared yet."""
    spec, reference, manifest = observed.spec, observed.sweep, corpus_of_laws(observed)
    if isinstance(spec, InvalidSpec) or observed.storage_refusal or unanswered(observed):
        return None
    if reference is None or isinstance(reference.spec, InvalidSpec) or manifest is None:
        return None
    removed = "" if manifest is value_of(observed.manifest) else _removed(reference, manifest)
    return PredictionView(observed, spec, reference, reference.spec, manifest, removed)


def corpus_of_laws(observed: ObservedPrediction) -> DataManifest | None:
    """The corpus of the sweep: as its ledger has it if that was read, else what is prepared."""
    recorded, found = value_of(observed.corpus), value_of(observed.manifest)
    if recorded is None or (found is not None and found.digest == recorded.digest):
        return found
    return recorded


def needs_corpus(observed: ObservedPrediction) -> bool:
    """Whether the sweep's ledger is to be asked for its corpus: the sweep is finished, and what is prepared is not
    what its points were trained on."""
    reference = observed.sweep
    if reference is None or is_unknown(observed.manifest):
        return False
    ready = reference.conditions.get(READY)
    if ready is None or ready.status != "True":
        return False
    trained_on = reference.parsed_status.data_digest
    manifest = value_of(observed.manifest)
    return manifest is None or bool(trained_on and manifest.digest != trained_on)


def _removed(reference: ObservedReference, corpus: DataManifest) -> str:
    folder = layout.data_manifest(corpus.prepare_key).rpartition("/")[0]
    return (
        f"The corpus of ScalingSweep {reference.name} is no longer in its store: {folder}/ is not there, or has "
        f"another digest than {corpus.digest[:16]}. The laws need it no more, but nothing more can be measured: "
        "put it back"
    )


def unanswered(observed: ObservedPrediction) -> str:
    """What the store said instead of an answer; empty: it answered."""
    stamp: Read[object] = observed.checkpoint_stamp
    measured: tuple[Read[object], ...] = (stamp, observed.evaluation, observed.fit)
    reads = (observed.manifest, observed.corpus, *measured)
    message = next((read.message for read in reads if is_unknown(read)), "")
    return observed.store_error or message or _listed_no_longer(observed)


def _listed_no_longer(observed: ObservedPrediction) -> str:
    """What to do if the answer that is kept is of files that may not be listed any more; empty: it is not.

    Under the URI alone they would be measured again.
    """
    spec, before = observed.spec, observed.previous_status
    if isinstance(spec, InvalidSpec) or spec.checkpoint is None:
        return ""
    if observed.checkpoint_stamp != ABSENT or not has_previous_answer(observed):
        return ""
    # An answer says of itself that its checkpoint could not be listed.
    if texts([_unlisted(spec.checkpoint)])[0] in before.warnings:
        return ""
    return (
        f"The operator may no longer list {spec.checkpoint.uri}, as it could when the checkpoint was measured: "
        "grant that again, or give spec.initialLoss"
    )


def _unlisted(checkpoint: Checkpoint) -> str:
    return f"The operator may not list {checkpoint.uri}: other weights under this address would not be noticed."
