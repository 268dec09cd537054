"""When the page of an answer is drawn, and what it shows."""

from __future__ import annotations

import math

from isoloss.validation import is_verdict
from isoloss_contract import layout
from isoloss_contract.records import content_key
from isoloss_operator.api import HyperparamPredictionStatus
from isoloss_operator.decide.conditions import VALIDATED, Finding
from isoloss_operator.decide.fits import PAGE_SECONDS, AnswerPage
from isoloss_operator.decide.observation import ObservedResource
from isoloss_operator.decide.prediction_status import target_parameters
from isoloss_operator.decide.prediction_view import PredictionView


def answer_page(
    view: PredictionView, status: HyperparamPredictionStatus
) -> tuple[AnswerPage | None, float]:
    """The page of an answer to draw now, and in how many seconds the next is due, infinite for none.

    The first and that of a verdict are drawn at once, others a minute later at the earliest, if the answer or its
    verdict has changed. It shows the laws as they were fitted, and needs nothing of the store.
    """
    answer, fit, observed = view.prediction, view.fit, view.observed
    if isinstance(answer, Finding) or isinstance(fit, Finding) or fit.laws is None:
        return None, math.inf
    shows = _shown(status)
    if shows == observed.page_shows:
        return None, math.inf
    waits = bool(observed.page_shows) and not _has_new_verdict(observed, status)
    if waits and observed.page_seconds < PAGE_SECONDS:
        return None, PAGE_SECONDS - observed.page_seconds
    initial_loss = view.result.loss if view.result is not None else view.spec.initial_loss
    page = AnswerPage(
        inputs=shows,
        ledger_sha256=fit.ledger_sha256,
        laws_path=layout.laws_in(layout.sweep_folder(view.reference.name, view.reference.uid)),
        report_path=layout.report_in(layout.prediction_folder(observed.name, observed.uid)),
        provisional=waits,
        laws=fit.laws,
        prediction=answer,
        initial_loss=float(initial_loss or 0),
        parameters=target_parameters(view.spec, view.result),
        resource={
            "spec": {"targetSequenceLength": view.spec.target_sequence_length},
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
