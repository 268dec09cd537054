"""The published form of an answer: a ConfigMap for the next step of a pipeline."""

from __future__ import annotations

from isoloss_operator.api import HyperparamPredictionStatus
from isoloss_operator.decide.conditions import READY, STALE
from isoloss_operator.decide.observation import ObservedPrediction
from isoloss_operator.decide.plans import ConfigMapDeletion, ConfigMapRequest
from isoloss_operator.planning.specs import InvalidSpec


def publication(
    observed: ObservedPrediction, status: HyperparamPredictionStatus
) -> ConfigMapRequest | None:
    """The ConfigMap to publish; None if none is wanted, or another owner has its name."""
    if observed.config_map_foreign:
        return None
    name = _wanted_name(observed)
    return ConfigMapRequest(name, published_data(status)) if name else None


def withdrawals(observed: ObservedPrediction) -> tuple[ConfigMapDeletion, ...]:
    """What was published under names that the spec no longer asks for: nobody updates it.

    An invalid spec asks for nothing in particular, and takes nothing away.
    """
    wanted = _wanted_name(observed)
    if wanted is None:
        return ()
    return tuple(
        ConfigMapDeletion(name, uid)
        for name, uid in sorted(observed.published.items())
        if name != wanted
    )


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
    rate_status, batch = status.learning_rate, status.batch_size
    if ready.status != "True" or rate_status is None or batch is None:
        return data
    return data | {
        "stale": "true" if stale.status == "True" else "false",
        "learningRate": rate_status.value or "",
        "learningRateLow": rate_status.low or "",
        "learningRateHigh": rate_status.high or "",
        "batchSize": batch.value or "",
        "batchSizeLow": batch.low or "",
        "batchSizeHigh": batch.high or "",
        "batchSizeTokens": status.batch_size_tokens,
        "lawsSha256": status.laws_sha256,
    }
