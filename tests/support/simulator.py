"""A cluster and a store in memory, to drive whole sweeps through the operator's own passes without either.

Anything may happen at any time: edits, lost nodes, a store that comes and goes, Kueue, an operator that is killed between
any two writes. Nothing is left to chance here: whoever drives it says what happens next, or lets Chance do so. What must
never happen is checked as it would happen: more Jobs than allowed, two pods of a point, a done point trained again.
"""

import hashlib
import random
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any, ClassVar, Final

from hypothesis.stateful import rule
from hypothesis.strategies import SearchStrategy, sampled_from

from isoloss_contract import records
from isoloss_contract.ledger import Ledger, PointRecord
from isoloss_contract.reading import ABSENT, Read, Unanswered, Unreadable
from isoloss_contract.records.points import whole_steps
from isoloss_operator.cluster.client import SWEEP, Kind, ResourceKey
from isoloss_operator.cluster.jobs import CreateRefused
from isoloss_operator.cluster.manifests import Owner
from isoloss_operator.decide import observation
from isoloss_operator.decide.attempts import is_done
from isoloss_operator.decide.checks import accepted_sweep
from isoloss_operator.decide.fits import FitOutcome, FitRequest, SearchStep
from isoloss_operator.decide.plans import JobRequest
from isoloss_operator.decide.reads import planned_tasks
from isoloss_operator.planning.flops import six_nd
from isoloss_operator.planning.points import PlannedPoint, prepare_config
from isoloss_operator.planning.specs import InvalidSpec, parse_sweep_spec
from isoloss_operator.reconcile.memory import Memory, carry_out, had_trouble
from isoloss_operator.reconcile.resource import Resource
from isoloss_operator.reconcile.sweep import SweepSteps
from tests.support import builders
from tests.support.builders import (
    NOW,
    UID,
    job,
    manifest,
    points,
    result,
    stated,
    sweep_spec,
    words,
)
from tests.support.predictions import answer_status, parsed_prediction, prediction_spec
from tests.support.published_configs import TOY_CHECKPOINT
from tests.support.simulated_services import services_of
from tests.support.sweep_worlds import chosen, refused
from tests.support.synthetic_runs import fitted_laws

TOKENS_PER_SECOND: Final = 2_000
FIRST_REPORT_SECONDS: Final = 20.0
"""Until then an attempt has reported nothing."""
POD_ENDS_SECONDS: Final = 20.0
"""Pods that are to end, and Jobs that are to go, are gone after this."""
AWAY: Final = sampled_from(["", "the store does not answer"])
"""Of a store that comes and goes."""
COURSE: observation.Course = tuple((tokens, 3.0) for tokens in (1_000, 10**9, 10**12))

COMPLETE: Final = ("succeeds", "diverges", "no result", "bad result", "outlived")
"""Ways in which a Job ends as Kubernetes means it to."""
FAILED: Final = {
    "crash": observation.ObservedPod(phase="Failed", exit_code=1, reason="Error"),
    "storage": observation.ObservedPod(
        phase="Failed", exit_code=records.ExitCode.STORAGE, reason="Error"
    ),
    "preempted": observation.ObservedPod(
        phase="Failed", exit_code=137, reason="Error", disruption="PreemptionByScheduler"
    ),
    "claimed": observation.ObservedPod(
        phase="Failed",
        exit_code=records.ExitCode.CLAIMED_ELSEWHERE,
        reason="Error",
        termination_message=words("ClaimedElsewhere", "attempt 1 of another sweep holds it"),
    ),
    "host memory": observation.ObservedPod(phase="Failed", exit_code=137, reason="OOMKilled"),
    "out of memory": observation.ObservedPod(
        phase="Failed", exit_code=records.ExitCode.OUT_OF_MEMORY, reason="Error"
    ),
    "bad configuration": observation.ObservedPod(
        phase="Failed",
        exit_code=records.ExitCode.BAD_CONFIGURATION,
        reason="Error",
        termination_message=words("Unsupported", "not with this rotary embedding", "model"),
    ),
    "vanished": None,
    "lost": None,
}
"""Ways in which it fails, by what is left of its pod."""
ENDS: Final = (*COMPLETE, *FAILED, "deleted by hand")
ANSWERED: Final = "s3://models/dense-8b"
"""The checkpoint that the prediction is about."""
OTHERS: Final = ("s3://models/dense-3b", "s3://models/dense-70b")
PREDICTION: Final = "target"
NEAR: Final = ("9.5e-4", "1e-3", "1.05e-3")
"""Learning rates of one answer that moves a little."""
FAR: Final = "4e-3"


def answer(rate: str = NEAR[1], **changes: str) -> dict[str, Any]:
    """A prediction that is Ready with this learning rate, or whose conditions have these statuses."""
    statuses = {"Ready": "True", "Stale": "False", **changes}
    conditions = (stated(kind, status, "Said") for kind, status in statuses.items())
    return {
        "metadata": {"generation": 1},
        "spec": prediction_spec(sweepRef={"name": "laws"}, checkpoint={"uri": ANSWERED}),
        "status": answer_status(rate, "16", *conditions),
    }


def edits(field: str, values: SearchStrategy[Any], **others: Any) -> Any:
    """A rule of a RuleBasedStateMachine: its simulator's spec has one of these values of a field; None removes it."""

    @rule(value=values)
    def edit(self: Any, value: Any) -> None:
        self.simulator.edit(**{field: value, **others})

    return edit


def turns(field: str, values: SearchStrategy[Any]) -> Any:
    """A rule: a field of the simulator has one of these values from now on."""

    @rule(value=values)
    def turn(self: Any, value: Any) -> None:
        setattr(self.simulator, field, value)

    return turn


class Killed(Exception):
    """The operator died here."""


@dataclass
class Simulator:
    """Everything outside the operator."""

    chance: random.Random = field(default_factory=lambda: random.Random(0))
    spec: dict[str, Any] = field(default_factory=sweep_spec)
    clock: float = 0.0
    generation: int = 1
    memory: Memory = field(default_factory=lambda: Memory(UID))
    operator_image: str = "first"
    """The trainer's image by the operator's configuration, which shapes every pod."""
    jobs: dict[str, observation.ObservedJob] = field(default_factory=dict)
    recorded: set[str] = field(default_factory=set)
    """Names of Jobs that are listed no more."""
    orphaned: list[str] = field(default_factory=list)
    """Keys of pods that still terminate although their Job is gone."""
    results: dict[str, Read[records.PointResult]] = field(default_factory=dict)
    progress: dict[str, records.PointProgress] = field(default_factory=dict)
    ledger: Ledger | None = None
    ledger_is_damaged: bool = False
    status: dict[str, Any] = field(default_factory=dict)
    status_is_current: bool = False
    """The last pass came to its end."""
    fit: FitOutcome | None = None
    fit_running: FitRequest | None = None
    trained: Counter[str] = field(default_factory=Counter)
    """Attempts that wrote a good result, per key."""
    damaged: set[str] = field(default_factory=set)
    most_active: int = 0
    store_error: str = ""
    refuses_ledgers: bool = False
    stamps: dict[str, Read[str]] = field(default_factory=dict)
    """Of the files of each checkpoint."""
    model_configs: dict[str, Read[dict[str, Any]]] = field(default_factory=dict)
    """The config.json of each checkpoint that is not TOY_CHECKPOINT's."""
    evaluations: dict[str, Read[records.EvaluationResult]] = field(default_factory=dict)
    courses: Read[observation.Course] = COURSE
    """Of every trajectory that a prediction reads."""
    config_maps: dict[str, Mapping[str, str]] = field(default_factory=dict)
    """Data of the prediction's own."""
    taken: set[str] = field(default_factory=set)
    """Names of ConfigMaps that are others'."""
    refuses_config_maps: bool = False
    kind: ClassVar[Kind] = SWEEP
    steps: ClassVar[Callable[[Any], Any]] = SweepSteps
    """Makes the operator's steps for a resource of this kind."""
    writes_left: int | None = None
    """Before the operator is killed; None: it is not."""
    own_tokens: Counter[str] = field(default_factory=Counter)
    """Trained by this sweep's attempts, by key."""
    others_tokens: Counter[str] = field(default_factory=Counter)
    """Of a result that another sweep left, by key."""
    hung: set[str] = field(default_factory=set)
    """Names of Jobs that work and report nothing any more."""
    withheld: set[str] = field(default_factory=set)
    """Keys of results that the store does not give out."""
    ledger_was_lost: bool = False
    """From then on what was spent is taken from the status and from results: an estimate, of which some may be missing."""
    refuses_jobs: str = ""
    refusal_may_pass: bool = True
    prepared: set[str] = field(default_factory=set)
    """Keys of the preparations whose manifests are stored."""
    passes: int = 0
    answered: dict[str, Any] | None = field(default_factory=answer)
    """The prediction around whose answer points may lie; None: there is none."""

    def __post_init__(self) -> None:
        self.points: dict[str, PlannedPoint] = {point.key: point for point in points(self.spec)}
        self.tasks: dict[str, records.TrainTask] = {}
        self.stamps = {uri: str(n) * 64 for n, uri in enumerate((ANSWERED, *OTHERS), 1)}
        self.model_configs = {
            uri: {**TOY_CHECKPOINT, "num_hidden_layers": layers}
            for uri, layers in zip(OTHERS, (4, 12), strict=True)
        }
        self.prepared.add(self._corpus)

    @property
    def _corpus(self) -> str:
        """Key of the preparation that the spec asks for."""
        return prepare_config(parse_sweep_spec(self.spec)).key

    def edit(self, **changes: Any) -> None:
        """Apply a spec with these top-level fields; None removes one."""
        spec = {**self.spec, **changes}
        self.spec = {name: value for name, value in spec.items() if value is not None}
        self.generation += 1
        self.points |= self.planned or {}

    @property
    def planned(self) -> dict[str, PlannedPoint] | None:
        """The points that the spec means, by key; None: it is invalid, as with two sizes of one model."""
        try:
            if not any("checkpoint" in size for size in self.spec["proxies"]):
                return self._on_grids(self.spec)
            found = planned_tasks(accepted_sweep(self._seen()))
        except InvalidSpec:
            return None
        return {} if found is None else dict(found.points)

    def _on_grids(self, spec: dict[str, Any]) -> dict[str, PlannedPoint]:
        return {point.key: point for point in points(spec)}

    def _seen(self) -> observation.ObservedSweep:
        """What places points that continue checkpoints: these, the prediction, and the ledger."""
        found = self.answered
        answers = {}
        if found is not None:
            answers[PREDICTION] = observation.ObservedAnswer(
                found["metadata"]["generation"], parsed_prediction(found["spec"]), found["status"]
            )
        return builders.observed(
            self.spec,
            ledger=ABSENT if self.ledger is None or self.ledger_is_damaged else self.ledger,
            checkpoints={
                uri: observation.ObservedCheckpoint(
                    stamp, self.model_configs.get(uri, TOY_CHECKPOINT)
                )
                for uri, stamp in self.stamps.items()
            },
            answers=answers,
        )

    def prediction(self, name: str) -> Mapping[str, Any] | None:
        """That a sweep refers to."""
        return self.answered if name == PREDICTION else None

    def answers(self, body: dict[str, Any] | None) -> None:
        """The prediction is this from now on; None: it is deleted."""
        self.answered = body
        self.points |= self.planned or {}

    def replace_checkpoint(self, uri: str, stamp: Read[str]) -> None:
        """Its files have this stamp from now on."""
        self.stamps[uri] = stamp
        self.points |= self.planned or {}

    @property
    def _unrecorded(self) -> set[str]:
        """Keys of points with an attempt that has ended and that the stored ledger has not."""
        ended = {record.key: record.attempts.ended for record in self._records()}
        return {
            job.key
            for job in self.jobs.values()
            if job.kind == "train" and job.is_finished and job.attempt > ended.get(job.key, 0)
        }

    @property
    def _unpaid(self) -> set[str]:
        """Keys of points of which the stored ledger does not know yet that a stopped attempt went on to a result."""
        reached = {record.key: record.reached_tokens for record in self._records()}
        return {
            key
            for key, found in self.results.items()
            if isinstance(found, records.PointResult)
            and found.claimant is not None
            and found.claimant.sweep_uid == UID
            and found.tokens > reached.get(key, 0)
        }

    # ----------------------------------------------------------------------------- the operator

    def run_operator(self) -> Any:
        """One pass as the shell runs it: its plan; None where it was killed, or has no status to write."""
        self.passes += 1
        try:
            return self._pass()
        except Killed:
            self.killed()
            return None

    def killed(self) -> None:
        """The next operator remembers nothing but what is stored."""
        self.memory, self.fit_running, self.status_is_current = Memory(UID), None, False
        self.writes_left = None
        if self.fit is not None and self.fit.laws is None:
            self.fit = None  # only laws are stored

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
        """Points may lie where they did before the ledger was lost, or the answer moved."""
        if self.spec.get("proxies") and not isinstance(observed.spec, InvalidSpec):
            self.points |= self.planned or {}

    def may_die(self) -> None:
        """Before a write. Raises Killed."""
        if self.writes_left is None:
            return
        if not self.writes_left:
            raise Killed
        self.writes_left -= 1

    # -------------------------------------------------------------- what it finds, and its writes

    @property
    def corpus(self) -> records.DataManifest:
        """Of the sweep."""
        return manifest(self.spec)

    @property
    def is_prepared(self) -> bool:
        """Whether the corpus that the spec asks for is in the store."""
        return self._corpus in self.prepared

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

    def read_result(self, key: str) -> Read[Any]:
        """As the store gives it out."""
        if key in self.withheld:
            return Unanswered("SlowDown", alone=True)
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
        """It runs until end_fit."""
        self.fit_running = request

    def create(self, request: JobRequest) -> None:
        """A Job whose pod is still to start. Raises CreateRefused."""
        if self.refuses_jobs:
            raise CreateRefused(self.refuses_jobs, may_pass=self.refusal_may_pass)
        is_known = request.name in self.recorded
        if isinstance(request.task, records.PrepareTask) and not (
            self.ledger_was_lost and is_known
        ):
            self._prepare(request, request.task)
        elif is_known:  # a lost ledger had recorded it, and it is listed again
            self.recorded.discard(request.name)
        else:
            self._train(request)

    def _train(self, request: JobRequest) -> None:
        point = self.points[request.labels["isoloss.dev/key"]]
        self._check_start(point, request)
        self.jobs[request.name] = self._created(point, request)
        active = sum(j.holds_a_slot for j in self.jobs.values()) + len(self.orphaned)
        self.most_active = max(self.most_active, active)
        assert active <= self.most_allowed, "more Jobs than spec.parallelism"

    @property
    def most_allowed(self) -> int:
        """Jobs that may hold a slot at a time."""
        return int(self.spec["parallelism"])

    def _prepare(self, request: JobRequest, task: records.PrepareTask) -> None:
        others = [j for j in self.jobs.values() if j.kind == "prepare" and j.holds_a_slot]
        assert not others, "the corpus is prepared twice at a time"
        assert task.config.key not in self.orphaned
        assert task.config.key not in self.prepared, "a corpus that is there is prepared again"
        assert request.name not in self.jobs
        self.jobs[request.name] = self._created(task.config.key, request)

    def _check_start(self, point: PlannedPoint, request: JobRequest) -> None:
        task = request.task
        assert request.name not in self.jobs, f"{request.name} is there already"
        assert isinstance(task, records.TrainTask)
        self.tasks[request.name] = task
        found = self.results.get(point.key)
        has_result = (
            isinstance(found, records.PointResult)
            and found.outcome is not records.Outcome.OUT_OF_MEMORY
        )
        is_trained = has_result and found.wanted_tokens >= task.tokens
        assert not is_trained, f"{point.name} is done and starts again"
        here = [j for j in self.jobs.values() if j.store == request.labels["isoloss.dev/store"]]
        busy = [j.key for j in here if j.holds_a_slot] + self.orphaned
        assert point.key not in busy, f"{point.name} has two pods at work"
        assert not self.spec.get("suspend"), f"{point.name} starts in a suspended sweep"
        record = next((each for each in self._records() if each.key == point.key), None)
        assert record is not None, f"{point.name} starts unknown to the stored ledger"
        assert not is_done(record, point), f"{point.name} starts, and the ledger has its outcome"
        budget = self.spec.get("budget")
        if budget is not None and not self.ledger_was_lost:
            spent = self.committed_flops(starting=request)
            assert spent <= 1.000_001 * float(budget["flops"]), f"{point.name} exceeds the budget"

    def _records(self) -> tuple[PointRecord, ...]:
        return () if self.ledger is None else (*self.ledger.former, *self.ledger.points)

    def committed_flops(self, starting: JobRequest) -> float:
        """What this sweep has trained, and what those at work and `starting` will have trained at their end."""
        holding = (j for j in self.jobs.values() if j.holds_a_slot and not j.deleting)
        tasks = [self.tasks[j.name] for j in holding if j.kind == "train"]
        wanted = {task.point.key: task.tokens for task in (*tasks, starting.task)}
        total = 0.0
        for key, point in self.points.items():
            tokens = self.own_tokens[key]
            if key in wanted:
                whole = whole_steps(wanted[key], point.batch_size, point.config.sequence_length)
                tokens = max(tokens, whole - self.others_tokens[key])
            total += six_nd(point.proxy.parameters, tokens)
        return total

    def _created(self, point: PlannedPoint | str, request: JobRequest) -> observation.ObservedJob:
        is_queued = bool(request.local_queue)
        return job(
            point,
            name=request.name,
            attempt=request.attempt,
            uid=f"{request.name}-{self.passes}",
            store=request.labels["isoloss.dev/store"],
            created=self.now,
            started=None,
            suspended=is_queued,
            unfinished_pods=0 if is_queued else 1,
            pod=None if is_queued else observation.ObservedPod(),
            generation=int(request.labels["isoloss.dev/generation"]),
            template=request.labels["isoloss.dev/template"],
        )

    @property
    def now(self) -> datetime:
        """By the simulator's clock."""
        return NOW + timedelta(seconds=self.clock)

    # ------------------------------------------------------------------------------ the cluster

    def let_time_pass(self, seconds: float) -> None:
        """Pods begin and go on; what is to go does."""
        before = self.now
        self.clock += seconds
        if seconds >= POD_ENDS_SECONDS:
            self.orphaned.clear()
        for name, observed in list(self.jobs.items()):
            if observed.deleting or observed.is_finished:
                self._go(name, observed, seconds)
            elif not observed.suspended:
                self._work(name, observed, before)

    def _go(self, name: str, observed: observation.ObservedJob, seconds: float) -> None:
        if seconds < POD_ENDS_SECONDS:
            return
        if observed.deleting or name in self.recorded:
            del self.jobs[name]
            self.recorded.discard(name)
        else:
            self.jobs[name] = replace(observed, unfinished_pods=0)

    def _work(self, name: str, observed: observation.ObservedJob, before: Any) -> None:
        if observed.working_since is None:
            begun = {"started": before, "working_since": before, "unfinished_pods": 1}
            observed = replace(observed, pod=observation.ObservedPod(phase="Running"), **begun)
            self.jobs[name] = observed
        if name in self.hung or observed.kind == "prepare":
            return
        point, task = self.points[observed.key], self.tasks[name]
        seconds = (self.now - before).total_seconds()
        begun = observed.working_since or before
        if (self.now - begun).total_seconds() < FIRST_REPORT_SECONDS:
            return
        known = self.progress.get(point.key)
        tokens = (known.tokens if known else 0) + int(seconds * TOKENS_PER_SECOND)
        self._report(point, task, min(tokens, task.tokens // 2))

    def _report(self, point: PlannedPoint, task: records.TrainTask, tokens: int) -> None:
        known = self.progress.get(point.key)
        tokens = max(tokens, known.tokens if known else 0)
        own = tokens - self.others_tokens[point.key]
        self.own_tokens[point.key] = max(self.own_tokens[point.key], own)
        self.progress[point.key] = records.PointProgress(
            key=point.key,
            claimant=records.Claimant(sweep_uid=UID, attempt=task.claimant.attempt),
            tokens=tokens,
            wanted_tokens=task.tokens,
            loss=5.0,
            tokens_per_second=float(TOKENS_PER_SECOND),
            updated_at="2026-09-01T12:00:00Z",
        )

    @property
    def at_work(self) -> list[str]:
        """Names of Jobs whose pods run."""
        return [n for n, j in self.jobs.items() if not j.is_finished and j.working_since]

    def end(self, name: str, how: str) -> str:
        """The Job at work ends as one of ENDS says, or as it must instead: how it ended."""
        observed = self.jobs[name]
        if how == "deleted by hand":
            del self.jobs[name]
            self.orphaned.append(observed.key)
            return how
        if observed.kind == "prepare":
            if how in ("succeeds", "outlived"):
                self.prepared.add(observed.key)
            return self._finish_as(name, how)
        point, task = self.points[observed.key], self.tasks[name]
        if how == "bad result":
            self.results[point.key] = Unreadable("result.json: tokens: field required")
        if how in ("succeeds", "outlived", "diverges"):
            self.write_result(point, task, how)
        if how == "out of memory" and point.key not in self.results:
            left = result(
                point, tokens=0, wanted_tokens=task.tokens, outcome=records.Outcome.OUT_OF_MEMORY
            )
            self.results[point.key] = left
        return self._finish_as(name, how)

    def write_result(
        self, point: PlannedPoint, task: records.TrainTask, how: str = "succeeds"
    ) -> None:
        """As the trainer does before it exits."""
        tokens = whole_steps(task.tokens, point.batch_size, task.point.sequence_length)
        outcome = records.Outcome.SUCCEEDED
        if how == "diverges":
            known = self.results.get(point.key)  # it went on from there
            before = known.tokens if isinstance(known, records.PointResult) else 0
            tokens = max(self.own_tokens[point.key], before, 10_000)
            outcome = records.Outcome.DIVERGED
        self.trained[point.key] += 1
        own = tokens - self.others_tokens[point.key]
        self.own_tokens[point.key] = max(self.own_tokens[point.key], own)
        sha256 = hashlib.sha256(f"{point.key} {tokens}".encode()).hexdigest()
        self.results[point.key] = result(
            point,
            tokens=tokens,
            wanted_tokens=task.tokens,
            outcome=outcome,
            trajectory_sha256=sha256,
            claimant=task.claimant,
            **self._losses(point, tokens),
        )
        self.damaged.discard(point.key)

    def _losses(self, _point: PlannedPoint, _tokens: int) -> dict[str, float]:
        """In place of those that every result has."""
        return {}

    def _finish_as(self, name: str, how: str) -> str:
        observed = self.jobs[name]
        seconds = (self.now - (observed.working_since or self.now)).total_seconds()
        changes: dict[str, Any] = {"complete": how in COMPLETE, "failed": how not in COMPLETE}
        if how in ("lost", "outlived"):
            changes[how] = True
        self.jobs[name] = replace(
            observed,
            pod=FAILED.get(how),
            unfinished_pods=1 if how == "outlived" else 0,
            worked_seconds=observed.worked_seconds + seconds,
            working_since=None,
            ended=self.now,
            **changes,
        )
        return how

    # -------------------------------------------------------------------------- Kueue, the store

    def admit(self, name: str) -> None:
        """Kueue lets a Job begin."""
        self.jobs[name] = replace(self.jobs[name], suspended=False, workload=None)

    def evict(self, name: str, *, active: bool = True) -> None:
        """Kueue takes a Job's place away; not `active`: somebody has deactivated its Workload."""
        observed = self.jobs[name]
        since = observed.working_since or self.now
        self.jobs[name] = replace(
            observed,
            suspended=True,
            unfinished_pods=0,
            pod=None,
            workload=observation.ObservedWorkload("workload", active=active, evicted="Preempted"),
            worked_seconds=observed.worked_seconds + (self.now - since).total_seconds(),
            working_since=None,
        )

    def find_result(self, key: str) -> None:
        """Another sweep has trained a point."""
        point = self.points[key]
        others = records.Claimant(sweep_uid="another", attempt=1)
        self.results[key] = result(point, claimant=others)
        self.others_tokens[key] = point.tokens

    def lose_corpus(self) -> None:
        """Somebody deletes data/."""
        self.prepared.clear()

    def lose_result(self, key: str) -> None:
        """Somebody deletes a result that the ledger has."""
        if key not in self._unrecorded | self._unpaid:
            self.results.pop(key, None)

    def withhold_result(self, key: str) -> None:
        """The store does not give it out any more, once the ledger has it."""
        if key not in self._unrecorded | self._unpaid:
            self.withheld.add(key)

    def end_fit(self, how: str) -> None:
        """The fit that runs ends: laws, refused, error, a trajectory that cannot be read, or those that are damaged."""
        request, self.fit_running = self.fit_running, None
        if request is None:
            return
        outcomes: dict[str, Callable[[], FitOutcome]] = {
            "laws": lambda: self._laws(request),
            "refused": lambda: replace(self._laws(request), laws=refused()),
            "error": lambda: FitOutcome(request.inputs, None, error="its process was killed"),
            "unreadable": lambda: self._fitted(request),
            "as it must": lambda: self._fitted(request),
        }
        if how == "unreadable" and request.points:
            self.damaged.add(request.points[0].key)
        self.fit = outcomes[how]()

    def _fitted(self, request: FitRequest) -> FitOutcome:
        """A fit that finds out which trajectories are damaged."""
        unreadable = tuple(
            (point.key, "digest differs") for point in request.points if point.key in self.damaged
        )
        return FitOutcome(
            inputs=request.inputs, laws=None, points=len(request.points), unreadable=unreadable
        )

    def _laws(self, request: FitRequest) -> FitOutcome:
        return FitOutcome(
            inputs=request.inputs,
            laws=fitted_laws(provisional=request.provisional),
            laws_sha256=request.inputs,
            report_written=True,
            points=len(request.points),
            step=self._step(request),
        )

    def _step(self, request: FitRequest) -> SearchStep | None:
        """What a search might want next: more of some points."""
        if request.search is None:
            return None
        tokens = {size.name: round(size.tokens) for size in request.search.sizes}
        behind = [
            key
            for key, seen in request.search.points.items()
            if not seen.failed and seen.wanted < tokens[seen.point.size]
        ]
        decisions = []
        for key in self.chance.sample(behind, min(3, len(behind))):
            seen = request.search.points[key]
            whole = tokens[seen.point.size]
            rung = round(0.3 * whole)
            wanted = rung if seen.wanted < rung else whole
            decisions.append(replace(chosen(self.points[key]), tokens=wanted))
        return SearchStep(tuple(decisions), "" if decisions else "NothingLeft")
