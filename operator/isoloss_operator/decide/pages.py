"""When a page is drawn that no fit draws: that of a sweep on the way, and that of an answer."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Final

from isoloss_contract import layout
from isoloss_contract.ledger import Ledger
from isoloss_contract.records import content_key
from isoloss_operator.api import HyperparamPredictionStatus, ScalingSweepSpec
from isoloss_operator.decide.answers import target_parameters
from isoloss_operator.decide.conditions import Finding
from isoloss_operator.decide.fit_requests import shown_of, watched_now
from isoloss_operator.decide.fits import AnswerPage, SweepPage
from isoloss_operator.decide.observation import ObservedResource, ObservedSweep
from isoloss_operator.decide.prediction_view import PredictionView
from isoloss_operator.planning.points import PlannedPoint

PAGE_SECONDS: Final = 60.0
"""Between two pages of one resource."""


def has_page(observed: ObservedResource, uri: str) -> bool:
    """Whether a page was drawn there, by this process or, as the status has it, by an earlier one."""
    return observed.page_drawn or observed.status.get("reportUri") == uri


def sweep_page(
    observed: ObservedSweep,
    spec: ScalingSweepSpec,
    ledger: Ledger,
    points: Mapping[str, PlannedPoint],
) -> SweepPage | None:
    """The page of a sweep on the way, to draw now: from the first report of a point on, once a minute at most, and
    only if it would show something new. The fits draw the others."""
    if observed.page_seconds < PAGE_SECONDS or observed.fit_rests:
        return None
    reported = {key: each.trained_tokens for key, each in observed.progress.items()}
    if not any(reported.values()) and not any(record.tokens for record in ledger.points):
        return None
    shows = content_key([ledger.digest, reported])
    if shows == observed.page_shows:
        return None
    return SweepPage(
        **shown_of(observed, spec, ledger, points),
        inputs=shows,
        laws=observed.fit.laws if observed.fit is not None else None,
        watched=watched_now(observed, ledger),
    )


def answer_page(
    view: PredictionView, status: HyperparamPredictionStatus
) -> tuple[AnswerPage | None, float]:
    """The page of an answer to draw now, and in how many seconds the next is due, infinite for none.

    The first is drawn at once, the next a minute later at the earliest, if the answer, its probes or the verdict
    have changed. It shows the laws as they were fitted, and needs nothing of the store.
    """
    answer, fit, observed = view.prediction_in_sweep_sequences, view.fit, view.observed
    if isinstance(answer, Finding) or isinstance(fit, Finding) or fit.laws is None:
        return None, math.inf
    shows = _shown(status)
    if shows == observed.page_shows:
        return None, math.inf
    if observed.page_shows and observed.page_seconds < PAGE_SECONDS:
        return None, PAGE_SECONDS - observed.page_seconds
    initial_loss = view.result.loss if view.result is not None else view.spec.initial_loss
    page = AnswerPage(
        inputs=shows,
        ledger_sha256=fit.ledger_sha256,
        laws_path=layout.sweep_laws(view.reference.name, view.reference.uid),
        report_path=layout.report_in(layout.prediction_folder(observed.name, observed.uid)),
        laws=fit.laws,
        prediction=answer,
        initial_loss=float(initial_loss or 0),
        parameters=target_parameters(view.spec, view.result),
        resource={"kind": "HyperparamPrediction", "status": status.document()},
    )
    return page, math.inf


def _shown(status: HyperparamPredictionStatus) -> str:
    """What the page of an answer shows, without the times of the conditions."""
    said = [[c.type, c.status, c.reason, c.message] for c in status.conditions]
    shown = status.model_copy(
        update={"conditions": (), "report_uri": "", "observed_generation": 0}
    )
    return content_key([shown.document(), said])
