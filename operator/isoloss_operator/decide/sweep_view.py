"""A sweep as its decision sees it: every fact that more than one check asks for, each worked out once."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Final

from isoloss.formatting import are, counted
from isoloss.laws import Laws
from isoloss_contract.ledger import (
    BUDGET_SPENT,
    DONE,
    KnownCheckpoint,
    Ledger,
    Neighbourhood,
    Placement,
    PointRecord,
    PointState,
)
from isoloss_contract.reading import Unreadable, is_unknown, value_of
from isoloss_contract.records import DataManifest, PrepareConfig
from isoloss_contract.timestamps import parse_timestamp
from isoloss_operator.api import ScalingSweepSpec
from isoloss_operator.decide.conditions import DATA_READY, Finding
from isoloss_operator.decide.fit_requests import fit_inputs, is_fitted
from isoloss_operator.decide.fits import SearchRequest, SearchStep
from isoloss_operator.decide.jobs.requests import store_label, store_uri
from isoloss_operator.decide.left_open import (
    known_checkpoints,
    neighbourhoods,
)
from isoloss_operator.decide.observation import ObservedJob, ObservedSweep
from isoloss_operator.decide.owners import owned_tasks, sweep_ledger
from isoloss_operator.decide.search import search_request
from isoloss_operator.decide.suspension import left_behind
from isoloss_operator.decide.tasks.findings import failed_in_words, node_failures
from isoloss_operator.decide.tasks.task_pass import TaskPass, budget_left, run, slots_exceeded
from isoloss_operator.decide.tasks.task_set import Recorded, TaskSet
from isoloss_operator.planning.continued import with_checkpoint_models
from isoloss_operator.planning.placement import (
    former_names,
    former_places,
    placements,
    with_placed_grids,
)
from isoloss_operator.planning.points import (
    Continued,
    PlannedPoint,
    plan_points,
    repeated_domains,
)
from isoloss_operator.planning.specs import InvalidSpec, prepare_config

ENDING_SECONDS: Final = 60.0
"""How long after DataReady the Jobs of the preparation may go on. What still runs then does work that another
sweep's Job has done already."""


@dataclass(frozen=True)
class SweepView:
    """A sweep with a valid spec."""

    observed: ObservedSweep
    spec: ScalingSweepSpec
    """With a model for every size, and a grid for every size that is fitted."""
    placements: tuple[Placement, ...] = ()
    """Placements of sizes whose grid the user left to the search."""
    former_placements: tuple[Placement, ...] = ()
    """Placements of sizes that the search no longer places."""
    checkpoints: tuple[KnownCheckpoint, ...] = ()
    """Those that sizes continue."""
    neighbourhoods: tuple[Neighbourhood, ...] = ()
    """Places of sizes whose points lie around an answer."""
    unplaced: Finding | None = None
    """Why sizes wait for their first points; None: every size has places."""

    @classmethod
    def of(cls, observed: ObservedSweep) -> SweepView:
        """Raises InvalidSpec if the spec is, a checkpoint is none, or no law places a grid."""
        spec = observed.spec
        if isinstance(spec, InvalidSpec):
            raise InvalidSpec(spec.errors)
        ledger = sweep_ledger(observed).ledger
        checkpoints = known_checkpoints(observed, spec)
        spec = with_checkpoint_models(spec, checkpoints)
        known = (*ledger.placements, *ledger.former_placements)
        placed = placements(spec, known)
        around = neighbourhoods(observed, spec)
        if isinstance(around, Finding):
            return cls(observed, spec, unplaced=around)
        return cls(
            observed,
            with_placed_grids(spec, placed),
            placed,
            former_places(known, placed, former_names(spec, known)),
            checkpoints,
            around,
        )

    @cached_property
    def known(self) -> Recorded:
        """The ledger that this pass begins with."""
        return sweep_ledger(self.observed)

    @cached_property
    def config(self) -> PrepareConfig:
        """What determines its corpus."""
        return prepare_config(self.spec)

    @property
    def continued(self) -> Continued:
        """What points of sizes that continue a checkpoint are planned by."""
        return Continued.of(self.checkpoints, self.neighbourhoods)

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
    def running(self) -> tuple[ObservedJob, ...]:
        """Jobs of any kind that hold a slot."""
        return tuple(job for job in self.observed.jobs if job.holds_a_slot)

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
    """A sweep whose corpus is prepared, so that its points are known, and a pass over them."""

    sweep: SweepView
    manifest: DataManifest
    tasks: TaskPass

    @property
    def observed(self) -> ObservedSweep:
        """The world."""
        return self.sweep.observed

    @property
    def spec(self) -> ScalingSweepSpec:
        """With a model for every size, and a grid for every size that is fitted."""
        return self.sweep.spec

    @cached_property
    def search(self) -> SearchRequest | None:
        """The step of the search that is due: every point has reached its target, and the budget has room."""
        tasks = self.tasks
        if not self.spec.searches or not tasks.is_quiet:
            return None
        if tasks.budget_spent or tasks.admission.unaffordable:
            return None
        spent = tasks.spending
        left = budget_left(tasks.policy.budget, spent)
        paces = spent.seconds_per_flop
        return search_request(self.spec, tasks.ledger, tasks.points, left, paces)

    @cached_property
    def step(self) -> SearchStep | None:
        """What that step decided; None before it is known, and if none is due."""
        fit = self.observed.fit
        return fit.step if fit is not None and self.search and self.is_fitted(final=True) else None

    @property
    def search_ended(self) -> str:
        """Why the search is over, one of isoloss.search.StopReason; empty: it goes on, or there is none."""
        if not self.spec.searches or not self.tasks.is_quiet:
            return ""
        if self.search is None:
            # No step is due, as the budget has no room for what is chosen already.
            return BUDGET_SPENT
        return self.step.ended if self.step is not None else ""

    @property
    def is_over(self) -> bool:
        """Whether no point is running and none will, as things are."""
        if self.search is None:
            return self.tasks.is_quiet
        return self.step is not None and bool(self.step.ended)

    @property
    def final_laws(self) -> Laws | None:
        """The laws of all points, once they are fitted."""
        fit = self.observed.fit
        if fit is None or not self.is_over or not self.is_fitted(final=True):
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
        inputs = fit_inputs(self.spec, self.tasks.ledger.points, final=final, search=search)
        return is_fitted(self.observed.fit, inputs)


# ------------------------------------------------------------------------------- its set of tasks


def sweep_tasks(view: SweepView) -> tuple[TaskSet, DataManifest] | None:
    """The points of a sweep, and the corpus that they train on; None: it is to be prepared first, or a size has no
    places yet.

    Raises InvalidSpec if the corpus does not fit the spec.
    """
    if view.unplaced:
        return None
    if (quiet := _without_data(view)) is not None:
        return quiet
    return None if view.manifest is None else (_tasks_of(view, view.manifest), view.manifest)


def _without_data(view: SweepView) -> tuple[TaskSet, DataManifest] | None:
    """The points of the corpus in the ledger if nothing is left to train: then nobody needs the data, whatever
    the store holds of them by now."""
    corpus, found = view.known.ledger.corpus, view.manifest
    if corpus is None or corpus.prepare_key != view.config.key:
        return None
    if found is not None and found.digest == corpus.digest:
        return None
    if any(job.kind == "train" for job in view.running):
        return None
    tasks = _tasks_of(view, corpus)
    return (tasks, corpus) if run(tasks).is_quiet else None


def known_tasks(view: SweepView) -> TaskSet | None:
    """The points as the ledger knows them, for the numbers of a sweep whose corpus is prepared again; None: it has no
    corpus, or the spec asks for other points by now."""
    ledger = view.known.ledger
    if view.unplaced or ledger.corpus is None or ledger.corpus.prepare_key != view.config.key:
        return None
    tasks = _tasks_of(view, ledger.corpus)
    return tasks if tasks.points.keys() == {record.key for record in ledger.points} else None


def _tasks_of(view: SweepView, manifest: DataManifest) -> TaskSet:
    observed, known = view.observed, view.known
    ledger = _as_placed(_under_present_names(known.ledger, view, manifest), view)
    planned = _planned_points(view, manifest, ledger)
    known = replace(known, ledger=ledger)
    tasks = owned_tasks(observed, observed, known, view.spec, manifest, planned)
    return replace(
        tasks,
        kept=frozenset(job.uid for job in view.prepare_jobs if _may_still_end(view, job)),
        complaints=lambda ledger: _complaints(view, ledger),
    )


def _planned_points(
    view: SweepView, manifest: DataManifest, ledger: Ledger
) -> tuple[PlannedPoint, ...]:
    """The spec's points and the ledger's additions, limited to what the ledger wants trained.

    Raises InvalidSpec if the corpus does not fit the spec.
    """
    points = plan_points(view.spec, manifest, ledger.additions, view.continued)
    return _with_targets(points, ledger.points) if view.spec.searches else points


def _with_targets(
    points: Iterable[PlannedPoint], records: Iterable[PointRecord]
) -> tuple[PlannedPoint, ...]:
    targets = {record.key: record.intent.tokens for record in records}
    return tuple(
        replace(point, target=target) if (target := targets.get(point.key)) else point
        for point in points
    )


def _under_present_names(ledger: Ledger, view: SweepView, manifest: DataManifest) -> Ledger:
    """With points that a search added under the present names of their sizes, which the other points tell by their
    keys."""
    names, known = {proxy.name for proxy in view.spec.proxies}, ledger.by_key
    if all(added.proxy in names for added in ledger.additions):
        return ledger
    planned = plan_points(view.spec, manifest, continued=view.continued)
    grid = (point for point in planned if point.key in known)
    present = {known[point.key].proxy: point.proxy.name for point in grid}
    additions = tuple(
        added
        if added.proxy in names
        else replace(added, proxy=present.get(added.proxy, added.proxy))
        for added in ledger.additions
    )
    return ledger if additions == ledger.additions else ledger.replace(additions=additions)


def _as_placed(ledger: Ledger, view: SweepView) -> Ledger:
    """With the places that the spec's sizes have now."""
    places = (view.placements, view.former_placements)
    if (ledger.placements, ledger.former_placements) != places:
        ledger = ledger.replace(placements=places[0], former_placements=places[1])
    continued = (view.checkpoints, view.neighbourhoods)
    if (ledger.checkpoints, ledger.neighbourhoods) != continued:
        ledger = ledger.replace(checkpoints=continued[0], neighbourhoods=continued[1])
    return ledger


def _may_still_end(view: SweepView, job: ObservedJob) -> bool:
    """Whether a prepare Job is left to end by itself: one of its pods has just written the manifest, most likely."""
    if job.must_be_deleted or view.spec.suspend:
        return False
    said = view.observed.said.get(DATA_READY)
    if said is None or said.status != "True":
        return True
    since = parse_timestamp(said.last_transition_time) or view.observed.now
    return (view.observed.now - since).total_seconds() < ENDING_SECONDS


def _complaints(view: SweepView, ledger: Ledger) -> Sequence[tuple[str, str]]:
    """What the newest fit could not read, if it is a fit of just these points: an outcome of others may complain of a
    trajectory that has been written again since."""
    fit = view.observed.fit
    if fit is None or not fit.unreadable:
        return ()
    inputs = [fit_inputs(view.spec, ledger.points, final=final) for final in (True, False)]
    if view.spec.searches:
        inputs.append(fit_inputs(view.spec, ledger.points, final=True, search=True))
    return fit.unreadable if fit.inputs in inputs else ()


# ----------------------------------------------------------------------------- what to watch out for


def warnings_of(view: PointsView) -> tuple[str, ...]:
    """One sentence each."""
    found, tasks = [], view.tasks
    if tasks.failed:
        failed = failed_in_words(tasks.failed)
        found.append(f"{counted(len(tasks.failed), 'point')} failed for good: {failed}")
    if tasks.budget_spent:
        found.append(tasks.budget_spent)
    elif tasks.admission.unaffordable:
        found.append(tasks.admission.budget_message)
    repeated = repeated_domains(view.spec, view.manifest)
    if repeated:
        named = ", ".join(f"{name} {times:.1f} times" for name, times in repeated.items())
        found.append(f"The longest runs see some domains more than once: {named}.")
    again = sum(
        r.taken_back > 0 and r.state is PointState.PENDING and not r.trained_for
        for r in tasks.ledger.points
    )
    if again:
        found.append(
            f"{counted(again, 'point')} that had ended must be trained again, at the cost of spec.budget: "
            "the fit found their trajectories missing or damaged."
        )
    if mixed := _mixed_versions(tasks.ledger):
        found.append(f"Points were trained with different versions: {mixed}.")
    if lost := [job for job in view.observed.jobs if job.lost]:
        found.append(f"{counted(len(lost), 'attempt')} given up, such as: {lost[0].message}.")
    found += node_failures(tasks)
    if left := left_behind(view.observed):
        found.append(left)
    found += _unread(view)
    over = slots_exceeded(tasks.world, tasks.policy)
    if over > 0:
        found.append(
            f"{counted(over, 'Job')} more than the spec allows {are(over)} running; none is started."
        )
    return tuple(found)


def _unread(view: PointsView) -> list[str]:
    """What the store has yet to say."""
    found, tasks = [], view.tasks
    awaited, unknown = tasks.unread.awaited, tasks.unread.unknown
    if awaited:
        found.append(
            f"{counted(len(awaited), 'Job')} succeeded without a result in the store yet."
        )
    if unknown:
        reads = (view.observed.results[key] for key in unknown)
        message = min(read.message for read in reads if is_unknown(read))
        found.append(f"{counted(len(unknown), 'result')} cannot be read for now: {message}")
    return found


def _mixed_versions(ledger: Ledger) -> str:
    """Versions in which the points done differ, such as "torch 2.8.0 and 2.9.0"; empty: none."""
    used = {r.versions for r in ledger.points if r.state in DONE and r.versions is not None}
    sets = [ledger.versions[index] for index in sorted(used)]
    names = dict.fromkeys(name for each in sets for name in each)
    found = {name: sorted({each.get(name, "unknown") for each in sets}) for name in names}
    return ", ".join(f"{n} {' and '.join(each)}" for n, each in found.items() if len(each) > 1)
