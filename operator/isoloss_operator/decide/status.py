"""The numbers of a sweep's status from the ledger, the Jobs and the laws: constant in size, every number traceable; the events of
what changed.
"""

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from datetime import timedelta
from typing import Final

from isoloss.formatting import loss, precise, shortened
from isoloss_contract import layout
from isoloss_contract.ledger import (
    DONE,
    FAILED_FOR_GOOD,
    IntentAction,
    Ledger,
    LostLedger,
    PointRecord,
    PointState,
)
from isoloss_contract.reading import timestamp
from isoloss_contract.records import PointProgress
from isoloss_operator import api
from isoloss_operator.api import statuses
from isoloss_operator.api.statuses import MAX_ENTRIES
from isoloss_operator.decide import conditions, law_status
from isoloss_operator.decide.choose import Chosen, Spending
from isoloss_operator.decide.jobs import UNCHARGED, FailureClass, store_uri
from isoloss_operator.decide.observation import ObservedJob, ObservedSweep
from isoloss_operator.decide.plans import Event
from isoloss_operator.decide.reasons import Reason
from isoloss_operator.planning.points import PlannedPoint, placed_sizes
from isoloss_operator.planning.specs import InvalidSpec


def sweep_status(chosen: Chosen) -> tuple[api.ScalingSweepStatus, tuple[Event, ...]]:
    """The status after a pass, and the events of the conditions that changed."""
    tasks, ledger = chosen.tasks, chosen.next_ledger
    observed, spec, points = tasks.observed, tasks.spec, tuple(tasks.points.values())
    left, search = conditions.left_behind(observed), None
    if spec.searches:
        search = search_status(spec, ledger, points, chosen.search.ended)
        if message := chosen.search_message or previous_message(observed):
            search = search.model_copy(update={"message": message})
    numbers = numbers_of(
        observed,
        points,
        ledger,
        chosen.spending,
        active=tasks.active,
        search=search,
        warnings=conditions.warnings(chosen, left),
        fit_is_final=chosen.final_laws is not None,
        shows_page=True,
    )
    return conditions.stated(observed, conditions.sweep_findings(chosen, left), numbers)


# -------------------------------------------------------------------------------------- its numbers


FARTHEST_COMPLETION: Final = timedelta(days=3650)
AS_FAR: Final = 0.99
"""Share of the tokens of the point that came furthest from which the losses of others compare with its own."""


def numbers_of(
    observed: ObservedSweep,
    points: Sequence[PlannedPoint],
    ledger: Ledger,
    spent: Spending,
    *,
    active: Sequence[ObservedJob] = (),
    search: statuses.SearchStatus | None = None,
    warnings: Sequence[str] = (),
    fit_is_final: bool = False,
    shows_page: bool = False,
) -> api.ScalingSweepStatus:
    """A status with its numbers, and without conditions.

    `spent` is of all attempts, running ones included; `active` are the train Jobs that hold a slot; `shows_page`: the page of a sweep on the way is named, once it is in
    the store.
    """
    assert not isinstance(observed.spec, InvalidSpec)  # its points are known
    records, fit = ledger.points, observed.fit
    counts = _counts(points, records, active)
    laws = fit.laws if fit is not None else None
    sizes = {point.proxy.parameters.active: point.proxy.name for point in points}
    store, name = store_uri(observed.spec), layout.sweep_folder(observed.name, observed.uid)
    folder = f"{store}/{name}"
    report_uri = layout.report_in(folder)
    is_drawn = fit is not None and laws is not None and fit.report_written
    is_drawn = is_drawn or (shows_page and observed.has_page(report_uri))
    reports = {
        job.key: observed.progress[job.key] for job in active if job.key in observed.progress
    }
    hours = _hours_so_far(observed, ledger, spent)
    completion = _estimated_completion(observed, points, ledger, spent, active)
    training, failures = _active(observed.progress, active), _failures(records)
    shown = size_statuses(records, reports)
    lost = () if ledger.lost is None else (lost_in_words(ledger.lost),)
    return api.ScalingSweepStatus(
        points=counts,
        progress=f"{counts.succeeded + counts.diverged}/{counts.total}",
        # Without those that a search added.
        planned_flops=precise(sum(point.flops for point in points[: observed.spec.points])),
        spent_flops=precise(spent.flops),
        accelerator_hours=precise(hours),
        estimated_completion=completion,
        **(law_status.law_statuses(laws, provisional=not fit_is_final) if laws else {}),
        optima=law_status.optimum_statuses(laws.frontier, sizes) if laws else (),
        sizes=shown,
        active=training,
        failures=failures,
        warnings=conditions.texts([*lost, *warnings, *(laws.warnings if laws else ())]),
        data_digest=ledger.data_digest,
        ledger=statuses.LedgerReference(uri=layout.ledger_in(folder), sha256=ledger.digest),
        search=search,
        laws_uri=layout.laws_in(folder) if laws else "",
        laws_sha256=fit.laws_sha256 if fit and laws else "",
        report_uri=report_uri if is_drawn else "",
    )


def _hours_so_far(observed: ObservedSweep, ledger: Ledger, spent: Spending) -> float:
    """Never fewer than were shown, unless the ledger was lost: a running attempt counts until now, one that has ended until its
    end, which came before it was seen."""
    hours = spent.accelerator_seconds / 3600
    try:
        shown = float(observed.previous_status.accelerator_hours or 0)
    except ValueError:  # not ours
        return hours
    return max(hours, shown) if ledger.lost is None and math.isfinite(shown) else hours


def _counts(
    points: Sequence[PlannedPoint],
    records: Sequence[PointRecord],
    active_jobs: Iterable[ObservedJob],
) -> statuses.PointCounts:
    """Points by state; a pending point with a Job is active.

    Before the corpus is prepared the points have no keys and no records, but are counted.
    """
    if not all(point.key for point in points):
        return statuses.PointCounts(total=len(points), pending=len(points))
    with_job, states = {job.key for job in active_jobs}, Counter(r.state for r in records)
    active = sum(r.key in with_job for r in records if r.state is PointState.PENDING)
    return statuses.PointCounts(
        total=len(records),
        pending=states[PointState.PENDING] - active,
        active=active,
        succeeded=states[PointState.SUCCEEDED],
        diverged=states[PointState.DIVERGED],
        failed=sum(states[state] for state in FAILED_FOR_GOOD),
        adopted=sum(r.adopted for r in records),
    )


def _active(
    reports: Mapping[str, PointProgress], jobs: Iterable[ObservedJob]
) -> tuple[statuses.ActivePoint, ...]:
    rows = []
    for job in sorted(jobs, key=lambda job: job.name)[:MAX_ENTRIES]:
        progress = reports.get(job.key)
        tokens, newest = (progress.tokens, progress.loss) if progress else (0, None)
        rows.append(statuses.ActivePoint(name=job.name, tokens=tokens, loss=loss(newest)))
    return tuple(rows)


def _failures(records: Sequence[PointRecord]) -> tuple[statuses.FailedPoint, ...]:
    failed = [record for record in records if record.state in FAILED_FOR_GOOD][:MAX_ENTRIES]
    return tuple(
        statuses.FailedPoint(
            name=record.name,
            reason=record.attempts.last_failure or str(record.state),
            message=record.attempts.failures[-1].message if record.attempts.failures else "",
        )
        for record in failed
    )


# ----------------------------------------------------------------------------- how far each size is


def size_statuses(
    records: Sequence[PointRecord], reports: Mapping[str, PointProgress]
) -> tuple[statuses.SizeStatus, ...]:
    """A line per size, in the order of the records. `reports` are those of the points that have a Job, by key."""
    by_size: dict[str, list[PointRecord]] = {}
    for record in records:
        by_size.setdefault(record.proxy, []).append(record)
    return tuple(_size_status(name, own, reports) for name, own in by_size.items())


def _size_status(
    name: str, records: Sequence[PointRecord], reports: Mapping[str, PointProgress]
) -> statuses.SizeStatus:
    seen = [_tokens_seen(record, reports.get(record.key)) for record in records]
    wanted = sum(
        max(tokens, _wanted_tokens(record)) for record, tokens in zip(records, seen, strict=True)
    )
    done, lowest = sum(r.state in DONE for r in records), _lowest(records, seen, reports)
    return statuses.SizeStatus(
        proxy=name,
        progress=f"{done}/{len(records)}",
        # Rounded down: 100 says that nothing is left.
        trained=int(100 * sum(seen) / wanted) if wanted else 0,
        loss=loss(lowest),
    )


def _tokens_seen(record: PointRecord, report: PointProgress | None) -> int:
    return max(record.tokens, report.tokens if report is not None else 0)


def _wanted_tokens(record: PointRecord) -> int:
    """Tokens to which it is to be trained, as things are: none of a point that a search has not chosen."""
    if not _is_wanted(record):
        return record.tokens
    return min(record.intent.tokens or record.wanted_tokens, record.wanted_tokens)


def _lowest(
    records: Sequence[PointRecord], seen: Sequence[int], reports: Mapping[str, PointProgress]
) -> float | None:
    """Of averaged weights if known. A point on the way has a higher loss than at its end, and is no rival yet."""
    known = [
        (tokens, found)
        for record, tokens in zip(records, seen, strict=True)
        if record.state is not PointState.DIVERGED
        and (found := _newest_loss(record, reports.get(record.key))) is not None
    ]
    furthest = max((tokens for tokens, _ in known), default=0)
    return min((found for tokens, found in known if tokens >= AS_FAR * furthest), default=None)


def _newest_loss(record: PointRecord, report: PointProgress | None) -> float | None:
    if report is not None and report.tokens > record.tokens and report.loss is not None:
        return report.loss
    return record.averaged_loss if record.averaged_loss is not None else record.loss


# ---------------------------------------------------------------------- how long it will still train


def _estimated_completion(
    observed: ObservedSweep,
    points: Sequence[PlannedPoint],
    ledger: Ledger,
    spent: Spending,
    active: Sequence[ObservedJob],
) -> str:
    """When all that is wanted by now is trained; empty while nothing trains or nothing is measured.

    FLOPs left over FLOPs per second: of each size by its own pace, as the budget reckons it.
    """
    records = ledger.by_key
    devices = sum(job.accelerators * job.pods for job in active)
    if not devices or not spent.accelerator_seconds:
        return ""
    left = sum(
        spent.seconds_per_flop[point.proxy.name] * spent.remaining[point.key]
        for point in points
        if _is_wanted(records[point.key])
    )
    seconds = left / devices
    if seconds > FARTHEST_COMPLETION.total_seconds():
        return ""
    return timestamp(observed.now + timedelta(seconds=seconds))


def _is_wanted(record: PointRecord) -> bool:
    return record.state is PointState.PENDING and record.intent.action is IntentAction.RUN


# ------------------------------------------------------------------------------- how far a search is


def previous_message(observed: ObservedSweep) -> str:
    """What the last step of a search that goes on chose: it is shown until the next."""
    before = observed.previous_status.search
    return "" if before is None or before.ended else before.message


def search_status(
    spec: api.ScalingSweepSpec, ledger: Ledger, points: Sequence[PlannedPoint], ended: str
) -> statuses.SearchStatus:
    """`points` are the planned ones, `ended` says why the search is over; empty: it goes on."""
    records = ledger.points
    finished = [r for r in records if r.is_finished]
    untouched = [r for r in records if not r.intent.tokens and not r.tokens]
    grid = points[: spec.points]
    keys = {point.key for point in grid}
    return statuses.SearchStatus(
        ended=ended,
        finished=len(finished),
        # With an intermediate result that has all the tokens that are wanted for now.
        paused=sum(
            r.state is PointState.SUCCEEDED
            and r.intent.action is IntentAction.RUN
            and not r.is_finished
            for r in records
        ),
        not_chosen=len(untouched),
        added=sum(r.key not in keys for r in records),
        saved_flops=precise(sum(p.flops for p in grid) - sum(_flops(r) for r in records))
        if ended
        else "",
        placed=tuple(
            statuses.PlacedSizeStatus(
                proxy=placement.proxy,
                source=placement.source,
                learning_rates=grid.learning_rates,
                batch_sizes=grid.batch_sizes,
            )
            for placement, grid in placed_sizes(spec, ledger.placements)
        ),
    )


def _flops(record: PointRecord) -> float:
    """FLOPs of a point, up to the tokens it is trained for or wanted to be."""
    wanted = min(record.intent.tokens, record.wanted_tokens)
    tokens = record.tokens if record.state is PointState.DIVERGED else max(record.tokens, wanted)
    return record.flops_per_token * tokens


# ----------------------------------------------- events about attempts that ended, and steps of a search


MAX_EVENT_MESSAGE = 900
NAMED = 3
"""Points named in an event."""
LEDGER_LOST: Final = "LedgerLost"
AWAY: Final = (
    FailureClass.NODE_LOST,
    FailureClass.NODE_FAILURE,
    FailureClass.STORE_UNAVAILABLE,
)
"""Not charged, and yet for somebody to look at."""


def attempt_events(before: Ledger | None, after: Ledger) -> tuple[Event, ...]:
    """One event per class of failure among the attempts that ended between two ledgers, and one if the latter had to
    be begun anew."""
    by_failure: dict[str, list[PointRecord]] = {}
    for record in failed_between(before, after):
        by_failure.setdefault(record.attempts.last_failure, []).append(record)
    lost = after.lost if before is None or before.lost != after.lost else None
    news = () if lost is None else (Event("Warning", LEDGER_LOST, lost_in_words(lost)),)
    return news + tuple(
        _event(failure, records) for failure, records in sorted(by_failure.items())
    )


def failed_between(before: Ledger | None, after: Ledger) -> list[PointRecord]:
    """The points whose last attempt ended without a result between two ledgers, as `after` has them."""
    records = () if before is None else before.by_key.values()  # dropped ones return as they were
    known = {record.key: record.attempts.ended for record in records}
    return [
        record
        for record in after.points
        if record.attempts.last_failure and record.attempts.ended > known.get(record.key, 0)
    ]


def lost_in_words(lost: LostLedger) -> str:
    """What is not known any more, and why."""
    name = lost.kept_as.rpartition("/")[2]
    kept = f" (the old one is {name})" if name else ""
    return shortened(
        f"A new ledger was begun at {lost.at}{kept}: earlier spend, failures and decisions are unknown. {lost.problem}",
        MAX_EVENT_MESSAGE,
    )


def _event(failure: str, records: list[PointRecord]) -> Event:
    is_charged = failure not in UNCHARGED
    more = f" and {len(records) - NAMED} more" if len(records) > NAMED else ""
    names = ", ".join(record.name for record in records[:NAMED]) + more
    failures = records[0].attempts.failures
    cause = failures[-1].message if is_charged and failures else records[0].attempts.last_message
    message = f": {cause}" if cause else ""
    return Event(
        "Warning" if is_charged or failure in AWAY else "Normal",
        failure,
        shortened(f"An attempt of {names} ended{message}", MAX_EVENT_MESSAGE),
    )


def search_events(chosen: Chosen) -> tuple[Event, ...]:
    """One event about a step, or that the search is over, once."""
    step, before = chosen.search.step, chosen.tasks.observed.previous_status.search
    if step is None or (step.ended and before is not None and step.ended == before.ended):
        return ()
    message = shortened(chosen.search_message, MAX_EVENT_MESSAGE)
    return (Event("Normal", Reason.SEARCH_STEP, message),)
