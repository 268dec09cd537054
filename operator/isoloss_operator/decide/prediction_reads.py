"""What to read from the store for a decision about a prediction."""

from __future__ import annotations

from isoloss_contract import layout
from isoloss_contract.reading import value_of
from isoloss_operator.decide.evaluation import evaluate_config
from isoloss_operator.decide.jobs.requests import store_uri
from isoloss_operator.decide.observation import ObservedPrediction, PredictionReads
from isoloss_operator.planning.specs import InvalidSpec, prepare_config


def prediction_reads(observed: ObservedPrediction) -> PredictionReads | None:
    """Where the sweep's manifest and laws are; None where there is no (valid) sweep."""
    reference = observed.sweep
    if reference is None or isinstance(reference.spec, InvalidSpec):
        return None
    return PredictionReads(
        store_uri=store_uri(reference.spec),
        manifest=layout.data_manifest(prepare_config(reference.spec).key),
        laws=layout.sweep_laws(reference.name, reference.uid),
    )


def evaluation_path(observed: ObservedPrediction) -> str | None:
    """Where the evaluation's result is, once the manifest is read; None: nothing is measured."""
    spec, reference = observed.spec, observed.sweep
    manifest = value_of(observed.manifest)
    if isinstance(spec, InvalidSpec) or spec.checkpoint is None or manifest is None:
        return None
    if reference is None or isinstance(reference.spec, InvalidSpec):
        return None
    return layout.evaluation_result(evaluate_config(reference.spec, manifest, spec.checkpoint).key)
