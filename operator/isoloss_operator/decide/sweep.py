"""What happens next with a sweep: the only place that knows. Pure; early returns from top to bottom.

The state table in operator/README.md says the same in words; the rows of tests/isoloss_operator/decide/test_decide_sweep.py
match it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from isoloss_contract import layout
from isoloss_contract.ledger import DONE, Ledger, PointRecord, PointState
from isoloss_contract.records import DataManifest
from isoloss_contract.store import BadRecord, StoreError
from isoloss_operator.api import ScalingSweepSpec
from isoloss_operator.decide.admission import (
    admit,
    train_request,
)
from isoloss_operator.decide.conditions import Finding, Reason
from isoloss_operator.decide.fit_requests import fit_inputs, fit_request
from isoloss_operator.decide.observation import (
    FirstReads,
    JobDeletion,
    ObservedJob,
    ObservedSweep,
    SweepPlan,
    SweepReads,
)
from isoloss_operator.decide.preparation import decide_preparation, usable_manifest
from isoloss_operator.decide.recording import (
    Books,
    for_generation,
    known_ledger,
    record_points,
    record_stops,
    take_back_unreadable,
)
from isoloss_operator.decide.sweep_events import attempt_events
from isoloss_operator.decide.sweep_stage import Stage, assess, final_laws, warnings
from isoloss_operator.decide.sweep_status import FAILED, SweepFacts, numbers
from isoloss_operator.decide.sweep_view import (
    Assessment,
    SweepView,
    deletions,
    expiries,
    plan,
)
from isoloss_operator.planning.points import PlannedPoint, plan_points
from isoloss_operator.planning.specs import (
    InvalidSpec,
    like_checkpoints,
    parse_sweep_spec,
    prepare_config,
    with_derived_proxies,
)

MAX_PROGRESS_READS = 64
"""Running points whose progress is read in a pass: enough for the status and the estimate."""


# ------------------------------------------------------------------------------- what to read first


def first_reads(observed: ObservedSweep) -> FirstReads | None:
    """Where manifest, ledger and models of a sweep lie; None where its spec is invalid."""
    try:
        spec = parse_sweep_spec(observed.spec)
    except InvalidSpec:
        return None
    return FirstReads(
        store_uri=spec.storage.uri.rstrip("/"),
        manifest=layout.data_manifest(prepare_config(spec).key),
        ledger=layout.sweep_ledger(observed.name, observed.uid),
        like_checkpoints=like_checkpoints(spec),
    )


def sweep_reads(observed: ObservedSweep, stored: frozenset[str]) -> SweepReads:
    """Which results and progress to read, once Jobs, manifest and ledger are known.

    `stored` are the names under points/: results of points without a folder need no asking.
    """
    try:
        spec = with_derived_proxies(parse_sweep_spec(observed.spec), observed.like_configs)
        view = SweepView(observed, spec)
        manifest = usable_manifest(view)
        points = plan_points(view.spec, manifest) if manifest else ()
    except InvalidSpec:
        points = ()
    if not points:
        return SweepReads((), ())
    known = {record.key: record for record in known_ledger(observed)[0].points}
    jobs = [job for of_point in view.train_jobs.values() for job in of_point]
    working = {job.key for job in jobs if not job.is_finished}
    ended = {job.key for job in jobs if job.is_finished}
    # How far an attempt came that failed is read once, before the ledger knows of its end.
    lost = {
        job.key
        for job in jobs
        if job.failed and (job.key not in known or job.attempt > known[job.key].attempts.ended)
    }
    return SweepReads(
        results=tuple(
            point.key
            for point in points
            if not _is_done(point, known.get(point.key))
            and (point.key in ended or (point.key in stored and point.key not in working))
        ),
        progress=tuple(p.key for p in points if p.key in lost | working)[:MAX_PROGRESS_READS],
    )


def _is_done(point: PlannedPoint, record: PointRecord | None) -> bool:
    if record is None or record.state not in DONE:
        return False
    return record.state is PointState.DIVERGED or record.trained_for >= point.proxy.tokens


# ------------------------------------------------------------------------------------- the decision


def decide_sweep(observed: ObservedSweep) -> SweepPlan:
    """What is to be done about a sweep now, and what its status says."""
    try:
        spec = parse_sweep_spec(observed.spec)
    except InvalidSpec as error:
        return _not_accepted(observed, Reason.INVALID_SPEC, str(error))
    if observed.storage_refusal:
        return _not_accepted(observed, Reason.STORAGE_NOT_ALLOWED, observed.storage_refusal)
    if store_error := observed.store_error or _unasked(observed):
        return _store_unreachable(observed, store_error)
    try:
        spec = with_derived_proxies(spec, observed.like_configs)
        view = SweepView(observed, spec)
        manifest = usable_manifest(view)
        if manifest is None:
            return decide_preparation(view)
        points = plan_points(spec, manifest)
    except InvalidSpec as error:
        return _not_accepted(observed, Reason.INVALID_SPEC, str(error))
    return _decide_points(view, manifest, points)


def _unasked(observed: ObservedSweep) -> str:
    """An error that says nothing about what lies in the store: as good as not having asked."""
    for found in (observed.manifest, observed.ledger):
        if isinstance(found, StoreError) and not isinstance(found, BadRecord):
            return str(found)
    return ""


def _not_accepted(observed: ObservedSweep, reason: Reason, message: str) -> SweepPlan:
    """Nothing is started or stopped: Jobs of an earlier, valid spec may go on."""
    finding = Finding.false(reason, message)
    return plan(
        observed,
        Assessment(accepted=finding, progressing=finding, stalled=True),
        requeue_after=300.0,
    )


def _store_unreachable(observed: ObservedSweep, message: str) -> SweepPlan:
    finding = Finding.false(Reason.STORAGE_UNREACHABLE, message)
    return plan(
        observed,
        Assessment(
            accepted=finding,
            progressing=finding,
            converging="Waiting for the store to answer.",
        ),
        requeue_after=30.0,
    )


def _decide_points(
    view: SweepView, manifest: DataManifest, points: Sequence[PlannedPoint]
) -> SweepPlan:
    observed, spec = view.observed, view.spec
    books = _recorded(view, manifest, points)
    by_key = {point.key: point for point in points}
    failed = tuple(record for record in books.ledger.points if record.state in FAILED)
    admission = admit(observed, spec, points, books.by_key, books.unknown)
    stage = Stage(view, manifest, by_key, books, admission, failed)
    is_blocked = books.ledger.configuration_error is not None or stage.too_many_failed
    starts = () if is_blocked or spec.suspend else admission.starts
    delete, stopped = _deletions(stage)
    ledger = record_stops(books.ledger, stopped, observed, by_key)
    final = stage.is_complete and not is_blocked
    create = tuple(
        train_request(
            observed, spec, point, books.by_key[point.key], view.train_jobs.get(point.key, ())
        )
        for point in starts
    )
    assessment = assess(stage, starts, delete, final=final)
    facts = SweepFacts(
        store_uri=view.store_uri,
        points=points,
        ledger=ledger,
        active=stage.active,
        fit=observed.fit,
        fit_is_final=final_laws(stage) is not None,
        warnings=warnings(stage),
    )
    return plan(
        observed,
        assessment,
        ledger=ledger,
        set_aside=books.set_aside,
        delete=delete,
        expire=expiries(view.spec, _recorded_jobs(view, by_key)),
        create=create,
        fit=fit_request(observed, spec, ledger, by_key, final=final),
        numbers=numbers(observed, facts),
        happened=attempt_events(view.stored_ledger, books.ledger),
        requeue_after=_requeue_after(stage, starts),
    )


def _recorded(view: SweepView, manifest: DataManifest, points: Sequence[PlannedPoint]) -> Books:
    """The ledger with everything observed in it."""
    observed = view.observed
    ledger, set_aside = known_ledger(observed)
    ledger = for_generation(ledger, observed.generation, view.config.key)
    books = record_points(
        ledger,
        observed,
        points,
        view.train_jobs,
        data_digest=manifest.digest,
        retries=view.spec.failure_policy.retries_per_point,
    )
    books = Books(books.ledger, (*set_aside, *books.set_aside), books.unknown)
    fit = observed.fit
    if fit is not None and fit.unreadable and _is_of(fit.inputs, view.spec, books.ledger):
        books = take_back_unreadable(
            books,
            fit.unreadable,
            {point.key: point for point in points},
            retries=view.spec.failure_policy.retries_per_point,
        )
    return books


def _is_of(inputs: str, spec: ScalingSweepSpec, ledger: Ledger) -> bool:
    """Whether a fit was made of just the points that are done now."""
    return any(inputs == fit_inputs(spec, ledger.points, final=final) for final in (True, False))


def _deletions(stage: Stage) -> tuple[tuple[JobDeletion, ...], tuple[ObservedJob, ...]]:
    """Jobs to delete, and those among them whose points are stopped rather than dropped."""
    view = stage.view
    planned = {
        job.uid for key, jobs in view.train_jobs.items() if key in stage.points for job in jobs
    }
    obsolete = [
        job for job in view.observed.jobs if job.uid not in planned and job.kind == "train"
    ]
    obsolete += [job for job in view.observed.jobs if job.kind == "prepare"]
    delete = deletions(obsolete, "the spec does not ask for it any more")
    unneeded = [job for job in stage.active if _is_unneeded(stage, job)]
    delete += deletions(unneeded, "its point is done already")
    if not view.spec.suspend:
        return delete, ()
    stopped = tuple(
        job
        for job in stage.active
        if not job.is_finished and not job.deleting and job not in unneeded
    )
    return delete + deletions(stopped, "the sweep is suspended"), stopped


def _is_unneeded(stage: Stage, job: ObservedJob) -> bool:
    """A Job still waiting for its pod although another sweep finished the point."""
    has_begun = job.pod is not None and job.pod.phase != "Pending"
    return stage.books.by_key[job.key].state in DONE and not has_begun


def _recorded_jobs(view: SweepView, points: Mapping[str, PlannedPoint]) -> list[ObservedJob]:
    """Finished Jobs of which the ledger in the store, not just ours, knows the outcome."""
    ledger = view.stored_ledger
    if ledger is None:
        return []
    ended = {record.key: record.attempts.ended for record in ledger.points}
    return [
        job
        for job in view.observed.jobs
        if job.kind == "prepare"
        or job.key not in points
        or (job.key in ended and job.attempt <= ended[job.key])
    ]


def _requeue_after(stage: Stage, starts: Sequence[PlannedPoint]) -> float:
    if stage.books.unknown:
        return 15.0
    due = stage.admission.next_start
    if due is not None and not starts:
        return min(60.0, max(1.0, (due - stage.view.observed.now).total_seconds()))
    return 30.0 if stage.view.running else 60.0
