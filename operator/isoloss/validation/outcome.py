"""What a validation finds."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Literal

from isoloss.laws import Interval, RefusalReason
from isoloss.validation.probes import Probe


class Reason(StrEnum):
    """Why an answer is validated, is not, or cannot be told about; each value is fit for a condition."""

    ANSWER_HOLDS = "AnswerHolds"
    BETTER_ANSWER_NEARBY = "BetterAnswerNearby"
    ANSWER_DIVERGED = "AnswerDiverged"
    WITHIN_NOISE = "WithinNoise"
    NO_MINIMUM = "NoMinimum"
    TOO_FEW_PROBES = "TooFewProbes"


UNDECIDED = frozenset(
    {
        *map(str, RefusalReason),
        "BadConfiguration",
        "CheckpointChanged",
        "CheckpointDiffers",
        "CorpusDiffers",
        "DataChanged",
        "InvalidSpec",
        "LossDiffers",
        "NoMinimum",
        "NoResults",
        "OptimizerDiffers",
        "TooFewProbes",
        "TooManyFailedPoints",
        "WithinNoise",
    }
)
"""Reasons of a Validated that stays Unknown unless a user changes something."""


def is_verdict(status: str, reason: str) -> bool:
    """Whether a Validated says what the points came to, and not what it waits for."""
    return status in ("True", "False") or reason in UNDECIDED


@dataclass(frozen=True)
class Comparison:
    """The answer's probe against one neighbour, as measured at the probes' tokens."""

    neighbour: Probe
    difference: float
    """Loss of the neighbour less that of the answer, nats; infinite if the neighbour diverged."""
    standard_error: float
    """Standard error of the difference."""
    better: Literal["answer", "neighbour"] | None
    """Beyond noise; None: they cannot be told apart."""


@dataclass(frozen=True)
class Direction:
    """Where the better answer lies; None: the probes show neither side to be better."""

    learning_rate: Literal["higher", "lower"] | None = None
    batch_size: Literal["larger", "smaller"] | None = None

    def in_words(self) -> str:
        """As in "at a higher learning rate and a larger batch size"; empty without a direction."""
        parts = (
            f"a {self.learning_rate} learning rate" if self.learning_rate else "",
            f"a {self.batch_size} batch size" if self.batch_size else "",
        )
        return " and ".join(part for part in parts if part)


@dataclass(frozen=True)
class Refined:
    """Laws and probes together, for the full budget; shown alongside the laws' own answer."""

    learning_rate: Interval
    batch_size: Interval
    """Sequences, not rounded."""
    regret_of_answer: Interval
    """Nats that the laws' answer loses to the best one, by laws and probes together."""


@dataclass(frozen=True)
class Validation:
    """Whether an answer holds, and by how much not.

    >>> from isoloss.validation import probes_of_runs
    >>> probes, tokens = probes_of_runs(isoloss.read_runs("probes.csv").runs)
    >>> judged = isoloss.validate(laws, query, probes, probe_flops=6 * 1e9 * tokens)
    >>> judged.validated
    True
    """

    validated: bool | None
    """None: unknown."""
    reason: Reason
    message: str
    comparisons: tuple[Comparison, ...] = ()
    regret: Interval | None = None
    """Nats that the answer loses at the full budget, by the probes alone: median and interval. None: not told."""
    direction: Direction = Direction()
    refined: Refined | None = None
    warnings: tuple[str, ...] = ()
    """What makes the probes, and so the verdict, doubtful."""

    @property
    def beats_neighbours(self) -> bool | None:
        """Whether the answer beats every neighbour beyond noise; False: one beats it; None: undecided."""
        found = [comparison.better for comparison in self.comparisons]
        if "neighbour" in found:
            return False
        return True if found and all(better == "answer" for better in found) else None
