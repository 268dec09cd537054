"""Digits, ellipses and quadratics of the report."""

from __future__ import annotations

import math

import numpy as np
import pytest

from isoloss.laws import Interval
from isoloss.report import numbers
from isoloss.report.contour_figure import ellipse, quadratic, quadratic_minimum
from isoloss.report.drawing import plain_text


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        (numbers.learning_rate(6.157e-5), "6.2 × 10⁻⁵"),
        (numbers.flops(2.8e21), "2.80 × 10²¹"),
        (numbers.count(999_960_000), "1 B"),
        (numbers.count(536_870_912), "537 M"),
        (numbers.count(20e9), "20 B"),
        (numbers.count(12), "12"),
        (numbers.whole(771.4), "771"),
        (numbers.whole(3.14), "3.1"),
        (numbers.loss(2.07951), "2.080"),
        (numbers.percent(0.9201), "92.0 %"),
        (numbers.digits(0.0), "0"),
        (numbers.digits(-0.7476, 4), "-0.7476"),
        (numbers.digits(1.5e-7), "1.50 × 10⁻⁷"),
        (numbers.scientific(1.25e-4), "1.25e-4"),
        (numbers.scientific(4.883e-4), "4.9e-4"),
        (numbers.scientific(2e-4), "2e-4"),
        (numbers.with_interval(Interval(771.4, 703, 844), "whole"), "771 [703, 844]"),
    ],
)
def test_numbers_have_as_many_digits_as_they_deserve(written: str, expected: str) -> None:
    assert written == expected


@pytest.mark.parametrize("value", [None, math.nan, math.inf])
def test_what_is_missing_is_a_dash(value: float | None) -> None:
    for write in (numbers.digits, numbers.flops, numbers.loss, numbers.count, numbers.whole):
        assert write(value) == "–"


def test_the_ellipse_holds_its_share_of_the_distribution() -> None:
    covariance = np.array([[0.04, 0.015], [0.015, 0.02]])
    centre = np.array([-8.0, 5.0])
    drawn = np.random.default_rng(0).multivariate_normal(centre, covariance, 40_000)
    outline = ellipse(centre, covariance, 0.8)
    offset = outline.T - centre
    radius = np.einsum("ij,jk,ik->i", offset, np.linalg.inv(covariance), offset)
    assert radius == pytest.approx(radius[0])
    inside = (
        np.einsum("ij,jk,ik->i", drawn - centre, np.linalg.inv(covariance), drawn - centre)
        <= radius[0]
    )
    assert inside.mean() == pytest.approx(0.8, abs=0.01)


def test_the_minimum_of_a_quadratic_is_its_lowest_value() -> None:
    coefficients = np.array([3.0, 0.2, -0.4, 0.5, 0.1, 0.3])
    centre = np.array([-7.0, 4.0])
    x, y = np.meshgrid(np.linspace(-9, -5, 801), np.linspace(2, 6, 801))
    lowest = quadratic(coefficients, centre, x, y).min()
    assert quadratic_minimum(coefficients) == pytest.approx(lowest, abs=1e-4)


def test_text_in_figures_starts_no_mathematics() -> None:
    assert "$" not in plain_text("a $x$ b")
    assert len(plain_text("y" * 100)) == 60
