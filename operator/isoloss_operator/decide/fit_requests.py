"""When to fit and what: a fit is requested whenever the finished points changed enough to matter."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

from isoloss.laws import FitOptions
from isoloss_contract import layout
from isoloss_contract.ledger import DONE, Ledger, PointRecord, PointState
from isoloss_contract.records import content_key
from isoloss_operator.api import ScalingSweepSpec
from isoloss_operator.decide.fits import FitOutcome, FitPoint, FitRequest, MissingPoint
from isoloss_operator.decide.observation import ObservedSweep
from isoloss_operator.decide.points.transitions import done_records
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


def _weights(spec: ScalingSweepSpec) -> Literal["averaged", "raw"]:
    return "averaged" if spec.fit.weights == "Averaged" else "raw"


def fit_inputs(spec: ScalingSweepSpec, records: Sequence[PointRecord], *, final: bool) -> str:
    """Hash of all that a fit depends on."""
    done = [
        [r.key, r.name, r.trajectory_sha256, str(r.state), r.taken_back]
        for r in done_records(records)
    ]
    fit = spec.fit.model_dump(mode="json")
    if spec.fit.flops == "SixND":
        # As before the field existed: fits that are there need not be made again.
        del fit["flops"]
    return content_key([done, fit, final])


def fit_request(
    observed: ObservedSweep,
    spec: ScalingSweepSpec,
    ledger: Ledger,
    points: Mapping[str, PlannedPoint],
    *,
    final: bool,
) -> FitRequest | None:
    """The fit to run now, in place of one that runs; None: no fit is needed, or one is running."""
    done = done_records(ledger.points)
    inputs = fit_inputs(spec, ledger.points, final=final)
    if not done or is_fitted(observed.fit, inputs):
        return None
    running = observed.fit_running
    if running is not None and not _supersedes(running, spec, inputs, final=final):
        return None
    if not final and (observed.fit_rests or not _is_worth_it(observed.fit, len(done))):
        return None
    return FitRequest(
        inputs=inputs,
        points=tuple(_fit_point(record, points[record.key]) for record in done),
        options=fit_options(spec),
        weights=_weights(spec),
        flops=spec.fit.flops,
        provisional=not final,
        ledger_sha256=ledger.digest,
        laws_path=layout.sweep_laws(observed.name, observed.uid),
        report_path=layout.sweep_report(observed.name, observed.uid),
        missing=tuple(_missing_point(r) for r in ledger.points if r.state not in DONE),
    )


def _supersedes(running: FitRequest, spec: ScalingSweepSpec, inputs: str, *, final: bool) -> bool:
    """Whether a fit with these inputs replaces the one that runs, rather than waiting for it.

    More points do not end a provisional fit: where they come faster than fits end, none ever would.
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
