"""What the ledger's and the search's one-word reasons mean, in sentences for people."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from isoloss import formatting
from isoloss_contract.ledger import NOT_CHOSEN, Intent, IntentAction

BUDGET_SPENT: Final = "BudgetExhausted"
"""Intent.reason of a point that is stopped or not started because the budget is spent."""

REASONS: Final[Mapping[str, str]] = {
    NOT_CHOSEN: "the search has not asked for it",
    "SmallestSize": "the cheapest size runs on its whole grid",
    "AimedByLaws": "the laws of the cheaper sizes put the optimum in this cell or next to it",
    "BesideLeader": "the best point must have neighbours on all sides",
    "BeyondEdge": "the best point must have neighbours on all sides, and this one is beyond the grid",
    "BelowDiverged": "every larger learning rate diverged",
    "Leader": "it is expected to end lowest",
    "NotRuledOut": "its loss may still end below the leader's",
    "Replicate": "another seed of the best point shows how much losses differ by chance",
    "NarrowsInterval": "the interval of the optimum is wider than search.precision",
    "CompletesLaws": "the laws cannot be fitted without it",
    "AboveLeader": "it cannot end below the leader",
    BUDGET_SPENT: "spec.budget is spent",
    "BudgetRaised": "spec.budget has room for it again",
}
"""Intent.reason and AddedPoint.reason in words."""

ENDINGS: Final[Mapping[str, str]] = {
    "PrecisionReached": "the optimum is known to search.precision",
    "RegretNegligible": "what is still open about the optimum costs next to nothing",
    "NothingLeft": "no point near the optima is left to train",
    "LearningRateAtEdge": (
        "the best point of the cheaper size is at an edge of the learning rates, far from those of the larger one, and "
        "spec.search.extendGrid.maxPoints lets no more be added: move learningRates, or raise it"
    ),
    "BatchSizeAtEdge": (
        "the best point of the cheaper size is at an edge of the batch sizes, far from those of the larger one, and "
        "spec.search.extendGrid.maxPoints lets no more be added: move batchSizes, or raise it"
    ),
    "AllDiverged": (
        "every point of the cheapest size diverged, and spec.search.extendGrid.maxPoints lets no smaller learning rate be "
        "added: lower learningRates, or raise it"
    ),
    "BudgetExhausted": "no further point fits into spec.budget",
}
"""isoloss.search.StopReason in words."""


def reason_in_words(reason: str) -> str:
    """The reason and what it means; a word that is not known here stands alone."""
    meaning = REASONS.get(reason)
    return f"{reason}: {meaning}" if meaning else reason


def bound_in_words(intent: Intent) -> str:
    """The number that decided; empty if none did."""
    if intent.bound is None:
        return ""
    if intent.action is IntentAction.PRUNE:
        return f"it would end at least {formatting.number(intent.bound, 2)} nats above the leader"
    return f"the limit is {formatting.flops(intent.bound)} FLOPs"
