"""What happens next with a sweep. Pure. Read downwards: the first check that speaks decides.

The checks have the order of the state table in operator/README.md, whose rows are those of
tests/isoloss_operator/decide/test_sweep_states.py.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final

from isoloss.formatting import are, counted
from isoloss_contract import layout
from isoloss_contract.reading import Newer, Unanswered
from isoloss_contract.records import DataManifest
from isoloss_operator.api import ScalingSweepSpec
from isoloss_operator.decide.conditions import Finding
from isoloss_operator.decide.events import attempt_events
from isoloss_operator.decide.fit_requests import (
    FEWEST_FOR_PROVISIONAL,
    fit_request,
    fitted_records,
    has_page,
    sweep_page,
)
from isoloss_operator.decide.law_status import laws_finding
from isoloss_operator.decide.left_open import unanswered_checkpoint
from isoloss_operator.decide.observation import ObservedSweep
from isoloss_operator.decide.owners import task_writes
from isoloss_operator.decide.plans import SweepPlan
from isoloss_operator.decide.preparation import decide_preparation
from isoloss_operator.decide.reasons import Reason
from isoloss_operator.decide.search import (
    ended_in_words,
    search_events,
    search_status,
    step_ended_in_words,
    stepped,
)
from isoloss_operator.decide.sweep_status import (
    ALL_ACCEPTED,
    Findings,
    SweepFacts,
    numbers_of,
    standing,
    stated,
)
from isoloss_operator.decide.sweep_view import PointsView, SweepView, sweep_tasks, warnings_of
from isoloss_operator.decide.tasks.findings import (
    all_jobs_wait,
    all_points_wait_to_retry,
    bad_configuration,
    budget_exhausted,
    budget_spent,
    done_in_words,
    failed_in_words,
    job_refused,
    ledger_not_taken,
    request_refused,
    suspended,
    too_many_failed_points,
    training,
)
from isoloss_operator.decide.tasks.task_pass import TaskPass, is_kept, next_look, run
from isoloss_operator.planning.specs import InvalidSpec, checkpoint_uri


def decide_sweep(observed: ObservedSweep) -> SweepPlan:
    """What is to be done about a sweep now, and what its status says."""
    if found := _not_accepted(observed):
        return _without_points(observed, Findings(ready=found, accepted=found))
    if found := _store_unanswered(observed):
        # A sweep that was ready stays so: its laws do not depend on the store.
        before = standing(observed) or Findings(ready=found)
        return _without_points(observed, replace(before, accepted=found))
    try:
        view = SweepView.of(observed)
        planned = sweep_tasks(view)
        if planned is None:
            if view.manifest is None:
                return decide_preparation(view)  # preparation.py: no points before the corpus
            assert view.unplaced  # sweep_tasks says so
            return _without_places(view, view.manifest, view.unplaced)
    except InvalidSpec as error:
        # A size without a place, or a corpus that does not fit.
        found = Finding.false(Reason.INVALID_SPEC, str(error), stalled=True)
        return _without_points(observed, Findings(ready=found, accepted=found))
    tasks, manifest = planned
    if found := _checkpoint_changed(view):
        return _without_points(observed, Findings(ready=found, accepted=found))
    if found := _data_changed(view, manifest):
        return _without_points(observed, Findings(ready=found, accepted=found))
    return _with_points(PointsView(view, manifest, run(tasks)))


# -------------------------------------------------------------------- before the points are known


def _not_accepted(observed: ObservedSweep) -> Finding | None:
    """The spec, or what it names, is not for this operator to use."""
    if isinstance(observed.spec, InvalidSpec):
        reason, message = Reason.INVALID_SPEC, str(observed.spec)
    elif observed.storage_refusal:
        reason, message = Reason.STORAGE_NOT_ALLOWED, observed.storage_refusal
    elif isinstance(observed.ledger, Newer):
        message = f"{observed.ledger.message}. Upgrade the operator again."
        reason = Reason.LEDGER_NEWER
    else:
        return None
    return Finding.false(reason, message, stalled=True)


def _data_changed(sweep: SweepView, manifest: DataManifest) -> Finding | None:
    """Points of another corpus would take the place of those that are trained, and of their cost."""
    digest, ledger = manifest.digest, sweep.known.ledger
    trained = sum(record.trained_for > 0 for record in ledger.points)
    is_known = ledger.prepare_key == sweep.config.key and ledger.data_digest
    if not (is_known and trained) or ledger.data_digest == digest:
        return None
    message = (
        f"data/{sweep.config.key}/ in the store holds a corpus with the digest {digest[:16]}, and the results of "
        f"{counted(trained, 'point')} are of {ledger.data_digest[:16]}: it was prepared again, and its sources had changed. Put the former "
        "one back, or create another ScalingSweep for the new one."
    )
    return Finding.false(Reason.DATA_CHANGED, message, stalled=True)


def _checkpoint_changed(sweep: SweepView) -> Finding | None:
    """Points of other weights would take the place of those that are trained, and of their cost. Those around an answer
    follow the prediction, which measures the other weights."""
    before = {each.uri: each.stamp for each in sweep.known.ledger.checkpoints}
    replaced = {
        each.uri for each in sweep.checkpoints if before.get(each.uri, "") not in ("", each.stamp)
    }
    sizes = {p.name: checkpoint_uri(p) for p in sweep.spec.fitted_proxies}
    records = sweep.known.ledger.points
    hit = [r for r in records if r.trained_for > 0 and sizes.get(r.proxy) in replaced]
    if not hit:
        return None
    message = (
        f"The files of {sizes[hit[0].proxy]} were replaced, and {counted(len(hit), 'point')} {are(len(hit))} trained from the "
        "former ones. Put these back, or create another ScalingSweep for the new ones."
    )
    return Finding.false(Reason.CHECKPOINT_CHANGED, message, stalled=True)


def _store_unanswered(observed: ObservedSweep) -> Finding | None:
    """An error that says nothing about what is stored: nothing may be concluded from it."""
    results = tuple(observed.results.values())
    # A store that returns some results is there: what it withholds concerns those points alone.
    if not all(isinstance(result, Unanswered) and not result.alone for result in results):
        results = ()
    reads = (observed.manifest, observed.ledger, *results)
    unanswered = (read.message for read in reads if isinstance(read, Unanswered))
    message = observed.store_error or next(unanswered, "")
    if isinstance(observed.spec, ScalingSweepSpec):
        message = message or unanswered_checkpoint(observed, observed.spec)
    if isinstance(observed.manifest, Newer):
        message = message or observed.manifest.message
    return Finding.false(Reason.STORAGE_UNREACHABLE, message) if message else None


def _without_points(observed: ObservedSweep, findings: Findings) -> SweepPlan:
    """Nothing is started or stopped: Jobs of an earlier, valid spec may continue unless it is suspended."""
    status, events = stated(observed, findings)
    ready = findings.ready
    requeue_after = 300.0 if ready.stalled else 30.0 if ready.holds else 10.0
    return SweepPlan(status=status, events=events, requeue_after=requeue_after)


def _without_places(view: SweepView, manifest: DataManifest, finding: Finding) -> SweepPlan:
    """Some size has no points yet."""
    accepted = finding if finding.reason is Reason.STORAGE_NOT_ALLOWED else ALL_ACCEPTED
    findings = Findings(ready=finding, accepted=accepted, data=_prepared(manifest))
    return _without_points(view.observed, findings)


def _prepared(manifest: DataManifest) -> Finding:
    corpus = f"The digest of the tokenized corpus is {manifest.digest[:16]}."
    return Finding.true(Reason.DATA_PREPARED, " ".join([corpus, *manifest.remarks]))


# ------------------------------------------------------------------------ once the points are known


def _with_points(view: PointsView) -> SweepPlan:
    observed, spec, tasks = view.observed, view.spec, view.tasks
    writes, step = task_writes(tasks, spec), view.step
    ledger = tasks.written
    if step:
        ledger = stepped(ledger, tasks.points, step, spec, view.manifest)
    facts = SweepFacts(
        store_uri=view.sweep.store_uri,
        folder=layout.sweep_folder(observed.name, observed.uid),
        points=tuple(tasks.points.values()),
        ledger=ledger,
        active=tasks.active,
        fit=observed.fit,
        fit_is_final=view.final_laws is not None,
        has_page=has_page(observed, _report_uri(observed, view.sweep.store_uri)),
        warnings=warnings_of(view),
        spent=tasks.spending,
        added=len(tasks.points) - spec.points,
        search=(
            search_status(spec, ledger, tasks.points.values(), view.search_ended)
            if spec.searches
            else None
        ),
    )
    status, news = stated(observed, _findings(view), numbers_of(observed, observed, facts))
    fit = fit_request(
        observed,
        spec,
        tasks.written,
        tasks.points,
        status,
        final=tasks.is_quiet,
        search=view.search,
    )
    fit_draws = fit is not None or (tasks.is_quiet and bool(spec.fitted_proxies))
    return SweepPlan(
        status=status,
        **vars(replace(writes, ledger=None if ledger == observed.ledger else ledger)),
        fit=fit,
        page=None
        if fit_draws
        else sweep_page(observed, spec, tasks.written, tasks.points, status),
        events=(
            *attempt_events(tasks.task_set.stored_ledger, tasks.ledger),
            *search_events(ledger, step, _search_ended(observed)),
            *news,
        ),
        # Jobs of what a step has chosen start once that is in the ledger.
        requeue_after=_next_look(view) if ledger is tasks.written else 0.0,
    )


def _next_look(view: PointsView) -> float:
    """Infinite once the final laws are there and every Job that ended has been let go."""
    seconds = next_look(view.tasks)
    has_laws = view.final_laws is not None or not view.spec.fitted_proxies
    has_laws = view.is_over and has_laws
    if seconds != math.inf or (has_laws and not any(map(is_kept, view.observed.jobs))):
        return seconds
    return 60.0


def _report_uri(observed: ObservedSweep, store_uri: str) -> str:
    return f"{store_uri}/{layout.report_in(layout.sweep_folder(observed.name, observed.uid))}"


def _search_ended(observed: ObservedSweep) -> str:
    """Why the search was over when the status was last written; empty: it was not."""
    search = observed.told.search
    return "" if search is None else search.ended


def _ledger_not_taken(view: PointsView) -> Finding | None:
    """Final laws stand all the same: what a ledger learns after them is of none of their points."""
    return None if view.final_laws is not None else ledger_not_taken(view.tasks)


def _over(view: PointsView) -> Finding | None:
    """No point is running and none will: the laws decide, also while the sweep is suspended."""
    return _fit(view) if view.is_over else None


def _searching(view: PointsView) -> Finding | None:
    """Every point has reached its target: the search decides in the process of a fit, the next pass follows it."""
    if view.search is None:
        return None
    fit = view.observed.fit
    if fit is not None and view.step is None and view.is_fitted(final=True):
        message = f"The search cannot go on: {fit.error or 'its process gave no answer'}."
        return Finding.false(Reason.FIT_FAILED, message)
    message = f"{done_in_words(view.tasks)}; the search decides which train next."
    return Finding.false(Reason.SEARCHING, message)


Check = Callable[[PointsView], Finding | None]


def _of_tasks(check: Callable[[TaskPass], Finding | None]) -> Check:
    return lambda view: check(view.tasks)


STATES: Final[Sequence[Check]] = (
    _ledger_not_taken,
    _of_tasks(bad_configuration),
    _of_tasks(too_many_failed_points),
    _over,
    _of_tasks(suspended),
    _of_tasks(budget_spent),
    _of_tasks(job_refused),
    _of_tasks(all_jobs_wait),
    _of_tasks(all_points_wait_to_retry),
    _searching,
    _of_tasks(training),
)


# ---------------------------------------------------------------------------- the other conditions


def _findings(view: PointsView) -> Findings:
    ready = next(found for check in STATES if (found := check(view)) is not None)
    accepted, tasks = ALL_ACCEPTED, view.tasks
    # Once no Job is wanted none will be created, which alone would take the refusal of one back.
    of_jobs = None if view.is_over else job_refused(tasks)
    refused = ledger_not_taken(tasks) or bad_configuration(tasks) or of_jobs
    if refused := refused or request_refused(view.observed):
        accepted = Finding.false(refused.reason, refused.message)
    changes = []
    if not view.observed.store_write_error:
        for count, change in ((len(tasks.starts), "started"), (len(tasks.delete), "stopped")):
            changes += [f"{counted(count, 'Job')} {are(count)} being {change}"] if count else []
    if view.report_pending:
        changes.append("the report is being drawn")
    return Findings(
        ready=ready,
        accepted=accepted,
        data=_prepared(view.manifest),
        progressing=(budget_exhausted(tasks) if view.is_over else None) or _finished(view),
        fit=_fit(view),
        changes="; ".join(changes),
    )


def _finished(view: PointsView) -> Finding | None:
    if not view.is_over:
        return None
    if found := _first_rung_unaffordable(view):
        return found
    ended = view.search_ended
    message = ended_in_words(ended) if ended else "Every point has its outcome."
    return Finding.false(Reason.FINISHED, message)


def _first_rung_unaffordable(view: PointsView) -> Finding | None:
    """The search ended before it chose any point: less than its first rung would tell nothing."""
    if view.step is None or view.step.first_rung_flops is None:
        return None
    message = step_ended_in_words(view.step)
    return Finding.false(Reason.BUDGET_EXHAUSTED, message)


def _fit(view: PointsView) -> Finding:
    """FitReady: final once the sweep is over, else of what is done so far."""
    fit, final = view.observed.fit, view.is_over
    if not view.spec.fitted_proxies:
        return _nothing_to_fit(view)
    done = len(fitted_records(view.spec, view.tasks.ledger.points))
    if not done:
        message = _why_no_results(view) if final else "No point has a result yet."
        return Finding.false(Reason.NO_RESULTS, message, stalled=final)
    if final and not view.is_fitted(final=True):
        return Finding.false(
            Reason.FITTING, f"The laws are being fitted to {counted(done, 'point')}."
        )
    if fit is None or (fit.laws is None and not fit.points and not fit.error):
        lack = "too few for a first fit" if done < FEWEST_FOR_PROVISIONAL else "not fitted yet"
        message = f"{counted(done, 'point')} {'has' if done == 1 else 'have'} a result: {lack}."
        return Finding.false(Reason.NO_RESULTS, message)
    if fit.laws is None:
        message = fit.error or "The fit could not run."
        return Finding.false(Reason.FIT_FAILED, message, stalled=final and not fit.may_pass)
    return laws_finding(fit.laws, fit.points, final=final)


def _nothing_to_fit(view: PointsView) -> Finding:
    """Of a sweep all of whose points lie around answers."""
    done = sum(record.is_fitted for record in view.tasks.ledger.points)
    if not view.is_over:
        return Finding.false(
            Reason.TRAINING, "No laws will be fitted: the points lie around answers."
        )
    if not done:
        return Finding.false(Reason.NO_RESULTS, _why_no_results(view), stalled=True)
    names = dict.fromkeys(each.prediction for each in view.sweep.neighbourhoods)
    message = (
        f"{counted(done, 'point')} around the answer of HyperparamPrediction {', '.join(names)} "
        f"{'is' if done == 1 else 'are'} done; no laws are fitted to them."
    )
    return Finding.true(Reason.NOTHING_TO_FIT, message)


def _why_no_results(view: PointsView) -> str:
    """Once nothing runs and nothing will."""
    tasks = view.tasks
    if exhausted := budget_exhausted(tasks) or _first_rung_unaffordable(view):
        return f"No point produced a result. {exhausted.message}"
    if tasks.failed:
        return f"No point produced a result: {failed_in_words(tasks.failed)}."
    return "No point produced a result."
