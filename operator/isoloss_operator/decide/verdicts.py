"""What the losses of a prediction's probes say about its answer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np

from isoloss.laws import Laws, PredictionQuery, Refused, Run
from isoloss.validation import InvalidProbes, Validation, probes_of_runs, validate
from isoloss.validation import Reason as Judged
from isoloss_contract.ledger import DONE, PointRecord, PointState
from isoloss_operator.api import ScalingSweepSpec
from isoloss_operator.decide.conditions import Finding
from isoloss_operator.decide.reasons import Reason
from isoloss_operator.decide.tasks.task_pass import TaskPass
from isoloss_operator.planning.points import PlannedPoint

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
    """The condition, and the figures behind it if there are any."""

    finding: Finding
    validation: Validation | None = None


def verdict(
    laws: Laws,
    query: PredictionQuery,
    tasks: TaskPass,
    spec: ScalingSweepSpec,
    *,
    flops: float,
    tolerance: float,
) -> Verdict:
    """Judge the laws' answer to `query` by probes that are over, each of `flops` FLOPs; `tolerance` is in nats.

    `spec` is of the sweep that trained them.
    """
    done = _done(tasks)
    if not done:
        return _too_few("No probe has a result.")
    unstated = [record.name for record in done if not _is_known(spec, record)]
    if unstated:
        return _too_few(
            f"Results without a cooled loss: {len(unstated)} of {len(done)} ({unstated[0]} first). The laws are fitted to cooled losses."
        )
    runs = [_run(tasks.points[record.key], spec, record) for record in done]
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
    if found.reason is Judged.WITHIN_NOISE:
        message += " The fields are spec.validation.seeds and spec.validation.tokensShare."
    if found.validated is None:
        return Finding.unknown(reason, message)
    if found.reason is Judged.ANSWER_DIVERGED:
        message += " Take a lower learning rate."
    return Finding.true(reason, message) if found.validated else Finding.false(reason, message)


def _done(tasks: TaskPass) -> list[PointRecord]:
    return [r for r in tasks.ledger.points if r.state in DONE and r.key in tasks.points]


def _is_known(spec: ScalingSweepSpec, record: PointRecord) -> bool:
    """Whether what a probe came to is known: a diverged one has no loss to state."""
    return record.state is PointState.DIVERGED or judged_loss(spec, record) is not None


def _run(point: PlannedPoint, spec: ScalingSweepSpec, record: PointRecord) -> Run:
    """A probe as the law engine sees runs, with its last loss."""
    end = judged_loss(spec, record)
    has_diverged = record.state is PointState.DIVERGED
    ends = [] if has_diverged or end is None or end.loss is None else [(end.tokens, end.loss)]
    return Run(
        name=record.name,
        params=float(point.proxy.parameters.active),
        batch_size=float(record.batch_size),
        sequence_length=spec.data.sequence_length,
        learning_rate=record.learning_rate,
        tokens=np.array([tokens for tokens, _ in ends], dtype=float),
        losses=np.array([loss for _, loss in ends], dtype=float),
        diverged=not ends,
        loss_kind=spec.fit.weights.lower(),
        optimizer=point.config.optimizer.name,
    )


# ------------------------------------------------------------------------- which losses are judged


@dataclass(frozen=True)
class ProbeLoss:
    """What a probe came to."""

    tokens: int
    """Seen at its end, the cooldown of one that cools down included."""
    loss: float | None
    """Nats per token; None if not finite."""


def judged_loss(spec: ScalingSweepSpec, record: PointRecord) -> ProbeLoss | None:
    """The loss by which a probe with a result is judged, `spec` being of the sweep that trained it.

    None if the laws are of cooled losses and the result has none: no other loss stands in for it.
    """
    match spec.fit.weights:
        case "Cooled":
            if record.cooled_tokens is None:
                return None
            return ProbeLoss(record.cooled_tokens, record.cooled_loss)
        case "Raw":
            return ProbeLoss(record.tokens, record.loss)
        case "Averaged":
            return ProbeLoss(record.tokens, record.averaged_loss)
