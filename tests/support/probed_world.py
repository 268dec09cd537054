"""A FakeWorld whose points are the probes of a prediction, driven through decide_prediction."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from isoloss_contract.reading import ABSENT
from isoloss_operator.api import ScalingSweepStatus
from isoloss_operator.decide.observation import ObservedPrediction, ObservedProbes
from isoloss_operator.decide.plans import SweepPlan, TaskWrites
from isoloss_operator.decide.prediction import decide_prediction
from isoloss_operator.decide.prediction_view import prediction_view
from isoloss_operator.decide.reads import probe_reads
from isoloss_operator.decide.validation import PlannedProbes, planned_probes
from isoloss_operator.planning.parameters import parameter_counts
from tests.support.builders import UID, parsed, sweep_spec
from tests.support.fake_world import FakeWorld, Killed
from tests.support.predictions import (
    evaluation,
    observed,
    parsed_prediction,
    prediction_spec,
    sweep,
)
from tests.support.published_configs import TOY_CHECKPOINT

PATIENT = {"retriesPerPoint": 20, "maxFailedPoints": 0}


@dataclass
class ProbedWorld(FakeWorld):
    """Everything outside the operator, whose prediction has its answer already."""

    validation: dict[str, Any] = field(
        default_factory=lambda: {"tokensShare": "0.3", "parallelism": 3}
    )

    laws: dict[str, Any] = field(default_factory=dict)
    """What the sweep's spec says of evaluations and fits."""

    def __post_init__(self) -> None:
        self.spec = sweep_spec(
            failurePolicy=PATIENT, parallelism=self.validation["parallelism"], **self.laws
        )
        self.tasks = {}
        view = prediction_view(self.prediction())
        assert view is not None
        planned = planned_probes(view)
        assert isinstance(planned, PlannedProbes)
        self.points = {point.key: point for point in planned.points}

    def run_operator(self) -> None:
        """One pass, or a part of it."""
        plan = decide_prediction(self.prediction())
        try:
            writes = plan.probes or TaskWrites()
            self._apply(SweepPlan(status=ScalingSweepStatus(), **vars(writes)))
        except Killed:
            return
        self.status = plan.status.model_dump(mode="json", by_alias=True, exclude_none=True)

    def prediction(self) -> ObservedPrediction:
        """What the shell would observe now. Its name and uid are those of the Jobs of FakeWorld."""
        found = observed(
            name="demo",
            uid=UID,
            now=self.now,
            spec=parsed_prediction(prediction_spec(validation=self.validation)),
            status=self.status,
            sweep=sweep(spec=parsed(self.spec)),
            evaluation=evaluation(parameters=parameter_counts(TOY_CHECKPOINT)),
            jobs=tuple(self.jobs.values()),
            orphaned_pods=tuple(self.orphaned),
            probes=ObservedProbes(
                config=TOY_CHECKPOINT, ledger=ABSENT if self.ledger is None else self.ledger
            ),
        )
        view = prediction_view(found)
        assert view is not None
        reads = probe_reads(view, frozenset(self.results))
        wanted = (*reads.results, *reads.results_of_failed)
        results = {key: self.results[key] for key in wanted if key in self.results}
        # As the shell, which has made it by then.
        answer = view.prediction_in_sweep_sequences
        return replace(found, probes=replace(found.probes, prediction=answer, results=results))
