"""The ledger with everything observed in it: results, and Jobs that ended, were stopped or stalled, once each. What an
outcome does to the record of a point does nothing when repeated.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Final

from isoloss_contract import layout, reading
from isoloss_contract.ledger import (
    DONE,
    NOT_CHOSEN,
    ConfigurationError,
    Intent,
    IntentAction,
    Ledger,
    PointRecord,
)
from isoloss_contract.records import PointResult, content_key
from isoloss_operator.api import ScalingSweepSpec
from isoloss_operator.decide.checks import Recorded
from isoloss_operator.decide.jobs.attempts import (
    Reports,
    Seen,
    brought_up_to_date,
    ended_unplanned,
    ended_without_result,
    planned,
    reports_of,
    seen_since,
    settled,
    taken_back,
    with_versions,
)
from isoloss_operator.decide.jobs.failures import (
    Failure,
    FailureClass,
    configuration_error,
    spec_field,
)
from isoloss_operator.decide.jobs.requests import by_attempt
from isoloss_operator.decide.observation import ObservedJob, ObservedSweep
from isoloss_operator.decide.plans import Quarantine
from isoloss_operator.decide.tasks import TaskSet
from isoloss_operator.planning.points import PlannedPoint


def record(tasks: TaskSet) -> Recorded:
    """The ledger with everything observed in it: results, ended Jobs, stopped ones, unreadable trajectories, stalls."""
    recorded = _record_points(tasks)
    ledger = end_recorded(recorded.ledger, tasks.observed.stopped, tasks)
    recorded = replace(recorded, ledger=ledger)
    if unreadable := _unreadable(tasks, ledger):
        recorded = _take_back_unreadable(recorded, unreadable, tasks)
    stalled = _stalled(recorded.ledger, tasks)
    message = (
        f"no progress for {tasks.spec.failure_policy.stall_seconds} s (failurePolicy.stallSeconds)"
    )
    failure = Failure(FailureClass.STALLED, message)
    return replace(recorded, ledger=end_recorded(recorded.ledger, stalled, tasks, failure))


def _record_points(tasks: TaskSet) -> Recorded:
    """The ledger of the planned points with every result and every ended Job in it.

    Points that are no longer planned are kept apart if they cost something; their results stay in the store.
    """
    known, retries = tasks.known, tasks.spec.failure_policy.retries_per_point
    uid, now = tasks.observed.uid, tasks.observed.now
    former, records, quarantined = _former(tasks), [], list(known.quarantined)
    error, versions = known.ledger.configuration_error, known.ledger.versions
    for point in tasks.points.values():
        before = settled(planned(point, known.ledger.by_key.get(point.key)), point, retries)
        key, jobs = point.key, tasks.jobs.get(point.key, ())
        seen = seen_since(before, point, jobs, tasks.result(key), tasks.progress.get(key), now)
        recorded = settled(brought_up_to_date(before, point, seen, uid, now), point, retries)
        if isinstance(seen.result, PointResult):
            recorded, versions = with_versions(recorded, seen.result, versions)
        records.append(recorded)
        quarantined += _quarantined(before, seen)
        if seen.failures:
            error = _refused(tasks, point, *seen.failures[-1]) or error
    ledger = known.ledger.replace(
        points=tuple(records),
        former=former,
        data_digest=tasks.corpus.digest,
        configuration_error=error,
        versions=versions,
    )
    return Recorded(ledger, tuple(quarantined))


def _former(tasks: TaskSet) -> tuple[PointRecord, ...]:
    """The points that are no longer planned, with what they cost until they are stopped."""
    ledger = tasks.known.ledger
    unplanned = (r for r in (*ledger.former, *ledger.points) if r.key not in tasks.points)
    found = (_dropped(record, tasks) for record in unplanned)
    return tuple(record for record in found if record.has_history or record.intent == STOPPING)


def _quarantined(record: PointRecord, seen: Seen) -> tuple[Quarantine, ...]:
    """Its result, if it cannot be used and no running attempt is about to overwrite it."""
    is_running = any(job.holds_a_slot for job in seen.jobs) and not seen.ended
    if record.state in DONE or is_running or not isinstance(seen.result, reading.Unreadable):
        return ()
    suffix = f"unreadable-{record.attempts.ended + 1}"
    return (Quarantine(layout.point_result(record.key), suffix),)


def _refused(
    tasks: TaskSet, point: PlannedPoint, job: ObservedJob, failure: Failure
) -> ConfigurationError | None:
    """What its last attempt refused about the present spec."""
    index = point.proxy.index
    field = spec_field(
        failure.field,
        domains=list(point.config.mixture),
        proxy=index,
        model="config" if tasks.spec.proxies[index].checkpoint is None else "checkpoint",
    )
    asked, generation = tasks.templates[point.proxy.template_digest], tasks.observed.generation
    return configuration_error(failure, job, generation, point.name, field, asked)


def _unreadable(tasks: TaskSet, ledger: Ledger) -> Sequence[tuple[str, str]]:
    """Key and problem of what the newest fit could not read, if it is a fit of just these points: an outcome of others
    may complain of a trajectory that has been written again since."""
    fit, spec = tasks.observed.fit, tasks.spec
    if fit is None or not fit.unreadable:
        return ()
    inputs = [fit_inputs(spec, ledger.points, final=final) for final in (True, False)]
    if spec.searches:
        inputs.append(fit_inputs(spec, ledger.points, final=True, search=True))
    return fit.unreadable if fit.inputs in inputs else ()


def _take_back_unreadable(
    recorded: Recorded, unreadable: Iterable[tuple[str, str]], tasks: TaskSet
) -> Recorded:
    """Done points whose trajectory a fit could not read run again; what is stored is quarantined."""
    problems = dict(unreadable)
    records, quarantined = [], list(recorded.quarantined)
    for record in recorded.ledger.points:
        if record.key not in problems or not record.is_fitted:
            records.append(record)
            continue
        problem, point = problems[record.key], tasks.points[record.key]
        failure = Failure(FailureClass.TRAJECTORY_UNREADABLE, problem)
        pending = taken_back(record, failure, point.proxy.template_digest)
        records.append(settled(pending, point, tasks.spec.failure_policy.retries_per_point))
        suffix = f"unreadable-{record.attempts.ended + 1}"
        trajectory = layout.finished_trajectory(record.key, record.trajectory_sha256)
        paths = (layout.point_result(record.key), trajectory, layout.point_trajectory(record.key))
        quarantined += [Quarantine(path, suffix) for path in paths]
    return Recorded(recorded.ledger.replace(points=tuple(records)), tuple(quarantined))


def end_recorded(
    ledger: Ledger, jobs: Iterable[ObservedJob], tasks: TaskSet, failure: Failure | None = None
) -> Ledger:
    """The ledger once the operator ends these unfinished Jobs of planned points, each recorded once: for a failure, which
    is charged, or as an interruption."""
    ended = dict[str, PointRecord]()
    for job in {job.key: job for job in jobs if job.key in tasks.points}.values():
        record, point = ledger.by_key[job.key], tasks.points[job.key]
        if job.attempt <= record.attempts.ended:
            continue
        reports = Reports(tasks.progress.get(job.key), None, tasks.observed.now)
        template = point.proxy.template_digest
        stopped = ended_without_result(record, job, reports, failure, template=template)
        ended[job.key] = settled(stopped, point, tasks.spec.failure_policy.retries_per_point)
    if not ended:
        return ledger
    return ledger.replace(points=tuple(ended.get(each.key, each) for each in ledger.points))


def unplanned_recorded(
    ledger: Ledger, stopped: Iterable[ObservedJob], observed: ObservedSweep
) -> Ledger:
    """The ledger while nothing is planned, once these train Jobs of its points are stopped: each an interruption that is
    paid once, of points that will be dropped, too."""
    jobs, busy = dict[str, list[ObservedJob]](), {job.key for job in observed.jobs}
    for job in by_attempt(stopped):
        jobs.setdefault(job.key, []).append(job)
    changed = {
        each.key: ended_unplanned(
            each,
            jobs.get(each.key, ()),
            reports_of(observed, each.key),
            is_gone=each.key not in busy,
        )
        for each in (*ledger.points, *ledger.former)
    }
    points, former = (
        tuple(changed[each.key] for each in records) for records in (ledger.points, ledger.former)
    )
    if (points, former) == (ledger.points, ledger.former):
        return ledger
    return ledger.replace(points=points, former=former)


def _stalled(ledger: Ledger, tasks: TaskSet) -> tuple[ObservedJob, ...]:
    """Jobs whose point is unfinished and that have reported no progress for as long as the policy allows."""
    seconds, since = tasks.spec.failure_policy.stall_seconds, tasks.observed.unchanged_since
    done = {record.key for record in ledger.points if record.state in DONE}
    return tuple(
        job
        for job in tasks.active
        if seconds is not None
        and job.key not in done
        and not job.deleting
        and job.uid in since
        and (tasks.observed.now - since[job.uid]).total_seconds() >= seconds
    )


# ------------------------------------------------------------------- points that are no longer planned


STOPPING: Final = Intent(IntentAction.PAUSE, reason=NOT_CHOSEN)
"""Of a point that is no longer planned, until its pods are gone and the store has said what they left: what is stopped goes
on until its pod has ended. A point that is planned again meanwhile is one that no search has chosen."""


def _dropped(record: PointRecord, tasks: TaskSet) -> PointRecord:
    """The record of a point that is no longer planned: its Jobs, ended, still to be stopped or gone, cost something."""
    key, observed, jobs = record.key, tasks.observed, tasks.jobs.get(record.key, ())
    record = ended_unplanned(record, jobs, reports_of(observed, key), is_gone=not jobs)
    is_going = jobs or key in observed.orphaned_pods or reading.is_unknown(tasks.result(key))
    is_over = record.state in DONE or not is_going
    return replace(record, intent=Intent() if is_over else STOPPING)


# ------------------------------------------------------------------------------ what a fit depends on


def fitted_records(
    spec: ScalingSweepSpec, points: Sequence[PointRecord]
) -> tuple[PointRecord, ...]:
    """Points whose trajectories the fit uses: none of those around an answer."""
    sizes = {proxy.name for proxy in spec.fitted_proxies}
    return tuple(point for point in points if point.is_fitted and point.proxy in sizes)


def fit_inputs(
    spec: ScalingSweepSpec, points: Sequence[PointRecord], *, final: bool, search: bool = False
) -> str:
    """Hash of all that a fit depends on, with a step of the search if `search`."""
    fitted = [
        [r.key, r.name, r.trajectory_sha256, str(r.state), r.taken_back, r.is_finished]
        for r in fitted_records(spec, points)
    ]
    content = [fitted, spec.fit.model_dump(mode="json"), final]
    return content_key([*content, *(_search_inputs(spec, points) if search else ())])


def _search_inputs(spec: ScalingSweepSpec, points: Sequence[PointRecord]) -> list[object]:
    """What a step depends on in addition to trajectories: a different one is another step."""
    sizes = [
        [proxy.name, proxy.tokens, spec.grid_of(proxy).model_dump(mode="json")]
        for proxy in spec.proxies
    ]
    budget = None if spec.budget is None else spec.budget.model_dump(mode="json")
    seen = [[r.key, str(r.state), str(r.intent.action), r.intent.tokens] for r in points]
    # Where points are placed shows in the sizes.
    search = spec.search.model_dump(mode="json", exclude={"placement"})
    return [search, spec.design, budget, sizes, seen]
