"""What is to be done, as the shell carries it out.

The order of the writes makes being killed in between harmless:
publish -> ledger -> quarantine -> fit -> delete -> expire -> create -> status -> events.
The publication goes first: a withdrawn answer must not stay published because a store or a quota refuses the rest.
The fit does not wait for Jobs that may be refused.
A step that fails ends the pass; the next pass observes and decides again.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from isoloss_contract.ledger import Ledger
from isoloss_contract.records import EvaluateTask, PrepareTask, TrainTask
from isoloss_operator.api import HyperparamPredictionStatus, ScalingSweepStatus
from isoloss_operator.decide.fits import AnswerPage, FitRequest, SweepPage
from isoloss_operator.decide.observation import JobKind


@dataclass(frozen=True)
class JobRequest:
    """A Job to create. Its name is deterministic: finding it there already (409) is fine."""

    name: str
    kind: JobKind
    attempt: int
    task: PrepareTask | TrainTask | EvaluateTask
    labels: Mapping[str, str]
    """Labels of the Job and its pod, see observation.py. The shell adds none that a decision needs."""
    pod_templates: tuple[Mapping[str, Any], ...] = ()
    """Partial PodTemplateSpecs in order, later ones win: the sweep's, then that of its data, the
    proxy or the checkpoint. The operator's own configuration comes before all of them."""
    secret_names: tuple[str, ...] = ()
    """Secrets whose keys become environment variables of the pod; later ones win."""
    local_queue: str = ""
    """Kueue: label the Job and create it suspended; empty: no queue."""
    priority_class: str = ""
    """Kueue WorkloadPriorityClass."""
    managed_by: str = ""
    """spec.managedBy of the Job; empty: the cluster's own Job controller runs it."""
    deadline_seconds: int | None = None
    """activeDeadlineSeconds of the Job; None: no deadline."""


@dataclass(frozen=True)
class JobDeletion:
    """A Job to delete in the foreground (its pods get SIGTERM and time to checkpoint)."""

    name: str
    uid: str
    """Precondition: never delete a namesake."""


@dataclass(frozen=True)
class JobExpiry:
    """A finished, recorded Job for Kubernetes to remove `seconds` after it ended."""

    name: str
    seconds: int


@dataclass(frozen=True)
class Quarantine:
    """An unusable object to rename, never to delete: a later attempt writes its name again, and people can look at it."""

    path: str
    suffix: str

    @property
    def new_path(self) -> str:
        """Its name from then on."""
        return f"{self.path}.{self.suffix}"


@dataclass(frozen=True)
class Event:
    """A Kubernetes event on the resource; sent after the status was written."""

    type: Literal["Normal", "Warning"]
    reason: str
    message: str


@dataclass(frozen=True, kw_only=True)
class TaskWrites:
    """What is to be written for the tasks of a ledger."""

    ledger: Ledger | None = None
    """Write it before anything else; None: unchanged."""
    quarantined: tuple[Quarantine, ...] = ()
    delete: tuple[JobDeletion, ...] = ()
    expire: tuple[JobExpiry, ...] = ()
    create: tuple[JobRequest, ...] = ()


@dataclass(frozen=True, kw_only=True)
class SweepPlan(TaskWrites):
    """What is to be done about a sweep now. See the module's docstring for the order."""

    status: ScalingSweepStatus
    fit: FitRequest | None = None
    page: SweepPage | None = None
    """The page to draw meanwhile; None: none, or a fit draws it."""
    events: tuple[Event, ...] = ()
    requeue_after: float = 60.0
    """Seconds until the next pass unless an event comes first; infinite: nothing is under way."""


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
    at_once: bool = False
    """It says what is no answer any more: it goes although the new name cannot be published under."""


@dataclass(frozen=True, kw_only=True)
class PredictionPlan(TaskWrites):
    """What is to be done about a prediction now; same order as a sweep's plan."""

    status: HyperparamPredictionStatus
    publish: ConfigMapRequest | None = None
    withdraw: tuple[ConfigMapDeletion, ...] = ()
    """After the publication, so that a reader who knows both names always finds one."""
    page: AnswerPage | None = None
    """The page of the answer to draw."""
    events: tuple[Event, ...] = ()
    requeue_after: float = 60.0
    """As a sweep's."""
