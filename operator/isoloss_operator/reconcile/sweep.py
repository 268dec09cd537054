"""One pass over a ScalingSweep: observe, decide, apply, one status write.

Being killed anywhere in between is harmless: the ledger goes first, Jobs have deterministic names,
and the next pass reads everything again.
"""

from __future__ import annotations

import time
from dataclasses import replace

from isoloss_contract import layout
from isoloss_contract.reading import ABSENT, Read, Unanswered, value_of
from isoloss_contract.store import StoreError, time_limit
from isoloss_operator.cluster.client import SWEEP
from isoloss_operator.cluster.manifests import Owner
from isoloss_operator.cluster.resource_keys import ResourceKey
from isoloss_operator.decide.fits import FitOutcome
from isoloss_operator.decide.observation import FirstReads, ObservedSweep
from isoloss_operator.decide.plans import SweepPlan
from isoloss_operator.decide.points.ledgers import known_ledger
from isoloss_operator.decide.prior import prior_to_read
from isoloss_operator.decide.suspension import unrecorded
from isoloss_operator.decide.sweep import decide_sweep
from isoloss_operator.decide.sweep_reads import (
    first_reads,
    likenesses_to_read,
    needs_manifest,
    sweep_reads,
)
from isoloss_operator.fitting.fit_jobs import FitJob
from isoloss_operator.planning.specs import parse_sweep_spec
from isoloss_operator.process.sweep_load import sweep_load
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
    write_status,
)
from isoloss_operator.reconcile.points import (
    change_jobs,
    count_attempts,
    read_points,
    store_ledger,
)
from isoloss_operator.reconcile.references import read_prior
from isoloss_operator.reconcile.services import Services


class SweepReconciler:
    """Reconciles sweeps by key; called by one worker per key at a time."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._memories = Memories()

    def __call__(self, key: ResourceKey) -> float | None:
        """Bring the world one step on; seconds until the next look, None once the sweep is gone."""
        services = self._services
        body = services.cluster.get(SWEEP, key.namespace, key.name)
        if body is None or "deletionTimestamp" in body["metadata"]:
            self._forget(key)
            return None
        metadata = body["metadata"]
        owner = Owner(SWEEP, key.namespace, key.name, metadata["uid"])
        services.watchdog.read(key, {owner.uid: metadata["resourceVersion"]})
        if namesake := self._memories.forget_other(key, owner.uid):
            services.fitter.forget(namesake.uid)
        memory = self._memories.of(key, owner.uid)
        with reporting_failures(services, owner, memory, body):
            return self._pass(key, owner, body, memory)

    def _pass(self, key: ResourceKey, owner: Owner, body: Object, memory: Memory) -> float:
        services, was_in_trouble = self._services, had_trouble(memory)
        observed = self._observe(key, owner, body, memory)
        plan = decide_sweep(observed)
        done = carry_out(
            memory, observed.generation, lambda: self._apply(key, owner, memory, observed, plan)
        )
        if done:
            ledger = plan.ledger or value_of(observed.ledger)
            memory.stopped = unrecorded(memory.stopped, ledger)
            count_attempts(services, key, observed.ledger, plan)
        elif not was_in_trouble:
            # The status must not say that all is well: look again and let the decision explain it.
            return 0.0
        try:
            again = write_status(services, owner, memory, body, plan.status, plan.events)
        except StatusChanged:
            return 0.0
        self._measure(key, observed, plan)
        look = next_look(plan.requeue_after, services.settings)
        return min(again, look, after_trouble(memory) if was_in_trouble else look)

    def _measure(self, key: ResourceKey, observed: ObservedSweep, plan: SweepPlan) -> None:
        statuses, name = self._services.metrics.statuses, (key.namespace, key.name)
        statuses.show_sweep(name, plan.status, time.time())
        statuses.show_load(name, sweep_load(observed, plan.status))

    # --------------------------------------------------------------------------------- observe

    def _observe(
        self, key: ResourceKey, owner: Owner, body: Object, memory: Memory
    ) -> ObservedSweep:
        generation = body["metadata"]["generation"]
        live, spec = read_jobs(self._services, owner, key), parsed(parse_sweep_spec, body)
        observed = ObservedSweep(
            name=owner.name,
            namespace=owner.namespace,
            uid=owner.uid,
            generation=generation,
            now=self._services.cluster.clock.now(),
            spec=spec,
            status=body.get("status") or {},
            jobs=live.jobs,
            stopped=stop_suspended(self._services, owner, memory, spec, live),
            orphaned_pods=live.orphaned_pods,
            create_error=create_error(memory, generation),
            refusal_may_pass=memory.refusal_may_pass,
            store_write_error=memory.store_write_error,
            write_error=memory.write_error,
        )
        first = first_reads(observed)
        if first is None:
            return observed
        settings = self._services.settings
        if not settings.allows_storage(owner.namespace, first.store_uri):
            return replace(observed, storage_refusal=settings.storage_refusal(owner.namespace))
        if refusal := settings.refused_sources(owner.namespace, first.sources):
            return replace(observed, storage_refusal=refusal)
        try:
            with time_limit(STORE_SECONDS):
                return self._read_store(observed, owner, memory, first)
        except StoreError as error:
            return replace(observed, store_error=str(error))

    def _read_store(
        self, observed: ObservedSweep, owner: Owner, memory: Memory, first: FirstReads
    ) -> ObservedSweep:
        storage, fitter, uri = self._services.storage, self._services.fitter, first.store_uri
        observed = replace(
            observed,
            ledger=self._services.ledgers.read(uri, first.folder),
            # Read before its outcome: one that ends in between is not taken for one without a report.
            fit_running=fitter.running(owner.uid),
            fit_rests=fitter.rests(owner.uid),
        )
        likes = likenesses_to_read(observed)
        observed = replace(observed, like_configs={c: storage.model_config(c) for c in likes})
        fit = self._newest_fit(owner, memory, uri)
        if isinstance(fit, Unanswered):
            return replace(observed, store_error=fit.message)
        observed = replace(observed, fit=value_of(fit), report_missing=memory.report_missing)
        if not needs_manifest(observed):
            quiet = self._with_points(observed, memory, uri)
            if not needs_manifest(quiet):
                return quiet
        observed = replace(observed, manifest=storage.manifest(uri, first.manifest))
        if prior := prior_to_read(observed):
            observed = replace(observed, prior=read_prior(self._services, owner.namespace, prior))
        return self._with_points(observed, memory, uri)

    def _with_points(self, observed: ObservedSweep, memory: Memory, uri: str) -> ObservedSweep:
        reads = sweep_reads(observed, self._stored_points(observed, uri))
        found = read_points(self._services, memory, uri, reads, observed.jobs, observed.now)
        return replace(observed, **vars(found))

    def _stored_points(self, observed: ObservedSweep, uri: str) -> frozenset[str]:
        """Names under points/, up to a resync old: for results that others wrote into this store."""
        if value_of(observed.manifest) is None and needs_manifest(observed):
            return frozenset()
        return self._services.storage.point_names(uri, self._services.settings.resync_seconds)

    def _newest_fit(self, owner: Owner, memory: Memory, uri: str) -> Read[FitOutcome]:
        """This process' newest fit, or the one that an earlier process left in the store."""
        storage, fitter = self._services.storage, self._services.fitter
        path, known = layout.sweep_laws(owner.name, owner.uid), fitter.outcome(owner.uid)
        digest = known.laws_sha256 if known is not None and known.laws is not None else ""
        is_idle = digest and not fitter.running(owner.uid)
        interval = self._services.settings.resync_seconds
        if is_idle and storage.laws_are_lost(uri, path, digest, interval):
            fitter.forget(owner.uid)
            memory.laws_looked_for = False
        if not memory.laws_looked_for:
            found = storage.fit_outcome(uri, path)
            if isinstance(found, Unanswered):
                return found
            # A fit whose files cannot be read is as good as none: it is made again.
            outcome = value_of(found)
            if outcome is not None:
                fitter.remember(owner.uid, outcome)
                # The operator was killed before the report was drawn, or it could not be: that is tried once more.
                memory.report_missing = outcome.laws is not None and not outcome.report_written
            memory.laws_looked_for = True
        return fitter.outcome(owner.uid) or ABSENT

    # ----------------------------------------------------------------------------------- apply

    def _apply(
        self,
        key: ResourceKey,
        owner: Owner,
        memory: Memory,
        observed: ObservedSweep,
        plan: SweepPlan,
    ) -> None:
        services = self._services
        first = first_reads(observed)
        if first is not None:
            store_ledger(services, first.store_uri, first.folder, plan)
        change_jobs(services, owner, memory, plan)
        if plan.fit is not None and first is not None:
            manifest = value_of(observed.manifest) or known_ledger(observed).ledger.corpus
            tokenizer = manifest.tokenizer_digest if manifest else None
            title, anchor = (
                f"{owner.namespace}/{owner.name}",
                services.storage.anchor(first.store_uri),
            )
            job = FitJob(plan.fit, first.store_uri, tokenizer, title, anchor)
            services.fitter.start(owner.uid, key, job)
            memory.report_missing = False

    def _forget(self, key: ResourceKey) -> None:
        services = self._services
        services.metrics.statuses.drop_sweep((key.namespace, key.name))
        services.watchdog.forget(key)
        services.watchdog.forget((key, "Job"))
        memory = self._memories.forget(key)
        if memory is not None:
            services.fitter.forget(memory.uid)
            services.job_reader.forget(memory.uid)
