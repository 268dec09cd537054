"""What a pass over a HyperparamPrediction reads and writes."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from isoloss_contract import layout
from isoloss_contract.reading import ABSENT
from isoloss_contract.store import StoreError, time_limit
from isoloss_operator.cluster.client import (
    CONFIG_MAP,
    PREDICTION,
    Refused,
    ResourceKey,
    Unavailable,
)
from isoloss_operator.cluster.config_maps import publish_config_map
from isoloss_operator.cluster.jobs import FORBIDDEN
from isoloss_operator.cluster.manifests import Owner
from isoloss_operator.cluster.observe import is_of_namesake, is_owned_by
from isoloss_operator.decide import observation
from isoloss_operator.decide.answer import says_otherwise
from isoloss_operator.decide.plans import ConfigMapDeletion, PredictionPlan
from isoloss_operator.decide.prediction import decide_prediction
from isoloss_operator.decide.reads import (
    checkpoint_of_evaluation,
    evaluation_path,
    first_reads,
    needs_ledger,
)
from isoloss_operator.decide.validation import courses_to_read
from isoloss_operator.fitting.fit_jobs import FitJob
from isoloss_operator.planning.specs import InvalidSpec, parse_prediction_spec
from isoloss_operator.reconcile.memory import STORE_SECONDS, UNANSWERED_PASSES, tolerated
from isoloss_operator.reconcile.pages import draw, look_for_page, observed_page, page_of
from isoloss_operator.reconcile.points import change_jobs, store_points
from isoloss_operator.reconcile.references import corpora_of, read_laws, read_reference
from isoloss_operator.reconcile.resource import Object, Resource, Services, first_look


class PredictionSteps:
    """See reconciler.Steps."""

    kind = PREDICTION

    def __init__(self, services: Services) -> None:
        self._services = services

    # --------------------------------------------------------------------------------- observe

    def observe(self, resource: Resource) -> observation.ObservedPrediction:
        """Jobs, its sweep, ConfigMaps, then what the store says of corpus, checkpoint, laws and the sweep that judges."""
        seen = first_look(self._services, resource, parse_prediction_spec)
        memory, namespace = resource.memory, resource.namespace
        observed = observation.ObservedPrediction(
            **vars(seen),
            publish_error=memory.publish_error,
            publish_error_may_pass=memory.publish_error_may_pass,
        )
        if isinstance(observed.spec, InvalidSpec):
            return observed
        asked, cluster = observed.spec, self._services.cluster
        published, wanted = self._published(resource.owner), None
        if asked.publish is not None:
            name = asked.publish.config_map_name
            wanted = published.get(name) or cluster.get(CONFIG_MAP, namespace, name)
        observed = replace(
            observed,
            sweep=read_reference(self._services, namespace, asked.sweep_ref.name),
            config_map=wanted,
            config_map_foreign=wanted is not None and not is_owned_by(wanted, seen.uid),
            config_map_goes=wanted is not None
            and is_of_namesake(wanted, PREDICTION.kind, seen.name, seen.uid),
            published={
                name: observation.PublishedAnswer(each["metadata"]["uid"], each.get("data") or {})
                for name, each in published.items()
            },
        )
        settings = self._services.settings
        if checkpoint := checkpoint_of_evaluation(observed):
            sources = {"spec.checkpoint.uri": checkpoint}
            if refusal := settings.refused_sources(namespace, sources):
                return replace(observed, storage_refusal=refusal)
        reads = first_reads(observed.sweep)
        if reads is None:
            return observed
        if not settings.allows_storage(namespace, reads.store_uri):
            return replace(observed, storage_refusal=settings.storage_refusal(namespace))
        try:
            with time_limit(STORE_SECONDS):
                return self._read_store(resource, observed, reads)
        except StoreError as error:
            return replace(observed, store_error=str(error))

    def _published(self, owner: Owner) -> Mapping[str, Object]:
        """ConfigMaps with its label and its owner reference, keyed by name."""
        labels = f"{observation.LABEL_OWNER_UID}={owner.uid}"
        found = self._services.cluster.list(CONFIG_MAP, owner.namespace, labels=labels)
        return {each["metadata"]["name"]: each for each in found if is_owned_by(each, owner.uid)}

    def _read_store(
        self,
        resource: Resource,
        observed: observation.ObservedPrediction,
        reads: observation.FirstReads,
    ) -> observation.ObservedPrediction:
        storage, uri = self._services.storage, reads.store_uri
        folder = layout.prediction_folder(observed.name, observed.uid)
        look_for_page(self._services, resource, uri, layout.report_in(folder))
        checkpoint = checkpoint_of_evaluation(observed)
        manifest, corpus = corpora_of(self._services, reads, observed)
        observed = replace(
            observed,
            **observed_page(self._services, resource),
            manifest=manifest,
            corpus=corpus,
            checkpoint_stamp=storage.checkpoint_stamp(checkpoint) if checkpoint else ABSENT,
        )
        path = evaluation_path(observed)
        observed = replace(
            observed,
            evaluation=storage.evaluation(uri, path) if path else ABSENT,
            fit=read_laws(self._services, reads, observed.sweep),
        )
        if needs_ledger(observed):
            observed = replace(observed, ledger=self._services.ledgers.read(uri, folder))
        return replace(observed, validation=self._validation(observed))

    def _validation(
        self, observed: observation.ObservedPrediction
    ) -> observation.ObservedValidation:
        """The sweep that is to judge the answer, and what is stored of it."""
        spec, services = observed.spec, self._services
        if isinstance(spec, InvalidSpec) or spec.validation is None:
            return observation.ObservedValidation()
        reference = read_reference(services, observed.namespace, spec.validation.sweep_ref.name)
        reads = first_reads(reference)
        if reads is None:
            return observation.ObservedValidation(reference)
        if not services.settings.allows_storage(observed.namespace, reads.store_uri):
            refusal = services.settings.storage_refusal(observed.namespace)
            return observation.ObservedValidation(reference, storage_refusal=refusal)
        ledger = services.ledgers.read(reads.store_uri, reads.folder)
        found = observation.ObservedValidation(reference, ledger=ledger)
        wanted = courses_to_read(replace(observed, validation=found))
        courses = services.storage.courses(reads.store_uri, wanted.digests, raw=wanted.raw)
        return replace(found, courses=courses)

    # ------------------------------------------------------------------------- decide and apply

    def decide(self, observed: observation.ObservedPrediction) -> PredictionPlan:
        """See decide/prediction.py."""
        return decide_prediction(observed)

    def apply(
        self, resource: Resource, observed: observation.ObservedPrediction, plan: PredictionPlan
    ) -> None:
        """The answer, then the evaluation."""
        services, reads = self._services, first_reads(observed.sweep)
        self._withdraw(resource, [each for each in plan.withdraw if each.at_once])
        if plan.publish is None or self._publish(resource, plan, observed):
            # Only now: the former name keeps the answer until the new one has it.
            self._withdraw(resource, plan.withdraw)
        if reads is not None and not observed.storage_refusal:
            uri, folder = reads.store_uri, layout.prediction_folder(observed.name, observed.uid)
            store_points(services, resource, uri, folder, observed.ledger, plan)
            if plan.page is not None:
                title, anchor = str(resource.key), services.storage.anchor(uri)
                draw(services, resource, FitJob(plan.page, uri, None, title, anchor))
        change_jobs(services, resource, plan)

    def _publish(
        self, resource: Resource, plan: PredictionPlan, observed: observation.ObservedPrediction
    ) -> bool:
        """Whether the ConfigMap says what it should. One that may not be changed goes if it says what is no answer."""
        memory, wanted, found = resource.memory, plan.publish, observed.config_map
        assert wanted is not None
        try:
            publish_config_map(self._services.cluster, resource.owner, wanted, found)
        except (Refused, Unavailable) as error:
            is_told = memory.unanswered >= UNANSWERED_PASSES or observed.publish_error
            if isinstance(error, Unavailable) and not (error.status and is_told):
                raise
            memory.publish_error = str(error)
            memory.publish_error_may_pass = (
                isinstance(error, Unavailable) or error.status == FORBIDDEN
            )
            if found is not None and says_otherwise(found.get("data") or {}, plan.status):
                uid = found["metadata"]["uid"]
                self._withdraw(resource, [ConfigMapDeletion(wanted.name, uid)])
            return False
        return True

    def _withdraw(self, resource: Resource, former: Sequence[ConfigMapDeletion]) -> None:
        def delete() -> None:
            for each in former:
                cluster.delete(CONFIG_MAP, resource.namespace, each.name, each.uid)

        cluster = self._services.cluster
        tolerated(resource.memory, delete)

    # ------------------------------------------------------------------------------- and the rest

    def show(
        self, resource: Resource, observed: observation.ObservedPrediction, plan: PredictionPlan
    ) -> None:
        """Metrics of the status."""
        name = (resource.key.namespace, resource.key.name)
        self._services.metrics.statuses.show_prediction(name, plan.status)

    def forget(self, key: ResourceKey, uid: str) -> None:
        """Its metrics and page."""
        self._services.fitter.forget(page_of(uid))
        self._services.metrics.statuses.drop_prediction((key.namespace, key.name))
