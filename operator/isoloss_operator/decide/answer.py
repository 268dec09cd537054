"""The answer of a sweep's laws: what a prediction asks them, what they say, how the status shows it, how it is published,
and when its page is drawn.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from isoloss.formatting import batch_size, learning_rate, loss, number, precise
from isoloss.laws import (
    BatchSizeRange,
    Laws,
    Point,
    Prediction,
    PredictionQuery,
    RefusalReason,
    Refused,
    Route,
    for_length,
    predict,
)
from isoloss.published import published_opinions
from isoloss.savings import search_cost
from isoloss.validation import is_verdict
from isoloss_contract import layout
from isoloss_contract.reading import value_of
from isoloss_contract.records import EvaluationResult, content_key
from isoloss_operator import api
from isoloss_operator.api import statuses
from isoloss_operator.api.statuses import MAX_ENTRIES
from isoloss_operator.decide import law_status
from isoloss_operator.decide.conditions import texts
from isoloss_operator.decide.fits import PAGE_SECONDS, AnswerPage, FitOutcome
from isoloss_operator.decide.observation import ObservedPrediction, ObservedResource
from isoloss_operator.decide.plans import ConfigMapDeletion, ConfigMapRequest
from isoloss_operator.decide.prediction_checks import AcceptedPrediction
from isoloss_operator.decide.reasons import READY, STALE, VALIDATED, Finding, Reason
from isoloss_operator.decide.single_task import Measurement
from isoloss_operator.planning.specs import InvalidSpec

NO_NUMBERS: Final = api.HyperparamPredictionStatus()


@dataclass(frozen=True)
class Answer:
    """What the laws of a sweep say to a prediction."""

    laws: Laws
    query: PredictionQuery
    """What they were asked."""
    in_sweep_sequences: Prediction
    """Batch sizes in sequences of the sweep's length."""
    prediction: Prediction
    """The same in sequences of the target's length."""
    status: api.HyperparamPredictionStatus
    """As the status shows it, without the initial loss."""
    message: str
    """In a sentence."""


def answer_to(asked: AcceptedPrediction, measured: Measurement) -> Answer | Finding:
    """The answer of the final laws once the initial loss is known, or why there is none."""
    if not measured.finding.holds:
        return measured.finding
    fit = asked.fit
    return fit if isinstance(fit, Finding) else _answer(asked, measured.result, fit)


def provisional_answer(asked: AcceptedPrediction, measured: Measurement) -> Answer | None:
    """The answer of provisional laws, to look at while the sweep runs; None: they have none, or final laws were refused."""
    fit = value_of(asked.observed.fit)
    is_wanted = isinstance(asked.fit, Finding) and not isinstance(asked.fit.reason, RefusalReason)
    if not (is_wanted and measured.finding.holds) or fit is None or fit.laws is None:
        return None
    found = _answer(asked, measured.result, fit) if fit.laws.status == "provisional" else None
    return found if isinstance(found, Answer) else None


def _answer(
    asked: AcceptedPrediction, result: EvaluationResult | None, fit: FitOutcome
) -> Answer | Finding:
    """`result` is the measured loss, None if the spec has it."""
    laws, spec, sweep = fit.laws, asked.spec, asked.sweep
    if laws is None:
        return Finding(Reason.LAWS_UNREADABLE, "laws.json is missing.")
    try:
        query = _query(spec, sweep, result)
        found = predict(laws, query)
    except ValueError as error:
        return Finding(Reason.INVALID_SPEC, str(error), stalled=True)
    if not isinstance(found, Prediction):
        return Finding(*_refused_in_words(found), stalled=True)
    lengths = sweep.data.sequence_length, target_length(spec, sweep)
    prediction = for_length(found, spec.batch_size_multiple_of, *lengths)
    status = _answer_status(asked, result, prediction, fit)
    return Answer(laws, query, found, prediction, status, _in_words(prediction))


# ------------------------------------------------------------------------------------ what they say


ROUTES: Final[dict[Route, str]] = {
    "iso-loss": "iso-loss laws",
    "surface": "joint surface",
    "fixed-batch": "law at that batch size",
}
"""What answers, in words."""


def _query(
    spec: api.HyperparamPredictionSpec,
    sweep: api.ScalingSweepSpec,
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
        params=_target_parameters(spec, result),
        pretraining_tokens=float(spec.pretraining_tokens) if spec.pretraining_tokens else None,
        pretraining_learning_rate=float(spec.pretraining_learning_rate)
        if spec.pretraining_learning_rate
        else None,
        composition=spec.composition,
        batch_size=None if spec.batch_size is None else spec.batch_size * ratio,
        batch_size_tolerance=float(spec.batch_size_tolerance)
        if spec.batch_size_tolerance
        else None,
        round_to=spec.batch_size_multiple_of * ratio,
        max_extrapolation=float(spec.max_extrapolation) if spec.max_extrapolation else None,
    )


def target_length(spec: api.HyperparamPredictionSpec, sweep: api.ScalingSweepSpec) -> int:
    """Tokens per sequence of the planned run."""
    return spec.target_sequence_length or sweep.data.sequence_length


def _target_parameters(
    spec: api.HyperparamPredictionSpec, result: EvaluationResult | None
) -> float | None:
    """Active parameters of the target: measured, or from the spec."""
    if result is not None:
        return float(result.parameters.active)
    return float(spec.target_parameters) if spec.target_parameters else None


def _in_words(prediction: Prediction) -> str:
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


def _refused_in_words(refused: Refused) -> tuple[RefusalReason, str]:
    """Why the laws do not answer. A refused law is named by its own reason, which says what to change about the sweep."""
    first = refused.refusals[0]
    reason = RefusalReason(str(first.figures.get("law_reason", first.reason)))
    return reason, " ".join(refusal.message for refusal in refused.refusals)


# --------------------------------------------------------------------------- how the status shows it


def _answer_status(
    asked: AcceptedPrediction,
    result: EvaluationResult | None,
    prediction: Prediction,
    fit: FitOutcome,
) -> api.HyperparamPredictionStatus:
    """The status of an answer, without its initial loss."""
    spec, sweep, reference, unnoticed = asked.spec, asked.sweep, asked.reference, asked.unnoticed
    distance = prediction.extrapolation
    params, length = _target_parameters(spec, result), target_length(spec, sweep)
    return api.HyperparamPredictionStatus(
        equivalent_flops=law_status.interval_status(prediction.equivalent_flops),
        planned_flops=precise(prediction.cpt_flops),
        total_flops=law_status.interval_status(prediction.total_flops),
        target_loss=law_status.interval_status(prediction.target_loss, loss),
        learning_rate=law_status.interval_status(prediction.learning_rate, learning_rate),
        batch_size=law_status.interval_status(prediction.batch_size, batch_size),
        batch_size_tokens=batch_size(prediction.batch_size_tokens.value),
        batch_size_cost=law_status.interval_status(prediction.batch_size_cost),
        affordable_batch_sizes=_affordable(prediction.affordable),
        expected_regret=statuses.ExpectedRegretStatus(
            nats=precise(prediction.expected_regret),
            planned_share=precise(
                prediction.expected_regret_flops
                / (prediction.cpt_flops or prediction.total_flops.value)
            ),
        ),
        search_cost=search_cost_status(sweep, reference.status, prediction.cpt_flops),
        extrapolation=statuses.ExtrapolationStatus(
            compute_factor=precise(distance.compute_factor),
            loss_distance=loss(distance.loss_distance),
            parameters_factor=precise(distance.params_factor),
        ),
        variants=tuple(
            _variant(name, point) for name, point in sorted(prediction.variants.items())
        ),
        second_opinions=second_opinions(prediction, params, length),
        warnings=texts(
            [*_warnings(result), *([unnoticed] if unnoticed else []), *prediction.warnings]
        ),
        sweep_generation=reference.generation,
        sweep_uid=reference.uid,
        laws_sha256=fit.laws_sha256,
        ledger_sha256=fit.ledger_sha256,
    )


def _affordable(found: BatchSizeRange | None) -> statuses.BatchSizeRangeStatus | None:
    if found is None:
        return None
    return statuses.BatchSizeRangeStatus(
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
    spec: api.ScalingSweepSpec, status: Mapping[str, Any], cpt_flops: float | None
) -> statuses.SearchCostStatus | None:
    """The sweep compared with a search on the target with the planned budget, both as 6 N D; None: one is unknown."""
    try:
        cost = search_cost(
            sweep_flops=float(status.get("plannedFlops", "")),
            direct_runs=spec.direct_runs,
            run_flops=float(cpt_flops or 0),
        )
    except ValueError:
        return None
    return statuses.SearchCostStatus(
        sweep_flops=precise(cost.proxy_flops),
        direct_flops=precise(cost.direct_flops),
        direct_runs=spec.direct_runs,
        saving=precise(cost.saving),
        planned_share=precise(cost.share_of_run),
    )


def second_opinions(
    prediction: Prediction, params: float | None, sequence_length: int
) -> tuple[statuses.VariantStatus, ...]:
    """The published laws that have something to say."""
    published, _ = published_opinions(total_flops=prediction.total_flops.value, params=params)
    opinions = [
        statuses.VariantStatus(
            name=opinion.name,
            learning_rate=learning_rate(opinion.learning_rate),
            batch_size=batch_size(opinion.batch_size(sequence_length)),
            total_flops=number(prediction.total_flops.value),
        )
        for opinion in published
    ]
    return tuple(opinions[:MAX_ENTRIES])


def _variant(name: str, point: Point) -> statuses.VariantStatus:
    return statuses.VariantStatus(
        name=name,
        learning_rate=learning_rate(point.learning_rate.value),
        batch_size=batch_size(point.batch_size.value),
        total_flops=number(point.total_flops),
    )


# ------------------------------------------------------------------------------ the published answer


def publication(
    observed: ObservedPrediction, status: api.HyperparamPredictionStatus
) -> ConfigMapRequest | None:
    """The ConfigMap to publish; None if none is wanted, or another owner has its name."""
    if observed.config_map_foreign:
        return None
    name = _wanted_name(observed)
    return ConfigMapRequest(name, published_data(status)) if name else None


def withdrawals(
    observed: ObservedPrediction, status: api.HyperparamPredictionStatus
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


def says_otherwise(data: Mapping[str, str], status: api.HyperparamPredictionStatus) -> bool:
    """Whether published data have numbers that are not the answer of the status."""
    numbers = _published_numbers(status)
    return "learningRate" in data and not (numbers and numbers.items() <= data.items())


def _wanted_name(observed: ObservedPrediction) -> str | None:
    """The name to publish under; empty: none is asked for. None: the spec is invalid."""
    if isinstance(observed.spec, InvalidSpec):
        return None
    publish = observed.spec.publish
    return publish.config_map_name if publish else ""


def published_data(status: api.HyperparamPredictionStatus) -> dict[str, str]:
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
    numbers = _published_numbers(status)
    if ready.status != "True" or not numbers:
        return data
    return data | {"stale": "true" if stale.status == "True" else "false"} | numbers


def _published_numbers(status: api.HyperparamPredictionStatus) -> dict[str, str]:
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


# ------------------------------------------------------------------------------------------ its page


def answer_page(
    asked: AcceptedPrediction, answer: Answer, status: api.HyperparamPredictionStatus
) -> tuple[AnswerPage | None, float]:
    """The page of an answer to draw now, and in how many seconds the next is due, infinite for none.

    The first and that of a verdict are drawn at once, others a minute later at the earliest, if the answer or its
    verdict has changed. It shows the laws as they were fitted, and needs nothing of the store.
    """
    observed, reference = asked.observed, asked.reference
    shows = _shown(status)
    if shows == observed.page_shows:
        return None, math.inf
    waits = bool(observed.page_shows) and not _has_new_verdict(observed, status)
    if waits and observed.page_seconds < PAGE_SECONDS:
        return None, PAGE_SECONDS - observed.page_seconds
    page = AnswerPage(
        inputs=shows,
        ledger_sha256=status.ledger_sha256,
        laws_path=layout.laws_in(layout.sweep_folder(reference.name, reference.uid)),
        report_path=layout.report_in(layout.prediction_folder(observed.name, observed.uid)),
        provisional=waits,
        laws=answer.laws,
        prediction=answer.prediction,
        initial_loss=float(answer.query.initial_loss or 0),
        parameters=answer.query.params,
        resource={
            "spec": asked.spec.model_dump(
                by_alias=True,
                exclude_none=True,
                include={"target_sequence_length": True, "validation": {"tolerance": True}},
            ),
            "status": status.document(),
        },
    )
    return page, math.inf


def _has_new_verdict(observed: ObservedResource, status: api.HyperparamPredictionStatus) -> bool:
    """Whether the answer is judged now: who reads the verdict and opens the page is to find it there."""
    before = observed.previous_conditions.get(VALIDATED)
    now = next((each for each in status.conditions if each.type == VALIDATED), None)
    if now is None or not is_verdict(now.status, now.reason):
        return False
    return before is None or before.reason != now.reason


def _shown(status: api.HyperparamPredictionStatus) -> str:
    """What the page of an answer shows, without the times of the conditions."""
    conditions = [[c.type, c.status, c.reason, c.message] for c in status.conditions]
    shown = status.model_copy(
        update={"conditions": (), "report_uri": "", "observed_generation": 0}
    )
    return content_key([shown.document(), conditions])
