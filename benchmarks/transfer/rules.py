"""What the laws answer for a continued run, by rules that differ in the total compute they ask at.

A rule turns a case (a checkpoint and a budget) into FLOPs; the engine answers there.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from benchmarks.transfer.design import Checkpoint, Place
from benchmarks.transfer.judging import Optimum
from isoloss.laws import Laws, Point, PredictionQuery, Refused, Route, predict


@dataclass(frozen=True)
class Case:
    """One checkpoint at one budget: what was known beforehand, and what was measured."""

    checkpoint: Checkpoint
    params: float
    tokens: float
    """Of the budget."""
    initial_loss: float
    initial_loss_error: float
    trajectories: Mapping[Place, Mapping[float, float]]
    """Losses of every continued run, by the tokens of its evaluations."""
    measured: Optimum
    reached: float
    """Lowest loss of the grid at the budget, nats."""
    sweep_tokens: float
    """At which the sweep of its size ends."""
    sweep_loss: float
    """Lowest loss of that sweep at its end, nats."""

    @property
    def flops_per_token(self) -> float:
        """As in the laws."""
        return 6.0 * self.params

    @property
    def cpt_flops(self) -> float:
        """The budget."""
        return self.flops_per_token * self.tokens


Rule = Callable[[Laws, Case], float | None]
"""Total FLOPs to ask at; None where the rule cannot tell."""


def answers_at(laws: Laws, flops: float, params: float) -> dict[Route, Point]:
    """The answer at a total compute, by what answered; empty where refused."""
    found = predict(laws, PredictionQuery(total_flops=flops, params=params))
    if isinstance(found, Refused) or found.best is None:
        return {}
    return {found.route: found.best}


def equivalent_flops(laws: Laws, loss: float) -> float | None:
    """C at which a run from scratch has this loss; None at or below the irreducible loss."""
    curve = laws.loss_compute.curve
    log_flops = float("inf") if curve is None else float(curve.log_x(loss))
    return float(np.exp(log_flops)) if np.isfinite(log_flops) else None


def paper(laws: Laws, case: Case) -> float | None:
    """C_pre from the loss before any step, and the budget."""
    before = equivalent_flops(laws, case.initial_loss)
    return None if before is None else before + case.cpt_flops


def variant_a(_laws: Laws, case: Case) -> float:
    """The budget alone."""
    return case.cpt_flops


def variant_b(_laws: Laws, case: Case) -> float:
    """The raw pre-training tokens and the budget."""
    return case.cpt_flops + case.flops_per_token * case.checkpoint.tokens


def adapted(share: float) -> Rule:
    """C_pre from the loss after an adaptation of about `share` of the budget, less its own compute.

    The adaptation is a run at the place of the grid that is nearest to the paper's answer: it needs
    nothing that a user does not have.
    """

    def rule(laws: Laws, case: Case) -> float | None:
        total = paper(laws, case)
        answer = None if total is None else answers_at(laws, total, case.params).get("surface")
        if answer is None:
            return None
        losses = case.trajectories[nearest(answer, list(case.trajectories))]
        tokens = min(losses, key=lambda t: abs(np.log(t / (share * case.tokens))))
        after = equivalent_flops(laws, losses[tokens])
        if after is None:
            return None
        return max(after - case.flops_per_token * tokens, 0.0) + case.cpt_flops

    return rule


def nearest(answer: Point, places: Sequence[Place]) -> Place:
    """The place of a grid that is nearest in ln LR and ln B."""
    rate, batch = log_optimum(answer)
    return min(
        places,
        key=lambda p: (np.log(p.rate) - rate) ** 2 + (np.log(p.batch) - batch) ** 2,
    )


def log_optimum(answer: Point) -> tuple[float, float]:
    """(ln LR, ln B)."""
    return float(np.log(answer.learning_rate.value)), float(np.log(answer.batch_size.value))


def reached(laws: Laws, case: Case) -> float | None:
    """The compute at which a run from scratch has the loss that the best continued run ended with.

    Nobody knows it beforehand: it tells what the equivalence of compute costs from what the laws do.
    """
    return equivalent_flops(laws, case.reached)


@dataclass(frozen=True)
class Registered:
    """The rule for continued runs that was written down before the cases it is judged on were trained.

        LR = LR_paper (C_cpt / C_total)^fade
        B  = B_law(N, D_end) (L_end / L_init)^k

    D_end is where the sweep of that size ends and L_end its lowest loss there, B_law the joint surface. Both
    exponents were found on the 24 cases of `design.KNOWN_*`, after about four other rules.
    """

    fade: float
    k: float
    constant_batch: float
    """Sequences. Of the rival that gives every continued run one batch size: the mean over the known cases."""

    def log_batch(self, laws: Laws, case: Case) -> float | None:
        """ln B; None where the surface is refused."""
        flops = case.flops_per_token * case.sweep_tokens
        at_end = answers_at(laws, flops, case.params).get("surface")
        if at_end is None:
            return None
        return log_optimum(at_end)[1] + self.k * float(np.log(case.sweep_loss / case.initial_loss))


REGISTERED = Registered(fade=0.5, k=1.9, constant_batch=6.4)

RULES: dict[str, Rule] = {
    "paper": paper,
    "A": variant_a,
    "B": variant_b,
    "adapted, tenth": adapted(0.1),
    "adapted, third": adapted(0.3),
    "loss reached": reached,
}
