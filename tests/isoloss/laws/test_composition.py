"""The error of taking a continued run for one from scratch is in the intervals, and said."""

from __future__ import annotations

import numpy as np
import pytest

from isoloss.laws import Prediction, PredictionQuery, predict
from isoloss.laws.answer.composition import MEASURED
from tests.isoloss.laws.test_predict import power_laws


def answered(**changes: object) -> Prediction:
    query = {"initial_loss": 3.0, "cpt_flops": 1e20, **changes}
    found = predict(power_laws(), PredictionQuery(**query))  # type: ignore[arg-type]
    assert isinstance(found, Prediction)
    return found


def half_widths(answer: Prediction) -> np.ndarray:
    intervals = (answer.learning_rate, answer.batch_size)
    values = (answer.learning_rate.value, answer.batch_size_raw)
    return np.array([np.log(i.high / v) for i, v in zip(intervals, values, strict=True)])


def test_it_widens_the_intervals_in_quadrature_and_moves_no_value() -> None:
    bare = answered(composition_error=(0.0, 0.0))
    wide = answered(composition_error=(0.4, 0.2))
    reach = 1.2815516 * np.array([0.4, 0.2])  # of an 80 % interval
    assert half_widths(wide) == pytest.approx(np.hypot(half_widths(bare), reach), rel=1e-6)
    assert wide.learning_rate.value == bare.learning_rate.value
    assert wide.batch_size_raw == bare.batch_size_raw
    assert wide.routes["iso-loss"].learning_rate == wide.learning_rate
    assert wide.variants["A"].learning_rate.high > bare.variants["A"].learning_rate.high


def test_what_the_benchmark_measured_is_carried_unless_another_error_is_given() -> None:
    """With Student's quantile of as many degrees of freedom as there are checkpoints."""
    bare, usual = answered(composition_error=(0.0, 0.0)), answered()
    reach = 1.3562 * np.array([MEASURED.log_rate, MEASURED.log_batch])
    assert MEASURED.freedom == 12
    assert half_widths(usual) == pytest.approx(np.hypot(half_widths(bare), reach), rel=1e-3)


def test_an_answer_that_carries_it_says_so_and_another_does_not() -> None:
    said = [w for w in answered(composition_error=(0.4, 0.2)).warnings if "continued run" in w]
    assert len(said) == 1
    assert "1.49 in the learning rate and 1.22 in the batch size" in said[0]
    (measured,) = [w for w in answered().warnings if "continued run" in w]
    assert "measured on continued runs of 12 tiny checkpoints" in measured
    none = answered(composition_error=(0.0, 0.0))
    assert not any("continued run" in warning for warning in none.warnings)


def test_a_given_total_compute_composes_nothing() -> None:
    total = answered(initial_loss=None, cpt_flops=None, total_flops=1e20)
    given = answered(
        initial_loss=None, cpt_flops=None, total_flops=1e20, composition_error=(0.5, 0.5)
    )
    assert half_widths(total) == pytest.approx(half_widths(given))
    assert not any("continued run" in warning for warning in total.warnings)
    assert not total.variants


def test_the_variant_faded_lowers_the_learning_rate_by_the_root_of_the_share_to_come() -> None:
    found = answered()
    share = found.cpt_flops / found.total_flops.value
    variant = found.variants["faded"]
    assert 0.01 < share < 0.99
    assert variant.learning_rate.value == pytest.approx(found.learning_rate.value * share**0.5)
    assert variant.batch_size.value == found.batch_size_raw
    ends = (variant.learning_rate.low, variant.learning_rate.high)
    wanted = (found.learning_rate.low, found.learning_rate.high)
    assert ends == pytest.approx(np.array(wanted) * share**0.5)


@pytest.mark.parametrize("error", [(-0.1, 0.1), (0.1, float("nan")), (float("inf"), 0.0)])
def test_an_impossible_error_is_refused(error: tuple[float, float]) -> None:
    with pytest.raises(ValueError, match="composition_error"):
        predict(
            power_laws(),
            PredictionQuery(initial_loss=3.0, cpt_flops=1e20, composition_error=error),
        )
