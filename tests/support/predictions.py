"""Predictions for tests of the pure core: specs, the sweep they refer to, evaluations, Jobs."""

from collections.abc import Mapping
from dataclasses import replace
from datetime import timedelta
from typing import Any

from isoloss.laws import FitOptions, Laws, Refusal, RefusalReason, refused_laws
from isoloss_contract.ledger import Ledger
from isoloss_contract.reading import ABSENT, Read
from isoloss_contract.records import DomainLoss, EvaluationResult, ParameterCounts
from isoloss_operator.api import Checkpoint, HyperparamPredictionSpec
from isoloss_operator.decide.fits import FitOutcome
from isoloss_operator.decide.jobs import store_label
from isoloss_operator.decide.observation import (
    ObservedJob,
    ObservedPod,
    ObservedPrediction,
    ObservedReference,
)
from isoloss_operator.decide.plans import PredictionPlan
from isoloss_operator.decide.prediction import decide_prediction
from isoloss_operator.decide.single_task import evaluate_config
from isoloss_operator.planning.specs import InvalidSpec, parse_prediction_spec, parse_sweep_spec
from tests.support.builders import NOW, STORE, manifest, parsed, stated, sweep_spec
from tests.support.ledgers import read_back
from tests.support.synthetic_runs import fitted_laws

SWEEP_UID = "5bd5f7a2-0000-4000-8000-000000000002"
CHECKPOINT = "s3://models/dense-8b"
STAMP = "5" * 64
CONFIG = evaluate_config(
    parse_sweep_spec(sweep_spec()), manifest(), Checkpoint(uri=CHECKPOINT), STAMP
)
LAWS_SHA = "f" * 64


def prediction_spec(**changes: Any) -> dict[str, Any]:
    spec: dict[str, Any] = {
        "sweepRef": {"name": "demo"},
        "checkpoint": {"uri": CHECKPOINT},
        "budget": {"flops": "1e19"},
        "batchSizeMultipleOf": 8,
        "publish": {"configMapName": "dense-8b-hyperparams"},
    }
    return {name: value for name, value in {**spec, **changes}.items() if value is not None}


def parsed_prediction(raw: Mapping[str, Any]) -> HyperparamPredictionSpec | InvalidSpec:
    try:
        return parse_prediction_spec(raw)
    except InvalidSpec as error:
        return error


def given_loss(loss: str, **changes: Any) -> dict[str, Any]:
    return prediction_spec(checkpoint=None, initialLoss=loss, **changes)


def answer_status(rate: str, batch: str, *conditions: dict[str, Any]) -> dict[str, Any]:
    """A prediction that is Ready with this answer, unless these are its conditions."""
    ready = conditions or (stated("Ready", "True", "Predicted"),)
    values = {"learningRate": {"value": rate}, "batchSize": {"value": batch}}
    return {"conditions": [*ready], **values}


def sweep(
    status: str = "True", reason: str = "Fitted", message: str = "Fitted.", **changes: Any
) -> ObservedReference:
    generation = changes.get("generation", 1)
    seen = changes.pop("observed_generation", generation)
    ready = stated("Ready", status, reason, message, observedGeneration=seen)
    fields: dict[str, Any] = {
        "name": "demo",
        "uid": SWEEP_UID,
        "generation": generation,
        "spec": parsed(sweep_spec()),
        # Ready repeats what FitReady says of laws that are final.
        "status": {"conditions": [ready, {**ready, "type": "FitReady"}], "lawsSha256": LAWS_SHA},
    }
    return ObservedReference(**{**fields, **changes})


def sweep_body(raw: Mapping[str, Any], *words: str, **changes: Any) -> dict[str, Any]:
    """The same as the API server has it, of a raw spec."""
    found = sweep(*words, **changes)
    metadata = {"uid": found.uid, "generation": found.generation}
    return {"metadata": metadata, "spec": raw, "status": found.status}


def fit(laws: Laws | None = None, **changes: Any) -> FitOutcome:
    fields: dict[str, Any] = {
        "inputs": "i",
        "laws": laws or fitted_laws(),
        "laws_sha256": LAWS_SHA,
        "ledger_sha256": "a" * 64,
        "points": 75,
    }
    return FitOutcome(**{**fields, **changes})


def evaluation(**changes: Any) -> EvaluationResult:
    fields: dict[str, Any] = {
        "key": CONFIG.key,
        "loss": 3.2,
        "loss_standard_error": 0.001,
        "domains": {"general": DomainLoss(loss=3.3), "math": DomainLoss(loss=2.8)},
        "nats_per_byte": 0.8,
        "evaluated_tokens": 180_000,
        "parameters": ParameterCounts(
            body_active=10**9, body_total=10**9, head=10**8, embedding=0
        ),
        "model_type": "llama",
        "tokenizer_digest": "e" * 32,
        "same_tokenizer": True,
        "accelerator_seconds": 12.0,
    }
    return EvaluationResult(**{**fields, **changes})


def observed(spec: Mapping[str, Any] | None = None, **changes: Any) -> ObservedPrediction:
    """A prediction whose sweep is ready and whose checkpoint is measured."""
    fields: dict[str, Any] = {
        "name": "dense-8b",
        "namespace": "research",
        "uid": "uid-p",
        "generation": 1,
        "now": NOW,
        "spec": parsed_prediction(prediction_spec() if spec is None else spec),
        "sweep": sweep(),
        "manifest": manifest(),
        "fit": fit(),
        "checkpoint_stamp": STAMP,
        "evaluation": evaluation(),
    }
    return ObservedPrediction(**{**fields, **changes})


def after(world: ObservedPrediction, plan: PredictionPlan, **changes: Any) -> ObservedPrediction:
    status = plan.status.model_dump(mode="json", by_alias=True, exclude_none=True)
    return replace(world, **{"status": status, **changes})


def answered(**changes: Any) -> ObservedPrediction:
    """A prediction that has its answer; `changes` come afterwards."""
    world = observed()
    return after(world, decide_prediction(world), **changes)


def job(**changes: Any) -> ObservedJob:
    fields: dict[str, Any] = {
        "name": "dense-8b-evaluate-1",
        "uid": "j1",
        "kind": "evaluate",
        "key": CONFIG.key,
        "attempt": 1,
        "store": store_label(STORE),
        "created": NOW - timedelta(seconds=20),
        "unfinished_pods": 1,
        "pod": ObservedPod(phase="Running"),
    }
    return ObservedJob(**{**fields, **changes})


def ended(exit_code: int, message: str = "", **changes: Any) -> ObservedJob:
    pod = ObservedPod(phase="Failed", exit_code=exit_code, termination_message=message)
    return job(**{"failed": True, "unfinished_pods": 0, "pod": pod, **changes})


def recorded(
    *jobs: ObservedJob, ago: timedelta = timedelta(), **changes: Any
) -> ObservedPrediction:
    """An unmeasured prediction whose ledger took in the ends of these Jobs so long ago, one pass after the other."""
    ledger: Read[Ledger] = ABSENT
    for count in range(1, len(jobs) + 1):
        world = observed(evaluation=ABSENT, jobs=jobs[:count], now=NOW - ago)
        plan = decide_prediction(replace(world, ledger=ledger))
        assert plan.ledger is not None, "an attempt ended"
        ledger = read_back(plan.ledger)
    return observed(**{"evaluation": ABSENT, "jobs": jobs, "ledger": ledger, **changes})


def refused() -> Laws:
    refusal = Refusal(RefusalReason.NO_COMMON_LOSS_RANGE, "Train the small size for longer.")
    return refused_laws(refusal, (), FitOptions())
