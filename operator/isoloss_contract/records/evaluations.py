"""A checkpoint's initial loss: the task that measures it and the result."""

from typing import Annotated, Literal

from pydantic import Field

from isoloss_contract.records import base
from isoloss_contract.records.points import DomainLoss, ParameterCounts


class EvaluateConfig(base.Record):
    """Everything that determines a checkpoint's initial loss."""

    contract_version: Literal[1] = 1
    data_digest: base.Digest
    mixture: dict[base.Name, base.PositiveFinite] = Field(min_length=1)
    checkpoint: base.Uri
    """A Hugging Face directory in the store."""
    sequence_length: int = Field(ge=8)
    sequences_per_domain: int = Field(ge=1)
    precision: Literal["bf16", "float32"] = "bf16"
    checkpoint_stamp: Annotated[str, Field(max_length=64)] = ""
    """Digest of the names and versions of the checkpoint's files: other weights under the same URI are another
    checkpoint. Empty if they could not be listed."""

    @property
    def key(self) -> str:
        """The evaluation's name in the store."""
        return base.record_key(self)


class EvaluateTask(base.Record):
    """The complete input of an evaluate pod."""

    kind: Literal["evaluate"] = "evaluate"
    config: EvaluateConfig
    store_uri: base.Uri
    data_uri: base.Uri


class EvaluationResult(base.Report):
    """A checkpoint's loss on the sweep's own validation sequences."""

    contract_version: Literal[1] = 1
    key: base.Digest
    loss: base.Finite
    loss_standard_error: float = Field(ge=0, allow_inf_nan=False)
    domains: dict[base.Name, DomainLoss]
    nats_per_byte: base.Finite
    evaluated_tokens: base.Tokens
    parameters: ParameterCounts
    model_type: str = Field(max_length=64)
    tokenizer_digest: base.Digest | None
    """None if the checkpoint has no tokenizer."""
    same_tokenizer: bool
    """False: the checkpoint read the text of the sweep's sequences in its own tokens, and `loss` is
    converted to the sweep's."""
    first_token: int | None = Field(default=None, ge=0)
    """Put before every sequence, because the checkpoint's loss is lower with it; None: nothing is."""
    accelerator_seconds: float = Field(ge=0, allow_inf_nan=False)
    versions: dict[str, str] = Field(default_factory=dict)
