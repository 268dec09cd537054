"""When to fit and what: a fit is requested whenever the finished points changed enough to matter."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, TypedDict

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
    from isoloss.laws import FlopsConvention
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
        [r.key, r.name, r.trajectory_sha256, str(r.state), r.taken_back, r.is_finished]
        for r in fitted_records(records)
    ]
    content = [fitted, spec.fit.model_dump(mode="json"), final]
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
    shown = shown_of(observed, spec, ledger, points)
    watched = None if final else watched_now(observed, ledger)
    return FitRequest(
        **shown,
        inputs=inputs,
        options=fit_options(spec),
        provisional=not final,
        search=search,
        watched=watched,
    )


class Shown(TypedDict):
    """What fits and pages of a sweep have in common."""

    points: tuple[FitPoint, ...]
    weights: Weights
    flops: FlopsConvention
    ledger_sha256: str
    laws_path: str
    report_path: str
    missing: tuple[MissingPoint, ...]
    searched: Ledger | None


def shown_of(
    observed: ObservedSweep,
    spec: ScalingSweepSpec,
    ledger: Ledger,
    points: Mapping[str, PlannedPoint],
) -> Shown:
    """Of a sweep as it is now."""
    fitted = fitted_records(ledger.points)
    return {
        "points": tuple(_fit_point(record, points[record.key]) for record in fitted),
        "weights": _weights(spec),
        "flops": spec.fit.flops,
        "ledger_sha256": ledger.digest,
        "laws_path": layout.sweep_laws(observed.name, observed.uid),
        "report_path": layout.sweep_report(observed.name, observed.uid),
        "missing": tuple(_missing_point(r) for r in ledger.points if not r.is_fitted),
        "searched": ledger if spec.searches else None,
    }


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
