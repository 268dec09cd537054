"""The vocabulary of a search: what may be trained, what was seen, what is decided.

Batch sizes are sequences, losses nats per token, FLOPs counted as `flops_per_token` * tokens.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

import numpy as np

from isoloss.design import Target
from isoloss.laws import FitOptions, Run
from isoloss_contract.records.points import whole_steps

FIRST_SHARE = 0.1
"""Of a size's tokens, at which runs are compared for the first time, or later. With 0.3 answers cost a third more."""
LATEST_SHARE = 0.9
RUNG_EXPONENTS = (1.0, 0.523, 0.222, 0.0)
"""Of that share, at which a run may stop and is read: 0.1, 0.3, 0.6 and all of the tokens."""
RUNGS = len(RUNG_EXPONENTS)
REACHED = 0.99
"""Share of its wanted tokens at which a point is there: runs end at whole steps."""


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
    first_tokens: float = 0.0
    """Before these, runs are not compared: they are hardly evaluated, or still warm up."""

    def trained_tokens(self, batch_size: float, tokens: float) -> float:
        """Of a run that `tokens` are wanted of."""
        if self.sequence_length is None:
            return tokens
        return float(whole_steps(round(tokens), round(batch_size), self.sequence_length))

    @property
    def points(self) -> tuple[Point, ...]:
        """All cells of the grid."""
        return tuple(
            Point(self.name, batch, rate)
            for batch in sorted(self.batch_sizes)
            for rate in sorted(self.learning_rates)
        )

    @property
    def rungs(self) -> tuple[float, ...]:
        """(RUNGS,) shares of the tokens."""
        first = float(np.clip(self.first_tokens / self.tokens, FIRST_SHARE, LATEST_SHARE))
        return tuple(first**exponent for exponent in RUNG_EXPONENTS)

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


@dataclass(frozen=True)
class Seen:
    """What is known of one point when a decision is due."""

    point: Point
    run: Run | None = None
    """Its trajectory so far; None: it has not been evaluated."""
    wanted: float = 0.0
    """Tokens of the last decision to run it; 0: it was never to run."""
    failed: bool = False
    """It will not run again, and what it has is all that there is."""

    @property
    def tokens(self) -> float:
        """Reached so far."""
        return 0.0 if self.run is None or not len(self.run.tokens) else float(self.run.tokens[-1])

    @property
    def diverged(self) -> bool:
        """Whether its loss grew without bound."""
        return self.run is not None and self.run.diverged

    @property
    def closed(self) -> bool:
        """Whether nothing more is to come from it."""
        return self.failed or self.diverged


@dataclass(frozen=True)
class SearchOptions:
    """What a search may spend and add."""

    target: Target | None = None
    """The run that the answer is for; None: one of TARGET times the compute of the largest size's runs (plan.py)."""
    jobs: int = 16
    """Points that are trained at a time, and so decided on at once."""
    max_added_points: int = 6
    """Beyond the edges of the grids, over all sizes."""
    budget_flops: float | None = None
    """For everything seen and still to come; None: no limit."""
    seconds_left: float | None = None
    """Accelerator seconds for what is still to come; None: no limit."""
    fit: FitOptions = field(default_factory=lambda: FitOptions(bootstrap_samples=100))


class Reason(StrEnum):
    """Why a decision was taken; these words go into the ledger."""

    LOWERS_REGRET = "LowersRegret"
    """It is expected to lower the regret of the answer by more than it costs."""
    BEYOND_EDGE = "BeyondEdge"
    """As LowersRegret, outside the grid."""
    BELOW_DIVERGED = "BelowDiverged"
    """Every point so far diverged, and this one has a smaller learning rate."""
    COMPLETES_LAWS = "CompletesLaws"
    """No point is worth its cost, but the laws refuse an answer at the largest size, or a loss-compute law: of what
    is left, it tells most for its cost."""


class StopReason(StrEnum):
    """Why a search is over."""

    NOT_WORTH_ITS_COST = "NotWorthItsCost"
    """The laws answer, and the next best point would cost more than the regret that it is expected to lower."""
    NOTHING_LEFT = "NothingLeft"
    """Every point of the grids is done, diverged or failed, or would save less than a tenth of its cost; no more may be added."""
    ALL_DIVERGED = "AllDiverged"
    """Every point that was tried diverged, and so did the smaller learning rates that may be added."""
    BUDGET_EXHAUSTED = "BudgetExhausted"
    """What is worth training next does not fit into what is left of the budget."""


@dataclass(frozen=True)
class Decision:
    """What is newly wanted of one point."""

    point: Point
    tokens: float
    """To run until."""
    reason: Reason
    added: bool = False
    """The point is not of the grid."""
    flops: float = 0.0
    """What following it costs."""
    saves: float = 0.0
    """FLOPs of the target that it is expected to save, by a better answer."""


@dataclass(frozen=True)
class Step:
    """Everything that follows from what was seen. No decisions and no stop: points run that were to run."""

    decisions: tuple[Decision, ...] = ()
    stop: StopReason | None = None
    next_flops: float | None = None
    """What the next best point would cost, if the search ends because it is not worth it."""
    next_saves: float | None = None
    """FLOPs of the target that it would be expected to save."""
    least_flops: float | None = None
    """What a search must train at the least, if the budget ends it before that."""
    least_seconds: float | None = None
    """The accelerator seconds that this takes, if it is these that are too few."""
