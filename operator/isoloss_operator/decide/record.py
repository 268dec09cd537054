"""The ledger with everything observed in it: results, and Jobs that ended, were stopped or stalled, once each. What an
outcome does to the record of a point does nothing when repeated.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Final

from isoloss_contract import layout, reading
from isoloss_contract.ledger import (
    DONE,
    NOT_CHOSEN,
    ConfigurationError,
    Intent,
    IntentAction,
    PointRecord,
)
from isoloss_contract.records import PointResult, content_key
from isoloss_operator.api import ScalingSweepSpec
from isoloss_operator.decide import attempts
from isoloss_operator.decide.checks import Recorded
from isoloss_operator.decide.jobs import Failure, FailureClass, configuration_error, spec_field
from isoloss_operator.decide.observation import ObservedJob
from isoloss_operator.decide.plans import Quarantine
from isoloss_operator.decide.tasks import TaskSet


def record(tasks: TaskSet) -> Recorded:
    """The ledger with everything observed in it: results, ended Jobs, stopped ones, unreadable trajectories, stalls; what
    attempts under way have cost.

    Points that are no longer planned are kept apart if they cost something; their results stay in the store.
    """
    known, observed, policy = tasks.known.ledger, tasks.observed, tasks.spec.failure_policy
    retries, uid, now = policy.retries_per_point, observed.uid, observed.now
    former, records, seen_of = _former(tasks), list[PointRecord](), dict[str, attempts.Seen]()
    versions = known.versions
    for key, point in tasks.points.items():
        before = attempts.settled(attempts.planned(point, known.by_key.get(key)), point, retries)
        jobs = tasks.jobs.get(key, ())
        seen = attempts.seen_since(
            before, point, jobs, tasks.result(key), tasks.progress.get(key), now
        )
        recorded = attempts.brought_up_to_date(point, seen, uid, now)
        if isinstance(seen.result, PointResult):
            recorded, versions = attempts.with_versions(recorded, seen.result, versions)
        records.append(recorded)
        seen_of[key] = seen
    points, unreadable = tuple(records), _unreadable(tasks, records)
    stalled, error = _stalled(records, tasks), _configuration_error(tasks, seen_of)
    unusable = _unusable_results(seen_of)
    points = attempts.end_recorded(points, observed.stopped, tasks)
    points, damaged = attempts.taken_back_points(points, unreadable, tasks)
    message = f"no progress for {policy.stall_seconds} s (failurePolicy.stallSeconds)"
    points = attempts.end_recorded(points, stalled, tasks, Failure(FailureClass.STALLED, message))
    preparation = known.preparation
    for job in tasks.prepare_jobs:
        # The corpus is there: if it goes while these are kept, the next has another name.
        if job.is_finished:
            preparation = attempts.after_result(preparation, job, now)
    ledger = known.replace(
        points=tuple(attempts.settled(each, tasks.points[each.key], retries) for each in points),
        former=former,
        data_digest=tasks.corpus.digest,
        configuration_error=error,
        versions=versions,
        preparation=preparation,
    )
    quarantined = (*tasks.known.quarantined, *unusable, *damaged)
    return Recorded(ledger, quarantined, attempts.running_costs(observed, ledger))


def _former(tasks: TaskSet) -> tuple[PointRecord, ...]:
    """The points that are no longer planned, with what they cost until they are stopped."""
    ledger = tasks.known.ledger
    unplanned = (r for r in (*ledger.former, *ledger.points) if r.key not in tasks.points)
    found = (_dropped(record, tasks) for record in unplanned)
    return tuple(record for record in found if record.has_history or record.intent == STOPPING)


def _unusable_results(seen_of: Mapping[str, attempts.Seen]) -> Iterator[Quarantine]:
    """Results that cannot be used and that no running attempt is about to overwrite."""
    for key, seen in seen_of.items():
        is_running = any(job.holds_a_slot for job in seen.jobs) and not seen.ended
        is_kept = seen.before.state in DONE or is_running
        if isinstance(seen.result, reading.Unreadable) and not is_kept:
            suffix = f"unreadable-{seen.before.attempts.ended + 1}"
            yield Quarantine(layout.point_result(key), suffix)


def _configuration_error(
    tasks: TaskSet, seen_of: Mapping[str, attempts.Seen]
) -> ConfigurationError | None:
    """What the last attempts refused about the present spec; else what is known of that."""
    error = tasks.known.ledger.configuration_error
    for key, seen in seen_of.items():
        if not seen.failures:
            continue
        point, (job, failure) = tasks.points[key], seen.failures[-1]
        index = point.proxy.index
        field = spec_field(
            failure.field,
            domains=list(point.config.mixture),
            proxy=index,
            model="config" if tasks.spec.proxies[index].checkpoint is None else "checkpoint",
        )
        asked, generation = tasks.templates[point.proxy.template_digest], tasks.observed.generation
        found = configuration_error(failure, job, generation, point.name, field, asked)
        error = found or error
    return error


def _unreadable(tasks: TaskSet, points: Sequence[PointRecord]) -> dict[str, str]:
    """Problems by key of what the newest fit could not read, if it is a fit of just these points: an outcome of others
    may complain of a trajectory that has been written again since."""
    fit, spec = tasks.observed.fit, tasks.spec
    if fit is None or not fit.unreadable:
        return {}
    inputs = [fit_inputs(spec, points, final=final) for final in (True, False)]
    if spec.searches:
        inputs.append(fit_inputs(spec, points, final=True, search=True))
    return dict(fit.unreadable) if fit.inputs in inputs else {}


def _stalled(points: Iterable[PointRecord], tasks: TaskSet) -> tuple[ObservedJob, ...]:
    """Jobs whose point is unfinished and that have reported no progress for as long as the policy allows."""
    seconds, since = tasks.spec.failure_policy.stall_seconds, tasks.observed.unchanged_since
    done = {record.key for record in points if record.state in DONE}
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
    record = attempts.ended_unplanned(
        record, jobs, attempts.reports_of(observed, key), is_gone=not jobs
    )
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
