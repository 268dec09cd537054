"""What operator and trainer say to each other: tasks in, results out, exit codes.

Everything here is frozen, strictly parsed and content-addressed. The same text read twice gives the
same key, and a record with an unknown field or a wrong type is refused: results come from an object
store that others can write to.

Units: tokens are tokens, batch sizes are sequences, losses are nats per token unless a name says otherwise.
"""

from __future__ import annotations

import hashlib
import json
import math
from enum import IntEnum, StrEnum
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

CONTRACT_VERSION = 1
"""Part of every content key: raise it when the same task would give another result."""

TASK_VARIABLE = "ISOLOSS_TASK"
"""Environment variable of the pod that holds the task as JSON."""
SCRATCH_VARIABLE = "ISOLOSS_SCRATCH"
"""Environment variable naming a writable directory (an emptyDir) for local files."""
TERMINATION_VARIABLE = "ISOLOSS_TERMINATION_LOG"
"""Environment variable naming the termination message file."""
MAX_TERMINATION_BYTES = 2048


class ExitCode(IntEnum):
    """How a trainer process ended; see DESIGN section 5. Any other code is a crash."""

    SUCCEEDED = 0
    DIVERGED = 42
    """The result is written: a divergence is data, not an error."""
    OUT_OF_MEMORY = 43
    """No smaller micro-batch is left."""
    BAD_CONFIGURATION = 44
    """The task itself can not work; another try can not help."""
    BAD_DATA = 45
    """Corpus, tokenizer, prepared data or checkpoint is unusable; the message names it."""
    STORAGE = 74
    """Storage or network failed after retries."""
    INTERRUPTED = 75
    """Asked to stop (SIGTERM), or another attempt holds the point; a checkpoint is written where there was something to save."""


class Outcome(StrEnum):
    """The final outcome of a point."""

    SUCCEEDED = "Succeeded"
    DIVERGED = "Diverged"
    OUT_OF_MEMORY = "OutOfMemory"


class Record(BaseModel):
    """Base of every record: frozen, no unknown fields, no coercion, finite numbers where declared."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, ser_json_inf_nan="null")


def canonical_json(value: Any) -> str:
    """JSON with sorted keys and no spaces, so that equal values give equal text.

    Raises ValueError for NaN and infinities, which have no JSON form.
    """
    return json.dumps(
        value, sort_keys=True, separators=(",", ":"), allow_nan=False, ensure_ascii=True
    )


def content_key(value: Any) -> str:
    """The first 32 hexadecimal digits of the SHA-256 of the canonical JSON of `value`."""
    return hashlib.sha256(canonical_json(value).encode()).hexdigest()[:32]


Name = Annotated[str, Field(pattern=r"^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$")]
Uri = Annotated[str, Field(min_length=1, max_length=1024)]
Digest = Annotated[str, Field(pattern=r"^[0-9a-f]{32,64}$")]
Tokens = Annotated[int, Field(ge=0, le=2**53)]
Finite = Annotated[float, Field(allow_inf_nan=False)]
PositiveFinite = Annotated[float, Field(gt=0, allow_inf_nan=False)]


# ------------------------------------------------------------------------------------- prepare


class DomainSource(Record):
    """One domain of the corpus: where its documents lie and which field holds the text."""

    name: Name
    uri: Uri
    """A glob over .parquet, .jsonl, .json, .arrow or .txt files, plain, .gz or .zst."""
    text_field: str = Field(min_length=1, max_length=253)


class PrepareConfig(Record):
    """All that determines the tokenised corpus, except the bytes behind the URIs."""

    contract_version: Literal[1] = 1
    tokenizer: Uri
    """Directory in the store in Hugging Face format (tokenizer.json)."""
    sequence_length: int = Field(ge=8, le=1_048_576)
    domains: tuple[DomainSource, ...] = Field(min_length=1, max_length=64)
    validation_documents_per_thousand: int = Field(ge=1, le=500)

    @property
    def key(self) -> str:
        """Names the folder of the prepared data; the manifest's digest names its content."""
        return content_key(self.model_dump(mode="json"))


class PrepareTask(Record):
    """A prepare pod's whole input."""

    kind: Literal["prepare"] = "prepare"
    config: PrepareConfig
    store_uri: Uri


class Shard(Record):
    """One file of little-endian uint32 tokens. Documents end with the tokenizer's end token."""

    path: str = Field(pattern=r"^[A-Za-z0-9._/-]{1,512}$")
    """Relative to the manifest's folder."""
    tokens: Tokens
    sha256: Digest


class DomainData(Record):
    """The tokenised documents of one domain."""

    name: Name
    training: tuple[Shard, ...]
    training_documents: int = Field(ge=0)
    training_tokens: Tokens
    training_bytes: int = Field(ge=0)
    """UTF-8 bytes of the text behind the training tokens."""
    validation: Shard
    validation_documents: int = Field(ge=0)
    validation_tokens: Tokens
    validation_bytes: int = Field(ge=0)
    near_duplicates: int = Field(default=0, ge=0)
    """Validation documents with a near-identical twin among the training documents."""


class DataManifest(Record):
    """Written last by prepare: the tokenised corpus is complete exactly when this exists."""

    contract_version: Literal[1] = 1
    prepare_key: Digest
    digest: Digest
    """Hash of tokenizer digest, sequence length and every shard's hash: goes into each point's key."""
    tokenizer_digest: Digest
    vocabulary_size: int = Field(ge=2)
    end_token: int = Field(ge=0)
    sequence_length: int = Field(ge=8)
    domains: tuple[DomainData, ...] = Field(min_length=1)


# --------------------------------------------------------------------------------------- train


class OptimizerConfig(Record):
    """AdamW with a constant learning rate after a linear warm-up counted in tokens."""

    name: Literal["AdamW"] = "AdamW"
    beta1: float = Field(default=0.9, ge=0, lt=1)
    beta2: float = Field(default=0.999, ge=0, lt=1)
    epsilon: float = Field(default=1e-8, gt=0)
    weight_decay: float = Field(default=0.01, ge=0)
    gradient_clip: float = Field(default=1.0, gt=0)
    warmup_tokens: Tokens = 0
    schedule: Literal["Constant"] = "Constant"


class EvaluationConfig(Record):
    """When and on how much a run is evaluated, and how its weights are averaged.

    Evaluations lie at fixed token counts `first_tokens * 10**(i / per_decade)`, whatever the run's
    length, so that raising a point's tokens extends its trajectory without changing what is there.
    """

    first_tokens: Tokens = Field(default=1_000_000, ge=1)
    per_decade: int = Field(default=16, ge=2, le=100)
    sequences_per_domain: int = Field(default=256, ge=1)
    """At most this many fixed validation sequences of each domain."""
    averaging_tokens: Tokens = Field(default=0)
    """Time constant in tokens of the exponential average of the weights; 0: a tenth of the tokens seen so far."""


class PointConfig(Record):
    """All that determines a point's trajectory; `tokens` is not part of it, a run can be continued."""

    contract_version: Literal[1] = 1
    data_digest: Digest
    mixture: dict[Name, PositiveFinite] = Field(min_length=1)
    """Share of the training tokens per domain, and its weight in the validation loss; sums to 1."""
    model: dict[str, Any]
    """A transformers config dictionary with `model_type`; presets are already resolved."""
    optimizer: OptimizerConfig
    learning_rate: PositiveFinite
    batch_size: int = Field(ge=1, le=1_000_000)
    """Sequences per optimizer step."""
    sequence_length: int = Field(ge=8)
    seed: int = Field(default=0, ge=0, lt=2**31)
    evaluation: EvaluationConfig = EvaluationConfig()
    precision: Literal["bf16", "float32"] = "bf16"
    initial_weights: Uri | None = None
    """A Hugging Face directory to start from, with a fresh optimizer; None: random weights."""

    @property
    def key(self) -> str:
        """The point's name in the store."""
        content = self.model_dump(mode="json")
        if self.initial_weights is None:
            del content["initial_weights"]  # keys of points from scratch are older than the field
        return content_key(content)

    @field_validator("mixture")
    @classmethod
    def _sums_to_one(cls, mixture: dict[str, float]) -> dict[str, float]:
        if not math.isclose(sum(mixture.values()), 1.0, abs_tol=1e-9):
            raise ValueError(f"mixture must sum to 1, not {sum(mixture.values())}")
        return mixture


class Claimant(Record):
    """Who works on a point: two attempts can not mix their output (attempt fencing)."""

    sweep_uid: str = Field(min_length=1, max_length=64)
    attempt: int = Field(ge=1)


class TrainTask(Record):
    """A train pod's whole input. Only `point` determines the trajectory."""

    kind: Literal["train"] = "train"
    point: PointConfig
    tokens: Tokens = Field(ge=1)
    """Train until this many tokens are seen, rounded up to a whole step."""
    store_uri: Uri
    data_uri: Uri
    """Folder of the data manifest."""
    claimant: Claimant
    micro_batch_halvings: int = Field(default=0, ge=0, le=20)
    """How often the host killed an earlier attempt for its memory."""
    checkpoint_seconds: int = Field(default=300, ge=1)
    keep_checkpoints: int = Field(default=2, ge=1, le=10)
    release_checkpoints_when_done: bool = False
    """Drop the training state once the result is written (then the point can not be continued)."""


class ParameterCounts(Record):
    """Counts by part; each FLOP convention picks from them (flops.py)."""

    body_active: int = Field(ge=0)
    """Matrix parameters of the layers that a token passes through."""
    body_total: int = Field(ge=0)
    head: int = Field(ge=0)
    """Output projection, also where it is tied to the embedding: it takes part in a matrix product."""
    embedding: int = Field(ge=0)
    """Input look-up table; 0 where tied to the head."""
    other: int = Field(default=0, ge=0)
    """Norm gains, biases and other parameters that take part in no matrix product."""

    @property
    def active(self) -> int:
        """Active parameters that take part in matrix products: N of the default law."""
        return self.body_active + self.head


class DomainLoss(Record):
    """Validation loss of one domain, nats per token."""

    loss: Finite | None
    standard_error: Finite | None = None
    averaged_loss: Finite | None = None
    averaged_standard_error: Finite | None = None


class TrajectoryRow(Record):
    """One evaluation. `loss` is mixture-weighted; None where it was not finite."""

    step: int = Field(ge=0)
    tokens: Tokens
    loss: Finite | None
    loss_standard_error: Finite | None = None
    averaged_loss: Finite | None = None
    averaged_loss_standard_error: Finite | None = None
    domains: dict[Name, DomainLoss] = Field(default_factory=dict)
    training_loss: Finite | None = None
    """Mean over the training tokens since the last evaluation."""


class PointProgress(Record):
    """Overwritten every few seconds while a point trains: for display only."""

    key: Digest
    claimant: Claimant
    tokens: Tokens
    wanted_tokens: Tokens
    loss: Finite | None
    tokens_per_second: Finite | None
    updated_at: str = Field(max_length=40)
    """RFC 3339, UTC."""


class PointResult(Record):
    """Written last by train. Facts only; every judgement is the operator's."""

    contract_version: Literal[1] = 1
    key: Digest
    outcome: Outcome
    tokens: Tokens
    """Tokens seen at the last evaluation of the trajectory."""
    wanted_tokens: Tokens
    steps: int = Field(ge=0)
    parameters: ParameterCounts
    bytes_per_token: PositiveFinite
    """Of the mixture-weighted validation tokens."""
    diverged_at_tokens: Tokens | None = None
    loss: Finite | None = None
    """Last evaluation of the raw weights, nats per token; None where it was not finite."""
    averaged_loss: Finite | None = None
    """Last evaluation of the averaged weights."""
    trajectory_sha256: Digest
    evaluations: int = Field(ge=0)
    accelerator_seconds: float = Field(ge=0, allow_inf_nan=False)
    """Summed over devices and attempts; on a CPU: of the process."""
    accelerators: int = Field(ge=0)
    micro_batch: int = Field(ge=1)
    attempts: int = Field(ge=1)
    versions: dict[str, str] = Field(default_factory=dict)
    message: str = Field(default="", max_length=1024)


# ------------------------------------------------------------------------------------- evaluate


class EvaluateConfig(Record):
    """All that determines a checkpoint's initial loss."""

    contract_version: Literal[1] = 1
    data_digest: Digest
    mixture: dict[Name, PositiveFinite] = Field(min_length=1)
    checkpoint: Uri
    """A Hugging Face directory in the store."""
    sequence_length: int = Field(ge=8)
    sequences_per_domain: int = Field(ge=1)
    precision: Literal["bf16", "float32"] = "bf16"
    generation: int = Field(default=0, ge=0)
    """Raised to measure again what lies behind an unchanged URI."""

    @property
    def key(self) -> str:
        """The evaluation's name in the store."""
        return content_key(self.model_dump(mode="json"))


class EvaluateTask(Record):
    """An evaluate pod's whole input."""

    kind: Literal["evaluate"] = "evaluate"
    config: EvaluateConfig
    store_uri: Uri
    data_uri: Uri


class EvaluationResult(Record):
    """A checkpoint's loss on the sweep's own validation sequences."""

    contract_version: Literal[1] = 1
    key: Digest
    loss: Finite
    loss_standard_error: float = Field(ge=0, allow_inf_nan=False)
    domains: dict[Name, DomainLoss]
    nats_per_byte: Finite
    evaluated_tokens: Tokens
    parameters: ParameterCounts
    model_type: str = Field(max_length=64)
    tokenizer_digest: Digest | None
    """None where the checkpoint brings no tokenizer of its own."""
    same_tokenizer: bool
    """False: `loss` was converted to the sweep's tokens through nats per byte."""
    accelerator_seconds: float = Field(ge=0, allow_inf_nan=False)
    versions: dict[str, str] = Field(default_factory=dict)


Task = Annotated[PrepareTask | TrainTask | EvaluateTask, Field(discriminator="kind")]


class TerminationMessage(Record):
    """The last words of a trainer process, short enough for Kubernetes to keep whole."""

    code: str = Field(max_length=64)
    """CamelCase, e.g. TextFieldMissing."""
    message: str = Field(max_length=1500)
    field: str = Field(default="", max_length=253)
    """The spec field to look at, where one is to blame."""

    @model_validator(mode="before")
    @classmethod
    def _cut(cls, values: Any) -> Any:
        if isinstance(values, dict) and isinstance(values.get("message"), str):
            return {**values, "message": values["message"][:1500]}
        return values
