"""Evaluations come at fixed token counts, and a diverged run is recognised."""

import math
from collections.abc import Iterable

import numpy as np
import pytest

from isoloss_contract.records import EvaluationConfig
from isoloss_contract.records.points import (
    evaluation_steps,
    evaluation_tokens,
)
from isoloss_trainer.attempt import RISE_STEPS, DivergenceWatch

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


def steps_until_divergence(losses: Iterable[float]) -> int | None:
    watch = DivergenceWatch()
    found = (number for number, loss in enumerate(losses, 1) if watch.has_diverged(loss))
    return next(found, None)


def test_a_loss_far_above_the_first_for_long_is_divergence() -> None:
    found = steps_until_divergence([7.0, *[12.0] * 1000])
    assert found is not None
    assert RISE_STEPS < found < 2 * RISE_STEPS


def test_a_rise_to_below_the_first_loss_is_divergence() -> None:
    """Of a vocabulary of 131,072: learned down to 4 nats, then back to almost nothing learned."""
    learned = np.interp(np.arange(3000), [0, 1000, 2000, 2100, 2999], [11.78, 4, 4, 8, 11.5])
    found = steps_until_divergence(learned.tolist())
    assert found is not None
    assert 2000 < found < 2000 + 3 * RISE_STEPS


def test_a_rise_is_found_under_the_noise_of_small_batches() -> None:
    noise = np.random.default_rng(0).normal(0, 1, 4000)
    steady = np.full(2000, 4.0)
    assert steps_until_divergence((np.tile(steady, 2) + noise).tolist()) is None
    found = steps_until_divergence((np.append(steady, steady + 2) + noise).tolist())
    assert found is not None
    assert 2000 < found < 2000 + 4 * RISE_STEPS


def test_a_slow_rise_is_found() -> None:
    rise = np.interp(np.arange(10_000), [0, 2000, 9999], [11, 4, 6])
    found = steps_until_divergence(rise.tolist())
    assert found is not None
    assert 2000 + 4000 < found < 2000 + 4000 + 6 * RISE_STEPS


def test_a_spike_is_forgiven() -> None:
    spike = [*[7.0] * 200, *[8.5] * (RISE_STEPS - 1)]
    assert steps_until_divergence([*spike, *spike, *[7.0] * 200]) is None
    assert steps_until_divergence([7.0, *[12.0] * (RISE_STEPS - 40), *[7.0] * 200]) is None
