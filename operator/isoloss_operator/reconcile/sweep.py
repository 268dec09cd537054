"""What a pass over a ScalingSweep reads and writes."""

import time
from dataclasses import replace

from isoloss_contract import layout
from isoloss_contract.reading import ABSENT, Read, is_unknown, value_of
from isoloss_contract.store import StoreError, time_limit
from isoloss_operator.cluster.client import SWEEP, ResourceKey
from isoloss_operator.decide.fits import FitOutcome, FitRequest, SweepPage
from isoloss_operator.decide.observation import (
    FirstReads,
    ObservedCheckpoint,
    ObservedSweep,
)
from isoloss_operator.decide.plans import SweepPlan
from isoloss_operator.decide.reads import (
    first_reads,
    needs_manifest,
    sweep_reads,
)
from isoloss_operator.decide.sweep import decide_sweep
from isoloss_operator.fitting.fit_jobs import FitJob
from isoloss_operator.planning.specs import parse_sweep_spec
from isoloss_operator.process.sweep_load import sweep_load
from isoloss_operator.reconcile.memory import STORE_SECONDS
from isoloss_operator.reconcile.pages import draw, observed_page, page_of
from isoloss_operator.reconcile.points import change_jobs, hold_marks, read_points, store_points
from isoloss_operator.reconcile.references import read_answer, with_corpus
from isoloss_operator.reconcile.resource import Resource, Services, first_look


class SweepSteps:
    """See reconciler.Steps."""

    kind = SWEEP

    def __init__(self, services: Services) -> None:
        self._services = services

    # --------------------------------------------------------------------------------- observe

    def observe(self, resource: Resource) -> ObservedSweep:
        """Jobs, then manifest and ledger, then what these say is to be read."""
        seen = first_look(self._services, resource, parse_sweep_spec)
        observed = ObservedSweep(**vars(seen))
        first = first_reads(observed)
        if first is None:
            return observed
        settings, namespace = self._services.settings, resource.namespace
        if not settings.allows_storage(namespace, first.store_uri):
            return replace(observed, storage_refusal=settings.storage_refusal(namespace))
        if refusal := settings.refused_sources(namespace, first.sources):
            return replace(observed, storage_refusal=refusal)
        try:
            with time_limit(STORE_SECONDS):
                return self._read_store(resource, observed, first)
        except StoreError as error:
            hold_marks(resource.memory, observed.now)
            return replace(observed, store_error=str(error))

    def _read_store(
        self, resource: Resource, observed: ObservedSweep, first: FirstReads
    ) -> ObservedSweep:
        services, owner, uri = self._services, resource.owner, first.store_uri
        storage, fitter = services.storage, services.fitter
        # Read before its outcome: one that ends in between is not taken for one without a report.
        running = fitter.running(owner.uid)
        observed = replace(
            observed,
            ledger=services.ledgers.read(uri, first.folder),
            fit_running=running if isinstance(running, FitRequest) else None,
            fit_waits=fitter.waits(owner.uid),
            fit_in_backoff=fitter.in_backoff(owner.uid),
            **observed_page(services, resource),
        )
        namespace = resource.namespace
        answers = {name: read_answer(services, namespace, name) for name in first.predictions}
        observed = replace(
            observed,
            checkpoints={
                uri: ObservedCheckpoint(storage.checkpoint_stamp(uri), storage.model_config(uri))
                for uri in first.checkpoints
            },
            answers={name: answer for name, answer in answers.items() if answer is not None},
        )
        fit = self._newest_fit(resource, uri)
        if is_unknown(fit):
            hold_marks(resource.memory, observed.now)
            return replace(observed, store_error=fit.message)
        report_missing = resource.memory.report_missing
        observed = replace(observed, fit=value_of(fit), report_missing=report_missing)
        if not needs_manifest(observed):
            quiet = self._with_points(resource, observed, uri)
            if not needs_manifest(quiet):
                return quiet
        return self._with_points(resource, with_corpus(services, first, observed), uri)

    def _with_points(self, resource: Resource, observed: ObservedSweep, uri: str) -> ObservedSweep:
        """With what is stored of its points."""
        services = self._services
        reads = sweep_reads(observed, self._stored_points(observed, uri))
        found = read_points(services, resource.memory, uri, reads, observed.jobs, observed.now)
        return replace(observed, **vars(found))

    def _stored_points(self, observed: ObservedSweep, uri: str) -> frozenset[str]:
        """Names under points/, up to a resync old: for results that others wrote into this store."""
        ledger = value_of(observed.ledger)
        has_begun = ledger is not None and ledger.points
        if not has_begun and value_of(observed.manifest) is None and needs_manifest(observed):
            return frozenset()
        return self._services.storage.point_names(uri, self._services.settings.resync_seconds)

    def _newest_fit(self, resource: Resource, uri: str) -> Read[FitOutcome]:
        """This process' newest fit, or the one that an earlier process left in the store."""
        storage, fitter = self._services.storage, self._services.fitter
        owner, memory = resource.owner, resource.memory
        path = layout.laws_in(layout.sweep_folder(owner.name, owner.uid))
        known = fitter.outcome(owner.uid)
        digest = known.laws_sha256 if known is not None and known.laws is not None else ""
        is_idle = digest and not fitter.running(owner.uid)
        interval = self._services.settings.resync_seconds
        if is_idle and storage.laws_are_lost(uri, path, digest, interval):
            fitter.forget(owner.uid)
            memory.laws_looked_for = False
        if not memory.laws_looked_for:
            found = storage.fit_outcome(uri, path)
            if is_unknown(found):
                return found
            # A fit whose files cannot be read is as good as none: it is made again.
            outcome = value_of(found)
            if outcome is not None:
                fitter.remember(owner.uid, outcome)
                # The operator was killed before the report was drawn, or it could not be: that is tried once more.
                memory.report_missing = outcome.laws is not None and not outcome.report_written
            memory.laws_looked_for = True
        return fitter.outcome(owner.uid) or ABSENT

    # ------------------------------------------------------------------------- decide and apply

    def decide(self, observed: ObservedSweep) -> SweepPlan:
        """See decide/sweep.py."""
        return decide_sweep(observed)

    def apply(self, resource: Resource, observed: ObservedSweep, plan: SweepPlan) -> None:
        """The ledger, what is set aside, the fit, then Jobs."""
        services, first = self._services, first_reads(observed)
        if first is not None:
            store_points(services, resource, first.store_uri, first.folder, observed.ledger, plan)
            self._fit(resource, observed, first, plan)
        change_jobs(services, resource, plan)

    def _fit(
        self, resource: Resource, observed: ObservedSweep, first: FirstReads, plan: SweepPlan
    ) -> None:
        """What is done is fitted and drawn, although the API server may refuse the next Job."""
        services, memory, uid = self._services, resource.memory, resource.owner.uid
        if plan.fit is not None:
            # An older page must not take the place of the fit's report.
            services.fitter.forget(page_of(uid))
            services.fitter.start(
                uid, resource.key, self._job(resource, observed, first, plan.fit)
            )
            memory.report_missing = False
        if plan.page is not None:
            draw(services, resource, self._job(resource, observed, first, plan.page))

    def _job(
        self,
        resource: Resource,
        observed: ObservedSweep,
        first: FirstReads,
        request: FitRequest | SweepPage,
    ) -> FitJob:
        services, owner, uri = self._services, resource.owner, first.store_uri
        stored = value_of(observed.ledger)
        manifest = value_of(observed.manifest) or (stored.corpus if stored else None)
        tokenizer = manifest.tokenizer_digest if manifest else None
        title, anchor = f"{owner.namespace}/{owner.name}", services.storage.anchor(uri)
        return FitJob(request, uri, tokenizer, title, anchor)

    # ------------------------------------------------------------------------------- and the rest

    def show(self, resource: Resource, observed: ObservedSweep, plan: SweepPlan) -> None:
        """Metrics of the status, and of the load that the sweep is."""
        statuses = self._services.metrics.statuses
        name = (resource.key.namespace, resource.key.name)
        load = sweep_load(observed, plan.status)
        statuses.show_sweep(name, plan.status, load, time.time())

    def forget(self, key: ResourceKey, uid: str) -> None:
        """Its metrics and fits."""
        self._services.metrics.statuses.drop_sweep((key.namespace, key.name))
        self._services.fitter.forget(uid)
        self._services.fitter.forget(page_of(uid))
