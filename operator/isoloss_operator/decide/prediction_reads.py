"""What to read from the store for a decision about a prediction."""

from __future__ import annotations

from isoloss_contract import layout
from isoloss_contract.reading import is_unknown, value_of
from isoloss_operator.decide.conditions import Finding
from isoloss_operator.decide.evaluation import evaluate_config
from isoloss_operator.decide.jobs.requests import store_uri
from isoloss_operator.decide.observation import (
    ObservedPrediction,
    PointReads,
    PredictionReads,
)
from isoloss_operator.decide.prediction_view import PredictionView, corpus_of_laws
from isoloss_operator.decide.sweep_reads import point_reads
from isoloss_operator.decide.validation import planned_probes, probe_tasks, unplanned_tasks
from isoloss_operator.planning.specs import InvalidSpec, prepare_config


def prediction_reads(observed: ObservedPrediction) -> PredictionReads | None:
    """Where the sweep's manifest and laws are; None if there is no (valid) sweep."""
    reference = observed.sweep
    if reference is None or isinstance(reference.spec, InvalidSpec):
        return None
    return PredictionReads(
        store_uri=store_uri(reference.spec),
        manifest=layout.data_manifest(prepare_config(reference.spec).key),
        laws=layout.sweep_laws(reference.name, reference.uid),
    )


def checkpoint_of_probes(observed: ObservedPrediction) -> str | None:
    """URI of the checkpoint whose config.json says what the probes train; None: none are asked for."""
    spec = observed.spec
    if isinstance(spec, InvalidSpec) or spec.validation is None or spec.checkpoint is None:
        return None
    return spec.checkpoint.uri.rstrip("/")


def needs_ledger(observed: ObservedPrediction) -> bool:
    """Whether the prediction's ledger is to be read: it is, unless all there is to do is to answer."""
    if needs_probes(observed) or observed.stopped:
        return True
    is_measured = value_of(observed.evaluation) is not None
    return checkpoint_of_evaluation(observed) is not None and not is_measured


def needs_probes(observed: ObservedPrediction) -> bool:
    """Whether probes are asked for, or run."""
    return checkpoint_of_probes(observed) is not None or bool(observed.train_jobs)


def probe_reads(view: PredictionView | None, stored: frozenset[str]) -> PointReads:
    """Which results and progress of probes to read, once all else is known; `stored` as of sweep_reads."""
    if view is None:
        return PointReads()
    planned = planned_probes(view)
    # What those that are to be stopped have cost is wanted, too.
    tasks = unplanned_tasks(view) if isinstance(planned, Finding) else probe_tasks(view, planned)
    return point_reads(tasks, stored)


def evaluation_path(observed: ObservedPrediction) -> str | None:
    """Where the evaluation's result is, once the manifest is read; None: nothing is measured."""
    spec, reference = observed.spec, observed.sweep
    manifest = corpus_of_laws(observed)
    if isinstance(spec, InvalidSpec) or spec.checkpoint is None or manifest is None:
        return None
    if reference is None or isinstance(reference.spec, InvalidSpec):
        return None
    if is_unknown(observed.checkpoint_stamp):
        return None
    stamp = observed.checkpoint_stamp
    return layout.evaluation_result(
        evaluate_config(reference.spec, manifest, spec.checkpoint, stamp).key
    )


def checkpoint_of_evaluation(observed: ObservedPrediction) -> str | None:
    """URI of the checkpoint whose files are looked at before its initial loss; None: nothing is measured."""
    spec = observed.spec
    if isinstance(spec, InvalidSpec) or spec.checkpoint is None:
        return None
    return spec.checkpoint.uri.rstrip("/")
