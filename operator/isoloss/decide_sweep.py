"""What happens next with a sweep: the only place that knows. Pure; early returns from top to bottom.

The state table in operator/README.md says the same in words; the rows of tests/core/test_decide_sweep.py
match it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from isoloss import layout
from isoloss.admission import (
    Admission,
    admit,
    slots_taken,
    train_request,
)
from isoloss.conditions import Finding, Reason
from isoloss.contract import DataManifest
from isoloss.decide_preparation import decide_preparation, usable_manifest
from isoloss.fit_requests import fit_inputs, fit_request, is_fitted
from isoloss.laws.results import Laws
from isoloss.ledger import DONE, Ledger, PointRecord, PointState
from isoloss.observation import (
    FirstReads,
    JobDeletion,
    ObservedJob,
    ObservedSweep,
    SweepPlan,
    SweepReads,
)
from isoloss.outcomes import PodTrouble, pod_trouble
from isoloss.points import PlannedPoint, plan_points, repeated_domains
from isoloss.recording import (
    Books,
    for_generation,
    known_ledger,
    record_points,
    record_stops,
    take_back_unreadable,
)
from isoloss.resources import ScalingSweepSpec
from isoloss.specs import InvalidSpec, parse_sweep_spec, prepare_config
from isoloss.store import BadRecord, StoreError
from isoloss.sweep_events import attempt_events
from isoloss.sweep_status import FAILED, SweepFacts, failed_in_words, numbers
from isoloss.sweep_view import (
    ALL_ACCEPTED,
    Assessment,
    SweepView,
    deletions,
    expiries,
    plan,
    suspension,
)

MAX_PROGRESS_READS = 64
"""Running points whose progress is read in a pass: enough for the status and the estimate."""


# ------------------------------------------------------------------------------- what to read first


def first_reads(observed: ObservedSweep) -> FirstReads | None:
    """Where manifest and ledger of a sweep lie; None where its spec is invalid."""
    try:
        spec = parse_sweep_spec(observed.spec)
    except InvalidSpec:
        return None
    return FirstReads(
        store_uri=spec.storage.uri.rstrip("/"),
        manifest=layout.data_manifest(prepare_config(spec).key),
        ledger=layout.sweep_ledger(observed.name, observed.uid),
    )


def sweep_reads(observed: ObservedSweep, stored: frozenset[str]) -> SweepReads:
    """Which results and progress to read, once Jobs, manifest and ledger are known.

    `stored` are the names under points/: results of points without a folder need no asking.
    """
    try:
        view = SweepView(observed, parse_sweep_spec(observed.spec))
        manifest = usable_manifest(view)
        points = plan_points(view.spec, manifest) if manifest else ()
    except InvalidSpec:
        points = ()
    if not points:
        return SweepReads((), ())
    known = {record.key: record for record in known_ledger(observed)[0].points}
    working = {j.key for js in view.train_jobs.values() for j in js if not j.is_finished}
    ended = {j.key for js in view.train_jobs.values() for j in js if j.is_finished}
    return SweepReads(
        results=tuple(
            point.key
            for point in points
            if not _is_done(point, known.get(point.key))
            and (point.key in ended or (point.key in stored and point.key not in working))
        ),
        progress=tuple(p.key for p in points if p.key in working)[:MAX_PROGRESS_READS],
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
    view = SweepView(observed, spec)
    manifest = usable_manifest(view)
    if manifest is None:
        return decide_preparation(view)
    try:
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


@dataclass(frozen=True)
class _Stage:
    """A sweep whose points are known and whose ledger is up to date."""

    view: SweepView
    manifest: DataManifest
    points: Mapping[str, PlannedPoint]
    books: Books
    admission: Admission
    failed: tuple[PointRecord, ...]

    @property
    def ledger(self) -> Ledger:
        return self.books.ledger

    @property
    def too_many_failed(self) -> bool:
        return len(self.failed) > self.view.spec.failure_policy.max_failed_points

    @property
    def active(self) -> tuple[ObservedJob, ...]:
        """Train Jobs of planned points that hold a slot."""
        return tuple(
            job for job in self.view.running if job.kind == "train" and job.key in self.points
        )

    @property
    def is_complete(self) -> bool:
        """Whether no point runs and none will, as things are."""
        left = self.admission.starts or self.admission.waiting or self.books.unknown
        pending = sum(r.state is PointState.PENDING for r in self.ledger.points)
        return (
            not self.active
            and not left
            and not self.view.observed.loose_pods
            and pending == len(self.admission.unaffordable)
        )


def _decide_points(
    view: SweepView, manifest: DataManifest, points: Sequence[PlannedPoint]
) -> SweepPlan:
    observed, spec = view.observed, view.spec
    books = _recorded(view, manifest, points)
    by_key = {point.key: point for point in points}
    failed = tuple(record for record in books.ledger.points if record.state in FAILED)
    admission = admit(observed, spec, points, books.by_key, books.unknown)
    stage = _Stage(view, manifest, by_key, books, admission, failed)
    is_blocked = books.ledger.configuration_error is not None or stage.too_many_failed
    starts = () if is_blocked or spec.suspend else admission.starts
    delete, stopped = _deletions(stage)
    ledger = record_stops(books.ledger, stopped, observed)
    final = stage.is_complete and not is_blocked
    create = tuple(
        train_request(
            observed, spec, point, books.by_key[point.key], view.train_jobs.get(point.key, ())
        )
        for point in starts
    )
    assessment = _assess(stage, starts, delete, final=final)
    facts = SweepFacts(
        store_uri=view.store_uri,
        points=points,
        ledger=ledger,
        active=stage.active,
        fit=observed.fit,
        fit_is_final=_final_laws(stage) is not None,
        warnings=_warnings(stage),
    )
    return plan(
        observed,
        assessment,
        ledger=ledger,
        set_aside=books.set_aside,
        delete=delete,
        expire=expiries(_recorded_jobs(view, by_key)),
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


def _deletions(stage: _Stage) -> tuple[tuple[JobDeletion, ...], tuple[ObservedJob, ...]]:
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


def _is_unneeded(stage: _Stage, job: ObservedJob) -> bool:
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


def _requeue_after(stage: _Stage, starts: Sequence[PlannedPoint]) -> float:
    if stage.books.unknown:
        return 15.0
    due = stage.admission.next_start
    if due is not None and not starts:
        return min(60.0, max(1.0, (due - stage.view.observed.now).total_seconds()))
    return 30.0 if stage.view.running else 60.0


# -------------------------------------------------------------------------------------- in words


def _assess(
    stage: _Stage, starts: Sequence[PlannedPoint], delete: Sequence[JobDeletion], *, final: bool
) -> Assessment:
    progressing, stalled = _progress_finding(stage, starts)
    fit = _fit_finding(stage, final=final)
    ready: Finding | None = None
    if final:
        ready, progressing, stalled = _final_findings(stage, fit, progressing)
    error = stage.ledger.configuration_error
    accepted = ALL_ACCEPTED
    if error is not None:
        accepted = Finding.false(Reason.BAD_CONFIGURATION, progressing.message)
    elif stage.view.observed.create_error:
        accepted = Finding.false(Reason.JOB_REFUSED, stage.view.observed.create_error)
    changes = [f"{len(starts)} Jobs are being started"] if starts else []
    changes += [f"{len(delete)} Jobs are being stopped"] if delete else []
    return Assessment(
        accepted=accepted,
        data=Finding.true(
            Reason.DATA_PREPARED, f"The tokenised corpus is {stage.manifest.digest[:16]}."
        ),
        progressing=progressing,
        fit=fit,
        ready=ready,
        suspended=suspension(stage.view),
        stalled=stalled,
        converging="; ".join(changes),
    )


def _progress_finding(stage: _Stage, starts: Sequence[PlannedPoint]) -> tuple[Finding, bool]:
    """Progressing while the sweep is not complete, and whether it is stuck for good."""
    error, spec = stage.ledger.configuration_error, stage.view.spec
    if error is not None:
        where = f"{error.field}: " if error.field else ""
        message = f"{where}{error.message} (found by {error.where})"
        return Finding.false(Reason.BAD_CONFIGURATION, message), True
    if stage.too_many_failed:
        allowed = spec.failure_policy.max_failed_points
        message = (
            f"{len(stage.failed)} points failed for good, more than the {allowed} of "
            f"failurePolicy.maxFailedPoints: {failed_in_words(stage.failed)}"
        )
        return Finding.false(Reason.TOO_MANY_FAILED_POINTS, message), True
    if spec.suspend:
        finding = suspension(stage.view)
        return Finding.false(finding.reason, finding.message), False
    if stage.view.observed.create_error:
        return Finding.false(Reason.JOB_REFUSED, stage.view.observed.create_error), True
    return _running_finding(stage, starts), False


def _running_finding(stage: _Stage, starts: Sequence[PlannedPoint]) -> Finding:
    active = [job for job in stage.active if not job.is_finished]
    troubles = [trouble for job in active if (trouble := pod_trouble(job))]
    queued = [job for job in active if job.suspended]
    done = sum(record.state in DONE for record in stage.ledger.points)
    total = len(stage.ledger.points)
    if active and not starts and len(troubles) + len(queued) == len(active):
        if troubles:
            return Finding.false(troubles[0].reason, _in_trouble(troubles, len(active)))
        return Finding.false(Reason.QUEUED, f"{len(queued)} Jobs wait for Kueue to admit them.")
    if not active and not starts and stage.admission.waiting:
        return Finding.true(
            Reason.WAITING_TO_RETRY,
            f"{done} of {total} points are done; {stage.admission.waiting} start again after a delay.",
        )
    message = f"{done} of {total} points are done, {len(active) + len(starts)} train."
    if troubles:
        message += f" {_in_trouble(troubles, len(active))}"
    return Finding.true(Reason.TRAINING, message)


def _in_trouble(troubles: Sequence[PodTrouble], active: int) -> str:
    return f"{len(troubles)} of {active} Jobs can not start: {troubles[0].message}"


def _final_findings(
    stage: _Stage, fit: Finding, progressing: Finding
) -> tuple[Finding, Finding, bool]:
    """Ready, Progressing and whether it is stuck, once no point runs and none will."""
    laws = _final_laws(stage)
    unaffordable = stage.admission.unaffordable
    if unaffordable:
        reason, rest = Reason.BUDGET_EXHAUSTED, f"{len(unaffordable)} points are not started: "
        progressing = Finding.false(reason, rest + stage.admission.budget_message)
    else:
        progressing = Finding.false(Reason.FINISHED, "Every point has its outcome.")
    if laws is not None and laws.status != "refused":
        return Finding.true(Reason.FITTED, fit.message), progressing, False
    is_over = laws is not None or fit.reason in (Reason.NO_RESULTS, Reason.FIT_FAILED)
    return Finding.false(fit.reason, fit.message), progressing, is_over


def _final_laws(stage: _Stage) -> Laws | None:
    """The laws of all points, once they are fitted."""
    fit = stage.view.observed.fit
    inputs = fit_inputs(stage.view.spec, stage.ledger.points, final=True)
    return fit.laws if fit is not None and is_fitted(fit, inputs) else None


def _fit_finding(stage: _Stage, *, final: bool) -> Finding:
    fit = stage.view.observed.fit
    done = sum(record.state in DONE for record in stage.ledger.points)
    if not done:
        message = "No point has a result yet." if not final else "No point ever got a result."
        return Finding.false(Reason.NO_RESULTS, message)
    is_current = fit is not None and is_fitted(
        fit, fit_inputs(stage.view.spec, stage.ledger.points, final=final)
    )
    if final and not is_current:
        return Finding.false(Reason.FITTING, f"The laws are being fitted to {done} points.")
    if fit is None:
        return Finding.false(
            Reason.NO_RESULTS, f"{done} points are done: too few for a first fit."
        )
    if fit.laws is None:
        return Finding.false(Reason.FIT_FAILED, fit.error or "The fit could not run.")
    return _laws_finding(fit.laws, fit.points, final=final)


def _laws_finding(laws: Laws, points: int, *, final: bool) -> Finding:
    if laws.status == "refused":
        refusal = next(iter(laws.refusals), None)
        reason = refusal.reason.value if refusal else Reason.LAWS_REFUSED
        message = refusal.message if refusal else "The data do not support the laws."
        return Finding.false(reason, message if final else f"So far: {message}")
    if final:
        return Finding.true(Reason.FITTED, f"The laws are fitted to {points} points.")
    return Finding.true(Reason.PROVISIONAL, f"The laws are fitted to the first {points} points.")


def _warnings(stage: _Stage) -> tuple[str, ...]:
    found = []
    if stage.failed:
        found.append(
            f"{len(stage.failed)} points failed and take no part: {failed_in_words(stage.failed)}"
        )
    if stage.admission.unaffordable:
        found.append(stage.admission.budget_message)
    repeated = repeated_domains(stage.view.spec, stage.manifest)
    if repeated:
        named = ", ".join(f"{name} {times:.1f} times" for name, times in repeated.items())
        found.append(f"The longest runs see some domains more than once: {named}.")
    over = slots_taken(stage.view.observed) - stage.view.spec.parallelism
    if over > 0:
        found.append(f"{over} Jobs more than spec.parallelism still run; none is started.")
    return tuple(found)
