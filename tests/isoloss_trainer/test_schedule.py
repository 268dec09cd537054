"""Evaluations come at fixed token counts, and a diverged run is recognised."""

from __future__ import annotations

import math

import pytest

from isoloss_contract.records import EvaluationConfig
from isoloss_trainer.schedule import evaluation_steps, evaluation_tokens
from isoloss_trainer.training_state import EXPLODED_NATS, EXPLODED_STEPS, DivergenceWatch

CONFIG = EvaluationConfig(first_tokens=1000, per_decade=4)


def test_counts_are_log_spaced() -> None:
    assert evaluation_tokens(CONFIG, 10_000) == [1000, 1778, 3162, 5623, 10_000]


def test_a_longer_run_adds_counts_and_changes_none() -> None:
    assert evaluation_tokens(CONFIG, 99_999)[:5] == evaluation_tokens(CONFIG, 10_000)


def test_a_count_is_evaluated_at_the_first_step_that_reaches_it() -> None:
    assert evaluation_steps(CONFIG, 512, 10) == {2, 4, 7}


def test_a_step_that_passes_several_counts_is_one_evaluation() -> None:
    assert evaluation_steps(CONFIG, 4000, 2) == {1, 2}


@pytest.mark.parametrize("loss", [math.nan, math.inf, -math.inf])
def test_a_loss_that_is_not_finite_is_divergence_at_once(loss: float) -> None:
    watch = DivergenceWatch()
    assert not watch.has_diverged(7.0)
    assert watch.has_diverged(loss)


def test_a_loss_far_above_the_first_for_long_is_divergence() -> None:
    watch = DivergenceWatch()
    verdicts = [watch.has_diverged(7.0)]
    verdicts += [watch.has_diverged(7.1 + EXPLODED_NATS) for _ in range(EXPLODED_STEPS)]
    assert verdicts == [False] * EXPLODED_STEPS + [True]


def test_a_spike_is_forgiven() -> None:
    watch = DivergenceWatch()
    losses = [7.0, *[9.0] * (EXPLODED_STEPS - 1), 7.5, *[9.0] * (EXPLODED_STEPS - 1)]
    assert not any(watch.has_diverged(loss) for loss in losses)
