"""The spec of a ScalingSweep: what to train, on what, and how to fit the laws."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Annotated, Any, ClassVar, Literal

from pydantic import AfterValidator, Field
from pydantic_core import PydanticCustomError

from isoloss_operator.api.fields import (
    ApiType,
    Decimal,
    DnsLabel,
    FolderUri,
    Fraction,
    LearningRate,
    LossOrFree,
    NonNegativeDecimal,
    NonNegativeTokens,
    ObjectName,
    PodTemplate,
    PositiveTokens,
    Rule,
    StoreUri,
    is_decimal_cel,
)

MAX_POINTS = 10_000
"""Points of one sweep, over all proxies."""


def _names_are_unique(items: tuple[Domain, ...] | tuple[Proxy, ...]) -> Any:
    names = [item.name for item in items]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise PydanticCustomError(
            "duplicate", "names must be unique: {names}", {"names": ", ".join(twice)}
        )
    return items


BY_NAME = {"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"]}
"""The API server refuses equal names, and server-side apply merges entries by name."""


class Storage(ApiType):
    """Where everything the sweep makes is kept."""

    uri: Annotated[
        FolderUri,
        Rule("self == oldSelf", "can not change: make a new sweep for another place"),
    ]
    """Folder for tokenised data, points, ledger and laws (s3://, gs:// or file://). The operator's
    configuration decides which prefixes a namespace may name. Can not be changed."""
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

    tokenizer: FolderUri
    """Folder with a tokenizer in Hugging Face format (tokenizer.json)."""
    sequence_length: int = Field(ge=8, le=1_048_576)
    """Tokens per training sequence."""
    domains: Annotated[
        tuple[Domain, ...],
        Field(min_length=1, max_length=32, json_schema_extra=BY_NAME),
        AfterValidator(_names_are_unique),
    ]
    """Parts of the corpus."""
    validation: Validation = Validation()
    """Held-out documents."""


def _has_model_type(config: dict[str, Any]) -> dict[str, Any]:
    if not isinstance(config.get("model_type"), str):
        raise PydanticCustomError("model_type", "needs model_type, such as llama")
    return config


TransformersConfig = Annotated[
    dict[str, Any],
    AfterValidator(_has_model_type),
    Field(
        json_schema_extra={
            "x-kubernetes-preserve-unknown-fields": True,
            "required": ["model_type"],
            "properties": {
                "model_type": {
                    "description": "Architecture, such as llama.",
                    "type": "string",
                    "minLength": 1,
                    "maxLength": 64,
                }
            },
        }
    ),
]


class Like(ApiType):
    """A checkpoint to resemble, and how large the proxy is to be."""

    checkpoint: FolderUri
    """Folder of the checkpoint; the operator reads its config.json, nothing else. It must lie under a
    prefix that the namespace may use. Families: llama, mistral, qwen3, qwen3_moe, mixtral and
    deepseek_v3."""
    parameters: int = Field(ge=1000, le=10**13, json_schema_extra={"format": "int64"})
    """Active parameters in matrix products, output head included. The proxy comes within 10 % of
    them, or is refused."""


class Model(ApiType):
    """Exactly one of preset, config and like."""

    rules: ClassVar = (
        Rule(
            "[has(self.preset), has(self.config), has(self.like)].exists_one(given, given)",
            "set exactly one of preset, config and like",
            lambda model: [model.preset, model.config, model.like].count(None) == 2,
        ),
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
    config: TransformersConfig | None = None
    """A transformers configuration with model_type, as in a config.json."""
    like: Like | None = None
    """A proxy with family, head sizes, aspect ratio, vocabulary and expert layout of a checkpoint,
    smaller in width and depth; `isoloss plan` prints its size."""


def _ascends(values: Sequence[float]) -> bool:
    return all(a < b for a, b in pairwise(values))


class Grid(ApiType):
    """The grid of batch sizes and learning rates."""

    batch_sizes: Annotated[
        tuple[Annotated[int, Field(ge=1, le=1_000_000)], ...],
        Field(min_length=2, max_length=100),
        Rule(
            "self.isSorted() && self.all(a, self.exists_one(b, a == b))",
            "must ascend, each value once",
            _ascends,
        ),
    ]
    """Sequences per optimizer step: at least two, ascending, each once."""
    learning_rates: Annotated[
        tuple[LearningRate, ...],
        Field(min_length=2, max_length=100),
        Rule(
            f"self.exists(x, !{is_decimal_cel('x')}) || ("
            "self.map(x, double(x)).isSorted() "
            "&& self.all(a, self.exists_one(b, double(a) == double(b))))",
            "must ascend, each value once",
            lambda rates: _ascends([float(rate) for rate in rates]),
        ),
    ]
    """Peak learning rates as quoted decimals ("2e-4"): at least two, ascending, each once."""


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

    beta1: Fraction = "0.9"
    """Decay of the gradient's average."""
    beta2: Fraction = "0.999"
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
    irreducible_loss: LossOrFree = "free"
    """L0 in nats per token, or free."""
    form: Literal["PowerLawOfLoss", "LinearInLogCompute"] = "PowerLawOfLoss"
    """Form of the hyperparameter laws."""


class SweepBudget(ApiType):
    """Caps on what the sweep may spend. A point that does not fit is not started."""

    rules: ClassVar = (
        Rule(
            "has(self.flops) || has(self.gpuHours)",
            "set flops, gpuHours or both",
            lambda budget: budget.flops is not None or budget.gpu_hours is not None,
        ),
    )

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


_BATCH_SIZES = "(has(p.grid) ? p.grid.batchSizes : self.grid.batchSizes)"
_LEARNING_RATES = "(has(p.grid) ? p.grid.learningRates : self.grid.learningRates)"


class ScalingSweepSpec(ApiType):
    """A grid of small training runs and the laws to fit to them."""

    rules: ClassVar = (
        Rule(
            f"self.proxies.map(p, {_BATCH_SIZES}.size() * {_LEARNING_RATES}.size()).sum()"
            f" <= {MAX_POINTS}",
            f"at most {MAX_POINTS} points (batch sizes x learning rates, summed over proxies)",
            lambda spec: spec.points <= MAX_POINTS,
        ),
        Rule(
            f"self.proxies.all(p, {_BATCH_SIZES}.max() * self.data.sequenceLength <= p.tokens)",
            "every proxy's tokens must cover a step of its largest batch"
            " (batch size x data.sequenceLength)",
            lambda spec: all(
                max(spec.grid_of(proxy).batch_sizes) * spec.data.sequence_length <= proxy.tokens
                for proxy in spec.proxies
            ),
        ),
        Rule(
            "self.proxies.all(p, self.optimizer.warmupTokens < p.tokens)",
            "optimizer.warmupTokens must be less than every proxy's tokens",
            lambda spec: all(spec.optimizer.warmup_tokens < p.tokens for p in spec.proxies),
        ),
        Rule(
            "self.proxies.all(p, self.evaluation.firstTokens < p.tokens)",
            "evaluation.firstTokens (100000000 unless set) must be less than every proxy's tokens",
            lambda spec: all(spec.evaluation.first_tokens < p.tokens for p in spec.proxies),
        ),
    )

    suspend: bool = False
    """Stop all Jobs (they checkpoint first) and start none until false again."""
    storage: Storage
    """Object storage."""
    data: Data
    """Corpus."""
    proxies: Annotated[
        tuple[Proxy, ...],
        Field(min_length=1, max_length=20, json_schema_extra=BY_NAME),
        AfterValidator(_names_are_unique),
    ]
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

    def grid_of(self, proxy: Proxy) -> Grid:
        """The grid of one size: its own or the sweep's."""
        return proxy.grid or self.grid

    @property
    def points(self) -> int:
        """Points of the whole sweep."""
        grids = [self.grid_of(proxy) for proxy in self.proxies]
        return sum(len(grid.batch_sizes) * len(grid.learning_rates) for grid in grids)
