"""One training run: its configuration, task, trajectory and result."""

import math
from enum import StrEnum
from typing import Annotated, Any, Final, Literal

from pydantic import Field, field_validator

from isoloss_contract.records import base


class Outcome(StrEnum):
    """The final outcome of a point."""

    SUCCEEDED = "Succeeded"
    DIVERGED = "Diverged"
    OUT_OF_MEMORY = "OutOfMemory"


WARMUP_MULTIPLE = 2
"""Evaluations up to this multiple of the warm-up are not fitted: they reflect lower learning rates."""


class OptimizerConfig(base.Record):
    """AdamW with a constant learning rate after a linear warm-up counted in tokens."""

    name: Literal["AdamW"] = "AdamW"
    beta1: float = Field(default=0.9, ge=0, lt=1)
    beta2: float = Field(default=0.999, ge=0, lt=1)
    epsilon: float = Field(default=1e-8, gt=0)
    weight_decay: float = Field(default=0.01, ge=0)
    gradient_clip: float = Field(default=1.0, gt=0)
    warmup_tokens: base.Tokens = 0
    schedule: Literal["Constant"] = "Constant"
    second_moment_tokens: base.Tokens = 0
    """Time constant of the second moment in tokens, from which beta2 then follows; 0: `beta2`."""
    weight_decay_tokens: base.Tokens = 0
    """Time constant of the weight decay in tokens, from which it then follows; 0: `weight_decay`."""
    z_loss: float = Field(default=0.0, ge=0, le=1)
    """Weight of the squared log of the softmax's denominator in the gradient; not part of any loss."""


class EvaluationConfig(base.Record):
    """When and on how much data a run is evaluated, and how its weights are averaged.

    Evaluations are at fixed token counts `first_tokens * 10**(i / per_decade)`, whatever the run's
    length, so that raising a point's tokens extends its trajectory and changes no existing row.
    """

    first_tokens: base.Tokens = Field(default=1_000_000, ge=1)
    per_decade: int = Field(default=16, ge=2, le=100)
    sequences_per_domain: int = Field(default=256, ge=1)
    """At most this many fixed validation sequences of each domain."""
    averaging_tokens: base.Tokens = Field(default=0)
    """Time constant in tokens of the exponential average of the weights; 0: a tenth of the tokens seen so far."""


MAX_BATCH_SIZE: Final = 1_000_000
"""Sequences of one optimizer step."""


class PointConfig(base.Record):
    """Everything that determines a point's trajectory, but not its length: a run can be continued."""

    contract_version: Literal[1] = 1
    data_digest: base.Digest
    mixture: dict[base.Name, base.PositiveFinite] = Field(min_length=1)
    """Share of the training tokens per domain, and its weight in the validation loss; sums to 1."""
    model: dict[str, Any]
    """A transformers config dictionary with `model_type`."""
    optimizer: OptimizerConfig
    learning_rate: base.PositiveFinite
    batch_size: int = Field(ge=1, le=MAX_BATCH_SIZE)
    """Sequences per optimizer step."""
    sequence_length: int = Field(ge=8)
    seed: int = Field(default=0, ge=0, lt=2**31)
    evaluation: EvaluationConfig = EvaluationConfig()
    precision: Literal["bf16", "float32"] = "bf16"
    initial_weights: base.Uri | None = None
    """A Hugging Face directory to start from, with a fresh optimizer; None: random weights."""
    initial_weights_stamp: Annotated[str, Field(max_length=64)] = ""
    """Digest of the names and versions of its files, see EvaluateConfig.checkpoint_stamp."""

    @property
    def key(self) -> str:
        """The point's name in the store."""
        return base.record_key(self)

    @field_validator("mixture")
    @classmethod
    def _sums_to_one(cls, mixture: dict[str, float]) -> dict[str, float]:
        if not math.isclose(sum(mixture.values()), 1.0, abs_tol=1e-9):
            raise ValueError(f"mixture must sum to 1, not {sum(mixture.values())}")
        return mixture


class Claimant(base.Record):
    """Who holds a point: fences attempts, so that two of them cannot mix their output."""

    sweep_uid: str = Field(min_length=1, max_length=64)
    attempt: int = Field(ge=1)


class TrainTask(base.Record):
    """The complete input of a train pod. Only `point` determines the trajectory."""

    kind: Literal["train"] = "train"
    point: PointConfig
    tokens: base.Tokens = Field(ge=1)
    """Train until this many tokens are seen, rounded up to a whole step."""
    store_uri: base.Uri
    data_uri: base.Uri
    """Folder of the data manifest."""
    claimant: Claimant
    nodes: int = Field(default=1, ge=1)
    """Pods that train it together, each on a node of its own with as many accelerators as the others."""
    micro_batch_halvings: int = Field(default=0, ge=0, le=20)
    """How many earlier attempts ended because memory was refused to them."""
    deterministic: bool = False
    """Use only kernels that give equal bits for equal input: on an accelerator others are faster."""
    checkpoint_seconds: int = Field(default=300, ge=1)
    """The most between two checkpoints."""
    preemptions_per_day: int = Field(default=0, ge=0)
    """Of each node; 0: not known."""
    keep_checkpoints: int = Field(default=2, ge=1, le=10)
    release_checkpoints_when_done: bool = False
    """Delete the training state once the result is written; the point cannot be continued then."""


class ParameterCounts(base.Report):
    """Parameter counts by part, from which each FLOP convention picks."""

    body_active: int = Field(ge=0)
    """Matrix parameters of the layers that a token passes through."""
    body_total: int = Field(ge=0)
    head: int = Field(ge=0)
    """Output projection, even if tied to the embedding: it takes part in a matrix product."""
    embedding: int = Field(ge=0)
    """Input lookup table; 0 if tied to the head."""
    other: int = Field(default=0, ge=0)
    """Norm gains, biases and other parameters that take part in no matrix product."""

    @property
    def total(self) -> int:
        """All that are trained."""
        return self.body_total + self.head + self.embedding + self.other

    @property
    def active(self) -> int:
        """Active parameters that take part in matrix products: N of the default law."""
        return self.body_active + self.head


class AttentionShape(base.Report):
    """What attention scores cost: per layer, all heads' query and value widths together."""

    layers: int = Field(ge=1)
    query_width: int = Field(ge=1)
    """heads * width of a query head."""
    value_width: int = Field(ge=1)
    window: int | None = Field(default=None, ge=1)
    """Tokens a query looks back, itself included; None: all."""
    in_chunks: bool = False
    """Whether it looks back to the beginning of its `window` alone, of which one follows the other."""

    @property
    def pair_flops(self) -> float:
        """Training FLOPs of one pair of query and key in all layers.

        2 * (query width + value width) per layer forward, twice that backward.
        """
        return 6.0 * self.layers * (self.query_width + self.value_width)

    def flops_per_token(self, sequence_length: int) -> float:
        """Training FLOPs of the scores and their product with the values, under the causal mask: mean over the
        tokens of a sequence, of which the last sees the most."""
        window = min(self.window or sequence_length, sequence_length)
        ramp, rest = window * (window + 1) / 2, sequence_length - window
        beyond: float = rest * window
        if self.in_chunks:
            left = rest % window
            beyond = rest // window * ramp + left * (left + 1) / 2
        mean_context = (ramp + beyond) / sequence_length
        return self.pair_flops * mean_context


class DomainLoss(base.Report):
    """Validation loss of one domain, nats per token."""

    loss: base.Finite | None
    standard_error: base.Finite | None = None
    averaged_loss: base.Finite | None = None
    averaged_standard_error: base.Finite | None = None


class TrajectoryRow(base.Report):
    """One evaluation. `loss` is mixture-weighted; None if not finite."""

    step: int = Field(ge=0)
    tokens: base.Tokens
    loss: base.Finite | None
    loss_standard_error: base.Finite | None = None
    averaged_loss: base.Finite | None = None
    averaged_loss_standard_error: base.Finite | None = None
    domains: dict[base.Name, DomainLoss] = Field(default_factory=dict)
    training_loss: base.Finite | None = None
    """Mean over the training tokens since the last evaluation."""
    logit_offset: base.Finite | None = None
    """Mean log of the softmax's denominator over the same tokens: how far the logits have drifted."""
    gradient_norm: base.Finite | None = None
    """Before clipping; mean over the steps since the last evaluation."""
    clipped_share: float | None = Field(default=None, ge=0, le=1)
    """Share of those steps whose gradient was clipped."""


class TimeConstants(base.Report):
    """Over how many tokens the optimizer forgets; None: never. At a fixed beta or weight decay they grow
    with the batch size, so that points that differ in it differ in these, too."""

    first_moment_tokens: base.PositiveFinite | None = None
    second_moment_tokens: base.PositiveFinite | None = None
    weight_decay_tokens: base.PositiveFinite | None = None
    """Time constant of the weights, at the peak learning rate."""


class PointProgress(base.Report):
    """Overwritten every few seconds while a point trains: for display only."""

    key: base.Digest
    claimant: Claimant
    tokens: base.Tokens
    wanted_tokens: base.Tokens
    loss: base.Finite | None
    tokens_per_second: base.Finite | None
    updated_at: str = Field(max_length=40)
    """RFC 3339, UTC."""
    began_tokens: base.Tokens | None = None
    """`tokens` when the attempt began, from which its cost follows; None: not stated."""


class PointResult(base.Report):
    """Written last by train. Reports facts; the operator judges them."""

    contract_version: Literal[1] = 1
    key: base.Digest
    claimant: Claimant | None = None
    """The attempt that ended the run; None: whoever wrote the result did not say."""
    outcome: Outcome
    tokens: base.Tokens
    """Tokens seen at the last evaluation of the trajectory."""
    wanted_tokens: base.Tokens
    steps: int = Field(ge=0)
    parameters: ParameterCounts
    bytes_per_token: base.PositiveFinite
    """UTF-8 bytes per token of the mixture-weighted validation text."""
    diverged_at_tokens: base.Tokens | None = None
    loss: base.Loss | None = None
    """Last evaluation of the raw weights, nats per token; None if not finite."""
    averaged_loss: base.Loss | None = None
    """Last evaluation of the averaged weights."""
    trajectory_sha256: base.Digest
    evaluations: int = Field(ge=0)
    accelerator_seconds: float = Field(ge=0, allow_inf_nan=False)
    """Summed over devices and attempts; on a CPU, the process's time."""
    accelerators: int = Field(ge=0)
    micro_batch: int = Field(ge=1)
    time_constants: TimeConstants = TimeConstants()
    attempts: int = Field(ge=1)
    versions: dict[str, str] = Field(default_factory=dict)
    message: str = Field(default="", max_length=1024)


def whole_steps(tokens: int, batch_size: int, sequence_length: int) -> int:
    """Tokens of a run that ends with the first whole optimizer step at or beyond `tokens`.

    The trainer follows this and the next two, and the operator counts by them what a point will cost.
    """
    step = batch_size * sequence_length
    return -(-tokens // step) * step


def evaluation_tokens(config: EvaluationConfig, tokens: int) -> list[int]:
    """The fixed token counts up to `tokens` at which any run is evaluated."""
    counts = []
    number = 0
    while (count := round(config.first_tokens * 10 ** (number / config.per_decade))) <= tokens:
        counts.append(count)
        number += 1
    return counts


def evaluation_steps(config: EvaluationConfig, batch_tokens: int, steps: int) -> frozenset[int]:
    """The steps, counted from 1, after which a run of `steps` is evaluated by schedule: the first
    ones that reach each count."""
    counts = evaluation_tokens(config, steps * batch_tokens)
    return frozenset(-(-count // batch_tokens) for count in counts)
