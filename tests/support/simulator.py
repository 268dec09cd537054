"""A cluster and a store in memory, to drive whole sweeps through the operator's own passes without either.

Time jumps, pods end as chance has it, and the operator is killed between any two writes. What must never
happen is checked as it would happen: more Jobs than allowed, a done point trained again.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any, ClassVar

from isoloss_contract.ledger import Ledger
from isoloss_contract.reading import ABSENT, Read, Unreadable
from isoloss_contract.records import (
    DataManifest,
    EvaluationResult,
    ExitCode,
    Outcome,
    PointProgress,
    PointResult,
    TrainTask,
)
from isoloss_contract.schedule import whole_steps
from isoloss_operator.cluster.client import SWEEP, Kind
from isoloss_operator.cluster.manifests import Owner
from isoloss_operator.cluster.resource_keys import ResourceKey
from isoloss_operator.decide.fits import FitOutcome, FitRequest
from isoloss_operator.decide.jobs.failures import FailureClass
from isoloss_operator.decide.observation import Course, ObservedJob, ObservedPod
from isoloss_operator.decide.plans import JobRequest
from isoloss_operator.planning.points import PlannedPoint
from isoloss_operator.reconcile.memory import Memory, carry_out, had_trouble
from isoloss_operator.reconcile.resource import Resource
from isoloss_operator.reconcile.sweep import SweepSteps
from tests.support.builders import NOW, UID, job, manifest, points, result, sweep_spec, words
from tests.support.simulated_services import services_of

CHARGED = {
    "crash": FailureClass.CRASHED,
    "storage": FailureClass.STORAGE,
    "no result": FailureClass.RESULT_MISSING,
    "bad result": FailureClass.RESULT_UNREADABLE,
}
COURSE: Course = tuple((tokens, 3.0) for tokens in (1_000, 10**9, 10**12))
UNCHARGED = ("preempted", "vanished", "claimed", "deleted", "host memory")


class Killed(Exception):
    """The operator died here."""


@dataclass
class Simulator:
    """Everything outside the operator."""

    chance: random.Random
    spec: dict[str, Any] = field(default_factory=sweep_spec)
    trouble: float = 0.3
    """Probability that an attempt does not end well."""
    kills: float = 0.1
    """Probability of being killed before any one write."""
    damage: float = 0.0
    """Probability that a finished point's trajectory gets damaged."""
    clock: float = 0.0
    generation: int = 1
    memory: Memory = field(default_factory=lambda: Memory(UID))
    operator_image: str = "first"
    """The trainer's image by the operator's configuration, which shapes every pod."""
    jobs: dict[str, ObservedJob] = field(default_factory=dict)
    recorded: set[str] = field(default_factory=set)
    """Names of Jobs that are listed no more."""
    orphaned: list[str] = field(default_factory=list)
    """Keys of pods that still terminate although their Job is gone."""
    results: dict[str, Read[PointResult]] = field(default_factory=dict)
    progress: dict[str, PointProgress] = field(default_factory=dict)
    ledger: Ledger | None = None
    ledger_is_damaged: bool = False
    status: dict[str, Any] = field(default_factory=dict)
    status_is_current: bool = False
    """The last pass came to its end."""
    fit: FitOutcome | None = None
    fit_running: FitRequest | None = None
    trained: Counter[str] = field(default_factory=Counter)
    """Attempts that wrote a good result, per key."""
    injected: Counter[tuple[str, str]] = field(default_factory=Counter)
    """Charged failures acted out and not yet overtaken by a kill of the pod, per (key, class)."""
    killed_for_memory: Counter[str] = field(default_factory=Counter)
    damaged: set[str] = field(default_factory=set)
    damages: Counter[str] = field(default_factory=Counter)
    most_active: int = 0
    store_error: str = ""
    refuses_ledgers: bool = False
    stamps: dict[str, Read[str]] = field(default_factory=dict)
    """Of the files of each checkpoint."""
    model_configs: dict[str, Read[dict[str, Any]]] = field(default_factory=dict)
    """The config.json of each checkpoint that is not TOY_CHECKPOINT's."""
    evaluations: dict[str, Read[EvaluationResult]] = field(default_factory=dict)
    courses: Read[Course] = COURSE
    """Of every trajectory that a prediction reads."""
    config_maps: dict[str, Mapping[str, str]] = field(default_factory=dict)
    """Data of the prediction's own."""
    taken: set[str] = field(default_factory=set)
    """Names of ConfigMaps that are others'."""
    refuses_config_maps: bool = False
    kind: ClassVar[Kind] = SWEEP
    steps: ClassVar[Callable[[Any], Any]] = SweepSteps
    """Makes the operator's steps for a resource of this kind."""

    def __post_init__(self) -> None:
        self.points: dict[str, PlannedPoint] = {point.key: point for point in points(self.spec)}
        self.tasks: dict[str, TrainTask] = {}

    # ----------------------------------------------------------------------------- the operator

    def run_operator(self) -> Any:
        """One pass as the shell runs it: its plan; None where it was killed, or has no status to write."""
        try:
            return self._pass()
        except Killed:
            self.killed()
            return None

    def killed(self) -> None:
        """The next operator remembers nothing."""
        self.memory, self.fit_running, self.status_is_current = Memory(UID), None, False

    def _pass(self) -> Any:
        body = {
            "metadata": {"generation": self.generation},
            "spec": self.asked_spec,
            "status": self.status,
        }
        key = ResourceKey(self.kind, self.owner.namespace, self.owner.name)
        resource, memory = Resource(key, self.owner, body, self.memory), self.memory
        was_in_trouble = had_trouble(memory)
        steps = type(self).steps(services_of(self))
        observed = steps.observe(resource)
        self._observed(observed)
        plan = steps.decide(observed)
        done = carry_out(memory, self.generation, lambda: steps.apply(resource, observed, plan))
        if not done and not was_in_trouble:
            self.status_is_current = False
            return None
        self.may_die()
        self.status, self.status_is_current = plan.status.document(), True
        return plan

    @property
    def owner(self) -> Owner:
        """The resource."""
        return Owner(self.kind, "research", "demo", UID)

    @property
    def asked_spec(self) -> dict[str, Any]:
        """Of the resource."""
        return self.spec

    def _observed(self, observed: Any) -> None:
        """What a pass has seen."""

    # -------------------------------------------------------------- what it finds, and its writes

    @property
    def corpus(self) -> DataManifest:
        """Of the sweep."""
        return manifest(self.spec)

    @property
    def is_prepared(self) -> bool:
        """Whether it is in the store."""
        return True

    @property
    def stored_fit(self) -> Read[FitOutcome]:
        """That an earlier process left in the store, or that a prediction finds there."""
        return self.fit or ABSENT

    def sweep(self, _name: str) -> Mapping[str, Any] | None:
        """That a prediction refers to."""
        return None

    def ledger_in(self, _folder: str) -> Read[Ledger] | None:
        """Of a sweep that a prediction reads; None: the folder is the resource's own."""
        return None

    def prediction(self, _name: str) -> Mapping[str, Any] | None:
        """That a sweep refers to."""
        return None

    def read_result(self, key: str) -> Read[Any]:
        """As the store gives it out."""
        return self.results.get(key, ABSENT)

    def quarantine(self, path: str) -> None:
        """It is there no more."""
        if path.startswith(("sweeps/", "predictions/")):
            self.ledger, self.ledger_is_damaged = None, False
            return
        key = path.split("/")[1]
        self.results.pop(key, None)
        self.evaluations.pop(path, None)
        self.damaged.discard(key)

    def start_fit(self, request: FitRequest) -> None:
        """It ends at once."""
        self.fit = self._fitted(request)

    def _fitted(self, request: FitRequest) -> FitOutcome:
        """A fit that finds out which trajectories are damaged."""
        unreadable = tuple(
            (point.key, "digest differs") for point in request.points if point.key in self.damaged
        )
        for key, _ in unreadable:
            self.injected[key, str(FailureClass.TRAJECTORY_UNREADABLE)] += 1
        return FitOutcome(
            inputs=request.inputs, laws=None, points=len(request.points), unreadable=unreadable
        )

    def may_die(self) -> None:
        """Before a write. Raises Killed."""
        if self.chance.random() < self.kills:
            raise Killed

    def create(self, request: JobRequest) -> None:
        """A Job whose pod starts. One of that name that a lost ledger had recorded is listed again."""
        if request.name in self.recorded:
            self.recorded.discard(request.name)
            return
        point = self.points[request.labels["isoloss.dev/key"]]
        self._check_start(point, request)
        self.jobs[request.name] = self._created(point, request)
        assert self.jobs[request.name].name == request.name
        active = sum(j.holds_a_slot for j in self.jobs.values()) + len(self.orphaned)
        self.most_active = max(self.most_active, active)
        assert active <= self.most_allowed, "more Jobs than spec.parallelism"

    @property
    def most_allowed(self) -> int:
        """Jobs that may hold a slot at a time."""
        return int(self.spec["parallelism"])

    def _check_start(self, point: PlannedPoint, request: JobRequest) -> None:
        task = request.task
        assert request.name not in self.jobs, f"{request.name} is there already"
        assert isinstance(task, TrainTask)
        self.tasks[request.name] = task
        found = self.results.get(point.key)
        has_result = isinstance(found, PointResult) and found.outcome is not Outcome.OUT_OF_MEMORY
        is_done = has_result and found.wanted_tokens >= task.tokens
        assert not is_done, f"{point.name} is done and starts again"
        here = [j for j in self.jobs.values() if j.store == request.labels["isoloss.dev/store"]]
        busy = [j.key for j in here if j.holds_a_slot] + self.orphaned
        assert point.key not in busy, f"{point.name} has two pods at work"

    def _created(self, point: PlannedPoint, request: JobRequest) -> ObservedJob:
        return job(
            point,
            attempt=request.attempt,
            uid=f"{request.name}-{self.clock}",
            created=self.now,
            started=self.now,
            generation=self.generation,
            template=request.labels["isoloss.dev/template"],
        )

    @property
    def now(self) -> datetime:
        """By the simulator's clock."""
        return NOW + timedelta(seconds=self.clock)

    # ------------------------------------------------------------------------------ the cluster

    def let_time_pass(self, seconds: float) -> None:
        """Some pods end, finished Jobs whose time is up go, deleted ones too."""
        self.clock += seconds
        self.orphaned = [key for key in self.orphaned if self.chance.random() < 0.5]
        for name, observed in list(self.jobs.items()):
            if observed.deleting and self.chance.random() < 0.7:
                del self.jobs[name]
            elif observed.is_finished and observed.unfinished_pods:
                if self.chance.random() < 0.5:
                    self.jobs[name] = replace(observed, unfinished_pods=0)
            elif observed.is_finished:
                if name in self.recorded and self.chance.random() < 0.3:
                    del self.jobs[name]
                    self.recorded.discard(name)
            elif self.chance.random() < 0.5:
                self._end(name, observed)

    def _end(self, name: str, observed: ObservedJob) -> None:
        if self.chance.random() >= self.trouble:
            self._succeed(name, observed)
            return
        how = self.chance.choice([*CHARGED, *UNCHARGED])
        if how == "host memory":
            self.killed_for_memory[observed.key] += 1
            if self.killed_for_memory[observed.key] > 2:  # a fourth would be final
                how = "preempted"
        if how == "deleted":
            del self.jobs[name]  # by hand: no trace is left but the pod, for a while
            self.orphaned.append(observed.key)
            return
        if how in CHARGED:
            self.injected[observed.key, str(CHARGED[how])] += 1
        if how == "bad result":
            self.results[observed.key] = Unreadable("result.json: tokens: field required")
        if how in ("no result", "bad result"):
            self._finish(name, complete=True, pod=None)
        elif how == "vanished":
            self._finish(name, failed=True, pod=None)
        else:
            self._finish(name, failed=True, pod=PODS[how])

    def _succeed(self, name: str, observed: ObservedJob) -> None:
        self.trained[observed.key] += 1
        if self.chance.random() < self.damage:
            self.damaged.add(observed.key)
            self.damages[observed.key] += 1
        self.results[observed.key] = self._result(self.points[observed.key], self.tasks[name])
        if self.chance.random() < 0.1:  # preempted between result and exit
            self._finish(name, failed=True, pod=PODS["preempted"])
        else:
            self._finish(name, complete=True, pod=None)

    def _result(self, point: PlannedPoint, task: TrainTask) -> PointResult:
        tokens = whole_steps(task.tokens, point.batch_size, task.point.sequence_length)
        return result(point, tokens=tokens, wanted_tokens=task.tokens)

    def _finish(self, name: str, **changes: Any) -> None:
        lingering = int(self.chance.random() < 0.3)  # a pod that still terminates
        self.jobs[name] = replace(self.jobs[name], unfinished_pods=lingering, **changes)


PODS = {
    "crash": ObservedPod(phase="Failed", exit_code=1, reason="Error"),
    "storage": ObservedPod(phase="Failed", exit_code=ExitCode.STORAGE, reason="Error"),
    "preempted": ObservedPod(
        phase="Failed", exit_code=137, reason="Error", disruption="PreemptionByScheduler"
    ),
    "claimed": ObservedPod(
        phase="Failed",
        exit_code=ExitCode.CLAIMED_ELSEWHERE,
        reason="Error",
        termination_message=words("ClaimedElsewhere", "attempt 1 of another sweep holds it"),
    ),
    "host memory": ObservedPod(phase="Failed", exit_code=137, reason="OOMKilled"),
}
