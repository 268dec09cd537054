"""The error of taking a continued run for one from scratch is in the intervals, and said."""

from dataclasses import replace

import numpy as np
import pytest
from scipy.special import stdtrit

from isoloss import usual
from isoloss.laws import (
    Interval,
    Point,
    Prediction,
    PredictionQuery,
    RefusalReason,
    Refused,
    predict,
)
from isoloss.laws.answer.composition import (
    CompositionError,
    composed,
    composition_error,
    student_quantiles,
)
from isoloss.laws.answer.question import Question, resolve
from tests.isoloss.laws.test_predict import power_laws
from tests.support.synthetic_runs import fitted_laws


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
    reach = 1.2815516 * np.array([0.4, 0.2])  # of an 80% interval
    assert half_widths(wide) == pytest.approx(np.hypot(half_widths(bare), reach), rel=1e-6)
    assert wide.learning_rate.value == bare.learning_rate.value
    assert wide.batch_size_raw == bare.batch_size_raw
    assert wide.best.learning_rate == wide.learning_rate
    assert wide.variants["A"].learning_rate.high > bare.variants["A"].learning_rate.high


def test_what_the_benchmark_measured_is_carried_unless_another_error_is_given() -> None:
    """With Student's quantile of as many degrees of freedom as there are checkpoints; more the less is still to come."""
    bare, measured = answered(composition_error=(0.0, 0.0)), answered()
    log_share = np.log(measured.cpt_flops / measured.total_flops.value)
    young = usual.YOUNG_ERROR / (
        1.0 + np.exp(3.0) / usual.YOUNG_TOKENS
    )  # at the frontier of power_laws
    of_rate = np.sqrt(usual.RATE_ERROR**2 + (usual.FADE_ERROR * log_share) ** 2 + young**2)
    error = np.array([of_rate, usual.BATCH_ERROR])
    reach = float(student_quantiles(usual.CHECKPOINTS, np.array([0.9]))[0]) * error
    assert half_widths(measured) == pytest.approx(np.hypot(half_widths(bare), reach), rel=1e-3)
    assert np.all(half_widths(answered(composition="Paper")) > half_widths(measured))


def test_the_fewer_tokens_a_parameter_the_less_certain_is_the_learning_rate() -> None:
    laws = power_laws()
    question = resolve(laws, PredictionQuery(initial_loss=6.0, cpt_flops=1e22))
    assert isinstance(question, Question)

    def error(tokens_per_param: float | None) -> CompositionError:
        """Of a run whose past is next to nothing."""
        if tokens_per_param is None:
            return composition_error(replace(question, place=None))
        log_params = np.zeros_like(question.log_total)
        place = (log_params, log_params + np.log(tokens_per_param))
        return composition_error(replace(question, place=place))

    young, older, old = (error(tokens) for tokens in (1e-9, usual.YOUNG_TOKENS, 1e6))
    assert young.log_rate == pytest.approx(np.hypot(usual.RATE_ERROR, usual.YOUNG_ERROR))
    assert older.log_rate == pytest.approx(np.hypot(usual.RATE_ERROR, usual.YOUNG_ERROR / 2))
    assert old.log_rate == pytest.approx(usual.RATE_ERROR, rel=1e-3)
    assert young.log_batch == pytest.approx(usual.BATCH_ERROR) == old.log_batch
    assert error(None).log_rate == pytest.approx(usual.RATE_ERROR, rel=1e-3)


def test_a_checkpoint_that_was_pretrained_slower_wants_less_within_what_was_measured() -> None:
    measured = answered()
    of_laws = measured.variants["paper"].learning_rate.value
    half = answered(pretraining_learning_rate=of_laws / 2)
    assert half.learning_rate.value == pytest.approx(
        measured.learning_rate.value * 0.5**usual.RATIO_EXPONENT
    )
    assert half.batch_size_raw == measured.batch_size_raw
    assert half.variants["paper"] == measured.variants["paper"]
    log_share = np.log(measured.cpt_flops / measured.total_flops.value)
    young = usual.YOUNG_ERROR / (1.0 + np.exp(3.0) / usual.YOUNG_TOKENS)
    more = [
        usual.RATE_ERROR,
        usual.FADE_ERROR * log_share,
        young,
        usual.RATIO_EXPONENT_ERROR * np.log(2.0),
    ]
    bare = answered(composition_error=(0.0, 0.0))
    reach = float(student_quantiles(usual.CHECKPOINTS, np.array([0.9]))[0]) * np.linalg.norm(more)
    assert half_widths(half)[0] == pytest.approx(np.hypot(half_widths(bare)[0], reach), rel=1e-3)
    (sentence,) = [w for w in half.warnings if "was pre-trained at" in w]
    assert (
        f"0.50 of the laws' learning rate: learning rate x{0.5**usual.RATIO_EXPONENT:.2f}"
        in sentence
    )
    assert answered(pretraining_learning_rate=of_laws).learning_rate == measured.learning_rate
    for ratio in (0.2, 1.5):
        query = PredictionQuery(
            initial_loss=3.0, cpt_flops=1e20, pretraining_learning_rate=ratio * of_laws
        )
        refused = predict(power_laws(), query)
        assert isinstance(refused, Refused)
        assert refused.refusals[0].reason is RefusalReason.EXTRAPOLATION_TOO_FAR
        assert f"pre-trained at {ratio:g} times" in refused.refusals[0].message


@pytest.mark.parametrize(
    "more",
    [
        {"composition": "Paper"},
        {"batch_size": 64.0, "params": 1e9},
        {"total_flops": 1e20, "initial_loss": None, "cpt_flops": None},
    ],
)
def test_a_rate_of_pretraining_that_would_do_nothing_is_refused(more: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="pretraining_learning_rate"):
        answered(pretraining_learning_rate=1e-3, **more)


def test_an_answer_that_carries_it_says_so_and_another_does_not() -> None:
    words = [
        w for w in answered(composition_error=(0.4, 0.2)).warnings if "error of this rule" in w
    ]
    assert len(words) == 1
    assert "1.49 in the learning rate and 1.22 in the batch size" in words[0]
    (measured,) = [w for w in answered().warnings if "error of this rule" in w]
    assert f"measured on continued runs of {usual.CHECKPOINTS} tiny checkpoints" in measured
    assert measured.endswith("give pretraining_learning_rate.")
    none = answered(composition_error=(0.0, 0.0))
    assert not any("error of this rule" in warning for warning in none.warnings)


def test_where_the_batch_size_is_given_nothing_is_said_of_its_error() -> None:
    def words(**question: object) -> list[str]:
        query = {"initial_loss": 2.75, "cpt_flops": 3e19, "params": 1e9, "batch_size": 64.0}
        found = predict(fitted_laws(), PredictionQuery(**query, **question))  # type: ignore[arg-type]
        assert isinstance(found, Prediction)
        return [each for each in found.warnings if "error of this rule" in each]

    (reported,) = words(composition_error=(0.4, 0.2))
    assert "1.49 in the learning rate (one standard deviation)" in reported
    assert words(composition_error=(0.0, 0.2)) == []


def test_a_given_total_compute_composes_nothing() -> None:
    total = answered(initial_loss=None, cpt_flops=None, total_flops=1e20)
    given = answered(
        initial_loss=None, cpt_flops=None, total_flops=1e20, composition_error=(0.5, 0.5)
    )
    assert half_widths(total) == pytest.approx(half_widths(given))
    assert not any("continued run" in warning for warning in total.warnings)
    assert not total.variants


def test_a_continued_run_wants_less_learning_rate_and_more_batch_and_the_papers_answer_is_a_variant() -> (
    None
):
    found, paper = answered(), answered(composition="Paper")
    share = found.cpt_flops / found.total_flops.value
    assert 0.01 < share < 0.95
    assert found.learning_rate.value == pytest.approx(paper.learning_rate.value * share**0.5)
    assert found.batch_size_raw == pytest.approx(paper.batch_size_raw * (2.0 - share))
    assert found.variants["paper"].batch_size == paper.best.batch_size
    assert found.variants["paper"].learning_rate == paper.learning_rate
    assert paper.variants["measured"].learning_rate == found.learning_rate
    assert (found.composition, paper.composition) == ("Measured", "Paper")


def test_the_ablations_are_composed_as_the_answer_is_each_with_its_own_share() -> None:
    asked = {"params": 1e9, "pretraining_tokens": 1e10}
    found, paper = answered(**asked), answered(**asked, composition="Paper")
    assert found.variants["A"].learning_rate.value == paper.variants["A"].learning_rate.value
    share = found.cpt_flops / paper.variants["B"].total_flops
    lowered = found.variants["B"].learning_rate.value / paper.variants["B"].learning_rate.value
    assert lowered == pytest.approx(share**0.5)


def test_a_factor_of_the_learning_rate_is_told_and_that_it_was_not_measured_so_far() -> None:
    (words,) = [w for w in answered().warnings if "Adjusted for continued training" in w]
    assert "learning rate x0." in words
    assert "batch size x1." in words
    assert "The variant paper leaves this out." in words
    little = answered(cpt_flops=1e18)
    (words,) = [w for w in little.warnings if "Adjusted for continued training" in w]
    assert "were not measured" in words
    assert not any(
        "Adjusted for continued training" in w for w in answered(composition="Paper").warnings
    )
    assert not any(
        "Adjusted for continued training" in w for w in answered(cpt_flops=5e22).warnings
    )


@pytest.mark.parametrize("error", [(-0.1, 0.1), (0.1, float("nan")), (float("inf"), 0.0)])
def test_an_impossible_error_is_refused(error: tuple[float, float]) -> None:
    with pytest.raises(ValueError, match="composition_error"):
        predict(
            power_laws(),
            PredictionQuery(initial_loss=3.0, cpt_flops=1e20, composition_error=error),
        )


def test_without_a_size_the_error_is_that_of_the_size_that_needs_the_least_compute() -> None:
    laws = fitted_laws()
    query = PredictionQuery(initial_loss=3.0, cpt_flops=1e19)
    plain = predict(laws, query)
    assert isinstance(plain, Prediction)
    ratio = float(np.exp(laws.surface.frontier_log_ratio or 0.0))
    params = float(np.sqrt(plain.total_flops.value / 6.0 / ratio))
    sized = predict(laws, replace(query, params=params))
    assert isinstance(sized, Prediction)
    words = [
        [w for w in each.warnings if "one standard deviation" in w] for each in (plain, sized)
    ]
    assert words[0] == words[1]
    assert len(words[0]) == 1


def test_an_interval_as_wide_as_floats_are_stays_finite() -> None:
    """A variant of little compute may be that far from the sweep, and infinity is no JSON."""
    question = resolve(power_laws(), PredictionQuery(initial_loss=3.0, cpt_flops=1e20))
    assert isinstance(question, Question)
    widest = Interval(1e-5, 1e-304, float(np.exp(700.0)))
    point = composed(Point(widest, widest, total_flops=1e20, target_loss=3.0), question, 0.8)
    for found in (point.learning_rate, point.batch_size):
        assert found.low <= found.value < found.high < np.inf


LEVELS = (np.arange(21) + 0.5) / 21


@pytest.mark.parametrize("freedom", [1.0, 2.3, 4.0, 10.0, 60.0])
def test_student_quantiles_are_scipys(freedom: float) -> None:
    levels = np.array([0.001, *LEVELS, 0.975, 0.999])
    expected = stdtrit(freedom, levels)
    assert student_quantiles(freedom, levels) == pytest.approx(expected, rel=1e-4, abs=1e-5)
