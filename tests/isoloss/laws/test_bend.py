"""A law over few sizes may bend beyond them, and its intervals say so."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.science.shapes import WIDE, runs_on, surface
from isoloss.laws import FitOptions, Laws, PredictionQuery, fit_laws, predict
from isoloss.laws.results import Bend
from isoloss.laws.surface.bend import possible_bend
from isoloss.usual import USUAL_BEND, USUAL_SCATTER

LOG_PARAMS = np.log([1e8, 2e8, 4e8])
TARGET, TOKENS = 8e9, 1.6e11


def bend(log_params: np.ndarray, shifts: np.ndarray, noise: float = 0.01) -> Bend:
    """Of one hyperparameter, whose optimum is off its law by `shifts` (sizes,), known to within `noise`."""
    return possible_bend(
        log_params,
        shifts[:, None],
        np.full((len(shifts), 1), noise**2),
        np.array([USUAL_SCATTER**2]),
    )


def bent(log_params: np.ndarray, by: float) -> np.ndarray:
    """What a line through (ln N)^2 times `by` leaves over."""
    squares = by * (log_params - log_params.mean()) ** 2
    return np.asarray(squares - np.polyval(np.polyfit(log_params, squares, 1), log_params))


def test_two_sizes_show_no_bend_so_that_it_may_be_as_usual() -> None:
    found = bend(LOG_PARAMS[:2], np.zeros(2))
    assert found.spread == pytest.approx(USUAL_BEND)
    for log_params in LOG_PARAMS[:2]:
        assert found.error(log_params) == pytest.approx(0.0)


def test_a_single_size_has_its_trend_from_elsewhere_and_bends_by_nothing_more() -> None:
    assert bend(LOG_PARAMS[:1], np.zeros(1)).error(np.log(8e9)) == pytest.approx(0.0)


def test_the_error_grows_with_the_square_of_the_distance() -> None:
    found = bend(LOG_PARAMS, np.zeros(3))
    near, far, farther = (float(found.error(LOG_PARAMS[1] + x)[0]) for x in (0.0, 3.0, 6.0))
    assert near < 0.02
    assert farther / far == pytest.approx(4.0, rel=0.15)


def test_sizes_on_a_line_leave_little_room_for_a_bend_and_more_of_them_leave_less() -> None:
    three = bend(LOG_PARAMS, np.zeros(3)).spread
    five = bend(np.log([5e7, 1e8, 2e8, 4e8, 8e8]), np.zeros(5)).spread
    assert five < 0.5 * three < 0.5 * USUAL_BEND


def test_noise_that_hides_a_bend_leaves_it_as_usual() -> None:
    assert bend(LOG_PARAMS, np.zeros(3), noise=0.3).spread == pytest.approx(USUAL_BEND, rel=0.1)


@pytest.mark.parametrize("by", [0.05, -0.05])
def test_a_bend_that_shows_is_allowed_for_in_either_direction(by: float) -> None:
    many = np.log([5e7, 1e8, 2e8, 4e8, 8e8])
    assert 0.03 < bend(many, bent(many, by)).spread < 0.06


def test_an_order_of_sizes_makes_no_difference() -> None:
    shifts = np.array([0.02, -0.05, 0.03])
    assert bend(LOG_PARAMS[::-1], shifts[::-1]).spread == pytest.approx(
        bend(LOG_PARAMS, shifts).spread
    )


def bending_laws(seed: int) -> Laws:
    return fit_laws(
        runs_on(surface("bending", seed), WIDE, seed), FitOptions(bootstrap_samples=60)
    )


@pytest.mark.slow
def test_intervals_hold_a_law_that_bends_twenty_times_beyond_the_sizes() -> None:
    """ln LR bends by 0.05 (ln N)^2: within three sizes by 0.02, which is nothing, and at 8B by 0.66."""
    best = surface("bending", 0).rate(TARGET, TOKENS)
    for seed in range(3):
        laws = bending_laws(seed)
        query = PredictionQuery(total_flops=6 * TARGET * TOKENS, params=TARGET)
        rate = predict(laws, query).learning_rate
        assert rate.low <= best <= rate.high
        batch = predict(laws, query).batch_size_raw
        at_batch = predict(
            laws, PredictionQuery(total_flops=6 * TARGET * TOKENS, params=TARGET, batch_size=batch)
        ).learning_rate
        assert at_batch.low <= best <= at_batch.high
