"""One size has a loss-compute law of its own; its best settings need a trend over sizes from elsewhere."""

import numpy as np
import pytest

from benchmarks.science.cases import planted_case
from benchmarks.science.shapes import ONE, WIDE, surface
from isoloss.laws import (
    FitOptions,
    Prediction,
    PredictionQuery,
    RefusalReason,
    Refused,
    SizeTrend,
    fit_laws,
    predict,
)

TREND = SizeTrend("published:somewhere", -0.4, -0.05)
OPTIONS = FitOptions(bootstrap_samples=60)
RUNS = planted_case("exact", ONE, 0).runs
TRUTH = surface("exact", 0)
SIZE, TOKENS = ONE.sizes[0], ONE.tokens[0]


def best_loss(tokens: float) -> float:
    return TRUTH.loss(SIZE, tokens, TRUTH.batch(SIZE, tokens), TRUTH.rate(SIZE, tokens))


@pytest.mark.parametrize("share", [0.2, 0.5, 0.9])
def test_the_compute_that_a_loss_took_is_found_from_the_best_runs(share):
    laws = fit_laws(RUNS, OPTIONS)
    assert laws.loss_compute.status == "fitted"
    flops = float(np.exp(laws.loss_compute.curve.log_x(best_loss(share * TOKENS))))
    # The luckiest of 25 runs is below the least loss that one can expect.
    assert flops == pytest.approx(6 * SIZE * share * TOKENS, rel=0.06)


def test_settings_stay_refused_and_the_law_says_what_it_is_not():
    laws = fit_laws(RUNS, OPTIONS)
    assert laws.status == "refused"
    assert {r.reason for r in laws.refusals} == {RefusalReason.TOO_FEW_SIZES}
    assert any("longer training at this size" in w for w in laws.warnings)
    found = predict(laws, PredictionQuery(total_flops=6 * SIZE * TOKENS, params=SIZE))
    assert isinstance(found, Refused)
    assert "train another size" in found.refusals[0].message
    assert "--" not in found.refusals[0].message  # events and reports have no command line


def test_a_published_trend_over_sizes_is_used_where_asked_and_named():
    laws = fit_laws(RUNS, FitOptions(bootstrap_samples=60, size_trend=TREND))
    assert laws.status == "fitted"
    assert laws.surface.planes.learning_rate.of_params == pytest.approx(-0.4)
    assert laws.surface.planes.batch_size.of_params == pytest.approx(-0.05)
    for n, d in ((SIZE, TOKENS), (3 * SIZE, 2 * TOKENS)):
        found = predict(laws, PredictionQuery(total_flops=6 * n * d, params=n))
        assert isinstance(found, Prediction)
        assert found.learning_rate.value == pytest.approx(TRUTH.rate(n, d), rel=0.1)
        assert found.batch_size_raw == pytest.approx(TRUTH.batch(n, d), rel=0.15)
        assert any("published:somewhere" in w and "N^-0.4" in w for w in found.warnings)


def test_with_a_published_trend_a_question_without_a_size_is_told_to_name_one():
    """Another size need not be trained: the trend stands for it."""
    laws = fit_laws(RUNS, FitOptions(bootstrap_samples=60, size_trend=TREND))
    found = predict(laws, PredictionQuery(total_flops=6 * SIZE * TOKENS))
    assert isinstance(found, Refused)
    (refusal,) = found.refusals
    assert "These laws answer where the size of your model is named" in refusal.message
    assert refusal.figures["law_reason"] == "TooFewSizes"


def test_the_published_trends_own_error_widens_the_answer_with_the_distance():
    laws = fit_laws(RUNS, FitOptions(bootstrap_samples=200, size_trend=TREND))
    widths = []
    for n in (SIZE, 8 * SIZE):
        found = predict(laws, PredictionQuery(total_flops=6 * n * TOKENS, params=n))
        widths.append(np.log(found.learning_rate.high / found.learning_rate.low))
    assert widths[1] > 2 * widths[0]


def test_sizes_that_show_their_own_trend_keep_it():
    runs = planted_case("exact", WIDE, 0).runs
    asked = fit_laws(runs, FitOptions(bootstrap_samples=60, size_trend=TREND))
    plain = fit_laws(runs, OPTIONS)
    assert asked.surface.planes == plain.surface.planes
    found = predict(asked, PredictionQuery(total_flops=6e9 * 4e10, params=1e9))
    assert any("was not used" in w for w in found.warnings)


def test_one_size_trained_for_one_token_count_tells_nothing():
    runs = [type(r)(**{**vars(r), "tokens": r.tokens[-1:], "losses": r.losses[-1:]}) for r in RUNS]
    laws = fit_laws(runs, FitOptions(bootstrap_samples=60, size_trend=TREND))
    assert laws.status == "refused"
