"""The quadratic over (ln LR, ln B) that levels, held-out cells, suspects and figures share."""

import numpy as np
import pytest

from isoloss.laws.quadratic import fit_quadratic, is_determined, value_at, vertex_of

COEFFICIENTS = np.array([3.0, 0.2, -0.4, 0.5, 0.1, 0.3])
CENTRE = np.array([-7.0, 4.0])


def grid(rates: int, batches: int) -> tuple[np.ndarray, np.ndarray]:
    x, y = np.meshgrid(np.linspace(-9, -5, rates), np.linspace(2, 6, batches))
    return x.ravel(), y.ravel()


def test_the_minimum_of_a_quadratic_is_its_lowest_value() -> None:
    x, y = grid(801, 801)
    values = value_at(COEFFICIENTS, CENTRE, x, y)
    vertex, lowest, convex = vertex_of(COEFFICIENTS, CENTRE)
    assert convex
    assert lowest == pytest.approx(values.min(), abs=1e-4)
    assert vertex == pytest.approx([x[values.argmin()], y[values.argmin()]], abs=0.005)


def test_a_fit_through_a_quadratic_is_that_quadratic_whatever_the_weights() -> None:
    x, y = grid(4, 3)
    values = value_at(COEFFICIENTS, CENTRE, x, y)
    fit = fit_quadratic(x, y, values, np.linspace(0.1, 1.0, len(x)))
    assert fit.residuals == pytest.approx(np.zeros(len(x)), abs=1e-9)
    assert fit.at(x, y) == pytest.approx(values)
    assert fit.leverage.sum() == pytest.approx(6.0)
    assert vertex_of(fit.coefficients, fit.centre)[0] == pytest.approx(
        vertex_of(COEFFICIENTS, CENTRE)[0]
    )


def test_a_saddle_is_not_convex() -> None:
    assert not vertex_of(np.array([0.0, 0.0, 0.0, 1.0, 3.0, 1.0]), CENTRE)[2]


@pytest.mark.parametrize(
    ("x", "y"), [grid(2, 5), grid(5, 2), (np.arange(7.0), np.arange(7.0)), grid(1, 5)]
)
def test_places_that_leave_a_term_open_determine_no_quadratic(
    x: np.ndarray, y: np.ndarray
) -> None:
    assert not is_determined(x, y)
    assert is_determined(*grid(3, 3))
