"""An EditedWorld whose Jobs are the evaluation and the probes of a prediction, and whose sweep changes as it likes."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any, Final

from isoloss.laws import FitOptions, Laws, fit_laws
from isoloss_contract import layout
from isoloss_contract.reading import ABSENT, Read, Unreadable, value_of
from isoloss_contract.records import EvaluateTask, EvaluationResult, TrainTask
from isoloss_contract.store import StoreError
from isoloss_operator.api import ScalingSweepSpec
from isoloss_operator.cluster.jobs import CreateRefused
from isoloss_operator.decide import suspension
from isoloss_operator.decide.jobs.failures import progress_marks
from isoloss_operator.decide.jobs.requests import store_label
from isoloss_operator.decide.observation import (
    ObservedJob,
    ObservedPod,
    ObservedPrediction,
    ObservedProbes,
    ObservedReference,
    PublishedAnswer,
)
from isoloss_operator.decide.plans import (
    ConfigMapDeletion,
    JobRequest,
    PredictionPlan,
    TaskWrites,
)
from isoloss_operator.decide.prediction import decide_prediction
from isoloss_operator.decide.prediction_status import says_otherwise
from isoloss_operator.decide.prediction_view import PredictionView, needs_corpus, prediction_view
from isoloss_operator.decide.reads import (
    checkpoint_of_evaluation,
    evaluation_path,
    first_reads,
    needs_ledger,
    needs_probes,
    probe_reads,
)
from isoloss_operator.decide.validation import PlannedProbes, planned_probes
from isoloss_operator.planning.parameters import parameter_counts
from isoloss_operator.planning.points import PlannedPoint
from isoloss_operator.planning.specs import InvalidSpec, parse_prediction_spec
from tests.support.builders import STORE, manifest, sweep_spec
from tests.support.builders import parsed as parsed_sweep
from tests.support.edited_world import EditedWorld
from tests.support.ledgers import read_back
from tests.support.planted_laws import fitted_laws
from tests.support.planted_runs import planted_runs
from tests.support.predictions import evaluation, fit, prediction_spec, refused, sweep
from tests.support.published_configs import TOY_CHECKPOINT

CHECKPOINTS: Final = ("s3://models/dense-8b", "s3://models/dense-70b")
COUNTS: Final = parameter_counts(TOY_CHECKPOINT)
RAW: Final = sweep_spec(failurePolicy={"retriesPerPoint": 2, "maxFailedPoints": 1})
STORES: Final = (STORE, "s3://elsewhere/lm")
"""Of the sweeps that it may refer to."""
CORPUS: Final = manifest(RAW)
BEST_RATE: Final = 4e-4
"""Where probes have their lowest loss."""


@cache
def laws_called(name: str) -> Laws:
    """Laws "a", those of the same runs at twice the learning rates, and those that are no final laws."""
    if name == "twice a":
        runs = (replace(run, learning_rate=2 * run.learning_rate) for run in planted_runs())
        return fit_laws(tuple(runs), FitOptions(bootstrap_samples=20))
    return refused() if name == "refused" else fitted_laws(provisional=name == "provisional")


@cache
def spec_in(store: str) -> ScalingSweepSpec | InvalidSpec:
    """The sweep's, whose store this is."""
    return parsed_sweep({**RAW, "storage": {"uri": store}})


KEPT: Final = (
    *("ledger", "ledger_is_damaged", "results", "progress"),
    *("own_tokens", "others_tokens", "evaluations"),
)
"""Fields that are of one store."""


@dataclass
class EditedPrediction(EditedWorld):
    """Everything outside the operator. `spec` is the sweep's, `asked` the prediction's."""

    asked: dict[str, Any] = field(
        default_factory=lambda: prediction_spec(
            publish={"configMapName": "answer"},
            validation={"tokensShare": "1", "parallelism": 3},
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
    corpus_there: bool = True
    stamps: dict[str, Read[str]] = field(
        default_factory=lambda: {uri: str(n) * 64 for n, uri in enumerate(CHECKPOINTS, 1)}
    )
    """Of the files of each checkpoint."""
    evaluations: dict[str, Read[EvaluationResult]] = field(default_factory=dict)
    evaluated: dict[str, EvaluateTask] = field(default_factory=dict)
    """What each evaluate Job measures."""
    config_maps: dict[str, Mapping[str, str]] = field(default_factory=dict)
    """Data of the prediction's own."""
    taken: set[str] = field(default_factory=set)
    """Names of ConfigMaps that are others'."""
    refuses_config_maps: bool = False
    store: str = STORE
    """Of the sweep that is referred to."""
    elsewhere: dict[str, dict[str, Any]] = field(default_factory=dict)
    """KEPT of the other stores."""
    is_estimated: bool = False
    """Whether what was spent is not known to the last token."""
    probes: frozenset[str] = frozenset()
    """Keys of those that are planned."""

    def __post_init__(self) -> None:
        self.spec, self.kills = RAW, 0.0
        self.points: dict[str, PlannedPoint] = {}
        self.tasks: dict[str, TrainTask] = {}

    @property
    def planned(self) -> dict[str, PlannedPoint]:
        """The probes of the present answer."""
        return {key: self.points[key] for key in self.probes}

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
        fresh = EditedPrediction()
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

    def _decide(self, observed: ObservedPrediction) -> PredictionPlan:
        return decide_prediction(observed)

    def observe(self) -> ObservedPrediction:
        """As PredictionSteps does."""
        seen, memory = self._first_look(parse_prediction_spec, self.asked), self.memory
        wanted = (self.asked.get("publish") or {}).get("configMapName")
        observed = ObservedPrediction(
            **vars(seen),
            sweep=self._reference(),
            config_map_foreign=wanted in self.taken,
            published={
                name: PublishedAnswer(name, data) for name, data in self.config_maps.items()
            },
            publish_error=memory.publish_error,
            publish_error_may_pass=memory.publish_error_may_pass,
        )
        if first_reads(observed.sweep) is None:
            return observed
        if self.store_error:
            return replace(observed, store_error=self.store_error)
        return self._with_the_store(observed)

    def _reference(self) -> ObservedReference | None:
        if not self.sweep_uid:
            return None
        said = ("True", "Fitted") if self.is_final else ("False", "Training")
        if self.laws == "refused":
            said = ("False", "NoCommonLossRange")
        found = sweep(
            *said,
            uid=self.sweep_uid,
            generation=self.sweep_generation,
            observed_generation=self.sweep_seen,
            spec=spec_in(self.store) if self.sweep_valid else InvalidSpec([]),
        )
        told = {"lawsSha256": self.laws_sha256, "dataDigest": CORPUS.digest}
        return replace(found, status={**found.status, **told})

    @property
    def laws_sha256(self) -> str:
        """As the sweep's status has it."""
        return f"{len(self.laws):x}" * 64 if self.laws else ""

    def _with_the_store(self, observed: ObservedPrediction) -> ObservedPrediction:
        checkpoint = checkpoint_of_evaluation(observed)
        observed = replace(
            observed,
            manifest=CORPUS if self.corpus_there else ABSENT,
            checkpoint_stamp=self.stamps[checkpoint] if checkpoint else ABSENT,
        )
        if needs_corpus(observed):
            observed = replace(observed, corpus=CORPUS)
        laws = fit(laws_called(self.laws), laws_sha256=self.laws_sha256) if self.laws else ABSENT
        found = self.evaluations.get(evaluation_path(observed) or "", ABSENT)
        observed = replace(observed, evaluation=found, fit=laws)
        if needs_ledger(observed):
            ledger = ABSENT if self.ledger is None else self.ledger
            stored = Unreadable("head.json: not JSON") if self.ledger_is_damaged else ledger
            observed = replace(observed, probes=ObservedProbes(ledger=stored))
        return self._with_probes(observed) if needs_probes(observed) else observed

    def _with_probes(self, observed: ObservedPrediction) -> ObservedPrediction:
        probes = replace(observed.probes, config=TOY_CHECKPOINT)
        view = prediction_view(replace(observed, probes=probes))
        if view is None:
            return replace(observed, probes=probes)
        self._plan(view)
        reads = probe_reads(view, frozenset(self.results) | frozenset(self.progress))
        wanted = (*reads.results, *reads.results_of_failed)
        progress = {key: self.progress[key] for key in reads.progress if key in self.progress}
        marks = progress_marks(
            observed.train_jobs,
            progress,
            self.memory.marks,
            self.now,
            stall_seconds=reads.stall_seconds,
        )
        self.memory.marks = marks
        course = tuple((tokens, 3.0) for tokens in (1_000, 10**9, 10**12))
        probes = replace(
            probes,
            prediction=view.prediction_in_sweep_sequences,
            results={key: self.results[key] for key in wanted if key in self.results},
            progress=progress,
            unchanged_since={uid: mark.since for uid, mark in marks.items()},
            courses=dict.fromkeys(reads.courses, course),
        )
        return replace(observed, probes=probes)

    def _plan(self, view: PredictionView) -> None:
        found = planned_probes(view)
        planned = found.points if isinstance(found, PlannedProbes) else ()
        self.points |= {point.key: point for point in planned}
        self.probes = frozenset(point.key for point in planned)

    def _carry_out(self, observed: ObservedPrediction, plan: PredictionPlan) -> None:
        before, has_store = observed.probes.ledger, first_reads(observed.sweep) is not None
        self._withdraw(former for former in plan.withdraw if former.at_once)
        if plan.publish is None or self._publish(plan):
            self._withdraw(plan.withdraw)
        both = [writes for writes in (plan, plan.probes) if writes is not None]
        for writes in both:
            if has_store:
                self._write_store(writes, writes.ledger or plan.ledger or value_of(before))
            if writes is plan:
                self.memory.stopped = plan.stopped or self.memory.stopped
        for writes in reversed(both):
            self._change_jobs(writes)

    def _withdraw(self, former: Iterable[ConfigMapDeletion]) -> None:
        for each in former:
            self._may_die()
            self.config_maps.pop(each.name, None)

    def _publish(self, plan: PredictionPlan) -> bool:
        self._may_die()
        wanted = plan.publish
        assert wanted is not None
        if self.refuses_config_maps:
            self.memory.publish_error, self.memory.publish_error_may_pass = "no quota", True
            if says_otherwise(self.config_maps.get(wanted.name, {}), plan.status):
                self._withdraw([ConfigMapDeletion(wanted.name, wanted.name)])
            return False
        assert wanted.name not in self.taken, "another's ConfigMap is overwritten"
        self.config_maps[wanted.name] = wanted.data
        return True

    def _write_store(self, writes: TaskWrites, stored: Any) -> None:
        if writes.ledger is not None and self.refuses_ledgers:
            raise StoreError("head.json: AccessDenied")
        head = [aside for aside in writes.set_aside if aside.path.startswith("predictions/")]
        if head:
            self._may_die()
            self.ledger, self.ledger_is_damaged = None, False
        if writes.ledger is not None:
            self._may_die()
            self.ledger = read_back(writes.ledger)
        self.memory.stopped = suspension.unrecorded(self.memory.stopped, stored)
        for aside in writes.set_aside:
            if aside not in head:
                self._may_die()
                self.results.pop(aside.path.split("/")[1], None)
                self.evaluations.pop(aside.path, None)

    def _change_jobs(self, writes: TaskWrites) -> None:
        self._delete(writes.delete)
        for expiry in writes.expire:
            self._may_die()
            self.jobs[expiry.name] = replace(self.jobs[expiry.name], expires=True)
        for request in writes.create:
            self._may_die()
            self._create(request)
        if writes.create:
            self.memory.create_error = ""

    def _create(self, request: JobRequest) -> None:
        if self.refuses_jobs:
            raise CreateRefused(self.refuses_jobs, may_pass=self.refusal_may_pass)
        assert not self.asked.get("suspend"), "a Job starts in a suspended prediction"
        if request.name in self.jobs:
            return  # it is its own, and about to go
        if isinstance(request.task, EvaluateTask):
            self._measure(request, request.task)
            return
        super()._create(request)

    def _measure(self, request: JobRequest, task: EvaluateTask) -> None:
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

    @property
    def most_allowed(self) -> int:
        """Probes at a time; the evaluation is one more."""
        parallelism = int(self.asked["validation"].get("parallelism", 4))
        evaluating = [j for j in self.jobs.values() if j.kind == "evaluate" and j.holds_a_slot]
        return parallelism + len(evaluating)

    # ------------------------------------------------------------------------------ the cluster

    def _work(self, name: str, observed: ObservedJob, before: Any) -> None:
        if observed.kind == "train":
            with self._where_it_writes(observed):
                super()._work(name, observed, before)
        elif observed.working_since is None:
            begun = {"started": before, "working_since": before}
            self.jobs[name] = replace(observed, pod=ObservedPod(phase="Running"), **begun)

    def end(self, name: str, how: str) -> None:
        """The Job at work ends as one of ENDS says."""
        with self._where_it_writes(self.jobs[name]):
            self._end_there(name, how)

    def _end_there(self, name: str, how: str) -> None:
        observed = self.jobs[name]
        if observed.kind == "train":
            super().end(name, how)
            return
        if how == "deleted by hand":
            del self.jobs[name]
            return
        config = self.evaluated[name].config
        path = layout.evaluation_result(config.key)
        if how in ("succeeds", "diverges", "outlived"):
            loss = 3.0 + 0.1 * int(config.checkpoint_stamp[:1] or "5")
            self.evaluations[path] = evaluation(key=config.key, loss=loss, parameters=COUNTS)
        elif how == "bad result":
            self.evaluations[path] = Unreadable("loss: field required")
        self._finish_as(name, how)

    def _write_result(self, point: PlannedPoint, task: TrainTask, how: str) -> None:
        super()._write_result(point, task, how)
        loss = 2.5 + 0.02 * math.log(point.learning_rate / BEST_RATE) ** 2
        found = value_of(self.results[point.key])
        if found is not None and how != "diverges":
            losses = {"loss": loss, "averaged_loss": loss}
            self.results[point.key] = found.model_copy(update=losses)
