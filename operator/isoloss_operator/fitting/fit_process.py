"""Runs in the process of a fit: reads trajectories, fits, writes laws.json, report.html and fit.json."""

import hashlib
import json
import logging
import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

from pydantic.alias_generators import to_camel

from isoloss import search
from isoloss.laws import FitOptions, Laws, Run, fit_laws
from isoloss.published import published_opinions
from isoloss.report.content import point_rows
from isoloss.report.page import render_report
from isoloss.report.probed import probed_by
from isoloss.runs import BadTrajectory, run_from_point
from isoloss.status import View
from isoloss_contract import layout
from isoloss_contract.records import PointResult
from isoloss_contract.store import Circuit, Store, errors, limits, parse_record
from isoloss_contract.trajectories import read_finished
from isoloss_operator.decide import fits, reasons
from isoloss_operator.decide.choose import ended_in_words
from isoloss_operator.decide.conditions import reconciling, stalled
from isoloss_operator.decide.fits import PointDecision, SearchRequest, SearchStep
from isoloss_operator.decide.jobs import RESULT_SECONDS
from isoloss_operator.decide.law_status import law_statuses, laws_finding
from isoloss_operator.decide.reasons import Finding
from isoloss_operator.fitting.fit_jobs import FitEnd, FitJob, NotFitted, failed
from isoloss_operator.store.fit_files import fit_document, fit_path, laws_document, shown_first
from isoloss_operator.store.storage import PATIENCE

READERS = 16
REREAD_SECONDS = 5.0
"""Between two looks for what the store does not show, and between two attempts to write what it did not take."""
WRITE_SECONDS = 60.0
"""How long a store that does not take the report is asked again: the fits of other resources wait meanwhile."""

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Unreadable:
    """A point whose trajectory is missing, truncated or does not match its result's digest."""

    key: str
    message: str
    missing: bool = False
    """The store does not show it, perhaps not yet."""


def fit(job: FitJob, on_laws: Callable[[fits.FitOutcome], None] = lambda _outcome: None) -> FitEnd:
    """The outcome of a fit or a page; NotFitted if the store is unavailable.

    `on_laws` gets it as soon as laws.json and its record are written: nobody waits for the report, which takes longer.
    """
    # Thousands of trajectories: a store that is down must cost one timeout here, too.
    store = Store(job.store_uri, PATIENCE, anchor=job.store_anchor, circuit=Circuit())
    match job.request:
        case fits.AnswerPage() as page:
            return _answer_page(store, job, page)
        case fits.SweepPage() as page:
            return _sweep_page(store, job, page)
        case fits.FitRequest() as request:
            return _fit_and_report(store, job, request, on_laws)


def _fit_and_report(
    store: Store, job: FitJob, request: fits.FitRequest, on_laws: Callable[[fits.FitOutcome], None]
) -> FitEnd:
    try:
        read = read_runs(store, job, request)
        unreadable = tuple(
            (each.key, each.message) for each in read if isinstance(each, Unreadable)
        )
        if unreadable:
            # Laws without these points would not be those of the ledger. The next pass trains them again.
            outcome = failed(request, f"unusable trajectories: {len(unreadable)}")
            return replace(outcome, unreadable=unreadable)
        runs = [each for each in read if isinstance(each, Run)]
        outcome = _fit(store, job, request, runs)
        record = fit_path(request.laws_path)
        # Predictions read both files: laws are of no use to them before their record is there.
        store.write(record, fit_document(outcome))
        if outcome.laws is None:
            return outcome
        on_laws(outcome)
        goes_on = outcome.step is not None and not outcome.step.ended
        is_final = not request.provisional and not goes_on
        step = outcome.step
        written = _write_report(store, job, request, runs, outcome.laws, step, is_final=is_final)
        outcome = replace(outcome, report_written=written)
        # Were the operator killed before, or if this fails, the next one makes the fit again, and with it the report.
        if written:
            _write_at_last(store, record, fit_document(outcome))
        return outcome
    except errors.StoreError as error:
        return NotFitted(str(error), may_pass=True)


def _sweep_page(store: Store, job: FitJob, page: fits.SweepPage) -> FitEnd:
    """The page of a sweep on the way, with the laws and the trajectories that there are."""
    try:
        runs = [each for each in read_runs(store, job, page, looks=0) if isinstance(each, Run)]
    except errors.StoreError as error:
        return NotFitted(str(error), may_pass=True)
    laws = page.laws or fit_laws((), provisional=True)
    written = _write_report(store, job, page, runs, laws)
    return fits.FitOutcome(inputs=page.inputs, laws=None, report_written=written)


def _answer_page(store: Store, job: FitJob, page: fits.AnswerPage) -> FitEnd:
    """The page of a prediction: the answer on the laws, and its validation."""
    answer = page.prediction
    try:
        drawn = render_report(
            page.laws,
            (),
            title=job.title,
            facts={"laws": _laws_uri(job), "ledger": f"SHA-256 {page.ledger_sha256}"},
            prediction=answer,
            initial_loss=page.initial_loss,
            parameters=page.parameters,
            opinions=published_opinions(
                total_flops=answer.total_flops.value, params=page.parameters
            )[0],
            probed=probed_by(page.resource, page.laws.sequence_length),
        )
    except Exception:
        logger.exception("page of %s failed", job.title)
        return fits.FitOutcome(inputs=page.inputs, laws=None)
    content = shown_first(page.inputs, drawn)
    written = _write_at_last(store, page.report_path, content)
    return fits.FitOutcome(inputs=page.inputs, laws=None, report_written=written)


def read_runs(
    store: Store,
    job: FitJob,
    request: fits.SweepRequest,
    sleep: Callable[[float], None] = time.sleep,
    looks: int = math.ceil(RESULT_SECONDS / REREAD_SECONDS),
) -> list[Run | Unreadable]:
    """The runs of the request's points, in its order. Raises StoreUnavailable.

    What is missing is looked for `looks` times more: to train a point again costs more.
    """
    found: dict[str, Run | Unreadable] = {}
    wanted: Sequence[fits.FitPoint] = request.points
    for look in range(looks + 1):
        if look:
            sleep(REREAD_SECONDS)
        with ThreadPoolExecutor(max_workers=READERS) as pool:
            read = pool.map(lambda point: _read_run(store, job, request, point), wanted)
            found |= {point.key: each for point, each in zip(wanted, read, strict=True)}
        lacking = {
            key for key, each in found.items() if isinstance(each, Unreadable) and each.missing
        }
        wanted = [point for point in wanted if point.key in lacking]
        if not wanted:
            break
    return [found[point.key] for point in request.points]


def _read_run(
    store: Store, job: FitJob, request: fits.SweepRequest, point: fits.FitPoint
) -> Run | Unreadable:
    try:
        path = layout.point_result(point.key)
        content = store.read(path, max_bytes=limits.RESULT.max_bytes)
        result = parse_record(content, PointResult, store.location(path), limit=limits.RESULT)
        return run_from_point(
            point.name,
            point.config,
            result.parameters,
            read_finished(store, point.key, point.trajectory_sha256),
            weights=request.weights,
            bytes_per_token=result.bytes_per_token,
            diverged=point.diverged,
            finished=point.finished,
            stopped=point.stopped,
            tokenizer=job.tokenizer,
        )
    except errors.NotFound as error:
        return Unreadable(point.key, str(error), missing=True)
    except (errors.BadRecord, BadTrajectory) as error:
        return Unreadable(point.key, str(error))


def _fit(store: Store, job: FitJob, request: fits.FitRequest, runs: list[Run]) -> fits.FitOutcome:
    """The outcome without its report; the laws, if there are any, are in the store."""
    try:
        step = None
        if request.search is not None:
            by_key = {point.key: run for point, run in zip(request.points, runs, strict=True)}
            step = search_step(request.search, by_key, request.options)
        if step is not None and not runs:  # the search begins
            return replace(failed(request, ""), step=step)
        goes_on = step is not None and not step.ended
        laws = fit_laws(runs, request.options, provisional=request.provisional or goes_on)
    except (ValueError, ArithmeticError) as error:
        # Numbers that no law can be fitted to, or a bug: either is reported with the outcome.
        logger.exception("fit of %s failed", job.title)
        return failed(request, f"{type(error).__name__}: {error}"[:1000])
    document = laws_document(laws)
    store.write(request.laws_path, document)
    return fits.FitOutcome(
        inputs=request.inputs,
        laws=laws,
        laws_sha256=hashlib.sha256(document).hexdigest(),
        ledger_sha256=request.ledger_sha256,
        points=len(runs),
        step=step,
    )


def _write_report(
    store: Store,
    job: FitJob,
    request: fits.SweepRequest,
    runs: list[Run],
    laws: Laws,
    step: SearchStep | None = None,
    *,
    is_final: bool = False,
) -> bool:
    """Whether the report page and the status beside it were written. The laws are kept if it cannot be drawn."""
    try:
        rows = (*point_rows(runs, laws), *request.missing)
        shown = _page_resource(request, laws, len(runs), step, final=is_final)
        page = render_report(
            laws,
            runs,
            title=job.title,
            facts=_facts(job, request, runs),
            points=rows,
            status=View(shown),
            is_over=is_final,
        )
    except Exception:
        logger.exception("report of %s failed", job.title)
        return False
    status_path = layout.page_status_in(request.report_path.rpartition("/")[0])
    content = json.dumps(shown, allow_nan=False, separators=(",", ":")).encode()
    return _write_at_last(store, status_path, content) and _write_at_last(
        store, request.report_path, page.encode()
    )


def _write_at_last(store: Store, path: str, content: bytes) -> bool:
    """Whether it was written: its laws are known already, and the fit is not made again for a moment's silence."""
    deadline = time.monotonic() + WRITE_SECONDS
    while True:
        try:
            store.write(path, content)
        except errors.StoreError as error:
            if isinstance(error, errors.StoreRefused) or time.monotonic() >= deadline:
                logger.warning("%s is not written: %s", path, error)
                return False
            logger.warning("%s is written again: %s", path, error)
            time.sleep(REREAD_SECONDS)
        else:
            return True


def _facts(job: FitJob, request: fits.SweepRequest, runs: list[Run]) -> dict[str, str]:
    return {
        "points": str(len(runs)),
        "weights": request.weights,
        "ledger": f"SHA-256 {request.ledger_sha256}",
        "laws": _laws_uri(job),
    }


def _laws_uri(job: FitJob) -> str:
    return f"{job.store_uri.rstrip('/')}/{job.request.laws_path}"


def _page_resource(
    request: fits.SweepRequest, laws: Laws, points: int, step: SearchStep | None, *, final: bool
) -> dict[str, Any]:
    """The request's resource with laws of `points` runs, and with what the next pass will say: of final laws, and of a search
    that `step` has ended.

    A sweep that was stalled before stays so: laws do not change that.
    """
    status, said = dict(request.resource.get("status", {})), dict[str, Finding]()
    if laws.data.runs:
        shown = law_statuses(laws, provisional=not final)
        status |= {to_camel(name): law.document() for name, law in shown.items()}
    search = request.search if isinstance(request, fits.FitRequest) else None
    if search is not None and step is not None and step.ended:
        paces = {size.name: size.seconds_per_flop or 0.0 for size in search.sizes}
        message = ended_in_words(step, paces)
        status["search"] = {**status.get("search", {}), "ended": step.ended, "message": message}
        said[reasons.PROGRESSING] = Finding(reasons.Reason.FINISHED, message)
    conditions = status.get("conditions", ())
    before = {each["type"]: each["status"] for each in conditions}
    if final and before.get(reasons.STALLED) != "True":
        found = laws_finding(laws, points, final=True)
        said |= {
            reasons.READY: found,
            reasons.FIT_READY: found,
            reasons.STALLED: stalled(found),
            reasons.RECONCILING: reconciling(found, ""),
        }
    status["conditions"] = [_as(each, said.get(each["type"])) for each in conditions]
    return {**request.resource, "status": status}


def _as(condition: Mapping[str, Any], found: Finding | None) -> dict[str, Any]:
    """The condition as a finding has it."""
    if found is None:
        return dict(condition)
    return {
        **condition,
        "status": found.status,
        "reason": str(found.reason),
        "message": found.message,
    }


# ------------------------------------- what the search wants next, from the trajectories that the fit has read


SHORT_OF_WANTED = 0.99
"""Share of its wanted tokens below which a run that ended has not been evaluated near its end."""


def search_step(
    request: SearchRequest, runs: Mapping[str, Run], fit_options: FitOptions
) -> SearchStep:
    """What follows from the runs by point key. Raises ValueError if a run's numbers are impossible."""
    sizes = {size.name: size for size in request.sizes}
    seen = [
        _seen(replace(known, run=runs.get(key)), sizes[known.point.size])
        for key, known in request.points.items()
        if known.point.size in sizes
    ]
    samples = request.options.fit.bootstrap_samples
    options = replace(
        request.options,
        budget_flops=_budget(request.flops_left, sizes, seen),
        fit=replace(fit_options, bootstrap_samples=samples),
    )
    step = search.next_step(request.sizes, seen, options)
    wanted = {s.point: s.wanted for s in seen}
    # Those that ask for more than is wanted already.
    new = (d for d in step.decisions if round(d.tokens) > wanted.get(d.point, 0.0))
    decisions = tuple(map(_decision, new))
    nothing = "" if decisions else search.StopReason.NOTHING_LEFT
    return SearchStep(
        decisions,
        ended=str(step.stop or nothing),
        next_flops=step.next_flops,
        next_saves=step.next_saves,
        least_flops=step.least_flops,
        least_seconds=step.least_seconds,
    )


def _seen(seen: search.Seen, size: search.Size) -> search.Seen:
    # It has ended, or nothing would be decided now: what it lacks is evaluations with a finite loss.
    is_short = seen.tokens < SHORT_OF_WANTED * seen.wanted
    # An added one, if the size's tokens were lowered since.
    lacks_a_step = seen.point.batch_size * (size.sequence_length or 0) > size.tokens
    return replace(seen, failed=True) if is_short or lacks_a_step else seen


def _budget(
    left: float | None, sizes: Mapping[str, search.Size], seen: Iterable[search.Seen]
) -> float | None:
    """FLOPs for everything seen and still to come: the search counts what others trained as well."""
    if left is None:
        return None
    spent = (sizes[s.point.size].token_flops * s.tokens for s in seen)
    return max(left, 0.0) + sum(spent)


def _decision(decision: search.Decision) -> PointDecision:
    point = decision.point
    return PointDecision(
        size=point.size,
        batch_size=round(point.batch_size),
        learning_rate=point.learning_rate,
        tokens=round(decision.tokens),
        reason=str(decision.reason),
        flops=decision.flops,
        saves=decision.saves,
        added=decision.added,
    )
