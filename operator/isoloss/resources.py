"""The two resources, `ScalingSweep` and `HyperparamPrediction`: the one source of the CRDs.

The docstring under each field becomes its description in `kubectl explain`; bounds and CEL rules
become the API server's own checks. Decimal numbers are quoted strings, as the API conventions ask
(no floats in a spec); counts are integers; FLOPs are strings because they exceed 2**53.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel

GROUP = "isoloss.dev"
VERSION = "v1alpha1"
API_VERSION = f"{GROUP}/{VERSION}"
SWEEP_KIND = "ScalingSweep"
SWEEP_PLURAL = "scalingsweeps"
PREDICTION_KIND = "HyperparamPrediction"
PREDICTION_PLURAL = "hyperparampredictions"

MAX_POINTS = 10_000
"""Points of one sweep, over all proxies."""

DECIMAL_PATTERN = r"^[0-9]+(\.[0-9]+)?([eE][-+]?[0-9]{1,3})?$"


def rules(*pairs: tuple[str, str]) -> dict[str, Any]:
    """CEL rules of a type or field: (expression, message) each."""
    return {"x-kubernetes-validations": [{"rule": r, "message": m} for r, m in pairs]}


class ApiType(BaseModel):
    """Base of every API type: frozen, camelCase on the wire, field docstrings are descriptions."""

    model_config = ConfigDict(
        frozen=True,
        alias_generator=to_camel,
        populate_by_name=True,
        use_attribute_docstrings=True,
        extra="ignore",
    )


POSITIVE = rules(
    (
        "double(self) > 0.0 && double(self) < 1e300",
        'must be a positive number, quoted, such as "2e-4"',
    )
)
Decimal = Annotated[
    str, Field(pattern=DECIMAL_PATTERN, min_length=1, max_length=32, json_schema_extra=POSITIVE)
]
"""A positive decimal number as a string."""
NonNegativeDecimal = Annotated[str, Field(pattern=DECIMAL_PATTERN, min_length=1, max_length=32)]
DnsLabel = Annotated[
    str, Field(pattern=r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$", min_length=1, max_length=63)
]
ObjectName = Annotated[
    str, Field(pattern=r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$", min_length=1, max_length=253)
]
StoreUri = Annotated[
    str,
    Field(
        min_length=6,
        max_length=1024,
        pattern=r"^(s3|gs|file)://.+$",
        json_schema_extra=rules(
            (
                "!self.contains('/../') && !self.endsWith('/..')",
                "must not contain '..' as a path segment",
            )
        ),
    ),
]
PositiveTokens = Annotated[int, Field(ge=1, le=2**53, json_schema_extra={"format": "int64"})]
NonNegativeTokens = Annotated[int, Field(ge=0, le=2**53, json_schema_extra={"format": "int64"})]


# --------------------------------------------------------------------------- ScalingSweep: spec


class Storage(ApiType):
    """Where everything the sweep makes is kept."""

    uri: StoreUri
    """Folder for tokenised data, points, ledger and laws (s3://, gs:// or file://). The operator's
    configuration decides which prefixes a namespace may name."""
    secret_name: ObjectName | None = None
    """Secret in the sweep's namespace whose keys become environment variables of the pods, such as
    AWS_ACCESS_KEY_ID. The operator itself never reads it."""


class Domain(ApiType):
    """One part of the corpus."""

    name: DnsLabel
    """Name under which losses are reported."""
    uri: StoreUri
    """Files or a glob pattern: .parquet, .jsonl, .json, .arrow or .txt, plain, .gz or .zst."""
    text_field: str = Field(default="text", min_length=1, max_length=253)
    """Field of each document that holds the text."""
    weight: int = Field(ge=1, le=1_000_000)
    """Share of the training tokens, relative to the other domains; also its weight in the
    validation loss."""


class Validation(ApiType):
    """The held-out documents."""

    documents_per_thousand: int = Field(default=5, ge=1, le=500)
    """Documents held out of training, chosen by a hash of their text."""
    sequences_per_domain: int = Field(default=1024, ge=1, le=1_000_000)
    """At most this many fixed sequences of each domain are evaluated, the same for every run."""


class Data(ApiType):
    """The corpus and how it is tokenised."""

    model_config = ConfigDict(
        json_schema_extra=rules(
            (
                "self.domains.all(a, self.domains.exists_one(b, b.name == a.name))",
                "domain names must be unique",
            )
        )
    )

    tokenizer: StoreUri
    """Folder with a tokenizer in Hugging Face format (tokenizer.json)."""
    sequence_length: int = Field(ge=8, le=1_048_576)
    """Tokens per training sequence."""
    domains: tuple[Domain, ...] = Field(min_length=1, max_length=32)
    """Parts of the corpus."""
    validation: Validation = Validation()
    """Held-out documents."""


class Model(ApiType):
    """Exactly one of preset and config."""

    model_config = ConfigDict(
        json_schema_extra=rules(
            ("has(self.preset) != has(self.config)", "set exactly one of preset and config")
        )
    )

    preset: (
        Literal[
            "dense-100m",
            "dense-500m",
            "moe-100m",
            "moe-500m",
            "dense-tiny",
            "dense-small",
            "moe-tiny",
        ]
        | None
    ) = None
    """A known proxy; `isoloss plan` prints its shape and parameter counts."""
    config: dict[str, Any] | None = Field(
        default=None, json_schema_extra={"x-kubernetes-preserve-unknown-fields": True}
    )
    """A transformers configuration with model_type, as in a config.json."""


class Grid(ApiType):
    """The grid of batch sizes and learning rates."""

    batch_sizes: tuple[Annotated[int, Field(ge=1, le=1_000_000)], ...] = Field(
        min_length=2, max_length=100
    )
    """Sequences per optimizer step: at least two, ascending, each once."""
    learning_rates: tuple[Decimal, ...] = Field(min_length=2, max_length=100)
    """Peak learning rates as quoted decimals ("2e-4"): at least two, ascending, each once."""


PodTemplate = Annotated[
    dict[str, Any],
    Field(json_schema_extra={"x-kubernetes-preserve-unknown-fields": True}),
]
"""A partial core/v1 PodTemplateSpec."""


class Proxy(ApiType):
    """One proxy model size."""

    name: Annotated[
        str, Field(pattern=r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$", min_length=1, max_length=30)
    ]
    """Name of the size, part of the Jobs' names."""
    model: Model
    """Its architecture."""
    tokens: PositiveTokens
    """Train each point on this many tokens. Raising it continues the points from their checkpoints."""
    grid: Grid | None = None
    """Overrides the sweep's grid for this size."""
    pod_template: PodTemplate | None = None
    """Overrides the sweep's podTemplate for this size."""


class Optimizer(ApiType):
    """AdamW."""

    beta1: NonNegativeDecimal = "0.9"
    """Decay of the gradient's average."""
    beta2: NonNegativeDecimal = "0.999"
    """Decay of the squared gradient's average."""
    epsilon: Decimal = "1e-8"
    """Added to the denominator."""
    weight_decay: NonNegativeDecimal = "0.01"
    """Decoupled weight decay."""
    gradient_clip: Decimal = "1.0"
    """Largest norm of the gradient."""
    warmup_tokens: NonNegativeTokens = 0
    """Linear warm-up of the learning rate, in tokens, the same for every batch size."""
    schedule: Literal["Constant"] = "Constant"
    """Learning rate after the warm-up. Constant: every loss level on the way counts."""


class Evaluation(ApiType):
    """When runs are evaluated: at firstTokens * 10^(i / perDecade)."""

    first_tokens: PositiveTokens = 100_000_000
    """Tokens at the first evaluation."""
    per_decade: int = Field(default=24, ge=4, le=100)
    """Evaluations per factor of ten in tokens."""
    averaging_tokens: NonNegativeTokens = 0
    """Time constant of the averaged weights in tokens; 0: a tenth of the tokens seen."""


class Training(ApiType):
    """What else determines a run."""

    precision: Literal["bf16", "float32"] = "bf16"
    """Precision of the matrix products; weights and moments are float32 always."""
    seed: int = Field(default=0, ge=0, le=2_147_483_647)
    """Seed of initialisation and data order."""
    checkpoint_seconds: int = Field(default=600, ge=1, le=86_400)
    """Write a checkpoint at least this often."""
    release_checkpoints: bool = False
    """Delete a point's training state once it is done: saves storage, but raising tokens then
    starts the point over."""


class Fit(ApiType):
    """How the laws are fitted."""

    weights: Literal["Averaged", "Raw"] = "Averaged"
    """Loss of the averaged or of the raw weights."""
    irreducible_loss: Annotated[
        str, Field(pattern=r"^(free|[0-9]+(\.[0-9]+)?)$", max_length=16)
    ] = "free"
    """L0 in nats per token, or free."""
    form: Literal["PowerLawOfLoss", "LinearInLogCompute"] = "PowerLawOfLoss"
    """Form of the hyperparameter laws."""


class SweepBudget(ApiType):
    """Caps on what the sweep may spend. A point that does not fit is not started."""

    flops: Decimal | None = None
    """Most FLOPs, by 6 * active parameters * tokens."""
    gpu_hours: int | None = Field(default=None, ge=1, le=100_000_000)
    """Most accelerator hours."""


class FailurePolicy(ApiType):
    """How many failures are tolerated. Preemptions never count."""

    retries_per_point: int = Field(default=3, ge=0, le=20)
    """Tries of a point after its first failure."""
    max_failed_points: int = Field(default=2, ge=0, le=MAX_POINTS)
    """The sweep fails when more points than this have failed for good."""


class Queue(ApiType):
    """Kueue admission of the Jobs."""

    local_queue: DnsLabel
    """LocalQueue in the sweep's namespace."""
    priority_class: DnsLabel | None = None
    """Kueue WorkloadPriorityClass."""


class ScalingSweepSpec(ApiType):
    """A grid of small training runs and the laws to fit to them."""

    model_config = ConfigDict(
        json_schema_extra=rules(
            (
                "self.proxies.all(a, self.proxies.exists_one(b, b.name == a.name))",
                "proxy names must be unique",
            ),
        )
    )

    suspend: bool = False
    """Stop all Jobs (they checkpoint first) and start none until false again."""
    storage: Storage
    """Object storage."""
    data: Data
    """Corpus."""
    proxies: tuple[Proxy, ...] = Field(min_length=1, max_length=20)
    """Model sizes; the laws need at least two."""
    grid: Grid
    """Batch sizes and learning rates of every size."""
    optimizer: Optimizer = Optimizer()
    """Optimizer of every run."""
    evaluation: Evaluation = Evaluation()
    """Evaluation of every run."""
    training: Training = Training()
    """What else determines every run."""
    fit: Fit = Fit()
    """How the laws are fitted."""
    parallelism: int = Field(default=4, ge=1, le=1000)
    """Most Jobs at once. Lowering it only stops starting new ones."""
    budget: SweepBudget | None = None
    """Caps on compute."""
    failure_policy: FailurePolicy = FailurePolicy()
    """Tolerated failures."""
    queue: Queue | None = None
    """Kueue queue; none: Jobs start at once."""
    pod_template: PodTemplate | None = None
    """Merged into every pod: image, resources, nodeSelector, tolerations, volumes and so on. The
    container is named trainer."""


# ------------------------------------------------------------------------- ScalingSweep: status


class Condition(ApiType):
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


class PointCounts(ApiType):
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


class IntervalStatus(ApiType):
    """A value with its interval, as decimal strings."""

    value: StatusText | None = None
    """Best estimate."""
    low: StatusText | None = None
    """Lower end of the 80 % interval."""
    high: StatusText | None = None
    """Upper end of the 80 % interval."""


class LawStatus(ApiType):
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


class OptimumStatus(ApiType):
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


class ActivePoint(ApiType):
    """A point that trains now."""

    name: StatusText
    """Job name."""
    tokens: int = Field(default=0, json_schema_extra={"format": "int64"})
    """Seen so far."""
    loss: StatusText = ""
    """Newest training or validation loss."""


class FailedPoint(ApiType):
    """A point that failed for good."""

    name: StatusText
    """Point."""
    reason: StatusText
    """Class of the failure."""
    message: StatusText = ""
    """Last words."""


class LedgerReference(ApiType):
    """Where every point's details lie."""

    uri: StatusText
    """Ledger in the store."""
    sha256: StatusText
    """Digest of the ledger that this status was computed from."""


class ScalingSweepStatus(ApiType):
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
    """Of the points done."""
    accelerator_hours: StatusText = ""
    """Of the points done."""
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
    search_cost: StatusText = ""
    """Compute of the sweep against a grid on the target, where a prediction names one."""
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


# ----------------------------------------------------------------------- HyperparamPrediction


class SweepReference(ApiType):
    """A ScalingSweep in the same namespace."""

    name: ObjectName
    """Name of the sweep."""


class Checkpoint(ApiType):
    """The checkpoint to continue from."""

    uri: StoreUri
    """Folder in Hugging Face format (config.json, safetensors)."""
    pod_template: PodTemplate | None = None
    """Overrides of the evaluation pod."""


class PredictionBudget(ApiType):
    """Exactly one of flops and tokens."""

    model_config = ConfigDict(
        json_schema_extra=rules(
            ("has(self.flops) != has(self.tokens)", "set exactly one of flops and tokens")
        )
    )

    flops: Decimal | None = None
    """Planned compute of the continued pre-training, by 6 * active parameters * tokens."""
    tokens: PositiveTokens | None = None
    """Planned tokens; turned into FLOPs with the checkpoint's active parameters."""


class Publish(ApiType):
    """Where the answer is published for the next step of a pipeline."""

    config_map_name: ObjectName
    """ConfigMap in the same namespace, written by the operator."""


class HyperparamPredictionSpec(ApiType):
    """For this checkpoint and this budget: what learning rate and batch size?"""

    model_config = ConfigDict(
        json_schema_extra=rules(
            (
                "has(self.checkpoint) != has(self.initialLoss)",
                "set exactly one of checkpoint and initialLoss",
            ),
            (
                "!has(self.budget.tokens) || has(self.checkpoint) || has(self.targetParameters)",
                "budget.tokens with initialLoss needs targetParameters",
            ),
        )
    )

    sweep_ref: SweepReference
    """The sweep whose laws answer."""
    checkpoint: Checkpoint | None = None
    """Measure the initial loss of this checkpoint."""
    initial_loss: Decimal | None = None
    """The initial loss, in nats per token of the sweep's validation data, where already known."""
    budget: PredictionBudget
    """Planned compute."""
    target_parameters: PositiveTokens | None = None
    """Active parameters of the target (matrix products, head included), where no checkpoint says so."""
    pretraining_tokens: PositiveTokens | None = None
    """Tokens of the original pre-training: gives variant B beside the answer."""
    batch_size_multiple_of: int = Field(default=1, ge=1, le=1_000_000)
    """Round the batch size to a multiple of this."""
    max_extrapolation: Decimal = "1000"
    """Refuse where the total compute exceeds the largest seen by more than this factor."""
    publish: Publish | None = None
    """Publish the answer as a ConfigMap."""


class VariantStatus(ApiType):
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


class HyperparamPredictionStatus(ApiType):
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
    extrapolation: StatusText = ""
    """C_total over the largest compute of the sweep."""
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
