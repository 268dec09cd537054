"""What the laws answer for a continued run, by rules that differ in the total compute they ask at.

A rule turns a case (a checkpoint and a budget) into FLOPs; the engine answers there by both routes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from benchmarks.transfer.design import Place
from benchmarks.transfer.judging import Optimum
from isoloss.laws import Interval, Laws, PredictionQuery, Refused, Route, predict


@dataclass(frozen=True)
class Case:
    """One checkpoint at one budget: what was known beforehand, and what was measured."""

    name: str
    text: str
    params: float
    pretraining_tokens: float
    tokens: float
    """Of the budget."""
    initial_loss: float
    initial_loss_error: float
    adapted: Mapping[Place, Mapping[float, float]]
    """Losses of every continued run at the tokens of its evaluations."""
    measured: Optimum
    reached: float
    """Lowest loss of the grid at the budget, nats."""

    @property
    def flops_per_token(self) -> float:
        """As in the laws."""
        return 6.0 * self.params

    @property
    def cpt_flops(self) -> float:
        """The budget."""
        return self.flops_per_token * self.tokens


@dataclass(frozen=True)
class Answer:
    """Learning rate and batch size by one route, with 80 % intervals."""

    learning_rate: Interval
    batch_size: Interval

    @property
    def log(self) -> tuple[float, float]:
        """(ln LR, ln B)."""
        return float(np.log(self.learning_rate.value)), float(np.log(self.batch_size.value))


Answers = dict[Route, Answer]
Rule = Callable[[Laws, Case], float | None]
"""Total FLOPs to ask at; None where the rule cannot tell."""


def answers_at(laws: Laws, flops: float, params: float) -> Answers:
    """Both routes at a total compute; empty where refused."""
    found = predict(laws, PredictionQuery(total_flops=flops, params=params))
    return {} if isinstance(found, Refused) else _routes(found.routes)


def _routes(routes: Mapping[Route, object]) -> Answers:
    return {
        route: Answer(point.learning_rate, point.batch_size)  # type: ignore[attr-defined]
        for route, point in routes.items()
    }


def equivalent_flops(laws: Laws, loss: float) -> float | None:
    """C at which a run from scratch has this loss; None at or below the irreducible loss."""
    curve = laws.loss_compute.curve
    if curve is None:
        return None
    log_flops = float(curve.log_x(loss))
    return float(np.exp(log_flops)) if log_flops < 200 else None


def paper(laws: Laws, case: Case) -> float | None:
    """C_pre from the loss before adaptation, and the budget."""
    before = equivalent_flops(laws, case.initial_loss)
    return None if before is None else before + case.cpt_flops


def variant_a(_laws: Laws, case: Case) -> float:
    """The budget alone."""
    return case.cpt_flops


def variant_b(_laws: Laws, case: Case) -> float:
    """The raw pre-training tokens and the budget."""
    return case.cpt_flops + case.flops_per_token * case.pretraining_tokens


def adapted(share: float) -> Rule:
    """C_pre from the loss after an adaptation of about `share` of the budget, less its own compute.

    The adaptation is a run at the place of the grid nearest to the paper's answer: nothing is known
    that a user does not know.
    """

    def rule(laws: Laws, case: Case) -> float | None:
        total = paper(laws, case)
        routes = answers_at(laws, total, case.params) if total is not None else {}
        answer = routes.get("surface") or routes.get("iso-loss")
        if answer is None:
            return None
        losses = case.adapted[nearest(answer, list(case.adapted))]
        tokens = min(losses, key=lambda t: abs(np.log(t / (share * case.tokens))))
        reached = equivalent_flops(laws, losses[tokens])
        if reached is None:
            return None
        return max(reached - case.flops_per_token * tokens, 0.0) + case.cpt_flops

    return rule


def nearest(answer: Answer, places: list[Place]) -> Place:
    """The place of a grid that is nearest in ln LR and ln B."""
    rate, batch = answer.log
    return min(
        places,
        key=lambda p: (np.log(p.rate) - rate) ** 2 + (np.log(p.batch) - batch) ** 2,
    )


def reached(laws: Laws, case: Case) -> float | None:
    """The compute at which a run from scratch has the loss that the best continued run ended with.

    Nobody knows it beforehand: it tells the composition's error from the laws' own.
    """
    return equivalent_flops(laws, case.reached)
