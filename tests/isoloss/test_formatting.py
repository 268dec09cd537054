"""One formatter: the same number reads the same in a status, on a terminal and in a report."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Literal

import pytest

from isoloss import formatting
from isoloss.laws import (
    HyperparameterLaw,
    Interval,
    LossComputeLaw,
    OptimumPlanes,
    Plane,
    SurfaceLaw,
)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, ""),
        (math.nan, ""),
        (math.inf, "unbounded"),
        (0.0, "0"),
        (2.1e21, "2.1e21"),
        (2e21, "2e21"),
        (0.000234, "2.34e-4"),
        (1.5e-7, "1.5e-7"),
        (768.0, "768"),
        (1234567.0, "1.23e6"),
        (0.01234, "0.0123"),
        (999.96, "1000"),
        (123456.0, "123456"),
        (-3.14159, "-3.14"),
    ],
)
def test_numbers_have_three_digits_and_an_exponent_only_where_it_helps(
    value: float | None, text: str
) -> None:
    assert formatting.number(value) == text


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        (formatting.number(-0.7476, 4), "-0.7476"),
        (formatting.learning_rate(2e-4), "2e-4"),
        (formatting.learning_rate(6.157e-5), "6.16e-5"),
        (formatting.learning_rate(0.02), "2e-2"),
        (formatting.learning_rate(0.0), ""),
        (formatting.flops(2.8e21), "2.8e21"),
        (formatting.flops(123456), "1.23e5"),
        (formatting.loss(2.07951), "2.0795"),
        (formatting.loss(2.0), "2.0000"),
        (formatting.count(999_960_000), "1B"),
        (formatting.count(536_870_912), "537M"),
        (formatting.count(20e9), "20B"),
        (formatting.count(12), "12"),
        (formatting.batch_size(771.4), "771"),
        (formatting.batch_size(3.14), "3.1"),
        (formatting.batch_size(5.0), "5"),
        (formatting.batch_size(9.97), "10"),
        (formatting.batch_size(6_316_032), "6316032"),
        (formatting.batch_size(1e16), "1e16"),
        (formatting.percent(0.9201), "92.0%"),
        (formatting.percent(-0.5), "-50.0%"),
    ],
)
def test_each_quantity_has_its_own_format(written: str, expected: str) -> None:
    assert written == expected


@pytest.mark.parametrize(
    "write",
    [
        *(formatting.number, formatting.exponential, formatting.learning_rate, formatting.flops),
        *(formatting.loss, formatting.batch_size, formatting.count, formatting.percent),
    ],
)
def test_absent_values_are_empty_and_infinite_ones_unbounded(
    write: Callable[[float | None], str],
) -> None:
    assert [write(None), write(math.nan), write(math.inf)] == ["", "", "unbounded"]


def test_an_interval_is_in_the_format_of_its_quantity() -> None:
    batch = Interval(771.4, 703, 844)
    assert formatting.interval(batch, formatting.batch_size) == "771 [703, 844]"
    rate = Interval(1.59e-3, 1.3e-3, math.inf)
    assert formatting.interval(rate, formatting.learning_rate) == "1.59e-3 [1.3e-3, unbounded]"
    assert formatting.interval(None) == ""


# ------------------------------------------------------------------------------------ formulas

POWER = HyperparameterLaw(
    *("learning_rate", "fitted", "PowerLawOfLoss"),
    intercept=math.log(2.84e-5),
    slope=2.5114,
    points=12,
    slope_interval=Interval(2.5114, 2.4, 2.62),
)
CURVE = LossComputeLaw(
    *("fitted", 1.02, math.log(297.04), 0.11514),
    rmse=0.00683,
    points=12,
    irreducible_loss_interval=Interval(1.02, 0.9, 1.1),
    gamma_interval=Interval(0.11514, 0.1, 0.13),
)


def test_a_power_law_shows_its_coefficient_and_exponent() -> None:
    assert formatting.hyperparameter_formula(POWER) == "LR = 2.84e-5 * L^2.511"
    batch = replace(POWER, quantity="batch_size", intercept=math.log(250), slope=-3.0)
    assert formatting.hyperparameter_formula(batch) == "B = 250 * L^-3"


@pytest.mark.parametrize(
    ("quantity", "slope", "intercept", "formula"),
    [
        ("learning_rate", -0.7476, 42.1357, "ln C = -0.7476 ln LR + 42.1357"),
        ("batch_size", 0.0093, 42.21, "ln C = 0.0093 B + 42.21"),
        ("batch_size", 0.0093, -4.5, "ln C = 0.0093 B - 4.5"),
    ],
)
def test_a_law_linear_in_log_compute_reads_as_in_the_paper(
    quantity: Literal["learning_rate", "batch_size"], slope: float, intercept: float, formula: str
) -> None:
    law = HyperparameterLaw(quantity, "fitted", "LinearInLogCompute", intercept, slope)
    assert formatting.hyperparameter_formula(law) == formula


def test_the_loss_curve_shows_all_three_coefficients() -> None:
    assert formatting.loss_compute_formula(CURVE) == "L = 1.0200 + 297 * C^-0.1151"


def test_a_coefficient_that_no_one_could_read_is_an_exponential() -> None:
    steep = replace(CURVE, log_alpha=812.34567, gamma=18.2)
    assert formatting.loss_compute_formula(steep) == "L = 1.0200 + exp(812.346) * C^-18.2"


def test_the_joint_surface_is_written_over_parameters_and_tokens() -> None:
    surface = SurfaceLaw(
        "fitted",
        planes=OptimumPlanes(
            learning_rate=Plane(math.log(1e-3), -0.5, 0.0),
            batch_size=Plane(math.log(100), 0.0, 0.5),
            log_params_centre=math.log(1e8),
            log_tokens_centre=math.log(1e10),
        ),
        residual_rms=0.00123,
        cells=30,
    )
    assert formatting.surface_formula(surface) == "LR = 10 * N^-0.5; B = 0.001 * D^0.5"
    assert formatting.surface_quality(surface) == "30 (N, D) cells, residual 0.0012 nats"


def test_refused_laws_have_no_formula() -> None:
    refused = HyperparameterLaw("learning_rate", "refused", "PowerLawOfLoss")
    assert formatting.hyperparameter_formula(refused) == ""
    assert formatting.loss_compute_formula(LossComputeLaw("refused")) == ""
    assert formatting.surface_formula(SurfaceLaw("refused")) == ""


def test_the_quality_says_what_a_law_rests_on() -> None:
    assert formatting.hyperparameter_quality(POWER) == "12 optima, exponent 2.4 to 2.62"
    assert formatting.loss_compute_quality(CURVE) == (
        "12 losses, residual 0.0068 nats, L0 0.9 to 1.1, gamma 0.1 to 0.13"
    )
    fixed = replace(CURVE, irreducible_loss_fixed=True)
    assert formatting.loss_compute_quality(fixed).endswith("gamma 0.1 to 0.13, L0 fixed")
    vague = replace(CURVE, irreducible_loss_identified=False)
    assert formatting.loss_compute_quality(vague).endswith("L0 not identified by the data")


@pytest.mark.parametrize("loss", [1.9, 3.2])
def test_a_formula_evaluates_to_what_the_law_predicts(loss: float) -> None:
    text = formatting.hyperparameter_formula(POWER).partition(" = ")[2]
    evaluated = eval(text.replace("^", "**"), {"L": loss})
    curve = POWER.curve
    assert curve is not None
    assert evaluated == pytest.approx(float(curve.value(loss, 0.0)), rel=1e-3)


def test_sentences_are_wrapped_between_words_and_a_path_stays_whole() -> None:
    text = "written to /a/very/long-path/of-a/store and more"
    assert formatting.wrapped(text, 10) == [
        "written to",
        "/a/very/long-path/of-a/store",
        "and more",
    ]
