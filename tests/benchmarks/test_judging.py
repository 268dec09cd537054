"""The judge of a published cell: what it takes for the optimum, and what it charges for missing it."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.science.judging import (
    CUBIC,
    NARROW,
    QUADRATIC,
    WIDE,
    Judge,
    judge,
    near_best,
    read,
    terms,
)

OPTIMUM = np.array([-6.5, 5.0])


def cell(third: float = 0.0, noise: float = 0.0, step: float = 0.2, seed: int = 0) -> np.ndarray:
    """(points, 3): ln LR, ln B and losses of 11 x 11 runs in a valley with a third derivative over ln LR."""
    i, j = (a.ravel() - 5.0 for a in np.indices((11, 11)))
    x, y = step * i + 0.03, step * j - 0.05
    losses = 3.0 + 0.05 * x**2 + 0.01 * x * y + 0.03 * y**2 + third * x**3 / 6
    losses += noise * np.random.default_rng(seed).standard_normal(len(x))
    return np.stack([OPTIMUM[0] + x, OPTIMUM[1] + y, losses], axis=1)


def test_a_parabola_is_read_exactly() -> None:
    found = judge(cell())
    assert found.vertex == pytest.approx(OPTIMUM, abs=1e-6)
    assert found.regret(*np.exp(OPTIMUM)) == pytest.approx(0.0, abs=1e-9)
    rate, batch = np.exp(OPTIMUM + np.array([0.4, -0.2]))
    assert found.regret(rate, batch) == pytest.approx(0.05 * 0.16 - 0.01 * 0.08 + 0.03 * 0.04)


def test_the_reading_that_predicts_left_out_runs_best_judges() -> None:
    """In a skewed valley a quadratic's optimum lies on the flat side, in a wide window farther."""
    points = cell(third=0.06, noise=2e-4)
    found = judge(points)
    assert found.reading.powers == CUBIC
    assert found.vertex == pytest.approx(OPTIMUM, abs=0.03)
    wide, narrow = (read(points, window, QUADRATIC) for window in (WIDE, NARROW))
    assert wide.vertex[0] < narrow.vertex[0] < OPTIMUM[0] + 0.03
    errors = [r.left_out_error for r in (found.reading, *found.others)]
    assert errors == sorted(errors)


def test_the_error_for_left_out_runs_is_that_of_fits_without_them() -> None:
    points = cell(noise=1e-3)
    near = near_best(points, NARROW)
    misses = []
    for k in range(len(near)):
        rest = np.delete(near, k, axis=0)
        centre = rest[:, :2].mean(axis=0)
        c = np.linalg.lstsq(terms(rest[:, :2] - centre), rest[:, 2], rcond=None)[0]
        misses.append(near[k, 2] - terms(near[k : k + 1, :2] - centre)[0] @ c)
    found = read(points, NARROW, QUADRATIC).left_out_error
    assert found == pytest.approx(np.sqrt(np.mean(np.square(misses))), rel=1e-6)


def test_the_optimum_is_as_uncertain_as_noise_and_the_readings_make_it() -> None:
    seen = [judge(cell(noise=1e-3, seed=s)) for s in range(40)]
    spread = np.std([j.vertex for j in seen], axis=0)
    stated = np.median([j.vertex_error for j in seen], axis=0)
    assert np.all(stated > 0.6 * spread)
    assert np.all(stated < 3.0 * spread)
    skewed = judge(cell(third=0.06))
    apart = max(abs(other.vertex[0] - skewed.vertex[0]) for other in skewed.others)
    assert skewed.vertex_error[0] > 0.4 * apart


def test_a_cubic_says_nothing_where_it_has_no_runs() -> None:
    """Far on the flat side a cubic would fall without end; the dearest quadratic charges instead."""
    found = judge(cell(third=0.06, noise=2e-4))
    far = np.exp(OPTIMUM - np.array([8.0, 0.0]))
    assert found.reading.regret(*far) < 0
    assert found.regret(*far) == pytest.approx(
        max(o.regret(*far) for o in found.others if len(o.powers) == len(QUADRATIC))
    )


def test_a_cell_without_a_minimum_is_judged_by_a_wide_quadratic_and_says_so() -> None:
    points = cell()
    points[:, 2] = 3.0 + 0.02 * (points[:, 0] - OPTIMUM[0]) - 0.01 * (points[:, 1] - 5.0) ** 2
    found = judge(points)
    assert isinstance(found, Judge)
    assert not found.convex
    assert found.reading.powers == QUADRATIC
