"""A step of the search as it is asked for, and its outcome."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from pydantic import Field

from isoloss_contract.ledger import MAX_ADDITIONS, IntentAction
from isoloss_contract.records import Finite, Name, PositiveFinite, Tokens


@dataclass(frozen=True)
class SearchedSize:
    """One proxy with its grid."""

    name: str
    parameters: int
    """Active ones in matrix products."""
    tokens: int
    batch_sizes: tuple[int, ...]
    learning_rates: tuple[float, ...]


@dataclass(frozen=True)
class SearchedPoint:
    """A point as the ledger has it. Its trajectory is that of the fit's point of this key, if there is one."""

    key: str
    size: str
    batch_size: int
    learning_rate: float
    wanted_tokens: int
    """Tokens of the last decision; 0: it was never chosen."""
    pruned: bool
    failed: bool
    """For good."""
    replicate: int = 0
    """n: its seed is the sweep's and n; 0: the sweep's own."""


@dataclass(frozen=True)
class SearchRequest:
    """Decide what to train next."""

    sizes: tuple[SearchedSize, ...]
    points: tuple[SearchedPoint, ...]
    sequence_length: int
    learning_rate_precision: float
    batch_size_precision: float
    max_added_points: int
    replicates: int
    flops_left: float | None
    """FLOPs left of the budget; None: there is no budget."""


Text = Annotated[str, Field(max_length=64)]


@dataclass(frozen=True)
class PointDecision:
    """What is newly wanted of one point."""

    size: Name
    batch_size: int
    learning_rate: PositiveFinite
    action: IntentAction
    tokens: Tokens
    """To train until; of a pruned point 0."""
    reason: Text
    """One of isoloss.search.Reason."""
    bound: Finite | None
    """For a pruned point: nats by which it would end above the leader at the least."""
    flops: Finite
    """What following a decision to run costs; what one to prune saves."""
    risk: Finite
    """For a pruned point: probability that it would have ended below the leader."""
    added: bool
    replicate: int = 0
    """n: a repeat with the sweep's seed and n."""


@dataclass(frozen=True)
class SearchStep:
    """The decisions that follow once all points have reached their targets."""

    decisions: Annotated[tuple[PointDecision, ...], Field(max_length=MAX_ADDITIONS)] = ()
    ended: Text = ""
    """One of isoloss.search.StopReason; empty: the search goes on, and there are decisions."""
