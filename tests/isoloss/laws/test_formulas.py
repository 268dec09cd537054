"""Laws as formulas that can be pasted, and what each rests on."""

import math
from dataclasses import replace
from typing import Literal

import pytest

from isoloss import laws as engine

POWER = engine.HyperparameterLaw(
    *("learning_rate", "fitted", "PowerLawOfLoss"),
    intercept=math.log(2.84e-5),
    slope=2.5114,
    points=12,
    slope_interval=engine.Interval(2.5114, 2.4, 2.62),
)
CURVE = engine.LossComputeLaw(
    *("fitted", 1.02, math.log(297.04), 0.11514),
    rmse=0.00683,
    points=12,
    irreducible_loss_interval=engine.Interval(1.02, 0.9, 1.1),
    gamma_interval=engine.Interval(0.11514, 0.1, 0.13),
)


def test_a_power_law_shows_its_coefficient_and_exponent() -> None:
    assert engine.formulas.hyperparameter_formula(POWER) == "LR = 2.84e-5 * L^2.511"
    batch = replace(POWER, quantity="batch_size", intercept=math.log(250), slope=-3.0)
    assert engine.formulas.hyperparameter_formula(batch) == "B = 250 * L^-3"


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
    law = engine.HyperparameterLaw(quantity, "fitted", "LinearInLogCompute", intercept, slope)
    assert engine.formulas.hyperparameter_formula(law) == formula


def test_the_loss_curve_shows_all_three_coefficients() -> None:
    assert engine.formulas.loss_compute_formula(CURVE) == "L = 1.0200 + 297 * C^-0.1151"


def test_a_coefficient_that_no_one_could_read_is_an_exponential() -> None:
    steep = replace(CURVE, log_alpha=812.34567, gamma=18.2)
    assert engine.formulas.loss_compute_formula(steep) == "L = 1.0200 + exp(812.346) * C^-18.2"


def test_the_joint_surface_is_written_over_parameters_and_tokens() -> None:
    surface = engine.SurfaceLaw(
        "fitted",
        optimum=engine.OptimumTrends(
            learning_rate=engine.Trend(math.log(1e-3), -0.5, 0.0, of_params_squared=-0.0123),
            batch_size=engine.Trend(math.log(100), 0.0, 0.5, of_tokens_squared=0.004),
            log_params_centre=math.log(1e8),
            log_tokens_centre=math.log(1e10),
        ),
        residual_rms=0.00123,
        cells=30,
    )
    assert engine.formulas.surface_formula(surface) == (
        "LR = 0.001 * n^(-0.5 - 0.012 ln n); B = 100 * d^(0.5 + 0.004 ln d); n = N / 1e8, d = D / 1e10"
    )
    assert engine.formulas.surface_quality(surface) == "30 (N, D) cells, residual 0.0012 nats"


def test_a_curvature_that_is_rounding_is_not_shown() -> None:
    """Of two sizes the curvature over sizes is 0 but for the last digits."""
    of_two_sizes = engine.OptimumTrends(
        learning_rate=engine.Trend(math.log(1e-3), -0.5, 0.0, of_params_squared=3.1e-17),
        batch_size=engine.Trend(math.log(100), 0.0, 0.5, of_tokens_squared=-2e-16),
        log_params_centre=math.log(1e8),
        log_tokens_centre=math.log(1e10),
    )
    assert (
        engine.formulas.surface_formula(engine.SurfaceLaw("fitted", optimum=of_two_sizes))
        == "LR = 0.001 * n^-0.5; B = 100 * d^0.5; n = N / 1e8, d = D / 1e10"
    )


def test_refused_laws_have_no_formula() -> None:
    refused = engine.HyperparameterLaw("learning_rate", "refused", "PowerLawOfLoss")
    assert engine.formulas.hyperparameter_formula(refused) == ""
    assert engine.formulas.loss_compute_formula(engine.LossComputeLaw("refused")) == ""
    assert engine.formulas.surface_formula(engine.SurfaceLaw("refused")) == ""


def test_the_quality_says_what_a_law_rests_on() -> None:
    assert engine.formulas.hyperparameter_quality(POWER) == "12 optima, exponent 2.4 to 2.62"
    assert engine.formulas.loss_compute_quality(CURVE) == (
        "12 losses, residual 0.0068 nats, L0 0.9 to 1.1, gamma 0.1 to 0.13"
    )
    fixed = replace(CURVE, irreducible_loss_fixed=True)
    assert engine.formulas.loss_compute_quality(fixed).endswith("gamma 0.1 to 0.13, L0 fixed")
    vague = replace(CURVE, irreducible_loss_identified=False)
    assert engine.formulas.loss_compute_quality(vague).endswith("L0 not identified by the data")


@pytest.mark.parametrize("loss", [1.9, 3.2])
def test_a_formula_evaluates_to_what_the_law_predicts(loss: float) -> None:
    text = engine.formulas.hyperparameter_formula(POWER).partition(" = ")[2]
    evaluated = eval(text.replace("^", "**"), {"L": loss})
    curve = POWER.curve
    assert curve is not None
    assert evaluated == pytest.approx(float(curve.value(loss, 0.0)), rel=1e-3)
