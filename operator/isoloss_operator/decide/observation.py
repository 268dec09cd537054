"""What the shell tells the core and what the core answers: the whole world in one value, a plan back.

The shell fills `ObservedSweep` (all reads first), calls `decide_sweep`, and carries out the
`SweepPlan` (all writes last). Nothing here does I/O; the clock is a field.

Order in which a plan is carried out, so that being killed in between is harmless:
ledger -> set aside -> delete -> expire -> create -> fit -> status -> events.
A failing step ends the pass; the next pass observes again and decides anew.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any, Literal

from isoloss_contract.ledger import Ledger
from isoloss_contract.records import (
    DataManifest,
    EvaluateTask,
    EvaluationResult,
    PointConfig,
    PointProgress,
    PointResult,
    PrepareTask,
    TrainTask,
)
from isoloss_contract.store import StoreError
from isoloss_operator.api import HyperparamPredictionStatus, ScalingSweepStatus

if TYPE_CHECKING:  # the laws bring numpy along; whoever only moves Jobs around needs none of it
    from isoloss.laws import FitOptions, Laws

JobKind = Literal["prepare", "train", "evaluate"]

LABEL_OWNER_UID = "isoloss.dev/owner-uid"
"""UID of the ScalingSweep or HyperparamPrediction: Jobs are listed by it."""
LABEL_KIND = "isoloss.dev/task"
"""prepare, train or evaluate."""
LABEL_KEY = "isoloss.dev/key"
"""Content key of the point, the preparation or the evaluation."""
LABEL_ATTEMPT = "isoloss.dev/attempt"
LABEL_STORE = "isoloss.dev/store"
"""Hash of the store's URI: a Job that writes elsewhere is not this sweep's any more."""
LABEL_GENERATION = "isoloss.dev/generation"
"""Generation of the spec that asked for the Job."""
LABEL_SWEEP = "isoloss.dev/sweep"
"""Name of the owner where it fits a label; for people."""


# ------------------------------------------------------------------------------- what is observed


@dataclass(frozen=True)
class ObservedPod:
    """The newest pod of a Job, as far as the core cares. Empty strings: nothing to tell."""

    phase: str = "Pending"
    exit_code: int | None = None
    """Of the container named trainer, once it terminated."""
    reason: str = ""
    """Why the container or, where it never ran, the pod ended: OOMKilled, Evicted, Error, …"""
    message: str = ""
    """status.message of the pod or the container's own, for people."""
    termination_message: str = ""
    """The text the trainer left: contract.TerminationMessage as JSON, or anything at all."""
    waiting_reason: str = ""
    """CreateContainerConfigError, ImagePullBackOff, …"""
    waiting_message: str = ""
    unschedulable: str = ""
    """Message of PodScheduled=False with reason Unschedulable."""
    disruption: str = ""
    """Reason of the condition DisruptionTarget=True, for example PreemptionByScheduler."""
    deleting: bool = False


@dataclass(frozen=True)
class ObservedJob:
    """One batch/v1 Job of this resource (owner uid checked by the shell)."""

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
    """spec.suspend: Kueue has not admitted it, or took it back."""
    complete: bool = False
    failed: bool = False
    reason: str = ""
    """Of the Complete or Failed condition: BackoffLimitExceeded, DeadlineExceeded, …"""
    message: str = ""
    deleting: bool = False
    """Has a deletionTimestamp. Jobs are deleted in the foreground, so it stays until its pods end."""
    expires: bool = False
    """spec.ttlSecondsAfterFinished is set."""
    unfinished_pods: int = 0
    """Pods neither Succeeded nor Failed, terminating ones included."""
    pod: ObservedPod | None = None
    generation: int = 0
    """LABEL_GENERATION; 0: not known."""
    accelerators: int = 1
    """Devices that its pod holds; 1 where it asks for none: the processor."""
    ended: datetime | None = None
    """When it became complete or failed."""
    worked_seconds: float = 0.0
    """From start to end of the trainer containers that are known to have ended, summed."""
    working_since: datetime | None = None
    """Start of the trainer container that runs now."""

    def accelerator_seconds(self, now: datetime) -> float:
        """Seconds times devices that its pods held until `now`, as far as the API server knows.

        Pods that a Job replaced and that are gone can not be counted. Where none at all is left of a
        failed Job, its own times stand in: some of them may have been spent waiting for a node.
        """
        seconds = self.worked_seconds
        if self.working_since is not None:
            seconds += (now - self.working_since).total_seconds()
        if (
            self.failed
            and self.pod is None
            and self.started is not None
            and self.ended is not None
        ):
            seconds = (self.ended - self.started).total_seconds()
        return self.accelerators * max(0.0, seconds)

    @property
    def is_finished(self) -> bool:
        """Whether the Job itself says that it ended."""
        return self.complete or self.failed

    @property
    def holds_a_slot(self) -> bool:
        """Counts toward parallelism: may still run a pod, or one of its pods still runs."""
        return not self.is_finished or self.unfinished_pods > 0


@dataclass(frozen=True)
class FitOutcome:
    """What came of a FitRequest. The shell keeps the newest and finds it again after a restart."""

    inputs: str
    """FitRequest.inputs that it answers."""
    laws: Laws | None
    """None where the fit could not run at all; refusals live inside Laws."""
    laws_sha256: str = ""
    """Of laws.json."""
    report_written: bool = False
    ledger_sha256: str = ""
    """Of the ledger it was fitted to."""
    points: int = 0
    """Runs that took part."""
    unreadable: tuple[tuple[str, str], ...] = ()
    """(point key, message): trajectories that are missing, truncated or do not match their result's
    digest. The core takes those points back and runs them again."""
    error: str = ""
    """Where the fit itself failed, in a sentence."""


@dataclass(frozen=True)
class ObservedSweep:
    """A ScalingSweep and everything it depends on, at one moment."""

    name: str
    namespace: str
    uid: str
    generation: int
    now: datetime
    """UTC, aware."""
    spec: Mapping[str, Any]
    """As the API server returned it."""
    status: Mapping[str, Any] = field(default_factory=dict)
    """As the API server returned it: transition times are kept from here."""
    jobs: tuple[ObservedJob, ...] = ()
    loose_pods: tuple[str, ...] = ()
    """LABEL_KEY of each unfinished pod of this sweep whose Job object is gone already: it holds a slot,
    and no second pod may work on its key."""
    storage_refusal: str = ""
    """Why this namespace may not use spec.storage.uri; empty: it may."""
    store_error: str = ""
    """Why the store could not be asked at all; the fields below are then empty."""
    manifest: DataManifest | StoreError | None = None
    """None: not written yet. StoreError: it lies there but can not be used (BadRecord)."""
    ledger: Ledger | StoreError | None = None
    """None: none written yet. StoreError: it lies there but can not be read (BadRecord)."""
    results: Mapping[str, PointResult | StoreError] = field(default_factory=dict)
    """By point key, for the keys of SweepReads.results; absent keys have no result (NotFound)."""
    progress: Mapping[str, PointProgress] = field(default_factory=dict)
    """By point key, for the keys of SweepReads.progress; unreadable ones are left out."""
    like_configs: Mapping[str, Mapping[str, Any] | StoreError] = field(default_factory=dict)
    """config.json by checkpoint, for the URIs of FirstReads.like_checkpoints. StoreError: there is none
    (NotFound), or it is no JSON object (BadRecord)."""
    fit: FitOutcome | None = None
    """The newest outcome of a fit for this sweep, whatever ledger it belongs to."""
    fit_running: FitRequest | None = None
    """What is being fitted now; a fit that only waits for its turn may still be another."""
    create_error: str = ""
    """Why the API server refused the last Job of this generation (bad pod template, quota); empty once
    a create succeeded or the generation changed."""


@dataclass(frozen=True)
class FirstReads:
    """What to read before anything else is known of a sweep; paths relative to the store."""

    store_uri: str
    manifest: str
    ledger: str
    like_checkpoints: Mapping[str, str] = field(default_factory=dict)
    """URIs of checkpoints whose config.json is wanted, by the field that names them."""


@dataclass(frozen=True)
class SweepReads:
    """Which point records to read for a pass.

    List the Jobs first and read results afterwards: then the result of a Job that is seen to have
    ended can not be missed.
    """

    results: tuple[str, ...]
    """Point keys."""
    progress: tuple[str, ...]
    """Point keys; only for display."""


# -------------------------------------------------------------------------------- what is to be done


@dataclass(frozen=True)
class JobRequest:
    """A Job to create. Its name is deterministic: finding it there already (409) is fine."""

    name: str
    kind: JobKind
    attempt: int
    task: PrepareTask | TrainTask | EvaluateTask
    labels: Mapping[str, str]
    """Of the Job and its pod; LABEL_* above. The shell adds none that the core would need."""
    pod_templates: tuple[Mapping[str, Any], ...] = ()
    """Partial PodTemplateSpecs in order, later ones win: the sweep's, then that of its data, the
    proxy or the checkpoint. The operator's own configuration comes before all of them."""
    secret_names: tuple[str, ...] = ()
    """Secrets whose keys become environment variables of the pod; later ones win."""
    local_queue: str = ""
    """Kueue: label the Job and create it suspended; empty: no queue."""
    priority_class: str = ""
    """Kueue WorkloadPriorityClass."""
    deadline_seconds: int | None = None
    """activeDeadlineSeconds of the Job; None: no deadline."""


@dataclass(frozen=True)
class JobDeletion:
    """A Job to delete in the foreground (its pods get SIGTERM and time to checkpoint)."""

    name: str
    uid: str
    """Precondition: never delete a namesake."""
    why: str


@dataclass(frozen=True)
class JobExpiry:
    """A finished, recorded Job: let Kubernetes remove it `seconds` after it ended."""

    name: str
    seconds: int


@dataclass(frozen=True)
class SetAside:
    """Rename an unusable object, so that a later attempt can write it anew and people can look at it."""

    path: str
    aside: str
    why: str


@dataclass(frozen=True)
class FitPoint:
    """One finished point to fit: where its trajectory lies and what it was."""

    key: str
    name: str
    config: PointConfig
    trajectory_path: str
    trajectory_sha256: str
    diverged: bool


@dataclass(frozen=True)
class MissingPoint:
    """A point that takes no part in a fit, for the report's table: nothing is dropped in silence."""

    name: str
    batch_size: int
    learning_rate: float
    state: str
    reason: str


@dataclass(frozen=True)
class FitRequest:
    """Fit these points, write laws.json and the report, and show the outcome in the next pass."""

    inputs: str
    """Hash of all that goes into the fit: equal inputs need no second fit."""
    points: tuple[FitPoint, ...]
    options: FitOptions
    weights: Literal["averaged", "raw"]
    provisional: bool
    ledger_sha256: str
    laws_path: str
    report_path: str
    missing: tuple[MissingPoint, ...] = ()


@dataclass(frozen=True)
class Event:
    """A Kubernetes event on the resource; sent after the status was written."""

    type: Literal["Normal", "Warning"]
    reason: str
    message: str


@dataclass(frozen=True)
class SweepPlan:
    """What is to be done about a sweep now. See the module's docstring for the order."""

    status: ScalingSweepStatus
    ledger: Ledger | None = None
    """Write it (Ledger.document()) before anything else; None: unchanged."""
    set_aside: tuple[SetAside, ...] = ()
    delete: tuple[JobDeletion, ...] = ()
    expire: tuple[JobExpiry, ...] = ()
    create: tuple[JobRequest, ...] = ()
    fit: FitRequest | None = None
    events: tuple[Event, ...] = ()
    requeue_after: float = 60.0
    """Seconds until the next pass if nothing happens before."""


# -------------------------------------------------------------------------------------- predictions


@dataclass(frozen=True)
class ObservedReference:
    """The sweep that a prediction refers to."""

    name: str
    uid: str
    generation: int
    spec: Mapping[str, Any]
    status: Mapping[str, Any]


@dataclass(frozen=True)
class ObservedPrediction:
    """A HyperparamPrediction and everything it depends on, at one moment."""

    name: str
    namespace: str
    uid: str
    generation: int
    now: datetime
    spec: Mapping[str, Any]
    status: Mapping[str, Any] = field(default_factory=dict)
    jobs: tuple[ObservedJob, ...] = ()
    """Evaluate Jobs owned by this prediction."""
    sweep: ObservedReference | None = None
    storage_refusal: str = ""
    """Why this namespace may not read the checkpoint's URI or the sweep's storage."""
    store_error: str = ""
    manifest: DataManifest | StoreError | None = None
    """Of the sweep's corpus."""
    fit: FitOutcome | None = None
    """The sweep's laws as they lie in the store; `laws_sha256` names them."""
    evaluation: EvaluationResult | StoreError | None = None
    """For PredictionReads.evaluation; None: not written yet."""
    config_map_foreign: bool = False
    """A ConfigMap of the wanted name exists and is not this prediction's."""
    published: Mapping[str, str] = field(default_factory=dict)
    """Name and uid of every ConfigMap that is this prediction's, under whatever name."""
    create_error: str = ""


@dataclass(frozen=True)
class PredictionReads:
    """What to read for a prediction; paths relative to the sweep's store."""

    store_uri: str
    manifest: str
    laws: str


@dataclass(frozen=True)
class ConfigMapRequest:
    """The published answer: server-side apply it, owned by the prediction."""

    name: str
    data: Mapping[str, str]


@dataclass(frozen=True)
class ConfigMapDeletion:
    """A ConfigMap of this prediction to delete: it was published under a former name."""

    name: str
    uid: str
    """Precondition: never delete a namesake."""


@dataclass(frozen=True)
class PredictionPlan:
    """What is to be done about a prediction now; same order as a sweep's plan."""

    status: HyperparamPredictionStatus
    set_aside: tuple[SetAside, ...] = ()
    delete: tuple[JobDeletion, ...] = ()
    expire: tuple[JobExpiry, ...] = ()
    create: tuple[JobRequest, ...] = ()
    publish: ConfigMapRequest | None = None
    withdraw: tuple[ConfigMapDeletion, ...] = ()
    """After the publication, so that a reader who knows both names always finds one."""
    events: tuple[Event, ...] = ()
    requeue_after: float = 60.0
