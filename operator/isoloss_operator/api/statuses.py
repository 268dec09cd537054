"""What the operator reports of the two resources: constant in size, traceable to the ledger.

Numbers are decimal strings, for an API has no floats; every text and list is bounded. Reading is
lenient (an older or newer operator may have written the status), writing is the operator's alone.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import ConfigDict, Field

from isoloss_operator.api.fields import ApiType


class StatusType(ApiType):
    """Base of the status types: a field that this version does not know is passed over."""

    model_config = ConfigDict(extra="ignore")


class Condition(StatusType):
    """metav1.Condition."""

    type: str = Field(max_length=316)
    """Kind of the condition."""
    status: Literal["True", "False", "Unknown"]
    """Whether it holds."""
    reason: str = Field(max_length=1024)
    """CamelCase cause."""
    message: str = Field(max_length=2048)
    """What happened and what to do."""
    observed_generation: int = Field(default=0, json_schema_extra={"format": "int64"})
    """Generation of the spec it speaks of."""
    last_transition_time: str = Field(json_schema_extra={"format": "date-time"})
    """When status last changed."""


ConditionList = Annotated[
    tuple[Condition, ...],
    Field(
        max_length=16,
        json_schema_extra={
            "x-kubernetes-list-type": "map",
            "x-kubernetes-list-map-keys": ["type"],
        },
    ),
]
StatusText = Annotated[str, Field(max_length=1024)]


class PointCounts(StatusType):
    """Points by state."""

    total: int = 0
    """All points."""
    pending: int = 0
    """Not started."""
    active: int = 0
    """With a Job."""
    succeeded: int = 0
    """Reached their tokens."""
    diverged: int = 0
    """Ended in divergence: a result, not an error."""
    failed: int = 0
    """Failed for good."""
    adopted: int = 0
    """Of those done, found in the store instead of trained by this sweep."""


class IntervalStatus(StatusType):
    """A value with its interval, as decimal strings."""

    value: StatusText | None = None
    """Best estimate."""
    low: StatusText | None = None
    """Lower end of the 80 % interval."""
    high: StatusText | None = None
    """Upper end of the 80 % interval."""


class LawStatus(StatusType):
    """One fitted law, or why there is none."""

    status: Literal["Fitted", "Provisional", "Refused"]
    """Fitted, provisional (the sweep still runs) or refused."""
    reason: StatusText = ""
    """Why it is refused."""
    message: StatusText = ""
    """The same in a sentence."""
    formula: StatusText = ""
    """The law with its numbers."""
    quality: StatusText = ""
    """Goodness of fit."""


class OptimumStatus(StatusType):
    """One optimum of the iso-loss curves."""

    loss: StatusText
    """Nats per token."""
    proxy: StatusText = ""
    """Model size of least compute."""
    learning_rate: StatusText = ""
    """At the vertex."""
    batch_size: StatusText = ""
    """At the vertex, sequences."""
    tokens: StatusText = ""
    """To reach the loss."""
    flops: StatusText = ""
    """To reach the loss."""


class ActivePoint(StatusType):
    """A point that trains now."""

    name: StatusText
    """Job name."""
    tokens: int = Field(default=0, json_schema_extra={"format": "int64"})
    """Seen so far."""
    loss: StatusText = ""
    """Newest training or validation loss."""


class FailedPoint(StatusType):
    """A point that failed for good."""

    name: StatusText
    """Point."""
    reason: StatusText
    """Class of the failure."""
    message: StatusText = ""
    """Last words."""


class LedgerReference(StatusType):
    """Where every point's details lie."""

    uri: StatusText
    """Ledger in the store."""
    sha256: StatusText
    """Digest of the ledger that this status was computed from."""


class ScalingSweepStatus(StatusType):
    """Constant in size: details lie in the ledger."""

    observed_generation: int = Field(default=0, json_schema_extra={"format": "int64"})
    """Generation of the spec that this status speaks of."""
    conditions: ConditionList = ()
    """Accepted, DataReady, Progressing, FitReady, Ready, Suspended, Stalled, Reconciling."""
    points: PointCounts = PointCounts()
    """Points by state."""
    progress: StatusText = ""
    """Done of all points, for the printer column."""
    planned_flops: StatusText = ""
    """Of the whole grid, by 6 * active parameters * tokens."""
    spent_flops: StatusText = ""
    """By this sweep's own attempts that ended, also those that came to nothing; an attempt without a
    result counts as far as it reported."""
    accelerator_hours: StatusText = ""
    """Of this sweep's own attempts that ended, also those that came to nothing: from start to end of
    their pods times the accelerators these held."""
    estimated_completion: StatusText = ""
    """RFC 3339, from the speed so far."""
    learning_rate_law: LawStatus | None = None
    """g(L): optimal learning rate against loss."""
    batch_size_law: LawStatus | None = None
    """f(L): optimal batch size against loss."""
    loss_compute_law: LawStatus | None = None
    """L(C)."""
    optima: tuple[OptimumStatus, ...] = Field(default=(), max_length=8)
    """A few of the optima; all are in laws.json."""
    active: tuple[ActivePoint, ...] = Field(default=(), max_length=8)
    """A few of the points that train now."""
    failures: tuple[FailedPoint, ...] = Field(default=(), max_length=8)
    """A few of the failed points."""
    warnings: tuple[StatusText, ...] = Field(default=(), max_length=8)
    """What the fit warns of."""
    data_digest: StatusText = ""
    """Digest of the tokenised corpus."""
    ledger: LedgerReference | None = None
    """Every point's details."""
    laws_uri: StatusText = ""
    """laws.json in the store."""
    laws_sha256: StatusText = ""
    """Digest of laws.json."""
    report_uri: StatusText = ""
    """Report page in the store."""


class SearchCostStatus(StatusType):
    """Compute of the sweep beside a grid search on the target itself, 6 * parameters * tokens."""

    sweep_flops: StatusText
    """FLOPs of the whole sweep."""
    direct_flops: StatusText
    """FLOPs of directRuns runs of the target with the planned budget."""
    direct_runs: int
    """Number of points of the sweep's largest grid."""
    saving: StatusText
    """1 - sweepFlops / directFlops. Negative where the sweep costs more."""


class ExtrapolationStatus(StatusType):
    """How far the answer lies beyond the sweep's data."""

    compute_factor: StatusText
    """C_total over the largest compute of the sweep. At most 1 inside the data."""
    loss_distance: StatusText = ""
    """Lowest loss of the sweep's optima less the target loss, nats per token."""
    parameters_factor: StatusText = ""
    """Active parameters of the target over those of the largest proxy."""


class VariantStatus(StatusType):
    """An answer under another assumption."""

    name: StatusText
    """A: ignoring what was trained before; B: counting raw pre-training tokens; or the name of a
    published law or of the other fitting route."""
    learning_rate: StatusText = ""
    """Its learning rate."""
    batch_size: StatusText = ""
    """Its batch size in sequences."""
    total_flops: StatusText = ""
    """Its total compute."""


class HyperparamPredictionStatus(StatusType):
    """The answer and everything it rests on."""

    observed_generation: int = Field(default=0, json_schema_extra={"format": "int64"})
    """Generation of the spec that this status speaks of."""
    conditions: ConditionList = ()
    """Accepted, Evaluated, Ready, Stale, Stalled, Reconciling."""
    initial_loss: IntervalStatus | None = None
    """Nats per token, with its interval from the standard error."""
    domain_losses: dict[str, StatusText] = Field(default_factory=dict, max_length=32)
    """Initial loss of each domain."""
    equivalent_flops: IntervalStatus | None = None
    """C_pre: compute that reaches the initial loss from scratch."""
    planned_flops: StatusText = ""
    """C_cpt."""
    total_flops: IntervalStatus | None = None
    """C_total = C_pre + C_cpt."""
    target_loss: IntervalStatus | None = None
    """L(C_total)."""
    learning_rate: IntervalStatus | None = None
    """The predicted learning rate."""
    batch_size: IntervalStatus | None = None
    """The predicted batch size in sequences."""
    batch_size_tokens: StatusText = ""
    """The same in tokens."""
    search_cost: SearchCostStatus | None = None
    """Compute of the sweep beside a grid search on the target itself."""
    extrapolation: ExtrapolationStatus | None = None
    """How far the answer lies beyond the sweep's data."""
    variants: tuple[VariantStatus, ...] = Field(default=(), max_length=4)
    """Variants A and B."""
    second_opinions: tuple[VariantStatus, ...] = Field(default=(), max_length=8)
    """What published laws and the other fitting route say."""
    warnings: tuple[StatusText, ...] = Field(default=(), max_length=8)
    """What to mind."""
    sweep_generation: int = Field(default=0, json_schema_extra={"format": "int64"})
    """Generation of the sweep it was computed from."""
    sweep_uid: StatusText = ""
    """The sweep it was computed from."""
    laws_sha256: StatusText = ""
    """Digest of the laws it was computed from."""
    ledger_sha256: StatusText = ""
    """Digest of the ledger behind the laws."""
    evaluation_uri: StatusText = ""
    """Where the measured initial loss lies."""
