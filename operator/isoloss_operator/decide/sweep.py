"""A pass over a sweep, a value to a value:

    observed -> checks -> tasks -> record -> choose -> status -> requests

The checks have the order of the state table in operator/README.md, whose rows are those of
tests/isoloss_operator/decide/test_sweep_states.py. What is asked for at its end is here: Jobs, the fit, the page that no fit
draws, the next look. A fit is requested whenever the finished points changed enough to matter.
"""

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from isoloss.laws import FitOptions
from isoloss.report.content import PointRow
from isoloss.runs import Weights, stopped_in_words
from isoloss_contract import layout
from isoloss_contract.ledger import PointRecord, PointState
from isoloss_contract.reading import value_of
from isoloss_contract.records import content_key
from isoloss_operator.api import ScalingSweepSpec, ScalingSweepStatus
from isoloss_operator.decide import fits
from isoloss_operator.decide.checks import AcceptedSweep, check_sweep
from isoloss_operator.decide.choose import Chosen, choose
from isoloss_operator.decide.conditions import Findings, data_prepared, previous_findings, stated
from isoloss_operator.decide.jobs import deletions, expiries, lost_deletions
from isoloss_operator.decide.observation import ObservedSweep
from isoloss_operator.decide.plans import Event, JobDeletion, SweepPlan
from isoloss_operator.decide.reasons import Finding, Reason
from isoloss_operator.decide.record import record
from isoloss_operator.decide.single_task import decide_preparation
from isoloss_operator.decide.status import attempt_events, search_events, sweep_status
from isoloss_operator.decide.tasks import corpora, plan_tasks
from isoloss_operator.planning.points import PlannedPoint
from isoloss_operator.planning.specs import InvalidSpec

WORTH_REFITTING: Final = 0.05
"""A provisional fit is repeated when the points done grew by this share."""
WEIGHTS: Final[Mapping[str, Weights]] = {"Averaged": "averaged", "Raw": "raw"}
"""The law engine's words for spec.fit.weights."""


def decide_sweep(observed: ObservedSweep) -> SweepPlan:
    """What is to be done about a sweep now, and what its status says."""
    sweep = check_sweep(observed)
    found = _pass(sweep)
    if isinstance(found, SweepPlan):
        return found
    if isinstance(found, Finding):
        return _without_points(observed, found, sweep)
    status, events = sweep_status(found)
    return _plan(found, status, events)


def _pass(sweep: AcceptedSweep | Finding) -> Chosen | Finding | SweepPlan:
    """A pass over the points, or why there is none: the sweep may not go on, sizes wait for their first points, the points
    were trained on other data, or the corpus is to be prepared first, of which this is the plan."""
    if isinstance(sweep, Finding):
        return sweep
    if sweep.unplaced is not None and sweep.manifest is not None:
        return sweep.unplaced
    try:
        for corpus in corpora(sweep):
            tasks = plan_tasks(sweep, corpus)
            recorded = record(tasks)
            chosen = choose(tasks, recorded)
            if chosen.is_quiet or corpus is sweep.manifest:
                return tasks.changed or chosen
        return decide_preparation(sweep)
    except InvalidSpec as error:  # the corpus does not fit it
        return Finding(Reason.INVALID_SPEC, str(error), stalled=True)


def _without_points(
    observed: ObservedSweep, found: Finding, sweep: AcceptedSweep | Finding
) -> SweepPlan:
    """Nothing is started or stopped: Jobs of an earlier, valid spec may continue unless it is suspended."""
    delete = tuple[JobDeletion, ...]()
    accepted = None if isinstance(sweep, Finding) or found is not sweep.unplaced else sweep
    if accepted is not None and accepted.manifest is not None:
        delete = lost_deletions(accepted.prepare_jobs)
        data = data_prepared(accepted.manifest, accepted.prepare_key, accepted.spec)
        findings = Findings(ready=found, data=data)
    else:
        # A sweep that was ready stays so if the store does not answer: its laws do not depend on it.
        previous = observed.previous_conditions
        before = None if found.stalled else previous_findings(previous, observed.generation)
        findings = replace(before or Findings(ready=found), accepted=found)
    status, events = stated(observed, findings)
    ready = findings.ready
    requeue_after = 300.0 if ready.stalled else 30.0 if ready.holds else 10.0
    return SweepPlan(status=status, events=events, delete=delete, requeue_after=requeue_after)


# ------------------------------------------------------------------------- what follows from a pass


def _plan(chosen: Chosen, status: ScalingSweepStatus, events: tuple[Event, ...]) -> SweepPlan:
    """All that follows from a pass. `events` are those of conditions that changed."""
    fit = _fit_request(chosen, status)
    page, next_look = _sweep_page(chosen, status, fit), _next_look(chosen)
    stored = value_of(chosen.tasks.observed.ledger)
    return SweepPlan(
        status=status,
        ledger=None if chosen.next_ledger == stored else chosen.next_ledger,
        quarantined=chosen.quarantined,
        delete=deletions(chosen.delete),
        expire=expiries(chosen.tasks.spec, chosen.recorded_jobs),
        create=chosen.starts,
        fit=fit,
        page=page,
        events=(
            *attempt_events(stored, chosen.ledger),
            *search_events(chosen),
            *events,
        ),
        requeue_after=next_look,
    )


def _next_look(chosen: Chosen) -> float:
    """Seconds until the next pass unless an event comes first; infinite once the final laws are there and every Job that
    ended has been let go."""
    tasks, due = chosen.tasks, chosen.admission.next_start
    kept = {job.uid for job in tasks.observed.jobs if job.is_finished and not job.deleting}
    if chosen.next_ledger is not chosen.stopped_ledger:
        return 0.0  # Jobs of what a step has chosen start once that is in the ledger
    if chosen.unread.all:
        return 15.0
    if kept - {job.uid for job in chosen.recorded_jobs}:
        return 1.0  # Jobs are to be let go as soon as the ledger about to be written is stored
    if due is not None and not chosen.starts:
        return min(60.0, max(1.0, (due - tasks.observed.now).total_seconds()))
    if any(job.holds_a_slot for job in tasks.observed.jobs):
        return 30.0
    needs_laws = bool(tasks.spec.fitted_proxies) and chosen.final_laws is None
    return 60.0 if needs_laws or not chosen.is_over or kept else math.inf


# --------------------------------------------------------------------------------------------- fits


def _fit_request(chosen: Chosen, status: ScalingSweepStatus) -> fits.FitRequest | None:
    """The fit to run now, in place of one that runs; None: no fit is needed, or one is running. Its page shows `status`.

    One whose outcome is known is made again only for its report: the outcome is kept meanwhile. A step of the search is part
    of a final fit: both wait until everything that runs has ended.
    """
    observed, spec, final = chosen.tasks.observed, chosen.tasks.spec, chosen.is_quiet
    inputs, search, running = chosen.fit_inputs, chosen.search.request, observed.fit_running
    is_fitted = observed.fit is not None and observed.fit.inputs == inputs
    # An outcome that is known would give way to that of another fit, as after an edit that is taken back.
    is_awaited = running is None or running.inputs == inputs
    is_kept = is_fitted and not observed.report_missing and is_awaited
    if not (chosen.fitted or search) or is_kept:
        return None
    if running is not None and not _supersedes(running, spec, inputs, final=final):
        return None
    if not final and (
        observed.fit_in_backoff or not _is_worth_it(observed.fit, spec, len(chosen.fitted))
    ):
        return None
    request = _sweep_request(chosen, status, inputs)
    return fits.FitRequest(
        **vars(replace(request, provisional=not final)), options=_asked(spec)[0], search=search
    )


def _sweep_request(chosen: Chosen, status: ScalingSweepStatus, inputs: str) -> fits.SweepRequest:
    """What fits and pages of a sweep have in common, of the sweep as it is now. A page without a fit also draws points
    around answers."""
    observed, spec, ledger = chosen.tasks.observed, chosen.tasks.spec, chosen.stopped_ledger
    fitted = chosen.fitted
    if not spec.fitted_proxies:
        fitted = tuple(record for record in ledger.points if record.is_fitted)
    folder = layout.sweep_folder(observed.name, observed.uid)
    return fits.SweepRequest(
        inputs=inputs,
        points=tuple(_fit_point(record, chosen.tasks.points[record.key]) for record in fitted),
        weights=WEIGHTS[spec.fit.weights],
        ledger_sha256=ledger.digest,
        laws_path=layout.laws_in(folder),
        report_path=layout.report_in(folder),
        missing=tuple(_missing_row(r) for r in ledger.points if not r.is_fitted),
        resource=_resource(observed, status),
    )


def _resource(observed: ObservedSweep, status: ScalingSweepStatus) -> dict[str, Any]:
    """As kubectl prints it, without the spec: pod templates may hold what a bucket's readers must not see."""
    return {
        "metadata": {
            "name": observed.name,
            "namespace": observed.namespace,
            "uid": observed.uid,
            "generation": observed.generation,
        },
        "status": status.document(),
    }


def _supersedes(
    running: fits.FitRequest, spec: ScalingSweepSpec, inputs: str, *, final: bool
) -> bool:
    """Whether a fit with these inputs replaces the one that runs, rather than waiting for it.

    More points do not end a provisional fit: if they come faster than fits end, none ever would.
    """
    if running.inputs == inputs:
        return False
    is_as_asked = (running.options, running.weights) == _asked(spec)
    return final or not running.provisional or not is_as_asked


def _asked(spec: ScalingSweepSpec) -> tuple[FitOptions, Weights]:
    """All that the spec says of a fit."""
    loss = spec.fit.irreducible_loss
    options = FitOptions(
        irreducible_loss=None if loss is None else float(loss),
        form=spec.fit.form,
    )
    return options, WEIGHTS[spec.fit.weights]


def _is_worth_it(fit: fits.FitOutcome | None, spec: ScalingSweepSpec, done: int) -> bool:
    if done < fits.FEWEST_FOR_PROVISIONAL:
        return False
    if fit is None:
        return True
    laws = fit.laws
    if laws and (laws.options, laws.loss_kind) != _asked(spec):
        return True
    return abs(done - fit.points) >= max(1.0, WORTH_REFITTING * fit.points)


def _fit_point(record: PointRecord, point: PlannedPoint) -> fits.FitPoint:
    return fits.FitPoint(
        key=record.key,
        name=record.name,
        config=point.config,
        trajectory_sha256=record.trajectory_sha256,
        diverged=record.state is PointState.DIVERGED,
        finished=record.is_finished,
        stopped=stopped_in_words(record),
    )


def _missing_row(record: PointRecord) -> PointRow:
    failures = record.attempts.failures
    return PointRow(
        name=record.name,
        params=None,
        batch_size=record.batch_size,
        learning_rate=record.learning_rate,
        tokens=None,
        loss=None,
        state=str(record.state),
        note=failures[-1].message if failures else record.attempts.last_failure,
    )


# --------------------------------------------------------------------------- pages that no fit draws


def _sweep_page(
    chosen: Chosen, status: ScalingSweepStatus, fit: fits.FitRequest | None
) -> fits.SweepPage | None:
    """The page of a sweep on the way, to draw now: from the first report of a point on, once a minute at most, and
    only if it would show something new. The fits draw the others."""
    observed, ledger = chosen.tasks.observed, chosen.stopped_ledger
    if fit is not None or (chosen.is_quiet and chosen.tasks.spec.fitted_proxies):
        return None
    if observed.page_seconds < fits.PAGE_SECONDS or observed.fit_in_backoff:
        return None
    reported = {key: each.tokens for key, each in observed.progress.items()}
    if not any(reported.values()) and not any(record.tokens for record in ledger.points):
        return None
    conditions = [[each.type, each.status, each.reason] for each in status.conditions]
    shows = content_key([ledger.digest, reported, conditions])
    if shows == observed.page_shows:
        return None
    return fits.SweepPage(
        **vars(_sweep_request(chosen, status, shows)),
        laws=observed.fit.laws if observed.fit is not None else None,
    )
