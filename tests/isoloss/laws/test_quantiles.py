"""Quantiles without scipy agree with scipy's."""

import numpy as np
import pytest
from scipy.special import stdtrit

from isoloss.laws.answer.composition import student_quantiles

LEVELS = (np.arange(21) + 0.5) / 21


@pytest.mark.parametrize("freedom", [1.0, 2.3, 4.0, 10.0, 60.0])
def test_student_quantiles_are_scipys(freedom: float) -> None:
    levels = np.array([0.001, *LEVELS, 0.975, 0.999])
    expected = stdtrit(freedom, levels)
    assert student_quantiles(freedom, levels) == pytest.approx(expected, rel=1e-4, abs=1e-5)
