"""A prediction's status: the answer, and everything it is computed from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Final

from pydantic import ValidationError

from isoloss.formatting import batch_size, learning_rate, loss, number
from isoloss.laws import BatchSizeRange, Interval, Point, Prediction
from isoloss.published import published_opinions
from isoloss.savings import search_cost
from isoloss_contract import layout
from isoloss_contract.records import EvaluationResult
from isoloss_operator.api import (
    BatchSizeRangeStatus,
    Condition,
    ExtrapolationStatus,
    HyperparamPredictionSpec,
    HyperparamPredictionStatus,
    IntervalStatus,
    ScalingSweepSpec,
    SearchCostStatus,
    VariantStatus,
)
from isoloss_operator.decide.answers import target_length, target_parameters
from isoloss_operator.decide.fits import FitOutcome
from isoloss_operator.decide.jobs.requests import store_uri
from isoloss_operator.decide.law_status import (
    MAX_ENTRIES,
    interval_status,
    precise,
    texts,
)
from isoloss_operator.decide.observation import ObservedReference

EIGHTY_PERCENT: Final = 1.2816
"""Standard errors to either side that hold 80 % of a normal distribution."""


@dataclass(frozen=True)
class Measurement:
    """The status fields of the initial loss, as they are without one."""

    initial_loss: IntervalStatus | None = None
    domain_losses: dict[str, str] | None = None
    evaluation_uri: str = ""

    @classmethod
    def of(cls, status: HyperparamPredictionStatus) -> Measurement:
        """Those of a status as observed."""
        return cls(**{each.name: getattr(status, each.name) for each in fields(cls)})


@dataclass(frozen=True)
class Answer:
    """The status fields of an answer, as they are without one."""

    equivalent_flops: IntervalStatus | None = None
    planned_flops: str = ""
    total_flops: IntervalStatus | None = None
    target_loss: IntervalStatus | None = None
    learning_rate: IntervalStatus | None = None
    batch_size: IntervalStatus | None = None
    batch_size_tokens: str = ""
    batch_size_cost: IntervalStatus | None = None
    affordable_batch_sizes: BatchSizeRangeStatus | None = None
    search_cost: SearchCostStatus | None = None
    extrapolation: ExtrapolationStatus | None = None
    variants: tuple[VariantStatus, ...] = ()
    second_opinions: tuple[VariantStatus, ...] = ()
    warnings: tuple[str, ...] = ()
    sweep_generation: int = 0
    sweep_uid: str = ""
    laws_sha256: str = ""
    ledger_sha256: str = ""

    @classmethod
    def of(cls, status: HyperparamPredictionStatus) -> Answer:
        """Those of a status as observed."""
        return cls(**{each.name: getattr(status, each.name) for each in fields(cls)})


def prediction_status(
    measurement: Measurement, answer: Answer, conditions: tuple[Condition, ...], generation: int
) -> HyperparamPredictionStatus:
    """The whole status."""
    return HyperparamPredictionStatus(
        observed_generation=generation,
        conditions=conditions,
        **vars(measurement),
        **vars(answer),
    )


def previous_prediction(raw: Mapping[str, Any]) -> HyperparamPredictionStatus:
    """The status as observed; an empty one if it cannot be read."""
    try:
        return HyperparamPredictionStatus.model_validate(raw)
    except ValidationError:
        return HyperparamPredictionStatus()


def measured(result: EvaluationResult, sweep: ScalingSweepSpec) -> Measurement:
    """A measured initial loss."""
    margin = EIGHTY_PERCENT * result.loss_standard_error
    interval = Interval(result.loss, result.loss - margin, result.loss + margin)
    return Measurement(
        initial_loss=interval_status(interval, loss),
        domain_losses={name: loss(domain.loss) for name, domain in sorted(result.domains.items())}
        or None,
        evaluation_uri=f"{store_uri(sweep)}/{layout.evaluation_result(result.key)}",
    )


def given(initial_loss: str) -> Measurement:
    """An initial loss from the spec; it comes without an interval."""
    return Measurement(initial_loss=IntervalStatus(value=initial_loss))


def answered(
    prediction: Prediction,
    spec: HyperparamPredictionSpec,
    sweep: ScalingSweepSpec,
    reference: ObservedReference,
    fit: FitOutcome,
    result: EvaluationResult | None,
    unnoticed: tuple[str, ...] = (),
) -> Answer:
    """The answer as the status shows it."""
    distance = prediction.extrapolation
    params, length = target_parameters(spec, result), target_length(spec, sweep)
    return Answer(
        equivalent_flops=interval_status(prediction.equivalent_flops),
        planned_flops=precise(prediction.cpt_flops),
        total_flops=interval_status(prediction.total_flops),
        target_loss=interval_status(prediction.target_loss, loss),
        learning_rate=interval_status(prediction.learning_rate, learning_rate),
        batch_size=interval_status(prediction.batch_size, batch_size),
        batch_size_tokens=batch_size(prediction.batch_size_tokens.value),
        batch_size_cost=interval_status(prediction.batch_size_cost),
        affordable_batch_sizes=_affordable(prediction.affordable),
        search_cost=search_cost_status(
            sweep, reference.status, prediction.as_six_nd(prediction.cpt_flops)
        ),
        extrapolation=ExtrapolationStatus(
            compute_factor=precise(distance.compute_factor),
            loss_distance=loss(distance.loss_distance),
            parameters_factor=precise(distance.params_factor),
        ),
        variants=tuple(
            _variant(name, point) for name, point in sorted(prediction.variants.items())
        ),
        second_opinions=second_opinions(prediction, params, length),
        warnings=texts([*_warnings(result), *unnoticed, *prediction.warnings]),
        sweep_generation=reference.generation,
        sweep_uid=reference.uid,
        laws_sha256=fit.laws_sha256,
        ledger_sha256=fit.ledger_sha256,
    )


def _affordable(found: BatchSizeRange | None) -> BatchSizeRangeStatus | None:
    if found is None:
        return None
    return BatchSizeRangeStatus(
        tolerance=number(found.tolerance),
        smallest=batch_size(found.smallest),
        largest=batch_size(found.largest),
    )


def _warnings(result: EvaluationResult | None) -> tuple[str, ...]:
    if result is None or result.same_tokenizer:
        return ()
    return (
        "The checkpoint's tokenizer differs from the sweep's: it read the same text in its own tokens, "
        "and its loss was converted to the sweep's.",
    )


def search_cost_status(
    spec: ScalingSweepSpec, status: Mapping[str, Any], cpt_flops: float | None
) -> SearchCostStatus | None:
    """The sweep compared with a search on the target with the planned budget, both as 6 N D; None: one is unknown."""
    try:
        cost = search_cost(
            sweep_flops=float(status.get("plannedFlops", "")),
            direct_runs=spec.direct_runs,
            run_flops=float(cpt_flops or 0),
        )
    except ValueError:
        return None
    return SearchCostStatus(
        sweep_flops=precise(cost.proxy_flops),
        direct_flops=precise(cost.direct_flops),
        direct_runs=spec.direct_runs,
        saving=precise(cost.saving),
    )


def second_opinions(
    prediction: Prediction, params: float | None, sequence_length: int
) -> tuple[VariantStatus, ...]:
    """The other fitting route, then the published laws that have something to say."""
    opinions = [
        _variant(f"{name} route", point)
        for name, point in sorted(prediction.routes.items())
        if name != prediction.route
    ]
    total = prediction.as_six_nd(prediction.total_flops.value)
    published, _ = published_opinions(total_flops=total, params=params)
    opinions += [
        VariantStatus(
            name=opinion.name,
            learning_rate=learning_rate(opinion.learning_rate),
            batch_size=batch_size(opinion.batch_size(sequence_length)),
            total_flops=number(prediction.total_flops.value),
        )
        for opinion in published
    ]
    return tuple(opinions[:MAX_ENTRIES])


def _variant(name: str, point: Point) -> VariantStatus:
    return VariantStatus(
        name=name,
        learning_rate=learning_rate(point.learning_rate.value),
        batch_size=batch_size(point.batch_size.value),
        total_flops=number(point.total_flops),
    )
