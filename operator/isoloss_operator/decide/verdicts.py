"""What the losses of a prediction's probes say about its answer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from isoloss.laws import Laws, PredictionQuery, Refused, Run
from isoloss.validation import InvalidProbes, Validation, probes_of_runs, validate
from isoloss.validation import Reason as Judged
from isoloss_contract.ledger import DONE, PointRecord, PointState
from isoloss_operator.decide.conditions import Finding
from isoloss_operator.decide.reasons import Reason
from isoloss_operator.decide.sweep_view import PointsView

_REASONS: Final[Mapping[Judged, Reason]] = {
    Judged.ANSWER_HOLDS: Reason.ANSWER_HOLDS,
    Judged.BETTER_ANSWER_NEARBY: Reason.BETTER_ANSWER_NEARBY,
    Judged.ANSWER_DIVERGED: Reason.ANSWER_DIVERGED,
    Judged.WITHIN_NOISE: Reason.WITHIN_NOISE,
    Judged.NO_MINIMUM: Reason.NO_MINIMUM,
    Judged.TOO_FEW_PROBES: Reason.TOO_FEW_PROBES,
}


@dataclass(frozen=True)
class Verdict:
    """The condition, and the figures behind it where there are any."""

    finding: Finding
    validation: Validation | None = None


def verdict(
    laws: Laws, query: PredictionQuery, points: PointsView, *, flops: float, tolerance: float
) -> Verdict:
    """Judge the laws' answer to `query` by probes that are over, each of `flops` FLOPs; `tolerance` is in nats."""
    runs = probe_runs(points)
    if not runs:
        return _too_few("No probe has a result.")
    if all(run.diverged for run in runs):
        message = "Training diverged at the answer and at every neighbour: it is no answer. Take a lower learning rate."
        return Verdict(Finding.false(Reason.ANSWER_DIVERGED, message))
    try:
        probes, _ = probes_of_runs(
            runs, measured_noise=laws.run_noise, residual=laws.surface.residual_rms
        )
        found = validate(laws, query, probes, flops, tolerance=tolerance)
    except InvalidProbes as error:
        return _too_few(f"{error}.")
    if isinstance(found, Refused):
        refusal = found.refusals[0]
        return Verdict(Finding.unknown(refusal.reason, refusal.message))
    return Verdict(_finding(found), found)


def _too_few(message: str) -> Verdict:
    return Verdict(Finding.unknown(Reason.TOO_FEW_PROBES, message))


def _finding(found: Validation) -> Finding:
    reason, message = _REASONS[found.reason], found.message
    if found.validated is None:
        return Finding.unknown(reason, message)
    if found.reason is Judged.ANSWER_DIVERGED:
        message += " Take a lower learning rate."
    return Finding.true(reason, message) if found.validated else Finding.false(reason, message)


def probe_runs(points: PointsView) -> tuple[Run, ...]:
    """The probes that are done, as the law engine sees runs: each with its last loss."""
    planned = points.points
    return tuple(
        _run(points, record)
        for record in points.ledger.points
        if record.state in DONE and record.key in planned
    )


def _run(points: PointsView, record: PointRecord) -> Run:
    spec, loss = points.spec, probe_loss(points, record)
    is_diverged = record.state is PointState.DIVERGED or loss is None
    known: Sequence[float] = () if is_diverged or loss is None else (loss,)
    tokens = () if is_diverged else (float(record.tokens),)
    return Run(
        name=record.name,
        params=float(points.points[record.key].proxy.parameters.active),
        batch_size=float(record.batch_size),
        sequence_length=spec.data.sequence_length,
        learning_rate=record.learning_rate,
        tokens=np.array(tokens, dtype=float),
        losses=np.array(known, dtype=float),
        diverged=is_diverged,
        loss_kind=spec.fit.weights.lower(),
        optimizer=spec.optimizer.algorithm,
    )


def probe_loss(points: PointsView, record: PointRecord) -> float | None:
    """The loss that the laws are of, nats per token; None where it is not known."""
    return record.loss if points.spec.fit.weights == "Raw" else record.averaged_loss
