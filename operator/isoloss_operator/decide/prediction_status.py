"""A prediction's status: the answer, everything it is computed from, and the form in which it is published."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from isoloss.formatting import batch_size, learning_rate, loss, number
from isoloss.laws import (
    BatchSizeRange,
    Interval,
    Laws,
    Point,
    Prediction,
    PredictionQuery,
    Route,
    for_length,
    predict,
)
from isoloss.published import published_opinions
from isoloss.savings import search_cost
from isoloss_contract import layout
from isoloss_contract.records import EvaluationResult, content_key
from isoloss_operator.api import (
    BatchSizeRangeStatus,
    ExtrapolationStatus,
    HyperparamPredictionSpec,
    HyperparamPredictionStatus,
    IntervalStatus,
    ScalingSweepSpec,
    SearchCostStatus,
    VariantStatus,
)
from isoloss_operator.decide.conditions import READY, STALE, Finding
from isoloss_operator.decide.fits import FitOutcome
from isoloss_operator.decide.jobs.requests import store_uri
from isoloss_operator.decide.law_status import (
    MAX_ENTRIES,
    interval_status,
    precise,
    refused_in_words,
    texts,
)
from isoloss_operator.decide.observation import ObservedPrediction, ObservedReference
from isoloss_operator.decide.plans import ConfigMapDeletion, ConfigMapRequest
from isoloss_operator.decide.reasons import Reason
from isoloss_operator.planning.specs import InvalidSpec

# ---------------------------------------------------------------------------------------- the answer


ROUTES: Final[dict[Route, str]] = {
    "iso-loss": "iso-loss laws",
    "surface": "joint surface",
    "fixed-batch": "law at that batch size",
}
"""What answers, in words."""


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
    return Finding.false(*refused_in_words(outcome), stalled=True)


def question(
    laws: Laws,
    spec: HyperparamPredictionSpec,
    sweep: ScalingSweepSpec,
    result: EvaluationResult | None,
) -> PredictionQuery:
    """What a prediction asks the laws; their answer is in sequences of the sweep's length.

    Raises ValueError if it contradicts itself.
    """
    budget, ratio = spec.budget, target_length(spec, sweep) / sweep.data.sequence_length
    return PredictionQuery(
        initial_loss=result.loss if result else float(spec.initial_loss or "nan"),
        initial_loss_standard_error=result.loss_standard_error if result else 0.0,
        cpt_flops=float(budget.flops) if budget.flops else None,
        cpt_tokens=float(budget.tokens) if budget.tokens else None,
        params=target_parameters(spec, result),
        pretraining_tokens=float(spec.pretraining_tokens) if spec.pretraining_tokens else None,
        composition=spec.composition,
        batch_size=None if spec.batch_size is None else spec.batch_size * ratio,
        batch_size_tolerance=float(spec.batch_size_tolerance)
        if spec.batch_size_tolerance
        else None,
        round_to=spec.batch_size_multiple_of * ratio,
        max_extrapolation=float(spec.max_extrapolation),
    )


def target_length(spec: HyperparamPredictionSpec, sweep: ScalingSweepSpec) -> int:
    """Tokens per sequence of the planned run."""
    return spec.target_sequence_length or sweep.data.sequence_length


def for_target(
    prediction: Prediction, spec: HyperparamPredictionSpec, sweep: ScalingSweepSpec
) -> Prediction:
    """The answer in sequences of the target's length."""
    lengths = sweep.data.sequence_length, target_length(spec, sweep)
    return for_length(prediction, spec.batch_size_multiple_of, *lengths)


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
            f"a batch size of {batch_size(batch.value)} sequences."
        )
    return (
        f"Learning rate {learning_rate(rate.value)} ({learning_rate(rate.low)} to "
        f"{learning_rate(rate.high)}), batch size {batch_size(batch.value)} "
        f"({batch_size(batch.low)} to {batch_size(batch.high)}) sequences, by the "
        f"{ROUTES[prediction.route]}."
    )


# ------------------------------------------------------------ whether the status is of the present spec


def question_digest(spec: HyperparamPredictionSpec | InvalidSpec, *, judged: bool = False) -> str:
    """Digest of what a spec asks, with what its answer is judged by if `judged`; empty for an invalid one."""
    if isinstance(spec, InvalidSpec):
        return ""
    asked = spec.model_dump(
        mode="json",
        exclude_defaults=True,
        exclude={  # what changes neither the answer nor the initial loss
            "suspend": True,
            "publish": True,
            "validation": True,
            "checkpoint": {"secret_name": True, "pod_template": True},
        },
    )
    if not judged or spec.validation is None:
        return content_key(asked)
    return content_key([asked, spec.validation.model_dump(mode="json")])


def is_of_present_spec(observed: ObservedPrediction, *, judged: bool = False) -> bool:
    """Whether what the status says is about the present question; if `judged`, the verdict on the answer."""
    status = observed.previous_status
    previous = status.validation if judged else status
    asked = question_digest(observed.spec, judged=judged)
    return previous is not None and bool(asked) and previous.question_digest == asked


def has_previous_answer(observed: ObservedPrediction) -> bool:
    """Whether the status has an answer to the present question, published or not: it is not withdrawn lightly."""
    stale = observed.previous_conditions.get(STALE)
    is_given = stale is not None and stale.reason != Reason.NOTHING_WRONG
    return is_given and is_of_present_spec(observed)


# ---------------------------------------------------------------------------------------- the status


EIGHTY_PERCENT: Final = 1.2816
"""Standard errors to either side that hold 80 % of a normal distribution."""


def with_measurement(
    answer: HyperparamPredictionStatus, measured: HyperparamPredictionStatus
) -> HyperparamPredictionStatus:
    """The status of an answer with the initial loss of another."""
    return answer.model_copy(
        update={
            "initial_loss": measured.initial_loss,
            "domain_losses": measured.domain_losses,
            "evaluation_uri": measured.evaluation_uri,
        }
    )


def measured(result: EvaluationResult, sweep: ScalingSweepSpec) -> HyperparamPredictionStatus:
    """The status of a measured initial loss, without an answer."""
    margin = EIGHTY_PERCENT * result.loss_standard_error
    interval = Interval(result.loss, result.loss - margin, result.loss + margin)
    return HyperparamPredictionStatus(
        initial_loss=interval_status(interval, loss),
        domain_losses={name: loss(domain.loss) for name, domain in sorted(result.domains.items())}
        or None,
        evaluation_uri=f"{store_uri(sweep)}/{layout.evaluation_result(result.key)}",
    )


def given(initial_loss: str) -> HyperparamPredictionStatus:
    """The same of an initial loss from the spec; it comes without an interval."""
    return HyperparamPredictionStatus(initial_loss=IntervalStatus(value=initial_loss))


def answered(
    prediction: Prediction,
    spec: HyperparamPredictionSpec,
    sweep: ScalingSweepSpec,
    reference: ObservedReference,
    fit: FitOutcome,
    result: EvaluationResult | None,
    unnoticed: tuple[str, ...] = (),
) -> HyperparamPredictionStatus:
    """The status of an answer, without its initial loss."""
    distance = prediction.extrapolation
    params, length = target_parameters(spec, result), target_length(spec, sweep)
    return HyperparamPredictionStatus(
        equivalent_flops=interval_status(prediction.equivalent_flops),
        planned_flops=precise(prediction.cpt_flops),
        total_flops=interval_status(prediction.total_flops),
        target_loss=interval_status(prediction.target_loss, loss),
        learning_rate=interval_status(prediction.learning_rate, learning_rate),
        batch_size=interval_status(prediction.batch_size, batch_size),
        batch_size_tokens=batch_size(prediction.batch_size_tokens.value),
        batch_size_cost=interval_status(prediction.batch_size_cost),
        affordable_batch_sizes=_affordable(prediction.affordable),
        search_cost=search_cost_status(sweep, reference.status, prediction.cpt_flops),
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
    """The published laws that have something to say."""
    published, _ = published_opinions(total_flops=prediction.total_flops.value, params=params)
    opinions = [
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


# ------------------------------------------------------------------------------ the published answer


def publication(
    observed: ObservedPrediction, status: HyperparamPredictionStatus
) -> ConfigMapRequest | None:
    """The ConfigMap to publish; None if none is wanted, or another owner has its name."""
    if observed.config_map_foreign:
        return None
    name = _wanted_name(observed)
    return ConfigMapRequest(name, published_data(status)) if name else None


def withdrawals(
    observed: ObservedPrediction, status: HyperparamPredictionStatus
) -> tuple[ConfigMapDeletion, ...]:
    """What was published under names that the spec no longer asks for: nobody updates it.

    An invalid spec asks for nothing in particular, and takes nothing away.
    """
    wanted = _wanted_name(observed)
    if wanted is None:
        return ()
    return tuple(
        ConfigMapDeletion(name, found.uid, at_once=says_otherwise(found.data, status))
        for name, found in sorted(observed.published.items())
        if name != wanted
    )


def says_otherwise(data: Mapping[str, str], status: HyperparamPredictionStatus) -> bool:
    """Whether published data have numbers that are not the answer of the status."""
    numbers = _numbers(status)
    return "learningRate" in data and not (numbers and numbers.items() <= data.items())


def _wanted_name(observed: ObservedPrediction) -> str | None:
    """The name to publish under; empty: none is asked for. None: the spec is invalid."""
    if isinstance(observed.spec, InvalidSpec):
        return None
    publish = observed.spec.publish
    return publish.config_map_name if publish else ""


def published_data(status: HyperparamPredictionStatus) -> dict[str, str]:
    """The ConfigMap's data: the answer for the next step of a pipeline, or why there is none.

    Without an answer no number is there: a step that reads one cannot continue with a withdrawn one.
    """
    conditions = {condition.type: condition for condition in status.conditions}
    ready, stale = conditions[READY], conditions[STALE]
    data = {
        "ready": "true" if ready.status == "True" else "false",
        "reason": ready.reason,
        "message": ready.message,
    }
    numbers = _numbers(status)
    if ready.status != "True" or not numbers:
        return data
    return data | {"stale": "true" if stale.status == "True" else "false"} | numbers


def _numbers(status: HyperparamPredictionStatus) -> dict[str, str]:
    """Those that are published; none without an answer."""
    rate, batch = status.learning_rate, status.batch_size
    if rate is None or batch is None:
        return {}
    return {
        "learningRate": rate.value or "",
        "learningRateLow": rate.low or "",
        "learningRateHigh": rate.high or "",
        "batchSize": batch.value or "",
        "batchSizeLow": batch.low or "",
        "batchSizeHigh": batch.high or "",
        "batchSizeTokens": status.batch_size_tokens,
        "lawsSha256": status.laws_sha256,
    }
