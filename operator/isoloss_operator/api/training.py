"""How every point of a sweep is trained and evaluated."""

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from isoloss_operator.api import fields


class Optimizer(fields.ApiType):
    """Settings of AdamW."""

    beta1: fields.Fraction = "0.9"
    """Decay rate of the first moment."""
    beta2: fields.Fraction = "0.999"
    """Decay rate of the second moment."""
    epsilon: fields.Decimal = "1e-8"
    """Added to the denominator of the update."""
    weight_decay: fields.NonNegativeDecimal = "0.01"
    """Decoupled weight decay."""
    gradient_clip: fields.Decimal = "1.0"
    """Maximum norm of the gradient."""
    warmup_tokens: fields.NonNegativeTokens | None = None
    """Length of the linear learning-rate warm-up in tokens, for every batch size. When absent, as many tokens as the
    size has active parameters, at most just under half of evaluation.firstTokens; `isoloss plan` prints it. 0:
    none."""
    second_moment_tokens: fields.NonNegativeTokens = 0
    """Time constant of the second moment in tokens, in place of beta2, for every batch size. 0: beta2 applies."""
    weight_decay_tokens: fields.NonNegativeTokens = 0
    """Time constant of the weight decay in tokens, in place of weightDecay, for every batch size and learning rate.
    At least ten of the largest batches. 0: weightDecay applies."""
    z_loss: fields.LossWeight = "0"
    """Weight of the squared log of the softmax's denominator in the gradient, which keeps logits small; not part of
    reported losses."""
    schedule: Literal["Constant"] = "Constant"
    """Learning rate after the warm-up."""


class Evaluation(fields.ApiType):
    """When runs are evaluated: at firstTokens * 10^(i / perDecade)."""

    first_tokens: fields.PositiveTokens = 100_000_000
    """Tokens at the first evaluation."""
    per_decade: int = Field(default=24, ge=4, le=100)
    """Number of evaluations per factor of ten in tokens."""
    averaging_tokens: fields.NonNegativeTokens = 0
    """Time constant of the averaged weights in tokens. 0 means a tenth of the tokens seen."""


class Training(fields.ApiType):
    """Precision, seeds and checkpoints."""

    rules: ClassVar = (
        fields.Rule(
            "self.additionalSeeds.all(a, a != self.seed"
            " && self.additionalSeeds.exists_one(b, a == b))",
            "additionalSeeds must differ from each other and from seed",
            lambda training: len(set(training.seeds)) == len(training.seeds),
        ),
    )

    precision: Annotated[Literal["BFloat16", "Float32"], fields.IDENTITY] = "BFloat16"
    """Precision of the matrix products. Weights and moments are always float32. Immutable."""
    seed: Annotated[int, Field(ge=0, le=2_147_483_647), fields.IDENTITY] = 0
    """Seed of initialisation and data order. Immutable."""
    additional_seeds: Annotated[
        tuple[Annotated[int, Field(ge=0, le=2_147_483_647)], ...], Field(max_length=20)
    ] = ()
    """Every point is trained with each of these seeds too. Fits average such runs and measure the noise by them."""
    checkpoint_seconds: int = Field(default=600, ge=1, le=86_400)
    """Maximum number of seconds between two checkpoints."""
    preemptions_per_day: int = Field(default=0, ge=0, le=1000)
    """Expected preemptions of a node per day. Set terminationGracePeriodSeconds in the pod template to the time that a
    preempted node leaves a pod: if it is too short for a checkpoint, the trainer measures one and chooses the interval
    that loses least, at most checkpointSeconds. 0: unknown; the interval is checkpointSeconds."""
    deterministic: bool = False
    """Use only GPU kernels that give equal bits for equal input, at some cost in speed. On a CPU runs are always
    equal. Changing it affects later attempts."""
    release_checkpoints: bool = False
    """Delete a point's training state once it is done. The point then starts over when its tokens are raised."""

    @property
    def seeds(self) -> tuple[int, ...]:
        """Seeds of every point's runs, the sweep's own first."""
        return (self.seed, *self.additional_seeds)
