"""What the laws answer to a prediction's question, and how it reads."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Final

from isoloss.formatting import batch_size, learning_rate
from isoloss.laws import (
    BatchSizeRange,
    Interval,
    Laws,
    Point,
    Prediction,
    PredictionQuery,
    RefusalReason,
    Route,
    predict,
)
from isoloss.runs import training_flops_per_token
from isoloss_contract.records import EvaluationResult
from isoloss_operator.api import HyperparamPredictionSpec, ScalingSweepSpec
from isoloss_operator.decide.conditions import Finding
from isoloss_operator.decide.reasons import Reason

ROUNDED_TOO_FAR: Final = 0.25
"""Natural logarithm by which rounding may move a batch size before the answer warns, as the laws' own."""

BOTH: Final[dict[Route, str]] = {"iso-loss": "iso-loss laws", "surface": "joint surface"}
"""What may answer when the batch size is not given."""


def predicted(
    laws: Laws,
    spec: HyperparamPredictionSpec,
    sweep: ScalingSweepSpec,
    result: EvaluationResult | None,
) -> Prediction | Finding:
    """The answer in sequences of the sweep's length, or why there is none.

    `result` is the measured loss, None if the spec has it.
    """
    try:
        outcome = predict(laws, question(laws, spec, sweep, result))
    except ValueError as error:
        return Finding.false(Reason.INVALID_SPEC, str(error), stalled=True)
    if isinstance(outcome, Prediction):
        return outcome
    first = outcome.refusals[0]
    # A refused law is named by its own reason, which says what to change about the sweep.
    reason = RefusalReason(str(first.figures.get("law_reason", first.reason)))
    message = " ".join(refusal.message for refusal in outcome.refusals)
    return Finding.false(reason, message, stalled=True)


def question(
    laws: Laws,
    spec: HyperparamPredictionSpec,
    sweep: ScalingSweepSpec,
    result: EvaluationResult | None,
) -> PredictionQuery:
    """What a prediction asks the laws; their answer is in sequences of the sweep's length."""
    budget = spec.budget
    return PredictionQuery(
        initial_loss=result.loss if result else float(spec.initial_loss or "nan"),
        initial_loss_standard_error=result.loss_standard_error if result else 0.0,
        cpt_flops=float(budget.flops) if budget.flops else None,
        cpt_tokens=float(budget.tokens) if budget.tokens else None,
        params=target_parameters(spec, result),
        flops_per_token=_target_flops(laws, spec, sweep, result),
        pretraining_tokens=float(spec.pretraining_tokens) if spec.pretraining_tokens else None,
        composition=spec.composition,
        batch_size=_in_sweep_sequences(spec, sweep),
        batch_size_tolerance=float(spec.batch_size_tolerance)
        if spec.batch_size_tolerance
        else None,
        # For another sequence length the batch size is rounded once it is in the target's sequences.
        round_to=spec.batch_size_multiple_of if _same_length(spec, sweep) else 1,
        max_extrapolation=float(spec.max_extrapolation),
        sequence_length=sweep.data.sequence_length,
    )


def _in_sweep_sequences(spec: HyperparamPredictionSpec, sweep: ScalingSweepSpec) -> float | None:
    """The batch size that is given; its tokens stay."""
    if spec.batch_size is None:
        return None
    return spec.batch_size * target_length(spec, sweep) / sweep.data.sequence_length


def _target_flops(
    laws: Laws,
    spec: HyperparamPredictionSpec,
    sweep: ScalingSweepSpec,
    result: EvaluationResult | None,
) -> float | None:
    """FLOPs per token of the target as the laws count them; None if they follow from its parameters, or
    its attention is not known."""
    if laws.flops_convention != "WithAttention" or result is None or result.attention is None:
        return None
    length = target_length(spec, sweep)
    return training_flops_per_token(result.parameters, result.attention, length)


def target_length(spec: HyperparamPredictionSpec, sweep: ScalingSweepSpec) -> int:
    """Tokens per sequence of the planned run."""
    return spec.target_sequence_length or sweep.data.sequence_length


def _same_length(spec: HyperparamPredictionSpec, sweep: ScalingSweepSpec) -> bool:
    return target_length(spec, sweep) == sweep.data.sequence_length


def for_target(
    prediction: Prediction, spec: HyperparamPredictionSpec, sweep: ScalingSweepSpec
) -> Prediction:
    """The answer in sequences of the target's length.

    The law is about tokens per batch: proxies of one sequence length say nothing about its effect.
    """
    if _same_length(spec, sweep):
        return prediction
    length = target_length(spec, sweep)
    ratio, multiple = sweep.data.sequence_length / length, spec.batch_size_multiple_of
    raw = prediction.batch_size_raw * ratio
    rounded = float(max(round(raw / multiple), 1) * multiple)
    if prediction.batch_size_given:
        rounded = raw = float(spec.batch_size or raw)
    batch = replace(_scaled(prediction.batch_size, ratio), value=rounded)
    warnings = prediction.warnings
    if abs(math.log(rounded / raw)) > ROUNDED_TOO_FAR:
        warnings = (
            *warnings,
            f"The nearest multiple of {multiple} is {rounded:.0f} sequences, far from the optimum "
            f"{raw:.4g}.",
        )
    return replace(
        prediction,
        batch_size=batch,
        batch_size_raw=raw,
        batch_size_tokens=_scaled(batch, length),
        affordable=_scaled_range(prediction.affordable, ratio),
        routes={name: _scaled_point(point, ratio) for name, point in prediction.routes.items()},
        variants={
            name: _scaled_point(point, ratio) for name, point in prediction.variants.items()
        },
        warnings=warnings,
    )


def _scaled_range(found: BatchSizeRange | None, factor: float) -> BatchSizeRange | None:
    if found is None:
        return None
    return replace(found, smallest=found.smallest * factor, largest=found.largest * factor)


def _scaled_point(point: Point, factor: float) -> Point:
    return replace(point, batch_size=_scaled(point.batch_size, factor))


def _scaled(interval: Interval, factor: float) -> Interval:
    return replace(
        interval,
        value=interval.value * factor,
        low=interval.low * factor,
        high=interval.high * factor,
    )


def target_parameters(
    spec: HyperparamPredictionSpec, result: EvaluationResult | None
) -> float | None:
    """Active parameters of the target: measured, or from the spec."""
    if result is not None:
        return float(result.parameters.active)
    return float(spec.target_parameters) if spec.target_parameters else None


def predicted_in_words(prediction: Prediction) -> str:
    """The answer in a sentence."""
    rate, batch = prediction.learning_rate, prediction.batch_size
    if prediction.batch_size_given:
        return (
            f"Learning rate {learning_rate(rate.value)} ({learning_rate(rate.low)} to {learning_rate(rate.high)}) at "
            f"the batch size that is given, {batch_size(batch.value)} sequences."
        )
    return (
        f"Learning rate {learning_rate(rate.value)} ({learning_rate(rate.low)} to "
        f"{learning_rate(rate.high)}), batch size {batch_size(batch.value)} "
        f"({batch_size(batch.low)} to {batch_size(batch.high)}) sequences, by the "
        f"{_route(prediction)}."
    )


def _route(prediction: Prediction) -> str:
    """Which estimate answered, and that it is alone if the other one was refused."""
    name = BOTH[prediction.route]
    alone = len(prediction.routes) < len(BOTH)
    return f"{name} alone (see status.warnings)" if alone else name
