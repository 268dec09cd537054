"""In how many data orders the probes of one order alone decide, by their length and by what is tolerated. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from benchmarks.measured_optimum import loss_at
from benchmarks.validation.design import OWN
from benchmarks.validation.judging import Question, Runs, ToldNoise, budget, validated
from isoloss.laws import Run
from isoloss.validation import Place, Reason

SHARES = (0.3, 0.5, 0.6, 0.75, 1.0)
"""Lengths of probes, of the budget's tokens."""
TOLERANCES = (0.01, 0.02, 0.03, 0.04)
"""Nats."""
DECIDED = (Reason.ANSWER_HOLDS, Reason.BETTER_ANSWER_NEARBY)


def decision_table(
    question: Question, cross: Sequence[Place], ends: Runs, residuals: float | None
) -> Iterator[str]:
    """Verdicts on the laws' own answer, with the operator's noise, of whole runs `ends` cut to each length.

    A run's learning rate is constant after its warm-up, so that its beginning is the shorter run.
    """
    yield f"| probes | {' | '.join(f'{tolerance:g} nats' for tolerance in TOLERANCES)} |"
    yield f"|---|{'---|' * len(TOLERANCES)}"
    assert question.answer.cpt_flops is not None  # the query has a budget
    noise = ToldNoise(residual=residuals)
    for share in SHARES:
        tokens = share * budget(ends)
        asked = question.with_probes(share * question.answer.cpt_flops)
        orders = [[_until(runs[place], tokens) for place in cross] for runs in ends.values()]
        cells = (_decided(replace(asked, tolerance=each), orders, noise) for each in TOLERANCES)
        yield f"| {share:.0%} | {' | '.join(cells)} |"


def _decided(question: Question, orders: Sequence[Sequence[Run]], noise: ToldNoise) -> str:
    """How often each verdict was reached, as in "2 AnswerHolds"; "none" if no order decides."""
    reasons = Counter(validated(question, OWN, probes, noise).reason for probes in orders)
    return ", ".join(f"{reasons[each]} {each}" for each in DECIDED if reasons[each]) or "none"


def _until(run: Run, tokens: float) -> Run:
    """The run's beginning."""
    earlier = run.tokens < tokens
    return replace(
        run,
        tokens=np.append(run.tokens[earlier], tokens),
        losses=np.append(run.losses[earlier], loss_at(run, tokens)),
    )
