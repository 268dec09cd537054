"""A sweep as its decision sees it: every fact that more than one check asks for, each worked out once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

from isoloss.laws import Laws
from isoloss.progress.words import BUDGET_SPENT
from isoloss_contract.ledger import (
    DONE,
    FAILED_FOR_GOOD,
    DerivedModel,
    IntentAction,
    Ledger,
    Placement,
    PointRecord,
    PointState,
)
from isoloss_contract.reading import (
    ABSENT,
    Absent,
    Unreadable,
    is_unknown,
    value_of,
)
from isoloss_contract.records import DataManifest, PrepareConfig
from isoloss_operator.api import ScalingSweepSpec
from isoloss_operator.decide.admission import Admission, admit
from isoloss_operator.decide.budget import (
    Spending,
    exceeded,
    flops_left,
    spending,
    with_budget_intents,
)
from isoloss_operator.decide.conditions import Finding
from isoloss_operator.decide.fit_requests import fit_inputs, is_fitted
from isoloss_operator.decide.jobs.requests import store_label, store_uri
from isoloss_operator.decide.likenesses import without_likenesses
from isoloss_operator.decide.observation import ObservedJob, ObservedSweep
from isoloss_operator.decide.points.ledgers import Recorded, for_spec, known_ledger
from isoloss_operator.decide.points.recording import (
    record_points,
    record_stalled_points,
    record_stopped_points,
    take_back_unreadable,
)
from isoloss_operator.decide.prior import placements_by_prior
from isoloss_operator.decide.search.intents import with_search_intents
from isoloss_operator.decide.search.requests import search_request
from isoloss_operator.decide.search.targets import planned_points
from isoloss_operator.decide.search_steps import SearchRequest, SearchStep
from isoloss_operator.decide.suspension import with_stopped
from isoloss_operator.planning.placement import (
    former_names,
    former_places,
    placements,
    with_placed_grids,
)
from isoloss_operator.planning.points import PlannedPoint, without_shards
from isoloss_operator.planning.specs import derived_models, prepare_config


@dataclass(frozen=True)
class SweepView:
    """A sweep with a valid spec."""

    observed: ObservedSweep
    written: ScalingSweepSpec
    """The spec as its user wrote it."""
    spec: ScalingSweepSpec
    """The same with a `config` in place of every `like`, and a grid for every size."""
    placements: tuple[Placement, ...] = ()
    """Of sizes whose grid its user left to the search."""
    former_placements: tuple[Placement, ...] = ()
    """Of sizes that it does not place any more."""
    renamed: Mapping[str, str] = field(default_factory=dict)
    """Present names of placed sizes by former ones."""
    models: tuple[DerivedModel, ...] = ()
    """Of sizes that are like a checkpoint."""
    unplaced: Finding | None = None
    """Why sizes wait for their first points; None: every size has a grid."""

    @classmethod
    def of(cls, observed: ObservedSweep, spec: ScalingSweepSpec) -> SweepView:
        """Raises InvalidSpec where a proxy cannot be derived from its checkpoint, or no law places its grid."""
        ledger, manifest = known_ledger(observed).ledger, value_of(observed.manifest)
        derived = without_likenesses(observed, spec)
        models = derived_models(spec, derived, ledger.derived)
        known = (*ledger.placements, *ledger.former_placements)
        if derived.search.prior is None:
            placed = placements(derived, known)
        else:
            vocabulary = None if manifest is None else manifest.vocabulary_size
            found = placements_by_prior(observed, derived, known, vocabulary)
            if isinstance(found, Finding):
                return cls(observed, spec, derived, unplaced=found)
            placed = found
        names = former_names(derived, known)
        return cls(
            observed,
            spec,
            with_placed_grids(derived, placed),
            placed,
            former_places(known, placed, names),
            {former: name for name, former in names.items()},
            models,
        )

    @cached_property
    def config(self) -> PrepareConfig:
        """What determines its corpus."""
        return prepare_config(self.spec)

    @property
    def store_uri(self) -> str:
        """Without a trailing slash."""
        return store_uri(self.spec)

    @cached_property
    def manifest_problem(self) -> str:
        """Why what is stored as the manifest is not this sweep's corpus; empty: it is, or nothing is."""
        match self.observed.manifest:
            case Unreadable(message):
                return message
            case DataManifest() as manifest:
                return self._difference(manifest)
            case _:
                return ""

    @property
    def manifest(self) -> DataManifest | None:
        """The manifest of the tokenised corpus, once it is there and right."""
        return None if self.manifest_problem else value_of(self.observed.manifest)

    @cached_property
    def own_jobs(self) -> tuple[ObservedJob, ...]:
        """Jobs that write to this sweep's present store."""
        label = store_label(self.store_uri)
        return tuple(job for job in self.observed.jobs if job.store == label)

    @cached_property
    def prepare_jobs(self) -> tuple[ObservedJob, ...]:
        """Jobs that prepare the present corpus."""
        return tuple(
            job for job in self.own_jobs if job.kind == "prepare" and job.key == self.config.key
        )

    @cached_property
    def train_jobs(self) -> dict[str, tuple[ObservedJob, ...]]:
        """Train Jobs by point key, planned or not, those among them that were stopped and are gone."""
        by_key: dict[str, tuple[ObservedJob, ...]] = {}
        label = store_label(self.store_uri)
        for job in with_stopped(self.own_jobs, self.observed.stopped):
            if job.kind == "train" and job.store == label:
                by_key[job.key] = (*by_key.get(job.key, ()), job)
        return by_key

    @cached_property
    def running(self) -> tuple[ObservedJob, ...]:
        """Jobs of any kind that hold a slot."""
        return tuple(job for job in self.observed.jobs if job.holds_a_slot)

    @property
    def stored_ledger(self) -> Ledger | None:
        """The ledger in the store: what is in it survives the operator."""
        return value_of(self.observed.ledger)

    def _difference(self, manifest: DataManifest) -> str:
        wanted = {domain.name for domain in self.spec.data.domains}
        found = {domain.name for domain in manifest.domains}
        if manifest.prepare_key != self.config.key:
            return f"it is the manifest of {manifest.prepare_key}"
        if found != wanted or manifest.sequence_length != self.spec.data.sequence_length:
            return "its domains or sequence length are not those of the spec"
        return ""


@dataclass(frozen=True)
class PointsView:
    """A sweep whose corpus is prepared, so that its points are known, with its ledger up to date."""

    sweep: SweepView
    manifest: DataManifest
    points: Mapping[str, PlannedPoint]
    """By key, in planned order."""

    @property
    def observed(self) -> ObservedSweep:
        """The world."""
        return self.sweep.observed

    @property
    def spec(self) -> ScalingSweepSpec:
        """Without a `like`."""
        return self.sweep.spec

    @cached_property
    def stalled(self) -> tuple[ObservedJob, ...]:
        """Train Jobs whose point is unfinished and that have reported no progress for stallSeconds."""
        seconds, now = self.spec.failure_policy.stall_seconds, self.observed.now
        since = self.observed.unchanged_since
        done = {r.key for r in self._observed_ledger.ledger.points if r.state in DONE}
        return tuple(
            job
            for job in self.active
            if seconds is not None
            and job.key not in done
            and not job.deleting
            and job.uid in since
            and (now - since[job.uid]).total_seconds() >= seconds
        )

    @cached_property
    def recorded(self) -> Recorded:
        """The ledger with everything observed in it, stalled attempts included, and what is intended."""
        recorded = self._observed_ledger
        ledger = recorded.ledger
        if self.stalled:
            policy = self.spec.failure_policy
            ledger = record_stalled_points(
                ledger, self.stalled, self.observed, self.points, policy
            )
        ledger = with_search_intents(ledger, searches=self.spec.searches)
        ledger = with_budget_intents(ledger, is_spent=bool(self.budget_spent))
        return Recorded(ledger, recorded.set_aside)

    @cached_property
    def spending(self) -> Spending:
        """What the sweep has spent, running attempts included."""
        return spending(self._observed_ledger, self.observed)

    @property
    def budget_spent(self) -> str:
        """Which part of the budget is spent; empty: there is some left."""
        return exceeded(self.spec.budget, self.spending)

    @cached_property
    def _observed_ledger(self) -> Recorded:
        observed, view = self.observed, self.sweep
        known = known_ledger(observed)
        ledger = for_spec(known_points(view), observed.generation, view.config.key)
        places = (view.placements, view.former_placements)
        if (ledger.placements, ledger.former_placements) != places:
            ledger = ledger.replace(placements=places[0], former_placements=places[1])
        if ledger.derived != view.models:
            ledger = ledger.replace(derived=view.models)
        if ledger.corpus is None or ledger.corpus.digest != self.manifest.digest:
            ledger = ledger.replace(corpus=without_shards(self.manifest))
        recorded = record_points(
            Recorded(ledger, known.set_aside),
            observed,
            view.written,
            tuple(self.points.values()),
            view.train_jobs,
            self.manifest.digest,
        )
        stopped = record_stopped_points(
            recorded.ledger, view.observed.stopped, observed, self.points
        )
        recorded = Recorded(stopped, recorded.set_aside)
        fit = observed.fit
        if fit is None or not fit.unreadable:
            return recorded
        # An outcome of other points may complain of a trajectory that has been written again since.
        records = recorded.ledger.points
        inputs = [fit_inputs(view.spec, records, final=final) for final in (True, False)]
        if view.spec.searches:
            inputs.append(fit_inputs(view.spec, records, final=True, search=True))
        if fit.inputs not in inputs:
            return recorded
        retries = view.spec.failure_policy.retries_per_point
        return take_back_unreadable(recorded, fit.unreadable, self.points, retries=retries)

    @property
    def ledger(self) -> Ledger:
        """With everything observed in it."""
        return self.recorded.ledger

    @cached_property
    def unanswered(self) -> frozenset[str]:
        """Points of whose result nothing is known: the store did not return it, or not yet, or a newer
        isoloss wrote it."""
        return frozenset(
            record.key
            for record in self.ledger.points
            if record.state not in DONE
            and (
                is_unknown(self.observed.results.get(record.key, ABSENT))
                or record.key in self.awaited
            )
        )

    @cached_property
    def awaited(self) -> frozenset[str]:
        """Points whose last attempt has just succeeded and whose result is not there yet: the ledger has not
        taken in its end (recording.py)."""
        ended = {record.key: record.attempts.ended for record in self.ledger.points}
        return frozenset(
            key
            for key, jobs in self.sweep.train_jobs.items()
            if isinstance(self.observed.results.get(key, ABSENT), Absent)
            and any(job.is_finished and job.attempt > ended.get(key, job.attempt) for job in jobs)
        )

    @cached_property
    def admission(self) -> Admission:
        """What parallelism, budget and delays admit."""
        points = tuple(self.points.values())
        records = self.recorded.by_key
        return admit(self.observed, self.spec, points, records, self.unanswered, self.spending)

    @cached_property
    def failed(self) -> tuple[PointRecord, ...]:
        """Points that failed for good."""
        return tuple(r for r in self.ledger.points if r.state in FAILED_FOR_GOOD)

    @property
    def too_many_failed(self) -> bool:
        """Whether more points failed for good than the failure policy allows."""
        return len(self.failed) > self.spec.failure_policy.max_failed_points

    @property
    def is_blocked(self) -> bool:
        """Whether nothing starts until somebody changes the spec."""
        return self.ledger.configuration_error is not None or self.too_many_failed

    @property
    def starts(self) -> tuple[PlannedPoint, ...]:
        """Points to start now."""
        return () if self.is_blocked or self.spec.suspend else self.admission.starts

    @cached_property
    def active(self) -> tuple[ObservedJob, ...]:
        """Train Jobs of planned points that hold a slot."""
        running = self.sweep.running
        return tuple(job for job in running if job.kind == "train" and job.key in self.points)

    @cached_property
    def is_quiet(self) -> bool:
        """Whether no point is running and none will, unless a search now chooses some."""
        if self.is_blocked or self.active or self.observed.orphaned_pods:
            return False
        if self.admission.starts or self.admission.waiting or self.unanswered:
            return False
        running = sum(r.state is PointState.PENDING for r in self.ledger.points if _runs(r))
        return running == len(self.admission.unaffordable)

    @cached_property
    def search(self) -> SearchRequest | None:
        """The step of the search that is due: every point has come as far as it was to, and the budget has room."""
        if not self.spec.searches or not self.is_quiet:
            return None
        if self.budget_spent or self.admission.unaffordable:
            return None
        left = flops_left(self.spec.budget, self.spending)
        return search_request(self.spec, self.ledger, self.points, left)

    @cached_property
    def step(self) -> SearchStep | None:
        """What that step decided; None before it is known, and where none is due."""
        fit = self.observed.fit
        return fit.step if fit is not None and self.search and self.is_fitted(final=True) else None

    @property
    def search_ended(self) -> str:
        """Why the search is over, one of isoloss.search.StopReason; empty: it goes on, or there is none."""
        if not self.spec.searches or not self.is_quiet:
            return ""
        if (
            self.search is None
        ):  # no step is due, as the budget has no room for what is chosen already
            return BUDGET_SPENT
        return self.step.ended if self.step is not None else ""

    @property
    def is_over(self) -> bool:
        """Whether no point is running and none will, as things are."""
        if self.search is None:
            return self.is_quiet
        return self.step is not None and bool(self.step.ended)

    @cached_property
    def unwanted(self) -> tuple[ObservedJob, ...]:
        """Unfinished train Jobs of points that the ledger says to pause or prune."""
        paused = {r.key for r in self.ledger.points if not _runs(r)}
        return tuple(
            job
            for job in self.active
            if job.key in paused and not job.is_finished and not job.deleting
        )

    @property
    def final_laws(self) -> Laws | None:
        """The laws of all points, once they are fitted."""
        fit = self.observed.fit
        if fit is None or not self.is_fitted(final=True) or (self.search and not self.is_over):
            return None
        return fit.laws

    @property
    def report_pending(self) -> bool:
        """Whether the final laws are known and their report is still to come."""
        fit, running = self.observed.fit, self.observed.fit_running
        if fit is None or fit.report_written or not self.is_fitted(final=True):
            return False
        is_drawn = running is not None and running.inputs == fit.inputs
        return is_drawn or self.observed.report_missing

    def is_fitted(self, *, final: bool) -> bool:
        """Whether the newest fit is of just the points that are done now."""
        search = final and self.search is not None
        inputs = fit_inputs(self.spec, self.ledger.points, final=final, search=search)
        return is_fitted(self.observed.fit, inputs)


def points_view(view: SweepView) -> PointsView | None:
    """The points of the corpus; None: it is to be prepared first, or a size has no places yet.

    Raises InvalidSpec where the corpus does not fit the spec.
    """
    if view.unplaced:
        return None
    if (quiet := _without_data(view)) is not None:
        return quiet
    return None if view.manifest is None else _points_of(view, view.manifest)


def _without_data(view: SweepView) -> PointsView | None:
    """The points of the corpus in the ledger where nothing is left to train: then nobody needs the data, whatever
    the store holds of them by now."""
    corpus, found = known_ledger(view.observed).ledger.corpus, view.manifest
    if corpus is None or corpus.prepare_key != view.config.key:
        return None
    if found is not None and found.digest == corpus.digest:
        return None
    if any(job.kind == "train" for job in view.running):
        return None
    points = _points_of(view, corpus)
    return points if points.is_quiet else None


def known_points(view: SweepView) -> Ledger:
    """The ledger of a pass' beginning, with points that a search added under the present names of their sizes."""
    ledger, names = known_ledger(view.observed).ledger, view.renamed
    if not any(added.proxy in names for added in ledger.additions):
        return ledger
    additions = (
        replace(added, proxy=names.get(added.proxy, added.proxy)) for added in ledger.additions
    )
    return ledger.replace(additions=tuple(additions))


def _points_of(view: SweepView, manifest: DataManifest) -> PointsView:
    planned = planned_points(view.spec, manifest, known_points(view))
    return PointsView(view, manifest, {point.key: point for point in planned})


def _runs(record: PointRecord) -> bool:
    return record.intent.action is IntentAction.RUN
