"""The vocabulary of the law engine: runs, options, refusals and intervals.

Symbols as in the literature: N active parameters taking part in matrix products, D tokens,
C = 6 N D FLOPs (or as given), L loss in nats per token, B batch size in sequences, LR learning rate.
"""

import math
import numbers
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Literal, get_args

import numpy as np

from isoloss import formatting
from isoloss.laws.arrays import Array, Real

Status = Literal["fitted", "provisional", "refused"]
LawForm = Literal["PowerLawOfLoss", "LinearInLogCompute"]
Route = Literal["iso-loss", "surface", "fixed-batch"]
"""What answers: the paper's laws, the joint surface, or, if the batch size is given, the law of the learning rate there."""


class InvalidRunError(ValueError):
    """A run with impossible numbers; `run` and `field` name them."""

    def __init__(self, run: str, field_name: str, problem: str) -> None:
        super().__init__(f"run {run}: {field_name} {problem}")
        self.run = run
        self.field = field_name


StartedFrom = Literal["Scratch", "Checkpoints"]
"""Random weights, or those of checkpoints that runs continue."""


@dataclass(frozen=True)
class Run:
    """One training run: constant (N, B, LR), a loss trajectory over tokens.

    `tokens` and `losses` have one entry per evaluation, in order of tokens.

    >>> run = isoloss.Run("a", 30e6, 64, 2048, 1e-3, tokens=[1e9, 2e9], losses=[4.0, 3.8])
    >>> laws = isoloss.fit_laws([*isoloss.read_runs("runs.csv").runs, run])
    """

    name: str
    params: float
    batch_size: float
    sequence_length: int
    learning_rate: float
    tokens: Array
    losses: Array
    flops_per_token: float | None = None
    """None: 6 * params."""
    bytes_per_token: float | None = None
    diverged: bool = False
    finished: bool = True
    """False: it has not trained for all its tokens. What it has reached so far is a bound, not a result."""
    stopped: str = ""
    """Why it goes on no more although it is not finished, in a word for people such as "pruned"; empty: it is still
    training."""
    tokenizer: str | None = None
    """Names the tokenizer; losses per token of two tokenizers are not comparable."""
    loss_kind: str | None = None
    """For example raw, averaged, annealed: losses of two kinds are not comparable."""
    optimizer: str | None = None
    """For example AdamW or Lion: the best settings of two optimizers are no one law."""
    started_from: StartedFrom | None = None
    """What its weights were at the beginning; None: not known. Its tokens and FLOPs are those since then."""
    configuration: str | None = None
    """Names all that a run depends on except its seed. Two runs of one configuration with different seeds are
    replicates, however much they differ; if that is not known, those that differ by more than is usual are refused."""
    seed: str | None = None
    """Names the seed."""

    def __post_init__(self) -> None:
        """Make arrays of lists. Raises TypeError, naming the run and the field, for what is no number or no name."""
        if not isinstance(self.name, str):
            raise TypeError(
                f"Run: name must be a text, not {type(self.name).__name__} {self.name!r}"
            )
        optional = ("flops_per_token", "bytes_per_token")
        for name in ("params", "batch_size", "learning_rate", *optional):
            if name not in optional or getattr(self, name) is not None:
                check_number(f"run {self.name}: {name}", getattr(self, name))
        length = check_number(f"run {self.name}: sequence_length", self.sequence_length)
        if length % 1:
            raise TypeError(f"run {self.name}: sequence_length must be whole, not {length:g}")
        object.__setattr__(self, "sequence_length", int(length))
        for name in ("tokens", "losses"):
            object.__setattr__(self, name, np.asarray(getattr(self, name), dtype=float))

    def __repr__(self) -> str:
        ends = "no evaluation"
        if self.tokens.size and self.tokens.shape == self.losses.shape:
            reached, last = formatting.count(self.tokens[-1]), formatting.loss(self.losses[-1])
            ends = f"{formatting.counted(self.tokens.size, 'evaluation')} to {reached} tokens, last loss {last}"
        return (
            f"<Run {self.name}: {formatting.count(self.params)} parameters, "
            f"learning rate {formatting.learning_rate(self.learning_rate)}, batch size "
            f"{formatting.batch_size(self.batch_size)} x {self.sequence_length}, {ends}{', diverged' if self.diverged else ''}>"
        )


class RefusalReason(StrEnum):
    """Why there is no answer; each value is also a condition reason."""

    TOO_FEW_SIZES = "TooFewSizes"
    TOO_FEW_RUNS = "TooFewRuns"
    TOO_FEW_EVALUATIONS = "TooFewEvaluations"
    NO_COMMON_LOSS_RANGE = "NoCommonLossRange"
    OPTIMUM_ON_LEARNING_RATE_EDGE = "OptimumOnLearningRateEdge"
    OPTIMUM_ON_BATCH_SIZE_EDGE = "OptimumOnBatchSizeEdge"
    SURFACE_NOT_CONVEX = "SurfaceNotConvex"
    CURVATURE_NOT_IDENTIFIED = "CurvatureNotIdentified"
    TREND_INDISTINGUISHABLE_FROM_NOISE = "TrendIndistinguishableFromNoise"
    IRREDUCIBLE_LOSS_NOT_IDENTIFIED = "IrreducibleLossNotIdentified"
    INITIAL_LOSS_BELOW_IRREDUCIBLE = "InitialLossBelowIrreducible"
    INITIAL_LOSS_ABOVE_ALL_SEEN = "InitialLossAboveAllSeen"
    INITIAL_LOSS_UNCERTAIN = "InitialLossUncertain"
    EXTRAPOLATION_TOO_FAR = "ExtrapolationTooFar"
    BUDGET_TOO_SMALL = "BudgetTooSmall"
    MIXED_TOKENIZERS = "MixedTokenizers"
    MIXED_SEQUENCE_LENGTHS = "MixedSequenceLengths"
    MIXED_LOSS_KINDS = "MixedLossKinds"
    MIXED_OPTIMIZERS = "MixedOptimizers"
    MIXED_STARTS = "MixedStarts"
    DUPLICATED_RUN = "DuplicatedRun"
    LAW_REFUSED = "LawRefused"


NO_MINIMUM = frozenset(
    {
        RefusalReason.OPTIMUM_ON_LEARNING_RATE_EDGE,
        RefusalReason.OPTIMUM_ON_BATCH_SIZE_EDGE,
        RefusalReason.SURFACE_NOT_CONVEX,
    }
)
"""Reasons that say that runs show no optimum inside the grid."""


@dataclass(frozen=True)
class Refusal:
    """Why there is no answer, typed; `message` is a sentence that a user can act on.

    >>> refusal = laws.predict(initial_loss=1.2, params=1e9, cpt_tokens=5e9).refusals[0]
    >>> refusal.reason.value
    'InitialLossBelowIrreducible'
    """

    reason: RefusalReason
    message: str
    figures: dict[str, Real | str] = field(default_factory=dict)
    """The numbers behind the sentence."""

    def __str__(self) -> str:
        return f"{self.reason.value}: {self.message}"


@dataclass(frozen=True)
class FitOptions:
    """How to fit.

    >>> options = isoloss.FitOptions(bootstrap_samples=50, exclude=("n30m-b32-lr0.002",))
    >>> laws = isoloss.fit_laws("runs.csv", options)
    """

    irreducible_loss: float | None = None
    """Nats per token; None: free."""
    form: LawForm = "PowerLawOfLoss"
    bootstrap_samples: int = 400
    seed: int = 0
    interval: float = 0.80
    max_extrapolation: float | None = None
    """Largest C_total over the largest compute seen before a prediction is refused; None: what it is expected to waste decides."""
    exclude: tuple[str, ...] = ()
    """Names of runs to leave out."""
    keep_outliers: bool = False
    """Keep even runs whose losses cannot be theirs; they are named in any case."""

    def __post_init__(self) -> None:
        """Raise TypeError or ValueError, naming the option: a wrong one would be ignored, or fit another law."""
        for name in ("irreducible_loss", "interval", "max_extrapolation"):
            value = getattr(self, name)
            if value is None and name != "interval":
                continue
            number = check_number(f"FitOptions: {name}", value)
            check_positive(f"FitOptions: {name}", number)
            object.__setattr__(self, name, number)
        if self.interval >= 1:
            raise ValueError(f"FitOptions: interval: {self.interval:g} must be below 1, as 0.8")
        for name, least in (("bootstrap_samples", 1), ("seed", 0)):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, numbers.Integral) or value < least:
                raise ValueError(
                    f"FitOptions: {name}: {value!r} is not a whole number of {least} or more"
                )
            object.__setattr__(self, name, int(value))
        if self.form not in get_args(LawForm):
            known = " or ".join(get_args(LawForm))
            raise ValueError(f"FitOptions: form must be {known}, not {self.form!r}")
        if isinstance(self.exclude, str):
            raise TypeError(f"FitOptions: exclude takes names of runs, as ({self.exclude!r},)")
        if not isinstance(self.keep_outliers, bool):
            raise TypeError(
                f"FitOptions: keep_outliers is neither True nor False: {self.keep_outliers!r}"
            )
        object.__setattr__(self, "exclude", tuple(self.exclude))


def check_number(name: str, value: object) -> float:
    """The value as a float. Raises TypeError, naming it, for what is no real number."""
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise TypeError(f"{name} must be a number, not {type(value).__name__} {value!r}")
    return float(value)


def check_positive(name: str, value: float) -> None:
    """Raise ValueError, naming it, unless a number is positive and finite."""
    if not 0 < value < math.inf:
        raise ValueError(f"{name}: {value:g} is not a positive, finite number")


DEFAULTS = FitOptions()


@dataclass(frozen=True)
class Interval:
    """A value with its interval (at the level of FitOptions.interval, 80% by default)."""

    value: Real
    low: Real
    high: Real

    def __repr__(self) -> str:
        # A notebook shows it: no digit beyond what any fit knows.
        return f"Interval(value={self.value:.6g}, low={self.low:.6g}, high={self.high:.6g})"
