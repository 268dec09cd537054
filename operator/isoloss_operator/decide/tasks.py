"""The points of a sweep as a set of tasks: which are planned on a corpus, what is observed of them, and the ledger that a
pass over them begins with.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from isoloss.formatting import are, counted
from isoloss_contract.ledger import AddedPoint, KnownCheckpoint, Ledger
from isoloss_contract.reading import ABSENT, Read
from isoloss_contract.records import DataManifest, PointProgress, PointResult
from isoloss_operator.api import Condition, ScalingSweepSpec
from isoloss_operator.decide.checks import AcceptedSweep, Recorded
from isoloss_operator.decide.jobs import (
    by_attempt,
    is_outdated,
    store_label,
    store_uri,
    template_label,
)
from isoloss_operator.decide.observation import ObservedJob, ObservedSweep
from isoloss_operator.decide.reasons import DATA_READY, Finding, Reason
from isoloss_operator.planning.points import PlannedPoint, plan_points, without_shards

ENDING_SECONDS: Final = 60.0
"""How long after DataReady the Jobs of the preparation may go on. What still runs then does work that another
sweep's Job has done already."""


@dataclass(frozen=True)
class TaskSet:
    """What a pass knows at its beginning."""

    observed: ObservedSweep
    spec: ScalingSweepSpec
    """With a model for every size, and a grid for every size that is fitted."""
    corpus: DataManifest
    """What the points train on."""
    points: Mapping[str, PlannedPoint]
    """Every task by key, in planned order."""
    known: Recorded
    """The ledger under the present spec, with its corpus."""
    jobs: Mapping[str, tuple[ObservedJob, ...]]
    """The Jobs of tasks by key in order of attempts, planned or not, those among them that were stopped and are gone.
    Jobs that write to another store are none of them."""
    active: tuple[ObservedJob, ...]
    """Jobs of planned tasks that hold a slot."""
    prepare_jobs: tuple[ObservedJob, ...]
    """Those that prepared the corpus, in order of attempts."""
    kept: frozenset[str]
    """Uids of Jobs that are no task here and may go on."""
    progress: Mapping[str, PointProgress]
    """What an attempt of this very sweep last reported of each task."""
    templates: Mapping[str, str]
    """LABEL_TEMPLATE of the Jobs that are asked for by now, by PlannedProxy.template_digest."""
    outdated: frozenset[str]
    """Uids of active Jobs that wait in vain for what is no longer asked for."""
    changed: Finding | None
    """Other data or weights than those of the points that are trained; None: there are none."""

    def result(self, key: str) -> Read[PointResult]:
        """What is stored as a task's result."""
        return self.observed.results.get(key, ABSENT)


def plan_tasks(sweep: AcceptedSweep, corpus: DataManifest) -> TaskSet:
    """The points of a sweep on a corpus. Raises InvalidSpec if that does not fit the spec."""
    observed, spec, stored = sweep.observed, sweep.spec, sweep.known.ledger
    changed = _checkpoint_changed(spec, stored, sweep.checkpoints)
    changed = changed or _data_changed(sweep.prepare_key, stored, corpus)
    jobs = _jobs_by_key(observed, store_label(store_uri(spec)))
    kept, ledger = _ending_preparations(sweep), _present_ledger(sweep, corpus)
    planned = plan_points(spec, corpus, ledger.additions, sweep.continued)
    if spec.searches:
        # Limited to what the ledger wants trained.
        targets = {record.key: record.intent.tokens for record in ledger.points}
        planned = tuple(
            replace(point, target=target) if (target := targets.get(point.key)) else point
            for point in planned
        )
    points = {point.key: point for point in planned}
    holding = [job for job in observed.jobs if job.kind == "train" and job.holds_a_slot]
    active = tuple(job for job in holding if job.key in points)
    templates = {
        each: template_label(observed.operator_template, spec, each)
        for each in {point.proxy.template_digest for point in planned}
    }
    asked = {key: templates[point.proxy.template_digest] for key, point in points.items()}
    return TaskSet(
        observed=observed,
        spec=spec,
        corpus=corpus,
        points=points,
        known=replace(sweep.known, ledger=ledger),
        jobs=jobs,
        active=active,
        prepare_jobs=sweep.prepare_jobs,
        kept=kept,
        progress={
            key: progress
            for key, progress in observed.progress.items()
            if progress.claimant.sweep_uid == observed.uid
        },
        templates=templates,
        outdated=frozenset(job.uid for job in active if is_outdated(job, asked[job.key])),
        changed=changed,
    )


def corpora(sweep: AcceptedSweep) -> tuple[DataManifest, ...]:
    """The corpora that points may be planned on, the first to try first: none before a size has its places.

    That of the ledger serves if nothing is left to train: then nobody needs the data, whatever the store holds of them by
    now.
    """
    if sweep.unplaced is not None:
        return ()
    found, known = sweep.manifest, sweep.known.ledger.corpus
    stored = () if found is None else (found,)
    is_other = known is not None and (found is None or found.digest != known.digest)
    if known is None or not is_other:
        return stored
    is_training = any(job.kind == "train" and job.holds_a_slot for job in sweep.observed.jobs)
    return stored if is_training else (known, *stored)


def reporting_tasks(sweep: AcceptedSweep) -> TaskSet | None:
    """The points as the ledger knows them, for the numbers of a sweep whose corpus is prepared again; None: it has no
    corpus, or the spec asks for other points by now.

    Raises InvalidSpec if the corpus does not fit the spec.
    """
    ledger = sweep.known.ledger
    if sweep.unplaced or ledger.corpus is None:
        return None
    tasks = plan_tasks(sweep, ledger.corpus)
    return tasks if tasks.points.keys() == {record.key for record in ledger.points} else None


# ------------------------------------------------------ whether it is what the points were trained on


def _data_changed(prepare_key: str, ledger: Ledger, corpus: DataManifest) -> Finding | None:
    """Points of another corpus would take the place of those that are trained, and of their cost."""
    digest = corpus.digest
    trained = sum(record.trained_for > 0 for record in ledger.points)
    is_known = ledger.prepare_key == prepare_key and ledger.data_digest
    if not (is_known and trained) or ledger.data_digest == digest:
        return None
    message = (
        f"data/{corpus.prepare_key}/ in the store holds a corpus with the digest {digest[:16]}, but the results of "
        f"{counted(trained, 'point')} belong to {ledger.data_digest[:16]}: it was prepared again after its sources changed. Put the former "
        "one back, or create another ScalingSweep for the new one."
    )
    return Finding(Reason.DATA_CHANGED, message, stalled=True)


def _checkpoint_changed(
    spec: ScalingSweepSpec, ledger: Ledger, checkpoints: Sequence[KnownCheckpoint]
) -> Finding | None:
    """Points of other weights would take the place of those that are trained, and of their cost. Those around an answer
    follow the prediction, which measures the other weights."""
    before = {each.uri: each.stamp for each in ledger.checkpoints}
    replaced = {
        each.uri for each in checkpoints if before.get(each.uri, "") not in ("", each.stamp)
    }
    sizes = {proxy.name: proxy.checkpoint_uri for proxy in spec.fitted_proxies}
    hit = [r for r in ledger.points if r.trained_for > 0 and sizes.get(r.proxy) in replaced]
    if not hit:
        return None
    message = (
        f"The files of {sizes[hit[0].proxy]} were replaced, and {counted(len(hit), 'point')} {are(len(hit))} trained from the "
        "former ones. Put these back, or create another ScalingSweep for the new ones."
    )
    return Finding(Reason.CHECKPOINT_CHANGED, message, stalled=True)


# --------------------------------------------------------------------------------- what is planned


def _present_ledger(sweep: AcceptedSweep, corpus: DataManifest) -> Ledger:
    """The ledger with the places that the spec's sizes have now, their present names, and the corpus."""
    ledger = sweep.known.ledger
    present: dict[str, Any] = {
        "additions": _under_present_names(ledger, sweep, corpus),
        "placements": sweep.placements,
        "former_placements": sweep.former_placements,
        "checkpoints": sweep.checkpoints,
        "neighbourhoods": sweep.continued.neighbourhoods,
    }
    known = ledger.corpus
    if known is None or (known.digest, known.prepare_key) != (corpus.digest, corpus.prepare_key):
        present["corpus"] = without_shards(corpus)
    changes = {name: value for name, value in present.items() if getattr(ledger, name) != value}
    return ledger.replace(**changes) if changes else ledger


def _under_present_names(
    ledger: Ledger, sweep: AcceptedSweep, corpus: DataManifest
) -> tuple[AddedPoint, ...]:
    """Points that a search added, under the present names of their sizes, which the other points tell by their keys."""
    names, known = {proxy.name for proxy in sweep.spec.proxies}, ledger.by_key
    if all(added.proxy in names for added in ledger.additions):
        return ledger.additions
    planned = plan_points(sweep.spec, corpus, continued=sweep.continued)
    grid = (point for point in planned if point.key in known)
    present = {known[point.key].proxy: point.proxy.name for point in grid}
    return tuple(
        added
        if added.proxy in names
        else replace(added, proxy=present.get(added.proxy, added.proxy))
        for added in ledger.additions
    )


# ----------------------------------------------------------------------------------------- its Jobs


def _jobs_by_key(observed: ObservedSweep, store: str) -> dict[str, tuple[ObservedJob, ...]]:
    by_key: dict[str, list[ObservedJob]] = {}
    stopped = {job.uid: job for job in observed.stopped}  # as they were then
    present = (job for job in observed.jobs if job.uid not in stopped)
    for job in (*present, *stopped.values()):
        if job.kind == "train" and job.store == store:
            by_key.setdefault(job.key, []).append(job)
    return {key: by_attempt(jobs) for key, jobs in by_key.items()}


def _ending_preparations(sweep: AcceptedSweep) -> frozenset[str]:
    """Uids of prepare Jobs that are left to end by themselves: a pod of theirs has just written the manifest, most
    likely."""
    if sweep.spec.suspend or not _is_new(sweep.observed):
        return frozenset()
    return frozenset(job.uid for job in sweep.prepare_jobs if not job.must_be_deleted)


def _is_new(observed: ObservedSweep) -> bool:
    """Whether the corpus is prepared only just now."""
    previous: Condition | None = observed.previous_conditions.get(DATA_READY)
    if previous is None or previous.status != "True":
        return True
    since = previous.since or observed.now
    return (observed.now - since).total_seconds() < ENDING_SECONDS
