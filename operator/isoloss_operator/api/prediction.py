"""The spec of a HyperparamPrediction: for which checkpoint and budget."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field

from isoloss_contract.records import MAX_BATCH_SIZE
from isoloss_operator.api.fields import (
    ApiType,
    AtLeastOne,
    BudgetShare,
    Decimal,
    FolderUri,
    Loss,
    NeighbourFactor,
    Nodes,
    ObjectName,
    PodTemplate,
    PositiveTokens,
    Rule,
)
from isoloss_operator.api.sweep import SweepBudget


class SweepReference(ApiType):
    """A ScalingSweep in the same namespace."""

    name: ObjectName
    """Name of the sweep."""


class Checkpoint(ApiType):
    """The checkpoint to continue from."""

    uri: FolderUri
    """Folder in Hugging Face format (config.json, safetensors)."""
    secret_name: ObjectName | None = None
    """Name of a Secret in the same namespace whose keys become environment variables of the
    evaluation pod, in addition to those of the sweep's storage.secretName. Its values win."""
    pod_template: PodTemplate | None = None
    """Merged into the evaluation pod, after the sweep's podTemplate."""


class PredictionBudget(ApiType):
    """Exactly one of flops and tokens."""

    rules: ClassVar = (
        Rule(
            "has(self.flops) != has(self.tokens)",
            "set exactly one of flops and tokens",
            lambda budget: (budget.flops is None) != (budget.tokens is None),
        ),
    )

    flops: Decimal | None = None
    """Planned compute of the continued pre-training, counted as 6 * active parameters * tokens."""
    tokens: PositiveTokens | None = None
    """Planned tokens, converted to FLOPs with the target's active parameters."""


class Publish(ApiType):
    """Where the answer is published for the next step of a pipeline."""

    config_map_name: ObjectName
    """Name of a ConfigMap in the same namespace that the operator creates and owns."""


class AnswerValidation(ApiType):
    """Short continued runs of the checkpoint, the probes: at the answer, and at a higher and a lower learning
    rate and batch size."""

    tokens_share: BudgetShare
    """Share of the budget's tokens that each probe trains for, with a fresh optimizer and the sweep's
    warm-up. Five probes of 0.3 cost 1.5 times the budget. Probes of the whole budget tell most; those of
    a tenth seldom settle anything."""
    factor: NeighbourFactor = "2"
    """Factor between the answer and its neighbours, in learning rate and in batch size; with spec.batchSize in
    learning rate alone."""
    seeds: int = Field(default=1, ge=1, le=20)
    """Runs at every place, with seeds of their own from the sweep's training.seed on."""
    tolerance: Decimal = "0.01"
    """Nats that the answer may lose at the full budget and still hold."""
    budget: SweepBudget | None = None
    """Limits on what all probes of this prediction may spend, those of former answers included. A probe
    that does not fit is not started; once a limit is exceeded, running ones are stopped with a checkpoint,
    and go on when it is raised. When absent, twice what a probe at every place costs: enough for retries, and
    for one answer that moved after it was validated."""
    parallelism: int = Field(default=4, ge=1, le=1000)
    """Maximum number of the probes' Jobs at a time."""
    nodes: Nodes = 1
    """Number of pods that train each probe together, each with the accelerators that the pod template asks for. They
    are one Job and count as one against parallelism."""
    pod_template: PodTemplate | None = None
    """Merged into the probes' pods, after the sweep's podTemplate. That of spec.checkpoint is for the
    evaluation alone."""


class HyperparamPredictionSpec(ApiType):
    """For this checkpoint and this budget: what learning rate and batch size?"""

    rules: ClassVar = (
        Rule(
            "has(self.checkpoint) != has(self.initialLoss)",
            "set exactly one of checkpoint and initialLoss",
            lambda spec: (spec.checkpoint is None) != (spec.initial_loss is None),
        ),
        Rule(
            "!has(self.budget.tokens) || has(self.checkpoint) || has(self.targetParameters)",
            "budget.tokens with initialLoss needs targetParameters, to turn tokens into FLOPs",
            lambda spec: (
                not (spec.budget.tokens and spec.initial_loss and spec.target_parameters is None)
            ),
        ),
        Rule(
            "!has(self.checkpoint) || !has(self.targetParameters)",
            "targetParameters goes with initialLoss only: the checkpoint has its own",
            lambda spec: spec.checkpoint is None or spec.target_parameters is None,
        ),
        Rule(
            "!has(self.batchSize) || has(self.checkpoint) || has(self.targetParameters)",
            "batchSize with initialLoss needs targetParameters: the learning rate there depends on the size, too",
            lambda spec: (
                not (spec.batch_size and spec.initial_loss and spec.target_parameters is None)
            ),
        ),
        Rule(
            "!has(self.batchSize) || !has(self.batchSizeTolerance)",
            "batchSizeTolerance is about the best batch size: remove it, or batchSize",
            lambda spec: spec.batch_size is None or spec.batch_size_tolerance is None,
        ),
        Rule(
            "!has(self.batchSize) || self.batchSizeMultipleOf == 1",
            "batchSizeMultipleOf rounds the best batch size: remove it, or batchSize",
            lambda spec: spec.batch_size is None or spec.batch_size_multiple_of == 1,
        ),
        Rule(
            "!has(self.validation) || has(self.checkpoint)",
            "validation continues a checkpoint: set checkpoint instead of initialLoss",
            lambda spec: spec.validation is None or spec.checkpoint is not None,
        ),
    )

    suspend: bool = False
    """Stop the evaluation Job and the probes, and start none. An answer that exists is kept."""
    sweep_ref: SweepReference
    """Sweep whose laws answer."""
    checkpoint: Checkpoint | None = None
    """Checkpoint whose initial loss is measured. Exactly one of checkpoint and initialLoss is
    required."""
    initial_loss: Loss | None = None
    """Initial loss in nats per token of the sweep's validation data, if already known."""
    budget: PredictionBudget
    """Planned compute."""
    target_parameters: PositiveTokens | None = None
    """Active parameters of the target in matrix products, output head included. Only with initialLoss:
    a checkpoint has its own."""
    target_sequence_length: int | None = Field(default=None, ge=8, le=1_048_576)
    """Tokens per sequence of the planned run. The predicted batch size keeps its tokens and is given in
    sequences of this length. Defaults to the sweep's data.sequenceLength."""
    pretraining_tokens: PositiveTokens | None = None
    """Tokens of the original pre-training. Adds variant B to the answer."""
    composition: Literal["Measured", "Paper"] = "Measured"
    """How laws of runs from scratch are taken to a continued run. Paper: it wants what a run from scratch of C_pre + C_cpt
    wants. Measured: the learning rate is also multiplied by the square root of s = C_cpt / (C_pre + C_cpt), and the
    batch size by 2 - s, as continued runs of small checkpoints wanted. The other one is among status.variants."""
    batch_size: int | None = Field(default=None, ge=1, le=MAX_BATCH_SIZE)
    """Batch size of the planned run in sequences, if it cannot be chosen. The answer is then the best learning rate
    at it, and status.batchSizeCost is what it costs over the best batch size. The best pair is among
    status.secondOpinions."""
    batch_size_tolerance: Decimal | None = None
    """Nats. status.affordableBatchSizes are then the smallest and largest batch size that are expected to cost at
    most so much more than the best one."""
    batch_size_multiple_of: int = Field(default=1, ge=1, le=MAX_BATCH_SIZE)
    """Round the batch size to a multiple of this number. If that is far from the best one, the learning rate is the
    best one there."""
    max_extrapolation: AtLeastOne = "1000"
    """Maximum ratio of the total compute to the largest compute of the sweep. Predictions beyond are
    refused."""
    validation: AnswerValidation | None = None
    """Train short continued runs around the answer and judge it by them, in the condition Validated,
    status.validation and status.refined. The answer itself, Ready and the ConfigMap stay as they are. The operator
    reads the checkpoint's config.json for it. Nothing is trained when absent."""
    publish: Publish | None = None
    """Publish the answer as a ConfigMap."""
