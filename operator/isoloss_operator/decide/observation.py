"""What the shell has observed when it asks for a decision: the whole world in one value. Labels by which Jobs are found
again come first.

The shell fills `ObservedSweep` or `ObservedPrediction` (all reads first), asks for a plan (plans.py) and
carries it out (all writes last). Nothing here does I/O; the clock is a field.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property
from typing import Any, Literal

from isoloss_contract.ledger import Ledger, LostLedger
from isoloss_contract.reading import ABSENT, Read
from isoloss_contract.records import DataManifest, EvaluationResult, PointProgress, PointResult
from isoloss_operator import api
from isoloss_operator.api.statuses import parse_conditions
from isoloss_operator.decide.fits import FitOutcome, FitRequest
from isoloss_operator.decide.reasons import Finding, Reason
from isoloss_operator.planning.specs import InvalidSpec

# -------------------------------------------------------------------------------------------- labels


JobKind = Literal["prepare", "train", "evaluate"]

LABEL_OWNER_UID = "isoloss.dev/owner-uid"
"""UID of the ScalingSweep or HyperparamPrediction: Jobs are listed by it."""
LABEL_KIND = "isoloss.dev/task"
"""prepare, train or evaluate."""
LABEL_KEY = "isoloss.dev/key"
"""Content key of the point, the preparation or the evaluation."""
LABEL_ATTEMPT = "isoloss.dev/attempt"
LABEL_STORE = "isoloss.dev/store"
"""Hash of the store's URI: a Job that writes elsewhere no longer belongs to the sweep."""
LABEL_GENERATION = "isoloss.dev/generation"
"""Generation of the spec that asked for the Job."""
LABEL_TEMPLATE = "isoloss.dev/template"
"""Digest of the pod template, Secrets and queue that were asked for, whatever webhooks made of them."""
LABEL_RECORDED = "isoloss.dev/recorded"
"""On Jobs whose outcome the stored ledger has: they are listed no more."""
LABEL_SWEEP = "isoloss.dev/sweep"
"""Name of the owner if it fits a label; for people."""


# ---------------------------------------------------------------------------------- what is observed


ENDED_PHASES = ("Succeeded", "Failed")


@dataclass(frozen=True, slots=True)
class ObservedPod:
    """The newest pod of a Job. Empty strings: not reported."""

    phase: str = "Pending"
    exit_code: int | None = None
    """Exit code of the container named trainer, once it terminated."""
    init_container: str = ""
    """Name of the init container that failed before it, whose exit code, reason and words these are then."""
    reason: str = ""
    """Why the pod or, if it does not say, the container ended: Evicted, OOMKilled, Error, …"""
    message: str = ""
    """status.message of the pod or the container's own, for people."""
    termination_message: str = ""
    """The text the trainer left: contract.TerminationMessage as JSON, or anything else."""
    waiting_reason: str = ""
    """CreateContainerConfigError, ImagePullBackOff, …"""
    waiting_message: str = ""
    unschedulable: str = ""
    """Message of PodScheduled=False with reason Unschedulable."""
    node: str = ""
    """Name of the node that it was on."""
    disruption: str = ""
    """Reason of the condition DisruptionTarget=True, for example PreemptionByScheduler."""
    deleting: bool = False


@dataclass(frozen=True)
class ObservedWorkload:
    """Kueue's Workload of a Job."""

    name: str
    """Empty: there is none and none is to be expected, as the Job is in no queue."""
    active: bool = True
    """spec.active: False means that a user, or Kueue itself, has taken it out of its queue."""
    evicted: str = ""
    """Reason of its condition Evicted: Preempted, PodsReadyTimeout, Deactivated, …; empty: it is not."""
    message: str = ""
    """Kueue's own words for why it is not admitted."""


@dataclass(frozen=True, slots=True)
class ObservedJob:
    """One batch/v1 Job of this resource (owner uid checked by the shell).

    Slots, as ten thousand are remembered: Python gives instances of more than 30 fields a dictionary of their own, which
    made each 1.9 kB instead of 0.5.
    """

    name: str
    uid: str
    kind: JobKind
    key: str
    """LABEL_KEY."""
    attempt: int
    store: str
    """LABEL_STORE."""
    created: datetime
    started: datetime | None = None
    suspended: bool = False
    """spec.suspend: Kueue has not admitted it, or has evicted it."""
    complete: bool = False
    failed: bool = False
    reason: str = ""
    """Reason of the Complete or Failed condition: BackoffLimitExceeded, DeadlineExceeded, …"""
    message: str = ""
    deleting: bool = False
    """Has a deletionTimestamp. Jobs are deleted in the foreground, so it stays until its pods end."""
    lost: bool = False
    """Its pod was to end long ago and its node does not say so. `failed` as well, although Kubernetes
    goes on waiting: such a Job must be deleted, or it would start again should the node come back."""
    outlived: bool = False
    """Its trainer container has ended and another container of its pod goes on. `complete` or `failed` as the
    trainer's exit says, although Kubernetes goes on waiting: such a Job must be deleted."""
    held_up: str = ""
    """Why its trainer container has not started, or Kueue has not noticed it, for a while: in the API server's own words
    if it has any."""
    unfinished_pods: int = 0
    """Pods neither Succeeded nor Failed, terminating ones included, lost ones not."""
    pod: ObservedPod | None = None
    generation: int = 0
    """LABEL_GENERATION; 0: not known."""
    template: str = ""
    """LABEL_TEMPLATE; empty: not known."""
    accelerators: int = 1
    """Devices that each of its pods holds; 1 if it requests none: the CPU."""
    pods: int = 1
    """Pods that share its work."""
    pods_together: int = 0
    """Pods without which none of a point's can train; 0: each does without the others."""
    ended: datetime | None = None
    """When it became complete or failed."""
    worked_seconds: float = 0.0
    """Sum over the trainer containers of listed pods that have ended, each from start to end."""
    gone_seconds: float = 0.0
    """Of the pods that are not listed any more, each to when it was last seen. One that takes their place may not start."""
    working_since: datetime | None = None
    """Start of the trainer container that runs now, of several the last."""
    pods_at_work: int = 1
    """How many run, if any does."""
    workload: ObservedWorkload | None = None
    """Read of suspended Jobs alone; None: there is none, or it may not be read."""
    indexed: bool = False
    """Several pods share its work, each by its number."""
    managed_externally: bool = False
    """Another controller runs it (spec.managedBy): its pods are in another cluster and cannot be seen."""

    @property
    def is_finished(self) -> bool:
        """Whether the Job itself says that it ended."""
        return self.complete or self.failed

    @property
    def is_at_work(self) -> bool:
        """Whether its trainer container runs, as seen from this cluster; of pods that train together all."""
        if self.managed_externally:
            return self.started is not None and not self.suspended
        complete = self.kind != "train" or self.pods_at_work >= max(self.pods, self.pods_together)
        return self.working_since is not None and complete

    @property
    def should_be_starting(self) -> bool:
        """Whether its trainer container should run and neither does nor has, for a reason that nothing here tells."""
        if self.is_finished or self.suspended or self.deleting or self.managed_externally:
            return False
        if self.working_since is not None or self.worked_seconds or self.pod is None:
            return self.pod is None
        return not (self.pod.unschedulable or self.pod.deleting or self.pod.phase in ENDED_PHASES)

    @property
    def must_be_deleted(self) -> bool:
        """Whether it has ended and Kubernetes does not know."""
        return self.lost or self.outlived

    @property
    def may_be_deleted(self) -> bool:
        """Whether it goes on unless it is deleted, and is not being deleted already."""
        return (self.must_be_deleted or not self.is_finished) and not self.deleting

    @property
    def holds_a_slot(self) -> bool:
        """Whether it counts toward parallelism: it may still run a pod, or one of its pods still runs."""
        return not self.is_finished or self.unfinished_pods > 0


# --------------------------------------------------------------------------------- either kind


@dataclass(frozen=True, kw_only=True)
class ObservedResource:
    """What a pass knows of a resource of either kind, at one moment, before it asks the store."""

    name: str
    namespace: str
    uid: str
    generation: int
    now: datetime
    """UTC, aware."""
    spec: api.ScalingSweepSpec | api.HyperparamPredictionSpec | InvalidSpec
    """Parsed once per pass."""
    status: Mapping[str, Any] = field(default_factory=dict)
    """As the API server returned it: transition times are kept from here."""
    jobs: tuple[ObservedJob, ...] = ()
    stopped: tuple[ObservedJob, ...] = ()
    """Jobs that were stopped without the ledger, which may not know of them yet, as they were then; see reconcile/memory.py."""
    orphaned_pods: tuple[str, ...] = ()
    """LABEL_KEY of each unfinished pod whose Job is gone already: it takes a slot, and no second pod may
    work on its key."""
    orphans: tuple[str, ...] = ()
    """Names of those pods."""
    operator_template: str = ""
    """Digest of what the operator's configuration makes of every pod."""
    create_error: str = ""
    """Why the API server refused the last Job of this generation (bad pod template, quota); empty once
    a Job was created or the generation changed."""
    refusal_may_pass: bool = False
    """Whether that refusal may end by itself, as that of a quota does."""
    lost_ledger: LostLedger | None = None
    """What an earlier pass said of a ledger that was lost, if the store has not taken the new one since."""
    store_write_error: str = ""
    """Why the store did not take what the last pass wrote, the ledger first; empty: it did."""
    write_error: str = ""
    """Which write other than a Job's creation the API server refused in the last pass; empty: none."""
    storage_refusal: str = ""
    """Why this namespace may not use what the spec names; empty: it may."""
    store_error: str = ""
    """Why the store could not be listed or written to; what is read of it is then unset."""
    page_seconds: float = 0.0
    """Since this process asked for a page last, or first saw the resource."""
    page_shows: str = ""
    """Request.inputs of the page that is drawn, or asked for."""
    page_drawn: bool = False
    """Whether this process has drawn one."""

    @cached_property
    def previous_conditions(self) -> Mapping[str, api.Condition]:
        """What the conditions of the status say, by type."""
        return parse_conditions(self.status)

    @property
    def storage_not_writable(self) -> Finding | None:
        """Nothing starts or stops before the store knows of it, so that nothing can be lost."""
        error = self.store_write_error
        return Finding(Reason.STORAGE_NOT_WRITABLE, error) if error else None

    @property
    def job_refused(self) -> Finding | None:
        """Retried one at a time; a quota may have room again, a bad pod template stays bad."""
        error, stalled = self.create_error, not self.refusal_may_pass
        return Finding(Reason.JOB_REFUSED, error, stalled=stalled) if error else None

    @property
    def write_refused(self) -> Finding | None:
        """A write without which the others made sense."""
        return Finding(Reason.REQUEST_REFUSED, self.write_error) if self.write_error else None

    def has_page(self, uri: str) -> bool:
        """Whether a page was drawn there, by this process or, as the status has it, by an earlier one."""
        return self.page_drawn or self.status.get("reportUri") == uri


@dataclass(frozen=True, kw_only=True)
class PointFiles:
    """What the store says of points."""

    results: Mapping[str, Read[PointResult]] = field(default_factory=dict)
    """Keyed by point key, for the keys of PointReads.results; keys left out are absent."""
    progress: Mapping[str, PointProgress] = field(default_factory=dict)
    """Keyed by point key, for the keys of PointReads.progress; unreadable ones are left out."""
    unchanged_since: Mapping[str, datetime] = field(default_factory=dict)
    """Keyed by Job uid: since when a running train Job has reported no progress."""


# --------------------------------------------------------------------------------------- sweeps


@dataclass(frozen=True, kw_only=True)
class ObservedSweep(ObservedResource, PointFiles):
    """A ScalingSweep and everything it depends on, at one moment."""

    spec: api.ScalingSweepSpec | InvalidSpec
    corpus_key: str = ""
    """Key of the corpus that `manifest` is of; empty: not known."""
    ledger: Read[Ledger] = ABSENT
    manifest: Read[DataManifest] = ABSENT
    """Absent as well until a prepare Job has said which corpus is of the sources as they are."""
    checkpoints: Mapping[str, ObservedCheckpoint] = field(default_factory=dict)
    """By URI without a trailing slash, those that sizes continue."""
    answers: Mapping[str, ObservedAnswer] = field(default_factory=dict)
    """By name, the predictions around whose answers points lie; one that does not exist is left out."""
    fit: FitOutcome | None = None
    """The newest outcome of a fit for this sweep, whatever ledger it belongs to."""
    fit_running: FitRequest | None = None
    """What is being fitted now; a fit that waits for its turn may be another."""
    report_missing: bool = False
    """`fit` was found without its report, which an earlier process was to draw; this one has not tried yet."""
    fit_waits: bool = False
    """A fit waits for a process, which works for others."""
    fit_in_backoff: bool = False
    """The last fit took so long, and ended so lately, that the next provisional one is to wait."""

    @cached_property
    def previous_status(self) -> api.ScalingSweepStatus:
        """What the last pass wrote; an empty status if that cannot be read."""
        return api.ScalingSweepStatus.read(self.status)


@dataclass(frozen=True)
class FirstReads:
    """What to read before anything else is known of a sweep; paths relative to the store."""

    store_uri: str
    folder: str
    """Folder of the sweep."""
    corpus: str
    """Where a prepare Job says which corpus is the sweep's."""
    sources: Mapping[str, str]
    """URIs of all that the sweep reads from outside its store, by the field that names them."""
    checkpoints: tuple[str, ...]
    """URIs of the checkpoints that sizes continue."""
    predictions: tuple[str, ...]
    """Names of the predictions around whose answers points lie."""


@dataclass(frozen=True)
class PointReads:
    """Which point records to read for a pass.

    List the Jobs first and read results afterwards: then the result of a Job that is seen to have
    ended cannot be missed.
    """

    results: tuple[str, ...] = ()
    """Point keys."""
    results_of_failed: tuple[str, ...] = ()
    """Keys of points that have failed for good, of which only another sweep could have written a result: now and
    then is enough."""
    progress: tuple[str, ...] = ()
    """Point keys."""
    stall_seconds: int | None = None
    """Policy.stall_seconds of the points."""


# ---------------------------------------------------------------------------------- predictions


@dataclass(frozen=True)
class ObservedReference:
    """The sweep that a prediction, or a search for its first points, refers to."""

    name: str
    uid: str
    generation: int
    spec: api.ScalingSweepSpec | InvalidSpec
    status: Mapping[str, Any]

    @cached_property
    def conditions(self) -> Mapping[str, api.Condition]:
        """What its conditions say, by type."""
        return parse_conditions(self.status)

    @cached_property
    def parsed_status(self) -> api.ScalingSweepStatus:
        """Its numbers; an empty status if they cannot be read."""
        return api.ScalingSweepStatus.read(self.status)


@dataclass(frozen=True)
class ObservedCheckpoint:
    """A checkpoint from which points of a sweep start."""

    stamp: Read[str]
    """Of its files; absent if they may not be listed, unreadable if they are no checkpoint."""
    config: Read[Mapping[str, Any]]
    """Its config.json."""


@dataclass(frozen=True)
class ObservedAnswer:
    """The prediction around whose answer points of a sweep lie."""

    generation: int
    spec: api.HyperparamPredictionSpec | InvalidSpec
    status: Mapping[str, Any]

    @cached_property
    def conditions(self) -> Mapping[str, api.Condition]:
        """What its conditions say, by type."""
        return parse_conditions(self.status)

    @cached_property
    def parsed_status(self) -> api.HyperparamPredictionStatus:
        """Its numbers; an empty status if they cannot be read."""
        return api.HyperparamPredictionStatus.read(self.status)


Course = Sequence[tuple[int, float]]
"""Tokens and the loss after them of each evaluation of a run."""


@dataclass(frozen=True)
class ObservedValidation:
    """The sweep whose points show whether an answer holds."""

    reference: ObservedReference | None = None
    """None: it does not exist, or none is asked for."""
    storage_refusal: str = ""
    """Why this namespace may not read its storage; empty: it may."""
    ledger: Read[Ledger] = ABSENT
    courses: Mapping[str, Read[Course]] = field(default_factory=dict)
    """By point key, for those of validation.courses_to_read."""


@dataclass(frozen=True)
class PublishedAnswer:
    """A ConfigMap that a prediction owns."""

    uid: str
    data: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class ObservedPrediction(ObservedResource):
    """A HyperparamPrediction and everything it depends on, at one moment; `jobs` are those of the evaluation."""

    spec: api.HyperparamPredictionSpec | InvalidSpec
    sweep: ObservedReference | None = None
    manifest: Read[DataManifest] = ABSENT
    """Manifest of the sweep's corpus."""
    corpus: Read[DataManifest] = ABSENT
    """As the ledger of a finished sweep has it; read if `manifest` is not that of its laws."""
    fit: Read[FitOutcome] = ABSENT
    """The sweep's laws as stored; `laws_sha256` names them."""
    checkpoint_stamp: Read[str] = ABSENT
    """Stamp of the files of spec.checkpoint; absent if they may not be listed, or there is none; unreadable if they are
    no checkpoint."""
    evaluation: Read[EvaluationResult] = ABSENT
    config_map: Mapping[str, Any] | None = None
    """What has the name that the spec publishes under, with any owner; the change to it is made from this."""
    config_map_foreign: bool = False
    """Whether that belongs to another owner."""
    config_map_goes: bool = False
    """Whether that is of a deleted prediction of this name: Kubernetes is about to remove it."""
    published: Mapping[str, PublishedAnswer] = field(default_factory=dict)
    """By name, every ConfigMap that this prediction owns."""
    publish_error: str = ""
    """Why the API server refused the ConfigMap in the last pass; empty: it did not."""
    publish_error_may_pass: bool = False
    """Whether that refusal may end by itself, as that of a quota does."""
    ledger: Read[Ledger] = ABSENT
    """Of the evaluation."""
    validation: ObservedValidation = ObservedValidation()

    @cached_property
    def previous_status(self) -> api.HyperparamPredictionStatus:
        """What the last pass wrote; an empty status if that cannot be read."""
        return api.HyperparamPredictionStatus.read(self.status)
