"""A prediction's status and its published form: the answer, and everything it rests on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, get_args

from pydantic import ValidationError

from isoloss.laws import Interval, Point, Prediction, Route
from isoloss.published import published_opinions
from isoloss.savings import search_cost
from isoloss_contract import layout
from isoloss_contract.records import EvaluationResult
from isoloss_operator.api import (
    ExtrapolationStatus,
    HyperparamPredictionStatus,
    IntervalStatus,
    ScalingSweepSpec,
    SearchCostStatus,
    VariantStatus,
)
from isoloss_operator.decide.law_status import (
    MAX_ENTRIES,
    interval_status,
    loss_text,
    number,
    rate,
    texts,
)
from isoloss_operator.decide.observation import FitOutcome, ObservedReference

EIGHTY_PERCENT: Final = 1.2816
"""Standard errors to either side that hold 80 % of a normal distribution."""

ANSWER: Final[Mapping[str, Any]] = {
    "equivalent_flops": None,
    "planned_flops": "",
    "total_flops": None,
    "target_loss": None,
    "learning_rate": None,
    "batch_size": None,
    "batch_size_tokens": "",
    "search_cost": None,
    "extrapolation": None,
    "variants": (),
    "second_opinions": (),
    "warnings": (),
    "sweep_generation": 0,
    "sweep_uid": "",
    "laws_sha256": "",
    "ledger_sha256": "",
}
"""The fields of an answer, as they are without one."""

MEASUREMENT: Final[Mapping[str, Any]] = {
    "initial_loss": None,
    "domain_losses": {},
    "evaluation_uri": "",
}
"""The fields of the initial loss, as they are without one."""


def previous_prediction(raw: Mapping[str, Any]) -> HyperparamPredictionStatus:
    """The status as observed; an empty one where it can not be read."""
    try:
        return HyperparamPredictionStatus.model_validate(raw)
    except ValidationError:
        return HyperparamPredictionStatus()


def measured(result: EvaluationResult, sweep: ScalingSweepSpec) -> dict[str, Any]:
    """The fields of a measured initial loss."""
    margin = EIGHTY_PERCENT * result.loss_standard_error
    uri = sweep.storage.uri.rstrip("/")
    return {
        "initial_loss": interval_status(
            Interval(result.loss, result.loss - margin, result.loss + margin), loss_text
        ),
        "domain_losses": {
            name: loss_text(domain.loss) for name, domain in sorted(result.domains.items())
        },
        "evaluation_uri": f"{uri}/{layout.evaluation_result(result.key)}",
    }


def given(initial_loss: str) -> dict[str, Any]:
    """The fields of an initial loss that the spec states; it comes without an interval."""
    return {**MEASUREMENT, "initial_loss": IntervalStatus(value=initial_loss)}


def answered(
    prediction: Prediction,
    *,
    sweep: ObservedReference,
    spec: ScalingSweepSpec,
    fit: FitOutcome,
    params: float | None,
    warnings: tuple[str, ...],
) -> dict[str, Any]:
    """The fields of an answer."""
    return {
        "equivalent_flops": interval_status(prediction.equivalent_flops),
        "planned_flops": number(prediction.cpt_flops),
        "total_flops": interval_status(prediction.total_flops),
        "target_loss": interval_status(prediction.target_loss, loss_text),
        "learning_rate": interval_status(prediction.learning_rate, rate),
        "batch_size": interval_status(prediction.batch_size, sequences),
        "batch_size_tokens": sequences(prediction.batch_size_tokens.value),
        "search_cost": search_cost_status(spec, sweep.status, prediction.cpt_flops),
        "extrapolation": ExtrapolationStatus(
            compute_factor=number(prediction.extrapolation.compute_factor),
            loss_distance=loss_text(prediction.extrapolation.loss_distance),
            parameters_factor=number(prediction.extrapolation.params_factor),
        ),
        "variants": tuple(
            _variant(name, point) for name, point in sorted(prediction.variants.items())
        ),
        "second_opinions": second_opinions(prediction, params, spec.data.sequence_length),
        "warnings": texts([*warnings, *prediction.warnings]),
        "sweep_generation": sweep.generation,
        "sweep_uid": sweep.uid,
        "laws_sha256": fit.laws_sha256,
        "ledger_sha256": fit.ledger_sha256,
    }


def search_cost_status(
    spec: ScalingSweepSpec, status: Mapping[str, Any], cpt_flops: float | None
) -> SearchCostStatus | None:
    """The sweep beside a search on the target with the planned budget; None: one is unknown."""
    try:
        cost = search_cost(
            sweep_flops=float(status.get("plannedFlops", "")),
            direct_runs=spec.direct_runs,
            run_flops=float(cpt_flops or 0),
        )
    except ValueError:
        return None
    return SearchCostStatus(
        sweep_flops=number(cost.proxy_flops),
        direct_flops=number(cost.direct_flops),
        direct_runs=spec.direct_runs,
        saving=number(cost.saving),
    )


def route_words(prediction: Prediction) -> str:
    """Which estimate answered, and that it is alone where the other one was refused."""
    name = {"iso-loss": "iso-loss laws", "surface": "joint surface"}[prediction.route]
    alone = len(prediction.routes) < len(get_args(Route))
    return f"{name} alone (see status.warnings)" if alone else name


def sequences(value: float | None) -> str:
    """A count of sequences or tokens: a whole number, never rounded to fewer digits."""
    return "" if value is None else f"{value:.0f}" if value < 1e15 else number(value)


def second_opinions(
    prediction: Prediction, params: float | None, sequence_length: int
) -> tuple[VariantStatus, ...]:
    """The other fitting route, then the published laws that have something to say."""
    opinions = [
        _variant(f"{name} route", point)
        for name, point in sorted(prediction.routes.items())
        if name != prediction.route
    ]
    published, _ = published_opinions(total_flops=prediction.total_flops.value, params=params)
    opinions += [
        VariantStatus(
            name=opinion.name,
            learning_rate=rate(opinion.learning_rate),
            batch_size=sequences(opinion.batch_size(sequence_length)),
            total_flops=number(prediction.total_flops.value),
        )
        for opinion in published
    ]
    return tuple(opinions[:MAX_ENTRIES])


def _variant(name: str, point: Point) -> VariantStatus:
    return VariantStatus(
        name=name,
        learning_rate=rate(point.learning_rate.value),
        batch_size=sequences(point.batch_size.value),
        total_flops=number(point.total_flops),
    )
