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
    pod_template: PodTemplate | None = None
    """Overrides of the evaluation pod."""


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
    """Planned compute of the continued pre-training, by 6 * active parameters * tokens."""
    tokens: PositiveTokens | None = None
    """Planned tokens; turned into FLOPs with the checkpoint's active parameters."""


class Publish(ApiType):
    """Where the answer is published for the next step of a pipeline."""

    config_map_name: ObjectName
    """ConfigMap in the same namespace, written by the operator."""


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
            "targetParameters goes with initialLoss only: the checkpoint says its own",
            lambda spec: spec.checkpoint is None or spec.target_parameters is None,
        ),
    )

    sweep_ref: SweepReference
    """The sweep whose laws answer."""
    checkpoint: Checkpoint | None = None
    """Measure the initial loss of this checkpoint."""
    initial_loss: Loss | None = None
    """The initial loss, in nats per token of the sweep's validation data, where already known."""
    budget: PredictionBudget
    """Planned compute."""
    target_parameters: PositiveTokens | None = None
    """Active parameters of the target (matrix products, head included), where no checkpoint says so."""
    pretraining_tokens: PositiveTokens | None = None
    """Tokens of the original pre-training: gives variant B beside the answer."""
    batch_size_multiple_of: int = Field(default=1, ge=1, le=1_000_000)
    """Round the batch size to a multiple of this."""
    max_extrapolation: AtLeastOne = "1000"
    """Refuse where the total compute exceeds the largest seen by more than this factor."""
    publish: Publish | None = None
    """Publish the answer as a ConfigMap."""
