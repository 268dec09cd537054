"""When to fit and what: a fit is requested whenever the finished points changed enough to matter."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from isoloss.laws import FitOptions
from isoloss.progress.stages import stopped_in_words
from isoloss_contract import layout
from isoloss_contract.ledger import Ledger, PointRecord, PointState
from isoloss_contract.records import content_key
from isoloss_operator.api import ScalingSweepSpec
from isoloss_operator.decide.fits import FitOutcome, FitPoint, FitRequest, MissingPoint, Watched
from isoloss_operator.decide.observation import ObservedSweep
from isoloss_operator.decide.search.requests import search_inputs
from isoloss_operator.decide.search_steps import SearchRequest
from isoloss_operator.decide.tasks.transitions import fitted_records
from isoloss_operator.planning.points import PlannedPoint

if TYPE_CHECKING:  # it brings numpy along
    from isoloss.runs import Weights

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


WEIGHTS: Mapping[str, Weights] = {"Averaged": "averaged", "Raw": "raw", "Cooled": "cooled"}
"""The law engine's words for spec.fit.weights."""


def _weights(spec: ScalingSweepSpec) -> Weights:
    return WEIGHTS[spec.fit.weights]


def fit_inputs(
    spec: ScalingSweepSpec, records: Sequence[PointRecord], *, final: bool, search: bool = False
) -> str:
    """Hash of all that a fit depends on, with a step of the search if `search`."""
    fitted = [
        [r.key, r.name, r.trajectory_sha256, str(r.state), r.taken_back]
        for r in fitted_records(records)
    ]
    fit = spec.fit.model_dump(mode="json")
    if spec.fit.flops == "SixND":
        # As before the field existed: fits that are there need not be made again.
        del fit["flops"]
    content: list[object] = [fitted, fit, final]
    # Only a search stops short of a proxy's tokens: sweeps without one keep their fits.
    content += [[r.is_finished for r in fitted_records(records)]] if spec.searches else []
    return content_key([*content, *(search_inputs(spec, records) if search else ())])


def fit_request(
    observed: ObservedSweep,
    spec: ScalingSweepSpec,
    ledger: Ledger,
    points: Mapping[str, PlannedPoint],
    *,
    final: bool,
    search: SearchRequest | None = None,
) -> FitRequest | None:
    """The fit to run now, in place of one that runs; None: no fit is needed, or one is running.

    One whose outcome is known is made again only for its report: the outcome stands meanwhile. A step of the search is part of a final fit: both wait until everything that runs has ended.
    """
    fitted = fitted_records(ledger.points)
    inputs = fit_inputs(spec, ledger.points, final=final, search=search is not None)
    is_known = is_fitted(observed.fit, inputs) and not observed.report_missing
    if not (fitted or search) or is_known:
        return None
    running = observed.fit_running
    if running is not None and not _supersedes(running, spec, inputs, final=final):
        return None
    if not final and (observed.fit_rests or not _is_worth_it(observed.fit, len(fitted))):
        return None
    request = drawn_request(observed, spec, ledger, points, inputs=inputs)
    watched = None if final else watched_now(observed, ledger)
    return replace(request, provisional=not final, search=search, watched=watched)


def drawn_request(
    observed: ObservedSweep,
    spec: ScalingSweepSpec,
    ledger: Ledger,
    points: Mapping[str, PlannedPoint],
    *,
    inputs: str,
) -> FitRequest:
    """What fits and pages have in common."""
    fitted = fitted_records(ledger.points)
    return FitRequest(
        inputs=inputs,
        points=tuple(_fit_point(record, points[record.key]) for record in fitted),
        options=fit_options(spec),
        weights=_weights(spec),
        flops=spec.fit.flops,
        provisional=True,
        ledger_sha256=ledger.digest,
        laws_path=layout.sweep_laws(observed.name, observed.uid),
        report_path=layout.sweep_report(observed.name, observed.uid),
        missing=tuple(_missing_point(r) for r in ledger.points if not r.is_fitted),
        searched=ledger if spec.searches else None,
    )


def watched_now(observed: ObservedSweep, ledger: Ledger) -> Watched:
    """The sweep as the page is to show it."""
    resource = {"metadata": {"generation": observed.generation}, "status": observed.status}
    return Watched(ledger, observed.progress, resource)


def _supersedes(running: FitRequest, spec: ScalingSweepSpec, inputs: str, *, final: bool) -> bool:
    """Whether a fit with these inputs replaces the one that runs, rather than waiting for it.

    More points do not end a provisional fit: if they come faster than fits end, none ever would.
    """
    if running.inputs == inputs:
        return False
    asked = (fit_options(spec), _weights(spec), spec.fit.flops)
    is_as_asked = (running.options, running.weights, running.flops) == asked
    return final or not running.provisional or not is_as_asked


def is_fitted(fit: FitOutcome | None, inputs: str) -> bool:
    """Whether an outcome answers a fit with these inputs."""
    return fit is not None and fit.inputs == inputs


def _is_worth_it(fit: FitOutcome | None, done: int) -> bool:
    if done < FEWEST_FOR_PROVISIONAL:
        return False
    return fit is None or abs(done - fit.points) >= max(1.0, WORTH_REFITTING * fit.points)


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
