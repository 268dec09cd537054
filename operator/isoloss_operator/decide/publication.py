"""How an answer is published, and when its page is drawn."""

import math
from collections.abc import Mapping

from isoloss.validation import is_verdict
from isoloss_contract import layout
from isoloss_contract.records import content_key
from isoloss_operator.api import HyperparamPredictionStatus
from isoloss_operator.decide.answer import Answer
from isoloss_operator.decide.conditions import READY, STALE, VALIDATED
from isoloss_operator.decide.fits import PAGE_SECONDS, AnswerPage
from isoloss_operator.decide.observation import ObservedPrediction, ObservedResource
from isoloss_operator.decide.plans import ConfigMapDeletion, ConfigMapRequest
from isoloss_operator.decide.prediction_checks import AcceptedPrediction
from isoloss_operator.planning.specs import InvalidSpec

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


# ------------------------------------------------------------------------------------------ its page


def answer_page(
    asked: AcceptedPrediction, answer: Answer, status: HyperparamPredictionStatus
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


def _has_new_verdict(observed: ObservedResource, status: HyperparamPredictionStatus) -> bool:
    """Whether the answer is judged now: who reads the verdict and opens the page is to find it there."""
    before = observed.previous_conditions.get(VALIDATED)
    now = next((each for each in status.conditions if each.type == VALIDATED), None)
    if now is None or not is_verdict(now.status, now.reason):
        return False
    return before is None or before.reason != now.reason


def _shown(status: HyperparamPredictionStatus) -> str:
    """What the page of an answer shows, without the times of the conditions."""
    conditions = [[c.type, c.status, c.reason, c.message] for c in status.conditions]
    shown = status.model_copy(
        update={"conditions": (), "report_uri": "", "observed_generation": 0}
    )
    return content_key([shown.document(), conditions])
