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


def through(*points: tuple[int, float]) -> np.ndarray:
    """Losses on straight lines from one (step, loss) to the next."""
    steps, losses = zip(*points, strict=True)
    return np.interp(np.arange(steps[-1] + 1), steps, losses)


NOISE = np.random.default_rng(0).normal(0, 1, 4000)
"""Of small batches."""
STEADY = np.full(2000, 4.0)
SPIKE = [7.0] * 200 + [8.5] * (RISE_STEPS - 1)


@pytest.mark.parametrize(
    ("losses", "after", "within"),
    [
        pytest.param([7.0, *[12.0] * 1000], RISE_STEPS, RISE_STEPS, id="far above the first"),
        # Of a vocabulary of 131,072: learned down to 4 nats, then back to almost nothing learned.
        pytest.param(
            through((0, 11.78), (1000, 4), (2000, 4), (2100, 8), (2999, 11.5)),
            2000,
            3 * RISE_STEPS,
            id="to below the first",
        ),
        pytest.param(
            np.append(STEADY, STEADY + 2) + NOISE, 2000, 4 * RISE_STEPS, id="under noise"
        ),
        pytest.param(
            through((0, 11), (2000, 4), (9999, 6)), 2000 + 4000, 6 * RISE_STEPS, id="slowly"
        ),
        pytest.param(np.tile(STEADY, 2) + NOISE, None, 0, id="noise alone"),
        pytest.param([*SPIKE, *SPIKE, *[7.0] * 200], None, 0, id="spikes"),
        pytest.param([7.0, *[12.0] * (RISE_STEPS - 40), *[7.0] * 200], None, 0, id="a high spike"),
    ],
)
def test_a_lasting_rise_is_divergence(
    losses: Iterable[float], after: int | None, within: int
) -> None:
    watch = DivergenceWatch()
    steps = (step for step, loss in enumerate(losses, 1) if watch.has_diverged(float(loss)))
    found = next(steps, None)
    assert found is None if after is None else found and after < found < after + within
