"""What to read from the store before deciding about a sweep or a prediction."""

from collections.abc import Collection, Sequence

from isoloss_contract import layout
from isoloss_contract.ledger import FAILED_FOR_GOOD, IntentAction, Ledger, PointState
from isoloss_contract.reading import is_unknown, value_of
from isoloss_operator.decide import observation
from isoloss_operator.decide.attempts import is_done, unrecorded
from isoloss_operator.decide.checks import AcceptedSweep, accepted_sweep
from isoloss_operator.decide.choose import choose
from isoloss_operator.decide.jobs import store_uri
from isoloss_operator.decide.prediction_checks import corpus_of_laws
from isoloss_operator.decide.record import STOPPING, record
from isoloss_operator.decide.single_task import evaluate_config
from isoloss_operator.decide.tasks import TaskSet, corpora, plan_tasks, reporting_tasks
from isoloss_operator.planning import specs
from isoloss_operator.planning.points import prepare_config

# ------------------------------------------------------------------------- of a sweep, and of points


NEW_SECONDS = 30.0
"""How long after its creation a Job without a working pod is not asked for its progress."""


def first_reads(
    sweep: observation.ObservedSweep | observation.ObservedReference | None,
) -> observation.FirstReads | None:
    """Where manifest, ledger, laws and models of a sweep are; None if there is none, or its spec is invalid."""
    if sweep is None or isinstance(sweep.spec, specs.InvalidSpec):
        return None
    spec = sweep.spec
    return observation.FirstReads(
        store_uri=store_uri(spec),
        folder=layout.sweep_folder(sweep.name, sweep.uid),
        corpus=layout.corpus_of(prepare_config(spec).key, sweep.uid),
        sources=specs.sources(spec),
        checkpoints=tuple(dict.fromkeys(spec.checkpoint_uris.values())),
        predictions=tuple(dict.fromkeys(p.around.prediction for p in spec.proxies if p.around)),
    )


def needs_manifest(observed: observation.ObservedSweep) -> bool:
    """Whether the manifest is to be read, all else being known: no sweep needs it that has nothing left to train."""
    try:
        return planned_tasks(accepted_sweep(observed)) is None
    except specs.InvalidSpec:
        return True


def sweep_reads(
    observed: observation.ObservedSweep, stored: frozenset[str]
) -> observation.PointReads:
    """Which results and progress to read, once Jobs, manifest and ledger are known.

    `stored` are the names under points/: points without a folder have no result.
    """
    try:
        sweep = accepted_sweep(observed)
        tasks = planned_tasks(sweep)
        if tasks is not None:
            return _point_reads(tasks, stored)
        return _reads_without_corpus(sweep, stored)
    except specs.InvalidSpec:
        return observation.PointReads()


def _reads_without_corpus(sweep: AcceptedSweep, stored: frozenset[str]) -> observation.PointReads:
    """Points train on while their corpus is prepared again: the status says how far they are, and what they cost."""
    known, records = reporting_tasks(sweep), sweep.known.ledger.by_key
    active = () if known is None else known.active
    ending = unrecorded((*sweep.observed.jobs, *sweep.observed.stopped), records)
    over = [job.key for job in ending if job.is_finished]
    left = _left_unplanned(sweep.known.ledger, (), stored)
    return observation.PointReads(
        results=tuple(dict.fromkeys((*over, *left))),
        progress=tuple(dict.fromkeys((*(job.key for job in (*active, *ending)), *left))),
        stall_seconds=sweep.spec.failure_policy.stall_seconds,
    )


def planned_tasks(sweep: AcceptedSweep) -> TaskSet | None:
    """The points that a pass is over; None: the corpus is to be prepared first, or a size has no places yet.

    Raises InvalidSpec if the corpus does not fit the spec.
    """
    for corpus in corpora(sweep):
        tasks = plan_tasks(sweep, corpus)
        if corpus is sweep.manifest or choose(tasks, record(tasks)).is_quiet:
            return tasks
    return None


def _point_reads(tasks: TaskSet, stored: frozenset[str]) -> observation.PointReads:
    observed, points, records = tasks.observed, tasks.points.values(), tasks.known.ledger.by_key
    jobs = [job for of_point in tasks.jobs.values() for job in of_point]
    # One that a suspension stopped works no more: it may have written its result on its way out.
    stopped = {job.uid for job in observed.stopped}
    over = [job for job in jobs if job.is_finished or job.uid in stopped]
    working = {job.key for job in jobs if not job.is_finished and job.uid not in stopped}
    ended = {job.key for job in over}
    unknown_ends = [
        job
        for job in over
        if job.key not in records or job.attempt > records[job.key].attempts.ended
    ]
    # The Job of a lost attempt stays alongside the next one, which is yet to end: until then, its
    # result would make the point done and the attempt one too many.
    readable = {job.key for job in unknown_ends} | ((ended | stored) - working)
    # How far an attempt came is read once, before the ledger knows of its end: it may have no result.
    lost = {job.key for job in unknown_ends if job.failed}
    # All of them: what they cost counts against the budget, and any may have stalled.
    reporting = {job.key for job in jobs if not job.is_finished and not _is_new(job, observed)}
    newly_ended = {job.key for job in unknown_ends}
    left = _left_unplanned(tasks.known.ledger, tasks.points, stored)
    wanted = newly_ended | reporting | _without_jobs(tasks, jobs, stored) | left
    results = [
        point.key
        for point in points
        if point.key in readable
        and not (point.key in records and is_done(records[point.key], point))
    ]
    # What a Job had ended with whose point is dropped now has been paid, too.
    results += [key for key in records if key not in tasks.points and key in newly_ended | left]
    failed = {
        key
        for key in results
        if key in records and records[key].state in FAILED_FOR_GOOD and key not in lost
    }
    return observation.PointReads(
        results=tuple(key for key in results if key not in failed),
        results_of_failed=tuple(key for key in results if key in failed),
        progress=tuple(key for key in dict.fromkeys((*tasks.points, *records)) if key in wanted),
        stall_seconds=tasks.spec.failure_policy.stall_seconds,
    )


def _without_jobs(
    tasks: TaskSet, jobs: Sequence[observation.ObservedJob], stored: frozenset[str]
) -> frozenset[str]:
    """Points whose last Job may have been deleted by hand, and that were not told to wait: what it had done is known
    by its last report alone."""
    ledger, busy = tasks.known.ledger, {job.key for job in jobs}
    return frozenset(
        record.key
        for record in ledger.points
        if record.state is PointState.PENDING
        and record.key in stored
        and record.key not in busy
        and record.intent.action is IntentAction.RUN
    )


def _left_unplanned(
    ledger: Ledger, planned: Collection[str], stored: frozenset[str]
) -> frozenset[str]:
    """Unfinished points that are not planned and whose last Job may have trained on, or ended, since it was recorded. Of
    those that are dropped now there is no other time to ask."""
    dropped = (each.key for each in ledger.points if each.key in stored)
    asked = {*dropped, *(each.key for each in ledger.former if each.intent == STOPPING)}
    return frozenset(
        record.key
        for record in ledger.by_key.values()
        if record.key in asked and record.key not in planned and record.state is PointState.PENDING
    )


def _is_new(job: observation.ObservedJob, observed: observation.ObservedResource) -> bool:
    """Whether it was created just now and no pod of it works yet: there is nothing it could have reported."""
    age = (observed.now - job.created).total_seconds()
    return age < NEW_SECONDS and job.working_since is None and not job.worked_seconds


# ----------------------------------------------------------------------------------- of a prediction


def needs_ledger(observed: observation.ObservedPrediction) -> bool:
    """Whether the prediction's ledger is to be read: it is as long as something is to be measured."""
    is_measured = value_of(observed.evaluation) is not None
    return bool(observed.stopped) or (
        checkpoint_of_evaluation(observed) is not None and not is_measured
    )


def evaluation_path(observed: observation.ObservedPrediction) -> str | None:
    """Where the evaluation's result is, once the manifest is read; None: nothing is measured."""
    spec, reference = observed.spec, observed.sweep
    manifest = corpus_of_laws(observed)
    if isinstance(spec, specs.InvalidSpec) or spec.checkpoint is None or manifest is None:
        return None
    if reference is None or isinstance(reference.spec, specs.InvalidSpec):
        return None
    if is_unknown(observed.checkpoint_stamp):
        return None
    stamp = observed.checkpoint_stamp
    return layout.evaluation_result(
        evaluate_config(reference.spec, manifest, spec.checkpoint, stamp).key
    )


def checkpoint_of_evaluation(observed: observation.ObservedPrediction) -> str | None:
    """URI of the checkpoint whose files are looked at before its initial loss; None: nothing is measured."""
    spec = observed.spec
    if isinstance(spec, specs.InvalidSpec) or spec.checkpoint is None:
        return None
    return spec.checkpoint.uri.rstrip("/")
