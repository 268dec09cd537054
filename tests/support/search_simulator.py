"""A Simulator whose points train on the synthetic surface, and whose fits decide the steps of a search."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from isoloss.laws import Run
from isoloss_contract.ledger import PointState
from isoloss_operator.decide.fits import FitOutcome, FitRequest, SearchStep
from isoloss_operator.fitting.fit_process import search_step
from isoloss_operator.planning.points import PlannedPoint, plan_points
from tests.support.builders import manifest, placed, sweep_spec
from tests.support.models import example_model
from tests.support.simulator import Simulator
from tests.support.synthetic_trainer import synthetic_loss

EVALUATIONS = 24


def searched_spec(**changes: Any) -> dict[str, Any]:
    """Two sizes with a grid of 5 x 5 each about the true optimum, and a sequential search."""
    spec = {
        "proxies": [
            {
                "name": "tiny",
                "model": {"config": example_model("dense-tiny")},
                "tokens": 4_000_000,
            },
            {
                "name": "small",
                "model": {"config": example_model("dense-small")},
                "tokens": 8_000_000,
            },
        ],
        "grid": {
            "batchSizes": [4, 8, 16, 32, 64],
            "learningRates": ["1e-3", "2e-3", "4e-3", "8e-3", "1.6e-2"],
        },
        "search": {"strategy": "Sequential", "extendGrid": {"maxPoints": 4}},
        "parallelism": 30,
        "evaluation": {"firstTokens": 100_000},
        "failurePolicy": {"retriesPerPoint": 20, "maxFailedPoints": 0, "stallSeconds": 86_400},
    }
    return sweep_spec(**{**spec, **changes})


NO_GRID: dict[str, Any] = {
    "proxies": [
        {"name": "small", "model": {"config": example_model("dense-100m")}, "tokens": 4_000_000},
        {"name": "large", "model": {"config": example_model("dense-500m")}, "tokens": 8_000_000},
    ],
    "grid": None,
    "search": {"strategy": "Sequential"},
}
"""Changes: the true optimum is inside the lattice of the smaller size, and just outside that of the larger."""

STEPS: dict[str, SearchStep] = {}
"""By what they follow from: simulators that come to the same question get the same step, and it takes its seconds once."""


@dataclass
class SearchSimulator(Simulator):
    """Everything outside the operator."""

    spec: dict[str, Any] = field(default_factory=searched_spec)
    on_grids: dict[str, dict[str, PlannedPoint]] = field(default_factory=dict)

    def _on_grids(self, spec: dict[str, Any]) -> dict[str, PlannedPoint]:
        """With what the search has added."""
        added = () if self.ledger is None else self.ledger.additions
        known = repr((spec, added))
        if known not in self.on_grids:
            planned = plan_points(placed(spec), manifest(spec), added)
            self.on_grids[known] = {point.key: point for point in planned}
        return self.on_grids[known]

    def _losses(self, point: PlannedPoint, tokens: int) -> dict[str, float]:
        place = (point.batch_size, point.learning_rate, point.seed)
        loss = synthetic_loss(point.proxy.parameters.active, float(tokens), *place)
        return {"loss": loss, "averaged_loss": loss}

    def _fitted(self, request: FitRequest) -> FitOutcome:
        plain = super()._fitted(request)
        if request.search is None or plain.unreadable:
            return plain
        if request.inputs not in STEPS:
            runs = {point.key: self._run(point.key) for point in request.points}
            STEPS[request.inputs] = search_step(request.search, runs, request.options)
        step = STEPS[request.inputs]
        return FitOutcome(request.inputs, laws=None, points=len(request.points), step=step)

    def runs(self) -> list[Run]:
        """Of all points with a result."""
        assert self.ledger is not None
        return [self._run(r.key) for r in self.ledger.points if r.trained_for]

    def _run(self, key: str) -> Run:
        assert self.ledger is not None
        record, point = self.ledger.by_key[key], self.points[key]
        params = point.proxy.parameters.active
        first = point.config.evaluation.first_tokens
        tokens = np.geomspace(first, record.tokens, EVALUATIONS)
        place = (record.batch_size, record.learning_rate, point.seed)
        return Run(
            name=record.name,
            params=float(params),
            batch_size=float(record.batch_size),
            sequence_length=point.config.sequence_length,
            learning_rate=record.learning_rate,
            tokens=tokens,
            losses=np.array([synthetic_loss(params, float(t), *place) for t in tokens]),
            diverged=record.state is PointState.DIVERGED,
            finished=record.is_finished,
        )
