"""Whether a prediction may be answered: its spec, the sweep that it names, their store; what the status has of an answer to
the present question.
"""

from __future__ import annotations

from dataclasses import dataclass

from isoloss.laws import RefusalReason
from isoloss_contract import layout
from isoloss_contract.reading import ABSENT, Read, Unreadable, is_unknown, value_of
from isoloss_contract.records import DataManifest, content_key
from isoloss_operator.api import HyperparamPredictionSpec, ScalingSweepSpec
from isoloss_operator.decide.conditions import texts
from isoloss_operator.decide.fits import FitOutcome
from isoloss_operator.decide.observation import ObservedPrediction, ObservedReference
from isoloss_operator.decide.reasons import READY, STALE, Finding, Reason
from isoloss_operator.planning.specs import InvalidSpec


@dataclass(frozen=True)
class AcceptedPrediction:
    """A prediction with a valid spec whose sweep has its corpus."""

    observed: ObservedPrediction
    spec: HyperparamPredictionSpec
    reference: ObservedReference
    sweep: ScalingSweepSpec
    """Its spec."""
    manifest: DataManifest
    """The corpus of its laws."""
    removed_data: str
    """Why nothing can be measured on the corpus any more; empty: it is in the store."""
    question: Question
    is_checkpoint_gone: bool
    """Whether the checkpoint of that answer is not there any more."""
    unnoticed: str
    """What may change without an event; empty: nothing."""
    fit: FitOutcome | Finding
    """The final fit of the sweep's present generation, or why there is none."""
    judge_awaited: Finding | None
    """Why the sweep of spec.validation is not ready under its present spec; None: it is, or there is none."""


def check_prediction(
    observed: ObservedPrediction, question: Question
) -> AcceptedPrediction | Finding:
    """The prediction if its sweep, its store and its corpus are as they should be, or what is the matter."""
    spec, reference = observed.spec, observed.sweep
    if isinstance(spec, InvalidSpec):
        return Finding(Reason.INVALID_SPEC, str(spec), stalled=True)
    if observed.storage_refusal:
        return Finding(Reason.STORAGE_NOT_ALLOWED, observed.storage_refusal, stalled=True)
    if reference is None:
        message = f"There is no ScalingSweep {spec.sweep_ref.name} in this namespace."
        return Finding(Reason.SWEEP_NOT_FOUND, message)
    if isinstance(reference.spec, InvalidSpec):
        return Finding(Reason.SWEEP_INVALID, str(reference.spec))
    unlisted, is_answered = _unlisted(observed, spec), question.is_answered
    if message := _unanswered(observed) or _listed_no_longer(observed, unlisted, is_answered):
        return Finding(Reason.STORAGE_UNREACHABLE, message)
    manifest = corpus_of_laws(observed)
    if manifest is None:  # before the corpus is prepared nothing can be measured
        return sweep_not_ready(reference)
    judge = observed.validation.reference
    return AcceptedPrediction(
        observed=observed,
        spec=spec,
        reference=reference,
        sweep=reference.spec,
        manifest=manifest,
        removed_data=_removed(observed, reference, manifest),
        question=question,
        is_checkpoint_gone=is_answered and isinstance(observed.checkpoint_stamp, Unreadable),
        unnoticed=unlisted,
        fit=_final_fit(reference, observed.fit),
        judge_awaited=None if judge is None else _present_not_ready(judge),
    )


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


def _removed(
    observed: ObservedPrediction, reference: ObservedReference, corpus: DataManifest
) -> str:
    if corpus is value_of(observed.manifest):
        return ""
    folder = layout.data_manifest(corpus.prepare_key).rpartition("/")[0]
    return (
        f"The corpus of ScalingSweep {reference.name} is no longer in its store: {folder}/ is not there, or has "
        f"another digest than {corpus.digest[:16]}. The laws no longer need it, but nothing more can be measured: "
        "put it back"
    )


def _unanswered(observed: ObservedPrediction) -> str:
    """What the store said instead of an answer; empty: it answered."""
    stamp: Read[object] = observed.checkpoint_stamp
    measured: tuple[Read[object], ...] = (stamp, observed.evaluation, observed.fit)
    reads = (observed.manifest, observed.corpus, *measured)
    message = next((read.message for read in reads if is_unknown(read)), "")
    return observed.store_error or message


def _unlisted(observed: ObservedPrediction, spec: HyperparamPredictionSpec) -> str:
    """Of a checkpoint whose files may not be listed; empty: they may, or there is none."""
    if spec.checkpoint is None or observed.checkpoint_stamp != ABSENT:
        return ""
    uri = spec.checkpoint.uri
    return (
        f"The operator may not list {uri}: it cannot notice that the weights there were replaced."
    )


def _listed_no_longer(observed: ObservedPrediction, unlisted: str, is_answered: bool) -> str:
    """What to do if the answer that is kept is of files that may not be listed any more; empty: it is not.

    Under the URI alone they would be measured again.
    """
    spec = observed.spec
    if not (unlisted and is_answered) or isinstance(spec, InvalidSpec) or spec.checkpoint is None:
        return ""
    # An answer says of itself that its checkpoint could not be listed.
    if texts([unlisted])[0] in observed.previous_status.warnings:
        return ""
    return (
        f"The operator may no longer list {spec.checkpoint.uri}, as it could when the checkpoint was measured: "
        "grant that again, or give spec.initialLoss"
    )


# ------------------------------------------------------------------------------ what its sweep has come to


def sweep_not_ready(reference: ObservedReference) -> Finding:
    """Why a sweep gives no answer yet, in the words of its own Ready."""
    name, ready = reference.name, reference.conditions.get(READY)
    if ready is None:
        return Finding(
            Reason.SWEEP_NOT_READY, f"The operator has not processed ScalingSweep {name} yet."
        )
    found = Finding.of(ready)
    if isinstance(found.reason, RefusalReason):
        message = f"The laws of ScalingSweep {name} were refused: {ready.message}"
        return Finding(found.reason, message, stalled=True)
    message = f"ScalingSweep {name} is not ready ({ready.reason}): {ready.message}"
    return Finding(Reason.SWEEP_NOT_READY, message)


def _present_not_ready(reference: ObservedReference) -> Finding | None:
    """The same of its present generation; None: that is ready."""
    ready = reference.conditions.get(READY)
    if ready is None or ready.status != "True":
        return sweep_not_ready(reference)
    if ready.observed_generation != reference.generation:
        message = f"The operator has not processed the changed ScalingSweep {reference.name} yet."
        return Finding(Reason.SWEEP_CHANGED, message)
    return None


def _final_fit(reference: ObservedReference, read: Read[FitOutcome]) -> FitOutcome | Finding:
    """The final fit of a sweep's present generation, or why there is none. `read` is what is stored."""
    if awaited := _present_not_ready(reference):
        return awaited
    if reference.conditions[READY].reason == Reason.NOTHING_TO_FIT:
        message = f"ScalingSweep {reference.name} has no laws, as its points lie around answers: name the sweep whose laws answer"
        return Finding(Reason.SWEEP_INVALID, message, stalled=True)
    fit = value_of(read)
    if fit is None or fit.laws is None:
        return Finding(Reason.LAWS_UNREADABLE, "laws.json is missing or cannot be read.")
    if fit.laws_sha256 != reference.parsed_status.laws_sha256:
        message = "laws.json is not the one that the sweep's status names."
        return Finding(Reason.LAWS_UNREADABLE, message)
    return fit


# ------------------------------------------------------------ whether the status is of the present spec


@dataclass(frozen=True)
class Question:
    """What the present spec asks, and what the status has of it."""

    digest: str
    """Empty: the spec is invalid."""
    judged_digest: str
    """The same with what the answer is judged by."""
    is_of_status: bool
    """Whether what the status says is about this question."""
    is_answered: bool
    """Whether the status has an answer to it, published or not: it is not withdrawn lightly."""
    is_judged: bool
    """Whether the verdict in the status is on an answer to it."""


def present_question(observed: ObservedPrediction) -> Question:
    """The question of the present spec."""
    spec, status = observed.spec, observed.previous_status
    if isinstance(spec, InvalidSpec):
        return Question("", "", is_of_status=False, is_answered=False, is_judged=False)
    digest = judged = content_key(_asked(spec))
    if spec.validation is not None:
        judged = content_key([_asked(spec), spec.validation.model_dump(mode="json")])
    stale, verdict = observed.previous_conditions.get(STALE), status.validation
    is_given = stale is not None and stale.reason != Reason.NOTHING_WRONG
    is_of_status = status.question_digest == digest
    return Question(
        digest,
        judged,
        is_of_status=is_of_status,
        is_answered=is_given and is_of_status,
        is_judged=verdict is not None and verdict.question_digest == judged,
    )


def _asked(spec: HyperparamPredictionSpec) -> dict[str, object]:
    return spec.model_dump(
        mode="json",
        exclude_defaults=True,
        exclude={  # what changes neither the answer nor the initial loss
            "suspend": True,
            "publish": True,
            "validation": True,
            "checkpoint": {"secret_name": True, "pod_template": True},
        },
    )
