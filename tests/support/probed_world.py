"""A FakeWorld whose points are the probes of a prediction that has its answer already."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from isoloss_contract import layout
from isoloss_operator.cluster.client import PREDICTION, Kind
from isoloss_operator.decide.fits import FitOutcome
from isoloss_operator.decide.observation import ObservedPrediction
from isoloss_operator.decide.prediction_view import prediction_view
from isoloss_operator.decide.validation import PlannedProbes, planned_probes
from isoloss_operator.planning.parameters import parameter_counts
from isoloss_operator.planning.points import PlannedPoint
from isoloss_operator.reconcile.prediction import PredictionSteps
from tests.support.builders import sweep_spec
from tests.support.fake_world import FakeWorld
from tests.support.predictions import (
    CHECKPOINT,
    CONFIG,
    STAMP,
    evaluation,
    fit,
    prediction_spec,
    sweep_body,
)
from tests.support.published_configs import TOY_CHECKPOINT

PATIENT = {"retriesPerPoint": 20, "maxFailedPoints": 0}


def probes_seen(observed: ObservedPrediction) -> dict[str, PlannedPoint]:
    """The probes that a pass plans, by key."""
    view = prediction_view(observed)
    found = None if view is None else planned_probes(view)
    planned = found.points if isinstance(found, PlannedProbes) else ()
    return {point.key: point for point in planned}


@dataclass
class ProbedWorld(FakeWorld):
    """Everything outside the operator."""

    validation: dict[str, Any] = field(
        default_factory=lambda: {"tokensShare": "0.3", "parallelism": 3}
    )
    laws: dict[str, Any] = field(default_factory=dict)
    """What the sweep's spec says of evaluations and fits."""
    kind: ClassVar[Kind] = PREDICTION
    steps = PredictionSteps

    def __post_init__(self) -> None:
        self.spec = sweep_spec(
            failurePolicy=PATIENT, parallelism=self.validation["parallelism"], **self.laws
        )
        self.points, self.tasks = {}, {}
        measured = evaluation(parameters=parameter_counts(TOY_CHECKPOINT))
        self.stamps = {CHECKPOINT: STAMP}
        self.evaluations = {layout.evaluation_result(CONFIG.key): measured}

    @property
    def asked_spec(self) -> dict[str, Any]:
        return prediction_spec(validation=self.validation)

    @property
    def sweep(self) -> Mapping[str, Any]:
        return sweep_body(self.spec)

    @property
    def stored_fit(self) -> FitOutcome:
        return fit()

    def _observed(self, observed: ObservedPrediction) -> None:
        self.points |= probes_seen(observed)
