"""The spec of a HyperparamPrediction: for which checkpoint and budget."""

from typing import ClassVar, Literal

from pydantic import Field

from isoloss_contract.records import MAX_BATCH_SIZE
from isoloss_operator.api import fields


class SweepReference(fields.ApiType):
    """A ScalingSweep in the same namespace."""

    name: fields.ObjectName
    """Name of the sweep."""


class Checkpoint(fields.ApiType):
    """The checkpoint to continue from."""

    uri: fields.FolderUri
    """Folder in Hugging Face format (config.json, safetensors)."""
    secret_name: fields.ObjectName | None = None
    """Name of a Secret in the same namespace whose keys become environment variables of the evaluation pod, and
    override those of the sweep's storage.secretName."""
    pod_template: fields.PodTemplate | None = None
    """Merged into the evaluation pod, after the sweep's podTemplate."""


class PredictionBudget(fields.ApiType):
    """Exactly one of flops and tokens."""

    rules: ClassVar = (
        fields.Rule(
            "has(self.flops) != has(self.tokens)",
            "set exactly one of flops and tokens",
            lambda budget: (budget.flops is None) != (budget.tokens is None),
        ),
    )

    flops: fields.Decimal | None = None
    """Planned compute of the continued pre-training, counted as 6 * active parameters * tokens."""
    tokens: fields.PositiveTokens | None = None
    """Planned tokens, converted to FLOPs with the target's active parameters."""


class Publish(fields.ApiType):
    """Where the answer is published for the next step of a pipeline."""

    config_map_name: fields.ObjectName
    """Name of a ConfigMap in the same namespace that the operator creates and owns."""


class AnswerValidation(fields.ApiType):
    """A sweep whose points show whether the answer holds: short runs that continue the checkpoint at the answer and
    next to it."""

    sweep_ref: SweepReference
    """ScalingSweep with a size that continues the checkpoint, best with grid.around of this prediction. Corpus, loss
    and optimizer must be those of the laws."""
    tolerance: fields.Decimal = "0.01"
    """Nats that the answer may lose at the full budget and still hold."""


class HyperparamPredictionSpec(fields.ApiType):
    """For this checkpoint and this budget: what learning rate and batch size?"""

    rules: ClassVar = (
        fields.Rule(
            "has(self.checkpoint) != has(self.initialLoss)",
            "set exactly one of checkpoint and initialLoss",
            lambda spec: (spec.checkpoint is None) != (spec.initial_loss is None),
        ),
        fields.Rule(
            "!has(self.budget.tokens) || has(self.checkpoint) || has(self.targetParameters)",
            "budget.tokens with initialLoss needs targetParameters, to turn tokens into FLOPs",
            lambda spec: (
                not (spec.budget.tokens and spec.initial_loss and spec.target_parameters is None)
            ),
        ),
        fields.Rule(
            "!has(self.checkpoint) || !has(self.targetParameters)",
            "targetParameters goes with initialLoss only: the checkpoint has its own",
            lambda spec: spec.checkpoint is None or spec.target_parameters is None,
        ),
        fields.Rule(
            "!has(self.batchSize) || has(self.checkpoint) || has(self.targetParameters)",
            "batchSize with initialLoss needs targetParameters: the learning rate there depends on the size, too",
            lambda spec: (
                not (spec.batch_size and spec.initial_loss and spec.target_parameters is None)
            ),
        ),
        fields.Rule(
            "!has(self.batchSize) || !has(self.batchSizeTolerance)",
            "batchSizeTolerance is about the best batch size: remove it, or batchSize",
            lambda spec: spec.batch_size is None or spec.batch_size_tolerance is None,
        ),
        fields.Rule(
            "!has(self.batchSize) || self.batchSizeMultipleOf == 1",
            "batchSizeMultipleOf rounds the best batch size: remove it, or batchSize",
            lambda spec: spec.batch_size is None or spec.batch_size_multiple_of == 1,
        ),
        fields.Rule(
            "!has(self.pretrainingLearningRate) || (self.composition == 'Measured' && !has(self.batchSize))",
            "pretrainingLearningRate is about the best pair by the composition Measured: remove it, or the others",
            lambda spec: (
                spec.pretraining_learning_rate is None
                or (spec.composition == "Measured" and spec.batch_size is None)
            ),
        ),
        fields.Rule(
            "!has(self.validation) || has(self.checkpoint)",
            "validation continues a checkpoint: set checkpoint instead of initialLoss",
            lambda spec: spec.validation is None or spec.checkpoint is not None,
        ),
    )

    suspend: bool = False
    """Stop the evaluation Job, and start none. An answer that exists is kept."""
    sweep_ref: SweepReference
    """Sweep whose laws answer."""
    checkpoint: Checkpoint | None = None
    """Checkpoint whose initial loss is measured. Exactly one of checkpoint and initialLoss is
    required."""
    initial_loss: fields.Loss | None = None
    """Initial loss in nats per token of the sweep's validation data, if already known."""
    budget: PredictionBudget
    """Planned compute."""
    target_parameters: fields.PositiveTokens | None = None
    """Active parameters of the target in matrix products, output head included. Only with initialLoss:
    a checkpoint has its own."""
    target_sequence_length: int | None = Field(default=None, ge=8, le=1_048_576)
    """Tokens per sequence of the planned run, in which the batch size is given. Defaults to the sweep's
    data.sequenceLength."""
    pretraining_tokens: fields.PositiveTokens | None = None
    """Tokens of the original pre-training. Adds variant B to the answer."""
    pretraining_learning_rate: fields.Decimal | None = None
    """Peak learning rate of the original pre-training, from a quarter to 1.3 times the laws': the slower it was, the lower is the best
    learning rate."""
    composition: Literal["Measured", "Paper"] = "Measured"
    """How laws of runs from scratch apply to a continued run. Paper: as to a run from scratch of C_pre + C_cpt.
    Measured: with the learning rate times the square root of s = C_cpt / (C_pre + C_cpt) and the batch size times 2 -
    s, as continued runs of small checkpoints wanted. status.variants has the other one."""
    batch_size: int | None = Field(default=None, ge=1, le=MAX_BATCH_SIZE)
    """Batch size of the planned run in sequences, if it is fixed. The answer is the best learning rate at it;
    status.batchSizeCost is its cost over the best batch size, and status.secondOpinions has the best pair."""
    batch_size_tolerance: fields.Decimal | None = None
    """Nats. status.affordableBatchSizes are then the smallest and largest batch size that are expected to cost at
    most so much more than the best one."""
    batch_size_multiple_of: int = Field(default=1, ge=1, le=MAX_BATCH_SIZE)
    """Round the batch size to a multiple of this number, with the best learning rate there."""
    max_extrapolation: fields.AtLeastOne | None = None
    """Maximum ratio of the total compute to the largest compute of the sweep. Predictions beyond are
    refused. By default what an answer is expected to waste decides."""
    validation: AnswerValidation | None = None
    """Judge the answer by the points of another sweep, in the condition Validated, status.validation and
    status.refined. The answer itself, Ready and the ConfigMap stay as they are."""
    publish: Publish | None = None
    """Publish the answer as a ConfigMap."""
