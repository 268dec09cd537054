"""Reading another resource, to which a sweep or a prediction refers, and which corpus is a sweep's."""

from dataclasses import replace

from isoloss_contract import layout
from isoloss_contract.ledger import Ledger
from isoloss_contract.reading import ABSENT, Read, is_unknown, value_of
from isoloss_contract.records import DataManifest, SweepCorpus
from isoloss_operator.api import ScalingSweepSpec
from isoloss_operator.cluster.client import PREDICTION, SWEEP
from isoloss_operator.decide.checks import corpus_of_ledger
from isoloss_operator.decide.fits import FitOutcome
from isoloss_operator.decide.observation import (
    FirstReads,
    ObservedAnswer,
    ObservedPrediction,
    ObservedReference,
    ObservedSweep,
)
from isoloss_operator.decide.prediction_checks import needs_corpus
from isoloss_operator.planning import specs
from isoloss_operator.planning.points import prepare_config
from isoloss_operator.reconcile.resource import Services, parsed


def read_reference(services: Services, namespace: str, name: str) -> ObservedReference | None:
    """The sweep of this name; None if there is none."""
    body = services.cluster.get(SWEEP, namespace, name)
    if body is None:
        return None
    metadata = body["metadata"]
    return ObservedReference(
        name=name,
        uid=metadata["uid"],
        generation=metadata["generation"],
        spec=parsed(specs.parse_sweep_spec, body),
        status=body.get("status") or {},
    )


def read_answer(services: Services, namespace: str, name: str) -> ObservedAnswer | None:
    """The prediction of this name; None if there is none."""
    body = services.cluster.get(PREDICTION, namespace, name)
    if body is None:
        return None
    return ObservedAnswer(
        generation=body["metadata"]["generation"],
        spec=parsed(specs.parse_prediction_spec, body),
        status=body.get("status") or {},
    )


def read_laws(
    services: Services, reads: FirstReads, reference: ObservedReference | None
) -> Read[FitOutcome]:
    """The stored laws of a sweep."""
    known = (reference.status.get("lawsSha256") or "") if reference else ""
    return services.storage.fit_outcome(reads.store_uri, layout.laws_in(reads.folder), known)


def corpus_of_sweep(
    services: Services, reads: FirstReads, spec: ScalingSweepSpec, ledger: Ledger | None
) -> Read[str]:
    """Key of the corpus of a sweep: of a sweep that has begun the one in its ledger, else the one that a prepare Job
    has found to be of the sources as they are; absent if none has."""
    if (known := corpus_of_ledger(spec, ledger)) is not None:
        return known.key
    stored = services.storage.sweep_corpus(reads.store_uri, reads.corpus)
    if is_unknown(stored):
        return stored
    if not isinstance(stored, SweepCorpus):
        return ABSENT
    # Anything else is no corpus of this spec: the Job runs again and says which is.
    possible = {prepare_config(spec, stamp).key for stamp in ("", stored.sources_stamp)}
    return stored.prepare_key if stored.prepare_key in possible else ABSENT


def with_corpus(services: Services, reads: FirstReads, observed: ObservedSweep) -> ObservedSweep:
    """The sweep with the manifest of its corpus, once it is known which that is."""
    assert not isinstance(observed.spec, specs.InvalidSpec)  # first_reads says so
    ledger, uri, manifest = value_of(observed.ledger), reads.store_uri, services.storage.manifest
    key = corpus_of_sweep(services, reads, observed.spec, ledger)
    if isinstance(key, str):
        found = manifest(uri, layout.data_manifest(key))
        return replace(observed, corpus_key=key, manifest=found)
    digest = observed.previous_status.data_digest
    if key == ABSENT and ledger is None and digest:
        # It began before prepare Jobs said so, and its ledger is lost: its Jobs train on what its status names.
        asked = prepare_config(observed.spec).key
        found = manifest(uri, layout.data_manifest(asked))
        known = value_of(found)
        if known is not None and known.digest == digest:
            return replace(observed, corpus_key=asked, manifest=found)
    return replace(observed, manifest=key)


def manifest_of(
    services: Services, reads: FirstReads, reference: ObservedReference | None
) -> Read[DataManifest]:
    """Manifest of the corpus of a sweep; absent if it has none yet."""
    if reference is None or isinstance(reference.spec, specs.InvalidSpec):
        return ABSENT
    key = corpus_of_sweep(services, reads, reference.spec, None)
    if key == ABSENT and reference.parsed_status.data_digest:
        # It began before prepare Jobs said so, or what they said went with its data.
        key = prepare_config(reference.spec).key
    if not isinstance(key, str):
        return key
    return services.storage.manifest(reads.store_uri, layout.data_manifest(key))


def corpora_of(
    services: Services, reads: FirstReads, observed: ObservedPrediction
) -> tuple[Read[DataManifest], Read[DataManifest]]:
    """ObservedPrediction.manifest and ObservedPrediction.corpus."""
    found = manifest_of(services, reads, observed.sweep)
    if not needs_corpus(replace(observed, manifest=found)):
        return found, ABSENT
    recorded = services.ledgers.corpus(reads.store_uri, reads.folder)
    known, stored = value_of(recorded), value_of(found)
    if known is not None and (stored is None or stored.prepare_key != known.prepare_key):
        # What its Job said of it lies in another folder, which may be gone.
        path = layout.data_manifest(known.prepare_key)
        found = services.storage.manifest(reads.store_uri, path)
    return found, recorded
