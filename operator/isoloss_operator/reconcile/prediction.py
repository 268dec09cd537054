"""One pass over a HyperparamPrediction: observe, decide, apply, one status write."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from isoloss_contract import layout
from isoloss_contract.reading import ABSENT, Read, value_of
from isoloss_contract.store import StoreError, time_limit
from isoloss_operator.cluster.client import CONFIG_MAP, PREDICTION, Refused
from isoloss_operator.cluster.config_maps import publish_config_map
from isoloss_operator.cluster.jobs import FORBIDDEN
from isoloss_operator.cluster.manifests import Owner
from isoloss_operator.cluster.observe import is_owned_by
from isoloss_operator.cluster.resource_keys import ResourceKey
from isoloss_operator.decide.fits import FitOutcome
from isoloss_operator.decide.labels import LABEL_OWNER_UID
from isoloss_operator.decide.observation import (
    ObservedPrediction,
    ObservedProbes,
    ObservedReference,
    PredictionReads,
)
from isoloss_operator.decide.plans import ConfigMapDeletion, ConfigMapRequest, PredictionPlan
from isoloss_operator.decide.prediction import decide_prediction
from isoloss_operator.decide.prediction_reads import (
    checkpoint_of_evaluation,
    checkpoint_of_probes,
    evaluation_path,
    prediction_reads,
    probe_reads,
    probes_folder,
)
from isoloss_operator.decide.prediction_view import needs_corpus, prediction_view
from isoloss_operator.decide.suspension import unrecorded
from isoloss_operator.planning.specs import InvalidSpec, parse_prediction_spec
from isoloss_operator.reconcile.intervals import next_look
from isoloss_operator.reconcile.passes import (
    STORE_SECONDS,
    Memories,
    Memory,
    Object,
    StatusChanged,
    after_trouble,
    carry_out,
    create_error,
    had_trouble,
    parsed,
    read_jobs,
    reporting_failures,
    stop_suspended,
    tolerated,
    write_status,
)
from isoloss_operator.reconcile.points import (
    change_jobs,
    count_attempts,
    read_points,
    store_ledger,
)
from isoloss_operator.reconcile.references import read_laws, read_reference
from isoloss_operator.reconcile.services import Services


@dataclass(frozen=True)
class _ConfigMaps:
    """What a prediction has published, and what has the name it wants to publish under."""

    own: Mapping[str, Object]
    """By name: those with its label and its owner reference."""
    wanted: Object | None
    """Of the name that the spec asks for, with any owner."""


class PredictionReconciler:
    """Reconciles predictions by key; called by one worker per key at a time."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._memories = Memories()

    def __call__(self, key: ResourceKey) -> float | None:
        """Bring the world one step on; seconds until the next look, None once it is gone."""
        services = self._services
        body = services.cluster.get(PREDICTION, key.namespace, key.name)
        if body is None or "deletionTimestamp" in body["metadata"]:
            self._forget(key)
            return None
        metadata = body["metadata"]
        owner = Owner(PREDICTION, key.namespace, key.name, metadata["uid"])
        services.watchdog.read(key, {owner.uid: metadata["resourceVersion"]})
        memory = self._memories.of(key, owner.uid)
        with reporting_failures(services, owner, memory, body):
            return self._pass(key, owner, body, memory)

    def _pass(self, key: ResourceKey, owner: Owner, body: Object, memory: Memory) -> float:
        services, was_in_trouble = self._services, had_trouble(memory)
        config_maps = self._config_maps(owner, body)
        observed = self._observe(key, owner, body, memory, config_maps)
        plan = decide_prediction(observed)
        done = carry_out(
            memory,
            observed.generation,
            lambda: self._carry_out(key, memory, owner, observed, plan, config_maps.wanted),
        )
        if done:
            written = plan.probes.ledger if plan.probes else None
            memory.stopped = unrecorded(
                memory.stopped, written or value_of(observed.probes.ledger)
            )
        elif not was_in_trouble:
            return 0.0
        try:
            again = write_status(services, owner, memory, body, plan.status, plan.events)
        except StatusChanged:
            return 0.0
        services.metrics.statuses.show_prediction(
            (key.namespace, key.name), plan.status, time.time()
        )
        look = next_look(plan.requeue_after, services.settings)
        return min(again, look, after_trouble(memory) if was_in_trouble else look)

    # --------------------------------------------------------------------------------- observe

    def _observe(
        self,
        key: ResourceKey,
        owner: Owner,
        body: Object,
        memory: Memory,
        config_maps: _ConfigMaps,
    ) -> ObservedPrediction:
        wanted = config_maps.wanted
        generation = body["metadata"]["generation"]
        live, asked = read_jobs(self._services, owner, key), parsed(parse_prediction_spec, body)
        observed = ObservedPrediction(
            name=owner.name,
            namespace=owner.namespace,
            uid=owner.uid,
            generation=generation,
            now=self._services.cluster.clock.now(),
            spec=asked,
            status=body.get("status") or {},
            jobs=live.jobs,
            stopped=stop_suspended(self._services, owner, memory, asked, live),
            orphaned_pods=live.orphaned_pods,
            sweep=self._sweep(owner.namespace, body.get("spec") or {}),
            config_map_foreign=wanted is not None and not is_owned_by(wanted, owner.uid),
            published={n: each["metadata"]["uid"] for n, each in config_maps.own.items()},
            create_error=create_error(memory, generation),
            refusal_may_pass=memory.refusal_may_pass,
            store_write_error=memory.store_write_error,
            write_error=memory.write_error,
            publish_error=memory.publish_error,
            publish_error_may_pass=memory.publish_error_may_pass,
        )
        settings, spec = self._services.settings, observed.spec
        if not isinstance(spec, InvalidSpec) and spec.checkpoint is not None:
            checkpoint = {"spec.checkpoint.uri": spec.checkpoint.uri}
            if refusal := settings.refused_sources(owner.namespace, checkpoint):
                return replace(observed, storage_refusal=refusal)
        reads = prediction_reads(observed)
        if reads is None:
            return observed
        if not settings.allows_storage(owner.namespace, reads.store_uri):
            return replace(observed, storage_refusal=settings.storage_refusal(owner.namespace))
        try:
            with time_limit(STORE_SECONDS):
                return self._read_store(observed, memory, reads)
        except StoreError as error:
            return replace(observed, store_error=str(error))

    def _read_store(
        self, observed: ObservedPrediction, memory: Memory, reads: PredictionReads
    ) -> ObservedPrediction:
        storage, uri = self._services.storage, reads.store_uri
        checkpoint = checkpoint_of_evaluation(observed)
        observed = replace(
            observed,
            manifest=storage.manifest(uri, reads.manifest),
            checkpoint_stamp=storage.checkpoint_stamp(checkpoint) if checkpoint else ABSENT,
        )
        if observed.sweep is not None and needs_corpus(observed):
            folder = layout.sweep_folder(observed.sweep.name, observed.sweep.uid)
            observed = replace(observed, corpus=self._services.ledgers.corpus(uri, folder))
        path = evaluation_path(observed)
        observed = replace(
            observed,
            evaluation=storage.evaluation(uri, path) if path else ABSENT,
            fit=self._laws(observed, uri, reads.laws),
        )
        probes = probes_folder(observed)
        return self._read_probes(observed, memory, uri, probes) if probes else observed

    def _read_probes(
        self, observed: ObservedPrediction, memory: Memory, uri: str, folder: str
    ) -> ObservedPrediction:
        services, checkpoint = self._services, checkpoint_of_probes(observed)
        storage = services.storage
        probes = ObservedProbes(
            config=storage.model_config(checkpoint) if checkpoint else ABSENT,
            ledger=services.ledgers.read(uri, folder),
        )
        observed = replace(observed, probes=probes)
        stored = storage.point_names(uri, services.settings.resync_seconds)
        view = prediction_view(observed)
        reads, jobs = probe_reads(view, stored), observed.train_jobs
        found = read_points(services, memory, uri, reads, jobs, observed.now)
        answer = view.prediction_in_sweep_sequences if view else None
        return replace(observed, probes=replace(probes, prediction=answer, **vars(found)))

    def _laws(self, observed: ObservedPrediction, uri: str, path: str) -> Read[FitOutcome]:
        """The sweep's laws."""
        return read_laws(self._services, uri, path, observed.sweep)

    def _sweep(self, namespace: str, spec: Object) -> ObservedReference | None:
        name = (spec.get("sweepRef") or {}).get("name")
        if not isinstance(name, str) or not name:
            return None
        return read_reference(self._services, namespace, name)

    def _config_maps(self, owner: Owner, body: Object) -> _ConfigMaps:
        """Read by the owner's label first: what is found this way is not read again by name."""
        labels = f"{LABEL_OWNER_UID}={owner.uid}"
        own = {
            each["metadata"]["name"]: each
            for each in self._services.cluster.list(CONFIG_MAP, owner.namespace, labels=labels)
            if is_owned_by(each, owner.uid)
        }
        publish = (body.get("spec") or {}).get("publish") or {}
        name = publish.get("configMapName")
        if not isinstance(name, str) or not name:
            return _ConfigMaps(own, None)
        wanted = own.get(name) or self._services.cluster.get(CONFIG_MAP, owner.namespace, name)
        return _ConfigMaps(own, wanted)

    # ----------------------------------------------------------------------------------- apply

    def _carry_out(
        self,
        key: ResourceKey,
        memory: Memory,
        owner: Owner,
        observed: ObservedPrediction,
        plan: PredictionPlan,
        config_map: Object | None,
    ) -> None:
        self._apply(memory, owner, observed, plan, config_map)
        self._apply_probes(key, owner, memory, observed, plan)

    def _apply(
        self,
        memory: Memory,
        owner: Owner,
        observed: ObservedPrediction,
        plan: PredictionPlan,
        config_map: Object | None,
    ) -> None:
        services = self._services
        reads = prediction_reads(observed)
        if reads is not None:
            for request in plan.set_aside:
                services.storage.set_aside(reads.store_uri, request)
        change_jobs(services, owner, memory, plan)
        if plan.publish is not None and not self._publish(memory, owner, plan.publish, config_map):
            return  # the former name keeps the answer until the new one has it
        tolerated(memory, lambda: self._withdraw(owner, plan.withdraw))

    def _apply_probes(
        self,
        key: ResourceKey,
        owner: Owner,
        memory: Memory,
        observed: ObservedPrediction,
        plan: PredictionPlan,
    ) -> None:
        reads, folder = prediction_reads(observed), probes_folder(observed)
        if reads is None or folder is None or plan.probes is None:
            return
        store_ledger(self._services, reads.store_uri, folder, plan.probes)
        change_jobs(self._services, owner, memory, plan.probes)
        count_attempts(self._services, key, observed.probes.ledger, plan.probes)

    def _publish(
        self, memory: Memory, owner: Owner, wanted: ConfigMapRequest, found: Object | None
    ) -> bool:
        """Whether the ConfigMap says what it should."""
        try:
            publish_config_map(self._services.cluster, owner, wanted, found)
        except Refused as error:
            memory.publish_error = str(error)
            memory.publish_error_may_pass = error.status == FORBIDDEN
            return False
        return True

    def _withdraw(self, owner: Owner, former: Sequence[ConfigMapDeletion]) -> None:
        for each in former:
            self._services.cluster.delete(CONFIG_MAP, owner.namespace, each.name, each.uid)

    def _forget(self, key: ResourceKey) -> None:
        self._services.metrics.statuses.drop_prediction((key.namespace, key.name))
        self._services.watchdog.forget(key)
        self._services.watchdog.forget((key, "Job"))
        if memory := self._memories.forget(key):
            self._services.job_reader.forget(memory.uid)
