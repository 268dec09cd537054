"""The vocabulary of a search: what may be trained, what was seen, what is decided.

Batch sizes are sequences, losses nats per token, FLOPs counted as `flops_per_token` * tokens.
"""

from dataclasses import dataclass, field
from enum import StrEnum

from isoloss.laws import FitOptions, Interval, Run
from isoloss_contract.ledger import IntentAction
from isoloss_contract.records.points import whole_steps


@dataclass(frozen=True)
class Size:
    """One model size with its grid."""

    name: str
    params: float
    tokens: float
    """To which an exhaustive sweep trains every point."""
    batch_sizes: tuple[float, ...]
    learning_rates: tuple[float, ...]
    flops_per_token: float | None = None
    """None: 6 * params."""
    largest_batch_size: float | None = None
    """Sequences beyond which no batch size is added to the grid's; None: any may be."""
    sequence_length: int | None = None
    """Tokens. Runs end with the first whole step at or beyond what is wanted, and cost that much; None: they end
    anywhere."""
    seconds_per_flop: float | None = None
    """Accelerator seconds that training takes, by which SearchOptions.seconds_left counts; None: it takes none of
    them."""

    def trained_tokens(self, batch_size: float, tokens: float) -> float:
        """Of a run that `tokens` are wanted of."""
        if self.sequence_length is None:
            return tokens
        return float(whole_steps(round(tokens), round(batch_size), self.sequence_length))

    @property
    def token_flops(self) -> float:
        """FLOPs per token."""
        return self.flops_per_token or 6.0 * self.params

    @property
    def point_flops(self) -> float:
        """What one point costs that is trained to its end, but for whole steps."""
        return self.token_flops * self.tokens

    @property
    def grid_flops(self) -> float:
        """What the whole grid costs, each point trained to its end."""
        return len(self.batch_sizes) * len(self.learning_rates) * self.point_flops


@dataclass(frozen=True, order=True)
class Point:
    """A configuration of one size."""

    size: str
    batch_size: float
    learning_rate: float
    replicate: int = 0
    """0: the one that the search is about. n: the n-th repeat of it with another seed."""


@dataclass(frozen=True)
class Seen:
    """What is known of one point when a decision is due."""

    point: Point
    run: Run | None = None
    """Its trajectory so far; None: it has not been evaluated."""
    wanted: float = 0.0
    """Tokens of the last decision to run it; 0: it was never to run."""
    pruned: bool = False
    failed: bool = False
    """It will not run again, and what it has is all that there is."""

    @property
    def tokens(self) -> float:
        """Reached so far."""
        return 0.0 if self.run is None or not len(self.run.tokens) else float(self.run.tokens[-1])

    @property
    def closed(self) -> bool:
        """Whether nothing more is to come from it."""
        return self.pruned or self.failed or (self.run is not None and self.run.diverged)


@dataclass(frozen=True)
class SearchOptions:
    """When a search may stop, and what it may add."""

    learning_rate_precision: float = 1.3
    """The search stops once the 80% interval of the best learning rate at the largest size and its tokens
    is within this factor of the answer on either side (in geometric mean)."""
    batch_size_precision: float = 1.5
    """The same of the best batch size; both must hold."""
    negligible_regret: float = 0.001
    """Nats per token. The search also stops once its answer is expected to cost no more than this above the
    optimum: in a flat valley the factors above cannot be reached, and do not matter. 0: never for this."""
    max_added_points: int = 6
    """Beyond the edges of the grids, over all sizes."""
    budget_flops: float | None = None
    """For everything seen and still to come; None: no limit."""
    seconds_left: float | None = None
    """Accelerator seconds for what is still to come; None: no limit."""
    replicates: int = 0
    """Repeats with other seeds of the best point of the cheapest size: they measure the noise between runs."""
    fit: FitOptions = field(default_factory=lambda: FitOptions(bootstrap_samples=100))


class Reason(StrEnum):
    """Why a decision was taken; these words go into the ledger."""

    SMALLEST_SIZE = "SmallestSize"
    """The cheapest size runs on its whole grid."""
    AIMED = "AimedByLaws"
    """The provisional laws of the cheaper sizes put the optimum in or next to this cell."""
    BESIDE_LEADER = "BesideLeader"
    """The best point must have neighbours on all sides, or it could be on a slope."""
    BEYOND_EDGE = "BeyondEdge"
    """As BesideLeader, outside the grid."""
    BELOW_DIVERGED = "BelowDiverged"
    """Every point so far diverged, and this one has a smaller learning rate."""
    LEADER = "Leader"
    """It is expected to end lowest: it runs on, at the cheapest size to its end."""
    SURVIVOR = "NotRuledOut"
    """Its loss may still end below the leader's."""
    REPLICATE = "Replicate"
    """Another seed of the best point: how much runs differ by chance."""
    NARROWS = "NarrowsInterval"
    """The interval is wider than search.precision."""
    COMPLETES_LAWS = "CompletesLaws"
    """A cell, in the grid or beyond it, that the laws need to be fitted."""
    ABOVE_LEADER = "AboveLeader"
    """Pruned: the lower bound of its final loss is above the leader's."""


class StopReason(StrEnum):
    """Why a search is over."""

    PRECISION_REACHED = "PrecisionReached"
    """The interval of the optimum at the largest size is as narrow as asked for."""
    REGRET_NEGLIGIBLE = "RegretNegligible"
    """The interval is wider than asked for, but the remaining uncertainty costs almost nothing."""
    NOTHING_LEFT = "NothingLeft"
    """Every point near the optima is done, pruned or failed; the interval is wider than asked for, or there
    is none."""
    LEARNING_RATE_AT_EDGE = "LearningRateAtEdge"
    """The cheaper size's best point is at an edge of the learning rates, and no further ones may be added. It is so far
    from those of the larger size that training that would be in vain."""
    BATCH_SIZE_AT_EDGE = "BatchSizeAtEdge"
    """The same of the batch sizes."""
    ALL_DIVERGED = "AllDiverged"
    """Every point of the cheapest size diverged, and so did the smaller learning rates that may be added."""
    BUDGET_EXHAUSTED = "BudgetExhausted"
    """What it would train next does not fit into what is left of the budget; the interval may be wider than asked for."""


@dataclass(frozen=True)
class Decision:
    """What is newly wanted of one point."""

    point: Point
    action: IntentAction
    tokens: float
    """To run until, or where a pruned point stopped."""
    reason: Reason
    bound: float | None = None
    """For a pruned point: nats by which its final loss is above the leader's at the least."""
    added: bool = False
    """The point is not of the grid."""
    flops: float = 0.0
    """What following a decision to run costs; what one to prune saves."""
    risk: float = 0.0
    """For a pruned point: the probability that it would have ended below the leader."""


@dataclass(frozen=True)
class Step:
    """Everything that follows from what was seen. No decisions and no stop: points run that were to run."""

    decisions: tuple[Decision, ...] = ()
    stop: StopReason | None = None
    learning_rate: Interval | None = None
    """At the largest size and its tokens, once it was asked for and if the laws have an answer."""
    batch_size: Interval | None = None
    first_rung_flops: float | None = None
    """What the cheapest size's grid costs to the first rung, if the budget ended the search before that."""
    first_rung_seconds: float | None = None
    """The accelerator seconds that it takes, if it is these that are too few."""
