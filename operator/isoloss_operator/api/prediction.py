"""The spec of a HyperparamPrediction: for which checkpoint and budget."""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field

from isoloss_operator.api.fields import (
    ApiType,
    AtLeastOne,
    Decimal,
    FolderUri,
    Loss,
    ObjectName,
    PodTemplate,
    PositiveTokens,
    Rule,
)


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
    """Planned compute of the continued pre-training, counted as 6 * active parameters * tokens, or with
    attention where the sweep's fit.flops says so."""
    tokens: PositiveTokens | None = None
    """Planned tokens, converted to FLOPs with the target's active parameters."""


class Publish(ApiType):
    """Where the answer is published for the next step of a pipeline."""

    config_map_name: ObjectName
    """Name of a ConfigMap in the same namespace that the operator creates and owns."""


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
            "targetParameters goes with initialLoss only: the checkpoint states its own",
            lambda spec: spec.checkpoint is None or spec.target_parameters is None,
        ),
    )

    suspend: bool = False
    """Stop the evaluation Job and start none. An answer that exists is kept."""
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
    a checkpoint states its own."""
    target_sequence_length: int | None = Field(default=None, ge=8, le=1_048_576)
    """Tokens per sequence of the planned run. The predicted batch size keeps its tokens and is given in
    sequences of this length. Defaults to the sweep's data.sequenceLength."""
    pretraining_tokens: PositiveTokens | None = None
    """Tokens of the original pre-training. Adds variant B to the answer."""
    batch_size_multiple_of: int = Field(default=1, ge=1, le=1_000_000)
    """Round the batch size to a multiple of this number."""
    max_extrapolation: AtLeastOne = "1000"
    """Maximum ratio of the total compute to the largest compute of the sweep. Predictions beyond are
    refused."""
    publish: Publish | None = None
    """Publish the answer as a ConfigMap."""
