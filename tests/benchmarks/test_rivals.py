"""The least squares that the engine is compared with find what they assume."""

import numpy as np
import pytest

from benchmarks.science.contenders import joint_least_squares, quadratic_surface

SIZES, TOKENS = (1e8, 2e8, 4e8), (4e9, 8e9, 1.6e10)


def _vertex(n: float, d: float) -> np.ndarray:
    """A law of the optimum."""
    return np.array(
        [
            np.log(1e-3) - 0.4 * np.log(n / 2e8) + 0.1 * np.log(d / 8e9),
            np.log(128.0) + 0.5 * np.log(d / 8e9),
        ]
    )


def _cell(n: float, d: float, level: float) -> np.ndarray:
    """A grid around the middle of all cells: some optima lie near its edge."""
    places = [(x, y) for x in np.linspace(-8.0, -5.8, 5) for y in np.linspace(4.0, 5.7, 5)]
    curvature = np.array([[0.05, 0.02], [0.02, 0.04]])
    rows = []
    for place in places:
        off = np.array(place) - _vertex(n, d)
        rows.append((*place, level + 0.5 * off @ curvature @ off))
    return np.array(rows)


@pytest.mark.parametrize("fit", [joint_least_squares, quadratic_surface])
def test_an_optimum_that_moves_by_power_laws_is_found_beyond_the_data(fit):
    cells = {
        (n, d): _cell(n, d, 3.0 - 0.1 * np.log(n / 1e8) - 0.05 * np.log(d / 4e9))
        for n in SIZES
        for d in TOKENS
    }
    assert fit(cells)(8e8, 3e10) == pytest.approx(_vertex(8e8, 3e10), abs=0.02)


def test_levels_that_follow_no_law_do_not_matter_to_the_joint_fit():
    levels = np.random.default_rng(0).uniform(2.0, 3.0, 9)
    keys = [(n, d) for n in SIZES for d in TOKENS]
    cells = {key: _cell(*key, level) for key, level in zip(keys, levels, strict=True)}
    found = joint_least_squares(cells)(8e8, 3e10)
    assert found == pytest.approx(_vertex(8e8, 3e10), abs=1e-6)


def test_a_ridge_without_a_minimum_has_no_answer():
    cells = {(n, d): _cell(n, d, 3.0) * [1, 1, -1] for n in SIZES for d in TOKENS}
    assert joint_least_squares(cells)(8e8, 3e10) is None
