"""A Simulator whose Jobs are the evaluation of a prediction, and whose sweep changes as it likes."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any, ClassVar, Final

from isoloss.laws import FitOptions, Laws, fit_laws
from isoloss_contract import layout
from isoloss_contract.ledger import Ledger
from isoloss_contract.reading import ABSENT, Read, Unreadable
from isoloss_contract.records import EvaluateTask, Outcome, PointResult
from isoloss_operator.cluster.client import PREDICTION, Kind
from isoloss_operator.cluster.jobs import CreateRefused
from isoloss_operator.decide.checks import accepted_sweep
from isoloss_operator.decide.fits import FitOutcome
from isoloss_operator.decide.jobs import store_label
from isoloss_operator.decide.observation import (
    ObservedAnswer,
    ObservedCheckpoint,
    ObservedJob,
    ObservedPod,
    ObservedPrediction,
)
from isoloss_operator.decide.plans import JobRequest
from isoloss_operator.decide.reads import planned_tasks
from isoloss_operator.decide.sweep import decide_sweep
from isoloss_operator.planning.models import parameter_counts
from isoloss_operator.planning.points import PlannedPoint
from isoloss_operator.reconcile.prediction import PredictionSteps
from tests.support.builders import STORE, UID, after, observed, result, sweep_spec
from tests.support.predictions import (
    answer_status,
    evaluation,
    fit,
    parsed_prediction,
    prediction_spec,
    refused,
    sweep_body,
)
from tests.support.published_configs import TOY_CHECKPOINT
from tests.support.simulator import Simulator
from tests.support.synthetic_runs import fitted_laws, synthetic_runs

CHECKPOINTS: Final = ("s3://models/dense-8b", "s3://models/dense-70b")
COUNTS: Final = parameter_counts(TOY_CHECKPOINT)
RAW: Final = sweep_spec(failurePolicy={"retriesPerPoint": 2, "maxFailedPoints": 1})
STORES: Final = (STORE, "s3://elsewhere/lm")
"""Of the sweeps that it may refer to."""


PROBES: Final = "probes"
"""Name of the sweep that judges."""
TOKENS: Final = round(1e19 / (6 * COUNTS.active))


def probes_spec(**changes: Any) -> dict[str, Any]:
    """A sweep around the answer of the prediction."""
    size = {
        "name": "near",
        "checkpoint": {"uri": CHECKPOINTS[0]},
        "tokens": TOKENS,
        "grid": {"around": {"prediction": "demo"}},
    }
    return sweep_spec(**{"proxies": [size], "parallelism": 9, **changes})


@dataclass(frozen=True)
class Probes:
    """A sweep of continued runs as API server and store have it."""

    raw: Mapping[str, Any]
    status: Mapping[str, Any]
    ledger: Read[Ledger]
    generation: int = 1

    @property
    def body(self) -> dict[str, Any]:
        """As the API server has it."""
        metadata = {"uid": UID, "generation": self.generation}
        return {"metadata": metadata, "spec": self.raw, "status": self.status}

    def said(self, **conditions: str) -> Probes:
        """With these statuses of its conditions."""
        stated = [
            {**each, "status": conditions.get(each["type"], each["status"])}
            for each in self.status["conditions"]
        ]
        return replace(self, status={**self.status, "conditions": stated})


@cache
def probes_at(rate: str, batch: str, better: float, stamp: str, *, done: bool) -> Probes:
    """Points around an answer, planned and written by the operator's own decision.

    `better` is the learning rate with the lowest loss, in units of the answer's; 0: the points diverge.
    """
    raw = probes_spec()
    answer = answer_status(rate, batch)
    asked = parsed_prediction(prediction_spec(batchSizeMultipleOf=1, sweepRef={"name": "laws"}))
    simulator = observed(
        raw,
        name=PROBES,
        checkpoints={CHECKPOINTS[0]: ObservedCheckpoint(stamp, TOY_CHECKPOINT)},
        answers={"demo": ObservedAnswer(1, asked, answer)},
    )
    simulator = after(simulator, decide_sweep(simulator))
    planned = planned_tasks(accepted_sweep(simulator))
    assert planned is not None
    if done:
        found = {
            point.key: _probe_result(point, better * float(rate), float(batch))
            for point in planned.points.values()
        }
        simulator = after(simulator, decide_sweep(replace(simulator, results=found)))
    return Probes(raw, simulator.status, simulator.ledger)


def _probe_result(point: PlannedPoint, best_rate: float, best_batch: float) -> PointResult:
    if not best_rate:
        return result(point, outcome=Outcome.DIVERGED, loss=None, averaged_loss=None)
    off = math.log(point.learning_rate / best_rate), math.log(point.batch_size / best_batch)
    loss = 2.5 + 0.08 * off[0] ** 2 + 0.04 * off[1] ** 2
    return result(point, loss=loss, averaged_loss=loss)


@cache
def laws_called(name: str) -> Laws:
    """Laws "a", those of the same runs at twice the learning rates, and those that are no final laws."""
    if name == "twice a":
        runs = (replace(run, learning_rate=2 * run.learning_rate) for run in synthetic_runs())
        return fit_laws(tuple(runs), FitOptions(bootstrap_samples=20))
    return refused() if name == "refused" else fitted_laws(provisional=name == "provisional")


KEPT: Final = ("ledger", "ledger_is_damaged", "evaluations")
"""Fields that are of one store."""


@dataclass
class PredictionSimulator(Simulator):
    """Everything outside the operator. `spec` is the sweep's, `asked` the prediction's."""

    asked: dict[str, Any] = field(
        default_factory=lambda: prediction_spec(
            publish={"configMapName": "answer"},
        )
    )
    sweep_uid: str = "uid-1"
    """Empty: there is no sweep."""
    sweep_generation: int = 1
    sweep_seen: int = 1
    """Generation that the operator has processed."""
    sweep_valid: bool = True
    laws: str = "a"
    """Empty: it trains and has none. See laws_called."""
    is_prepared: bool = True
    """Whether the sweep's corpus is in the store."""
    stamps: dict[str, Read[str]] = field(
        default_factory=lambda: {uri: str(n) * 64 for n, uri in enumerate(CHECKPOINTS, 1)}
    )
    """Of the files of each checkpoint."""
    evaluated: dict[str, EvaluateTask] = field(default_factory=dict)
    """What each evaluate Job measures."""
    store: str = STORE
    """Of the sweep that is referred to."""
    elsewhere: dict[str, dict[str, Any]] = field(default_factory=dict)
    """KEPT of the other stores."""
    probes: Probes | None = None
    """The sweep that judges the answer; None: there is none."""
    observed: ObservedPrediction | None = None
    """What the last pass has seen."""
    kind: ClassVar[Kind] = PREDICTION
    steps = PredictionSteps

    def __post_init__(self) -> None:
        self.spec = RAW

    @property
    def is_final(self) -> bool:
        """Whether the sweep's laws may answer."""
        return self.laws in ("a", "twice a")

    def edit(self, **changes: Any) -> None:
        """Apply a spec with these top-level fields; None removes one."""
        asked = {**self.asked, **changes}
        self.asked = {name: value for name, value in asked.items() if value is not None}
        self.generation += 1

    def turn_to(self, store: str) -> None:
        """Refer to another sweep, in this store."""
        self.edit(sweepRef={"name": f"of {store}"})
        self._switch(store)

    def _switch(self, store: str) -> None:
        if store == self.store:
            return
        self.elsewhere[self.store] = {name: getattr(self, name) for name in KEPT}
        fresh = PredictionSimulator()
        kept = self.elsewhere.pop(store, {name: getattr(fresh, name) for name in KEPT})
        vars(self).update(kept)
        self.store = store

    @contextlib.contextmanager
    def _where_it_writes(self, job: ObservedJob) -> Iterator[None]:
        here, there = self.store, {store_label(uri): uri for uri in STORES}[job.store]
        self._switch(there)
        yield
        self._switch(here)

    # ----------------------------------------------------------------------------- the operator

    @property
    def asked_spec(self) -> dict[str, Any]:
        """Of the prediction."""
        return self.asked

    def sweep(self, name: str) -> Mapping[str, Any] | None:
        """The one of the laws, or the one that judges."""
        if name == PROBES:
            return None if self.probes is None else self.probes.body
        if not self.sweep_uid:
            return None
        said = ("True", "Fitted") if self.is_final else ("False", "Training")
        if self.laws == "refused":
            said = ("False", "NoCommonLossRange")
        raw = {**RAW, "storage": {"uri": self.store}} if self.sweep_valid else {}
        body = sweep_body(
            raw,
            *said,
            uid=self.sweep_uid,
            generation=self.sweep_generation,
            observed_generation=self.sweep_seen,
        )
        body["status"] |= {"lawsSha256": self.laws_sha256, "dataDigest": self.corpus.digest}
        return body

    def ledger_in(self, folder: str) -> Read[Ledger] | None:
        """Of the sweep that judges."""
        if not folder.startswith(f"sweeps/{PROBES}-"):
            return None
        return ABSENT if self.probes is None else self.probes.ledger

    def _observed(self, observed: Any) -> None:
        self.observed = observed

    @property
    def laws_sha256(self) -> str:
        """As the sweep's status has it."""
        return f"{len(self.laws):x}" * 64 if self.laws else ""

    @property
    def stored_fit(self) -> Read[FitOutcome]:
        """Of the sweep."""
        return fit(laws_called(self.laws), laws_sha256=self.laws_sha256) if self.laws else ABSENT

    def create(self, request: JobRequest) -> None:
        """A Job whose pod is still to start. Raises CreateRefused."""
        if self.refuses_jobs:
            raise CreateRefused(self.refuses_jobs, may_pass=self.refusal_may_pass)
        assert not self.asked.get("suspend"), "a Job starts in a suspended prediction"
        if request.name in self.jobs:
            return  # it is its own, and about to go
        task = request.task
        assert isinstance(task, EvaluateTask)
        key = task.config.key
        at_work = [j for j in self.jobs.values() if j.kind == "evaluate" and j.holds_a_slot]
        assert key not in {j.key for j in at_work}, "a checkpoint is measured twice at a time"
        self.evaluated[request.name] = task
        self.jobs[request.name] = ObservedJob(
            name=request.name,
            uid=f"{request.name}-{self.passes}",
            kind="evaluate",
            key=key,
            attempt=request.attempt,
            store=request.labels["isoloss.dev/store"],
            created=self.now,
            unfinished_pods=1,
            pod=ObservedPod(),
            generation=self.generation,
            template=request.labels["isoloss.dev/template"],
        )

    # ------------------------------------------------------------------------------ the cluster

    def _work(self, name: str, observed: ObservedJob, before: Any) -> None:
        if observed.working_since is None:
            begun = {"started": before, "working_since": before}
            self.jobs[name] = replace(observed, pod=ObservedPod(phase="Running"), **begun)

    def end(self, name: str, how: str) -> str:
        """The Job at work ends as one of ENDS says."""
        with self._where_it_writes(self.jobs[name]):
            return self._end_there(name, how)

    def _end_there(self, name: str, how: str) -> str:
        if how == "deleted by hand":
            del self.jobs[name]
            return how
        config = self.evaluated[name].config
        path = layout.evaluation_result(config.key)
        if how in ("succeeds", "diverges", "outlived"):
            loss = 3.0 + 0.1 * int(config.checkpoint_stamp[:1] or "5")
            self.evaluations[path] = evaluation(key=config.key, loss=loss, parameters=COUNTS)
        elif how == "bad result":
            self.evaluations[path] = Unreadable("loss: field required")
        return self._finish_as(name, how)
