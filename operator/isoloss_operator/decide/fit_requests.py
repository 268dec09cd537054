"""When to fit and what: a fit is requested whenever the finished points changed enough to matter. Pages that no fit draws."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from isoloss.laws import FitOptions
from isoloss.runs import Weights, stopped_in_words
from isoloss.validation import is_verdict
from isoloss_contract import layout
from isoloss_contract.ledger import Ledger, PointRecord, PointState
from isoloss_contract.records import content_key
from isoloss_operator.api import (
    HyperparamPredictionStatus,
    ScalingSweepSpec,
    ScalingSweepStatus,
)
from isoloss_operator.decide.conditions import VALIDATED, Finding
from isoloss_operator.decide.fits import (
    AnswerPage,
    FitOutcome,
    FitPoint,
    FitRequest,
    MissingPoint,
    SearchRequest,
    SweepPage,
    SweepRequest,
)
from isoloss_operator.decide.observation import ObservedResource, ObservedSweep
from isoloss_operator.decide.prediction_status import target_parameters
from isoloss_operator.decide.prediction_view import PredictionView
from isoloss_operator.decide.search import search_inputs
from isoloss_operator.planning.points import PlannedPoint

FEWEST_FOR_PROVISIONAL = 4
"""Below this many points no law is worth fitting."""
WORTH_REFITTING = 0.05
"""A provisional fit is repeated when the points done grew by this share."""


def fit_options(spec: ScalingSweepSpec) -> FitOptions:
    """How the sweep's laws are to be fitted."""
    loss = spec.fit.irreducible_loss
    return FitOptions(
        irreducible_loss=None if loss is None else float(loss),
        form=spec.fit.form,
    )


WEIGHTS: Mapping[str, Weights] = {"Averaged": "averaged", "Raw": "raw"}
"""The law engine's words for spec.fit.weights."""


def _weights(spec: ScalingSweepSpec) -> Weights:
    return WEIGHTS[spec.fit.weights]


def fitted_records(
    spec: ScalingSweepSpec, records: Sequence[PointRecord]
) -> tuple[PointRecord, ...]:
    """Points whose trajectories the fit uses: none of those around an answer."""
    sizes = {proxy.name for proxy in spec.fitted_proxies}
    return tuple(record for record in records if record.is_fitted and record.proxy in sizes)


def fit_inputs(
    spec: ScalingSweepSpec, records: Sequence[PointRecord], *, final: bool, search: bool = False
) -> str:
    """Hash of all that a fit depends on, with a step of the search if `search`."""
    fitted = [
        [r.key, r.name, r.trajectory_sha256, str(r.state), r.taken_back, r.is_finished]
        for r in fitted_records(spec, records)
    ]
    content = [fitted, spec.fit.model_dump(mode="json"), final]
    return content_key([*content, *(search_inputs(spec, records) if search else ())])


def fit_request(
    observed: ObservedSweep,
    spec: ScalingSweepSpec,
    ledger: Ledger,
    points: Mapping[str, PlannedPoint],
    status: ScalingSweepStatus,
    *,
    final: bool,
    search: SearchRequest | None = None,
) -> FitRequest | None:
    """The fit to run now, in place of one that runs; None: no fit is needed, or one is running. Its page shows `status`.

    One whose outcome is known is made again only for its report: the outcome stands meanwhile. A step of the search is part of a final fit: both wait until everything that runs has ended.
    """
    fitted = fitted_records(spec, ledger.points)
    inputs = fit_inputs(spec, ledger.points, final=final, search=search is not None)
    running = observed.fit_running
    is_known = is_fitted(observed.fit, inputs) and not observed.report_missing
    # An outcome that is known would give way to that of another fit, as after an edit that is taken back.
    stands = is_known and (running is None or running.inputs == inputs)
    if not (fitted or search) or stands:
        return None
    if running is not None and not _supersedes(running, spec, inputs, final=final):
        return None
    if not final and (observed.fit_rests or not _is_worth_it(observed.fit, spec, len(fitted))):
        return None
    request = _sweep_request(observed, spec, ledger, points, status, inputs)
    return FitRequest(
        **vars(replace(request, provisional=not final)),
        options=fit_options(spec),
        search=search,
    )


def _sweep_request(
    observed: ObservedSweep,
    spec: ScalingSweepSpec,
    ledger: Ledger,
    points: Mapping[str, PlannedPoint],
    status: ScalingSweepStatus,
    inputs: str,
) -> SweepRequest:
    """What fits and pages of a sweep have in common, of the sweep as it is now. A page without a fit also draws points
    around answers."""
    fitted = fitted_records(spec, ledger.points)
    if not spec.fitted_proxies:
        fitted = tuple(record for record in ledger.points if record.is_fitted)
    folder = layout.sweep_folder(observed.name, observed.uid)
    return SweepRequest(
        inputs=inputs,
        points=tuple(_fit_point(record, points[record.key]) for record in fitted),
        weights=_weights(spec),
        ledger_sha256=ledger.digest,
        laws_path=layout.laws_in(folder),
        report_path=layout.report_in(folder),
        missing=tuple(_missing_point(r) for r in ledger.points if not r.is_fitted),
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


def _supersedes(running: FitRequest, spec: ScalingSweepSpec, inputs: str, *, final: bool) -> bool:
    """Whether a fit with these inputs replaces the one that runs, rather than waiting for it.

    More points do not end a provisional fit: if they come faster than fits end, none ever would.
    """
    if running.inputs == inputs:
        return False
    is_as_asked = (running.options, running.weights) == _asked(spec)
    return final or not running.provisional or not is_as_asked


def _asked(spec: ScalingSweepSpec) -> tuple[FitOptions, Weights]:
    """All that the spec says of a fit."""
    return fit_options(spec), _weights(spec)


def is_fitted(fit: FitOutcome | None, inputs: str) -> bool:
    """Whether an outcome answers a fit with these inputs."""
    return fit is not None and fit.inputs == inputs


def _is_worth_it(fit: FitOutcome | None, spec: ScalingSweepSpec, done: int) -> bool:
    if done < FEWEST_FOR_PROVISIONAL:
        return False
    if fit is None:
        return True
    laws = fit.laws
    if laws and (laws.options, laws.loss_kind) != _asked(spec):
        return True
    return abs(done - fit.points) >= max(1.0, WORTH_REFITTING * fit.points)


def _fit_point(record: PointRecord, point: PlannedPoint) -> FitPoint:
    return FitPoint(
        key=record.key,
        name=record.name,
        config=point.config,
        trajectory_sha256=record.trajectory_sha256,
        diverged=record.state is PointState.DIVERGED,
        finished=record.is_finished,
        stopped=stopped_in_words(record),
    )


def _missing_point(record: PointRecord) -> MissingPoint:
    failures = record.attempts.failures
    return MissingPoint(
        name=record.name,
        batch_size=record.batch_size,
        learning_rate=record.learning_rate,
        state=str(record.state),
        reason=failures[-1].message if failures else record.attempts.last_failure,
    )


# --------------------------------------------------------------------------- pages that no fit draws


PAGE_SECONDS: Final = 60.0
"""Between two pages of one resource."""


def has_page(observed: ObservedResource, uri: str) -> bool:
    """Whether a page was drawn there, by this process or, as the status has it, by an earlier one."""
    return observed.page_drawn or observed.status.get("reportUri") == uri


def sweep_page(
    observed: ObservedSweep,
    spec: ScalingSweepSpec,
    ledger: Ledger,
    points: Mapping[str, PlannedPoint],
    status: ScalingSweepStatus,
) -> SweepPage | None:
    """The page of a sweep on the way, to draw now: from the first report of a point on, once a minute at most, and
    only if it would show something new. The fits draw the others."""
    if observed.page_seconds < PAGE_SECONDS or observed.fit_rests:
        return None
    reported = {key: each.tokens for key, each in observed.progress.items()}
    if not any(reported.values()) and not any(record.tokens for record in ledger.points):
        return None
    said = [[each.type, each.status, each.reason] for each in status.conditions]
    shows = content_key([ledger.digest, reported, said])
    if shows == observed.page_shows:
        return None
    return SweepPage(
        **vars(_sweep_request(observed, spec, ledger, points, status, shows)),
        laws=observed.fit.laws if observed.fit is not None else None,
    )


def answer_page(
    view: PredictionView, status: HyperparamPredictionStatus
) -> tuple[AnswerPage | None, float]:
    """The page of an answer to draw now, and in how many seconds the next is due, infinite for none.

    The first and that of a verdict are drawn at once, others a minute later at the earliest, if the answer or its
    verdict has changed. It shows the laws as they were fitted, and needs nothing of the store.
    """
    answer, fit, observed = view.prediction, view.fit, view.observed
    if isinstance(answer, Finding) or isinstance(fit, Finding) or fit.laws is None:
        return None, math.inf
    shows = _shown(status)
    if shows == observed.page_shows:
        return None, math.inf
    waits = bool(observed.page_shows) and not _has_new_verdict(observed, status)
    if waits and observed.page_seconds < PAGE_SECONDS:
        return None, PAGE_SECONDS - observed.page_seconds
    initial_loss = view.result.loss if view.result is not None else view.spec.initial_loss
    page = AnswerPage(
        inputs=shows,
        ledger_sha256=fit.ledger_sha256,
        laws_path=layout.laws_in(layout.sweep_folder(view.reference.name, view.reference.uid)),
        report_path=layout.report_in(layout.prediction_folder(observed.name, observed.uid)),
        provisional=waits,
        laws=fit.laws,
        prediction=answer,
        initial_loss=float(initial_loss or 0),
        parameters=target_parameters(view.spec, view.result),
        resource={
            "spec": {"targetSequenceLength": view.spec.target_sequence_length},
            "status": status.document(),
        },
    )
    return page, math.inf


def _has_new_verdict(observed: ObservedResource, status: HyperparamPredictionStatus) -> bool:
    """Whether the answer is judged now: who reads the verdict and opens the page is to find it there."""
    before = observed.said.get(VALIDATED)
    now = next((each for each in status.conditions if each.type == VALIDATED), None)
    if now is None or not is_verdict(now.status, now.reason):
        return False
    return before is None or before.reason != now.reason


def _shown(status: HyperparamPredictionStatus) -> str:
    """What the page of an answer shows, without the times of the conditions."""
    said = [[c.type, c.status, c.reason, c.message] for c in status.conditions]
    shown = status.model_copy(
        update={"conditions": (), "report_uri": "", "observed_generation": 0}
    )
    return content_key([shown.document(), said])
