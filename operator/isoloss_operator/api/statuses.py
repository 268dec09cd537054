"""The statuses of the two resources: bounded in size, details are in the ledger.

Decimal numbers are strings, as the API conventions ask; texts and lists are bounded. Unknown fields are ignored
on reading: an older or newer operator may have written the status.
"""

from collections.abc import Mapping
from datetime import datetime
from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, ConfigDict, Field, ValidationError

from isoloss_contract.reading import parse_timestamp
from isoloss_operator.api.fields import ApiType


class StatusType(ApiType):
    """Base of the status types. Unknown fields are ignored."""

    model_config = ConfigDict(extra="ignore")

    def document(self) -> dict[str, Any]:
        """As the API server gets it: what is None is left out."""
        return self.model_dump(mode="json", by_alias=True, exclude_none=True)

    @classmethod
    def read(cls, raw: Mapping[str, Any]) -> Self:
        """A status as observed; an empty one if it cannot be read."""
        try:
            return cls.model_validate(raw)
        except ValidationError:
            return cls()


class Condition(StatusType):
    """metav1.Condition."""

    type: str = Field(max_length=316)
    """Type of the condition."""
    status: Literal["True", "False", "Unknown"]
    """True, False or Unknown."""
    reason: str = Field(max_length=1024)
    """Machine-readable reason of the last transition."""
    message: str = Field(max_length=2048)
    """What happened and what to do about it."""
    observed_generation: int = Field(default=0, json_schema_extra={"format": "int64"})
    """Generation of the spec that the condition was computed from."""
    last_transition_time: str = Field(json_schema_extra={"format": "date-time"})
    """Time of the last change of status."""

    @property
    def since(self) -> datetime | None:
        """When its status last changed; None if that cannot be read."""
        return parse_timestamp(self.last_transition_time)


def parse_conditions(status: Mapping[str, Any]) -> dict[str, Condition]:
    """The conditions of an observed status by type; those that cannot be read count as absent."""
    found: dict[str, Condition] = {}
    entries = status.get("conditions")
    for entry in entries if isinstance(entries, list) else ():
        try:
            condition = Condition.model_validate(entry)
        except ValidationError:
            continue
        found[condition.type] = condition
    return found


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
MAX_TEXT = 1024
"""Characters of a text: one that is longer, from a trainer or a store, must not keep a status from being written."""


def _cut(text: Any) -> Any:
    return text[: MAX_TEXT - 1] + "…" if isinstance(text, str) and len(text) > MAX_TEXT else text


StatusText = Annotated[str, Field(max_length=MAX_TEXT), BeforeValidator(_cut)]
# A map that an apply leaves empty becomes null when server-side apply merges it key by key, which the schema
# refuses for good. So it is replaced as a whole, and left out if there is nothing to say.
DomainLosses = Annotated[
    dict[str, StatusText],
    Field(max_length=32, json_schema_extra={"x-kubernetes-map-type": "atomic"}),
]


MAX_ENTRIES = 8
"""Of a list, as the operator writes it."""
MAX_ENTRY = 300
"""Bytes of a text in one."""


class PointCounts(StatusType):
    """Number of points by state."""

    total: int = 0
    """Number of all points."""
    pending: int = 0
    """Number of points without a Job and without a result."""
    active: int = 0
    """Number of points with a Job."""
    succeeded: int = 0
    """Number of points that reached their tokens."""
    diverged: int = 0
    """Number of points that diverged. A divergence is a result, not a failure."""
    failed: int = 0
    """Number of points that failed for good."""
    adopted: int = 0
    """Number of results that were found in the store instead of trained here."""


class IntervalStatus(StatusType):
    """A value with its interval, as decimal strings."""

    value: StatusText | None = None
    """Best estimate."""
    low: StatusText | None = None
    """Lower end of the 80% interval."""
    high: StatusText | None = None
    """Upper end of the 80% interval."""


class LawStatus(StatusType):
    """A fitted law, or why it is refused."""

    status: Literal["Fitted", "Provisional", "Refused"]
    """Fitted, Provisional (while the sweep runs) or Refused."""
    reason: StatusText = ""
    """Reason of the refusal."""
    message: StatusText = ""
    """The refusal in a sentence."""
    formula: StatusText = ""
    """The law with its coefficients."""
    quality: StatusText = ""
    """Goodness of fit."""


class OptimumStatus(StatusType):
    """Optimum of one iso-loss curve."""

    loss: StatusText
    """Loss in nats per token."""
    proxy: StatusText = ""
    """Proxy that reaches the loss with the least compute."""
    learning_rate: StatusText = ""
    """Optimal learning rate."""
    batch_size: StatusText = ""
    """Optimal batch size in sequences."""
    tokens: StatusText = ""
    """Tokens to reach the loss."""
    flops: StatusText = ""
    """FLOPs to reach the loss."""


class ActivePoint(StatusType):
    """A point that is training."""

    name: StatusText
    """Name of the Job."""
    tokens: int = Field(default=0, json_schema_extra={"format": "int64"})
    """Tokens seen so far."""
    loss: StatusText = ""
    """Last reported loss."""


class FailedPoint(StatusType):
    """A point that failed for good."""

    name: StatusText
    """Name of the point."""
    reason: StatusText
    """Class of the last failure."""
    message: StatusText = ""
    """Termination message of the last attempt."""


class LedgerReference(StatusType):
    """The ledger in the store."""

    uri: StatusText
    """URI of the ledger."""
    sha256: StatusText
    """Digest of the ledger that the status was computed from: of its content, not of its file."""


class PlacedSizeStatus(StatusType):
    """The first points of a size without a grid."""

    proxy: StatusText
    """Name of the size."""
    source: StatusText
    """Whose laws placed it, such as published:step-law."""
    learning_rates: Annotated[tuple[StatusText, ...], Field(max_length=9)] = ()
    """Peak learning rates."""
    batch_sizes: Annotated[tuple[int, ...], Field(max_length=9)] = ()
    """Sequences per optimizer step."""


class SearchStatus(StatusType):
    """What a sequential search has decided so far. The reason of each point is in the ledger."""

    ended: StatusText = ""
    """Why it ended: NotWorthItsCost, NothingLeft, AllDiverged or BudgetExhausted. Empty while it goes on."""
    message: StatusText = ""
    """What the last step chose, what that costs and is expected to save; or why the search ended."""
    finished: int = 0
    """Number of points that were trained to their proxy's tokens, or diverged."""
    paused: int = 0
    """Number of points that stopped on the way with a checkpoint and may go on."""
    not_chosen: int = 0
    """Number of points of the grid that were not trained at all."""
    added: int = 0
    """Number of points that were added beyond the edges of the grids."""
    saved_flops: StatusText = ""
    """FLOPs of the whole grid less those of all points, once the search has ended. Negative if added points cost more
    than was saved."""
    placed: Annotated[tuple[PlacedSizeStatus, ...], Field(max_length=20)] = ()
    """Sizes whose grid was left to the search."""


class SizeStatus(StatusType):
    """How far the points of one size are."""

    proxy: StatusText
    """Name of the size."""
    progress: StatusText = ""
    """Completed points of all points, such as 7/9."""
    trained: int = 0
    """Percent of the tokens that are wanted so far of all points together."""
    loss: StatusText = ""
    """Lowest loss among the points that were trained furthest, in nats per token."""


class ScalingSweepStatus(StatusType):
    """Observed state of the sweep. Details of every point are in the ledger."""

    observed_generation: int = Field(default=0, json_schema_extra={"format": "int64"})
    """Generation of the spec that the status was computed from. -1 before the first pass."""
    conditions: ConditionList = ()
    """Conditions: Accepted, DataReady, Progressing, FitReady, Ready, Suspended, Stalled and Reconciling."""
    points: PointCounts = PointCounts()
    """Number of points by state."""
    progress: StatusText = ""
    """Completed points of all points, such as 17/18."""
    sizes: Annotated[tuple[SizeStatus, ...], Field(max_length=20)] = ()
    """The sizes in the order of the spec."""
    planned_flops: StatusText = ""
    """FLOPs of the whole grid, counted as 6 * active parameters * tokens."""
    spent_flops: StatusText = ""
    """FLOPs of this sweep's own attempts, running, failed and dropped ones included, up to their last report."""
    accelerator_hours: StatusText = ""
    """Accelerator hours of the same attempts: running time of their pods times the accelerators that
    these held."""
    estimated_completion: StatusText = ""
    """Estimated time of completion, from the pace of each size so far (RFC 3339)."""
    learning_rate_law: LawStatus | None = None
    """Law of the optimal learning rate over loss."""
    batch_size_law: LawStatus | None = None
    """Law of the optimal batch size over loss."""
    loss_compute_law: LawStatus | None = None
    """Law of loss over compute, L(C)."""
    optima: tuple[OptimumStatus, ...] = Field(default=(), max_length=8)
    """Up to 8 of the optima. All of them are in laws.json."""
    active: tuple[ActivePoint, ...] = Field(default=(), max_length=8)
    """Up to 8 of the points that are training."""
    failures: tuple[FailedPoint, ...] = Field(default=(), max_length=8)
    """Up to 8 of the failed points."""
    warnings: tuple[StatusText, ...] = Field(default=(), max_length=8)
    """Warnings of the fit."""
    data_digest: StatusText = ""
    """Digest of the tokenized corpus."""
    ledger: LedgerReference | None = None
    """Ledger with the details of every point."""
    search: SearchStatus | None = None
    """The sequential search, if spec.search.strategy asks for one."""
    laws_uri: StatusText = ""
    """URI of laws.json."""
    laws_sha256: StatusText = ""
    """SHA-256 of laws.json."""
    report_uri: StatusText = ""
    """URI of the report page, at most a minute old while the sweep runs. Reconciling is True until the last one is
    drawn."""


class SearchCostStatus(StatusType):
    """Compute of the sweep compared with a grid search on the target itself, 6 * parameters * tokens."""

    sweep_flops: StatusText
    """FLOPs of the whole sweep."""
    direct_flops: StatusText
    """FLOPs of directRuns runs of the target with the planned budget."""
    direct_runs: int
    """Number of points of the sweep's largest grid."""
    saving: StatusText
    """1 - sweepFlops / directFlops. Negative if the sweep costs more."""
    planned_share: StatusText = ""
    """sweepFlops over those of the planned run: in the unit of expectedRegret.plannedShare."""


class ExpectedRegretStatus(StatusType):
    """What the answer is expected to lose to the best learning rate and batch size."""

    nats: StatusText
    """Loss per token."""
    planned_share: StatusText
    """The compute that this loss is worth, as a share of plannedFlops."""


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
    """paper or measured: the other composition; A: without the pre-training's compute; B: with that of its raw
    tokens. Of a second opinion, the published law or the other fitting route."""
    learning_rate: StatusText = ""
    """Learning rate."""
    batch_size: StatusText = ""
    """Batch size in sequences."""
    total_flops: StatusText = ""
    """Total compute in FLOPs."""


class ProbeStatus(StatusType):
    """One place near the answer at which points are trained, all its seeds together."""

    learning_rate: StatusText
    """Learning rate."""
    batch_size: StatusText
    """Batch size in sequences of the sweep's length."""
    state: StatusText
    """Pending, Succeeded, Diverged or Failed: of the least advanced seed; Diverged if any diverged."""
    loss: StatusText = ""
    """Loss at the end in nats per token, once all points are done at the tokens at which they are compared; mean over the
    seeds that have one."""
    difference: StatusText = ""
    """Loss less that at the answer, in nats, once all points are done."""
    standard_error: StatusText = ""
    """Standard error of the difference, from the noise between seeds; if nothing measures it, from the largest that
    it may be."""
    better: StatusText = ""
    """answer or neighbour, if one is better beyond noise."""


class ValidationStatus(StatusType):
    """The points of the sweep that spec.validation names, and what they say. The verdict is the condition Validated."""

    places: tuple[ProbeStatus, ...] = Field(default=(), max_length=8)
    """Where points are trained, around the answer first at it."""
    tokens: int = Field(default=0, json_schema_extra={"format": "int64"})
    """Tokens of each point: first those planned, then those at which all losses are compared."""
    beats_neighbours: bool | None = None
    """Whether the answer's loss is below that of every neighbour beyond noise; false if a neighbour's is
    below it. Absent if that is not known."""
    regret: IntervalStatus | None = None
    """Nats that the answer loses at the full budget, by these points alone."""
    direction: StatusText = ""
    """Where the better answer lies, such as: a higher learning rate."""
    question_digest: StatusText = ""
    """As status.questionDigest, with spec.validation: a verdict stands as
    long as it is the same."""


class RefinedStatus(StatusType):
    """Laws and points together, in addition to the laws' own answer."""

    learning_rate: IntervalStatus | None = None
    """Learning rate."""
    batch_size: IntervalStatus | None = None
    """Batch size in sequences, not rounded."""
    regret: IntervalStatus | None = None
    """Nats that the laws' own answer loses to the best one, by laws and points together."""


class BatchSizeRangeStatus(StatusType):
    """Batch sizes within a tolerance."""

    tolerance: StatusText = ""
    """Nats over the best batch size."""
    smallest: StatusText = ""
    """In sequences."""
    largest: StatusText = ""
    """In sequences."""


class HyperparamPredictionStatus(StatusType):
    """Observed state of the prediction: the answer and what it is based on."""

    observed_generation: int = Field(default=0, json_schema_extra={"format": "int64"})
    """Generation of the spec that the status was computed from. -1 before the first pass."""
    conditions: ConditionList = ()
    """Conditions: Accepted, Evaluated, Ready, Stale, Suspended, Stalled and Reconciling, and Validated if
    spec.validation asks for it."""
    initial_loss: IntervalStatus | None = None
    """Initial loss in nats per token. The interval follows from the standard error."""
    domain_losses: DomainLosses | None = None
    """Initial loss of each domain."""
    equivalent_flops: IntervalStatus | None = None
    """C_pre: FLOPs that reach the initial loss from scratch."""
    planned_flops: StatusText = ""
    """C_cpt: FLOPs of the planned continued pre-training."""
    total_flops: IntervalStatus | None = None
    """C_total = C_pre + C_cpt, in FLOPs."""
    target_loss: IntervalStatus | None = None
    """Predicted loss L(C_total) in nats per token."""
    learning_rate: IntervalStatus | None = None
    """Predicted learning rate."""
    batch_size: IntervalStatus | None = None
    """Predicted batch size in sequences."""
    batch_size_tokens: StatusText = ""
    """Predicted batch size in tokens."""
    batch_size_cost: IntervalStatus | None = None
    """Nats that spec.batchSize is expected to cost over the best batch size, if the laws know that one."""
    affordable_batch_sizes: BatchSizeRangeStatus | None = None
    """Batch sizes within spec.batchSizeTolerance. Absent if none is known to be; a warning then says so."""
    expected_regret: ExpectedRegretStatus | None = None
    """What the answer is expected to lose. Errors of C_pre are not counted."""
    search_cost: SearchCostStatus | None = None
    """Compute of the sweep compared with a grid search on the target itself."""
    extrapolation: ExtrapolationStatus | None = None
    """How far the answer lies beyond the sweep's data."""
    variants: tuple[VariantStatus, ...] = Field(default=(), max_length=4)
    """Answers under other assumptions about the pre-training."""
    second_opinions: tuple[VariantStatus, ...] = Field(default=(), max_length=8)
    """Answers of published laws and of the other fitting route."""
    warnings: tuple[StatusText, ...] = Field(default=(), max_length=8)
    """Warnings of the prediction."""
    sweep_generation: int = Field(default=0, json_schema_extra={"format": "int64"})
    """Generation of the sweep that the answer was computed from."""
    sweep_uid: StatusText = ""
    """UID of the sweep that the answer was computed from."""
    question_digest: StatusText = ""
    """Digest of what the spec asks: all but suspend, publish, validation and how the evaluation pod runs."""
    laws_sha256: StatusText = ""
    """SHA-256 of the laws.json that the answer was computed from."""
    ledger_sha256: StatusText = ""
    """SHA-256 of the ledger that the laws were fitted to."""
    evaluation_uri: StatusText = ""
    """URI of the measured initial loss."""
    report_uri: StatusText = ""
    """URI of the page with the answer, where it lies on the laws, and its validation. It is drawn after the answer."""
    validation: ValidationStatus | None = None
    """What the points of the sweep that spec.validation names say."""
    refined: RefinedStatus | None = None
    """Laws and points together, once the answer is judged. The answer above stays that of the laws."""
